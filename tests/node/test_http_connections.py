"""HTTP connections that take too long, or that exceed the limit."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from strandline.metastore.session.http_messages import (
    Answer,
    ClientGone,
    Receive,
    Request,
    Scope,
    Send,
)
from strandline.node.http_connections import HttpConnections
from tests.end_to_end.mutations import smuggling
from tests.metastore.session.served import serving
from tests.servers.loopback import read_to_end

WAIT = 60.0
FOR_LONG = httpx.Limits(keepalive_expiry=None)
"""The limits of a client that keeps its connection, however slow the machine is."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


PAGE = "/4"


class Toy:
    """Answers each request with as many bytes as its path says, followed by its user.

    It admits the callers of all requests except those for `PAGE`.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        """The paths of the requests that arrived completely."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, has_more = Request(scope, receive), True
        try:
            while has_more:
                _, has_more = await request.next_part()
        except ClientGone:
            return
        self.paths.append(request.path)
        if request.path != PAGE:
            request.admit()
        named = dict(scope["headers"]).get(b"x-strandline-user", b"")
        await Answer(b"x" * int(request.path[1:]) + named, "application/octet-stream").send(send)


@contextmanager
def watched(clock: Clock, **limits: float) -> Iterator[tuple[str, HttpConnections]]:
    connections = HttpConnections(pause=0.01, clock=clock, **limits)  # type: ignore[arg-type]  # one of them is a whole number
    with serving(Toy(), connections=connections) as url:
        yield url, connections


def connect(url: str, *, host: str = "127.0.0.1") -> socket.socket:
    """Connect to the node at ``url`` from the address ``host``."""
    address, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((address, int(port)), WAIT, source_address=(host, 0))


def get(path: str) -> bytes:
    return f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@pytest.mark.parametrize("sent", [b"", b"GET /1 HT"])
def test_a_connection_without_a_complete_head_is_closed_after_ten_seconds(sent: bytes) -> None:
    clock = Clock()
    with watched(clock) as (url, connections), connect(url) as stream:
        stream.sendall(sent)
        while not connections.counts.accepted:
            pass
        assert connections.statistics().open == 1
        clock.now += 9.0
        stream.settimeout(0.1)
        with pytest.raises(TimeoutError):
            stream.recv(1)
        stream.settimeout(WAIT)
        clock.now += 1.5
        assert read_to_end(stream) == b""
        assert connections.counts.late == 1


def post(*chunks: bytes, headers: bytes = b"") -> bytes:
    """A request with a body in chunks, without its end."""
    head = b"POST /1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    return head + headers + b"\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks)


