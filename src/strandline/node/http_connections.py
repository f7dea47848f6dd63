"""The HTTP connections of a node: limits on their number and on how long each may take.

uvicorn speaks HTTP, with the parser of Node.js (llhttp). It has no limit of connections that spares
the requests of connected clients, and no timeout for a request head or for an unread answer.
`HttpConnections` adds them. Once a second, it checks all connections:

* it closes a connection if `HEAD_SECONDS` after the last answer no complete request head has come;
* it aborts a connection if the client has not read any of a pending answer for `READ_SECONDS`.

If a client connects while `MAX_CONNECTIONS` are open, the node aborts a connection from which no
call was admitted: not one that only reads pages, or has no valid credentials. If there is none, and
another machine has so many connections that others get none (`crowding_host`), it aborts one of
that machine. It aborts the one that has waited longest for its client, provided that it has waited
for `DISPLACE_AFTER`. Otherwise the new client gets status 503 at once.

The parser buffers what it has not passed on: the beginning of a header, of any length, or the
trailers after a body. So a connection may receive at most `MAX_HEAD_BYTES` without completing a
head, a part of a body or a message. Pipelining is not supported, since each waiting request would
take memory: a client that sends its next request before it has its answer gets that answer, and
then the connection closes. Malformed requests are counted and not logged, since any client can send
thousands of them.

The application limits the time for a body, and decides which requests run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from strandline.errors import Overloaded
from strandline.metastore.session.http_messages import ADMITTED, WHOLE
from strandline.metastore.session.wire_json import PROBLEM_TYPE, write_error
from strandline.metastore.thrift.serving import crowding_host, end_connection

MAX_CONNECTIONS = 1_000
HEAD_SECONDS = 10.0
READ_SECONDS = 60.0
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
DISPLACE_AFTER = 1.0
"""Seconds that a connection must have waited for its client before a new one displaces it."""
_PAUSE = 1.0
"""Seconds between two checks of all connections."""
_READING = 0.05
"""Seconds in which the loop reads what clients have sent, before it closes a late connection.

