"""What the tests of sessions share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateSchema, CreateTable, TableDefinition
from strandline.metastore.session import HttpSession, http_session
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.session.http_transport import Lost
from strandline.model.types import BIGINT
from strandline.node import Node
from tests.metastore.session.scene import LAST_PAUSE, Scene
from tests.metastore.session.served import CuttingProxy, serving


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the empty schema ``s``, for all tests of a module."""
    with Node.open(tmp_path_factory.mktemp("store")) as opened:
        opened.session(user="ann").execute(CreateSchema(name="s"))
        yield opened


@pytest.fixture(scope="module")
def url(node: Node) -> Iterator[str]:
    """The address of ``node``."""
    with serving(HttpApplication(node.metastore)) as served:
        yield served


@pytest.fixture
def scene(node: Node, url: str, request: pytest.FixtureRequest) -> Iterator[Scene]:
    local = node.session(user="ann")
    definition = TableDefinition(
        name=request.node.name.replace("[", "_").rstrip("]"),
        columns=(ColumnDefinition("k", BIGINT),),
        transactional=True,
    )
    local.execute(CreateTable(schema="s", definition=definition))
    table = local.table(f"s.{definition.name}")
    proxy = CuttingProxy(url)
    with HttpSession(proxy.url, user="ann") as session:
        yield Scene(node, url, proxy, session, local, table.name, table.descriptor.id)
    proxy.close()


@pytest.fixture
def deadline_at_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline of a call is over after a number of attempts, however long these take."""
    pause, pauses = http_session._Attempts.pause, Counter[http_session._Attempts]()

    def counted(attempts: http_session._Attempts, loss: Lost) -> None:
        pauses[attempts] += 1
        if pauses[attempts] == LAST_PAUSE:
            attempts._end = time.monotonic()
        pause(attempts, loss)

    monkeypatch.setattr(http_session._Attempts, "pause", counted)
