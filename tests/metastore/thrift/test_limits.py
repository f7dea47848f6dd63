"""Limits that protect clients from each other.

They cover large, partial and slow messages, unread answers, and floods of connections.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import pytest

from strandline.errors import Overloaded
from strandline.metastore.request_memory import ALLOWANCE
from strandline.metastore.thrift import (
    ApplicationException,
    ConnectionInfo,
    ServerSettings,
    ThriftException,
    ThriftServer,
)
from strandline.metastore.thrift.messages import CALL, REPLY, decode_head, encode_message
from strandline.metastore.thrift.serving import Outgoing
from strandline.work.contents import Content
from tests.metastore.thrift.conftest import dispatcher_of
from tests.metastore.thrift.test_server import connect, read_messages, request, toy
from tests.servers.loopback import read_to_end
from tests.servers.thrift_client import decode_application_exception, decode_result

Serve = Callable[..., Any]
NAMES = "get_table_objects_by_name"
ASKED_FIRST: list[tuple[str, dict[str, Any]]] = [
    ("set_ugi", {"user_name": "ann", "group_names": []}),
    ("get_all_databases", {}),
]


def counting(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
    if method == "get_partitions_by_names":
        return [{"values": [str(len(args["names"]))]}]
    return toy(connection, method, args)


def empty_structs(count: int) -> bytes:
    """A request with one unknown field: a list of ``count`` empty structs."""
    return encode_message(CALL, "get_all_databases", 1, _list_of_structs(count) + b"\0")


def _list_of_structs(count: int) -> bytes:
    return struct.pack(">bhbI", 15, 99, 12, count) + bytes(count)


class Slicing(asyncio.Lock):
    """The lock that a server's connections hold for each slice; it keeps who took it."""

    def __init__(self) -> None:
        super().__init__()
        self.slices: list[asyncio.Task[Any] | None] = []

    async def acquire(self) -> Literal[True]:
        await super().acquire()
        self.slices.append(asyncio.current_task())
        return True


