"""An unmodified Spark, and tables whose folder could not be made or moved."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.model.types import INT
from tests.metastore.hive.hive_node import HiveNode
from tests.metastore.hive.spark_process import SparkError, SparkProcess

pytestmark = pytest.mark.spark


def refuse(*_: object) -> None:
    raise OSError(errno.EACCES, "Permission denied")


def folder(served: HiveNode, name: str) -> Path:
    location = served.node.session(user="ann").table(f"nyc.{name}").location
    return Path("/" + location.removeprefix("file:").lstrip("/"))


@pytest.mark.parametrize("kind", ["USING parquet", "STORED AS parquet"])
def test_whoever_writes_a_plain_table_without_a_folder_makes_it_or_is_told(
    spark: SparkProcess, served: HiveNode, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Spark makes those of its own tables; for Hive's it says which path is missing."""
    name = f"unmade_{kind.split()[0].lower()}"
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse)
        patch.setattr(os, "access", lambda *_: True)  # as if it had been taken away just then
        spark.sql(f"CREATE TABLE {name} (a INT) {kind}")
    assert not folder(served, name).exists()
    if kind == "USING parquet":
        assert spark.column(f"SELECT count(*) FROM {name}") == [0]
    else:
        with pytest.raises(SparkError, match="PATH_NOT_FOUND"):
            spark.sql(f"INSERT INTO {name} VALUES (1)")
        folder(served, name).mkdir()
    spark.sql(f"INSERT INTO {name} VALUES (1), (2)")
    assert spark.column(f"SELECT a FROM {name} ORDER BY a") == [1, 2]
    assert folder(served, name).is_dir()
    spark.sql(f"DROP TABLE {name}")


def test_what_spark_creates_in_a_schema_elsewhere_is_external(
    spark: SparkProcess, served: HiveNode, tmp_path: Path
) -> None:
    spark.sql(f"CREATE SCHEMA elsewhere LOCATION '{tmp_path}/far'")
    spark.sql("CREATE TABLE elsewhere.taken USING parquet AS SELECT 7 AS a")
    assert spark.column("SELECT a FROM elsewhere.taken") == [7]
    spark.sql("CREATE TABLE elsewhere.made (a INT) USING parquet")
    spark.sql("INSERT INTO elsewhere.made VALUES (1), (2)")
    assert spark.column("SELECT count(*) FROM elsewhere.made") == [2]
    files = sorted((tmp_path / "far").rglob("*.parquet"))
    spark.sql("ALTER TABLE elsewhere.made RENAME TO elsewhere.renamed")
    assert spark.column("SELECT count(*) FROM elsewhere.renamed") == [2]
    spark.sql("DROP SCHEMA elsewhere CASCADE")
    assert sorted((tmp_path / "far").rglob("*.parquet")) == files


def test_a_table_whose_folder_could_not_be_moved_is_never_seen_in_a_new_one(
    spark: SparkProcess, served: HiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql("CREATE TABLE kept (a INT) USING parquet")
    spark.sql("INSERT INTO kept VALUES (1)")
    old = folder(served, "kept")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        spark.sql("DROP TABLE kept")
    assert any(old.iterdir())
    # Spark knows the place itself, and refuses one with files in it.
    with pytest.raises(SparkError, match="LOCATION_ALREADY_EXISTS"):
        spark.sql("CREATE TABLE kept (a INT) USING parquet")
    with pytest.raises(SparkError, match="LOCATION_ALREADY_EXISTS"):
        spark.sql("CREATE TABLE kept USING parquet AS SELECT 7 AS a")
    # For others the node chooses another one.
    definition = TableDefinition(
        name="kept", columns=(ColumnDefinition("a", INT),), provider="parquet"
    )
    served.node.session(user="ann").execute(CreateTable(schema="nyc", definition=definition))
    assert list(folder(served, "kept").iterdir()) == []
    spark.sql("DROP TABLE kept")
    # Once somebody cleared the place, Spark has it again, with what it wrote before it asked.
    for file in old.iterdir():
        file.unlink()
    old.rmdir()
    spark.sql("CREATE TABLE kept USING parquet AS SELECT 7 AS a")
    assert spark.column("SELECT a FROM kept") == [7]
    assert folder(served, "kept") == old
    spark.sql("DROP TABLE kept")
