"""Ports of the loopback interface, and a proxy that cuts connections at a chosen moment."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Self


class ReservedPort:
    """The number of a port that no process gets by chance, until `close`.

    A server that asks for this number gets it, any number of times: Linux shares a port between
    sockets with SO_REUSEADDR of which one listens, but chooses no port that any socket has.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


class Cut(Enum):
    """Where a connection is cut; the client sees it end without an answer."""

    REQUEST = auto()
    """The server does not get what the client sent."""
    ANSWER = auto()
    """The server gets it and answers, and the answer is lost."""
    LATE = auto()
    """The client is cut off at once, and the server gets the request at `Proxy.deliver`."""


Plan = Callable[[bytes], Cut | None]


class CutOnce:
    """The plan that cuts the connection once, at the ``number``-th message from now on."""

    def __init__(self, cut: Cut, number: int) -> None:
        self._cut, self._left = cut, number

    @property
    def happened(self) -> bool:
        """Whether the connection was cut."""
        return self._left <= 0

    def __call__(self, data: bytes) -> Cut | None:
        self._left -= 1
        return self._cut if self._left == 0 else None


class RandomFaults:
    """The plan that cuts or stalls ``share`` of all messages, in the order that ``seed`` gives."""

    def __init__(self, seed: int, *, share: float, longest_stall: float) -> None:
        self._choose = random.Random(seed)
        self._share, self._longest_stall = share, longest_stall
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.counts = dict.fromkeys((*Cut, None), 0)
        """How often each kind of cut happened; None is a stall."""

    def end(self) -> None:
        """From now on, pass on every message."""
        self._over.set()

    def __call__(self, data: bytes) -> Cut | None:
        with self._lock:
            if self._over.is_set() or self._choose.random() >= self._share:
                return None
            cut: Cut | None = self._choose.choice((*Cut, None))
            self.counts[cut] += 1
            seconds = self._choose.uniform(0, self._longest_stall)
        if cut is None:
            self._over.wait(seconds)
        return cut


class Proxy:
    """Passes bytes on between clients and a server on ``port``.

    ``plan`` gets what a client sends before it is passed on, and may cut the connection there. A
    late request waits until `deliver`, at most ``late_seconds``.
    """

    def __init__(self, port: int, plan: Plan, *, late_seconds: float | None = None) -> None:
        self._server = port
        self._plan = plan
        self._late_seconds = late_seconds
        self._late = threading.Event()
        self._taken = threading.Event()
        self._taken.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def deliver(self) -> None:
        """Let late requests reach the server."""
        self._late.set()

    def lead_to(self, port: int) -> None:
        """From now on, pass clients on to another server; their present connections end."""
        self._server = port
        for connection in self._sockets.copy():
            _end(connection)

    def take_no_answers(self) -> None:
        """From now on, pass no answer on, as if the clients' machine were gone."""
        self._taken.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._late.set()
        self._taken.set()
        _end(self._listening)
        self._threads[0].join(60)  # from now on, no connection is accepted
        for connection in self._sockets.copy():
            _end(connection)
        for thread in self._threads:
            thread.join(60)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:
                client.close()
                continue
            self._sockets.update((client, server))
            thread = threading.Thread(target=self._pass_on, args=(client, server), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """Serve one connection, and close its sockets: a test may cut thousands."""
        cut = threading.Event()
        arguments = server, client, cut
        answers = threading.Thread(target=self._answers, args=arguments, daemon=True)
        answers.start()
        self._requests(client, server, cut)
        answers.join()
        self._sockets.difference_update((client, server))
        client.close()
        server.close()

    def _requests(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                match self._plan(data):
                    case Cut.REQUEST:
                        # If the answer to its first part was to be cut: the server gives none.
                        cut.clear()
                        break
                    case Cut.ANSWER:
                        cut.set()
                    case Cut.LATE:
                        _end(client)
                        self._late.wait(self._late_seconds)
                server.sendall(data)
        if cut.is_set():
            return
        _end(server)
        _end(client)

    def _answers(self, server: socket.socket, client: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(1 << 16)) and not cut.is_set():
                self._taken.wait()
                client.sendall(data)
        _end(client)
        _end(server)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def read_to_end(stream: socket.socket) -> bytes:
    """All that comes until the other side closes or resets the connection."""
    parts = []
    try:
        while data := stream.recv(65536):
            parts.append(data)
    except ConnectionResetError:
        pass
    return b"".join(parts)
