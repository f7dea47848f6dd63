"""Both implementations of `Session`, on a node that the tests of a module share.

Each test works in its own schema. A test that would disturb others (compaction, timeouts) has its
own node.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.catalog.commands import CreateSchema
from strandline.metastore.interface import ResolvedTable, Session
from strandline.metastore.session.http_app import HttpApplication
from strandline.node import Node
from tests.metastore.interface.calls import Served, create, new_schema_name
from tests.metastore.session.served import serving
from tests.servers import stores


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run HTTP on one kind of store only: what is sent does not depend on the store."""
    kinds = {"folder": ["local", "http"], "postgresql": ["local"]}
    if "kind" in metafunc.fixturenames:
        pairs = [(store, kind) for store in kinds for kind in kinds[store]]
        metafunc.parametrize(("store_kind", "kind"), pairs, scope="module")
    elif "store_kind" in metafunc.fixturenames:
        metafunc.parametrize("store_kind", kinds, scope="module")


@pytest.fixture(scope="module")
def served(store_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = stores.new_store(store_kind, tmp_path_factory.mktemp("store"))
    with (
        Node.open(store.address, settings=store.settings) as node,
        serving(HttpApplication(node.metastore)) as url,
    ):
        yield Served(node, url)


@pytest.fixture
def own_node(store_kind: str, tmp_path: Path) -> Iterator[Served]:
    store = stores.new_store(store_kind, tmp_path)
    with (
        Node.open(store.address, settings=store.settings) as node,
        serving(HttpApplication(node.metastore)) as url,
    ):
        yield Served(node, url)


@pytest.fixture
def session(served: Served, kind: str) -> Iterator[Session]:
    opened = served.open(kind)
    yield opened
    opened.close()


@pytest.fixture
def schema(session: Session) -> str:
    name = new_schema_name()
    session.execute(CreateSchema(name=name))
    return name


@pytest.fixture
def table(session: Session, schema: str) -> ResolvedTable:
    session.execute(create(schema))
    return session.table(f"{schema}.t")
