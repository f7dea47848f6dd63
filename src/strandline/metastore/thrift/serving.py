"""What a server and its connections share: settings, counters, and what each knows of the other.

**Slices.** Only the event loop sees the bytes of a message come, and to find the end of one with a
hundred thousand values takes a tenth of a second, for which every client would wait.

So a long computation on the event loop is a generator that yields wherever it may be interrupted,
some ten thousand times a second. In each turn of the loop one computation gets one slice, in the
order in which they came; between two turns the loop serves everything else that is ready. However
many computations there are, a small request waits for one slice, not for all.

What must stay true: a generator does not run longer than a part of a slice between two yields.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from strandline.errors import Overloaded
from strandline.metastore.call_log import CallLog
from strandline.metastore.served_calls import ANSWER_BYTES, AnswerMemory, RequestMemory
from strandline.metastore.thrift.codec import Codec
from strandline.metastore.thrift.dispatch import BaseService, Dispatcher
from strandline.metastore.thrift.messages import MAX_MESSAGE_BYTES
from strandline.work.contents import PIECE, Content

SLICE_SECONDS = 0.0005
WHOLE_BYTES = 64 * 1024
"""Answers up to this size are put together with their head, and written at once."""

T = TypeVar("T")

Sliced = Generator[None, None, T]
"""A computation that yields where it may be interrupted, and returns its result."""


class Slicing(Generic[T]):
    """One computation under way. ``done`` is called with its result or its error, on the loop."""

    __slots__ = ("cancelled", "done", "work")

    def __init__(self, work: Sliced[T], done: Callable[[T | None, Exception | None], None]) -> None:
        self.work = work
        self.done = done
        self.cancelled = False

    def cancel(self) -> None:
        """Gives the computation up; ``done`` is not called."""
        self.cancelled = True


class Slices:
    """The computations of one event loop. Not for several threads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        seconds: float = SLICE_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._clock = clock
        # The results are of as many types as there are computations: hence Any.
        self._waiting: deque[Slicing[Any]] = deque()
        self._scheduled = False
        self.turns = 0

    def begin(
        self, work: Sliced[T], done: Callable[[T | None, Exception | None], None]
    ) -> Slicing[T]:
        """Computes ``work`` from the next turn of the loop on, and calls ``done`` at its end."""
        slicing = Slicing(work, done)
        self._waiting.append(slicing)
        self._schedule()
        return slicing

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """One slice of the computation that has waited longest."""
        self._scheduled = False
        self.turns += 1
        slicing = self._waiting.popleft()
        try:
            self._run(slicing)
        finally:
            self._schedule()

    def _run(self, slicing: Slicing[Any]) -> None:
        result, failure = None, None
        end = self._clock() + self._seconds
        try:
            while not slicing.cancelled:
                next(slicing.work)
                if self._clock() >= end:
                    self._waiting.append(slicing)
                    return
        except StopIteration as stop:
            result = stop.value
        except Exception as error:
            failure = error
        if slicing.cancelled:
            slicing.work.close()
        else:
            slicing.done(result, failure)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """``idle_timeout`` is in seconds without a byte in or out; 0 keeps idle connections for ever.

    ``message_timeout`` is how many seconds a client may take to send one message, and to read on
    after it stopped reading; 0 for ever. Where ``max_connections`` are open, a new one takes the
    place of the longest idle one that has been so for ``displace_after`` seconds.
    ``max_pipelined_bytes`` bounds the requests of one connection that wait behind one in work,
    ``request_memory_bytes`` what large requests of all connections take, whole or not, and
    ``answer_memory_bytes`` what is answered to all of them and not yet sent; a single answer may be
    larger than that.
    """

    max_connections: int = 1000
    idle_timeout: float = 600.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_pipelined_bytes: int = 256 * 1024
    message_timeout: float = 120.0
    displace_after: float = 1.0
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
    foreign: dict[str, int] = field(default_factory=dict)
    kept: defaultdict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    """Answers that were kept from an earlier call, by the method's name."""

    def count_foreign(self, protocol: str) -> None:
        self.foreign[protocol] = self.foreign.get(protocol, 0) + 1


class Serving(Protocol):
    """The server as a connection sees it."""

    loop: asyncio.AbstractEventLoop
    dispatcher: Dispatcher
    settings: ServerSettings
    calls: CallLog
    codec: Codec
    counters: Counters
    base: BaseService
    running: set[asyncio.Task[Any]]
    slices: Slices
    memory: RequestMemory
    answers: AnswerMemory

    @property
    def reply_heads(self) -> Mapping[bytes, bytes]: ...

    def admit(self, connection: Any, /) -> bool:  # Any: the connection that asks
        """Whether a new connection may stay."""

    def forget(self, connection: Any, /) -> None:  # Any: the connection that ended
        """The connection is gone."""


class Outgoing:
    """What one connection sends: a long answer goes in pieces, as the client reads them.

    ``write`` writes to the client, ``sent`` is called after a long answer. The memory of a long
    answer is held for ``owner`` until it is sent.
    """

    def __init__(
        self,
        server: Serving,
        owner: object,
        *,
        write: Callable[[bytes | memoryview], None],
        sent: Callable[[], None],
        is_closed: Callable[[], bool],
    ) -> None:
        self._server = server
        self._owner = owner
        self._write = write
        self._sent = sent
        self._is_closed = is_closed
        self._pieces: Iterator[bytes | memoryview] | None = None
        self._content: Content | None = None
        self._piece_due = False
        self.writable = True

    @property
    def in_work(self) -> bool:
        """Whether a part of a long answer is not written yet."""
        return self._pieces is not None

    def hold(self, method: str, body: bytes | Content) -> None:
        """Take the memory for a long answer of ``method`` until it is sent.

        Raises `Overloaded`, see `AnswerMemory`; then a `Content` is closed.
        """
        size = len(body) if isinstance(body, bytes) else body.size
        if size <= WHOLE_BYTES or self._is_closed():
            return
        try:
            only_reads = self._server.dispatcher.only_reads(method)
            self._server.answers.hold_answer(self._owner, size, only_reads=only_reads)
        except Overloaded:
            if isinstance(body, Content):
                body.close()
            raise

    def send(self, head: bytes, body: bytes | Content) -> None:
        """Write an answer; a `Content` is closed once it is sent, or cannot be."""
        if isinstance(body, bytes) and len(body) <= WHOLE_BYTES:
            self._write(head + body)
            return
        if isinstance(body, Content):
            self._content = body
            self._pieces = body.pieces()
        else:
            view = memoryview(body)
            self._pieces = (view[at : at + PIECE] for at in range(0, len(view), PIECE))
        if self._is_closed():
            self.end()
            return
        self._write(head)
        self.send_soon()

    def send_soon(self) -> None:
        """Write the next piece in a turn of the loop, if the client reads."""
        if not self._piece_due and self.writable:
            self._piece_due = True
            self._server.loop.call_soon(self._send_piece)

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

    def end(self) -> None:
        """Give up what is not written, and give back its memory."""
        self._pieces = None
        if self._content is not None:
            self._content.close()
            self._content = None
        self._server.answers.release(self._owner)
