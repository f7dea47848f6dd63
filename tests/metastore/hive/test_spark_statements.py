"""The same statements of an unmodified Spark on this service and on Hive's metastore 2.3.10.

The answers on Hive are recorded in a file. ``make soak`` compares the file with Hive itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.metastore.hive.differential.differences import ARROW, Part
from tests.metastore.hive.hive_node import HiveNode
from tests.metastore.hive.spark_process import Answer, SparkProcess
from tests.metastore.hive.statements.differences import DIFFERENCES
from tests.metastore.hive.statements.recorded import (
    QUICK,
    STATEMENTS,
    answers,
    answers_of_hive,
    recorded_answers,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def differing(others: dict[int, Answer]) -> list[Part]:
    """The rows, schemas and errors that differ from those of Spark on Hive."""
    hive = recorded_answers()
    return [
        part
        for number, other in others.items()
        for part in _parts(STATEMENTS[number], hive[number], other)
    ]


def unexplained(parts: list[Part]) -> list[str]:
    return [str(part) for part in parts if not any(d.covers(part) for d in DIFFERENCES)]


def _parts(statement: str, hive: Answer, other: Answer) -> Iterator[Part]:
    if "rows" not in hive or "rows" not in other or hive["schema"] != other["schema"]:
        if hive != other:
            yield Part(statement, "", _shown(hive), _shown(other))
        return
    for number, rows in enumerate(zip_longest(hive["rows"], other["rows"])):
        if rows[0] != rows[1]:
            yield Part(statement, f"row {number}", *map(_shown, rows))


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@pytest.fixture(scope="module")
def parts(spark: SparkProcess, served: HiveNode) -> Iterator[list[Part]]:
    yield differing(answers(spark, served.folder / "warehouse", chosen=QUICK))
    spark.sql("USE nyc")


def test_the_answers_equal_those_on_hive_except_for_explained_differences(
    parts: list[Part],
) -> None:
    assert len(QUICK) >= 130
    assert not unexplained(parts), "\n" + "\n".join(unexplained(parts))


def test_every_case_of_an_intended_difference_occurs_and_names_the_answer_here(
    parts: list[Part],
) -> None:
    for difference in DIFFERENCES:
        for case in difference.cases:
            assert any(difference.covers_by(case, part) for part in parts), case
            assert ".*" not in case.rpartition(ARROW)[2], case


@pytest.mark.soak
def test_answers_to_all_statements_equal_those_on_hive_except_for_explained_differences(
    spark: SparkProcess, served: HiveNode
) -> None:
    parts = unexplained(differing(answers(spark, served.folder / "warehouse")))
    spark.sql("USE nyc")
    assert not parts, "\n" + "\n".join(parts)


@pytest.mark.soak
def test_spark_on_hive_still_gives_the_recorded_answers(tmp_path: Path) -> None:
    changed = [str(part) for part in differing(answers_of_hive(tmp_path))]
    assert not changed, "\n" + "\n".join(changed)
