"""Which files of a snapshot can hold rows that a reader wants.

A reader that wants one partition, or values of a column between two bounds, is sent only the files
that may hold such rows. What must stay true: a file is left out only if what is known of it proves
that it holds none. Bounds are texts, as in `ColumnStatistics`, and are compared as values of the
column's type in the present: a file of an earlier type has values that the present type has too.
Several bounds of one column are one range, so a file costs one look at each of its statistics,
however many bounds a request names.

A floating-point column may hold NaN, which is above all bounds and which no statistics show. So a
file is left out for its upper bound only where the reader names an upper one itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from strandline.errors import InvalidInput
from strandline.metastore.interface import ColumnBounds
from strandline.metastore.store.rows import ColumnStatistics, DataFile, DeleteFile
from strandline.model.descriptors import TableDescriptor
from strandline.model.types import (
    BOOLEAN,
    DATE,
    DEFAULT_COLLATION,
    DOUBLE,
    FLOAT,
    INTEGRAL_TYPES,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    StringType,
    VarcharType,
)

Value = Any  # one that compares with the others of its column
Parse = Callable[[str], Value]

_FLOATING = (FLOAT, DOUBLE)


@dataclass(frozen=True, slots=True)
class WantedRange:
    """The bounds of one column as values; ``has_nan`` says that values may be above all bounds."""

    parse: Parse
    has_nan: bool
    lower: Value | None = None
    upper: Value | None = None

    def within(self, *, lower: Value | None, upper: Value | None) -> WantedRange:
        """The values of this range that are also within these bounds."""
        lowers = [bound for bound in (self.lower, lower) if bound is not None]
        uppers = [bound for bound in (self.upper, upper) if bound is not None]
        return replace(self, lower=max(lowers, default=None), upper=min(uppers, default=None))

    def overlaps(self, known: ColumnStatistics) -> bool:
        """Whether a value of a file with these statistics may be within the bounds."""
        try:
            below = self.upper is not None and known.lower is not None
            if below and self.parse(known.lower or "") > self.upper:
                return False
            above = self.lower is not None and known.upper is not None
            if above and (self.upper is not None or not self.has_nan):
                return bool(self.parse(known.upper or "") >= self.lower)
        except (ValueError, InvalidOperation, TypeError):
            return True  # what a file says that cannot be read proves nothing
        return True


def may_match(file: DataFile, ranges: Mapping[int, WantedRange]) -> bool:
    """Whether a row of ``file`` may have values within all of ``ranges``, by column id."""
    return all(
        known.nulls != file.rows and ranges[known.column_id].overlaps(known)
        for known in file.statistics
        if known.column_id in ranges
    )


def wanted_ranges(bounds: Iterable[ColumnBounds], table: TableDescriptor) -> dict[int, WantedRange]:
    """The ranges that files of ``table`` can be compared with, by column id.

    A column that is not there any more, or whose type has no order in statistics, has none. Raises
    `InvalidInput` for a bound that is no value of its column.
    """
    types = {column.id: column.type for column in table.columns}
    ranges: dict[int, WantedRange] = {}
    for wanted in bounds:
        data_type = types.get(wanted.column_id)
        parse = None if data_type is None else _parser(data_type)
        if parse is None:
            continue
        lower, upper = (
            None if text is None else _parsed(parse, text, wanted.column_id)
            for text in (wanted.lower, wanted.upper)
        )
        column = ranges.get(wanted.column_id) or WantedRange(parse, data_type in _FLOATING)
        ranges[wanted.column_id] = column.within(lower=lower, upper=upper)
    return ranges


def touching(files: Iterable[DeleteFile], data_files: Sequence[DataFile]) -> list[DeleteFile]:
    """Those of ``files`` that delete rows of one of ``data_files``."""
    file_ids = {file.file_id for file in data_files}
    return [file for file in files if not file_ids.isdisjoint(file.file_ids)]


def _parsed(parse: Parse, text: str, column_id: int) -> Value:
    try:
        return parse(text)
    except (ValueError, InvalidOperation):
        raise InvalidInput(
            f"{text[:80]!r} is no bound of column {column_id}; write it as statistics have it:"
            " digits for a number, ISO 8601 for a date or time"
        ) from None


def _parser(data_type: DataType) -> Parse | None:
    match data_type:
        case DecimalType():
            return _decimal
        case StringType(collation) if collation in (None, DEFAULT_COLLATION):
            return str
        case VarcharType():
            return str
    return _ATOMIC.get(data_type)


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError(text)
    return value


def _float(text: str) -> float:
    value = float(text)
    if value != value:
        raise ValueError(text)
    return value


def _single(text: str) -> float:
    # 0.1 as a FLOAT is 0.10000000149…; both texts may stand for it.
    return c_float(_float(text)).value


def _boolean(text: str) -> bool:
    if text not in ("false", "true"):
        raise ValueError(text)
    return text == "true"


def _moment(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise ValueError(text)
    return value


def _local_moment(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is not None:
        raise ValueError(text)
    return value


_ATOMIC: dict[DataType, Parse] = {
    **dict.fromkeys(INTEGRAL_TYPES, _decimal),
    DOUBLE: _float,
    FLOAT: _single,
    BOOLEAN: _boolean,
    DATE: date.fromisoformat,
    TIMESTAMP: _moment,
    TIMESTAMP_NTZ: _local_moment,
}
