"""A partition is skipped only if it holds no matching row."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from strandline.metastore.interface import ColumnBounds
from strandline.metastore.session.partition_pruning import partition_filter
from strandline.metastore.session.pruning import wanted_ranges
from strandline.model.descriptors import ColumnDescriptor, SchemaVersion, TableDescriptor, TableKind
from strandline.model.partitioning import (
    Partition,
    PartitionValue,
    Physical,
    Transform,
    TransformKind,
    partition_fields,
)
from strandline.model.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    DataType,
    DecimalType,
    VarcharType,
)

Value = Any
CENTS = DecimalType(9, 2)
MICROS = 1_000_000
SMALL = (None, *range(-25, 26))
MOMENTS = (None, *(hours * 3_600 * MICROS + 1 for hours in range(-30_000, 30_000, 997)))
TEXTS = (None, *("".join(text) for n in range(4) for text in product("aAé\U00010000", repeat=n)))
VALUES: dict[DataType, Sequence[Value]] = {
    BOOLEAN: (None, False, True),
    TINYINT: (*SMALL, -128),
    INT: SMALL,
    BIGINT: (*SMALL, -(1 << 63), (1 << 63) - 1),
    CENTS: (None, *range(-300, 300, 7)),
    STRING: TEXTS,
    VarcharType(9): TEXTS,
    DATE: (None, *range(-800, 800, 23)),
    TIMESTAMP: MOMENTS,
    TIMESTAMP_NTZ: MOMENTS,
}


def text_of(value: Value, of: DataType) -> str:
    """Return the text that statistics have for a value of the column."""
    match of:
        case DecimalType():
            return str(Decimal(value) / 100)
    if of == DATE:
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if of in (TIMESTAMP, TIMESTAMP_NTZ):
        moment = datetime(1970, 1, 1) + timedelta(microseconds=value)
        return moment.isoformat(timespec="microseconds") + ("Z" if of == TIMESTAMP else "")
    return str(value).lower() if of == BOOLEAN else str(value)


def table(of: DataType, *transforms: str) -> TableDescriptor:
    columns = (ColumnDescriptor(1, "c", of), ColumnDescriptor(2, "d", INT))
    known = {column.name: (column.id, column.type) for column in columns}
    return TableDescriptor(
        1, 2, "t", "ann", TableKind.MANAGED, True, "strandline",
        (SchemaVersion(1, columns),), 3, 1,
        partitioning=partition_fields(transforms, known, table="t"),
    )  # fmt: skip


def text_of_transform(transform: Transform) -> str:
    name = transform.kind.name.lower()
    return f"{name}({transform.width}, c)" if transform.width else f"{name}(c)"


def partition_of(row: Value, of: DataType, partitioned: TableDescriptor) -> Partition:
    (field,) = partitioned.partitioning
    value = None if row is None else field.transform.apply(row, of)
    return (PartitionValue(field.id, value),)


Condition = tuple[ColumnBounds, Callable[[Value], bool]]
"""Bounds, and whether a row is within them."""


def conditions(chance: random.Random, of: DataType) -> Iterator[Condition]:
    """Yield some conditions of each kind, with values that the rows have."""
    some = [value for value in VALUES[of] if value is not None]
    yield ColumnBounds(1, null=True), lambda row: row is None
    yield ColumnBounds(1), lambda row: row is not None
    for _ in range(4):
        low, high = sorted(chance.sample(some, 2))
        yield from conditions_of(low, high, of)


def conditions_of(low: Value, high: Value, of: DataType) -> Iterator[Condition]:
    low_text, high_text = text_of(low, of), text_of(high, of)
    yield ColumnBounds(1, low_text, high_text), lambda row: row is not None and low <= row <= high
    yield ColumnBounds(1, upper=high_text), lambda row: row is not None and row <= high
    yield ColumnBounds(1, lower=low_text), lambda row: row is not None and row >= low
    yield ColumnBounds(1, low_text, low_text), lambda row: row == low
    yield ColumnBounds(1, values=(low_text, high_text)), lambda row: row in (low, high)
    without = ColumnBounds(1, without=(low_text, high_text))
    yield without, lambda row: row is not None and row not in (low, high)


@pytest.mark.parametrize("of", VALUES, ids=str)
def test_no_matching_row_is_in_a_partition_that_is_skipped(of: DataType) -> None:
    chance = random.Random(3)
    transforms = [
        Transform(kind, width)
        for kind in TransformKind
        for width in ((1, 3, 7) if kind in (TransformKind.BUCKET, TransformKind.TRUNCATE) else (0,))
        if Transform(kind, width or 1).takes(of)
    ]
    for transform in transforms:
        partitioned = table(of, text_of_transform(transform))
        asked = list(conditions(chance, of))
        pairs = [(value,) for value in asked] + [tuple(chance.sample(asked, 2)) for _ in range(10)]
        for wanted in pairs:
            ranges = wanted_ranges([bounds for bounds, _ in wanted], partitioned)
            partitions = partition_filter(ranges, partitioned)
            assert partitions is not None
            for row in VALUES[of]:
                if all(has(row) for _, has in wanted):
                    partition = partition_of(row, of, partitioned)
                    assert partition in partitions, (transform, row, wanted)


def kept(
    transform: str, of: DataType, values: Iterable[Physical | None], *bounds: ColumnBounds
) -> list[Physical | None]:
    """Return the partition values whose partitions may hold matching rows."""
    partitioned = table(of, transform)
    partitions = partition_filter(wanted_ranges(bounds, partitioned), partitioned)
    assert partitions is not None
    field_id = partitioned.partitioning[0].id
    return [value for value in values if (PartitionValue(field_id, value),) in partitions]


@pytest.mark.parametrize(
    ("transform", "of", "bounds", "values", "expected"),
    [
        ("c", INT, ColumnBounds(1, "2", "3"), [None, 1, 2, 3, 4], [2, 3]),
        ("c", INT, ColumnBounds(1, "1.5", "3.5"), [1, 2, 3, 4], [2, 3]),
        ("c", INT, ColumnBounds(1, "2.1", "2.9"), [1, 2, 3], []),
        ("c", INT, ColumnBounds(1, values=("2.5", "3")), [2, 3], [3]),
        ("c", INT, ColumnBounds(1, without=("2", "2.5")), [None, 1, 2, 3], [1, 3]),
        ("c", INT, ColumnBounds(1, without=(f"2.{'0' * 150}1",)), [1, 2], [1, 2]),
        ("c", INT, ColumnBounds(1, lower="1e999999"), [1, 2], []),
        ("c", INT, ColumnBounds(1, upper="1e9999999999"), [1, 2], [1, 2]),
        ("c", INT, ColumnBounds(1, lower=f"{'1' * 200}e-199"), [1, 2], [2]),
        ("c", INT, ColumnBounds(1, null=True), [None, 1], [None]),
        ("c", CENTS, ColumnBounds(1, "1.234", "1.25"), [123, 124, 125, 126], [124, 125]),
        ("c", BOOLEAN, ColumnBounds(1, "true", "true"), [None, False, True], [True]),
        ("c", STRING, ColumnBounds(1, "", ""), [None, "", "a"], [""]),
        ("bucket(4, c)", INT, ColumnBounds(1, "34", "34"), [None, 0, 1, 2, 3], [3]),
        ("bucket(4, c)", INT, ColumnBounds(1, values=("34", "1e30")), [None, 0, 1, 2, 3], [3]),
        ("bucket(4, c)", BIGINT, ColumnBounds(1, str(1 << 63), str(1 << 63)), [0, 1, 2, 3], []),
        ("bucket(4, c)", INT, ColumnBounds(1, "34", "35"), [None, 0, 1, 2, 3], [0, 1, 2, 3]),
        ("bucket(4, c)", INT, ColumnBounds(1, without=("34",)), [None, 3], [3]),
        ("truncate(10, c)", INT, ColumnBounds(1, "-5", "5"), [-20, -10, 0, 10], [-10, 0]),
        ("truncate(10, c)", INT, ColumnBounds(1, without=("-10",)), [None, -10, 0], [-10, 0]),
        ("truncate(2, c)", STRING, ColumnBounds(1, "abc", "b"), ["aa", "ab", "b"], ["ab", "b"]),
        ("day(c)", DATE, ColumnBounds(1, "1969-12-31", "1969-12-31"), [-2, -1, 0], [-1]),
        ("month(c)", DATE, ColumnBounds(1, upper="1969-12-31"), [-2, -1, 0], [-2, -1]),
        (
            "hour(c)", TIMESTAMP,
            ColumnBounds(1, lower="1970-01-01T01:30:00+01:00"), [-1, 0, 1], [0, 1],
        ),
    ],
)  # fmt: skip
def test_partitions_without_matching_rows_are_skipped(
    transform: str,
    of: DataType,
    bounds: ColumnBounds,
    values: list[Physical | None],
    expected: list[Physical | None],
) -> None:
    assert kept(transform, of, values, bounds) == expected


def test_bounds_of_a_column_that_does_not_partition_skip_no_partition() -> None:
    partitioned = table(INT, "c")
    bounds = [ColumnBounds(2, lower="7")]
    assert partition_filter(wanted_ranges(bounds, partitioned), partitioned) is None
