"""What a server and its connections share, and the way out of answers.

**Slices.** Only the event loop sees the bytes of a message arrive. Finding the end of a message
with a hundred thousand values takes a tenth of a second, and every client would wait for that. So a
connection walks over a long message in slices. For each slice, and for the turn of the loop that
follows it, it holds a lock that all connections share (`Serving.slicing`), and that is passed on in
the order of requests. So between two slices the loop serves everything else that is ready,
and a small request waits for one slice, however many long messages there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from strandline.errors import Overloaded
from strandline.metastore.call_log import CallLog
from strandline.metastore.request_memory import ANSWER_BYTES, AnswerMemory, RequestMemory
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.dispatch import BaseService, Dispatcher
from strandline.metastore.thrift.messages import MAX_MESSAGE_BYTES, REPLY, encode_head
from strandline.work.contents import Body, pieces_of, release

CONFIRM_SECONDS = 1.0
"""How long a TLS client may take to confirm the end of its connection when the node stops."""
HOST_SHARE = 0.75
"""The share of the connections of a port beyond which a machine gives way to clients of others."""
SLICE_SECONDS = 0.0005
WHOLE_BYTES = 64 * 1024
"""The largest answer, in bytes, that is joined with its head and written at once."""


def end_connection(transport: asyncio.Transport) -> None:
    """Close a connection without waiting for a TLS client that is silent."""
    transport.close()
    if transport.get_extra_info("sslcontext") is not None:
        asyncio.get_running_loop().call_later(CONFIRM_SECONDS, _abort_sent, transport)


def crowding_host(hosts: Iterable[str], *, limit: int, but: str) -> str | None:
    """The machine with more than `HOST_SHARE` of ``limit`` connections, unless it is ``but``.

    ``hosts`` has the address of the client's machine for each open connection.
    """
    counts = Counter(hosts).most_common(1)
    return next((host for host, n in counts if n > limit * HOST_SHARE and host != but), None)


def _abort_sent(transport: asyncio.Transport) -> None:
    """Abort a connection unless its client has yet to read what was sent."""
    if not transport.get_write_buffer_size():
        transport.abort()


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a server. Times are in seconds; 0 disables either timeout.

    ``idle_timeout`` is the time without a byte in or out after which a connection is closed.
    ``message_timeout`` is how long a client may take to send one message, or to continue reading
    after it has stopped. When ``max_connections`` are open, a new connection replaces the one that
    has been silent longest of those that never sent a whole request, if it has been silent for
    ``displace_after`` seconds. If there is none, the new one is turned away: for
    ``turned_away_seconds``, each of its requests is answered with `Overloaded`. At most
    ``max_turned_away`` connections are open for that; the oldest ones are closed first.
    ``max_pipelined_bytes`` bounds the requests of one connection that wait for the one in progress.
    ``request_memory_bytes`` bounds the memory of large requests, complete or not, of all
    connections, and ``answer_memory_bytes`` that of their answers that are not sent yet; a single
    answer may be larger.
    """

    max_connections: int = 1000
    idle_timeout: float = 600.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_pipelined_bytes: int = 256 * 1024
    message_timeout: float = 120.0
    displace_after: float = 1.0
    max_turned_away: int = 100
    turned_away_seconds: float = 5.0
    request_memory_bytes: int = 512 * 1024 * 1024
    answer_memory_bytes: int = ANSWER_BYTES


@dataclass(slots=True)
class Counters:
    """What a server counts; see `ServerStatistics`."""

    accepted: int = 0
    refused: int = 0
    idle_closed: int = 0
    displaced: int = 0
    late_closed: int = 0
    requests: int = 0
    exceptions: int = 0
    failures: int = 0
    protocol_errors: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    foreign: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    kept: defaultdict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    """Answers that were kept from an earlier call, by the name of the method."""


class Serving:
    """What the connections of a server share. ``loop`` is set when the server starts."""

    loop: asyncio.AbstractEventLoop

    def __init__(
        self, dispatcher: Dispatcher, base: BaseService, settings: ServerSettings, calls: CallLog
    ) -> None:
        self.dispatcher = dispatcher
        self.base = base
        self.settings = settings
        self.calls = calls
        self.codec = HIVE_CODEC
        self.counters = Counters()
        self.reply_heads = {
            name.encode(): encode_head(REPLY, name) for name in HIVE_CODEC.table.methods
        }
        # A handler's task is kept here until it ends: its connection may end before it.
        self.running: set[asyncio.Task[Any]] = set()
        self.slicing = asyncio.Lock()
        self.memory = RequestMemory(settings.request_memory_bytes)
        self.answers = AnswerMemory(settings.answer_memory_bytes)


def _drop(_: bytes) -> None:
    """Write nothing."""


class Outgoing:
    """Sends the answers of one connection. A long answer goes in pieces, as the client reads them.

    ``write`` writes to the client; ``sent`` is called after a long answer. The memory of a long
    answer is held for ``owner`` until the answer is sent.
    """

    def __init__(
        self,
        serving: Serving,
        owner: object,
        *,
        write: Callable[[bytes], None],
        sent: Callable[[], object],
        is_closed: Callable[[], bool],
    ) -> None:
        self._serving = serving
        self._owner: object = owner
        self._write = write
        self._sent = sent
        self._is_closed = is_closed
        self._body: Body = b""
        self._pieces: Iterator[bytes] | None = None
        self._piece_due = False
        self.writable = True

    @property
    def in_work(self) -> bool:
        """Whether a part of a long answer is not written yet."""
        return self._pieces is not None

    def reserve(self, method: str, body: Body, *, user: str) -> None:
        """Reserve the memory for a long answer of ``method`` until it is sent.

        Raises `Overloaded` (see `AnswerMemory`), after closing a `Content`.
        """
        if len(body) <= WHOLE_BYTES or self._is_closed():
            return
        try:
            only_reads = self._serving.dispatcher.only_reads(method)
            self._serving.answers.reserve_answer(
                self._owner, body, user=user, only_reads=only_reads
            )
        except Overloaded:
            release(body)
            raise

    def send(self, head: bytes, body: Body) -> None:
        """Write an answer. A `Content` is closed once it is sent or cannot be sent."""
        if isinstance(body, bytes) and len(body) <= WHOLE_BYTES:
            self._write(head + body)
            return
        self._body, self._pieces = body, pieces_of(body)
        if self._is_closed():
            self.end()
            return
        self._write(head)
        self.send_soon()

    def send_soon(self) -> None:
        """Write the next piece in a later turn of the loop, if the client reads."""
        if not self._piece_due and self.writable:
            self._piece_due = True
            self._serving.loop.call_soon(self._send_piece)

    def _send_piece(self) -> None:
        self._piece_due = False
        if self._pieces is None or not self.writable or self._is_closed():
            return
        piece = next(self._pieces, None)
        if piece is None:
            self.end()
            self._sent()
            return
        self._write(piece)
        self.send_soon()

    def forget_connection(self) -> None:
        """End, and refer no more to the connection, which refers to this. The client has left."""
        self.end()
        self._owner = None
        self._write, self._sent, self._is_closed = _drop, bool, lambda: True

    def end(self) -> None:
        """Drop what is not written, and release its memory."""
        release(self._body)
        self._body, self._pieces = b"", None
        self._serving.answers.release(self._owner)
