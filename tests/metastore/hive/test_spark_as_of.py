"""An unmodified Spark on past schemas: it reads the past, and cannot change the present."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.metastore.hive.hive_node import HiveNode
from tests.metastore.hive.spark_process import SparkError, SparkProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@dataclass(frozen=True)
class Past:
    """The schema ``past``, and its name as of before its last changes."""

    spark: SparkProcess
    schema: str
    folder: Path

    def state(self) -> object:
        """All rows of the present tables, and all their files with their contents."""
        tables = self.spark.column("SHOW TABLES IN past", 1)
        rows = {t: sorted(map(str, self.spark.sql(f"SELECT * FROM past.{t}"))) for t in tables}
        files = {f: f.read_bytes() if f.is_file() else b"" for f in self.folder.rglob("*")}
        return rows, files


@pytest.fixture(scope="module")
def past(spark: SparkProcess, served: HiveNode) -> Iterator[Past]:
    for statement in (
        "CREATE DATABASE past",
        "CREATE TABLE past.plain (Id INT, name STRING) USING parquet",
        "INSERT INTO past.plain VALUES (1, 'a'), (2, 'b')",
        "CREATE TABLE past.parted (A INT, P INT) USING parquet PARTITIONED BY (P)",
        "INSERT INTO past.parted VALUES (1, 1), (2, 2)",
        "CREATE TABLE past.hive_plain (a INT, c CHAR(3)) STORED AS PARQUET",
        "INSERT INTO past.hive_plain VALUES (1, 'x')",
        "CREATE TABLE past.hive_parted (a INT) PARTITIONED BY (p STRING) STORED AS ORC",
        "INSERT INTO past.hive_parted PARTITION (p = 'x') VALUES (1)",
    ):
        spark.sql(statement)
    version = served.node.metastore.catalogs.present().version
    for statement in (
        "ALTER TABLE past.plain ADD COLUMNS (extra INT)",
        "ALTER TABLE past.parted ADD COLUMNS (extra INT)",
        "INSERT INTO past.parted VALUES (3, 9, 3)",
        "CREATE TABLE past.later (x INT) USING parquet",
    ):
        spark.sql(statement)
    yield Past(spark, f"`past@{version}`", served.folder / "warehouse" / "past.db")
    spark.sql("DROP DATABASE past CASCADE")


IS_A_VIEW = "EXPECT_TABLE_NOT_VIEW"
READ_ONLY = "can.be.read.and.not.changed"

REFUSED = {
    "INSERT INTO {}.plain VALUES (9, 'z')": IS_A_VIEW,
    "INSERT OVERWRITE {}.plain VALUES (9, 'z')": IS_A_VIEW,
    "INSERT INTO {}.parted VALUES (9, 1)": IS_A_VIEW,
    "INSERT OVERWRITE {}.parted VALUES (9, 1)": IS_A_VIEW,
    "INSERT OVERWRITE {}.parted PARTITION (P = 1) VALUES (9)": IS_A_VIEW,
    "INSERT INTO {}.hive_plain VALUES (9, 'z')": IS_A_VIEW,
    "INSERT OVERWRITE {}.hive_plain VALUES (9, 'z')": IS_A_VIEW,
    "INSERT INTO {}.hive_parted PARTITION (p = 'x') VALUES (9)": IS_A_VIEW,
    "INSERT OVERWRITE {}.hive_parted PARTITION (p = 'x') VALUES (9)": IS_A_VIEW,
    "TRUNCATE TABLE {}.plain": IS_A_VIEW,
    "ALTER TABLE {}.parted DROP PARTITION (P = 1)": IS_A_VIEW,
    "MSCK REPAIR TABLE {}.parted": IS_A_VIEW,
    "ALTER TABLE {}.plain ADD COLUMNS (more INT)": IS_A_VIEW,
    "ALTER VIEW {}.plain AS SELECT 1": READ_ONLY,
    "CREATE OR REPLACE VIEW {}.plain AS SELECT 1 AS x": READ_ONLY,
    "DROP TABLE {}.plain": READ_ONLY,
    "DROP DATABASE {} CASCADE": READ_ONLY,
    "CREATE TABLE {}.new (a INT) USING parquet": READ_ONLY,
    "CREATE TABLE {}.new USING parquet AS SELECT 1 AS a": READ_ONLY,
    # There is a table of that name now, in an empty folder.
    "CREATE TABLE {}.later USING parquet AS SELECT 1 AS x": READ_ONLY,
}


def test_every_statement_that_would_change_a_past_schema_is_refused_without_effect(
    past: Past,
) -> None:
    before = past.state()
    for statement, reason in REFUSED.items():
        with pytest.raises(SparkError, match=reason):
            past.spark.sql(statement.replace("{}", past.schema))
    assert past.state() == before


def test_saving_into_a_past_table_is_refused_and_changes_nothing(past: Past) -> None:
    before = past.state()
    tables = ["plain", "parted", "hive_plain", "later"]
    for table, mode in itertools.product(tables, ["append", "overwrite"]):
        with pytest.raises(SparkError, match=f"into a view is not allowed|{READ_ONLY}"):
            past.spark.save("SELECT 9 AS x", f"{past.schema}.{table}", mode=mode)
    assert past.state() == before


def test_columns_and_partitions_are_those_of_the_past_version(past: Past) -> None:
    spark, past_schema = past.spark, past.schema
    assert [row[:2] for row in spark.sql(f"DESCRIBE TABLE {past_schema}.parted")] == [
        ["A", "int"],
        ["P", "int"],
    ]
    assert spark.column(f"SHOW COLUMNS IN {past_schema}.plain") == ["Id", "name"]
    assert spark.sql(f"SELECT * FROM {past_schema}.plain ORDER BY Id") == [[1, "a"], [2, "b"]]
    assert spark.sql(f"SELECT * FROM {past_schema}.hive_plain") == [[1, "x  "]]
    assert spark.sql(f"SELECT * FROM {past_schema}.hive_parted WHERE p = 'x'") == [[1, "x"]]
    assert spark.column(f"SELECT P FROM {past_schema}.parted ORDER BY P") == [1, 2]
    tables = spark.column(f"SHOW TABLES IN {past_schema}", 1)
    assert tables == ["hive_parted", "hive_plain", "parted", "plain"]


def test_filters_columns_and_partitions_are_pushed_down_as_in_the_present_table(past: Past) -> None:
    plan = past.spark.column(f"EXPLAIN FORMATTED SELECT A FROM {past.schema}.parted WHERE P = 2")[0]
    assert "parted/P=2]" in plan
    assert "PartitionFilters: [isnotnull(P" in plan
    plan = past.spark.column(f"EXPLAIN FORMATTED SELECT Id FROM {past.schema}.plain WHERE Id > 1")[
        0
    ]
    assert "PushedFilters: [IsNotNull(Id), GreaterThan(Id,1)]" in plan
    assert "ReadSchema: struct<Id:int>" in plan


def test_a_past_table_can_be_joined_with_the_present_used_in_views_and_cached(past: Past) -> None:
    spark, past_schema = past.spark, past.schema
    joined = (
        f"SELECT o.A, n.extra FROM {past_schema}.parted o JOIN past.parted n USING (A) ORDER BY 1"
    )
    assert spark.sql(joined) == [[1, None], [2, None]]
    spark.sql(f"CREATE VIEW old_ones AS SELECT A FROM {past_schema}.parted WHERE P = 1")
    assert spark.column("SELECT A FROM old_ones") == [1]
    spark.sql(f"CREATE TEMPORARY VIEW old_plain AS SELECT * FROM {past_schema}.plain")
    assert spark.column("SELECT count(*) FROM old_plain") == [2]
    spark.sql(f"CACHE TABLE {past_schema}.plain")
    assert spark.column(f"SELECT count(*) FROM {past_schema}.plain") == [2]
    spark.sql(f"UNCACHE TABLE {past_schema}.plain")
    spark.sql(f"USE {past_schema}")
    assert spark.column("SELECT name FROM plain WHERE Id = 2") == ["b"]
    spark.sql("USE nyc")
    spark.sql("DROP VIEW old_ones")
    spark.sql("DROP VIEW old_plain")


def test_types_that_hive_cannot_express_and_that_are_not_null_can_be_read(
    spark: SparkProcess, served: HiveNode
) -> None:
    spark.sql(
        "CREATE TABLE odd (c CHAR(3), t TIMESTAMP_NTZ, s STRUCT<X: INT NOT NULL, y: ARRAY<INT>>, "
        "m MAP<STRING, STRUCT<z: INT NOT NULL>>, `a``b c` INT NOT NULL, d INT DEFAULT 7) "
        "USING parquet"
    )
    spark.sql(
        "INSERT INTO odd VALUES ('a', timestamp_ntz'2026-01-01', named_struct('X', 1, 'y', "
        "array(2)), map('k', named_struct('z', 3)), 4, DEFAULT)"
    )
    past_table = f"`nyc@{served.node.metastore.catalogs.present().version}`.odd"
    assert spark.sql("SELECT * FROM odd") == spark.sql(f"SELECT * FROM {past_table}")
    assert spark.column("DESCRIBE odd", 1)[:5] == spark.column(f"DESCRIBE {past_table}", 1)[:5]


def test_a_past_table_can_be_read_after_it_was_overwritten_renamed_and_dropped(
    spark: SparkProcess, served: HiveNode
) -> None:
    spark.sql("CREATE TABLE moved (a INT) USING parquet")
    spark.sql("INSERT INTO moved VALUES (1)")
    past_table = f"`nyc@{served.node.metastore.catalogs.present().version}`.moved"
    rows = f"SELECT a FROM {past_table}"
    assert spark.column(rows) == [1]
    spark.sql("INSERT OVERWRITE moved VALUES (2)")
    # Spark caches the list of files by table name, and does not know that both names share them.
    spark.sql(f"REFRESH TABLE {past_table}")
    assert spark.column(rows) == [2]
    spark.sql("ALTER TABLE moved RENAME TO elsewhere")
    assert spark.column(rows) == [2]
    spark.sql("DROP TABLE elsewhere")
    assert spark.column(rows) == [2]
