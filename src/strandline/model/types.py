"""The data types of columns: Spark SQL's types as an immutable tree.

A type arrives as text in three spellings (Spark's DDL, Hive's, and the JSON of Spark's schemas) and
is parsed once into a value. The modules `type_text`, `type_parser` and `type_json` write and parse
these texts. The module `type_changes` decides which type changes are allowed.

Three facts shape the tree.

*Struct fields have ids.* Data files are Parquet, and readers find columns in them by id. So a
rename changes no file, and a column that is dropped and created again does not get the old values.
The id of a top-level column is in its descriptor. The id of a field inside a struct is its
`StructField.field_id`, which is None until an id is assigned. List elements, map keys and map
values have no ids: Spark has no place for them.

*Field names keep their case and are compared without it*, as Spark does by default. Two fields
whose names differ only in case can be represented, because existing tables of others have them.

*A tree is never deeper than `MAX_DEPTH`.* The constructors enforce this, so every function over
types may recurse, and so may hashing, comparison and pickling. Rejected: a check in the parsers
only, because a tree that is built in code would bypass it.

Types without parameters are instances of `AtomicType` and exist as constants (`INT`, `DATE`, …),
not as separate classes: they differ only in their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from strandline.errors import InvalidType

MAX_DEPTH = 100
"""Levels of array, map and struct around the innermost type."""

MAX_DECIMAL_PRECISION = 38
MAX_TIME_PRECISION = 9
DEFAULT_TIME_PRECISION = 6
MAX_SRID = 2**31 - 1
MAX_LENGTH = 2**31 - 1
"""The maximum length of char and varchar, in characters."""

YEAR_MONTH_UNITS = ("year", "month")
DAY_TIME_UNITS = ("day", "hour", "minute", "second")
DEFAULT_COLLATION = "UTF8_BINARY"


@dataclass(frozen=True, slots=True)
class AtomicType:
    """A type without parameters, with Spark's SQL name: ``int``, ``timestamp_ntz``, …"""

    name: str


BOOLEAN = AtomicType("boolean")
TINYINT = AtomicType("tinyint")
SMALLINT = AtomicType("smallint")
INT = AtomicType("int")
BIGINT = AtomicType("bigint")
FLOAT = AtomicType("float")
DOUBLE = AtomicType("double")
BINARY = AtomicType("binary")
DATE = AtomicType("date")
TIMESTAMP = AtomicType("timestamp")
"""An instant, shown in the session's time zone."""
TIMESTAMP_NTZ = AtomicType("timestamp_ntz")
"""A date and time of day, without a time zone."""
CALENDAR_INTERVAL = AtomicType("interval")
VARIANT = AtomicType("variant")
VOID = AtomicType("void")
"""The type of NULL."""

ATOMIC_TYPES: dict[str, AtomicType] = {
    atomic.name: atomic
    for atomic in (
        BOOLEAN,
        TINYINT,
        SMALLINT,
        INT,
        BIGINT,
        FLOAT,
        DOUBLE,
        BINARY,
        DATE,
        TIMESTAMP,
        TIMESTAMP_NTZ,
        CALENDAR_INTERVAL,
        VARIANT,
        VOID,
    )
}

INTEGRAL_TYPES = (TINYINT, SMALLINT, INT, BIGINT)
"""From the narrowest to the widest."""


@dataclass(frozen=True, slots=True)
class DecimalType:
    """A number of ``precision`` digits, ``scale`` of them after the decimal point."""

    precision: int = 10
    scale: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.precision <= MAX_DECIMAL_PRECISION:
            raise InvalidType(
                f"decimal({self.precision},{self.scale}) is not a type: the precision must be "
                f"between 1 and {MAX_DECIMAL_PRECISION}"
            )
        if not 0 <= self.scale <= self.precision:
            raise InvalidType(
                f"decimal({self.precision},{self.scale}) is not a type: the scale must be "
                f"between 0 and the precision"
            )


@dataclass(frozen=True, slots=True)
class StringType:
    """Text. ``collation`` is None if the declaration has none; then text compares by its bytes."""

    collation: str | None = None


