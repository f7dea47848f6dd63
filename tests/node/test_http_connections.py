"""Connections that take too long, or too many places."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from strandline.node.http_connections import HttpConnections
from tests.metastore.session.served import serving

WAIT = 20.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Toy:
    """Answers each request with as many bytes as its path says, when it may."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await Request(scope, receive).body()
        except ClientDisconnect:
            return
        await Response(b"x" * int(scope["path"][1:]))(scope, receive, send)


@contextmanager
def watched(clock: Clock, **limits: float) -> Iterator[tuple[str, HttpConnections]]:
    connections = HttpConnections(pause=0.01, clock=clock, **limits)  # type: ignore[arg-type]  # one of them is a whole number
    with serving(Toy(), http=connections.protocol) as url:
        yield url, connections


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT)


def read_to_end(stream: socket.socket) -> bytes:
    parts = []
    try:
        while data := stream.recv(65536):
            parts.append(data)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def get(path: str) -> bytes:
    return f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@pytest.mark.parametrize("sent", [b"", b"GET /1 HT"])
def test_a_head_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
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


def test_the_beginning_of_a_next_head_does_not_keep_a_connection() -> None:
    clock = Clock()
    with watched(clock) as (url, connections), connect(url) as stream:
        stream.sendall(get("1"))
        while b"x" not in stream.recv(65536):
            pass
        stream.sendall(b"GET /1")
        while not connections.counts.late:
            clock.now += 1
        assert read_to_end(stream) == b""


def test_a_client_that_does_not_read_its_answer_is_cut() -> None:
    clock = Clock()
    with watched(clock) as (url, connections), connect(url) as stream:
        stream.sendall(get("50000000"))
        stream.recv(1)
        while not connections.counts.cut:
            clock.now += 30
        assert connections.counts.late == 0


def test_a_new_connection_takes_the_place_of_the_one_that_has_waited_longest() -> None:
    clock = Clock()
    with (
        watched(clock, max_connections=2) as (url, connections),
        connect(url) as first,
        httpx.Client(base_url=url, trust_env=False) as one,
        httpx.Client(base_url=url, trust_env=False) as another,
    ):
        while connections.counts.accepted < 1:
            pass
        clock.now += 0.5
        with connect(url) as half:
            half.sendall(b"POST /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
            while connections.counts.accepted < 2:
                pass
            with connect(url) as early:  # nobody has waited for long
                answer = read_to_end(early)
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"retry-after: 1" in answer
                assert b'"overloaded"' in answer
            clock.now += 1.0
            assert one.get("/3").content == b"xxx"
            assert read_to_end(first) == b""
            assert another.get("/3").content == b"xxx"
            assert read_to_end(half) == b""
    assert (connections.counts.displaced, connections.counts.refused) == (2, 1)
