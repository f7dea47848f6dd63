"""Spark's declarative pipelines: they use a node as any session does, and read all tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.catalog.commands import CreateSchema
from strandline.cli.demo.node_process import NodeProcess
from strandline.metastore.session import HttpSession
from strandline.spark import Tables

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROJECT = """
name: shop
storage: file://{folder}/checkpoints
configuration:
  spark.sql.shuffle.partitions: "2"
libraries:
  - glob:
      include: transformations/**
"""
TRANSFORMATIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.active()

@dp.table(partition_cols=["shop"])
def events():
    return spark.readStream.schema("id BIGINT, shop STRING").json("{folder}/events")

@dp.materialized_view
def revenue():
    orders = spark.read.table("shop.orders").join(spark.read.table("events"), "id")
    return orders.groupBy("shop").agg({sums})
"""


def test_a_pipeline_makes_and_refreshes_tables_from_streams_and_transactional_tables(
    tmp_path: Path, spark: SparkSession
) -> None:
    node = NodeProcess(tmp_path / "lake", log=tmp_path / "log")
    node.start()
    try:
        with HttpSession(node.http_uri, user="ann") as session:
            session.execute(CreateSchema(name="shop"))
            tables = Tables(spark, session)
            tables.create("shop.orders", "id BIGINT, price INT")

            def refresh(ids: range, *, sums: str) -> list[dict[str, object]]:
                """The rows of ``revenue`` after a run with these orders and events added."""
                orders = spark.range(ids.start, ids.stop).selectExpr("id", "5 AS price")
                tables.append("shop.orders", orders)
                events = (json.dumps({"id": n, "shop": "ab"[n % 2]}) for n in ids)
                (tmp_path / "events").mkdir(exist_ok=True)
                (tmp_path / f"events/{ids.start}.json").write_text("\n".join(events))
                run_pipeline(tmp_path, node.thrift_uri, sums=sums)
                place = session.table("default.revenue").location
                return [row.asDict() for row in spark.read.parquet(place).orderBy("shop").collect()]

            total = "F.sum('price').alias('total')"
            assert refresh(range(4), sums=total) == [
                {"shop": "a", "total": 10},
                {"shop": "b", "total": 10},
            ]
            assert refresh(range(4, 7), sums=f"{total}, F.count('*').alias('orders')") == [
                {"shop": "a", "total": 20, "orders": 4},
                {"shop": "b", "total": 15, "orders": 3},
            ]
    finally:
        node.stop()


def run_pipeline(folder: Path, uri: str, *, sums: str) -> None:
    (folder / "transformations").mkdir(exist_ok=True)
    (folder / "spark-pipeline.yml").write_text(PROJECT.format(folder=folder))
    code = TRANSFORMATIONS.format(folder=folder, sums=sums)
    (folder / "transformations/shop.py").write_text(code)
    settings = {  # Spark uses none of them if there are more than four
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # a free port for the server that it starts
    }
    command = Path(sys.executable).with_name("spark-pipelines")
    ended = subprocess.run(
        [command, *options, "run"],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
