from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from strandline.catalog.commands import DropSchema
from strandline.config import Settings
from strandline.metastore.interface import Session
from tests.metastore.hive.hive_node import HiveNode, hive_node
from tests.metastore.hive.spark_process import SparkProcess
from tests.servers import stores


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module that defines ``STORES`` on each of these kinds of store."""
    kinds = getattr(metafunc.module, "STORES", None)
    if kinds and "running" in metafunc.fixturenames:
        metafunc.parametrize("running", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HiveNode]:
    """A node that serves the Hive protocol to all tests of a module; by default in a folder."""
    kind = getattr(request, "param", "folder")
    settings = Settings(delay_ms=0, clock_skew_ms=0)
    store = stores.new_store(kind, tmp_path_factory.mktemp("hive"), settings=settings)
    with hive_node(store.address, settings=store.settings) as node:
        yield node


@pytest.fixture
def hive(running: HiveNode) -> Iterator[HiveNode]:
    """The node, with only the empty schemas ``default`` and ``d1``."""
    with running.client() as client:
        client.call("create_database", database={"name": "d1"})
    yield running
    with running.client() as client:
        for name in client.call("get_all_databases"):
            if name != "default":
                # A Hive client may not drop a schema together with its transactional tables.
                running.node.session(user="ann").execute(DropSchema(name=name, cascade=True))


@pytest.fixture
def stub(hive: HiveNode) -> Iterator[Any]:
    """Apache Thrift's client of ``hive``."""
    with hive.stub() as client:
        yield client


@pytest.fixture
def session(hive: HiveNode) -> Session:
    """A session on a node with the empty table ``d1.orders``."""
    hive.create_transactional("d1", "orders", id="int", item="string")
    return hive.node.session(user="ann")


@pytest.fixture
def since(stub: Any) -> int:
    """The last event before the test."""
    number: int = stub.get_current_notificationEventId().eventId
    return number


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveNode]:
    """The node that ``spark`` uses as its metastore."""
    with hive_node(tmp_path_factory.mktemp("spark") / "store") as node:
        yield node


@pytest.fixture(scope="session")
def spark(served: HiveNode) -> Iterator[SparkProcess]:
    """An unmodified Spark. It starts slowly, so all tests share it and the schema nyc."""
    with SparkProcess(served.uri, served.folder / "warehouse") as process:
        process.sql("CREATE DATABASE nyc COMMENT 'flights'")
        process.sql("USE nyc")
        yield process
