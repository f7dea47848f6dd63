"""Many clients of a service: nobody waits for the changes of others, equal requests that arrive
together share one read, and a full node refuses calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline import work
from strandline.catalog.commands import CreateSchema
from strandline.errors import Overloaded, Unavailable
from strandline.metastore.hive import HiveMetastoreService
from strandline.metastore.hive.registry import METHODS, Call
from strandline.metastore.off_loop import off_loop
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.thrift import ConnectionInfo, ThriftException
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.dispatch import answer_error
from strandline.metastore.thrift.messages import CALL, encode_message
from strandline.metastore.workers import Workers
from strandline.node import Node
from tests.metastore.hive.hive_node import WAIT, HiveNode
from tests.servers.thrift_client import decode_result


class Blocked:
    """A handler of DDL that waits until it is released."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()

    async def __call__(self, call: Call) -> None:
        self.begun.release()
        assert self.go_on.wait(WAIT)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.open(tmp_path / "store", background=False) as opened:
        yield opened


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocked]:
    """A handler that replaces the one of ``drop_function`` in a test."""
    handler = Blocked()
    monkeypatch.setitem(
        METHODS, "drop_function", replace(METHODS["drop_function"], handler=handler)
    )
    yield handler
    handler.go_on.set()


def service_of(node: Node, **parts: Any) -> HiveMetastoreService:
    return HiveMetastoreService(node.metastore, **parts)


async def test_ddl_that_waits_does_not_block_reads_that_need_a_thread(
    hive: HiveNode, blocked: Blocked
) -> None:
    workers = Workers(threads=4)
    service = service_of(hive.node, workers=workers)
    ddl = [
        asyncio.ensure_future(service.handle(ConnectionInfo(n, "test"), "drop_function", {}))
        for n in range(20)
    ]
    await asyncio.to_thread(blocked.begun.acquire, timeout=WAIT)
    reader = ConnectionInfo(100, "test")
    async with asyncio.timeout(WAIT):
        await service.handle(reader, "get_current_notificationEventId", {})
    assert workers.statistics().running <= 3
    blocked.go_on.set()
    await asyncio.gather(*ddl)


async def test_a_full_node_refuses_a_call_and_says_that_nothing_was_done(
    hive: HiveNode, blocked: Blocked
) -> None:
    workers = Workers(threads=1, max_calls=2)
    service = service_of(hive.node, workers=workers)
    first = asyncio.ensure_future(service.handle(ConnectionInfo(1, "test"), "drop_function", {}))
    with pytest.raises(Overloaded) as refused:
        service.handle(ConnectionInfo(2, "test"), "drop_function", {})
    answer = answer_error(HIVE_CODEC, "drop_function", refused.value)
    blocked.go_on.set()
    await first
    assert isinstance(answer.body, bytes)
    with pytest.raises(ThriftException, match="nothing was done, try again") as raised:
        decode_result("drop_function", answer.body)
    assert raised.value.name == "MetaException"


async def test_large_requests_are_decoded_within_the_share_of_large_calls(
    hive: HiveNode, blocked: Blocked
) -> None:
    workers = Workers(threads=1, max_calls=4)
    service = service_of(hive.node, workers=workers)
    in_thread = service.dispatcher.in_thread
    assert in_thread is not None
    first = asyncio.ensure_future(service.handle(ConnectionInfo(1, "test"), "drop_function", {}))
    clients = [ConnectionInfo(number, "test") for number in range(3)]
    waiting = [in_thread(client, lambda: "decoded") for client in clients[:2]]
    with pytest.raises(Overloaded):
        in_thread(clients[2], lambda: "decoded")
    clients[0].on_leave()
    blocked.go_on.set()
    await first
    assert await waiting[1] == "decoded"
    assert waiting[0].cancelled()


async def test_a_call_is_never_started_if_its_client_disconnects_before_it_has_a_thread(
    hive: HiveNode, blocked: Blocked
) -> None:
    workers = Workers(threads=1)
    service = service_of(hive.node, workers=workers)
    first = asyncio.ensure_future(service.handle(ConnectionInfo(1, "test"), "drop_function", {}))
    leaving = ConnectionInfo(2, "test")
    second = asyncio.ensure_future(service.handle(leaving, "drop_function", {}))
    leaving.on_leave()
    with pytest.raises(asyncio.CancelledError):
        await second
    blocked.go_on.set()
    await first
    assert workers.statistics().given_up == 1


