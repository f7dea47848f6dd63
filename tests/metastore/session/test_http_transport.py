"""Connections to a node: reused for the next request, and closed if they are unusable."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import NoReturn

import pytest

from strandline.errors import InvalidInput, Overloaded, ProtocolError, Stopping, StoreMoved
from strandline.metastore.session import http_transport
from strandline.metastore.session.calls import JSON_TYPE, PROTOCOL, PROTOCOL_HEADER, STORE_HEADER
from strandline.metastore.session.http_transport import HttpTransport, Lost
from strandline.metastore.session.wire_json import write_error
from tests.metastore.session.served import WAIT, listening_socket

ANSWER = (
    f"HTTP/1.1 200 OK\r\nContent-Type: {JSON_TYPE}\r\n{PROTOCOL_HEADER}: {PROTOCOL}\r\n"
    "Content-Length: 4\r\n\r\nnull"
).encode()


def answer_of(store: str) -> bytes:
    """The same answer by a node of ``store``."""
    return ANSWER.replace(b"Content-Length", f"{STORE_HEADER}: {store}\r\nContent-Length".encode())


class FakeNode:
    """A server that answers when the test makes it answer."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def accepted(self) -> socket.socket:
        """Accept and return the next connection of a client."""
        self._listening.settimeout(WAIT)
        connection, _ = self._listening.accept()
        connection.settimeout(WAIT)
        return connection


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with listening_socket() as listening:
        yield FakeNode(listening)


def answer(connection: socket.socket, sent: bytes = ANSWER) -> None:
    """Read a request and send ``sent``."""
    assert connection.recv(65536).startswith(b"POST ")
    connection.sendall(sent)


def has_ended(connection: socket.socket) -> bool:
    """Return whether the client closes the connection without sending more."""
    with suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def beat(transport: HttpTransport, seconds: float = WAIT) -> None:
    transport.send("heartbeat", {"txn_id": 1}, seconds)


def test_a_connection_is_reused(node: FakeNode) -> None:
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as connection:
            for _ in range(2):
                answer(connection)
                sending.result()
                sending = pool.submit(beat, transport)
            answer(connection)
            sending.result()


def test_a_connection_whose_answer_timed_out_is_closed_at_once(node: FakeNode) -> None:
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport, 0.2)
        with node.accepted() as connection:
            answer(connection, ANSWER[:-2])
            lost = sending.exception()  # kept, as a session keeps it while it waits
            assert has_ended(connection)
            assert isinstance(lost, Lost)
            assert lost.sent


