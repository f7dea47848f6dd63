"""Which partitions of a table can contain rows that a reader wants.

The wanted values of a column are projected through the transform of each partition field that is
derived from it, as in Iceberg's inclusive projection. What must stay true: if a row is wanted, its
partition value passes. So with a transform f and a wanted value v:

* f(v) is among the values that pass: for ``=`` and IN, with every transform.
* If f keeps order, a value between two bounds has a value of f between those of the bounds, ends
  included.
* NULL has the value NULL, and no other value has. NULL passes if and only if NULL is wanted.
* A value that is not wanted excludes a partition only if f is the identity.

Bounds are texts with any number of digits, and fields have values of a type. A bound between two
values of the type is moved to the next value inside the range.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from strandline.metastore.session.pruning import Value, WantedRange
from strandline.model.descriptors import TableDescriptor
from strandline.model.partitioning import Partition, PartitionField, TransformKind, in_range
from strandline.model.types import DataType, DecimalType

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = datetime(1970, 1, 1)
_MICRO = timedelta(microseconds=1)
_DIGITS = 100
_DOWN, _UP = (Context(prec=_DIGITS, rounding=way, traps=[]) for way in (ROUND_FLOOR, ROUND_CEILING))
_BEYOND: int = 10**_DIGITS
"""Larger than every value of a column."""


@dataclass(frozen=True, slots=True)
class _WantedValues:
    """The wanted values of a partition field; as in `WantedRange`, but with values of the field."""

    nulls: bool
    others: bool
    lower: Value | None = None
    upper: Value | None = None
    values: frozenset[Value] | None = None
    without: frozenset[Value] = frozenset()

    def has(self, value: Value | None) -> bool:
        if value is None:
            return self.nulls
        return (
            self.others
            and (self.lower is None or value >= self.lower)
            and (self.upper is None or value <= self.upper)
            and (self.values is None or value in self.values)
            and value not in self.without
        )


class WantedPartitions(Container[Partition]):
    """The partitions that may have wanted rows.

    ``by_field`` has the wanted values of fields by id; other fields may have any value.
    """

    def __init__(self, by_field: Mapping[int, _WantedValues]) -> None:
        self._by_field = by_field

    # Any: the base class allows any object; all of them are partitions.
    def __contains__(self, partition: Any) -> bool:
        # Called for each of many thousand partitions: a generator would double the cost.
        for partition_value in partition:
            wanted = self._by_field.get(partition_value.field_id)
            if wanted is not None and not wanted.has(partition_value.value):
                return False
        return True


def partition_filter(
    ranges: Mapping[int, WantedRange], table: TableDescriptor
) -> WantedPartitions | None:
    """Return the partitions of ``table`` that may have rows in all ``ranges``; None if all may."""
    types = {column.id: column.type for column in table.columns}
    wanted_values = {
        field.id: _projected(field, ranges[field.source_id], types[field.source_id])
        for field in table.partitioning
        if field.source_id in ranges
    }
    return WantedPartitions(wanted_values) if wanted_values else None


def _projected(
    field: PartitionField, source_range: WantedRange, data_type: DataType
) -> _WantedValues:
    transform = field.transform
    lower = None if source_range.lower is None else _inside(source_range.lower, data_type, up=True)
    upper = None if source_range.upper is None else _inside(source_range.upper, data_type, up=False)
    values = None if source_range.values is None else _exact(source_range.values, data_type)
    if lower is not None and upper is not None and lower >= upper:
        single = frozenset({lower} if lower == upper else ())
        values = single if values is None else values & single
    if values is not None:
        values = frozenset(value for value in values if in_range(value, data_type))

    def of(value: Value | None) -> Value | None:
        return None if value is None else transform.apply(value, data_type)

    is_identity = transform.kind is TransformKind.IDENTITY
    return _WantedValues(
        source_range.nulls,
        source_range.others,
        lower=of(lower) if transform.keeps_order else None,
        upper=of(upper) if transform.keeps_order else None,
        values=None if values is None else frozenset(map(of, values)),
        without=_exact(source_range.without, data_type) if is_identity else frozenset(),
    )


def _exact(values: Iterable[Value], data_type: DataType) -> frozenset[Value]:
    """The values among ``values`` that a column of the type can have."""
    short = [v for v in values if not isinstance(v, Decimal) or _DOWN.plus(v) == v]
    bounds = [(_inside(v, data_type, up=True), _inside(v, data_type, up=False)) for v in short]
    return frozenset(low for low, high in bounds if low == high)


def _inside(value: Value, data_type: DataType, *, up: bool) -> Value:
    """``value`` as the column stores it, or the next value ``up`` or down that it can store."""
    match value:
        case Decimal():
            scale = data_type.scale if isinstance(data_type, DecimalType) else 0
            return _whole(value, scale, up=up)
        case datetime():
            epoch = _LOCAL_EPOCH if value.tzinfo is None else _EPOCH
            return (value - epoch) // _MICRO
        case date():
            return value.toordinal() - _EPOCH_DAY
        case str() | bool():
            return value
    raise AssertionError(f"{value!r} is not a value of a partitioned column")


def _whole(value: Decimal, scale: int, *, up: bool) -> int:
    """``value`` times ten to the ``scale``, as a whole number.

    If it has very many digits, the last are dropped, rounded so that the range becomes larger.
    """
    if value and value.adjusted() >= _DIGITS:
        return -_BEYOND if value < 0 else _BEYOND
    short: Decimal = _DOWN.scaleb((_DOWN if up else _UP).plus(value), scale)
    return int(short.to_integral_value(ROUND_CEILING if up else ROUND_FLOOR))
