"""What a node does while its server is away, and what its log says."""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from strandline.catalog import Catalog, CatalogManager
from strandline.catalog.commands import CreateSchema
from strandline.errors import Unavailable
from strandline.node import Node
from strandline.outage import Outage
from tests.servers import postgresql, stores
from tests.servers.served_node import ServedNode

THREADS = ("notifications of strandline", "the thread catalog-applier", "the thread cache-applier")
LOST = ("notifications of strandline do not arrive", "catalog-applier: ", "cache-applier: ")


@pytest.mark.slow
def test_the_log_says_once_that_news_are_lost_and_when_each_follower_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = postgresql.PostgresServer()
    try:
        store = stores.new_store("postgresql", tmp_path)
        with Node.open(server.new_database(), settings=store.settings) as node:
            assert node.health.report() == []
            server.crash()
            end = time.monotonic() + 60
            while not all(" ".join(caplog.messages).count(lost) for lost in LOST):
                assert time.monotonic() < end, caplog.messages
                time.sleep(0.01)
            server.start()
            while node.health.report() or not all(backs(caplog, thread) for thread in THREADS):
                assert time.monotonic() < end + 60, caplog.messages
    finally:
        server.remove()
    assert sum("notifications of strandline do not arrive" in line for line in caplog.messages) == 1
    assert [backs(caplog, thread) for thread in THREADS] == [1, 1, 1]


def backs(caplog: pytest.LogCaptureFixture, thread: str) -> int:
    """How often the thread was logged as back."""
    return sum(line.startswith(thread) and "again, after " in line for line in caplog.messages)


def test_ddl_waits_for_the_server_no_longer_than_its_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, waits = Outage("db"), list[bool]()
    server.end()

    def away(_: CatalogManager) -> Catalog:
        waits.append(server.pause("refused", timeout=30.0, end=math.inf))
        raise Unavailable("refused")

    with Node.open(tmp_path) as node:
        monkeypatch.setattr(CatalogManager, "present", away)
        with pytest.raises(Unavailable, match="refused"):
            node.metastore.execute(CreateSchema(name="sales"), user="ann", timeout=0.0)
        with pytest.raises(Unavailable, match="refused"):
            node.session(user="ann").undo(2, timeout=0.001)
        monkeypatch.undo()
    assert waits == [False, False]


@pytest.mark.slow
def test_calls_that_come_while_the_server_restarts_succeed(
    tmp_path: Path,
) -> None:
    server = postgresql.PostgresServer()
    try:
        store = stores.new_store("postgresql", tmp_path)._replace(address=server.new_database())
        with ExitStack() as opened:
            node = opened.enter_context(closing(ServedNode(store)))
            ann, bob = (opened.enter_context(node.session(user=user)) for user in ("ann", "bob"))
            client = opened.enter_context(closing(node.thrift()))
            threads = opened.enter_context(ThreadPoolExecutor(4))
            transaction = ann.begin()
            server.stop()
            calls: list[Future[object]] = [
                threads.submit(ann.commit, transaction.txn_id),
                threads.submit(ann.execute, CreateSchema(name="sales")),
                threads.submit(bob.begin),
                threads.submit(client.call, "get_all_databases"),
            ]
            while httpx.get(f"{node.url}/health/ready").is_success:
                pass
            assert not any(call.done() for call in calls)
            server.start()
            for call in calls:
                call.result()
            assert "sales" in bob.schemas()
    finally:
        server.remove()
