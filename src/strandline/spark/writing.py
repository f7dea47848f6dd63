"""Appending: rows are converted to the columns of a table, checked, and written as files.

One Spark job writes Parquet files, which then get their file ids and are moved into place. For a
partitioned table, that job also groups the rows by partition (`strandline.spark.partitions`).

Columns are matched by name at every level, in the way in which Spark compares names: a column that
Spark would not match must not pass the check here, because it would become NULL. A nullable column
that is missing becomes NULL. A column that the table does not have is an error and is not dropped,
since it is more often a mistake than intended. Values are cast as in Spark's INSERT; a value that
does not fit fails the job.

Constraints that Spark's type cannot express (NOT NULL, lengths of char and varchar) become one
condition that fails the job if a row violates it. The condition is in a filter, not in expressions
around the values, because an expression around a struct loses the ids of its fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, BinaryIO, cast

import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, DataFrameWriter
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types

from strandline.errors import InvalidInput, StrandlineError, UnsupportedOperation
from strandline.metastore.interface import ResolvedTable
from strandline.metastore.store.rows import DataFile
from strandline.model.descriptors import ColumnDescriptor, TableDescriptor
from strandline.model.partitioning import Partition
from strandline.model.type_text import ddl_text, quoted
from strandline.model.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StructType,
    VarcharType,
    fields_of,
)
from strandline.spark.folder import TableFolder, spark_path
from strandline.spark.footers import column_statistics, file_ids
from strandline.spark.interrupts import cancelled_by_an_interrupt
from strandline.spark.partitions import KEY, partition_of, with_partition_key
from strandline.spark.schemas import (
    Selected,
    declared_schema,
    field_ids,
    file_schema,
    metadata_for_files,
    nested_ids,
    reason_of,
    select,
    setting_of,
)


@dataclass(frozen=True, slots=True)
class Conformed:
    """Rows with exactly the table's columns and ids. ``messages`` are its check errors."""

    frame: DataFrame
    messages: tuple[str, ...]


def conform(frame: DataFrame, table: ResolvedTable) -> Conformed:
    """Convert ``frame`` to rows of ``table``. Raises `InvalidInput` naming a column that fails."""
    if not isinstance(frame, DataFrame):
        library, remedy = type(frame).__module__.partition(".")[0], "spark.createDataFrame(…)"
        if hasattr(frame, "to_spark"):
            library, remedy = "pandas-on-Spark", "its to_spark()"
        raise InvalidInput(
            f"rows to append must be a Spark DataFrame, not a {library} {type(frame).__name__}; "
            f"make one with {remedy}"
        )
    exact = setting_of(frame.sparkSession, "spark.sql.caseSensitive") == "TRUE"
    table_columns = table.descriptor.columns
    _NameCheck(table.name, exact=exact).run(frame.schema, declared_schema(table_columns), path="")
    target = file_schema(table_columns)
    try:
        # Spark Connect answers `to(target).schema` with ``target``, and checks the rows later.
        shaped = frame.to(target).select("*")
        sources = shaped.schema.fields
    except AnalysisException as error:
        raise InvalidInput(f"the rows do not fit {table.name}: {reason_of(error)}") from error
    checked, messages = _with_checks(shaped, table)
    # `DataFrame.to` loses the id of a column in which nothing else changes, because the optimizer
    # drops such a projection; it keeps an alias.
    columns = [
        _with_ids(source, field) for source, field in zip(sources, target.fields, strict=True)
    ]
    return Conformed(select(checked, columns), messages)


def _with_ids(source: spark_types.StructField, target: spark_types.StructField) -> Selected:
    """The column ``source`` of `DataFrame.to`, with the ids of ``target`` and of its fields.

    `DataFrame.to` keeps those of the fields, unless it builds a struct again in a list or map in
    which Spark has just made a NULL a struct. A cast copies each value, so it is used only then.
    """
    has_nested_ids = nested_ids(source.dataType) == nested_ids(target.dataType)
    return Selected(
        source=target.name,
        name=target.name,
        metadata=metadata_for_files(target),
        cast_to=None if has_nested_ids else target.dataType,
    )


@dataclass(frozen=True, slots=True)
class _NameCheck:
    """Raises `InvalidInput` for a name that is unknown, duplicate, or missing and required."""

    table: str
    exact: bool

    def run(self, source: spark_types.DataType, target: spark_types.DataType, *, path: str) -> None:
        match source, target:
            case spark_types.ArrayType(), spark_types.ArrayType():
                self.run(source.elementType, target.elementType, path=f"{path}.element")
            case spark_types.MapType(), spark_types.MapType():
                self.run(source.keyType, target.keyType, path=f"{path}.key")
                self.run(source.valueType, target.valueType, path=f"{path}.value")
            case spark_types.StructType(), spark_types.StructType():
                self._fields(source, target, path=path)

    def _fields(
        self, source: spark_types.StructType, target: spark_types.StructType, *, path: str
    ) -> None:
        target_fields = {self._key(field.name): field for field in target.fields}
        seen = set()
        for field in source.fields:
            full_name = f"{path}.{field.name}".lstrip(".")
            name = self._key(field.name)
            if name not in target_fields:
                raise InvalidInput(
                    f"{self.table} has no column {full_name!r}; it has"
                    f" {', '.join(field.name for field in target.fields)}: drop or rename it"
                )
            if name in seen:
                raise InvalidInput(
                    f"duplicate column {full_name!r} in the rows for {self.table}; drop or rename"
                    " one"
                )
            seen.add(name)
            self.run(field.dataType, target_fields[name].dataType, path=full_name)
        for name, field in target_fields.items():
            if name not in seen and not field.nullable:
                full_name = f"{path}.{field.name}".lstrip(".")
                raise InvalidInput(
                    f"column {full_name!r} of {self.table} is NOT NULL and missing in the rows; add"
                    " it"
                )

    def _key(self, name: str) -> str:
        """The key of a name, the same for names that Spark equates: Java's rule, by character."""
        if self.exact:
            return name
        return "".join(_single(_single(character, str.upper), str.lower) for character in name)


