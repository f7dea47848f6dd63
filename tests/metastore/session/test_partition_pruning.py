"""A partition is left out only if it holds no row that is wanted."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.metastore.interface import ColumnBounds
from strandline.metastore.session.partition_pruning import partition_filter
from strandline.metastore.session.pruning import wanted_ranges
from strandline.model.descriptors import (
    ColumnDescriptor,
    SchemaVersion,
    TableDescriptor,
    TableKind,
)
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
small = st.integers(-25, 25)
moments = st.integers(-3 * 86_400, 3 * 86_400).map(lambda seconds: seconds * 1_000_000 + 1)
texts = st.text(st.sampled_from("aAé\U00010000"), max_size=4)
VALUES: dict[DataType, st.SearchStrategy[Value]] = {
    BOOLEAN: st.booleans(),
    TINYINT: small | st.just(-128),
    INT: small,
    BIGINT: small | st.sampled_from([-(1 << 63), (1 << 63) - 1]),
    CENTS: st.integers(-300, 300),
    STRING: texts,
    VarcharType(9): texts,
    DATE: st.integers(-800, 800),
    TIMESTAMP: moments,
    TIMESTAMP_NTZ: moments,
}


def text_of(value: Value, of: DataType) -> str:
    """The text that statistics have for a value of the column."""
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
"""What is asked for, and whether a row has it."""


@st.composite
def conditions(draw: st.DrawFn, of: DataType) -> Condition:
    some = VALUES[of]
    match draw(st.sampled_from(["between", "below", "above", "in", "not in", "null", "not null"])):
        case "between":
            low, high = draw(some), draw(some)
            bounds = ColumnBounds(1, text_of(low, of), text_of(high, of))
            return bounds, lambda row: row is not None and low <= row <= high
        case "below" | "above" as way:
            end = draw(some)
            compare = operator.le if way == "below" else operator.ge
            text = text_of(end, of)
            bounds = ColumnBounds(1, upper=text) if way == "below" else ColumnBounds(1, text)
            return bounds, lambda row: row is not None and compare(row, end)
        case "in":
            listed = draw(st.lists(some, max_size=3))
            wanted = ColumnBounds(1, values=tuple(text_of(value, of) for value in listed))
            return wanted, lambda row: row in listed
        case "not in":
            listed = draw(st.lists(some, max_size=3))
            wanted = ColumnBounds(1, without=tuple(text_of(value, of) for value in listed))
            return wanted, lambda row: row is not None and row not in listed
        case "null":
            return ColumnBounds(1, null=True), lambda row: row is None
    return ColumnBounds(1), lambda row: row is not None


@st.composite
def questions(
    draw: st.DrawFn,
) -> tuple[DataType, Transform, list[Value], list[Condition]]:
    of = draw(st.sampled_from(list(VALUES)))
    kinds = [kind for kind in TransformKind if Transform(kind, 1).takes(of)]
    kind = draw(st.sampled_from(kinds))
    has_width = kind in (TransformKind.BUCKET, TransformKind.TRUNCATE)
    transform = Transform(kind, draw(st.integers(1, 12)) if has_width else 0)
    rows = draw(st.lists(st.none() | VALUES[of], max_size=12))
    return of, transform, rows, draw(st.lists(conditions(of), min_size=1, max_size=3))


@given(questions())
def test_no_row_that_is_wanted_is_in_a_partition_that_is_left_out(
    question: tuple[DataType, Transform, list[Value], list[Condition]],
) -> None:
    of, transform, rows, wanted = question
    partitioned = table(of, text_of_transform(transform))
    ranges = wanted_ranges([bounds for bounds, _ in wanted], partitioned)
    may_hold = partition_filter(ranges, partitioned)
    assert may_hold is not None
    for row in rows:
        if all(has(row) for _, has in wanted):
            assert may_hold(partition_of(row, of, partitioned)), (row, wanted)


def kept(
    transform: str, of: DataType, values: Iterable[Physical | None], *bounds: ColumnBounds
) -> list[Physical | None]:
    """Those of the values of a partition that may hold what is wanted."""
    partitioned = table(of, transform)
    may_hold = partition_filter(wanted_ranges(bounds, partitioned), partitioned)
    assert may_hold is not None
    field_id = partitioned.partitioning[0].id
    return [value for value in values if may_hold((PartitionValue(field_id, value),))]


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
def test_partitions_without_what_is_wanted_are_left_out(
    transform: str,
    of: DataType,
    bounds: ColumnBounds,
    values: list[Physical | None],
    expected: list[Physical | None],
) -> None:
    assert kept(transform, of, values, bounds) == expected


def test_a_column_that_partitions_nothing_leaves_no_partition_out() -> None:
    partitioned = table(INT, "c")
    bounds = [ColumnBounds(2, lower="7")]
    assert partition_filter(wanted_ranges(bounds, partitioned), partitioned) is None
