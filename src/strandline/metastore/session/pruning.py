"""Which files of a snapshot can hold rows that a reader wants.

A reader that wants one partition, or values of a column between two bounds, is sent only the files
that may hold such rows. What must stay true: a file is left out only if what is known of it proves
that it holds none. Bounds are texts, as in `ColumnStatistics`, and are compared as values of the
column's type in the present: a file of an earlier type has values that the present type has too.

A floating-point column may hold NaN, which is above all bounds and which no statistics show. So a
file is left out for its upper bound only where the reader names an upper one itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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

    column_id: int
    lower: Value | None
    upper: Value | None
    parse: Parse
    has_nan: bool

    def may_match(self, file: DataFile) -> bool:
        """Whether a row of ``file`` may have a value within the bounds."""
        for known in file.statistics:
            if known.column_id == self.column_id:
                return known.nulls != file.rows and self._overlaps(known)
        return True

    def _overlaps(self, known: ColumnStatistics) -> bool:
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


def wanted_ranges(bounds: Iterable[ColumnBounds], table: TableDescriptor) -> list[WantedRange]:
    """The ranges that files of ``table`` can be compared with.

    A column that is not there any more, or whose type has no order in statistics, has none. Raises
    `InvalidInput` for a bound that is no value of its column.
    """
    types = {column.id: column.type for column in table.columns}
    ranges = []
    for wanted in bounds:
        data_type = types.get(wanted.column_id)
        parse = None if data_type is None else _parser(data_type)
        if parse is None:
            continue
        lower, upper = (
            None if text is None else _parsed(parse, text, wanted.column_id)
            for text in (wanted.lower, wanted.upper)
        )
        has_nan = data_type in _FLOATING
        ranges.append(WantedRange(wanted.column_id, lower, upper, parse, has_nan))
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
    **dict.fromkeys(_FLOATING, _float),
    BOOLEAN: _boolean,
    DATE: date.fromisoformat,
    TIMESTAMP: _moment,
    TIMESTAMP_NTZ: _local_moment,
}