@dataclass(frozen=True, slots=True)
class CharType:
    """Text of exactly ``length`` characters, padded with blanks."""

    length: int

    def __post_init__(self) -> None:
        _check_length("char", self.length)


@dataclass(frozen=True, slots=True)
class VarcharType:
    """Text of at most ``length`` characters."""

    length: int

    def __post_init__(self) -> None:
        _check_length("varchar", self.length)


@dataclass(frozen=True, slots=True)
class TimeType:
    """A time of day with ``precision`` fractional digits of a second."""

    precision: int = DEFAULT_TIME_PRECISION

    def __post_init__(self) -> None:
        if not 0 <= self.precision <= MAX_TIME_PRECISION:
            raise InvalidType(
                f"time({self.precision}) is not a type: the precision must be between 0 and "
                f"{MAX_TIME_PRECISION}"
            )


@dataclass(frozen=True, slots=True)
class YearMonthIntervalType:
    """``interval year to month`` or a part; ``start`` and ``end`` are from YEAR_MONTH_UNITS."""

    start: str = "year"
    end: str = "month"

    def __post_init__(self) -> None:
        _check_units(YEAR_MONTH_UNITS, self.start, self.end)


@dataclass(frozen=True, slots=True)
class DayTimeIntervalType:
    """``interval day to second`` or a part; ``start`` and ``end`` are from DAY_TIME_UNITS."""

    start: str = "day"
    end: str = "second"

    def __post_init__(self) -> None:
        _check_units(DAY_TIME_UNITS, self.start, self.end)


@dataclass(frozen=True, slots=True)
class GeometryType:
    """Shapes on a plane. ``srid`` is their reference system, None if each value has its own."""

    srid: int | None = None

    def __post_init__(self) -> None:
        _check_srid("geometry", self.srid, lowest=0)


@dataclass(frozen=True, slots=True)
class GeographyType:
    """Shapes on the globe, edges along great circles. ``srid`` as in `GeometryType`, never 0."""

    srid: int | None = None

    def __post_init__(self) -> None:
        _check_srid("geography", self.srid, lowest=1)


@dataclass(frozen=True, slots=True)
class ArrayType:
    element: DataType
    contains_null: bool = True
    depth: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", _depth_over("array", (self.element,)))


@dataclass(frozen=True, slots=True)
class MapType:
    key: DataType
    value: DataType
    value_contains_null: bool = True
    depth: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", _depth_over("map", (self.key, self.value)))


@dataclass(frozen=True, slots=True)
class StructField:
    """One field of a struct.

    ``metadata`` is the compact JSON text of Spark's field metadata, or "". The comment and the
    parts that belong to the type (char lengths, collations) are not in it.
    """

    name: str
    type: DataType
    nullable: bool = True
    comment: str | None = None
    metadata: str = ""
    field_id: int | None = None


@dataclass(frozen=True, slots=True)
class StructType:
    fields: tuple[StructField, ...]
    depth: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        under = (entry.type for entry in self.fields)
        object.__setattr__(self, "depth", _depth_over("struct", under))


DataType: TypeAlias = (
    AtomicType
    | DecimalType
    | StringType
    | CharType
    | VarcharType
    | TimeType
    | YearMonthIntervalType
    | DayTimeIntervalType
    | GeometryType
    | GeographyType
    | ArrayType
    | MapType
    | StructType
)

STRING = StringType()


def depth_of(data_type: DataType) -> int:
    """Return how many arrays, maps and structs enclose the innermost type; 0 for a scalar."""
    return data_type.depth if isinstance(data_type, _NESTED) else 0


_NESTED = (ArrayType, MapType, StructType)


def walk(data_type: DataType) -> Iterator[DataType]:
    """Iterate over the type and every type inside it, outermost first."""
    # Most columns are scalars, and creating a generator for each is expensive.
    return _walk(data_type) if depth_of(data_type) else iter((data_type,))