ENDLESS = {
    "a header": b"GET /1 HTTP/1.1\r\nX: ",
    "headers": b"GET /1 HTTP/1.1\r\n",
    "a path": b"GET /",
    "headers behind a body": post(b"body") + b"0\r\n",
    "a header behind a body": post(b"body") + b"0\r\nX: ",
    "the length of a chunk": post(b"body") + b"1;",
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_endless_request_is_cut_off_and_counted(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    more = b"X: y\r\n" * 2_000 if what.startswith("headers") else b"1" * 16_000
    with watched(Clock()) as (url, connections), connect(url) as stream:
        stream.sendall(ENDLESS[what])
        sent = 0
        with pytest.raises(OSError, match=r"reset|pipe"):
            while True:
                stream.sendall(more)
                sent += len(more)
        assert sent < 8_000_000  # what the kernel can buffer
        assert connections.counts.malformed == 1
        assert caplog.records == []


@pytest.mark.parametrize(
    "sent", [b"\0\r\n\r\n", b"GET /1 HTTP/9.9\r\n\r\n", b"GET http:// HTTP/1.1\r\n\r\n"]
)
def test_a_malformed_request_is_refused(sent: bytes) -> None:
    with watched(Clock()) as (url, connections), connect(url) as stream:
        stream.sendall(sent)
        assert read_to_end(stream).startswith(b"HTTP/1.1 400 ")
        assert connections.counts.malformed == 1


def test_a_client_of_another_protocol_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client of Hive with the wrong port does not show what this port answers."""
    thrift = b"\x80\x01\x00\x01\x00\x00\x00\x09get_table"
    with watched(Clock()) as (url, _), connect(url) as stream:
        host, port = stream.getsockname()
        stream.sendall(thrift)
        read_to_end(stream)
    (line,) = caplog.messages
    assert line.startswith(f"closed the connection from {host}:{port}: this port takes HTTP; ")


def test_a_malformed_chunk_is_refused() -> None:
    with watched(Clock()) as (url, connections), connect(url) as stream:
        stream.sendall(post(b"body") + b"nonsense\r\n")
        assert read_to_end(stream).startswith(b"HTTP/1.1 400 ")
        assert connections.counts.malformed == 1


def test_only_the_first_of_pipelined_requests_is_answered() -> None:
    with watched(Clock()) as (url, _), connect(url) as stream:
        stream.sendall(get("5") * 1_000)
        answer = read_to_end(stream)
        assert answer.count(b"HTTP/1.1 200 ") == 1
        assert b"connection: close" in answer
        assert answer.endswith(b"xxxxx")


def test_a_request_for_an_upgrade_is_answered_as_http() -> None:
    with watched(Clock()) as (url, _), connect(url) as stream:
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        stream.sendall(get("5").replace(b"\r\n\r\n", b"\r\n" + upgrade))
        assert read_to_end(stream).endswith(b"xxxxx")


@pytest.mark.parametrize("ambiguous", smuggling())
def test_a_request_with_an_ambiguous_end_is_refused_with_everything_after_it(
    ambiguous: bytes,
) -> None:
    toy = Toy()
    with serving(toy) as url, connect(url) as stream:
        # A proxy may send what it takes for the next request once it has the answer to the first.
        stream.sendall(ambiguous)
        assert read_to_end(stream).startswith(b"HTTP/1.1 400 ")
    assert toy.paths == []


def test_trailers_are_not_headers_of_the_request() -> None:
    with watched(Clock()) as (url, _), connect(url) as stream:
        for _ in range(2):  # the connection can be reused
            stream.sendall(post(b"body"))
            stream.sendall(b"0\r\nX-Strandline-User: root\r\n\r\n")
            answer = b""
            while not answer.endswith((b"\r\n\r\nx", b"root")):
                answer += stream.recv(65536)
            assert b"root" not in answer


def test_the_partial_head_of_a_next_request_does_not_keep_a_connection_open() -> None:
    clock = Clock()
    with watched(clock) as (url, connections), connect(url) as stream:
        stream.sendall(get("1"))
        while b"x" not in stream.recv(65536):
            pass
        stream.sendall(b"GET /1")
        while not connections.counts.late:
            clock.now += 1
        assert read_to_end(stream) == b""


def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    clock = Clock()
    with watched(clock) as (url, connections), connect(url) as stream:
        stream.sendall(get("50000000"))
        stream.recv(1)
        while not connections.counts.cut:
            clock.now += 30
        while connections.statistics().open:
            pass
        assert (connections.counts.late, connections.counts.cut) == (0, 1)


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
def test_an_answer_without_a_body_is_sent(more: bytes) -> None:
    with watched(Clock()) as (url, _), connect(url) as stream:
        stream.sendall(b"HEAD /5 HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n")
        answer = stream.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\n")


def test_a_client_that_waits_for_permission_to_send_its_body_gets_it() -> None:
    with watched(Clock()) as (url, _), connect(url) as stream:
        head = b"POST /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        stream.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert stream.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        stream.sendall(b"body")
        assert stream.recv(65536).startswith(b"HTTP/1.1 200 ")


def idle_connection(connections: HttpConnections, stream: socket.socket) -> Any:
    """The only connection, that of ``stream``, after an answer, when uvicorn's timer runs."""
    stream.sendall(get("1"))
    while b"x" not in stream.recv(65536):
        pass
    (connection,) = connections._open
    while connection.timeout_keep_alive_task is None:
        pass
    return connection


def test_a_connection_is_not_idle_once_its_next_request_has_begun() -> None:
    """Otherwise uvicorn would close it during that request."""
    with watched(Clock()) as (url, connections), connect(url) as stream:
        connection = idle_connection(connections, stream)
        stream.sendall(b"GET /1")
        while not connection._pending_bytes:
            pass
        assert connection.timeout_keep_alive_task is None


def test_a_request_that_came_while_the_node_stood_still_is_answered() -> None:
    """When it continues, the timers of the connection run before the loop reads the request."""
    clock, continued = Clock(), threading.Event()
    with watched(clock) as (url, connections), connect(url) as stream:
        connection = idle_connection(connections, stream)

        def go_on() -> None:
            stream.sendall(get("2"))
            clock.now += 15.0
            connection.timeout_keep_alive_handler()
            connections.watch_after_reading()
            continued.set()

        connection.loop.call_soon_threadsafe(go_on)
        assert continued.wait(WAIT)
        assert stream.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_an_idle_connection_is_closed() -> None:
    with watched(Clock()) as (url, connections), connect(url) as stream:
        connection = idle_connection(connections, stream)
        connection.loop.call_soon_threadsafe(connection.timeout_keep_alive_handler)
        assert read_to_end(stream) == b""


def test_the_time_for_a_head_begins_at_the_last_answer() -> None:
    clock = Clock()
    with watched(clock) as (url, connections), connect(url) as stream:
        for _ in range(3):
            stream.sendall(get("1"))
            while b"x" not in stream.recv(65536):
                pass
            clock.now += 9.0
            for _ in range(2):
                watching = connections._watching
                while connections._watching is watching:
                    pass
    assert connections.counts.late == 0


def test_connections_are_watched_again_after_a_time_without_any() -> None:
    clock = Clock()
    with watched(clock) as (url, connections):
        connect(url).close()
        while not connections.counts.accepted or connections._watching is not None:
            pass
        with connect(url) as stream:
            while connections.counts.accepted < 2:
                pass
            clock.now += 11.0
            assert read_to_end(stream) == b""
    assert connections.counts.late == 1


def test_connections_that_have_ended_leave_room_for_others() -> None:
    with watched(Clock(), max_connections=1) as (url, connections):
        for _ in range(3):
            assert httpx.get(f"{url}/3", trust_env=False).content == b"xxx"
            while connections.statistics().open:
                pass
    assert connections.counts.refused == 0


def test_a_new_connection_replaces_one_whose_client_only_reads_pages() -> None:
    clock = Clock()
    with (
        watched(clock, max_connections=2) as (url, connections),
        httpx.Client(base_url=url, trust_env=False, limits=FOR_LONG) as client,
        httpx.Client(base_url=url, trust_env=False, limits=FOR_LONG) as another,
        connect(url) as reader,
    ):
        assert client.get("/3").content == b"xxx"
        assert client.get(PAGE).content == b"xxxx"  # was admitted before
        reader.sendall(f"GET {PAGE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"xxxx"):
            answer += reader.recv(65536)
        clock.now += 1.0
        assert another.get("/3").content == b"xxx"
        assert read_to_end(reader) == b""
        assert client.get("/3").content == b"xxx"
    assert (connections.counts.displaced, connections.counts.refused) == (1, 0)


def test_a_machine_with_most_connections_gives_way_to_a_client_of_another() -> None:
    clock = Clock()

    def connected(url: str, host: str) -> httpx.Client:
        transport = httpx.HTTPTransport(local_address=host, limits=FOR_LONG)
        return httpx.Client(base_url=url, transport=transport, trust_env=False)

    with (
        watched(clock, max_connections=2) as (url, connections),
        connected(url, "127.0.0.1") as longest,
        connected(url, "127.0.0.1") as other_idle,
        connected(url, "127.0.0.2") as first,
        connected(url, "127.0.0.3") as second,
    ):
        for client in (longest, other_idle, first):
            clock.now += 1.0
            assert client.get("/3").content == b"xxx"
        clock.now += 1.0
        assert second.get("/3").status_code == 503
        assert other_idle.get("/3").content == first.get("/3").content == b"xxx"
    assert (connections.counts.displaced, connections.counts.refused) == (1, 1)


def test_a_machine_with_most_connections_gives_way_to_two_clients_who_have_yet_to_send() -> None:
    clock = Clock()
    with (
        watched(clock, max_connections=5) as (url, connections),
        ExitStack() as streams,
    ):
        for _ in range(5):
            stream = streams.enter_context(connect(url))
            stream.sendall(get("1"))
            while b"x" not in stream.recv(65536):
                pass
        clock.now += 1.0
        first, second = (streams.enter_context(connect(url, host="127.0.0.2")) for _ in range(2))
        for stream in (second, first):
            stream.sendall(get("1"))
            assert stream.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert (connections.counts.displaced, connections.counts.refused) == (2, 0)


def test_a_new_connection_replaces_only_one_that_never_sent_a_whole_request() -> None:
    clock = Clock()
    with (
        watched(clock, max_connections=2) as (url, connections),
        connect(url) as first,
        httpx.Client(base_url=url, trust_env=False, limits=FOR_LONG) as client,
        httpx.Client(base_url=url, trust_env=False, limits=FOR_LONG) as another,
        httpx.Client(base_url=url, trust_env=False) as third,
    ):
        while connections.counts.accepted < 1:
            pass
        clock.now += 0.5
        with connect(url) as half:
            half.sendall(b"POST /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
            while connections.counts.accepted < 2:
                pass
            with connect(url) as early:  # no connection has been idle for long
                answer = read_to_end(early)
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"retry-after: 1" in answer
                assert b'"overloaded"' in answer
            clock.now += 1.0
            assert client.get("/3").content == b"xxx"
            assert read_to_end(first) == b""
            assert another.get("/3").content == b"xxx"
            assert read_to_end(half) == b""
            clock.now += 1.0
            assert third.get("/3").status_code == 503
            assert client.get("/3").content == b"xxx"
    assert (connections.counts.displaced, connections.counts.refused) == (2, 2)
