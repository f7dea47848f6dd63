"""An unmodified Spark 3.5 works with plain tables, and reads transactional ones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import pytest

from strandline.catalog.commands import DropTable
from tests.metastore.hive import dml
from tests.metastore.hive.hive_node import HiveNode, hive_node
from tests.metastore.hive.spark_process import SparkError, SparkProcess
from tests.project.checkout import ROOT
from tests.times import exact_text

pytestmark = [pytest.mark.spark, pytest.mark.soak]

OLD_SPARK = ROOT / "build" / "spark-3.5"
"""Made by ``scripts/setup spark-3.5``."""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HiveNode, SparkProcess]]:
    assert OLD_SPARK.is_dir(), "run scripts/setup spark-3.5"
    with (
        hive_node(tmp_path_factory.mktemp("old") / "store") as node,
        SparkProcess(node.uri, node.folder / "warehouse", pyspark=OLD_SPARK) as spark,
    ):
        ((version,),) = spark.sql("SELECT version()")
        assert version.startswith("3.5.")
        spark.sql("CREATE DATABASE d1")
        yield node, spark


PLAIN: dict[str, list[list[Any]] | None] = {
    "CREATE TABLE d1.p (id BIGINT, k STRING) USING parquet PARTITIONED BY (k)": [],
    "INSERT INTO d1.p VALUES (1, 'a'), (2, 'b')": [],
    "INSERT OVERWRITE d1.p PARTITION (k = 'b') SELECT 3": [],
    "SELECT id FROM d1.p WHERE k = 'b'": [[3]],
    "SHOW PARTITIONS d1.p": [["k=a"], ["k=b"]],
    "ALTER TABLE d1.p ADD COLUMNS (more INT)": [],
    "ANALYZE TABLE d1.p COMPUTE STATISTICS FOR COLUMNS id": [],
    "ALTER TABLE d1.p DROP PARTITION (k = 'a')": [],
    "SELECT * FROM d1.p": [[3, None, "b"]],
    "CREATE VIEW d1.v AS SELECT id FROM d1.p": [],
    "CREATE OR REPLACE VIEW d1.v AS SELECT id + 1 AS id FROM d1.p": [],
    "SELECT * FROM d1.v": [[4]],
    "CREATE TABLE d1.h (id INT) STORED AS ORC": [],
    "INSERT INTO d1.h VALUES (1)": [],
    "SELECT * FROM d1.h": [[1]],
    "ALTER TABLE d1.h RENAME TO d1.g": [],
    "SHOW TABLES IN d1": [["d1", "g", False], ["d1", "p", False], ["d1", "v", False]],
    "DROP TABLE d1.g": [],
    "DROP VIEW d1.v": [],
}


def test_plain_tables_work(old: tuple[HiveNode, SparkProcess]) -> None:
    _, spark = old
    for statement, rows in PLAIN.items():
        assert spark.sql(statement) == rows, statement


def test_a_partitioned_transactional_table_is_read(old: tuple[HiveNode, SparkProcess]) -> None:
    node, spark = old
    node.create_transactional("d1", "days", partitioned_by=["d"], d="date", id="bigint")
    session = node.node.session(user="ann")
    for number in range(40):
        day = None if number == 7 else date(2024, 1, 1) + timedelta(days=number)
        dml.append(session, "d1.days", {"d": day, "id": number})
    assert spark.sql("SELECT sum(id), count(d), min(d) FROM d1.days") == [[780, 39, "2024-01-01"]]
    assert spark.sql("SELECT id FROM d1.days WHERE d = DATE'2024-02-01'") == [[31]]
    assert spark.sql("SELECT id FROM d1.days WHERE d IS NULL") == [[7]]
    session.execute(DropTable(schema="d1", table="days"))


def test_a_column_may_have_the_name_that_a_view_gives_to_the_rows(
    old: tuple[HiveNode, SparkProcess],
) -> None:
    """Inside brackets, Spark 3.5 takes a qualified column for a field of a selected column."""
    node, spark = old
    session = node.node.session(user="ann")
    for number, kind in enumerate(["string", "map<string,int>", "struct<p:int>"]):
        name = f"named{number}"
        node.create_transactional("d1", name, partitioned_by=["p"], t=kind, p="int", q="int")
        for p in range(2):
            dml.append(session, f"d1.{name}", {"p": p, "q": 5}, {"p": p, "q": 6})
        file_id = dml.append(session, f"d1.{name}", {"p": 2, "q": 7}, {"p": 2, "q": 8})
        dml.delete(session, f"d1.{name}", file_id, [0])
        rows = [[0, 5], [0, 6], [1, 5], [1, 6], [2, 8]]
        assert spark.sql(f"SELECT p, q FROM d1.{name} ORDER BY p, q") == rows
        session.execute(DropTable(schema="d1", table=name))


REFUSED = {
    "INSERT INTO d1.orders VALUES (9, 'x')": "Inserting into a view is not allowed",
    "CREATE OR REPLACE VIEW d1.orders AS SELECT 1 AS id": "cannot be replaced or overwritten",
    "DROP VIEW d1.orders": "cannot be replaced or overwritten",
    "DROP TABLE d1.orders": "WRONG_COMMAND_FOR_OBJECT_TYPE",
    "DROP DATABASE d1 CASCADE": "transactional tables: d1.orders",
}


def test_a_transactional_table_is_read_and_not_changed(
    old: tuple[HiveNode, SparkProcess],
) -> None:
    node, spark = old
    node.create_transactional("d1", "orders", id="bigint", item="string")
    session = node.node.session(user="ann")
    before = exact_text(session.open([]).time)
    rows = [{"id": number, "item": f"i{number}"} for number in range(4)]
    file_id = dml.append(session, "d1.orders", *rows)
    dml.delete(session, "d1.orders", file_id, [1])
    expected = [[0, "i0"], [2, "i2"], [3, "i3"]]
    assert spark.sql("SELECT * FROM d1.orders ORDER BY id") == expected
    assert spark.sql(f"SELECT count(*) FROM `d1@{before}`.orders") == [[0]]
    for statement, text in REFUSED.items():
        with pytest.raises(SparkError, match=text):
            spark.sql(statement)
    with pytest.raises(SparkError, match="cannot be replaced or overwritten"):
        spark.save("SELECT 9L AS id, 'x' AS item", "d1.orders", mode="overwrite")
    assert spark.sql("SELECT * FROM d1.orders ORDER BY id") == expected
