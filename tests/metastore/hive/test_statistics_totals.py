"""Statistics of several partitions in one; `test_differential` compares them with Hive's."""

from __future__ import annotations

import math
from typing import Any

import pytest

from strandline.metastore.hive.statistics_totals import StatisticsTotal
from strandline.metastore.hive.statistics_values import LARGEST, UNKNOWN


def over(partitions: int, parts: dict[int, dict[str, Any]], *, form: str = "longStats") -> Any:
    """The values over ``partitions``; those at the indexes of ``parts`` have statistics."""
    total = StatisticsTotal()
    for index, values in parts.items():
        total.add({"colName": "a", "colType": "any", "statsData": {form: values}}, index=index)
    return total.over(partitions)["statsData"][form]


def long(low: Any, high: Any, *, nulls: int = 1, distinct: int = 5) -> dict[str, Any]:
    return {"lowValue": low, "highValue": high, "numNulls": nulls, "numDVs": distinct}


def decimal(unscaled: bytes, scale: int = 0) -> dict[str, Any]:
    return {"unscaled": unscaled, "scale": scale}


def test_bounds_and_counts_are_extrapolated_to_the_partitions_without_statistics() -> None:
    total = over(5, {0: long(10, 20, nulls=3), 2: long(14, 30, nulls=4)})
    assert total == long(10, 40, nulls=15)


def test_nothing_is_extrapolated_from_one_partition_or_from_all_of_them() -> None:
    assert over(9, {3: long(1, 9)}) == long(1, 9)
    assert over(2, {0: long(1, 9), 1: long(2, 10)}) == long(1, 10, nulls=2)


def test_an_unknown_count_stays_unknown() -> None:
    parts = {n: long(1, 90, nulls=UNKNOWN, distinct=UNKNOWN) for n in range(2)}
    assert over(3, parts) == long(1, 90, nulls=UNKNOWN, distinct=UNKNOWN)


def test_there_are_no_more_distinct_values_than_fit_between_the_bounds() -> None:
    parts = {0: long(1, 10, distinct=5), 1: long(1, 10, distinct=10)}
    assert over(9, parts)["numDVs"] == 10
    assert over(1, {0: long(1, 10, distinct=40)})["numDVs"] == 10
    assert over(9, {3: long(1, 10, distinct=40)})["numDVs"] == 10


def test_extrapolated_numbers_are_capped_at_the_limits_of_the_protocol() -> None:
    parts = {0: long(-LARGEST, 0, nulls=LARGEST), 1: long(0, LARGEST, nulls=LARGEST)}
    total = over(1000, parts)
    assert (total["lowValue"], total["highValue"]) == (-LARGEST, LARGEST)
    assert total["numNulls"] == LARGEST


@pytest.mark.parametrize("widest", [math.inf, 1.7e308])
def test_a_bound_that_cannot_grow_further_stays_the_same(widest: float) -> None:
    parts = {0: long(0.5, widest), 1: long(-widest, 2.0), 2: long(0.0, 1.0)}
    total = over(9, parts, form="doubleStats")
    assert (total["lowValue"], total["highValue"]) == (-widest, widest)


def test_a_decimal_that_is_too_large_for_a_double_stays_the_same() -> None:
    huge = decimal(b"\x7f" * 500)
    parts = {0: long(decimal(b"\x01"), decimal(b"\x02")), 1: long(decimal(b"\x00"), huge)}
    total = over(4, parts, form="decimalStats")
    assert total["highValue"] == huge
    assert total["lowValue"] == decimal(b"\xec", scale=1)


@pytest.mark.parametrize("high", [b"\x7f\xff", b"\x00\x80", b"\x7f" * 16])
def test_a_decimal_bound_is_extrapolated_by_its_value(high: bytes) -> None:
    parts = {0: long(decimal(b"\x00"), decimal(b"\x00")), 1: long(decimal(b"\x00"), decimal(high))}
    grown = over(3, parts, form="decimalStats")["highValue"]
    number = int.from_bytes(grown["unscaled"], "big", signed=True) / 10 ** grown["scale"]
    assert number == pytest.approx(2 * int.from_bytes(high, "big"))
