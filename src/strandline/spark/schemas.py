"""Columns of a table as Spark's schemas.

Files are written and read with a schema that has the ids of columns and nested fields. In it
everything is nullable, as in all files that Spark reads, and char and varchar are strings. What the
table declares beyond that (NOT NULL, lengths) is checked when rows are appended.

If a name meant two columns in the table's history, all columns are read under names that nothing
else uses (`scan_columns`). Spark finds a column by its id, but then looks up the wanted type, and
the statistics for a condition, by the name that the column has in the file: those of another
column. The same holds if a decimal got more digits, because Spark cuts the constant of a condition
to the size of the decimals in the file. Otherwise columns keep their names, so that Spark skips
parts of files.

A DataFrame that is returned to users keeps comments. Its top-level columns lose their ids, which
have no meaning in what the user derives from it. Nested fields keep their ids, because removing
them would rebuild each struct in each row.

**Settings.** Columns are found in files by id. A session that matches them by name instead would
silently return wrong rows after the first renamed column, so `check_reading` and `check_writing`
refuse it. They also refuse a session that reads only the wanted fields of a struct: the columns
that Spark prunes (`SchemaPruning`) lose their ids and are read as NULL. And they refuse one that
writes other dates and times than the rows have: in another calendar, or in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types

from strandline.catalog.commands import ColumnDefinition
from strandline.catalog.commands.defaults import EXISTS_DEFAULT
from strandline.errors import InvalidInput, UnsupportedOperation
from strandline.metastore.interface import ResolvedTable
from strandline.model.descriptors import ColumnDescriptor, TableDescriptor
from strandline.model.identifiers import SCAN_PREFIX, check_scan_name, normalize
from strandline.model.type_json import FIELD_ID_KEY, parse_schema_json, schema_json
from strandline.model.type_parser import parse_fields, parse_type
from strandline.model.type_text import quoted
from strandline.model.types import (
    DATE,
    TIMESTAMP,
    VARIANT,
    DataType,
    DecimalType,
    StructField,
    StructType,
    as_stored,
    fields_of,
    ids_in,
    walk,
    with_parts,
)

FILE = f"{SCAN_PREFIX}file"
POSITION = f"{SCAN_PREFIX}position"
"""Additional columns of a scan for positions: a row's file id, and its number in it, from 0 on."""
BITMAP_FILE = f"{SCAN_PREFIX}bitmap_file"
BITMAP = f"{SCAN_PREFIX}bitmap"
"""The columns that a scan is joined with: the id of a file, and the bitmap of its deleted rows."""
MAX_LEVELS = 98
"""Levels of nesting in a file, where a list and a map have two: the driver reads no more."""
_MARK = "strandline.written"


@dataclass(frozen=True, slots=True)
class ScanColumn:
    """A column as files are read (``read``) and as users see it (``shown``).

    ``renamed_inside`` says that the names of nested fields differ, too.
    """

    read: spark_types.StructField
    shown: spark_types.StructField
    renamed_inside: bool


def file_schema(columns: Iterable[ColumnDescriptor]) -> spark_types.StructType:
    """The schema with which files are read and written: everything has its id and is nullable."""
    return _to_spark(
        StructField(
            column.name,
            as_stored(column.type),
            comment=column.comment,
            metadata=column.metadata,
            field_id=column.id,
        )
        for column in columns
    )


def scan_columns(table: TableDescriptor) -> tuple[ScanColumn, ...]:
    """How the columns of ``table`` are read from files of any age.

    A column gets another name if its own meant two columns, or two types of decimals, in the
    table's history; so do all fields of a struct with such a name. Spark skips no part of a file by
    the values of a column with another name, and copies each value of such a struct.
    """
    reused = _reused_names(table)
    structs = frozenset(path for path, _ in reused)
    columns = []
    for column, shown in zip(table.columns, file_schema(table.columns), strict=True):
        is_reused = ((), normalize(column.name)) in reused
        name = f"{SCAN_PREFIX}{column.id}" if is_reused else column.name
        inner = _renamed(column.type, (column.id,), structs)
        (read,) = file_schema([replace(column, name=name, type=inner)])
        columns.append(ScanColumn(read, shown, inner != column.type))
    return tuple(columns)


def declared_schema(columns: Iterable[ColumnDescriptor]) -> spark_types.StructType:
    """The schema that the table declares, including which columns are NOT NULL."""
    return _to_spark(StructField(c.name, c.type, c.nullable) for c in columns)


