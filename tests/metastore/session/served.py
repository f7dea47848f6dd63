"""A node that is served over HTTP, and a proxy that can cut connections to it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import uvicorn

from strandline.metastore.call_log import CallLog
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.workers import Workers
from strandline.node import Node, monitoring
from strandline.node.health import NodeHealth
from strandline.node.http_connections import HttpConnections
from strandline.node.monitoring import Monitoring
from tests.log_lines import NEVER_SLOW_MS

WAIT = 60.0
monitoring.DEADLINE = WAIT  # a slow machine is not a failure


def listening_socket(port: int = 0) -> socket.socket:
    """Return a socket that listens on loopback; connections wait until they are accepted."""
    made = bound_socket(port)
    made.listen(64)
    return made


def bound_socket(port: int = 0) -> socket.socket:
    """Return a socket that has a port on loopback and refuses connections."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


@contextmanager
def serving(
    application: Callable[..., Awaitable[None]], *, connections: HttpConnections | None = None
) -> Iterator[str]:
    """Serve ``application`` with a real server while the block runs; yield its URL."""
    with listening_socket() as listening:
        config = uvicorn.Config(
            application,
            log_config=None,  # as in a node: uvicorn must not configure the loggers of this process
            log_level="warning",
            lifespan="off",
            loop="uvloop",
            ws="none",
            http=cast(type[asyncio.Protocol], (connections or HttpConnections()).protocol),
            timeout_graceful_shutdown=5,
            timeout_keep_alive=int(WAIT),  # a slow machine keeps connections idle for long
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WAIT)


def monitored(
    node: Node,
    *,
    checks: NodeHealth | None = None,
    workers: Workers | None = None,
    **options: Any,
) -> HttpApplication:
    """Return the application for a node, with its monitoring pages."""
    workers, calls = workers or Workers(), CallLog(NEVER_SLOW_MS)
    statistics = {**node.statistics, "workers": workers.statistics}
    shown = Monitoring(node.catalogs, checks or node.health, statistics, calls)
    application = HttpApplication(
        node.metastore, workers=workers, calls=calls, pages=shown.pages, **options
    )
    shown.add("http", application.statistics)
    return application


class CuttingProxy:
    """A TCP proxy in front of a node that drops the requests and answers that a test names.

    ``cut_answer("commit")``: the next such call reaches the node, whose answer is dropped.
    ``cut_request("commit")``: the next such call never reaches the node.
    ``replace_answer("commit", page)``: the next such call reaches the node, and ``page`` is sent in
    place of its answer. While it is ``away``, every connection is closed as soon as it is made.
    """

    def __init__(self, url: str) -> None:
        self._upstream = _address(url)
        self._changed = threading.Condition()
        self._answers: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._pages: dict[str, bytes] = {}
        self._away = False
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.seen: Counter[str] = Counter()
        """How often each call arrived here."""
        self.turned_away = 0
        # Keeps the port reserved while the proxy does not listen.
        self._reserved = bound_socket()
        self._port = self._reserved.getsockname()[1]
        self._listening = listening_socket(self._port)
        self.url = f"http://127.0.0.1:{self._port}"
        self._accept_in_thread()

    def cut_answer(self, call: str, *, times: int = 1) -> None:
        with self._changed:
            self._answers[call] += times

    def cut_request(self, call: str, *, times: int = 1) -> None:
        with self._changed:
            self._requests[call] += times

    def replace_answer(self, call: str, page: bytes) -> None:
        with self._changed:
            self._pages[call] = page

    def lead_to(self, url: str) -> None:
        """Lead new requests to the node at ``url``."""
        self._upstream = _address(url)

    def go_away(self) -> None:
        with self._changed:
            self._away = True
        self._drop_connections()

    def come_back(self) -> None:
        with self._changed:
            self._away = False

    def wait_until_turned_away(self, times: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.turned_away >= times, timeout=WAIT)

    def stop_listening(self) -> None:
        """Refuse connections from now on, as a machine without a node does."""
        # A thread in accept keeps a closed socket alive; shutting down wakes it.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._drop_connections()
        for thread in self._threads:
            thread.join(WAIT)
        self._threads.clear()

    def listen_again(self) -> None:
        self._listening = listening_socket(self._port)
        self._accept_in_thread()

    def close(self) -> None:
        self.stop_listening()
        self._reserved.close()

    def _accept_in_thread(self) -> None:
        self._start(self._accept, self._listening)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]  # a method of this class
        self._threads.append(thread)
        thread.start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with self._changed:
                away = self._away
                self.turned_away += away
                if not away:
                    self._open.add(client)
                self._changed.notify_all()
            if away:
                client.close()
            else:
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while (request := _read_message(client)) is not None:
                call = request.split(b" ", 2)[1].rpartition(b"/")[2].decode()
                with self._changed:
                    self.seen[call] += 1
                    cut_request, cut_answer = self._requests[call] > 0, self._answers[call] > 0
                    if cut_request:
                        self._requests[call] -= 1
                    elif cut_answer:
                        self._answers[call] -= 1
                    page = self._pages.pop(call, None)
                if cut_request:
                    break
                with socket.create_connection(self._upstream) as upstream:
                    upstream.sendall(request)
                    answer = _read_message(upstream)
                if cut_answer or answer is None:
                    break
                client.sendall(page or answer)
        with self._changed:
            self._open.discard(client)

    def _drop_connections(self) -> None:
        with self._changed:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def _read_message(source: socket.socket) -> bytes | None:
    """Read one HTTP message with a Content-Length; return None at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = source.recv(65536)
        if not chunk:
            return None
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        chunk = source.recv(65536)
        if not chunk:
            return None
        body += chunk
    return head + b"\r\n\r\n" + body