def _single(character: str, change: Callable[[str], str]) -> str:
    changed = change(character)
    return changed if len(changed) == 1 else character


def _with_checks(frame: DataFrame, table: ResolvedTable) -> tuple[DataFrame, tuple[str, ...]]:
    messages = []
    condition: Column | None = None
    for column in table.descriptor.columns:
        if not constrained(column.type, nullable=column.nullable):
            continue
        bad = broken(sql.col(quoted(column.name)), column.type, nullable=column.nullable)
        message = _violation_message(table, column)
        # Spark moves a deterministic filter below an `explode` that leaves the bad rows out.
        text = sql.when(sql.monotonically_increasing_id() >= 0, sql.lit(message))
        fail = sql.raise_error(text).cast("boolean")
        condition = sql.when(bad, fail) if condition is None else condition.when(bad, fail)
        messages.append(message)
    if condition is None:
        return frame, ()
    return frame.filter(condition.otherwise(sql.lit(True))), tuple(messages)


def _violation_message(table: ResolvedTable, column: ColumnDescriptor) -> str:
    declared = ddl_text(column.type) + ("" if column.nullable else " NOT NULL")
    return f"a value does not fit column {column.name!r} of {table.name}, which is {declared}"


def constrained(data_type: DataType, *, nullable: bool) -> bool:
    """Whether a column of the type has constraints that Parquet files do not enforce."""
    if not nullable or isinstance(data_type, CharType | VarcharType):
        return True
    return any(constrained(f.type, nullable=f.nullable) for f in fields_of(data_type))


def broken(value: Column, data_type: DataType, *, nullable: bool) -> Column:
    """True for a value that violates a constraint of its type, which must be `constrained`."""
    messages = [] if nullable else [value.isNull()]
    if constrained(data_type, nullable=True):
        messages.append(value.isNotNull() & _violates_inside(value, data_type))
    return reduce(or_, messages)


def _violates_inside(value: Column, data_type: DataType) -> Column:
    match data_type:
        case CharType(length) | VarcharType(length):
            return sql.length(value) > length
        case ArrayType(element, contains_null):
            return sql.exists(value, lambda item: broken(item, element, nullable=contains_null))
        case MapType(key, inner, holds_null):
            broken_parts = []
            if constrained(key, nullable=True):
                keys = sql.map_keys(value)
                broken_parts.append(sql.exists(keys, lambda item: broken(item, key, nullable=True)))
            if constrained(inner, nullable=holds_null):
                values = sql.map_values(value)
                broken_parts.append(
                    sql.exists(values, lambda item: broken(item, inner, nullable=holds_null))
                )
            return reduce(or_, broken_parts)
        case StructType(fields):
            return reduce(
                or_,
                (
                    broken(value.getField(f.name), f.type, nullable=f.nullable)
                    for f in fields
                    if constrained(f.type, nullable=f.nullable)
                ),
            )
    raise AssertionError(f"{data_type} promises nothing")


