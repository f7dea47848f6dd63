"""A client of Spark Connect that uses plain and transactional tables.

A process has sessions of one kind only, so `test_connect` runs this module as a program. It starts
a Spark Connect server of its own.
"""

from __future__ import annotations

import sys

import pytest
from pyspark.sql import SparkSession, functions
from pyspark.sql.connect.session import SparkSession as ConnectSession

from strandline.errors import InvalidInput, UnsupportedOperation
from strandline.metastore.session import HttpSession
from strandline.spark import Tables, configure
from tests.spark.data import lose_a_file


def main(thrift_uri: str, http_uri: str, warehouse: str) -> None:
    builder = (
        SparkSession.Builder()
        .master("local[2]")
        .config("spark.api.mode", "connect")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", warehouse)
        .config("spark.hadoop.hive.metastore.uris", thrift_uri)
        .enableHiveSupport()
    )
    spark = configure(builder).getOrCreate()
    assert isinstance(spark, ConnectSession)

    spark.sql("CREATE SCHEMA shop")
    spark.sql("CREATE TABLE shop.plain (id BIGINT) USING parquet")
    spark.range(3).write.insertInto("shop.plain")
    assert sorted(row.id for row in spark.table("shop.plain").collect()) == [0, 1, 2]

    with HttpSession(http_uri, user="ann") as session:
        tables = Tables(spark, session)
        tables.create("shop.orders", "id BIGINT, price INT", partitioned_by=["bucket(2, id)"])
        tables.append("shop.orders", spark.range(10).select("id", functions.lit(5).alias("price")))
        first = session.status().version
        tables.delete("shop.orders", "id < 4")
        with tables.transaction() as transaction:
            old = transaction.read("shop.orders", where="id = 4")
            transaction.delete("shop.orders", functions.col("id") == 4)
            transaction.append("shop.orders", old.withColumn("price", functions.lit(6)))
        tables.alter("shop.orders", rename={"price": "cost"})
        rows = sorted((row.id, row.cost) for row in tables.read("shop.orders").collect())
        assert rows == [(4, 6), (5, 5), (6, 5), (7, 5), (8, 5), (9, 5)], rows
        assert rows == sorted((row.id, row.cost) for row in spark.table("shop.orders").collect())
        past = spark.sql(f"SELECT * FROM `shop@{first}`.orders")
        assert past.columns == ["id", "price"]
        with pytest.raises(InvalidInput, match=r"^not a condition on shop\.orders: .*nosuch.*\Z"):
            tables.delete("shop.orders", "nosuch = 1")
        with pytest.raises(InvalidInput, match=r"^the rows do not fit shop\.orders: .*STRING.*\Z"):
            tables.append("shop.orders", spark.sql("SELECT 'x' AS id"))
        tables.create("shop.nested", "items ARRAY<STRUCT<id: BIGINT>>")
        items = spark.sql("SELECT array(named_struct('id', 1), NULL) AS items")
        assert tables.append("shop.nested", items).rows == 1
        for partitioned_by in ([], ["bucket(2, id)"]):
            name = f"shop.lost_{len(partitioned_by)}"
            tables.create(name, "id BIGINT", partitioned_by=partitioned_by)
            with pytest.MonkeyPatch.context() as patch:
                lose_a_file(patch)
                with pytest.raises(UnsupportedOperation, match=r"wrote 20 rows .* sees"):
                    tables.append(name, spark.range(0, 20, 1, 2))
        other = spark.newSession()
        frame = other.range(1)
        other.client.close()  # as its stop does, which stops a local server too
        with pytest.raises(InvalidInput, match="session was stopped: build another"):
            tables.append("shop.orders", frame)
        frame = spark.range(1)
        spark.stop()
        for use in (
            lambda: tables.read("shop.orders"),
            lambda: tables.append("shop.orders", frame),
            lambda: tables.delete("shop.orders", "true"),
        ):
            with pytest.raises(InvalidInput, match="session was stopped: build another"):
                use()


if __name__ == "__main__":
    main(*sys.argv[1:])