def _walk(data_type: DataType) -> Iterator[DataType]:
    yield data_type
    for entry in fields_of(data_type):
        yield from walk(entry.type)


def fields_of(data_type: DataType) -> tuple[StructField, ...]:
    """Return the types directly inside it as fields, with the names that Parquet files give them.

    Elements, keys and values have no ids. A key counts as nullable: that it is not NULL is a rule
    of every map, which is never checked.
    """
    match data_type:
        case ArrayType(element, contains_null):
            return (StructField("element", element, contains_null),)
        case MapType(key, value, value_contains_null):
            return StructField("key", key), StructField("value", value, value_contains_null)
        case StructType(fields):
            return fields
    return ()


def ids_in(data_type: DataType) -> Iterator[int]:
    """Iterate over the ids of the fields inside the type, at every level."""
    for inner in walk(data_type):
        yield from (f.field_id for f in fields_of(inner) if f.field_id is not None)


def with_parts(data_type: DataType, change: Callable[[DataType], DataType]) -> DataType:
    """Return the type with ``change`` applied to each type directly inside it, in their order."""
    match data_type:
        case ArrayType(element):
            return replace(data_type, element=change(element))
        case MapType(key, value):
            return replace(data_type, key=change(key), value=change(value))
        case StructType(fields):
            return StructType(tuple(replace(f, type=change(f.type)) for f in fields))
    return data_type


def _depth_over(what: str, inner: Iterator[DataType] | tuple[DataType, ...]) -> int:
    depth = 1 + max(map(depth_of, inner), default=0)
    if depth > MAX_DEPTH:
        raise InvalidType(
            f"the {what} is nested {depth} levels deep; at most {MAX_DEPTH} levels are allowed"
        )
    return depth


def _check_length(what: str, length: int) -> None:
    if not 0 <= length <= MAX_LENGTH:
        raise InvalidType(
            f"{what}({length}) is not a type: the length must be between 0 and {MAX_LENGTH}"
        )


def _check_srid(what: str, srid: int | None, *, lowest: int) -> None:
    if srid is not None and not lowest <= srid <= MAX_SRID:
        raise InvalidType(
            f"{what}({srid}) is not a type: the number of a spatial reference system must be "
            f"between {lowest} and {MAX_SRID}, or any"
        )


def _check_units(units: tuple[str, ...], start: str, end: str) -> None:
    if start not in units or end not in units or units.index(start) > units.index(end):
        raise InvalidType(
            f"interval {start} to {end} is not a type: an interval goes from a larger to a "
            f"smaller unit out of {', '.join(units)}"
        )


def holds_char(data_type: DataType) -> bool:
    return any(isinstance(inner, CharType | VarcharType) for inner in walk(data_type))


def without_char(data_type: DataType) -> DataType:
    """Return the type with every char and varchar in it replaced by string."""
    if isinstance(data_type, CharType | VarcharType):
        return StringType()
    return with_parts(data_type, without_char)


def with_char(data_type: DataType, named: DataType) -> DataType:
    """Return ``data_type`` with its strings replaced by the char or varchar types in ``named``."""
    if data_type == STRING and isinstance(named, CharType | VarcharType):
        return named
    fields, others = fields_of(data_type), fields_of(named)
    if type(data_type) is not type(named) or len(fields) != len(others):
        return data_type
    remaining = iter(others)
    return with_parts(data_type, lambda inner: with_char(inner, next(remaining).type))


def all_nullable(data_type: DataType) -> DataType:
    """Return the type with null allowed everywhere inside it."""
    match data_type:
        case ArrayType(element):
            return ArrayType(all_nullable(element))
        case MapType(key, value):
            return MapType(all_nullable(key), all_nullable(value))
        case StructType(fields):
            return StructType(
                tuple(replace(f, type=all_nullable(f.type), nullable=True) for f in fields)
            )
    return data_type


def as_stored(data_type: DataType) -> DataType:
    """Return a column's type in Spark's Parquet files: no char or varchar, and all is nullable."""
    return all_nullable(without_char(data_type))
