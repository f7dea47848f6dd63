"""The bounds that a condition implies, as Spark analyzes it. No job runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from strandline.metastore.interface import ColumnBounds
from strandline.spark.conditions import implied_bounds
from tests.spark.data import calls_of_the_jvm

pytestmark = pytest.mark.spark

COLUMNS = {
    "id": "BIGINT", "n": "INT", "s": "STRING", "c": "DECIMAL(5, 2)", "b": "BOOLEAN", "d": "DATE",
    "t": "TIMESTAMP", "l": "TIMESTAMP_NTZ", "f": "DOUBLE", "g": "FLOAT", "x": "BINARY",
    "y": "TINYINT", "h": "SMALLINT",
}  # fmt: skip
IDS = {name: number for number, name in enumerate(COLUMNS, start=1)}


def bounds(column: str, lower: str | None = None, upper: str | None = None, **of: Any) -> Any:
    return ColumnBounds(IDS[column], lower, upper, **of)


IMPLIED: dict[str, list[ColumnBounds]] = {
    "id > 5": [bounds("id", "6")],
    "id <= 5": [bounds("id", None, "5")],
    "5 < id": [bounds("id", "6")],
    "5 > id": [bounds("id", None, "4")],
    "5 >= id": [bounds("id", None, "5")],
    "5 = ID": [bounds("id", "5", "5")],
    "id <=> 5": [bounds("id", "5", "5")],
    "CAST(id AS BIGINT) = 1": [bounds("id", "1", "1")],
    "CAST(f AS INT) = 1": [],
    "id > n": [],
    "id = rand()": [],
    "n = CAST('x' AS INT)": [],
    "id > 1 AND s = 'a'": [bounds("id", "2"), bounds("s", "a", "a")],
    "id > 1 OR s = 'a'": [],
    "NOT id > 1": [],
    "id BETWEEN 2 AND 4": [bounds("id", "2"), bounds("id", None, "4")],
    "id + 1 BETWEEN 2 AND 4": [],
    "id IN (7, 3, 15)": [bounds("id", "3", "15", values=("7", "3", "15"))],
    "s IN ('b', 'a', 'B')": [bounds("s", "B", "b", values=("b", "a", "B"))],
    "id IN (-7, 3L, CAST('4' AS BIGINT))": [bounds("id", "-7", "4", values=("-7", "3", "4"))],
    "y IN (5Y, -3Y)": [bounds("y", "-3", "5", values=("5", "-3"))],
    "y IN (5Y, CAST(12.5 AS TINYINT))": [bounds("y", "5", "12", values=("5", "12"))],
    "id IN (3, CAST(' 4 ' AS BIGINT))": [bounds("id", "3", "4", values=("3", "4"))],
    "id IN (3, CAST(n AS BIGINT))": [],
    "id IN (3, NULL)": [],
    "id IN (3, n)": [],
    "id + 1 IN (3, 1)": [],
    "s IN ('a', NULL)": [],
    "s IN ('a', 'null', '')": [bounds("s", "", "null", values=("a", "null", ""))],
    "s IN ('a', lower('B'))": [],
    "s IN ('a', CAST(5 AS STRING))": [bounds("s", "5", "a", values=("a", "5"))],
    "s NOT IN ('b', 'a')": [bounds("s", without=("b", "a"))],
    "b IN (true, false)": [bounds("b", "false", "true", values=("true", "false"))],
    "c IN (1.5BD, 0BD)": [bounds("c", "0.00", "1.50", values=("1.50", "0.00"))],
    "d IN ('2013-01-02', '2013-01-01')": [
        bounds("d", "2013-01-01", "2013-01-02", values=("2013-01-02", "2013-01-01"))
    ],
    "d IN (DATE'2013-01-01', 'no date')": [],
    "d IN (DATE'2013-01-01', current_date())": [],
    "f IN (1.5D, CAST('Infinity' AS DOUBLE))": [bounds("f", "1.5", "inf", values=("1.5", "inf"))],
    "f IN (1.5D, CAST('NaN' AS DOUBLE))": [],
    "g IN (0.1F)": [
        bounds("g", *["0.10000000149011612"] * 2, values=("0.10000000149011612",))
    ],
    "x IN (X'01')": [],
    "id NOT IN (3, 1)": [bounds("id", without=("3", "1"))],
    "id NOT IN (3, NULL)": [],
    "id + 1 NOT IN (3, 1)": [],
    "id <> 5": [bounds("id", without=("5",))],
    "5 <> id": [bounds("id", without=("5",))],
    "id <> n": [],
    "s IS NULL": [bounds("s", null=True)],
    "s IS NOT NULL": [bounds("s")],
    "s <=> NULL": [bounds("s", null=True)],
    "id <=> NULL": [bounds("id", null=True)],
    "id <=> n": [],
    "id + 1 <=> NULL": [],
    "x <=> X'01'": [],
    "y > 5Y": [bounds("y", "6")],
    "h < 5S": [bounds("h", None, "4")],
    "s LIKE 'ab%c'": [bounds("s", "ab", "ac")],
    "s LIKE 'a_b'": [bounds("s", "a", "b")],
    "s LIKE 'a!%b%' ESCAPE '!'": [bounds("s", "a", "b")],
    "startswith(s, 'ab')": [bounds("s", "ab", "ac")],
    "startswith('abc', s)": [],
    "startswith(s, s)": [],
    "s NOT LIKE 'a%'": [],
    "s > CAST(X'FF' AS STRING)": [],
    "c > 1.25BD": [bounds("c", "1.25")],
    "c = 1.5BD": [bounds("c", "1.50", "1.50")],
    "b = true": [bounds("b", "true", "true")],
    "d > DATE'2013-01-01'": [bounds("d", "2013-01-02")],
    "d >= DATE'9999-12-31'": [bounds("d", "9999-12-31")],
    "d > DATE'9999-12-31'": [],
    "d <= DATE'0001-01-01'": [bounds("d", None, "0001-01-01")],
    "d < DATE'0001-01-01'": [],
    "d = current_date()": [],
    "t > TIMESTAMP'2013-01-01 00:00:00Z'": [bounds("t", "2013-01-01T00:00:00.000001Z")],
    "t > TIMESTAMP'+10000-01-01 00:00:00Z'": [],
    "l < TIMESTAMP_NTZ'2013-01-01 00:00:00'": [bounds("l", None, "2012-12-31T23:59:59.999999")],
    "f > 1.5D": [bounds("f", "1.5")],
    "f = CAST('NaN' AS DOUBLE)": [],
    "g <= 0.1F": [bounds("g", None, "0.10000000149011612")],
    "x = X'01'": [],
}  # fmt: skip


def test_a_condition_implies_bounds_of_the_columns_that_it_compares_with_constants(
    spark: SparkSession,
) -> None:
    rows = spark.createDataFrame([], ", ".join(f"{name} {of}" for name, of in COLUMNS.items()))
    implied = {condition: list(implied_bounds(rows, condition, IDS)) for condition in IMPLIED}
    assert implied == IMPLIED


LISTS: dict[str, tuple[str, str, Callable[[int], str]]] = {
    "id": ("BIGINT", "{}", str),
    "s": ("STRING", '"it\'s {}"', lambda number: f"it's {number}"),
    "d": ("DATE", "'{}'", lambda number: str(date(2020, 1, 1) + timedelta(number))),
    "c": ("DECIMAL(9, 2)", "{}.5", lambda number: f"{number}.50"),
}
"""Columns, their types, constants as a condition has them, and as statistics have them."""


@pytest.mark.parametrize("column", LISTS)
def test_a_long_list_of_constants_takes_as_many_calls_of_the_jvm_as_a_short_one(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """Each call of the JVM takes a tenth of a millisecond, and each constant took six of them."""
    of, shown, text_of = LISTS[column]
    rows = spark.createDataFrame([], f"{column} {of}")
    counts = []
    for length in (2, 200):
        texts = tuple(map(text_of, range(length)))
        constants = [shown.format(texts[n] if of == "DATE" else n) for n in range(length)]
        condition = f"{column} IN ({', '.join(constants)})"
        with calls_of_the_jvm(monkeypatch) as calls:
            (implied,) = implied_bounds(rows, condition, {column: 1})
        counts.append(len(calls))
        assert implied.values == texts
    assert counts[0] == counts[1]


def test_a_list_with_a_text_that_separates_its_values_implies_no_bounds(
    spark: SparkSession,
) -> None:
    rows = spark.createDataFrame([], "s STRING")
    assert implied_bounds(rows, "s IN ('a\\0b', 'c')", {"s": 1}) == ()
