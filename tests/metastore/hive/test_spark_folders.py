"""An unmodified Spark, and tables whose folder could not be created or moved."""

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
def test_writing_to_a_plain_table_without_a_folder_creates_it_or_names_the_path(
    spark: SparkProcess, served: HiveNode, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Spark creates the folders of its own tables; for Hive tables it reports the missing path."""
    name = f"unmade_{kind.split()[0].lower()}"
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refuse)
        patch.setattr(os, "access", lambda *_: True)  # as if access had just been revoked
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


def test_tables_that_spark_creates_in_a_schema_elsewhere_are_external(
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


def test_a_new_table_never_shows_files_of_a_dropped_one_that_could_not_be_moved(
    spark: SparkProcess, served: HiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql("CREATE TABLE kept (a INT) USING parquet")
    spark.sql("INSERT INTO kept VALUES (1)")
    old = folder(served, "kept")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        spark.sql("DROP TABLE kept")
    assert any(old.iterdir())
    # Spark computes the location itself, and refuses one that contains files.
    with pytest.raises(SparkError, match="LOCATION_ALREADY_EXISTS"):
        spark.sql("CREATE TABLE kept (a INT) USING parquet")
    with pytest.raises(SparkError, match="LOCATION_ALREADY_EXISTS"):
        spark.sql("CREATE TABLE kept USING parquet AS SELECT 7 AS a")
    # For other clients the node chooses another location.
    definition = TableDefinition(
        name="kept", columns=(ColumnDefinition("a", INT),), provider="parquet"
    )
    served.node.session(user="ann").execute(CreateTable(schema="nyc", definition=definition))
    assert list(folder(served, "kept").iterdir()) == []
    spark.sql("DROP TABLE kept")
    # Once the location is cleared, Spark gets it again, with the rows it wrote before its call.
    for file in old.iterdir():
        file.unlink()
    old.rmdir()
    spark.sql("CREATE TABLE kept USING parquet AS SELECT 7 AS a")
    assert spark.column("SELECT a FROM kept") == [7]
    assert folder(served, "kept") == old
    spark.sql("DROP TABLE kept")
