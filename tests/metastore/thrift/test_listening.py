"""Clients that connect to a port with TLS and do not take part in a handshake."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import cast

import pytest
import trustme
import uvloop

from strandline.metastore.thrift import listening as listening_module
from strandline.metastore.thrift.listening import listen

WAIT = 60.0


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(b"hello")
        transport.close()


class Lacking(socket.socket):
    """A socket that finds no descriptor for its first connection."""

    lacks = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.lacks:
            self.lacks -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


Client = Callable[[tuple[str, int], ssl.SSLContext], Awaitable[None]]


async def greet(client: Client, listening: socket.socket) -> None:
    """Run ``client`` against a server that takes two handshakes at a time."""
    authority = trustme.CA()
    security = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(security)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusting)
    listening.bind(("127.0.0.1", 0))
    server = await listen(Greeting, listening, security=security, max_handshakes=2)
    try:
        async with asyncio.timeout(WAIT):
            await client(listening.getsockname(), trusting)
    finally:
        server.close()
        await server.wait_closed()


def greeting(address: tuple[str, int], trusting: ssl.SSLContext) -> bytes:
    plain = socket.create_connection(address, timeout=WAIT)
    with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        return secure.recv(10)


def test_of_too_many_handshakes_the_first_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening_module, "HANDSHAKE_SECONDS", 10 * WAIT)

    async def crowd(address: tuple[str, int], trusting: ssl.SSLContext) -> None:
        with ExitStack() as opened:
            connect = partial(socket.create_connection, address, timeout=WAIT)
            silent = [opened.enter_context(connect()) for _ in range(20)]
            for client in silent[:18]:
                assert await asyncio.to_thread(client.recv, 10) == b""
            assert await asyncio.to_thread(greeting, address, trusting) == b"hello"
            assert await asyncio.to_thread(silent[18].recv, 10) == b""
            silent[19].setblocking(False)
            with pytest.raises(BlockingIOError):
                silent[19].recv(10)

    with socket.socket() as listening:
        uvloop.run(greet(crowd, listening))


def test_connections_are_accepted_again_after_the_system_had_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening_module, "_PAUSE_SECONDS", 0.01)

    async def connect(address: tuple[str, int], trusting: ssl.SSLContext) -> None:
        assert await asyncio.to_thread(greeting, address, trusting) == b"hello"

    with Lacking() as listening:
        uvloop.run(greet(connect, listening))
    assert "cannot be accepted: Too many open files" in caplog.text
