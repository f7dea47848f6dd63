"""Calls that child processes execute: long ones, and those that read the whole store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

import httpx
import pytest

from strandline import work
from strandline.catalog.commands import AlterSchema
from strandline.metastore.session.local_session import LocalSession
from strandline.node import Node
from strandline.node.http_connections import DISPLACE_AFTER, HttpConnections
from strandline.work.child_pool import Data, Reply
from strandline.work.children import Fields
from strandline.work.contents import Content
from tests.metastore.session.served import WAIT, monitored, serving
from tests.metastore.session.test_http_app import JSON, MIB, counts, error_of, sent


class SlowChildren:
    """Child processes that take until ``go`` for each task, and then reply with ``answer``.

    ``begun`` is released when a task begins, and ``left`` has the tasks whose callers have left.
    ``tasks`` has the name and the fields of each task, and whether it only reads.
    """

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.left = SimpleQueue[str]()
        self.answer = b"{}"
        self.tasks: list[tuple[str, Fields, bool]] = []

    async def run(self, name: str, fields: Fields, data: Data, *, only_reads: bool) -> Reply:
        self.tasks.append((name, fields, only_reads))
        self.begun.release()
        try:
            await asyncio.to_thread(self.go.wait, WAIT)
        except asyncio.CancelledError:
            self.left.put(name)
            raise
        return Reply({}, Content.of(self.answer))


LONG_BODY = b"{}" + b" " * 33 * work.IN_THREAD


@pytest.fixture
def slow(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SlowChildren, httpx.Client]]:
    """A client of a node whose memory for long answers is full with one of them."""
    monkeypatch.setattr("strandline.metastore.session.http_app.ANSWER_BYTES", 1)
    children = SlowChildren()
    with (
        serving(monitored(node, children=children)) as url,
        httpx.Client(base_url=f"{url}/v1", headers=JSON, trust_env=False, timeout=WAIT) as client,
    ):
        yield children, client
        children.go.set()


def test_a_node_reads_its_whole_store_for_one_client_at_a_time(
    slow: tuple[SlowChildren, httpx.Client],
) -> None:
    children, client = slow
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.post, "verify", json={})
        assert children.begun.acquire(timeout=WAIT)
        for call in ("clean", "dump", "verify"):
            refused = client.post(call, json={})
            status, code, message = error_of(refused)
            assert (status, code) == (503, "overloaded")
            assert "this node executes verify for a client" in message
            assert refused.headers["retry-after"] == "1"
        assert client.post("tables", json={"schema": "s"}).status_code == 200
        assert client.post("config", json={}).status_code == 200
        children.go.set()
        assert first.result(WAIT).status_code == 200
    assert client.post("dump", json={}).status_code == 200


def test_a_client_that_leaves_makes_room_for_the_next_reader_of_the_whole_store(
    slow: tuple[SlowChildren, httpx.Client],
) -> None:
    children, client = slow
    with sent(client.base_url, b"{}", call="verify"):
        assert children.begun.acquire(timeout=WAIT)
        assert client.post("dump", json={}).status_code == 503
    children.go.set()
    while (answer := client.post("dump", json={})).status_code == 503:
        pass
    assert answer.status_code == 200


def test_a_child_gets_a_long_call_with_its_caller_and_its_kind(
    slow: tuple[SlowChildren, httpx.Client],
) -> None:
    children, client = slow
    children.go.set()
    for call in ("tables", "execute"):
        answer = client.post(call, content=LONG_BODY, headers={"X-Strandline-User": "ann"})
        assert answer.status_code == 200
    fields = {"service": "http", "user": "ann", "host": "127.0.0.1"}
    assert children.tasks == [("tables", fields, True), ("execute", fields, False)]


def test_a_connection_with_long_calls_alone_is_not_replaced_by_a_new_one(node: Node) -> None:
    """Also in a node without a users file, where no caller is authenticated."""
    now, children = [0.0], SlowChildren()
    children.go.set()
    connections = HttpConnections(max_connections=1, clock=lambda: now[0])
    with (
        serving(monitored(node, children=children), connections=connections) as url,
        httpx.Client(base_url=f"{url}/v1", headers=JSON, trust_env=False, timeout=WAIT) as client,
    ):
        assert client.post("tables", content=LONG_BODY).status_code == 200
        now[0] += DISPLACE_AFTER
        assert httpx.get(f"{url}/health/live", trust_env=False).status_code == 503
        assert client.post("tables", content=LONG_BODY).status_code == 200
    assert (connections.counts.displaced, connections.counts.refused) == (0, 1)


def test_a_write_with_a_long_result_is_not_executed_again_by_a_child(
    slow: tuple[SlowChildren, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    children, client = slow
    children.go.set()
    names = ["p"] * (work.IN_THREAD + 1)
    monkeypatch.setattr(LocalSession, "undrop_partitions", lambda *_, **named: names)
    monkeypatch.setattr(LocalSession, "tables", lambda *_, **named: names)
    assert client.post("undrop_partitions", json={"name": "s.t"}).json() == names
    assert client.post("tables", json={"schema": "s"}).json() == {}
    assert [name for name, _, _ in children.tasks] == ["tables"]


def test_the_long_answer_of_a_write_is_sent_although_clients_have_not_read_others(
    slow: tuple[SlowChildren, httpx.Client],
) -> None:
    children, client = slow
    children.answer = bytes(20 * MIB)
    children.go.set()
    with sent(client.base_url, LONG_BODY, call="tables"):
        while not client.get("statistics").json()["http"]["answer_memory"]:
            pass
        assert error_of(client.post("tables", content=LONG_BODY))[:2] == (503, "overloaded")
        assert client.post("execute", content=LONG_BODY).content == children.answer


@pytest.mark.parametrize("body", [b"{}", LONG_BODY], ids=["short", "long"])
def test_a_call_without_valid_credentials_is_not_executed(
    node: Node, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    children, kept = SlowChildren(), list[Content]()
    children.go.set()

    def keep(data: bytes, of: Callable[[bytes], Content] = Content.of) -> Content:
        kept.append(of(data))
        return kept[-1]

    monkeypatch.setattr(Content, "of", keep)
    before = counts(node)
    application = monitored(node, children=children, authenticate=lambda user, secret: False)
    with (
        serving(application) as url,
        httpx.Client(base_url=f"{url}/v1", headers=JSON, trust_env=False) as client,
    ):
        for credentials in ({}, {"Authorization": "Basic YW5uOndyb25n"}):
            refused = client.post("begin", content=body, headers=credentials)
            assert error_of(refused)[:2] == (401, "permission_denied")
            assert refused.headers["WWW-Authenticate"].startswith("Basic ")
    assert (children.tasks, counts(node)) == ([], before)
    assert [content.fileno() for content in kept] == [-1] * len(kept)


def test_a_long_write_is_not_given_up_when_its_client_leaves(
    slow: tuple[SlowChildren, httpx.Client],
) -> None:
    children, client = slow

    def body_memory() -> int:
        held: int = client.get("statistics").json()["http"]["body_memory"]
        return held

    with ExitStack() as leaving:
        for call in ("tables", "execute"):  # the last one leaves first
            leaving.enter_context(sent(client.base_url, LONG_BODY, call=call))
            assert children.begun.acquire(timeout=WAIT)
        both = body_memory()
    assert children.left.get(timeout=WAIT) == "tables"
    assert 0 < body_memory() < both
    children.go.set()
    while body_memory():
        pass
    assert children.left.empty()


def test_a_child_takes_back_what_is_too_far_back_for_a_thread(
    slow: tuple[SlowChildren, httpx.Client], node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    children, client = slow
    children.go.set()
    session = node.session(user="ann")
    first, *_, newest = (
        session.execute(AlterSchema(name="s", comment=f"{number}")).version for number in range(4)
    )
    monkeypatch.setattr(work, "IN_THREAD", 2)
    monkeypatch.setattr(
        "strandline.catalog.undo.reading._UNITS_PER_OBJECT", 0
    )  # the versions count
    before = counts(node)
    assert client.post("undo", json={"version": first}).json() == {}
    assert client.post("undrop", json={"name": "s.never"}).json() == {}
    assert counts(node) == before
    kinds = [(name, only_reads) for name, _, only_reads in children.tasks]
    assert kinds == [("undo", False), ("undrop", False)]
    assert client.post("undo", json={"version": newest}).json()["version"] == newest + 1
    assert len(children.tasks) == 2
