"""One Spark session and one store for the folder, and an empty schema for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from strandline.catalog.commands import CreateSchema, DropSchema
from strandline.metastore.interface import Session
from strandline.node import Node
from strandline.spark import Tables, configure


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    builder = (
        SparkSession.Builder()
        .master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        # Tests run each piece of code only a few times, so optimized compilation does not pay.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("spark-warehouse")))
    )
    session = configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.open(tmp_path_factory.mktemp("store")) as opened:
        yield opened


@pytest.fixture
def session(node: Node) -> Iterator[Session]:
    """A session on a store that has an empty schema ``shop``."""
    session = node.session(user="ann")
    session.execute(CreateSchema(name="shop", if_not_exists=True))
    yield session
    session.execute(DropSchema(name="shop", cascade=True))


@pytest.fixture
def tables(spark: SparkSession, session: Session) -> Tables:
    return Tables(spark, session)