def metadata_for_users(field: spark_types.StructField) -> dict[str, Any]:
    """The metadata of a column of `file_schema`, without its id."""
    return {key: value for key, value in field.metadata.items() if key != FIELD_ID_KEY}


def metadata_for_files(field: spark_types.StructField) -> dict[str, Any]:
    """The metadata that makes Spark write the id of a column.

    The mark makes it different from any metadata that a column can have already. Without the mark,
    Spark considers an alias redundant if the column claims to have the id, and drops the alias,
    although that claim may come from a projection that Spark has dropped before.
    """
    return {FIELD_ID_KEY: field.metadata[FIELD_ID_KEY], _MARK: True}


@dataclass(frozen=True, slots=True)
class Selected:
    """The column ``source`` under another ``name`` and with ``metadata``, cast to ``cast_to``."""

    source: str
    name: str
    metadata: dict[str, Any]
    cast_to: spark_types.DataType | None


def select(rows: DataFrame, columns: Sequence[Selected], *others: Column) -> DataFrame:
    """These columns of ``rows``.

    A table may have a thousand columns. `Column` makes thirty calls of the JVM for each of them,
    each of which takes a tenth of a millisecond. This makes three to seven.
    """
    jvm = getattr(rows.sparkSession, "_jvm", None)
    if jvm is None:  # Spark Connect sends all of them in one message
        return rows.select(*map(_selected, columns), *others)
    column_of = jvm.org.apache.spark.sql.functions.col
    parse_metadata = jvm.org.apache.spark.sql.types.Metadata.fromJson
    metadata_of = cache(lambda text: parse_metadata(text))  # py4j's methods cannot be wrapped
    selected = jvm.java.util.ArrayList()
    for column in columns:
        value = column_of(quoted(column.source))
        if column.cast_to is not None:
            session = rows.sparkSession._jsparkSession
            value = value.cast(session.parseDataType(column.cast_to.json()))
        selected.add(getattr(value, "as")(column.name, metadata_of(json.dumps(column.metadata))))
    for other in others:
        selected.add(other._jc)
    return DataFrame(rows._jdf.select(jvm.PythonUtils.toSeq(selected)), rows.sparkSession)


def _selected(column: Selected) -> Column:
    value = sql.col(quoted(column.source))
    if column.cast_to is not None:
        value = value.cast(column.cast_to)
    return value.alias(column.name, metadata=column.metadata)


def without_rows(spark: SparkSession, schema: spark_types.StructType) -> DataFrame:
    """An empty DataFrame, which Spark knows to be empty."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return spark.createDataFrame([], schema)
    session = spark._jsparkSession
    rows = session.createDataFrame(jvm.java.util.ArrayList(), session.parseDataType(schema.json()))
    return DataFrame(rows, spark)


def field_ids(columns: Iterable[ColumnDescriptor]) -> frozenset[int]:
    """The ids that a file with these columns has, at every level."""
    ids: set[int] = set()
    for column in columns:
        ids.update((column.id, *ids_in(column.type)))
    return frozenset(ids)


def column_definitions(schema: spark_types.StructType | str) -> tuple[ColumnDefinition, ...]:
    """The columns of a new table, from a Spark schema or SQL text like ``id BIGINT NOT NULL, …``.

    Ids that a schema has from other files are dropped. Raises `InvalidInput`, `InvalidType`.
    """
    if isinstance(schema, str):
        fields = parse_fields(schema)
    elif not isinstance(schema, spark_types.StructType):
        raise InvalidInput(
            f"the columns must be a Spark schema or SQL text like 'id BIGINT', not {schema!r}"
        )
    else:
        fields = parse_schema_json(schema.json(), field_ids=True).fields
    return tuple(
        ColumnDefinition(
            field.name,
            _without_ids(field.type),
            field.nullable,
            field.comment,
            metadata=field.metadata,
        )
        for field in fields
    )


def column_type(data_type: spark_types.DataType | str) -> DataType:
    """The type of a column, from a Spark type or SQL text like ``DECIMAL(12, 2)``.

    Raises `InvalidInput`, `InvalidType`.
    """
    if isinstance(data_type, str):
        return parse_type(data_type)
    if not isinstance(data_type, spark_types.DataType):
        raise InvalidInput(
            f"a type must be a Spark type or SQL text like 'BIGINT', not {data_type!r}"
        )
    (column,) = column_definitions(spark_types.StructType().add("column", data_type))
    return column.type


def nested_ids(data_type: spark_types.DataType) -> tuple[int | None, ...]:
    """The ids of all fields inside a Spark type, in order; None for a field without an id."""
    match data_type:
        case spark_types.ArrayType():
            return nested_ids(data_type.elementType)
        case spark_types.MapType():
            return nested_ids(data_type.keyType) + nested_ids(data_type.valueType)
        case spark_types.StructType():
            ids: list[int | None] = []
            for field in data_type.fields:
                ids += (field.metadata.get(FIELD_ID_KEY), *nested_ids(field.dataType))
            return tuple(ids)
    return ()


def check_supported(table: ResolvedTable, name: str) -> None:
    """Raise `UnsupportedOperation` if this package cannot read and write the table."""
    if not table.descriptor.transactional:
        raise UnsupportedOperation(
            f"{name} is a plain {table.descriptor.provider} table without transactions; read and"
            f" write it through Spark itself: spark.table({name!r})"
        )
    if table.descriptor.partition_columns:
        raise UnsupportedOperation(
            f"{name} is a transactional table of an older release with partition columns, which"
            " were never read or written; create a table with partitioned_by"
        )
    for column in table.descriptor.columns:
        check_scan_name(column.name)


def _to_spark(fields: Iterable[StructField]) -> spark_types.StructType:
    text = schema_json(StructType(tuple(fields)), field_ids=True)
    schema = spark_types.StructType.fromJson(json.loads(text))
    for field in schema:
        # With it, Spark fills in the rows of files that do not have the column: they are NULL.
        field.metadata.pop(EXISTS_DEFAULT, None)
    return schema


_Path = tuple[int | str, ...]
"""The path to a struct: the id of its column, then ids of fields and steps into lists and maps.

