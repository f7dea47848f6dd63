"""Partitioning of transactional tables: which rows may share a data file.

The problem: a reader that needs one day, or one customer, should open few files without knowing
how the rows are laid out. So partitioning is *hidden*, as in Iceberg. A table has a list of
partition fields, each a transform of a column. All rows of a data file have the same value in every
field, and the file's catalog row records these values. No columns exist for them and queries do not
mention them: a condition on the source column is projected through the transform
(`strandline.metastore.session.partition_pruning`).

A field is ``(id, source_id, transform, name)``. It refers to its source by column id, so it
survives a rename of the column. A source column cannot be dropped or change its type.

=============  ============================================  ======================================
transform      columns                                       value
=============  ============================================  ======================================
identity       all except floats, chars, collated strings    the value itself
               and nested types
year, month    date, timestamps                              years, months since 1970
day            date, timestamps                              days since 1970
hour           timestamps                                    hours since 1970
bucket[N]      integers, decimals, dates, timestamps,        ``(murmur3(bytes) & 0x7fffffff) mod N``
               strings, binary
truncate[W]    integers, decimals, strings, binary           ``v − (v mod W)``; the first W
                                                             characters or bytes
=============  ============================================  ======================================

The results are those of Iceberg's specification. NULL maps to NULL, and no other value does. Times
before 1970 are rounded down (1969-12-31 is in year, month and day −1), timestamps with a time zone
are in UTC, and ``mod`` is never negative. Bucket hashes 8 bytes, low byte first, for integers,
dates and timestamps (microseconds), the shortest two's complement for decimals, and UTF-8 for
strings. murmur3 is murmur3_x86_32 with seed 0. Every transform except bucket preserves order.

What must stay true: a value is stored in its physical form, never as text (`Physical`): a boolean,
a number, a string or bytes. The number of a decimal is its unscaled value, that of a date the days
and that of a timestamp the microseconds since 1970. So NULL, '' and 'null' are different, and no
value has two representations.

One edge case differs from Iceberg: if truncation would leave the range of an integer column, the
result is the column's smallest value, not a value that wrapped around to the top of the range.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from strandline.errors import InvalidInput, ObjectNotFound, UnsupportedOperation
from strandline.model.identifiers import normalize
from strandline.model.type_text import simple_string
from strandline.model.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DEFAULT_COLLATION,
    INT,
    INTEGRAL_TYPES,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    DataType,
    DecimalType,
    StringType,
    VarcharType,
)

Physical: TypeAlias = bool | int | str | bytes
"""A value of a column or field, other than NULL; see the module docstring."""

FIRST_FIELD_ID = 1000
"""The first partition field id, as in Iceberg, so that field ids differ from column ids."""
MAX_FIELDS = 100
MAX_VALUE_BYTES = 1 << 16
MICROS_OF_HOUR = 3_600_000_000
MICROS_OF_DAY = 24 * MICROS_OF_HOUR
_MAX_WIDTH = (1 << 31) - 1
_MAX_TEXT = 1_000
_COLUMN = r"`(?:[^`]|``)+`|[^`(),\s](?:[^`(),]*[^`(),\s])?"
# No two adjacent repeats match the same character; they would cause exponential backtracking.
_TEXT = re.compile(
    r"(?P<name>[A-Za-z]+)\s*\(\s*(?:(?P<width>[0-9]{1,10})\s*,\s*)?"
    rf"(?P<inner>{_COLUMN})\s*\)|(?P<column>{_COLUMN})"
)


class TransformKind(Enum):
    """The kinds of transforms. The numbers are stored."""

    IDENTITY = 1
    YEAR = 2
    MONTH = 3
    DAY = 4
    HOUR = 5
    BUCKET = 6
    TRUNCATE = 7


_OF_TIME = frozenset(
    {TransformKind.YEAR, TransformKind.MONTH, TransformKind.DAY, TransformKind.HOUR}
)
_WITH_WIDTH = frozenset({TransformKind.BUCKET, TransformKind.TRUNCATE})
_BY_NAME = {kind.name.lower(): kind for kind in TransformKind} | {
    f"{kind.name.lower()}s": kind for kind in _OF_TIME
}


@dataclass(frozen=True, slots=True)
class Transform:
    """How to compute a field's value from a column's. ``width`` is N of bucket, W of truncate."""

    kind: TransformKind
    width: int = 0

    def __post_init__(self) -> None:
        if self.kind in _WITH_WIDTH and not 0 < self.width <= _MAX_WIDTH:
            raise InvalidInput(
                f"{self.kind.name.lower()} needs a number from 1 to {_MAX_WIDTH}, found"
                f" {self.width}"
            )

    def __str__(self) -> str:
        name = self.kind.name.lower()
        return f"{name}[{self.width}]" if self.kind in _WITH_WIDTH else name

    @property
    def keeps_order(self) -> bool:
        """Whether a larger column value never maps to a smaller field value."""
        return self.kind is not TransformKind.BUCKET

    def takes(self, data_type: DataType) -> bool:
        """Whether a column of this type can be the source."""
        match self.kind:
            case TransformKind.IDENTITY:
                return data_type == BOOLEAN or _is_hashed(data_type)
            case TransformKind.BUCKET:
                return _is_hashed(data_type)
            case TransformKind.TRUNCATE:
                return _is_hashed(data_type) and data_type not in _TIMES
            case TransformKind.HOUR:
                return data_type in (TIMESTAMP, TIMESTAMP_NTZ)
        return data_type in _TIMES

    def apply(self, value: Any, data_type: DataType) -> Any:  # Any: a `Physical` of the type
        """Return the field's value for a column value."""
        match self.kind:
            case TransformKind.IDENTITY:
                return value
            case TransformKind.BUCKET:
                return (murmur3(_hashed_bytes(value, data_type)) & 0x7FFFFFFF) % self.width
            case TransformKind.TRUNCATE:
                if not isinstance(value, int):
                    return value[: self.width]
                low = value - value % self.width
                return max(low, _LOWEST[data_type]) if data_type in _LOWEST else low
            case TransformKind.HOUR:
                return value // MICROS_OF_HOUR
        days = value if data_type == DATE else value // MICROS_OF_DAY
        if self.kind is TransformKind.DAY:
            return days
        year, month = _year_and_month(days)
        years = year - 1970
        return years if self.kind is TransformKind.YEAR else 12 * years + month - 1


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a table's partitioning; ``source_id`` is a column id."""

    id: int
    source_id: int
    transform: Transform
    name: str

    def __str__(self) -> str:
        return f"{self.transform} of column {self.source_id}"