_WRITER_OPTIONS = {
    # With version 2, each task moves its files into the folder of the job. If its executor dies
    # meanwhile, they stay there, beside those of the next attempt, which may have other names.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    # The default, made explicit because the session may change it: damage in a file must be found.
    "parquet.page.write-checksum.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class _Written:
    """A file that Spark wrote into the staging folder, synced."""

    name: str
    bytes: int
    metadata: pq.FileMetaData


def write_data_files(
    rows: Conformed,
    folder: TableFolder,
    table: TableDescriptor,
    *,
    txn_id: int,
    new_file_id: Callable[[], int],
    placed: Callable[[str], None],
) -> list[DataFile]:
    """Write ``rows`` and return the files, on disk and in place; an empty list if there are none.

    ``placed`` is called with each file when it is moved into place, so that an abort can remove it.
    Raises `InvalidInput` if a value violates a constraint of its column, `WriteConflict` if the
    table's folder was moved, `UnsupportedOperation` if Spark wrote rows elsewhere, and whatever
    makes the Spark job fail.
    """
    staging = folder.new_staging(txn_id)
    try:
        row_count = _run(rows, spark_path(folder.path / staging), table)
        with folder.staged(staging) as staged:
            written = [file for file in _files(staged) if file.metadata.num_rows]
            _check_row_count(written, table, row_count=row_count, folder=folder)
            _check_ids(written, table)
            files = []
            for file in written:
                file_id = new_file_id()
                partition = _partition(staged, file, table)
                path = folder.place(staged, file.name, file_id)
                placed(path)
                files.append(
                    DataFile(
                        file_id=file_id,
                        path=path,
                        rows=file.metadata.num_rows,
                        bytes=file.bytes,
                        partition=partition,
                        statistics=column_statistics(file.metadata),
                        schema_version=table.schema_version,
                    )
                )
        folder.sync()
        return files
    finally:
        folder.discard_staging(staging)


def _run(rows: Conformed, path: str, table: TableDescriptor) -> int | None:
    """Write the rows into the folder ``path``; return what `_save` returns."""
    frame, keys = rows.frame, []
    if table.partitioning:
        frame = with_partition_key(frame, table).hint("rebalance", KEY)
        keys = [KEY]
    try:
        with cancelled_by_an_interrupt(frame.sparkSession):
            return _save(frame, path, keys=keys)
    except AnalysisException as error:
        raise InvalidInput(f"the rows cannot be written: {reason_of(error)}") from error
    except Exception as error:
        text = str(error)
        for message in rows.messages:
            if message in text:
                raise InvalidInput(f"{message}; nothing was appended") from error
        raise


def _save(frame: DataFrame, path: str, *, keys: list[str]) -> int | None:
    """Write Parquet files; return how many rows the tasks wrote, or None if that is not known.

    Spark itself does not look whether the driver sees the files that the executors wrote.
    """
    jvm = getattr(frame.sparkSession, "_jvm", None)
    if jvm is None:
        return _save_by_connect(frame, path, keys=keys)
    command = _writer(frame, keys)._jwrite.saveCommand(jvm.scala.Option.apply(path))
    session = frame.sparkSession._jsparkSession
    saved = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, command)
    plan = saved.logicalPlan().commandPhysicalPlan()
    if plan.nodeName() == "AdaptiveSparkPlan":
        plan = plan.executedPlan().plan()
    metric = plan.metrics().get("numOutputRows")
    return int(metric.get().value()) if metric.isDefined() else None  # a plug-in's plan may lack it


def _save_by_connect(frame: DataFrame, path: str, *, keys: list[str]) -> int | None:
    """`_save` in Spark Connect, which hides the plan.

    The server may leave out an observation. A classic session would wait for it for ever.
    """
    from pyspark.sql.connect.observation import Observation  # which classic PySpark may lack

    written = Observation()
    observed = frame.observe(cast(Any, written), sql.count(sql.lit(1)).alias("rows"))
    _writer(observed, keys).save(path)
    row_count: int | None = written.get.get("rows")
    return row_count


def _writer(frame: DataFrame, keys: list[str]) -> DataFrameWriter:
    return frame.write.format("parquet").options(**_WRITER_OPTIONS).partitionBy(*keys)


def _files(staged: int) -> list[_Written]:
    written = []
    for name in _names(staged):
        with _opened(staged, name) as file:
            metadata = pq.read_metadata(file)
            os.fsync(file.fileno())
            written.append(_Written(name, os.fstat(file.fileno()).st_size, metadata))
    return written


def _names(staged: int) -> Iterator[str]:
    """The files of a job, relative to its folder: directly in it, or in a folder per partition."""
    for name in sorted(os.listdir(staged)):
        if name.startswith(f"{KEY}="):
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=staged)
            try:
                inner = sorted(os.listdir(folder))
            finally:
                os.close(folder)
            yield from (f"{name}/{own}" for own in inner if not own.startswith("."))
        elif not name.startswith((".", "_")):
            yield name


def _opened(staged: int, name: str) -> BinaryIO:
    return open(name, "rb", opener=lambda n, flags: os.open(n, flags, dir_fd=staged))


def _partition(staged: int, file: _Written, table: TableDescriptor) -> Partition:
    if not table.partitioning:
        return ()
    with _opened(staged, file.name) as opened:
        return partition_of(opened, table)


def _check_row_count(
    written: list[_Written], table: TableDescriptor, *, row_count: int | None, folder: TableFolder
) -> None:
    """Raise unless the files have all rows that Spark wrote, as far as that is known."""
    seen = sum(file.metadata.num_rows for file in written)
    if row_count not in (None, seen):
        raise UnsupportedOperation(
            f"Spark wrote {row_count} rows for {table.name}, but the driver sees {seen} of them in"
            f" {folder.path}: all executors must see that folder under the same path, as on a file"
            " system that the machines share; nothing was appended"
        )


def _check_ids(written: list[_Written], table: TableDescriptor) -> None:
    """Raise unless the files have all column ids: readers find columns only by id."""
    expected = field_ids(table.columns)
    for file in written:
        if file_ids(file.metadata) != expected:
            raise StrandlineError(
                f"Spark wrote a file for {table.name} with the column ids "
                f"{sorted(file_ids(file.metadata))}, but the table has {sorted(expected)}; nothing "
                "was appended"
            )
