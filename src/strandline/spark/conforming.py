"""Rows on their way into a table: brought into its columns, and checked against its promises.

Columns are matched by name at every level, as Spark itself compares names: what it would not match
must not pass the check here, because it would become NULL. A nullable column that is not there
becomes NULL; one that the table does not have is an error and not dropped, since it is more often a
slip than meant. Values are cast as Spark's INSERT casts them, and one that does not fit
fails the job.

What a type cannot say (NOT NULL, lengths of char and varchar) is one condition behind which the
job fails. It stands in a filter and not around the values, because an expression around a struct
loses the ids of the fields in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types

from strandline.errors import InvalidInput
from strandline.model.descriptors import ColumnDescriptor, TableDescriptor
from strandline.model.type_text import ddl_text
from strandline.model.types import ArrayType, CharType, DataType, MapType, StructType, VarcharType
from strandline.spark.schemas import declared_schema, file_schema, metadata_for_files, quoted


@dataclass(frozen=True, slots=True)
class Conformed:
    """Rows with exactly the table's columns and ids. ``complaints`` are how a job on them fails."""

    frame: DataFrame
    complaints: tuple[str, ...]


def conform(frame: DataFrame, table: TableDescriptor) -> Conformed:
    """``frame`` as rows of ``table``. Raises `InvalidInput` naming the column that does not fit."""
    if not isinstance(frame, DataFrame):
        given = type(frame)
        library = given.__module__.partition(".")[0]
        raise InvalidInput(
            f"rows to append come as a DataFrame of Spark, not as {library} {given.__name__}; "
            "make one with spark.createDataFrame(…)"
        )
    exact = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    _NameCheck(table.name, exact=exact).run(frame.schema, declared_schema(table.columns), path="")
    target = file_schema(table.columns)
    try:
        shaped = frame.to(target)
    except AnalysisException as error:
        raise InvalidInput(f"the rows do not fit {table.name}: {error}") from error
    checked, complaints = _with_checks(shaped, table)
    # `DataFrame.to` keeps ids of nested fields. That of a column is lost where there is nothing
    # else to change about it, because the optimizer drops such a projection; an alias stays.
    columns = [
        sql.col(quoted(field.name)).alias(field.name, metadata=metadata_for_files(field))
        for field in target.fields
    ]
    return Conformed(checked.select(*columns), complaints)


@dataclass(frozen=True, slots=True)
class _NameCheck:
    """Finds a name that is unknown, stands twice, or is missing and needed: `InvalidInput`."""

    table: str
    exact: bool

    def run(self, given: spark_types.DataType, wanted: spark_types.DataType, *, path: str) -> None:
        match given, wanted:
            case spark_types.ArrayType(), spark_types.ArrayType():
                self.run(given.elementType, wanted.elementType, path=f"{path}.element")
            case spark_types.MapType(), spark_types.MapType():
                self.run(given.keyType, wanted.keyType, path=f"{path}.key")
                self.run(given.valueType, wanted.valueType, path=f"{path}.value")
            case spark_types.StructType(), spark_types.StructType():
                self._fields(given, wanted, path=path)

    def _fields(
        self, given: spark_types.StructType, wanted: spark_types.StructType, *, path: str
    ) -> None:
        known = {self._key(field.name): field for field in wanted.fields}
        seen = set()
        for field in given.fields:
            place = f"{path}.{field.name}".lstrip(".")
            name = self._key(field.name)
            if name not in known:
                raise InvalidInput(
                    f"{self.table} has no column {place!r}; it has"
                    f" {', '.join(field.name for field in wanted.fields)}: drop or rename it"
                )
            if name in seen:
                raise InvalidInput(f"duplicate column {place!r} in the rows for {self.table}")
            seen.add(name)
            self.run(field.dataType, known[name].dataType, path=place)
        for name, field in known.items():
            if name not in seen and not field.nullable:
                place = f"{path}.{field.name}".lstrip(".")
                raise InvalidInput(
                    f"column {place!r} of {self.table} is NOT NULL and missing in the rows"
                )

    def _key(self, name: str) -> str:
        """Names have the same key if Spark takes them for the same: Java's rule, by character."""
        if self.exact:
            return name
        return "".join(_one(_one(character, str.upper), str.lower) for character in name)


def _one(character: str, change: Callable[[str], str]) -> str:
    changed = change(character)
    return changed if len(changed) == 1 else character


def _with_checks(frame: DataFrame, table: TableDescriptor) -> tuple[DataFrame, tuple[str, ...]]:
    complaints = []
    condition: Column | None = None
    for column in table.columns:
        if not constrained(column.type, nullable=column.nullable):
            continue
        bad = broken(sql.col(quoted(column.name)), column.type, nullable=column.nullable)
        complaint = _complaint(table, column)
        fail = sql.raise_error(sql.lit(complaint)).cast("boolean")
        condition = sql.when(bad, fail) if condition is None else condition.when(bad, fail)
        complaints.append(complaint)
    if condition is None:
        return frame, ()
    return frame.filter(condition.otherwise(sql.lit(True))), tuple(complaints)


def _complaint(table: TableDescriptor, column: ColumnDescriptor) -> str:
    declared = ddl_text(column.type) + ("" if column.nullable else " NOT NULL")
    return f"a value does not fit column {column.name!r} of {table.name}, which is {declared}"


def constrained(data_type: DataType, *, nullable: bool) -> bool:
    """Whether the type, as a column, promises more than Parquet files keep."""
    if not nullable:
        return True
    match data_type:
        case CharType() | VarcharType():
            return True
        case ArrayType(element, contains_null):
            return constrained(element, nullable=contains_null)
        case MapType(key, value, value_contains_null):
            return constrained(key, nullable=True) or constrained(
                value, nullable=value_contains_null
            )
        case StructType(fields):
            return any(constrained(f.type, nullable=f.nullable) for f in fields)
    return False


def broken(value: Column, data_type: DataType, *, nullable: bool) -> Column:
    """True for a value that breaks a promise of its type; the type is `constrained`."""
    complaints = [] if nullable else [value.isNull()]
    if constrained(data_type, nullable=True):
        complaints.append(value.isNotNull() & _broken_inside(value, data_type))
    return reduce(or_, complaints)


def _broken_inside(value: Column, data_type: DataType) -> Column:
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