After the process has stood still, as a paused virtual machine does, timers run before that.
"""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ConnectionCounts:
    """Connections since the start, by what happened to them.

    ``late`` were closed because no request head came in time, ``cut`` were aborted because the
    client did not read its answer, and ``malformed`` sent invalid HTTP or too long a head. ``open``
    is the number of connections now.
    """

    open: int = 0
    accepted: int = 0
    refused: int = 0
    displaced: int = 0
    late: int = 0
    cut: int = 0
    malformed: int = 0


class HttpConnections:
    """All connections of one server; give `protocol` to uvicorn as ``http``."""

    def __init__(
        self,
        *,
        max_connections: int = MAX_CONNECTIONS,
        head_seconds: float = HEAD_SECONDS,
        pause: float = _PAUSE,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._pause = pause
        self._max_connections = max_connections
        self._head_seconds = head_seconds
        self._clock = clock
        self._open: set[_HttpConnection] = set()
        self._watching: asyncio.TimerHandle | None = None
        self.counts = ConnectionCounts()

    def protocol(self, *arguments: Any, **options: Any) -> asyncio.Protocol:  # Any: uvicorn's own
        """Return a new connection; uvicorn calls this as its protocol factory."""
        return _HttpConnection(self, *arguments, **options)

    def now(self) -> float:
        return self._clock()

    def statistics(self) -> ConnectionCounts:
        return replace(self.counts, open=len(self._open))

    def admit(self, connection: _HttpConnection) -> bool:
        """Admit a new connection, if need be in place of another; return False if it must close."""
        if len(self._open) >= self._max_connections and not self._make_room(connection):
            self.counts.refused += 1
            logger.warning(
                "refused an HTTP connection: %d are open, which is the maximum",
                len(self._open),
            )
            return False
        self.counts.accepted += 1
        self._open.add(connection)
        if self._watching is None:
            self._watch()
        return True

    def forget(self, connection: _HttpConnection) -> None:
        self._open.discard(connection)

    def look(self) -> None:
        """Close the connections that have taken too long."""
        now = self.now()
        for connection in list(self._open):
            unread = connection.unread()
            if unread and now - connection.last_read_at >= READ_SECONDS:
                self.counts.cut += 1
                logger.warning("closed an HTTP connection whose client does not read its answer")
                connection.transport.abort()
            elif connection.transport.is_closing():
                pass  # with TLS, closing waits for the client to confirm it
            elif (
                not unread
                and connection.awaits_head
                and now - connection.waits_since >= self._head_seconds
            ):
                self.counts.late += 1
                connection.transport.close()

    def _make_room(self, newcomer: _HttpConnection) -> bool:
        hosts = (connection.host for connection in self._open)
        crowding = crowding_host(hosts, limit=self._max_connections, but=newcomer.host)
        latest = self.now() - DISPLACE_AFTER
        waiting = [connection for connection in self._open if connection.waits_since <= latest]
        not_spared = [each for each in waiting if not each.is_spared]
        of_crowd = [each for each in waiting if each.host == crowding and each.awaits_head]
        longest = min(not_spared or of_crowd, key=lambda each: each.waits_since, default=None)
        if longest is None:
            return False
        self.counts.displaced += 1
        self._open.discard(longest)
        longest.transport.abort()
        return True

    def _watch(self) -> None:
        """Call `look` periodically while there are connections."""
        self.look()
        self._watching = None
        if self._open:
            loop = asyncio.get_running_loop()
            self._watching = loop.call_later(self._pause, self.watch_after_reading)

    def watch_after_reading(self) -> None:
        self._watching = asyncio.get_running_loop().call_later(_READING, self._watch)


class _Refused(Exception):
    """Raised in a parser callback to stop reading what the client sends."""


_TRANSFER_ENCODING = b"transfer-encoding"


class _HttpConnection(HttpToolsProtocol):
    """uvicorn's connection, which also shows what it waits for and limits what it buffers."""

    def __init__(self, connections: HttpConnections, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._connections = connections
        self.waits_since = self.last_read_at = connections.now()
        self._unread = 0
        self._pending_bytes = 0
        """Bytes received since the last complete head, part of a body or end of a message."""
        self._ignores_input = False
        self._is_ending = False
        self._was_admitted = self.is_spared = False
        """``is_spared``: it is not aborted for another. It was admitted, or waits for an answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        super().connection_made(transport)
        if not self._connections.admit(self):
            transport.write(_full())
            transport.close()

    def shutdown(self) -> None:
        self._is_ending = True
        if self.awaits_head:
            end_connection(self.transport)
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn's timer refers to the connection

    def timeout_keep_alive_handler(self) -> None:
        close = super().timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(_READING, close)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._pending_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stop_reading()  # the client switches to a protocol that the node does not speak
        except httptools.HttpParserError:
            is_first = self.cycle is None and self._pending_bytes == len(data)
            if is_first and not data[:1].isalpha():
                logger.warning(
                    "closed the connection from %s: this port takes HTTP; clients of Hive use the"
                    " other port of the node, and a node without tls_certificate speaks no TLS",
                    ":".join(map(str, self.client or ())),
                )
            self._refuse()
        else:
            if self._pending_bytes > MAX_HEAD_BYTES:
                self._refuse()

    def _refuse(self) -> None:
        self._connections.counts.malformed += 1
        if self.awaits_head or (self.cycle.more_body and not self.cycle.response_started):
            self.send_400_response("Invalid HTTP request received.")
        self._stop_reading()

    def _stop_reading(self) -> None:
        """Ignore all further input, and close the connection after the answer in progress."""
        self._ignores_input = True
        if not self.awaits_head:
            self.cycle.keep_alive = False

    def on_message_begin(self) -> None:
        if not self.awaits_head:
            raise _Refused
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.awaits_head:
            return  # a trailer, after a body; the node uses none
        if len(self.headers) == MAX_HEADERS:
            raise _Refused
        if name.lower() == _TRANSFER_ENCODING and not self._is_only_chunked(value):
            raise _Refused
        super().on_header(name, value)

    def _is_only_chunked(self, encoding: bytes) -> bool:
        """Whether ``chunked`` is the only encoding, so that every reader sees the same end."""
        is_first = all(name != _TRANSFER_ENCODING for name, _ in self.headers)
        return is_first and encoding.lower() == b"chunked"

    def on_headers_complete(self) -> None:
        self._pending_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._pending_bytes = 0
        self.is_spared = self.is_spared or not self.awaits_head
        self.scope[WHOLE] = True  # type: ignore[literal-required]  # a key of Strandline
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._was_admitted = self._was_admitted or ADMITTED in self.scope
        self.is_spared = self._was_admitted
        self.waits_since = self._connections.now()
        super().on_response_complete()
        if self._is_ending:
            end_connection(self.transport)

    @property
    def host(self) -> str:
        """The address of the client's machine."""
        return self.client[0] if self.client else ""

    @property
    def awaits_head(self) -> bool:
        """Whether the connection waits for the end of the next request's head."""
        return self.cycle is None or self.cycle.response_complete

    def unread(self) -> bool:
        """Whether part of an answer is still unread by the client; notes when it last read."""
        waiting = self.transport.get_write_buffer_size()
        if waiting != self._unread:
            self._unread, self.last_read_at = waiting, self._connections.now()
        return waiting > 0


def _full() -> bytes:
    status, body = write_error(
        Overloaded("this node has the maximum number of connections; nothing was done, try again")
    )
    head = (
        f"HTTP/1.1 {status} Service Unavailable\r\ncontent-type: {PROBLEM_TYPE}\r\n"
        f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
