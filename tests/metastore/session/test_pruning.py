"""A file is skipped only if it certainly holds no matching row."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.errors import InvalidInput
from strandline.metastore.interface import ColumnBounds
from strandline.metastore.session.pruning import may_match, touching, wanted_ranges
from strandline.metastore.store.rows import ColumnStatistics, DataFile, DeleteFile
from strandline.model.descriptors import TableDescriptor
from strandline.model.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    CharType,
    DataType,
    DecimalType,
    StringType,
    VarcharType,
)
from strandline.node import Node

TYPES: dict[str, DataType] = {
    "bigint": BIGINT,
    "decimal": DecimalType(10, 2),
    "double": DOUBLE,
    "float": FLOAT,
    "boolean": BOOLEAN,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
    "string": STRING,
    "varchar": VarcharType(5),
    "char": CharType(5),
    "binary": BINARY,
    "collated": StringType("UTF8_LCASE"),
}
MIDNIGHT = ("2013-01-01T00:00:00.000000Z", "2013-01-01T00:00:00.000000Z", 0)
IDS = {name: number for number, name in enumerate(TYPES, start=1)}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableDescriptor:
    columns = tuple(ColumnDefinition(name, of) for name, of in TYPES.items())
    definition = TableDefinition(name="t", columns=columns, transactional=True)
    with Node.open(tmp_path_factory.mktemp("store")) as node:
        session = node.session(user="ann")
        session.execute(CreateTable(schema="default", definition=definition))
        return session.table("t").descriptor


def file(*statistics: ColumnStatistics, rows: int = 10) -> DataFile:
    return DataFile(file_id=1, path="f", rows=rows, bytes=1, statistics=statistics)


def kept(
    table: TableDescriptor,
    column: str,
    known: tuple[str | None, str | None, int | None],
    *wanted: tuple[str | None, str | None],
) -> bool:
    statistics = ColumnStatistics(
        column_id=IDS[column], lower=known[0], upper=known[1], nulls=known[2]
    )
    bounds = [ColumnBounds(IDS[column], *ends) for ends in wanted]
    return may_match(file(statistics), wanted_ranges(bounds, table))


@pytest.mark.parametrize(
    ("column", "known", "wanted", "is_kept"),
    [
        ("bigint", ("9", "10", 0), ("10", None), True),
        ("bigint", ("9", "10", 0), ("11", None), False),
        ("bigint", ("9", "10", 0), (None, "8"), False),
        ("bigint", ("-5", "100", 0), ("20", "30"), True),
        ("bigint", (None, "10", 0), (None, "-99"), True),
        ("bigint", ("9", None, None), ("99", None), True),
        ("bigint", ("zz", "10", 0), (None, "1"), True),
        ("bigint", (None, None, 10), (None, None), False),
        ("bigint", (None, None, 9), ("1", None), True),
        ("decimal", ("-1.50", "2.25", 0), ("2.3", None), False),
        ("decimal", ("-1.50", "2.25", 0), ("2.25", None), True),
        ("double", ("1.0", "0x1p+1", 0), ("3.0", None), True),
        ("double", ("1.0", "0x1p+1", 0), ("3.0", "inf"), False),
        ("double", ("-3.0", "-0x1p+1", 0), ("-2.0", "inf"), True),
        ("double", ("-3.0", "-0x1p+1", 0), ("-1.5", "inf"), False),
        ("double", ("1.0", "2.0", 0), ("3.0", "inf"), True),  # of release 0.8.0 or earlier
        ("double", ("1.0", "-inf", 0), ("3.0", "inf"), True),
        ("double", ("1.0", "0x1p+99999", 0), ("3.0", "inf"), True),
        ("double", ("1.0", "2.0", 0), (None, "0.5"), False),
        ("float", ("0.10000000149011612", "0.5", 0), (None, "0.1"), True),
        ("float", ("0.1", "0.5", 0), (None, "0.10000000149011612"), True),
        ("float", ("0.0", "0x1.99999ap-4", 0), ("0.1", "inf"), True),
        ("float", ("0.0", "0x1p+0", 0), ("1e39", "inf"), False),
        ("boolean", ("false", "false", 0), ("true", None), False),
        ("boolean", ("false", "true", 0), ("true", "true"), True),
        ("date", ("2013-01-01", "2013-12-31", 0), ("2014-01-01", None), False),
        ("date", ("2013-01-01", "2013-12-31", 0), ("2013-12-31", None), True),
        ("timestamp", MIDNIGHT, ("2013-01-01T01:00:00+01:00", None), True),
        ("timestamp", MIDNIGHT, ("2013-01-01T00:00:00.000001Z", None), False),
        ("timestamp_ntz", ("2013-01-01", "2013-01-01", 0), ("2013-01-02", None), False),
        ("string", ("a", "b", 0), ("ba", None), False),
        ("string", ("a", "b", 0), (None, "Z"), False),
        ("varchar", ("a", "b", 0), ("b", None), True),
        ("char", ("a", "b", 0), ("z", None), True),
        ("binary", ("a", "b", 0), ("z", None), True),
        ("collated", ("a", "b", 0), ("Z", None), True),
    ],
)  # fmt: skip
def test_a_file_is_skipped_if_its_statistics_prove_that_no_row_matches(
    table: TableDescriptor, column: str, known: Any, wanted: Any, is_kept: bool
) -> None:
    assert kept(table, column, known, wanted) == is_kept


@pytest.mark.parametrize(
    ("column", "known", "bounds", "is_kept"),
    [
        ("bigint", ("4", "5", 0), [("3", None), (None, "6")], True),
        ("bigint", ("4", "5", 0), [("3", None), ("6", None), ("1", None)], False),
        ("bigint", ("4", "5", 0), [(None, "9"), (None, "3"), (None, "8")], False),
        # NaN is above the first bound and not below the second.
        ("double", ("1.0", "0x1p+1", 0), [("3.0", None), (None, "4.0")], False),
    ],
)
def test_a_file_must_meet_all_bounds_of_a_column(
    table: TableDescriptor, column: str, known: Any, bounds: Any, is_kept: bool
) -> None:
    assert kept(table, column, known, *bounds) == is_kept


def test_many_bounds_of_one_column_are_merged_into_one_range(
    table: TableDescriptor,
) -> None:
    bounds = [ColumnBounds(IDS["bigint"], str(value)) for value in range(1000)]
    assert [wanted.lower for wanted in wanted_ranges(bounds, table).values()] == [999]


def test_many_bounds_and_unwanted_values_of_one_column_take_no_longer_than_each_alone(
    table: TableDescriptor,
) -> None:
    values = [ColumnBounds(IDS["bigint"], without=tuple(map(str, range(5_000))))]
    bounds = [ColumnBounds(IDS["bigint"])] * 5_000

    def cost(bounds: list[ColumnBounds]) -> float:
        began = time.thread_time()
        (wanted,) = wanted_ranges(bounds, table).values()
        assert len(wanted.without) in (0, 5_000)
        return time.thread_time() - began

    together, *alone = (
        min(cost(some) for _ in range(3)) for some in (values + bounds, values, bounds)
    )
    assert together < 5 * sum(alone)  # thirteen times as long if each bound copied the values


VALUES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], str]]] = {
    "bigint": (st.integers(-(2**63), 2**63 - 1), str),
    "decimal": (st.decimals(-1000, 1000, places=2), lambda value: format(value, "f")),
    "double": (st.floats(allow_nan=False), repr),
    "date": (st.dates(date(1, 1, 1)), date.isoformat),
    "timestamp_ntz": (
        st.datetimes(datetime(1, 1, 1)), lambda value: value.isoformat(timespec="microseconds")
    ),
    "string": (st.text(max_size=3), str),
}  # fmt: skip


@given(st.data())
def test_a_file_with_a_matching_value_is_never_skipped(
    table: TableDescriptor, data: st.DataObject
) -> None:
    column = data.draw(st.sampled_from(sorted(VALUES)))
    strategy, text = VALUES[column]
    values = data.draw(st.lists(strategy, min_size=1, max_size=4))
    wanted = data.draw(strategy)
    low, high = sorted((wanted, data.draw(st.sampled_from([wanted, *values]))))
    highest = max(values)
    known = (text(min(values)), highest.hex() if column == "double" else text(highest), 0)
    if any(low <= value <= high for value in values):
        assert kept(table, column, known, (text(low), text(high)))
    if any(low <= value for value in values):
        assert kept(table, column, known, (text(low), None))
    if any(value <= high for value in values):
        assert kept(table, column, known, (None, text(high)))


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("bigint", "a"), ("bigint", "nan"), ("decimal", ""), ("double", "nan"), ("boolean", "1"),
        ("date", "2013"), ("timestamp", "2013-01-01"), ("timestamp_ntz", "2013-01-01T00:00:00Z"),
    ],
)  # fmt: skip
def test_a_bound_that_is_not_a_value_of_its_column_is_refused(
    table: TableDescriptor, column: str, text: str
) -> None:
    with pytest.raises(InvalidInput, match="is not a bound of column"):
        wanted_ranges([ColumnBounds(IDS[column], lower=text)], table)


@pytest.mark.parametrize(
    ("column", "known", "bounds", "is_kept"),
    [
        ("bigint", ("4", "6", 0), [{"values": ("3", "6")}], True),
        ("bigint", ("4", "6", 0), [{"values": ("4", "7")}], True),
        ("bigint", ("4", "6", 0), [{"values": ("3", "7")}], False),
        ("bigint", ("4", "4", 0), [{"without": ("4",)}], False),
        ("bigint", ("4", "6", 0), [{"without": ("4", "6")}], True),
        ("double", ("4.0", "0x1p+2", 0), [{"without": ("4",)}], True),  # NaN is in no bounds
        ("double", ("4.0", "0x1p+2", 0), [{"values": ("3", "5")}], False),
        ("double", ("4.0", "4.0", 0), [{"values": ("3", "5")}], True),
        ("timestamp", MIDNIGHT, [{"without": MIDNIGHT[:1]}], False),
        ("timestamp", MIDNIGHT, [{"without": ("2013-01-01T00:00:00.0000001Z",)}], True),
        ("bigint", (None, None, 0), [{"without": ("4",)}], True),
        ("bigint", ("4", None, 0), [{"values": ("4",)}], True),
        ("bigint", (None, "4", 0), [{"values": ()}], False),
        ("bigint", ("4", "6", 3), [{"null": True}], True),
        ("bigint", ("4", "6", 3), [{"null": True}, {"values": ("3",)}], False),
    ],
)
def test_listed_unwanted_and_missing_values_are_compared_with_the_statistics(
    table: TableDescriptor, column: str, known: Any, bounds: list[dict[str, Any]], is_kept: bool
) -> None:
    lower, upper, nulls = known
    statistics = ColumnStatistics(column_id=IDS[column], lower=lower, upper=upper, nulls=nulls)
    wanted = wanted_ranges([ColumnBounds(IDS[column], **of_one) for of_one in bounds], table)
    assert may_match(file(statistics), wanted) == is_kept


def test_delete_files_of_the_selected_data_files_are_kept() -> None:
    files = [DeleteFile(path=str(i), file_ids=ids, counts=(1,) * len(ids)) for i, ids in
             enumerate([(1,), (2,), (2, 1)])]  # fmt: skip
    assert touching(files, [file()]) == [files[0], files[2]]


@pytest.mark.parametrize(
    ("column", "old", "new"),
    [
        ("date", ["1500-03-01", "1500-03-09"], "2020-01-01"),
        ("timestamp", ["1500-03-01T00:00:00Z", "1500-03-09T00:00:00Z"], "2020-01-01T00:00:00Z"),
    ],
)
def test_the_statistics_of_old_days_may_be_those_of_another_calendar(
    table: TableDescriptor, column: str, old: list[str], new: str
) -> None:
    """Of the same day, Spark's Julian number is up to ten days later, or two days earlier."""
    for shown, real in (old, old[::-1]):
        assert kept(table, column, (shown, shown, 0), (real, real))
        assert kept(table, column, (shown, shown, 0), (None, real))
        assert kept(table, column, (shown, shown, 0), (real, new))
        listed = ColumnBounds(IDS[column], values=(real, new))
        known = ColumnStatistics(column_id=IDS[column], lower=shown, upper=shown, nulls=0)
        assert may_match(file(known), wanted_ranges([listed], table))
        excluded = ColumnBounds(IDS[column], without=(shown,))
        assert may_match(file(known), wanted_ranges([excluded], table))
        assert not kept(table, column, (shown, shown, 0), (new, None))
        assert not kept(table, column, (new, new, 0), (None, real))
