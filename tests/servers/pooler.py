"""A connection pooler in front of PostgreSQL, like PgBouncer: one session for many clients.

It begins a connection with a process number of its own. A client gets a session of the server, or
shares one with all clients, for a statement each. Notifications are not passed on. A client whose
session the server has ended gets an error of the pooler, at its next statement.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Self

_ENCRYPTION_REQUESTS = (80877103, 80877104)  # TLS, GSSAPI
_FIELDS = b"SFATAL\0VFATAL\0C08P01\0Mserver conn crashed?\0\0"
_CRASHED = b"E" + struct.pack("!I", len(_FIELDS) + 4) + _FIELDS
_INVENTED_KEY = b"K" + struct.pack("!III", 12, 1, 1)


class Pooler:
    """See the module; ``port`` is the server's, which asks for no password."""

    def __init__(self, port: int, *, shares_sessions: bool) -> None:
        self._server = port
        self._shares_sessions = shares_sessions
        self._turn = threading.Lock()
        self._shared: socket.socket | None = None
        self._greeting = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Clients must have closed their connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._listening.close()
        if self._shared is not None:
            self._shared.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            start = _packet(client)
            while struct.unpack("!I", start[4:8])[0] in _ENCRYPTION_REQUESTS:
                client.sendall(b"N")
                start = _packet(client)
            with contextlib.ExitStack() as own:
                session = self._session(start)
                if session is not self._shared:
                    own.enter_context(session)
                client.sendall(self._greeting)
                while (message := _message(client))[:1] != b"X":
                    self._answer(client, session, message)

    def _session(self, start: bytes) -> socket.socket:
        with self._turn:
            if self._shared is not None:
                return self._shared
            session = socket.create_connection(("127.0.0.1", self._server))
            session.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session.sendall(start)
            greeting = [_message(session)]
            while greeting[-1][:1] != b"Z":
                greeting.append(_message(session))
            self._greeting = b"".join(
                _INVENTED_KEY if message[:1] == b"K" else message for message in greeting
            )
            if self._shares_sessions:
                self._shared = session
            return session

    def _answer(self, client: socket.socket, session: socket.socket, message: bytes) -> None:
        """Pass on a message, and the answers up to the end of a statement."""
        answers: list[bytes] = []
        with self._turn if self._shares_sessions else contextlib.nullcontext():
            try:
                session.sendall(message)
                if message[:1] in b"QS":  # a statement, or the end of a group of messages
                    while not answers or answers[-1][:1] != b"Z":
                        answers.append(_message(session))
            except OSError:
                client.sendall(_CRASHED)
                raise
        client.sendall(b"".join(answers))


def _message(connection: socket.socket) -> bytes:
    return _exactly(connection, 1) + _packet(connection)


def _packet(connection: socket.socket) -> bytes:
    length = _exactly(connection, 4)
    return length + _exactly(connection, struct.unpack("!I", length)[0] - 4)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = connection.recv(length, socket.MSG_WAITALL)
    if len(data) < length:
        raise ConnectionError("the connection has ended")
    return data
