"""Statistics from footers, as canonical texts. No Spark session is needed."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.metastore.store.rows import ColumnStatistics
from strandline.spark.footers import (
    MAX_BOUND,
    column_statistics,
    file_ids,
    lower_bound,
    upper_bound,
)


def field(name: str, data_type: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, data_type, metadata={"PARQUET:field_id": str(number)})


def footer(schema: pa.Schema, *columns: list[Any] | pa.Array, **options: Any) -> pq.FileMetaData:
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, column.type)
        for values, column in zip(columns, schema, strict=True)
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), buffer, **options)
    return pq.read_metadata(buffer)


def bounds(
    data_type: pa.DataType, values: list[Any] | pa.Array, **options: Any
) -> ColumnStatistics:
    (statistics,) = column_statistics(
        footer(pa.schema([field("a", data_type, 7)]), values, **options)
    )
    assert statistics.column_id == 7
    return statistics


UTC = dt.UTC


@pytest.mark.parametrize(
    ("data_type", "values", "lower", "upper"),
    [
        (pa.int8(), [3, -5], "-5", "3"),
        (pa.int64(), [2**62, -(2**62)], str(-(2**62)), str(2**62)),
        (pa.bool_(), [True, False], "false", "true"),
        (pa.float32(), [0.1, 2.5], repr(pa.scalar(0.1, pa.float32()).as_py()), (2.5).hex()),
        (pa.float64(), [0.1, -0.5], "-0.5", (0.1).hex()),
        (pa.float64(), [0.1, float("inf")], "0.1", "inf"),
        (pa.decimal128(9, 2), [Decimal("1.10"), Decimal("-0.01")], "-0.01", "1.10"),
        (pa.decimal128(38, 10), [Decimal("1E-10")], "0.0000000001", "0.0000000001"),
        (pa.date32(), [dt.date(2013, 1, 2), dt.date(1, 1, 1)], "0001-01-01", "2013-01-02"),
        (
            pa.timestamp("us", "UTC"),
            [dt.datetime(2013, 1, 1, 5, 0, 0, 123, UTC)],
            "2013-01-01T05:00:00.000123Z",
            "2013-01-01T05:00:00.000123Z",
        ),
        (
            pa.timestamp("us"),
            [dt.datetime(2013, 1, 1, 5)],
            "2013-01-01T05:00:00.000000",
            "2013-01-01T05:00:00.000000",
        ),
        (pa.string(), ["b", "", "ä"], "", "ä"),
        (pa.string(), ["x" * (MAX_BOUND + 1)], "x" * MAX_BOUND, "x" * (MAX_BOUND - 1) + "y"),
        (pa.binary(), [b"a"], None, None),
    ],
)
def test_bounds_have_a_canonical_text_for_each_type(
    data_type: pa.DataType, values: list[Any], lower: str | None, upper: str | None
) -> None:
    statistics = bounds(data_type, [*values, None])
    assert (statistics.lower, statistics.upper, statistics.nulls) == (lower, upper, 1)


@pytest.mark.parametrize(
    "values", [[5, 6, None, None, 1, None], [1, None, None, None, 6, 5]], ids=["falling", "rising"]
)
def test_statistics_of_row_groups_are_combined(values: list[int | None]) -> None:
    statistics = bounds(pa.int64(), values, row_group_size=2)
    assert (statistics.lower, statistics.upper, statistics.nulls) == ("1", "6", 3)


def test_a_row_group_with_unknown_bounds_makes_the_bounds_of_the_file_unknown() -> None:
    statistics = bounds(pa.float64(), [1.0, float("nan")], row_group_size=1)
    assert (statistics.lower, statistics.upper, statistics.nulls) == (None, None, 0)


def test_a_column_of_nulls_has_a_null_count_and_no_bounds() -> None:
    statistics = bounds(pa.int64(), [None, None])
    assert (statistics.lower, statistics.upper, statistics.nulls) == (None, None, 2)


def test_a_footer_without_statistics_gives_no_bounds_and_no_null_count() -> None:
    statistics = bounds(pa.int64(), [1], write_statistics=False)
    assert (statistics.lower, statistics.upper, statistics.nulls) == (None, None, None)


def test_a_date_that_python_cannot_hold_has_no_bounds() -> None:
    days = pa.array([1, 4_000_000], pa.int32()).cast(pa.date32())
    statistics = bounds(pa.date32(), days, row_group_size=1)
    assert (statistics.lower, statistics.upper, statistics.nulls) == (None, None, 0)


def test_a_text_that_is_not_utf_8_has_no_bounds() -> None:
    statistics = bounds(pa.string(), pa.array([b"a", b"\xff"], pa.binary()).view(pa.string()))
    assert (statistics.lower, statistics.upper, statistics.nulls) == (None, None, 0)


def test_nested_fields_have_statistics_but_values_in_lists_and_maps_have_none() -> None:
    inner = pa.struct([field("x", pa.int32(), 3), field("l", pa.list_(pa.int32()), 4)])
    schema = pa.schema(
        [
            field("s", inner, 2),
            field("m", pa.map_(pa.string(), pa.struct([field("y", pa.int32(), 6)])), 5),
            field("a", pa.int32(), 1),
        ]
    )
    metadata = footer(schema, [{"x": 1, "l": [9]}, None], [[("k", {"y": 2})], None], [4, 5])
    assert file_ids(metadata) == {1, 2, 3, 4, 5, 6}
    assert column_statistics(metadata) == (
        ColumnStatistics(column_id=1, lower="4", upper="5", nulls=0),
        ColumnStatistics(column_id=3, lower="1", upper="1", nulls=1),
    )


@pytest.mark.parametrize("column", [pa.field("a", pa.int32()), field("a", pa.int32(), -1)])
def test_columns_without_ids_have_no_statistics(column: pa.Field) -> None:
    metadata = footer(pa.schema([column]), [1])
    assert file_ids(metadata) == set()
    assert column_statistics(metadata) == ()


def test_a_column_name_with_a_dot_is_not_read_as_a_path() -> None:
    schema = pa.schema(
        [field("s.x", pa.int32(), 1), field("s", pa.struct([field("x", pa.int32(), 3)]), 2)]
    )
    first, second = column_statistics(footer(schema, [1], [{"x": 2}]))
    assert (first.column_id, first.lower, second.column_id, second.lower) == (1, "1", 3, "2")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=60, max_size=70))
def test_a_truncated_bound_is_still_a_bound(text: str) -> None:
    lower, upper = lower_bound(text), upper_bound(text)
    assert len(lower) <= MAX_BOUND
    assert lower.encode() <= text.encode()
    if upper is not None:
        assert len(upper) <= MAX_BOUND
        assert text.encode() <= upper.encode()
    assert len(text) > MAX_BOUND or (lower, upper) == (text, text)


@pytest.mark.parametrize(
    ("last", "expected"),
    [("a", "b"), ("\ud7ff", "\ue000"), ("\U0010ffff", None)],
)
def test_an_upper_bound_is_rounded_up_to_a_valid_character(last: str, expected: str | None) -> None:
    text = "x" * (MAX_BOUND - 1) + last + "tail"
    wanted = "x" * (MAX_BOUND - 2) + "y" if expected is None else text[: MAX_BOUND - 1] + expected
    assert upper_bound(text) == wanted


def test_text_of_the_largest_characters_has_no_upper_bound() -> None:
    assert upper_bound("\U0010ffff" * (MAX_BOUND + 1)) is None