It is empty for the columns themselves.
"""


def _inside(path: _Path, field: StructField) -> _Path:
    return (*path, field.field_id or field.name)


def _reused_names(table: TableDescriptor) -> frozenset[tuple[_Path, str]]:
    """The names, each with its path, that meant two fields or two types of decimals."""
    meanings: dict[tuple[_Path, str], set[tuple[int | None, DataType | None]]] = {}

    def add(path: _Path, fields: Iterable[StructField]) -> None:
        for field in fields:
            decimal = field.type if isinstance(field.type, DecimalType) else None
            known = meanings.setdefault((path, normalize(field.name)), set())
            known.add((field.field_id, decimal))
            add(_inside(path, field), fields_of(field.type))

    for version in table.schema_versions:
        add((), (StructField(c.name, c.type, field_id=c.id) for c in version.columns))
    return frozenset(name for name, known in meanings.items() if len(known) > 1)


def _renamed(data_type: DataType, path: _Path, structs: frozenset[_Path]) -> DataType:
    """The type with other names of the fields of ``structs``."""
    paths = (_inside(path, field) for field in fields_of(data_type))
    if isinstance(data_type, StructType) and path in structs:
        fields = (replace(f, name=f"{SCAN_PREFIX}{f.field_id}") for f in data_type.fields)
        data_type = StructType(tuple(fields))
    return with_parts(data_type, lambda inner: _renamed(inner, next(paths), structs))


def _without_ids(data_type: DataType) -> DataType:
    if isinstance(data_type, StructType):
        data_type = StructType(tuple(replace(f, field_id=None) for f in data_type.fields))
    return with_parts(data_type, _without_ids)


READ_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
WRITE_IDS = "spark.sql.parquet.fieldId.write.enabled"
PRUNE_FIELDS = "spark.sql.optimizer.nestedSchemaPruning.enabled"
TIMESTAMPS_AS = "spark.sql.parquet.outputTimestampType"
WRITTEN_CALENDAR = "spark.sql.parquet.datetimeRebaseModeInWrite"
INT96_CALENDAR = "spark.sql.parquet.int96RebaseModeInWrite"

SETTINGS = {
    READ_BY_ID: "true",
    WRITE_IDS: "true",
    PRUNE_FIELDS: "false",
    # The default, INT96, has no statistics.
    TIMESTAMPS_AS: "TIMESTAMP_MICROS",
    # Above it, Spark starts a job to check the files of a list, which costs far more than they do.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Return the builder with all settings that tables need; it does not set the time zone.

    Raises `InvalidInput` for a session, whose settings are fixed.
    """
    if not hasattr(builder, "config"):
        raise InvalidInput(
            "configure takes the builder, before the Spark session exists: "
            "configure(SparkSession.builder).getOrCreate()"
        )
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    return builder


