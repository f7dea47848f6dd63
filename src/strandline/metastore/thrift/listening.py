"""How both ports of a node accept connections.

A server learns of a connection once it is made, which with TLS is after the handshake. So its limit
of connections does not hold for clients that connect and say nothing: they could take all
descriptors of the process, and the node could open no file any more. The event loop has no limit
for handshakes either. So with TLS, connections are accepted here. Of too many handshakes at a time,
the one that began first is given up: a client that takes part needs a fraction of a second.

One turn of the event loop accepts one connection, because each handshake takes a millisecond of
processor time: other clients are served between two of them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol

HANDSHAKE_SECONDS = 10.0
"""A TLS client whose handshake takes longer is disconnected."""
BACKLOG = 1024
"""The maximum number of connections that wait to be accepted."""
_PAUSE_SECONDS = 1.0
"""How long nothing is accepted if the system has no descriptor for it."""

logger = logging.getLogger(__name__)

Connect = Callable[[], asyncio.Protocol]
"""Returns the protocol of a new connection."""


class Listener(Protocol):
    """A part of `asyncio.Server`. After `close`, no more connections are accepted."""

    def close(self) -> object: ...

    async def wait_closed(self) -> object: ...


async def listen(
    connect: Connect,
    listening: socket.socket,
    *,
    security: ssl.SSLContext | None,
    max_handshakes: int,
) -> Listener:
    """Accept the connections of a socket, with TLS if ``security`` is given."""
    if security is None:
        loop = asyncio.get_running_loop()
        return await loop.create_server(connect, sock=listening, backlog=BACKLOG)
    return _Handshakes(connect, listening, security, max_handshakes)


class _Handshakes:
    """Accepts the connections of ``listening`` with TLS, in at most ``limit`` handshakes."""

    def __init__(
        self, connect: Connect, listening: socket.socket, security: ssl.SSLContext, limit: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._listening = listening
        self._security = security
        self._limit = limit
        self._in_progress: dict[asyncio.Task[object], None] = {}  # in their order
        self._is_closed = False
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._resume()

    def close(self) -> None:
        self._is_closed = True
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for handshake in self._in_progress:
            handshake.cancel()

    async def wait_closed(self) -> None:
        if self._in_progress:
            await asyncio.wait(self._in_progress)

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):  # the client has left
            return
        except OSError as error:
            logger.warning("a connection cannot be accepted: %s", error.strerror)
            self._loop.remove_reader(self._listening)
            self._loop.call_later(_PAUSE_SECONDS, self._resume)
            return
        accepted.setblocking(False)
        if len(self._in_progress) >= self._limit:
            first = next(iter(self._in_progress))
            del self._in_progress[first]  # it ends later; another may come before
            first.cancel()
        handshake = self._loop.create_task(self._handshake(accepted))
        self._in_progress[handshake] = None
        handshake.add_done_callback(partial(self._ended, accepted))

    async def _handshake(self, accepted: socket.socket) -> object:
        return await self._loop.connect_accepted_socket(
            self._connect, accepted, ssl=self._security, ssl_handshake_timeout=HANDSHAKE_SECONDS
        )

    def _ended(self, accepted: socket.socket, handshake: asyncio.Task[object]) -> None:
        self._in_progress.pop(handshake, None)
        # Otherwise the client has left, is late, or speaks no TLS.
        if handshake.cancelled() or handshake.exception() is not None:
            accepted.close()  # does nothing if the event loop has it
