"""An unmodified Spark 4.3 on this metastore: features that Hive lacks or answers differently.

Features that Hive also has are tested in `test_spark_statements`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    CreateView,
    TableDefinition,
    ViewDefinition,
)
from strandline.model.descriptors import TableKind
from strandline.model.types import BIGINT, DATE, INT
from tests.metastore.hive.hive_node import HiveNode
from tests.metastore.hive.spark_process import SparkError, SparkProcess

pytestmark = pytest.mark.spark

DAY = "DATE '2026-11-20'"


def test_analyzing_a_table_creates_no_version(spark: SparkProcess, served: HiveNode) -> None:
    spark.sql("CREATE TABLE airlines USING parquet AS SELECT 'UA' AS Carrier")
    version = served.node.metastore.catalogs.present().version
    spark.sql("ANALYZE TABLE airlines COMPUTE STATISTICS FOR COLUMNS Carrier")
    assert served.node.metastore.catalogs.present().version == version
    details = dict(row[:2] for row in spark.sql("DESCRIBE EXTENDED airlines"))
    assert details["Statistics"].endswith("1 rows")
    spark.sql("DROP TABLE airlines")


@pytest.mark.slow
def test_spark_and_the_catalog_share_the_defaults_of_columns(
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


@pytest.mark.slow
def test_spark_sets_a_default_that_it_casts_to_the_type_of_the_column(spark: SparkProcess) -> None:
    spark.sql("CREATE TABLE deliveries (item INT, day DATE) USING parquet")
    spark.sql("ALTER TABLE deliveries ALTER COLUMN day SET DEFAULT '2026-11-20'")
    spark.sql("INSERT INTO deliveries (item) VALUES (1)")
    assert spark.sql("SELECT item, string(day) FROM deliveries") == [[1, "2026-11-20"]]
    spark.sql("CREATE TABLE returns LIKE deliveries")
    spark.sql("INSERT INTO returns (item) VALUES (2)")
    assert spark.sql("SELECT item, string(day) FROM returns") == [[2, "2026-11-20"]]
    spark.sql("DROP TABLE deliveries")
    spark.sql("DROP TABLE returns")


@pytest.mark.slow
def test_spark_changes_the_collation_of_a_column(spark: SparkProcess) -> None:
    spark.sql("CREATE TABLE hosts (name STRING) USING parquet")
    spark.sql("INSERT INTO hosts VALUES ('Ann')")
    spark.sql("ALTER TABLE hosts ALTER COLUMN name TYPE STRING COLLATE UTF8_LCASE")
    assert spark.sql("SELECT name FROM hosts WHERE name = 'aNN'") == [["Ann"]]
    spark.sql("DROP TABLE hosts")


@pytest.mark.slow
def test_filters_that_spark_sends_as_like_find_every_row(spark: SparkProcess) -> None:
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


def test_undropping_a_schema_restores_the_tables_and_views_that_spark_dropped(
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
    session.undo(back)  # drops the schema again
    assert spark.column("SHOW DATABASES LIKE 'cargo'") == []
    session.undo(before + 1, through=back + 1)
    assert spark.sql("SELECT * FROM cargo.jets") == [[1]]
    spark.sql("DROP DATABASE cargo CASCADE")


def test_replacing_a_view_is_a_drop_and_a_create_that_can_be_undone_together(
    spark: SparkProcess, served: HiveNode
) -> None:
    spark.sql("CREATE VIEW answers AS SELECT 41 AS a")
    before = served.node.catalogs.present().version
    spark.sql("CREATE OR REPLACE VIEW answers AS SELECT 42 AS a")
    verbs = [version.actions[0][0] for version in served.node.catalogs.history(before + 1)]
    assert verbs == ["drop_view", "create_view"]
    served.node.session(user="ann").undo(before + 1, through=before + 2)
    assert spark.column("SELECT a FROM answers") == [41]
    spark.sql("ALTER VIEW answers AS SELECT 43 AS a")
    assert served.node.catalogs.present().version == before + 4
    spark.sql("DROP VIEW answers")


def test_drop_database_cascade_is_refused_while_the_schema_has_transactional_tables(
    spark: SparkProcess, served: HiveNode
) -> None:
    spark.sql("CREATE DATABASE airport")
    for name in ("flights", "trips"):
        served.create_transactional("airport", name, id="bigint")
    assert spark.column("SHOW TABLES IN airport", 1) == ["flights", "trips"]
    assert spark.column("DESCRIBE airport.flights") == ["id"]
    with pytest.raises(SparkError, match=r"DROP TABLE airport\.flights"):
        spark.sql("DROP DATABASE airport CASCADE")
    assert spark.column("SHOW TABLES IN airport", 1) == ["flights", "trips"]
    spark.sql("DROP TABLE airport.flights")
    spark.sql("DROP TABLE IF EXISTS airport.trips")
    assert spark.column("SHOW TABLES IN airport", 1) == []
    spark.sql("DROP DATABASE airport")


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


def test_spark_reads_and_writes_plain_tables_that_a_session_created(
    spark: SparkProcess, served: HiveNode
) -> None:
    session = served.node.session(user="ann")
    columns = (ColumnDefinition("Id", BIGINT), ColumnDefinition("Day", DATE, default=DAY))
    whole = TableDefinition(name="whole", columns=columns)
    by_day = replace(whole, name="by_day", provider="json", partition_columns=("Day",))
    in_orc = replace(whole, name="in_orc", provider="ORC")
    tables = (whole, by_day, in_orc)
    session.execute([CreateTable(schema="nyc", definition=table) for table in tables])
    made = served.node.metastore.catalogs.present().version
    for table in tables:
        spark.sql(f"INSERT INTO {table.name} (Id) VALUES (1)")
    spark.sql("INSERT INTO by_day VALUES (2, DATE '2026-11-21')")
    spark.sql("ANALYZE TABLE whole COMPUTE STATISTICS")
    assert served.node.metastore.catalogs.present().version == made
    for table in tables:
        assert spark.sql(f"SELECT * FROM {table.name} WHERE Day = {DAY}") == [[1, "2026-11-20"]]
    assert spark.column(f"SELECT Id FROM `nyc@{made}`.whole WHERE Day = {DAY}") == [1]
    assert spark.column("SHOW PARTITIONS by_day") == ["Day=2026-11-20", "Day=2026-11-21"]
    spark.sql("ALTER TABLE by_day DROP PARTITION (Day = DATE '2026-11-21')")
    assert spark.column("SELECT Id FROM by_day") == [1]
    spark.sql("ALTER TABLE whole SET TBLPROPERTIES ('k' = 'v')")
    spark.sql("ALTER TABLE whole ALTER COLUMN Day DROP DEFAULT")
    spark.sql("ALTER TABLE whole RENAME TO renamed")
    assert spark.column("SELECT Id FROM renamed WHERE Day IS NOT NULL") == [1]
    renamed = session.table("nyc.renamed").descriptor
    assert (renamed.provider, renamed.kind) == ("parquet", TableKind.MANAGED)
    assert [(c.name, c.default) for c in renamed.columns] == [("Id", None), ("Day", None)]
    for name in ("renamed", "by_day", "in_orc"):
        spark.sql(f"DROP TABLE {name}")


def test_a_view_that_a_session_created_reads_the_tables_of_its_own_schema(
    spark: SparkProcess, served: HiveNode
) -> None:
    session = served.node.session(user="ann")
    text = "SELECT id AS Key FROM numbers"
    key = ColumnDefinition("Key", BIGINT)
    view = ViewDefinition(name="keys", columns=(key,), original_text=text, expanded_text=text)
    made = session.execute(
        [CreateSchema(name="other"), CreateView(schema="other", definition=view)]
    )
    spark.sql("CREATE TABLE other.numbers USING parquet AS SELECT 7L AS id")
    assert spark.sql("DESCRIBE other.keys") == [["Key", "bigint", None]]
    assert spark.sql("SELECT Key FROM other.keys") == [[7]]
    with pytest.raises(SparkError, match=f"`other@{made.version}`"):  # there was no table yet
        spark.sql(f"SELECT Key FROM `other@{made.version}`.keys")
    spark.sql("ALTER VIEW other.keys SET TBLPROPERTIES ('k' = 'v')")
    assert spark.sql("SELECT Key FROM other.keys") == [[7]]
    spark.sql("DROP DATABASE other CASCADE")