class Reading:
    """A handler that reads in a thread, where it waits until it is released, and counts its calls.

    Its answer is the number of the call.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.needs_proof = False
        self.on_begin: Callable[[], object] = lambda: None
        self.go_on = Permits()

    async def __call__(self, call: Call) -> list[str]:
        self.calls += 1
        self.on_begin()
        number = self.calls
        call.reader.needs_proof = self.needs_proof
        await off_loop()
        assert self.go_on.wait(number)
        return [str(number)]


class Permits:
    """Lets calls go on in their order: no call takes the permit of an earlier one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._released = 0

    def release(self, calls: int) -> None:
        with self._changed:
            self._released += calls
            self._changed.notify_all()

    def release_all(self) -> None:
        self.release(1_000)

    def wait(self, number: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: number <= self._released, WAIT)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    """A handler that replaces the one of ``get_tables`` in a test."""
    handler = Reading()
    monkeypatch.setitem(METHODS, "get_tables", replace(METHODS["get_tables"], handler=handler))
    yield handler
    handler.go_on.release_all()


class ReadingClient:
    """A client of ``service`` that has sent the one request of `Reading`."""

    def __init__(
        self, service: HiveMetastoreService, *, user: str = "ann", is_large: bool = False
    ) -> None:
        args = {"db_name": "d1", "pattern": "*"}
        self.connection = ConnectionInfo(1, "test")
        self.connection.user = user
        message = encode_message(CALL, "get_tables", 0, HIVE_CODEC.encode_args("get_tables", args))
        self.connection.begin(message)
        self.connection.is_large = is_large
        self._asking = asyncio.ensure_future(service.handle(self.connection, "get_tables", args))

    def is_answered(self) -> bool:
        return bool(self._asking.done())

    async def answer(self) -> list[str]:
        answer = await self._asking
        names: list[str] = decode_result("get_tables", answer.body)
        return names


async def test_the_same_request_of_a_user_is_read_once_at_a_time_until_the_next_commit(
    node: Node, reading: Reading
) -> None:
    service = service_of(node)
    same = [ReadingClient(service) for _ in range(10)]
    other_user = ReadingClient(service, user="bob")
    await asyncio.to_thread(node.session(user="ann").execute, CreateSchema(name="d2"))
    later = [ReadingClient(service) for _ in range(10)]
    reading.go_on.release_all()
    assert [await client.answer() for client in same] == 10 * [["1"]]
    assert await other_user.answer() == ["2"]
    assert [await client.answer() for client in later] == 10 * [["3"]]
    assert await ReadingClient(service).answer() == ["4"]


@pytest.mark.parametrize("mark", [None, 7])
async def test_without_proof_a_client_shares_only_a_read_that_begins_after_its_request(
    node: Node, reading: Reading, monkeypatch: pytest.MonkeyPatch, mark: int | None
) -> None:
    reading.needs_proof = True

    monkeypatch.setattr(NotificationLog, "mark_is_proof", False)
    monkeypatch.setattr(node.metastore, "mark", lambda: mark)
    service = service_of(node)
    first = ReadingClient(service)
    same = [ReadingClient(service) for _ in range(10)]
    gone, other_user = ReadingClient(service), ReadingClient(service, user="bob")
    gone.connection.on_leave()
    reading.go_on.release(2)
    assert await first.answer() == ["1"]  # and those that came meanwhile begin the next read
    assert await other_user.answer() == ["2"]
    while reading.calls < 3:
        assert not any(client.is_answered() for client in same)
        await asyncio.sleep(0)
    later = [ReadingClient(service) for _ in range(10)]
    reading.go_on.release(2)
    assert [await client.answer() for client in same] == 10 * [["3"]]
    assert [await client.answer() for client in later] == 10 * [["4"]]
    with pytest.raises(asyncio.CancelledError):
        await gone.answer()
    assert reading.calls == 4