@pytest.fixture
def serve_in_slices(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Start a server whose slices are as short as possible, and are noted."""
    monkeypatch.setattr("strandline.metastore.thrift.connection.SLICE_SECONDS", 0)

    def start(handler: Callable[..., Any]) -> Any:
        running = serve(handler)
        running.server.slicing = Slicing()
        return running

    return start


def arrived(running: Any) -> int:
    """The bytes that wait on all connections of a server."""
    return sum(connection._scanner.waiting for connection in running.server._connections)


def reset(stream: socket.socket) -> None:
    """Reset the connection, without waiting for data in flight."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def half(message: bytes) -> bytes:
    return message[: len(message) // 2]


def long_names(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
    if method == "get_all_tables":
        return ["x" * 1000] * 20_000
    return toy(connection, method, args)


def test_the_total_memory_of_unread_answers_is_bounded(serve: Serve) -> None:
    running = serve(long_names, settings=ServerSettings(answer_memory_bytes=30_000_000))
    asked = request("get_all_tables", 7, db_name="d1")
    with connect(running) as first, connect(running) as second, running.client() as small:
        first.sendall(asked)
        while not running.on_loop(running.server.statistics).answer_memory:
            pass
        second.sendall(asked)
        answer = read_messages(second, 1)[0]
        with pytest.raises(ThriftException, match="this node is full") as refusal:
            decode_result("get_all_tables", answer, at=decode_head(answer).body)
        assert refusal.value.name == "MetaException"
        assert small.call("get_all_databases") == ["d1"]
        assert len(read_messages(first, 1)[0]) > 20_000_000
        second.sendall(asked + request("get_all_databases"))
        assert len(read_messages(second, 2)[0]) > 20_000_000
    assert running.on_loop(running.server.statistics).answer_memory == 0


def test_the_answer_of_a_call_that_may_write_is_never_withheld(serve: Serve) -> None:
    running = serve(
        long_names,
        settings=ServerSettings(answer_memory_bytes=30_000_000),
        only_reads=lambda method: method != "get_all_tables",
    )
    asked = request("get_all_tables", 7, db_name="d1")
    with connect(running) as first, connect(running) as second:
        first.sendall(asked)
        while not running.on_loop(running.server.statistics).answer_memory:
            pass
        second.sendall(asked)
        assert len(read_messages(second, 1)[0]) > 20_000_000
        assert len(read_messages(first, 1)[0]) > 20_000_000
    statistics = running.on_loop(running.server.statistics)
    assert (statistics.answer_memory, statistics.full) == (0, 0)


@pytest.mark.parametrize("client", ["reads", "has left", "is refused"])
def test_a_long_answer_of_a_child_is_closed_however_it_ends(client: str) -> None:
    written: list[bytes | memoryview] = []
    sent: list[bool] = []

    async def send() -> None:
        settings = ServerSettings(answer_memory_bytes=1)
        server = ThriftServer(dispatcher_of(toy), settings=settings)
        server.loop = asyncio.get_running_loop()
        outgoing = Outgoing(
            server,
            "client",
            write=written.append,
            sent=lambda: sent.append(True),
            is_closed=lambda: client == "has left",
        )
        if client == "is refused":
            server.answers.reserve_answer(
                "another", bytes(ALLOWANCE + 1), user="ann", only_reads=True
            )
            with pytest.raises(Overloaded):
                outgoing.reserve("get_all_tables", content, user="bob")
        else:
            outgoing.reserve("get_all_tables", content, user="bob")
            outgoing.send(b"head", content)
        while outgoing.in_work:
            await asyncio.sleep(0)
        server.answers.release("another")
        assert server.answers.taken == 0

    content = Content.of(b"x" * (ALLOWANCE + 1))
    asyncio.run(send())
    assert content.fileno() == -1
    answer = b"head" + b"x" * (ALLOWANCE + 1)
    assert (b"".join(written), sent) == ((answer, [True]) if client == "reads" else (b"", []))


def test_the_memory_of_an_answer_is_released_when_its_client_disconnects(
    serve: Serve,
) -> None:
    running = serve(long_names)
    with connect(running) as stream:
        stream.sendall(request("get_all_tables", 7, db_name="d1"))
        while not running.on_loop(running.server.statistics).answer_memory:
            pass
        reset(stream)
    while running.on_loop(running.server.statistics).answer_memory:
        pass


def test_a_large_request_is_scanned_in_slices(serve_in_slices: Serve) -> None:
    running = serve_in_slices(counting)
    with running.client() as client:
        names = [str(number) for number in range(50_000)]
        (partition,) = client.call(
            "get_partitions_by_names", db_name="d", tbl_name="t", names=names
        )
    assert partition["values"] == ["50000"]
    assert len(running.server.slicing.slices) > 10
    assert running.on_loop(running.server.statistics).request_memory == 0


def test_the_connection_info_marks_a_request_with_many_values_as_large(serve: Serve) -> None:
    seen = []

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        seen.append((len(args.get("names", "")), connection.is_large, len(connection.request) > 0))
        return counting(connection, method, args)

    with serve(handler).client() as client:
        for count in (10, 2_000):
            names = ["x"] * count
            client.call("get_partitions_by_names", db_name="d", tbl_name="t", names=names)
        client.call("get_all_databases")
    assert seen == [(10, False, True), (2_000, True, False), (0, False, True)]


def test_a_large_request_that_gets_no_thread_is_refused_and_small_ones_are_served(
    serve: Serve,
) -> None:
    def in_thread(connection: ConnectionInfo, decode: Callable[[], Any]) -> Any:
        raise Overloaded(f"{connection.user} has enough in work; nothing was done, try again")

    with serve(counting, in_thread=in_thread).client() as client:
        client.call("set_ugi", user_name="ann", group_names=[])
        names = {"db_name": "d", "tbl_name": "t", "names": ["x"] * 2_000}
        with pytest.raises(ThriftException, match="ann has enough in work"):
            client.call("get_partitions_by_names", **names)
        names["names"] = ["x"]
        assert client.call("get_partitions_by_names", **names) == [{"values": ["1"]}]


@pytest.mark.slow
def test_the_event_loop_runs_other_tasks_between_any_two_slices(serve_in_slices: Serve) -> None:
    running = serve_in_slices(toy)
    turns: list[int] = []

    async def watch() -> None:
        while not running.server.counters.requests:
            turns.append(len(running.server.slicing.slices))
            await asyncio.sleep(0)

    with connect(running) as dear:
        watching = asyncio.run_coroutine_threadsafe(watch(), running.loop)
        dear.sendall(empty_structs(30_000))
        watching.result(60)
        assert len(read_messages(dear, 1)) == 1
    assert turns[-1] > 10
    assert max(after - before for before, after in pairwise(turns)) <= 1


def test_long_messages_are_scanned_in_turns(serve_in_slices: Serve) -> None:
    running = serve_in_slices(toy)
    slicing, message = running.server.slicing, empty_structs(30_000)
    with connect(running) as one, connect(running) as other:
        asyncio.run_coroutine_threadsafe(slicing.acquire(), running.loop).result(60)
        for stream in (one, other):
            stream.sendall(message)
        while running.on_loop(lambda: arrived(running)) < 2 * len(message):
            pass
        slicing.slices.clear()
        running.on_loop(slicing.release)
        for stream in (one, other):
            assert len(read_messages(stream, 1)) == 1
    last = {walk: place for place, walk in enumerate(slicing.slices)}
    assert len(last) == 2
    both = slicing.slices[: min(last.values()) + 1]
    assert len(both) > 10
    assert all(before is not after for before, after in pairwise(both))


def test_a_message_of_too_many_values_is_refused_once_their_number_is_read(serve: Serve) -> None:
    running = serve(toy)
    with connect(running) as stream:
        head = encode_message(CALL, "get_all_databases", 1, b"")
        stream.sendall(head + struct.pack(">bhbI", 15, 99, 12, 4_000_000))
        answer = read_messages(stream, 1)[0]
        failure = decode_application_exception(answer, at=decode_head(answer).body)
    assert failure.kind == ApplicationException.PROTOCOL_ERROR
    assert "holds more than 2000000 values" in failure.message


def test_the_total_memory_of_partial_messages_is_bounded_and_small_requests_are_served(
    serve: Serve,
) -> None:
    settings = ServerSettings(request_memory_bytes=4 * ALLOWANCE)
    running = serve(counting, settings=settings)
    large = request("get_database", 7, name="x" * (4 * ALLOWANCE))
    with connect(running) as first, connect(running) as second, running.client() as small:
        first.sendall(half(large))
        while not running.on_loop(lambda: running.server.statistics().request_memory):
            pass
        second.sendall(half(large))
        answer = read_messages(second, 1)[0]
        head = decode_head(answer)
        assert head.sequence == 7
        with pytest.raises(
            ThriftException, match=r"this node is full.*nothing was done"
        ) as refused:
            decode_result("get_database", answer, at=head.body)
        assert refused.value.name == "MetaException"
        second.sendall(half(large))  # the rest of its message is ignored
        assert small.call("get_all_databases") == ["d1"]
        assert running.server.statistics().protocol_errors == 0
        assert running.server.statistics().full == 1
        assert running.server.statistics().request_memory <= settings.request_memory_bytes
    while running.on_loop(lambda: running.server.statistics().request_memory):
        pass
    with connect(running) as third:
        third.sendall(request("get_database", 7, name="x" * (2 * ALLOWANCE)))
        answer = read_messages(third, 1)[0]
        with pytest.raises(ThriftException, match="does not exist"):
            decode_result("get_database", answer, at=decode_head(answer).body)
        assert running.on_loop(running.server.statistics).request_memory == 0


def test_the_memory_of_a_message_includes_that_of_its_values(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.metastore.thrift.connection._DRAIN_SECONDS", 0.01)
    running = serve(toy, settings=ServerSettings(request_memory_bytes=ALLOWANCE))
    message = empty_structs(30_000)
    assert len(message) < ALLOWANCE / 2
    with connect(running) as stream:
        stream.sendall(message)
        answer = read_messages(stream, 1)[0]
        with pytest.raises(ThriftException, match=r"this node is full.*nothing was done"):
            decode_result("get_all_databases", answer, at=decode_head(answer).body)
        assert read_to_end(stream) == b""
    assert running.on_loop(running.server.statistics).full == 1


def test_a_client_is_told_that_the_node_is_full_if_its_first_bytes_are_too_many(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.metastore.thrift.connection._DRAIN_SECONDS", 0.01)
    running = serve(toy, settings=ServerSettings(request_memory_bytes=1))
    message = request("get_database", 7, name="x" * ALLOWANCE)
    with connect(running) as stream:
        stream.sendall(request("get_all_databases"))
        read_messages(stream, 1)
        (connection,) = running.server._connections
        # In one piece, as from a client whose earlier messages were as long.
        running.on_loop(lambda: connection.data_received(message))
        answer = read_messages(stream, 1)[0]
        with pytest.raises(ThriftException, match=r"this node is full.*nothing was done"):
            decode_result("get_database", answer, at=decode_head(answer).body)
        assert read_to_end(stream) == b""


def test_a_large_request_of_an_unknown_method_is_told_that_the_node_is_full(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.metastore.thrift.connection._DRAIN_SECONDS", 0.01)
    running = serve(toy, settings=ServerSettings(request_memory_bytes=1))
    known = request("get_database", 7, name="x" * ALLOWANCE)
    with connect(running) as stream:
        stream.sendall(known.replace(b"get_database", b"get_nonsense"))
        answer = read_messages(stream, 1)[0]
        error = decode_application_exception(answer, at=decode_head(answer).body)
        assert "this node is full" in str(error)
        assert read_to_end(stream) == b""


def test_a_running_request_keeps_its_memory_after_its_client_disconnects(
    serve: Serve,
) -> None:
    begun, release = threading.Event(), asyncio.Event()

    async def wait() -> list[Any]:
        begun.set()
        await release.wait()
        return []

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        return wait()

    running = serve(handler)
    with connect(running) as stream:
        names = ["x" * 1000] * 1000
        stream.sendall(request("get_partitions_by_names", db_name="d", tbl_name="t", names=names))
        assert begun.wait(60)
        reset(stream)
    while running.on_loop(lambda: running.server.statistics().connections):
        pass
    assert running.on_loop(lambda: running.server.statistics().request_memory) > 1_000_000
    running.on_loop(release.set)
    while running.on_loop(lambda: running.server.statistics().request_memory):
        pass


@pytest.mark.slow
def test_a_request_is_not_executed_if_its_client_disconnects_while_it_is_scanned(
    serve_in_slices: Serve,
) -> None:
    called = []

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        called.append(method)
        return toy(connection, method, args)

    running = serve_in_slices(handler)
    slicing, message = running.server.slicing, empty_structs(30_000)
    asyncio.run_coroutine_threadsafe(slicing.acquire(), running.loop).result(60)
    stream = connect(running)
    stream.sendall(message)
    while running.on_loop(lambda: arrived(running)) < len(message):
        pass
    reset(stream)
    running.on_loop(slicing.release)
    while running.on_loop(lambda: running.server.statistics().connections):
        pass
    assert running.on_loop(running.server.statistics).request_memory == 0
    assert called == []


def test_a_request_that_is_refused_for_lack_of_memory_while_it_is_scanned_is_not_executed(
    serve: Serve,
) -> None:
    called = []

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        called.append(method)
        return toy(connection, method, args)

    running = serve(handler, settings=ServerSettings(request_memory_bytes=4 * ALLOWANCE))
    memory, slicing = running.server.memory, running.server.slicing
    message = request("get_partitions_by_names", db_name="d", tbl_name="t", names=["x" * 25] * 8000)
    with connect(running) as stream:
        asyncio.run_coroutine_threadsafe(slicing.acquire(), running.loop).result(60)
        stream.sendall(message[:-1])
        while running.on_loop(lambda: arrived(running)) < len(message) - 1:
            pass
        rest = 5 * ALLOWANCE - running.on_loop(lambda: memory.taken)
        running.on_loop(lambda: memory.reserve("others", rest, user="ann"))
        stream.sendall(message[-1:])
        answer = read_messages(stream, 1)[0]
        with pytest.raises(ThriftException, match="nothing was done"):
            decode_result("get_partitions_by_names", answer, at=decode_head(answer).body)
        running.on_loop(lambda: memory.release("others"))
        running.on_loop(slicing.release)
        while running.on_loop(lambda: any(c.in_work for c in running.server._connections)):
            pass
    assert called == []


def test_a_running_request_is_answered_even_if_the_node_lacks_memory_for_the_next_one(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.metastore.thrift.connection._DRAIN_SECONDS", 0)
    begun, release = threading.Event(), asyncio.Event()

    async def wait() -> list[str]:
        begun.set()
        await release.wait()
        return ["d1"]

    running = serve(lambda *_: wait(), settings=ServerSettings(request_memory_bytes=ALLOWANCE))
    running.on_loop(lambda: running.server.memory.reserve("others", 2 * ALLOWANCE, user="ann"))
    with connect(running) as stream:
        stream.sendall(request("get_all_databases"))
        assert begun.wait(60)
        stream.sendall(request("get_database", name="x" * ALLOWANCE))
        while not running.on_loop(running.server.statistics).full:
            pass
        running.on_loop(bool)  # its connection would close now
        running.on_loop(release.set)
        (answer,) = read_messages(stream, 1)
        assert decode_result("get_all_databases", answer, at=decode_head(answer).body) == ["d1"]
        assert read_to_end(stream) == b""


def test_a_request_is_not_executed_if_its_client_disconnects_while_it_is_decoded(
    serve: Serve,
) -> None:
    called: list[str] = []
    decodings: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        called.append(method)
        return toy(connection, method, args)

    def in_thread(connection: ConnectionInfo, decode: Callable[[], Any]) -> asyncio.Future[Any]:
        decodings.append((asyncio.get_running_loop().create_future(), decode))
        return decodings[-1][0]

    running = serve(handler, in_thread=in_thread)
    with connect(running) as stream:
        names = ["x"] * 2_000
        stream.sendall(request("get_partitions_by_names", db_name="d", tbl_name="t", names=names))
        while not decodings:
            pass
        reset(stream)
    while running.on_loop(lambda: running.server.statistics().connections):
        pass
    ((decoding, decode),) = decodings
    running.on_loop(lambda: decoding.set_result(decode()))
    running.on_loop(bool)
    assert called == []


def test_a_connection_whose_message_stays_incomplete_is_closed(serve: Serve) -> None:
    running = serve(toy, settings=ServerSettings(message_timeout=0.2))
    with connect(running) as slow, connect(running) as idle:
        slow.sendall(half(request("get_database", name="d1")))
        assert read_to_end(slow) == b""
        idle.sendall(request("get_all_databases"))
        assert len(read_messages(idle, 1)) == 1
    assert running.server.statistics().late_closed == 1


def test_the_time_of_a_message_counts_from_its_first_byte(serve: Serve) -> None:
    running, asked = serve(toy), request("get_all_databases")
    with connect(running) as stream:
        stream.sendall(asked)
        read_messages(stream, 1)
        (connection,) = running.server._connections
        times = [time.monotonic()]
        for part in (asked[:9], asked[9:-1]):
            before = running.on_loop(lambda: arrived(running))
            stream.sendall(part)
            while running.on_loop(lambda: arrived(running)) < before + len(part):
                pass
            times.append(time.monotonic())
        late = [running.on_loop(partial(connection.is_late, time)) for time in times]
    assert late == [False, True, True]


def test_a_message_that_waits_for_a_running_request_is_not_late(serve: Serve) -> None:
    release, asked = asyncio.Event(), request("get_all_databases")

    async def wait() -> list[str]:
        await release.wait()
        return ["d1"]

    running = serve(lambda *_: wait())
    with connect(running) as stream:
        stream.sendall(asked + asked[:-1])
        while running.on_loop(lambda: arrived(running)) != len(asked) - 1:
            pass
        (connection,) = running.server._connections
        before = time.monotonic()
        assert not running.on_loop(partial(connection.is_late, before))
        running.on_loop(release.set)
        assert len(read_messages(stream, 1)) == 1
        after = time.monotonic()
        late = [running.on_loop(partial(connection.is_late, time)) for time in (before, after)]
        assert late == [False, True]


def test_a_client_that_reads_slowly_is_not_late(serve: Serve) -> None:
    running = serve(toy)
    with connect(running) as stream:
        stream.sendall(request("get_all_databases"))
        read_messages(stream, 1)
        (connection,) = running.server._connections
        transport = connection._transport
        running.on_loop(lambda: transport.write(bytes(50_000_000)))
        running.on_loop(partial(connection.is_late, 0))  # notes how much is unsent
        before = time.monotonic()
        assert running.on_loop(partial(connection.is_late, before))
        unsent = running.on_loop(transport.get_write_buffer_size)
        while running.on_loop(transport.get_write_buffer_size) == unsent:
            assert stream.recv(1024)
        assert not running.on_loop(partial(connection.is_late, before))
        reset(stream)


def test_a_handler_learns_that_its_client_has_left(serve: Serve) -> None:
    asked, left = threading.Event(), threading.Event()

    async def answer() -> list[str]:
        asked.set()
        await asyncio.to_thread(left.wait, 60)
        return ["d1"]

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        connection.on_leave = left.set
        return answer()

    running = serve(handler)
    with connect(running) as stream:
        stream.sendall(request("get_all_databases"))
        assert asked.wait(60)
        reset(stream)
        assert left.wait(60)


def test_the_system_notices_clients_that_have_vanished(serve: Serve) -> None:
    running = serve(toy)
    with running.client() as client:
        client.call("get_all_databases")
        (connection,) = running.server._connections
        handle = connection._transport.get_extra_info("socket")
        assert handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_connection_whose_client_stops_reading_is_closed(serve: Serve) -> None:
    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        return ["x" * 50_000_000]

    running = serve(handler, settings=ServerSettings(message_timeout=0.2))
    with connect(running) as stream:
        stream.sendall(request("get_all_databases"))
        while not running.server.statistics().late_closed:
            pass
    assert running.server.statistics().late_closed == 1


def test_a_new_connection_displaces_only_one_that_never_sent_a_request(serve: Serve) -> None:
    settings = ServerSettings(max_connections=3, displace_after=0.0)
    running = serve(toy, settings=settings)
    with running.client() as idle, connect(running) as silent, connect(running) as half:
        assert idle.call("get_all_databases") == ["d1"]
        half.sendall(request("get_all_databases")[:-1])
        with running.client() as new:
            assert new.call("get_all_databases") == ["d1"]
            assert read_to_end(silent) == b""
            # Only now is it certain that `half`, not `new`, is the one that sent no request.
            with running.client() as newer:
                assert newer.call("get_all_databases") == ["d1"]
                assert read_to_end(half) == b""
            assert idle.call("get_all_databases") == ["d1"]
    statistics = running.server.statistics()
    assert (statistics.displaced, statistics.refused) == (2, 0)


def test_a_machine_with_most_connections_gives_way_to_a_client_of_another(serve: Serve) -> None:
    settings = ServerSettings(max_connections=2, displace_after=0.0, turned_away_seconds=60.0)
    running = serve(toy, settings=settings)
    asked = request("get_all_databases")

    def answers(stream: socket.socket) -> int:
        stream.sendall(asked)
        return decode_head(read_messages(stream, 1)[0]).kind

    def connect_from(host: str) -> socket.socket:
        return socket.create_connection((running.host, running.port), 60, source_address=(host, 0))

    with connect(running) as longest, connect(running) as other_idle:
        assert (answers(longest), answers(other_idle)) == (REPLY, REPLY)
        with connect_from("127.0.0.2") as first:
            assert answers(first) == REPLY  # before the second connects, which could displace it
            assert read_to_end(longest) == b""
            with connect_from("127.0.0.3") as second:
                second.sendall(asked)
                assert b"has 2 open connections" in read_messages(second, 1)[0]
            assert (answers(other_idle), answers(first)) == (REPLY, REPLY)
    statistics = running.server.statistics()
    assert (statistics.displaced, statistics.refused) == (1, 1)


def test_a_machine_with_most_connections_gives_way_to_two_clients_who_have_yet_to_send(
    serve: Serve,
) -> None:
    running = serve(toy, settings=ServerSettings(max_connections=5, displace_after=3600.0))
    address = running.host, running.port
    with ExitStack() as streams:
        for _ in range(5):
            stream = streams.enter_context(connect(running))
            stream.sendall(request("get_all_databases"))
            read_messages(stream, 1)
        for connection in running.on_loop(lambda: list(running.server._connections)):
            connection.last_activity -= 3601.0
        first, second = (
            streams.enter_context(socket.create_connection(address, 60, ("127.0.0.2", 0)))
            for _ in range(2)
        )
        for stream in (second, first):
            stream.sendall(request("get_all_databases"))
            assert decode_head(read_messages(stream, 1)[0]).kind == REPLY
    statistics = running.server.statistics()
    assert (statistics.displaced, statistics.refused) == (2, 0)


def test_a_client_that_is_turned_away_learns_why_from_each_of_its_first_requests(
    serve: Serve,
) -> None:
    settings = ServerSettings(max_connections=1, displace_after=0.0, turned_away_seconds=60.0)
    running = serve(toy, settings=settings)
    with connect(running) as idle:
        idle.sendall(request("get_all_databases"))
        read_messages(idle, 1)
        with connect(running) as new:
            for method, args in ASKED_FIRST:
                new.sendall(request(method, **args))
                (answer,) = read_messages(new, 1)
                with pytest.raises(ThriftException, match="has 1 open connections") as caught:
                    decode_result(method, answer, at=decode_head(answer).body)
                assert caught.value.name == "MetaException"
            running.server.settings = replace(settings, turned_away_seconds=0.01)
            with connect(running) as newer:
                assert read_to_end(newer) == b""
        idle.sendall(request("get_all_databases"))
        read_messages(idle, 1)
    statistics = running.server.statistics()
    assert (statistics.displaced, statistics.refused) == (0, 2)


def test_of_more_that_are_turned_away_the_oldest_are_closed(serve: Serve) -> None:
    settings = ServerSettings(max_connections=1, max_turned_away=2, turned_away_seconds=60.0)
    running = serve(toy, settings=settings)
    with running.client() as idle, ExitStack() as stack:
        assert idle.call("get_all_databases") == ["d1"]
        late = [stack.enter_context(connect(running)) for _ in range(5)]
        assert [read_to_end(stream) for stream in late[:3]] == [b""] * 3
        for stream in late[3:]:
            stream.sendall(request("get_all_databases"))
            assert len(read_messages(stream, 1)) == 1
    assert running.server.statistics().refused == 5


def test_a_connection_with_a_running_request_is_never_displaced(serve: Serve) -> None:
    release = asyncio.Event()

    async def wait() -> list[str]:
        await release.wait()
        return ["d1"]

    def handler(connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        return wait()

    settings = ServerSettings(max_connections=1, displace_after=0.0, turned_away_seconds=60.0)
    running = serve(handler, settings=settings)
    with connect(running) as busy:
        busy.sendall(request("get_all_databases"))
        while not running.on_loop(lambda: running.server.statistics().running):
            pass
        with running.client() as late, pytest.raises(ThriftException, match="1 open connections"):
            late.call("get_all_databases")
        running.on_loop(release.set)
        assert len(read_messages(busy, 1)) == 1
    assert running.server.statistics().refused == 1


def test_connections_with_a_foreign_protocol_are_counted(serve: Serve) -> None:
    running = serve(toy)
    for _ in range(50):
        with connect(running) as stream:
            stream.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert read_to_end(stream) == b""
    assert running.server.statistics().foreign == {"HTTP": 50}
