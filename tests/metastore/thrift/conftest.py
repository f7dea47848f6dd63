"""A Thrift server on a free loopback port, whose event loop runs in its own thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvloop

from strandline.metastore.thrift import ConnectionInfo, Dispatcher, ServerSettings, ThriftServer
from strandline.metastore.thrift.dispatch import Handler, InThread
from tests.metastore.session.served import listening_socket
from tests.servers.thrift_client import ThriftClient


class Running:
    """A server that runs in another thread."""

    def __init__(
        self, server: ThriftServer, loop: asyncio.AbstractEventLoop, listening: socket.socket
    ) -> None:
        self.server = server
        self.loop = loop
        self.host, self.port = listening.getsockname()

    def client(self, *, timeout: float = 60.0) -> ThriftClient:
        return ThriftClient(self.host, self.port, timeout=timeout)

    def on_loop(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread of the loop, after everything that is already scheduled."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(60)

    def stop(self, *, grace: float = 5.0) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(grace=grace), self.loop).result(60)


def in_any_thread(_: ConnectionInfo, decode: Callable[[], Any]) -> asyncio.Future[Any]:
    return asyncio.get_running_loop().run_in_executor(None, decode)


def reads_alone(_: str) -> bool:
    return True


def dispatcher_of(handler: Handler) -> Dispatcher:
    """A dispatcher of a service whose methods all change nothing."""
    return Dispatcher(handler, None, None, in_any_thread, reads_alone)


@contextmanager
def serving(dispatcher: Dispatcher, settings: ServerSettings) -> Iterator[Running]:
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="thrift server")
    thread.start()
    server = ThriftServer(dispatcher, settings=settings, now=lambda: 1234.9)
    try:
        with listening_socket() as listening:
            asyncio.run_coroutine_threadsafe(server.start(listening), loop).result(60)
            running = Running(server, loop, listening)
            yield running
            running.stop()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """Start a server for a handler; it is stopped when the test ends."""
    with ExitStack() as stack:

        def start(
            handler: Callable[..., Any],
            *,
            lookup: Callable[[bytes], bytes | None] | None = None,
            settings: ServerSettings | None = None,
            in_thread: InThread = in_any_thread,
            only_reads: Callable[[str], bool] = reads_alone,
        ) -> Running:
            dispatcher = Dispatcher(handler, lookup, None, in_thread, only_reads)
            return stack.enter_context(serving(dispatcher, settings or ServerSettings()))

        yield start