async def test_clients_that_waited_for_a_read_without_a_mark_share_what_is_kept_at_the_next_mark(
    node: Node, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[int] = []

    monkeypatch.setattr(node.metastore, "mark", lambda: marks[-1] if marks else None)
    service = service_of(node)
    clients = [ReadingClient(service) for _ in range(3)]
    marks.append(7)
    reading.go_on.release(2)
    assert [await client.answer() for client in clients] == [["1"], ["2"], ["2"]]
    later = ReadingClient(service)
    assert service.look_up(later.connection.request) is not None


async def test_without_proof_an_answer_is_kept_at_the_mark_of_its_read_even_if_shared_later(
    node: Node, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[int] = []
    begun: list[int] = []

    def moved() -> int:
        marks.append(len(marks))
        return marks[-1]

    monkeypatch.setattr(NotificationLog, "mark_is_proof", False)
    monkeypatch.setattr(node.metastore, "mark", moved)
    reading.on_begin = lambda: begun.append(marks[-1])
    service = service_of(node)
    clients = [ReadingClient(service) for _ in range(3)]
    reading.go_on.release(2)
    assert [await client.answer() for client in clients] == [["1"], ["2"], ["2"]]
    kept = []
    for mark in marks.copy():
        monkeypatch.setattr(node.metastore, "mark", lambda mark=mark: mark)
        if service.look_up(clients[0].connection.request) is not None:
            kept.append(mark)
    assert kept == begun[1:]


async def test_a_client_that_leaves_does_not_take_the_answer_from_those_that_wait_for_the_same(
    node: Node, reading: Reading, blocked: Blocked
) -> None:
    service = service_of(node, workers=Workers(threads=1))
    before = asyncio.ensure_future(service.handle(ConnectionInfo(2, "test"), "drop_function", {}))
    gone = [ReadingClient(service) for _ in range(2)]
    for client in gone:
        client.connection.on_leave()
    first, second = ReadingClient(service), ReadingClient(service)
    first.connection.on_leave()
    await asyncio.sleep(0)  # the read of those that are gone is forgotten
    third = ReadingClient(service)
    blocked.go_on.set()
    reading.go_on.release_all()
    await before
    assert [await client.answer() for client in (second, third)] == 2 * [["2"]]
    for client in gone:
        with pytest.raises(asyncio.CancelledError):
            await client.answer()


class NoChildren:
    """Child processes that count the tasks that they get, and cannot start."""

    def __init__(self) -> None:
        self.tasks = 0

    async def run(self, *args: object, **options: object) -> object:
        self.tasks += 1
        raise Unavailable("no child can start")


async def test_no_child_computes_a_long_read_whose_client_left_while_a_thread_gave_it_up(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def handler(call: Call) -> list[str]:
        await off_loop()
        begun.set()
        assert go_on.wait(WAIT)
        raise work.TooLong

    monkeypatch.setitem(METHODS, "get_tables", replace(METHODS["get_tables"], handler=handler))

    children = NoChildren()
    service = service_of(node, children=children)
    first, second = ReadingClient(service), ReadingClient(service)
    await asyncio.to_thread(begun.wait, WAIT)
    first.connection.on_leave()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first.answer()
    with pytest.raises(Unavailable):
        await second.answer()
    assert children.tasks == 1


@pytest.mark.parametrize("is_large", [False, True])
async def test_a_read_begins_again_after_what_it_gave_way_to(
    node: Node, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    made = Future[None]()
    runs: list[str] = []

    async def handler(call: Call) -> list[str]:
        await off_loop()
        runs.append(call.user)
        if not made.done():
            work.give_way(made)
        return runs

    monkeypatch.setitem(METHODS, "get_tables", replace(METHODS["get_tables"], handler=handler))

    workers = Workers()
    service = service_of(node, workers=workers)
    clients = [ReadingClient(service, is_large=is_large) for _ in range(2)]
    while not (runs and workers.statistics().running == 0):
        await asyncio.sleep(0)
    clients[0].connection.on_leave()
    made.set_result(None)
    assert await clients[1].answer() == ["ann", "ann"]
