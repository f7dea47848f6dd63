"""Random statements of an unmodified Spark have the same rows and errors as on Hive's metastore."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metastore.hive.hive_node import HiveNode
from tests.metastore.hive.random_statements import RandomStatements
from tests.metastore.hive.spark_process import Answer, SparkError, SparkProcess
from tests.metastore.hive.statements.recorded import make_sql_tables
from tests.servers.hive_metastore import hive_metastore, warehouse

pytestmark = [pytest.mark.spark, pytest.mark.soak]

SEEDS, STATEMENTS = range(1, 9), 60


def test_random_statements_have_the_same_answers_as_on_hive(
    tmp_path: Path, served: HiveNode, spark: SparkProcess
) -> None:
    differing = []
    with hive_metastore(tmp_path) as port:
        make_sql_tables(port)
        with SparkProcess(f"thrift://127.0.0.1:{port}", warehouse(tmp_path)) as on_hive:
            for seed in SEEDS:
                refused = 0
                for number, statement in enumerate(RandomStatements(seed).statements(STATEMENTS)):
                    expected, answer = asked(on_hive, statement), asked(spark, statement)
                    refused += "error" in answer
                    if answer != expected:
                        differing.append((seed, number, statement, expected, answer))
                assert refused < STATEMENTS // 2, "most statements were refused"
    spark.sql("USE nyc")
    assert not differing, "\n".join(map(str, differing))


def asked(spark: SparkProcess, statement: str) -> Answer:
    """The answer, or the class of an error; what Java's exceptions say names folders.

    It sorts the rows: ORDER BY leaves texts in any order that a collation makes equal.
    """
    try:
        answer = spark.answer(statement)
    except SparkError as error:
        return {"error": str(error).partition("\n: ")[2].partition(":")[0]}
    if "error" in answer:
        return {"error": answer["error"]}
    if statement.startswith("SELECT"):
        return {**answer, "rows": sorted(answer["rows"], key=str)}
    return answer