def test_a_time_limit_of_the_caller_ends_a_request_as_itself(node: FakeNode) -> None:
    """A handler of SIGALRM raises `TimeoutError`, as a socket does after its own time-out."""

    def end(_: int, __: object) -> NoReturn:
        raise TimeoutError("the limit of this job")

    former = signal.signal(signal.SIGALRM, end)
    try:
        with (
            closing(HttpTransport(node.url, user="ann")) as transport,
            pytest.raises(TimeoutError, match="the limit of this job"),
        ):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            beat(transport)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def test_a_request_closes_the_connections_that_were_idle_too_long(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(http_transport, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(2) as pool:
        both = [pool.submit(beat, transport) for _ in range(2)]
        with node.accepted() as idle, node.accepted() as busy:
            answer(idle)
            wait(both, return_when=FIRST_COMPLETED)
            answer(busy)
            wait(both)
            for clock.now in (1.5, 3.0):
                sending = pool.submit(beat, transport)
                answer(busy)
                sending.result()
            assert has_ended(idle)


def test_a_forked_process_uses_no_connection_and_no_lock_of_its_parent(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as of_parent:
            answer(of_parent)
            sending.result()
            monkeypatch.setattr("os.getpid", lambda: -1)
            transport._lock.acquire()  # by a thread that runs only in the parent
            sending = pool.submit(beat, transport)
            with node.accepted() as of_child:
                answer(of_child)
                sending.result()


@pytest.mark.parametrize(
    ("status", "more", "body", "sent", "waited"),
    [
        (503, "Retry-After: 7\r\n", write_error(Overloaded("full"))[1], False, 7),
        (503, "Retry-After: 100000\r\n", write_error(Overloaded("full"))[1], False, 10),
        (503, "", write_error(Stopping("ends"))[1], True, 0),
        (500, "", b"<html>", True, 0),
        (502, "", b"<html>", True, 0),
        (504, "", b"<html>", True, 0),
        (524, "", b"error code: 524", True, 0),
    ],
)
def test_a_refusal_says_whether_the_request_was_sent_and_how_long_to_wait(
    node: FakeNode, status: int, more: str, body: bytes, sent: bool, waited: int
) -> None:
    head = f"HTTP/1.1 {status} No\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as connection:
            answer(connection, head.encode() + body)
            lost = sending.exception()
    assert isinstance(lost, Lost)
    assert (lost.sent, lost.wait) == (sent, waited)


def test_the_connection_of_a_call_that_ends_after_its_session_is_closed(node: FakeNode) -> None:
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as connection:
            transport.close()
            answer(connection)
            sending.result()
            assert has_ended(connection)


def test_the_headers_of_an_interim_answer_are_not_those_of_the_answer(node: FakeNode) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nContent-Type: text/html\r\n\r\n"
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as connection:
            answer(connection, interim + ANSWER)
            sending.result()


@pytest.mark.parametrize("result", [b"true", b"nul]"])
def test_a_result_that_cannot_be_read_does_not_look_like_a_refusal(
    node: FakeNode, result: bytes
) -> None:
    """The call was executed. A staging that was refused would lose its files."""
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as connection:
            answer(connection, ANSWER.replace(b"null", result))
            lost = sending.exception()
    assert isinstance(lost, Lost)
    assert lost.sent
    assert isinstance(lost.answer, ProtocolError)
    assert "cannot be read" in lost.answer.message


def test_a_request_with_two_answers_is_lost_and_its_connection_is_closed(node: FakeNode) -> None:
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as connection:
            answer(connection, ANSWER + ANSWER)
            assert isinstance(sending.exception(), Lost)
            assert has_ended(connection)


def test_few_idle_connections_are_kept(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "_MAX_IDLE", 1)
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(2) as pool:
        both = [pool.submit(beat, transport) for _ in range(2)]
        with node.accepted() as kept, node.accepted() as unused:
            answer(kept)
            wait(both, return_when=FIRST_COMPLETED)
            answer(unused)
            wait(both)
            assert has_ended(unused)


def test_an_answer_is_read_although_the_node_stopped_reading_the_request(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(socket.socket):
        def sendall(self, data: bytes) -> None:  # type: ignore[override]  # one way to call it
            super().sendall(data)
            raise BrokenPipeError

    connect = socket.create_connection

    def refused(address: tuple[str, int], timeout: float) -> socket.socket:
        return Refused(fileno=connect(address, timeout).detach())

    monkeypatch.setattr(socket, "create_connection", refused)
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as connection:
            answer(connection)
            sending.result()


@pytest.mark.parametrize("port", ["1", "x"])
def test_a_secret_in_the_address_of_a_node_is_refused_and_not_shown(port: str) -> None:
    with pytest.raises(InvalidInput, match="give them as user=… and secret=…") as refused:
        HttpTransport(f"http://ann:hidden@127.0.0.1:{port}", user="ann")
    assert "hidden" not in refused.value.message


def test_port_0_is_not_the_address_of_a_node() -> None:
    with pytest.raises(InvalidInput, match="is not the address of a node"):
        HttpTransport("http://127.0.0.1:0", user="ann")


def test_each_request_after_the_first_result_names_the_store(node: FakeNode) -> None:
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as connection:
            for sent in (ANSWER, answer_of("A")):  # the first is one of an older node
                assert STORE_HEADER.encode() not in connection.recv(65536)
                connection.sendall(sent)
                sending.result()
                sending = pool.submit(beat, transport)
            assert f"\r\n{STORE_HEADER}: A\r\n".encode() in connection.recv(65536)
            connection.sendall(ANSWER)
            sending.result()


def test_a_result_of_another_store_than_the_first_one_is_refused(node: FakeNode) -> None:
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as connection:
            answer(connection, answer_of("A"))
            sending.result()
            sending = pool.submit(beat, transport)
            answer(connection, answer_of("B"))
            with pytest.raises(StoreMoved, match=r"executed the call for .* 'B', but .* 'A'"):
                sending.result()
