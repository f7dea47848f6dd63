"""Random appends and deletes on a table, compared with the same operations on Python lists."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from strandline.spark import ReaderSnapshot, Tables
from tests.spark.data import frame, rows

pytestmark = pytest.mark.spark

ROUNDS = 5
Row = tuple[int | None, str | None]


@dataclass(frozen=True)
class Condition:
    """A condition as SQL, and as Python with None for NULL."""

    sql: str
    column: int
    modulus: int
    remainder: int

    def holds(self, row: Row) -> bool:
        value = row[self.column]
        if value is None:
            return False
        return (len(value) if isinstance(value, str) else value) % self.modulus == self.remainder


def a_condition(dice: random.Random) -> Condition:
    column, modulus = dice.randrange(2), dice.choice([1, 2, 3, 7, 40])
    remainder = dice.randrange(modulus)
    value = ("pmod(k, {m})", "length(v) % {m}")[column].format(m=modulus)
    return Condition(f"{value} = {remainder}", column, modulus, remainder)


def some_rows(dice: random.Random) -> list[Row]:
    return [
        (
            dice.choice([None, dice.randrange(-100, 100)]),
            dice.choice([None, "", "x" * dice.randrange(9)]),
        )
        for _ in range(dice.choice([1, 3, 200]))
    ]


def append(tables: Tables, added: list[Row], *, files: int) -> None:
    keys = pa.array([row[0] for row in added], pa.int64())
    values = pa.array([row[1] for row in added], pa.string())
    assert tables.append("shop.t", frame(tables, k=keys, v=values).coalesce(files)).rows == len(
        added
    )


@pytest.mark.parametrize(
    "seed", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.soak)]
)
def test_a_table_and_a_list_hold_the_same_rows_after_the_same_statements(
    tables: Tables, seed: int
) -> None:
    dice = random.Random(seed)
    tables.create("shop.t", "k BIGINT, v STRING")
    expected: list[Row] = []
    taken: list[ReaderSnapshot] = []
    seen: Counter[tuple[object, ...]] = Counter()
    for number in range(ROUNDS):
        if dice.random() < 0.8 or not expected:
            added = some_rows(dice)
            append(tables, added, files=dice.choice([1, 2]))
            expected += added
        for _ in range(dice.choice([1, 2])):
            condition = a_condition(dice)
            kept = [row for row in expected if not condition.holds(row)]
            assert tables.delete("shop.t", condition.sql).rows == len(expected) - len(kept)
            expected = kept
        taken.append(tables.snapshot("shop.t"))
        seen.update((*row, number) for row in expected)
    frames = [
        tables.read("shop.t", snapshot=snapshot).withColumn("round", sql.lit(number))
        for number, snapshot in enumerate(taken)
    ]
    assert rows(reduce(DataFrame.unionAll, frames)) == seen