@dataclass(frozen=True, slots=True)
class PartitionValue:
    """The value that all rows of a data file have in one field. None is NULL."""

    field_id: int
    value: Physical | None


Partition: TypeAlias = tuple[PartitionValue, ...]
"""The values of a table's fields, in field order. Empty if the table is not partitioned."""


def partition_fields(
    texts: Sequence[str], columns: Mapping[str, tuple[int, DataType]], *, table: str
) -> tuple[PartitionField, ...]:
    """Return the fields that ``texts`` like ``day(ts)``, ``bucket(16, id)``, ``region`` describe.

    ``columns`` maps names (`normalize`) to id and type. A name in backticks may contain any
    character. Raises `InvalidInput` if a text does not parse or fields are redundant,
    `ObjectNotFound` if a column does not exist, and `UnsupportedOperation` if the transform does
    not accept the column's type.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"the partitioning of {table} must be a list of strings like 'day(ts)'")
    if len(texts) > MAX_FIELDS:
        raise InvalidInput(
            f"{table} may be partitioned by at most {MAX_FIELDS} fields, found {len(texts)}"
        )
    fields: list[PartitionField] = []
    for number, text in enumerate(texts):
        transform, column = _parsed(text, table=table)
        source = columns.get(normalize(column))
        if source is None:
            raise ObjectNotFound(
                f"{table} cannot be partitioned by {text!r:.80}: column {column!r} does not exist;"
                f" it has {', '.join(sorted(columns))}"
            )
        column_id, data_type = source
        if not transform.takes(data_type):
            raise UnsupportedOperation(
                f"{table} cannot be partitioned by {text!r:.80}: {transform} does not take values"
                f" of the type {simple_string(data_type)[:80]}"
            )
        name = column if transform.kind is TransformKind.IDENTITY else _name(column, transform.kind)
        fields.append(PartitionField(FIRST_FIELD_ID + number, column_id, transform, name))
    _refuse_redundant(fields, columns, table=table)
    return tuple(fields)


def _parsed(text: str, *, table: str) -> tuple[Transform, str]:
    match = _TEXT.fullmatch(text.strip()) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise InvalidInput(
            f"{table} cannot be partitioned by {text!r:.80}; write a column, or year, month, day,"
            " hour (column), bucket (N, column), truncate (W, column)"
        )
    if match["column"] is not None:
        return Transform(TransformKind.IDENTITY), _unquoted(match["column"])
    kind = _BY_NAME.get(match["name"].lower())
    if kind is None:
        raise InvalidInput(
            f"{table} cannot be partitioned by {text!r:.80}: transforms are"
            f" {', '.join(sorted(k.name.lower() for k in TransformKind))}"
        )
    if (match["width"] is not None) != (kind in _WITH_WIDTH):
        needs = "a number before its column" if kind in _WITH_WIDTH else "a column alone"
        raise InvalidInput(
            f"{table} cannot be partitioned by {text!r:.80}: {kind.name.lower()} takes {needs}"
        )
    return Transform(kind, int(match["width"] or 0)), _unquoted(match["inner"])


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _name(column: str, kind: TransformKind) -> str:
    return f"{column}_{'trunc' if kind is TransformKind.TRUNCATE else kind.name.lower()}"


def _refuse_redundant(
    fields: Sequence[PartitionField],
    columns: Mapping[str, tuple[int, DataType]],
    *,
    table: str,
) -> None:
    names: set[str] = set()
    sources: set[tuple[int, TransformKind]] = set()
    for field in fields:
        kind = field.transform.kind
        # Two time transforms of one column are redundant: the finer unit implies the coarser.
        source = field.source_id, TransformKind.YEAR if kind in _OF_TIME else kind
        name = normalize(field.name)
        if name in names or source in sources:
            raise InvalidInput(
                f"{table} has two partition fields that partition like {field.name!r}; keep one "
                "of them"
            )
        if name in columns and columns[name][0] != field.source_id:
            raise InvalidInput(
                f"the partition field {field.name!r} of {table} has the name of a column; rename"
                " that column"
            )
        names.add(name)
        sources.add(source)


def misfit(
    partition: Partition,
    fields: Sequence[PartitionField],
    types: Mapping[int, DataType],
    *,
    not_null: Container[int] = (),
) -> str | None:
    """Return why ``partition`` is invalid for a table with these fields, or None if it is valid.

    ``types`` are the column types by id. ``not_null`` contains the ids of NOT NULL columns.
    """
    if [value.field_id for value in partition] != [field.id for field in fields]:
        ids = [field.id for field in fields]
        field_ids = [value.field_id for value in partition[: len(fields) + 1]]
        return (
            f"it has {len(partition)} values, of the fields {field_ids!r:.200}, the table has {ids}"
        )
    for field, known in zip(fields, partition, strict=True):
        if known.value is None:
            if field.source_id in not_null:
                return f"{field.name} is NULL, but its column is NOT NULL"
        elif not _is_result(field.transform, known.value, types[field.source_id]):
            return f"{_shown(known.value)} is not a valid value of {field.name}, {field.transform}"
    return None


def _shown(value: Physical) -> str:
    if isinstance(value, int) and value.bit_length() > 200:
        # Python refuses to write more than 4,300 digits.
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.80}"


def _is_result(transform: Transform, value: Physical, data_type: DataType) -> bool:
    if transform.kind in (TransformKind.IDENTITY, TransformKind.TRUNCATE):
        if type(value) is not _physical_class(data_type):
            return False
        # A value in range may truncate to a result below the range.
        last = value + transform.width - 1 if transform.width and isinstance(value, int) else value
        if not (in_range(value, data_type) or in_range(last, data_type)):
            return False
        return bool(transform.apply(value, data_type) == value)
    if type(value) is not int:
        return False
    if transform.kind is TransformKind.BUCKET:
        return 0 <= value < transform.width
    return -(1 << 63) <= value < 1 << 63


def in_range(value: Physical, data_type: DataType) -> bool:
    """Whether a number is in the range of the type. True for values that are not numbers."""
    if not isinstance(value, int):
        return True
    if isinstance(data_type, DecimalType):
        return bool(abs(value) < 10**data_type.precision)
    return data_type not in _LOWEST or _LOWEST[data_type] <= value < -_LOWEST[data_type]


_TIMES = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
_LOWEST = {
    TINYINT: -(1 << 7),
    SMALLINT: -(1 << 15),
    INT: -(1 << 31),
    BIGINT: -(1 << 63),
    DATE: -(1 << 31),
    TIMESTAMP: -(1 << 63),
    TIMESTAMP_NTZ: -(1 << 63),
}


def _is_hashed(data_type: DataType) -> bool:
    """Whether equal values of the type have equal bytes."""
    match data_type:
        case StringType(collation):
            return collation in (None, DEFAULT_COLLATION)
        case VarcharType() | DecimalType():
            return True
    return data_type in (*INTEGRAL_TYPES, BINARY, *_TIMES)


def _physical_class(data_type: DataType) -> type:
    match data_type:
        case StringType() | VarcharType():
            return str
    return bool if data_type == BOOLEAN else bytes if data_type == BINARY else int


def _hashed_bytes(value: Any, data_type: DataType) -> bytes:
    match value:
        case str():
            return value.encode()
        case bytes():
            return value
    if isinstance(data_type, DecimalType):
        return shortest_bytes(value)
    return int(value).to_bytes(8, "little", signed=True)


def shortest_bytes(value: int) -> bytes:
    """Return the shortest two's complement of a number, high byte first."""
    bits = (value if value >= 0 else ~value).bit_length()
    return value.to_bytes(bits // 8 + 1, "big", signed=True)


def _year_and_month(days: int) -> tuple[int, int]:
    """Return year and month (1 to 12) of a day since 1970, in the Gregorian calendar.

    ``days`` may be any number. The algorithm counts in eras of 400 years that begin on 1 March, so
    that a leap day is the last day of a year.
    """
    day = days + 719_468
    era = day // 146_097
    day_of_era = day - era * 146_097
    year = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    return year + era * 400 + (month >= 10), month + 3 if month < 10 else month - 9


_M32 = 0xFFFFFFFF


def murmur3(data: bytes) -> int:
    """Return murmur3_x86_32 of ``data`` with seed 0, as an unsigned number."""
    state, whole_bytes = 0, len(data) & ~3
    for at in range(0, whole_bytes, 4):
        state ^= _scrambled(int.from_bytes(data[at : at + 4], "little"))
        state = (state << 13 | state >> 19) & _M32
        state = (state * 5 + 0xE6546B64) & _M32
    if whole_bytes < len(data):
        state ^= _scrambled(int.from_bytes(data[whole_bytes:], "little"))
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _M32
    state = (state ^ state >> 13) * 0xC2B2AE35 & _M32
    return state ^ state >> 16


def _scrambled(block: int) -> int:
    block = block * 0xCC9E2D51 & _M32
    return (block << 15 | block >> 17) * 0x1B873593 & _M32
