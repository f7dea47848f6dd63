"""Which files of a snapshot can contain rows that a reader wants.

A reader that wants some values of a column gets only the files that may contain such rows. What
must stay true: a file is left out only if its known values prove that it contains none. Here these
are its statistics; `partition_pruning` uses partitions. Bounds are texts, as in `ColumnStatistics`,
and are compared as values of the column's present type: the present type has all values that a file
of an earlier type may contain. Several bounds of one column are combined into one range. So a file
costs one comparison with each of its statistics, however many bounds a request names, and a search
in the values that it names.

Releases up to 0.5.0 let Spark write old dates and timestamps in the Julian calendar. The statistics
and partition values of such a file are those of other days, which are before `_SAME_FROM` too. So a
condition on a value before that is widened to all values before it.

A floating-point column may contain NaN, which is above all bounds and which no statistics show. So
a file is left out for its upper bound only if the reader itself names an upper bound. Releases up
to 0.8.0 wrote upper bounds that were too low if a later part of the file contained NaN. They wrote
decimal digits, which prove nothing now; later ones write hexadecimal digits.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
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

Value = Any  # a value that can be compared with the others of its column
Parse = Callable[[str], Value]

_FLOATING = (FLOAT, DOUBLE)
_UNREADABLE = (ValueError, ArithmeticError, TypeError)
"""What a bound in statistics raises that is no value: any client may have written it."""
_FINER_THAN_MICROSECONDS = re.compile(r"[.,]\d{7}")


@dataclass(frozen=True, slots=True)
class WantedRange:
    """The wanted values of one column. ``has_nan`` says that some may be above all bounds.

    ``nulls`` says that NULL is wanted, ``others`` that other values are: those that the remaining
    fields describe.
    """

    parse: Parse
    has_nan: bool
    lower: Value | None = None
    upper: Value | None = None
    values: tuple[Value, ...] | None = None  # in order
    without: frozenset[Value] = frozenset()
    nulls: bool = True
    others: bool = True

    def may_hold(self, statistics: ColumnStatistics, *, rows: int) -> bool:
        """Whether a file with ``rows`` rows and these statistics may contain a wanted value."""
        if self.nulls and statistics.nulls != 0:
            return True
        return self.others and statistics.nulls != rows and self._overlaps(statistics)

    def _overlaps(self, statistics: ColumnStatistics) -> bool:
        if not self._overlaps_bounds(statistics):
            return False
        if self.values is None and not self.without:
            return True
        if statistics.lower is None or statistics.upper is None:
            return self.values is None or bool(self.values)
        try:
            lower, upper = self.parse(statistics.lower), self._parsed_upper(statistics.upper)
        except _UNREADABLE:
            return True
        if self.values is not None:
            first = bisect_left(self.values, lower)
            if first == len(self.values) or self.values[first] > upper:
                return False
        return self.has_nan or lower != upper or lower not in self.without

    def _overlaps_bounds(self, statistics: ColumnStatistics) -> bool:
        try:
            below = self.upper is not None and statistics.lower is not None
            if below and self.parse(statistics.lower or "") > self.upper:
                return False
            above = self.lower is not None and statistics.upper is not None
            if above and (self.upper is not None or not self.has_nan):
                return bool(self._parsed_upper(statistics.upper or "") >= self.lower)
        except _UNREADABLE:
            return True  # statistics that cannot be parsed prove nothing
        return True

    def _parsed_upper(self, text: str) -> Value:
        if not self.has_nan:
            return self.parse(text)
        if "0x" not in text:
            raise ValueError(text)
        return float.fromhex(text)


def may_match(file: DataFile, ranges: Mapping[int, WantedRange]) -> bool:
    """Whether a row of ``file`` may match all of ``ranges``, which are by column id."""
    return all(
        ranges[statistics.column_id].may_hold(statistics, rows=file.rows)
        for statistics in file.statistics
        if statistics.column_id in ranges
    )


def wanted_ranges(bounds: Iterable[ColumnBounds], table: TableDescriptor) -> dict[int, WantedRange]:
    """The ranges that files of ``table`` can be compared with, by column id.

    Ignores bounds of a column that no longer exists, or whose type has no order in statistics.
    Raises `InvalidInput` if a bound is not a value of its column.
    """
    types = {column.id: column.type for column in table.columns}
    ranges: dict[int, list[WantedRange]] = {}
    for column_bounds in bounds:
        data_type = types.get(column_bounds.column_id)
        parse = None if data_type is None else _parser(data_type)
        if parse is None:
            continue
        column = _wanted(column_bounds, parse, has_nan=data_type in _FLOATING)
        if data_type in _SAME_FROM:
            column = _widened(column, _SAME_FROM[data_type])
        ranges.setdefault(column_bounds.column_id, []).append(column)
    return {column_id: _in_all(of_column) for column_id, of_column in ranges.items()}


def _wanted(bounds: ColumnBounds, parse: Parse, *, has_nan: bool) -> WantedRange:
    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except (ValueError, InvalidOperation):
            raise InvalidInput(
                f"{text[:80]!r} is not a bound of column {bounds.column_id}; write it as in "
                "statistics: digits for a number, ISO 8601 for a date or time"
            ) from None

    def is_value(text: str, value: Value) -> bool:
        # `datetime` drops further digits, so the text would exclude another value.
        return not (isinstance(value, datetime) and _FINER_THAN_MICROSECONDS.search(text))

    unwanted = [(text, parsed(text)) for text in bounds.without]
    return WantedRange(
        parse,
        has_nan,
        lower=None if bounds.lower is None else parsed(bounds.lower),
        upper=None if bounds.upper is None else parsed(bounds.upper),
        values=None if bounds.values is None else tuple(sorted(set(map(parsed, bounds.values)))),
        without=frozenset(value for text, value in unwanted if is_value(text, value)),
        nulls=bounds.null,
        others=not bounds.null,
    )


def _widened(column: WantedRange, same_from: Value) -> WantedRange:
    """The range, with all values before ``same_from`` if one of them is wanted."""
    lower, upper, values = column.lower, column.upper, column.values
    if values and values[0] < same_from:
        uppers = [values[-1]] if upper is None else [values[-1], upper]
        lower, upper, values = None, min(uppers), None
    return replace(
        column,
        lower=None if lower is None or lower < same_from else lower,
        upper=None if upper is None else max(upper, same_from),
        values=values,
        without=frozenset(value for value in column.without if value >= same_from),
    )


def _in_all(ranges: Sequence[WantedRange]) -> WantedRange:
    """The values that all of these ranges of one column want."""
    first, *others = ranges
    if not others:
        return first
    listed = [frozenset(column.values) for column in ranges if column.values is not None]
    return replace(
        first,
        lower=max((c.lower for c in ranges if c.lower is not None), default=None),
        upper=min((c.upper for c in ranges if c.upper is not None), default=None),
        values=tuple(sorted(frozenset.intersection(*listed))) if listed else None,
        without=frozenset().union(*(column.without for column in ranges)),
        nulls=all(column.nulls for column in ranges),
        others=all(column.others for column in ranges),
    )


def touching(files: Iterable[DeleteFile], data_files: Sequence[DataFile]) -> list[DeleteFile]:
    """The delete files that delete rows of at least one of ``data_files``."""
    file_ids = {file.file_id for file in data_files}
    return [file for file in files if not file_ids.isdisjoint(file.file_ids)]


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
    # 0.1 as a FLOAT is 0.10000000149…; both texts can mean it.
    return c_float(_float(text)).value


def _boolean(text: str) -> bool:
    if text not in ("false", "true"):
        raise ValueError(text)
    return text == "true"


def _moment(text: str, *, is_local: bool = False) -> datetime:
    value = datetime.fromisoformat(text)
    if (value.tzinfo is None) is not is_local:
        raise ValueError(text)
    return value


_SAME_FROM: dict[DataType, Value] = {
    DATE: date(1582, 10, 15),
    TIMESTAMP: datetime(1900, 1, 2, tzinfo=UTC),  # in the zone that is a day behind UTC, 1900-01-01
    TIMESTAMP_NTZ: datetime(1582, 10, 15),  # the column may have been one of dates
}
"""From when on both calendars of Spark have the same numbers."""

_ATOMIC: dict[DataType, Parse] = {
    **dict.fromkeys(INTEGRAL_TYPES, _decimal),
    DOUBLE: _float,
    FLOAT: _single,
    BOOLEAN: _boolean,
    DATE: date.fromisoformat,
    TIMESTAMP: _moment,
    TIMESTAMP_NTZ: partial(_moment, is_local=True),
}
