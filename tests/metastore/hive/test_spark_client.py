"""An unmodified Spark 4.3 on this metastore: what it creates, writes, alters, lists and drops."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.catalog.commands import AddColumns, AlterColumn, ColumnDefinition
from strandline.model.types import INT
from tests.metastore.hive.hive_node import HiveNode
from tests.metastore.hive.spark_process import SparkError, SparkProcess

pytestmark = pytest.mark.spark


def test_a_parquet_table_is_created_written_altered_renamed_and_dropped(
    spark: SparkProcess, served: HiveNode
) -> None:
    spark.sql("CREATE TABLE airlines (Carrier STRING COMMENT 'code', name STRING) USING parquet")
    spark.sql("INSERT INTO airlines VALUES ('UA', 'United'), ('AA', 'American')")
    spark.sql("ALTER TABLE airlines ADD COLUMNS (x INT)")
    assert spark.sql("SELECT * FROM airlines ORDER BY 1") == [
        ["AA", "American", None],
        ["UA", "United", None],
    ]
    assert spark.sql("DESCRIBE airlines")[0] == ["Carrier", "string", "code"]
    spark.sql("ALTER TABLE airlines SET TBLPROPERTIES ('k' = 'v')")
    spark.sql("COMMENT ON TABLE airlines IS 'who flies'")
    assert ["k", "v"] in spark.sql("SHOW TBLPROPERTIES airlines")
    version = served.node.metastore.catalogs.present().version
    spark.sql("ANALYZE TABLE airlines COMPUTE STATISTICS FOR COLUMNS Carrier")
    assert served.node.metastore.catalogs.present().version == version
    details = dict(row[:2] for row in spark.sql("DESCRIBE EXTENDED airlines"))
    assert details["Statistics"].endswith("2 rows")
    assert details["Comment"] == "who flies"
    spark.sql("ALTER TABLE airlines RENAME TO carriers")
    assert spark.column("SELECT count(*) FROM carriers") == [2]
    spark.sql("TRUNCATE TABLE carriers")
    assert spark.column("SELECT count(*) FROM carriers") == [0]
    spark.sql("DROP TABLE carriers")
    assert spark.column("SHOW TABLES LIKE 'carriers'") == []
    spark.sql("CREATE TABLE carriers (a INT) USING parquet")
    assert spark.column("SELECT count(*) FROM carriers") == [0]


def test_defaults_are_one_and_the_same_to_spark_and_to_the_catalog(
    spark: SparkProcess, served: HiveNode
) -> None:
    session = served.node.session(user="ann")

    def defaults() -> list[str | None]:
        return [c.default for c in session.table("nyc.stock").descriptor.columns]

    spark.sql("CREATE TABLE stock (a INT, b INT DEFAULT 1 + 1) USING parquet")
    assert defaults() == [None, "1 + 1"]
    spark.sql("INSERT INTO stock (a) VALUES (1)")
    spark.sql("ALTER TABLE stock ALTER COLUMN b SET DEFAULT 2 + 3")
    assert defaults() == [None, "2 + 3"]
    session.execute(AlterColumn(schema="nyc", table="stock", column="a", default="10"))
    added = (ColumnDefinition("c", INT, nullable=False, default="7"),)
    session.execute(AddColumns(schema="nyc", table="stock", columns=added))
    spark.sql("REFRESH TABLE stock")
    spark.sql("INSERT INTO stock (c) VALUES (0)")
    assert spark.sql("SELECT * FROM stock ORDER BY c") == [[10, 5, 0], [1, 2, 7]]
    spark.sql("ALTER TABLE stock ALTER COLUMN b DROP DEFAULT")
    assert defaults() == ["10", None, "7"]
    spark.sql("DROP TABLE stock")


def test_a_partitioned_table_is_pruned_listed_and_changed(spark: SparkProcess) -> None:
    spark.sql(
        "CREATE TABLE weather (temp DOUBLE, d DECIMAL(10,2), month INT) USING parquet "
        "PARTITIONED BY (month)"
    )
    spark.sql("INSERT INTO weather VALUES (1.0, 2.5, 1), (2.0, 3.5, 2), (3.0, 4.5, 3)")
    assert spark.column("SHOW PARTITIONS weather") == ["month=1", "month=2", "month=3"]
    assert spark.column("SHOW PARTITIONS weather PARTITION (month = 2)") == ["month=2"]
    assert spark.column("SELECT temp FROM weather WHERE month = 1") == [1.0]
    assert spark.column("SELECT temp FROM weather WHERE month IN (2, 3) ORDER BY 1") == [2.0, 3.0]
    spark.sql("ALTER TABLE weather PARTITION (month = 2) RENAME TO PARTITION (month = 9)")
    assert spark.column("SELECT temp FROM weather WHERE month > 3") == [2.0]
    spark.sql("ALTER TABLE weather DROP PARTITION (month = 3)")
    spark.sql("ALTER TABLE weather ADD PARTITION (month = 3)")
    assert spark.column("SELECT count(*) FROM weather") == [2]
    spark.sql("ANALYZE TABLE weather PARTITION (month = 1) COMPUTE STATISTICS")
    spark.sql("MSCK REPAIR TABLE weather")
    assert spark.column("SHOW PARTITIONS weather") == ["month=1", "month=3", "month=9"]


def test_a_hive_table_is_written_statically_and_dynamically(spark: SparkProcess) -> None:
    spark.sql(
        "CREATE TABLE parted (a INT, s STRING) PARTITIONED BY (p STRING, q INT) STORED AS PARQUET"
    )
    spark.sql("INSERT INTO parted PARTITION (p = 'x', q = 1) VALUES (1, 'a')")
    spark.sql("SET hive.exec.dynamic.partition.mode = nonstrict")
    spark.sql("INSERT INTO parted PARTITION (p, q) SELECT 2, 'b', 'y y', 2")
    spark.sql("INSERT OVERWRITE parted PARTITION (p = 'x', q = 1) VALUES (3, 'c')")
    assert spark.sql("SELECT * FROM parted WHERE p = 'y y'") == [[2, "b", "y y", 2]]
    assert spark.column("SELECT a FROM parted ORDER BY 1") == [2, 3]


def test_what_spark_asks_with_like_finds_every_row(spark: SparkProcess) -> None:
    spark.sql("CREATE TABLE likes (a INT, q STRING) USING parquet PARTITIONED BY (q)")
    spark.sql("INSERT INTO likes VALUES (1, 'price $5'), (2, 'a^b'), (3, '+49 30'), (4, 'f(x)')")
    for condition, expected in [
        ("q LIKE 'price $%'", 1),
        ("startswith(q, 'a^')", 2),
        ("q LIKE '+49%'", 3),
        ("contains(q, '(')", 4),
        ("endswith(q, '(x)')", 4),
        ("q LIKE 'f_x%'", 4),
    ]:
        assert spark.column(f"SELECT a FROM likes WHERE {condition}") == [expected], condition
    spark.sql("DROP TABLE likes")


def test_tables_from_queries_views_and_joins(spark: SparkProcess) -> None:
    spark.sql("CREATE TABLE planes AS SELECT 1 AS Id, 'jet' AS kind")
    spark.sql("CREATE VIEW jets AS SELECT Id FROM planes WHERE kind = 'jet'")
    spark.sql("CREATE OR REPLACE VIEW jets AS SELECT Id, kind FROM planes")
    assert spark.column("SHOW VIEWS", 1) == ["jets"]
    assert spark.sql("SELECT j.kind FROM jets j JOIN planes p ON j.Id = p.Id") == [["jet"]]
    spark.sql("DROP VIEW jets")
    assert spark.column("SHOW VIEWS") == []


def test_a_dropped_schema_comes_back_with_what_spark_dropped_from_it(
    spark: SparkProcess, served: HiveNode
) -> None:
    spark.sql("CREATE DATABASE cargo")
    spark.sql("CREATE TABLE cargo.planes AS SELECT 1 AS id, 'jet' AS kind")
    spark.sql("CREATE TABLE cargo.crates (n INT) USING parquet")
    spark.sql("CREATE VIEW cargo.jets AS SELECT id FROM cargo.planes WHERE kind = 'jet'")
    before = served.node.catalogs.present().version
    spark.sql("DROP DATABASE cargo CASCADE")
    dropped = served.node.catalogs.present().version
    assert dropped == before + 4  # one request for each table and view, then one for the schema
    served.node.session(user="ann").undrop("cargo", kind="schema")
    assert spark.column("SHOW TABLES IN cargo", 1) == ["crates", "jets", "planes"]
    assert spark.sql("SELECT * FROM cargo.jets") == [[1]]
    back = served.node.catalogs.present().version
    session = served.node.session(user="ann")
    session.undo(back)  # which drops it again
    assert spark.column("SHOW DATABASES LIKE 'cargo'") == []
    session.undo(before + 1, through=back + 1)
    assert spark.sql("SELECT * FROM cargo.jets") == [[1]]
    spark.sql("DROP DATABASE cargo CASCADE")


def test_a_view_that_spark_replaces_is_dropped_and_created_and_undone_as_one(
    spark: SparkProcess, served: HiveNode
) -> None:
    spark.sql("CREATE VIEW answers AS SELECT 41 AS a")
    before = served.node.catalogs.present().version
    spark.sql("CREATE OR REPLACE VIEW answers AS SELECT 42 AS a")
    verbs = [one.actions[0][0] for one in served.node.catalogs.history(before + 1)]
    assert verbs == ["drop_view", "create_view"]
    served.node.session(user="ann").undo(before + 1, through=before + 2)
    assert spark.column("SELECT a FROM answers") == [41]
    spark.sql("ALTER VIEW answers AS SELECT 43 AS a")
    assert served.node.catalogs.present().version == before + 4
    spark.sql("DROP VIEW answers")


def test_the_location_of_an_external_table_is_set(spark: SparkProcess, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    spark.sql(f"CREATE TABLE outside (a INT) USING parquet LOCATION '{first}'")
    spark.sql("INSERT INTO outside VALUES (1)")
    second.mkdir()
    spark.sql(f"ALTER TABLE outside SET LOCATION '{second}'")
    assert spark.column("SELECT count(*) FROM outside") == [0]
    spark.sql("DROP TABLE outside")
    assert any(first.iterdir())


def test_a_schema_with_a_transactional_table_is_dropped_after_the_table(
    spark: SparkProcess, served: HiveNode
) -> None:
    for name in ("flights", "trips"):
        served.create_transactional("nyc", name, id="bigint")
    assert {"flights", "trips"} <= set(spark.column("SHOW TABLES", 1))
    assert spark.column("DESCRIBE flights") == ["id"]
    with pytest.raises(SparkError, match=r"DROP TABLE nyc\.flights"):
        spark.sql("DROP DATABASE nyc CASCADE")
    assert {"flights", "trips"} <= set(spark.column("SHOW TABLES", 1))
    spark.sql("DROP TABLE flights")
    spark.sql("DROP TABLE IF EXISTS trips")
    assert not {"flights", "trips"} & set(spark.column("SHOW TABLES", 1))


def test_what_is_not_there_is_said_so(spark: SparkProcess) -> None:
    with pytest.raises(SparkError, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM nope")
    with pytest.raises(SparkError, match="UNRESOLVED_ROUTINE"):
        spark.sql("SELECT nosuch(1)")


def test_a_permanent_function_is_kept_used_and_dropped(spark: SparkProcess) -> None:
    spark.sql("CREATE DATABASE fns")
    spark.sql("CREATE FUNCTION fns.up AS 'org.apache.hadoop.hive.ql.udf.generic.GenericUDFUpper'")
    assert spark.sql("SELECT fns.up('a')") == [["A"]]
    assert "spark_catalog.fns.up" in spark.column("SHOW USER FUNCTIONS IN fns")
    with pytest.raises(SparkError, match="ROUTINE_ALREADY_EXISTS"):
        spark.sql("CREATE FUNCTION fns.up AS 'a.b.C'")
    spark.sql("DROP FUNCTION fns.up")
    with pytest.raises(SparkError, match="UNRESOLVED_ROUTINE"):
        spark.sql("SELECT fns.up('a')")
    spark.sql("DROP DATABASE fns")


def test_a_schema_is_altered_and_dropped_with_its_tables(spark: SparkProcess) -> None:
    spark.sql("CREATE DATABASE gone")
    spark.sql("ALTER DATABASE gone SET DBPROPERTIES ('a' = 'b')")
    properties = dict(row[:2] for row in spark.sql("DESCRIBE DATABASE EXTENDED gone"))
    assert properties["Properties"] == "((a,b))"
    spark.sql("CREATE TABLE gone.t (a INT) USING parquet")
    with pytest.raises(SparkError):
        spark.sql("DROP DATABASE gone")
    spark.sql("DROP DATABASE gone CASCADE")
    assert "gone" not in spark.column("SHOW DATABASES")


def test_a_small_text_table_is_broadcast_and_its_files_are_counted(
    spark: SparkProcess, served: HiveNode
) -> None:
    spark.sql("CREATE TABLE small (k INT, v STRING) STORED AS TEXTFILE")
    spark.sql("INSERT INTO small VALUES (1, 'a')")
    with served.stub() as stub:
        parameters = stub.get_table("nyc", "small").parameters
    assert parameters["totalSize"] == "4"
    assert int(parameters["numFiles"]) >= 1
    (plan,) = spark.column("EXPLAIN SELECT * FROM small a JOIN small b ON a.k = b.k")
    assert "BroadcastHashJoin" in plan
    spark.sql("DROP TABLE small")