def check_reading(spark: SparkSession, columns: Iterable[ColumnDescriptor] = ()) -> None:
    """Raise `UnsupportedOperation` unless the session finds ``columns`` by id.

    Raises `InvalidInput` if it was stopped.
    """
    _check(spark, READ_BY_ID, "would look for columns by name, and not find renamed ones")
    if any(isinstance(inner, StructType) for column in columns for inner in walk(column.type)):
        _check(spark, PRUNE_FIELDS, "would lose the id of a struct of which it reads some fields")


def check_writing(spark: SparkSession, columns: Iterable[ColumnDescriptor]) -> None:
    """Raise `UnsupportedOperation` unless the session writes ids, and the values as they are.

    The statistics and partition values of a file are those of the numbers in it. So these must be
    days and microseconds in the calendar of Spark, not in the one of Spark 2. Raises `InvalidInput`
    if the session was stopped.
    """
    _check(spark, WRITE_IDS, "would write files without column ids, which no reader could read")
    types = {inner for column in columns for inner in walk(column.type)}
    if types & {DATE, TIMESTAMP}:
        _refuse_julian(spark, WRITTEN_CALENDAR)
    if TIMESTAMP in types:
        timestamps_as = setting_of(spark, TIMESTAMPS_AS)
        if timestamps_as == "INT96":
            _refuse_julian(spark, INT96_CALENDAR)
        elif timestamps_as == "TIMESTAMP_MILLIS":
            raise UnsupportedOperation(
                "this Spark session would cut timestamps to milliseconds after their partitions"
                f" were computed: set {TIMESTAMPS_AS} to {SETTINGS[TIMESTAMPS_AS]}"
            )


def check_levels(columns: Iterable[ColumnDescriptor]) -> None:
    """Raise `UnsupportedOperation` if a column has more than `MAX_LEVELS` in a file."""
    for column in columns:
        levels = _levels(column.type)
        if levels > MAX_LEVELS:
            raise UnsupportedOperation(
                f"column {column.name!r} nests {levels} levels deep, where a list and a map count "
                f"two, and a variant one; files of rows have at most {MAX_LEVELS}. Nothing was "
                "appended; create a table whose column keeps the inner levels as JSON text"
            )


def _levels(data_type: DataType) -> int:
    if data_type == VARIANT:  # in a file, a struct of two binary fields
        return 1
    inner = [_levels(field.type) for field in fields_of(data_type)]
    if not inner:
        return 0
    return max(inner) + (1 if isinstance(data_type, StructType) else 2)


def setting_of(spark: SparkSession, setting: str) -> str:
    """The value of a setting whose case Spark ignores, or its default, in upper case.

    Raises `InvalidInput` if the session was stopped.
    """
    _refuse_stopped(spark)
    return str(spark.conf.get(setting)).strip().upper()


def reason_of(error: AnalysisException) -> str:
    """What Spark objects to, without the plan and the Java stack that follow in its text."""
    # The text of a syntax error begins with an empty line.
    return str(error).strip().splitlines()[0]


def _refuse_stopped(spark: SparkSession) -> None:
    context = getattr(spark, "_sc", None)  # a Spark Connect session has none, but `is_stopped`
    is_stopped = getattr(spark, "is_stopped", False) if context is None else context._jsc is None
    if is_stopped:
        raise InvalidInput(
            "this Spark session was stopped: build another one with strandline.spark.configure, and"
            " make the Tables and the DataFrames again with it"
        )


def _refuse_julian(spark: SparkSession, setting: str) -> None:
    if setting_of(spark, setting) == "LEGACY":
        raise UnsupportedOperation(
            "this Spark session would write dates and times in the Julian calendar, so that old"
            f" ones are not found by conditions: set {setting} to CORRECTED"
        )


def _check(spark: SparkSession, setting: str, consequence: str) -> None:
    needed = SETTINGS[setting]
    if setting_of(spark, setting) != needed.upper():
        raise UnsupportedOperation(
            f"this Spark session {consequence}: set {setting} to {needed}, or build the session"
            " with strandline.spark.configure"
        )
