"""Connections to a node: reused for the next request, and closed if they are unusable."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from types import SimpleNamespace

import pytest

from strandline.metastore.session import http_transport
from strandline.metastore.session.calls import JSON_TYPE, PROTOCOL, PROTOCOL_HEADER
from strandline.metastore.session.http_transport import HttpTransport, Lost
from tests.metastore.session.served import WAIT, listening_socket

ANSWER = (
    f"HTTP/1.1 200 OK\r\nContent-Type: {JSON_TYPE}\r\n{PROTOCOL_HEADER}: {PROTOCOL}\r\n"
    "Content-Length: 4\r\n\r\nnull"
).encode()


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


def test_a_forked_process_does_not_send_on_the_connections_of_its_parent(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(HttpTransport(node.url, user="ann")) as transport, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(beat, transport)
        with node.accepted() as of_parent:
            answer(of_parent)
            sending.result()
            monkeypatch.setattr("os.getpid", lambda: -1)
            sending = pool.submit(beat, transport)
            with node.accepted() as of_child:
                answer(of_child)
                sending.result()
