"""One client's connection: it receives bytes, serves requests in order, and sends the answers.

The problem: a client may send requests faster than it reads answers, a handler may wait for a
store, and the byte stream may contain anything. None of this may hold up other connections, reorder
answers, or fill the memory.

The model: bytes stay in the scanner until their request is served. `_pump` takes the next whole
message only when no request of this connection is in progress and the client reads its answers.
After a few requests it yields to the event loop. So answers are in order by construction, and the
scanner's buffer is the queue of requests: when it is full, the connection stops reading the socket
and TCP slows the client down.

What must stay true:

* After an unreadable byte the connection reads nothing more, because the message boundary is lost.
  If the name of the request is known, the client gets an answer (``TApplicationException`` 7). Then
  the connection closes.
* If the arguments of a message do not decode but its end is known, only that request fails.
* A request that has begun runs to its end, even if its client has left. A request that is still
  being read or decoded, that waits for a thread, or that only reads in a child process is given up.
* The rule in `strandline.work` decides where a request is decoded and answered. Finding the end of
  a long request happens on the event loop, in slices, and counts as a request in progress.
* A connection that the server turns away is served like any other, except that each of its requests
  gets an error. Clients ignore the failure of their first request (``set_ugi``), so one error would
  not be seen.
* Requests that are not answered yet are held in the server's request memory, and answers that are
  not sent yet in its answer memory. If one of them is full, the client gets an error at once. The
  answer of a call that changed something is never withheld.
* A long answer is written in pieces, as the client reads them.
* The type byte of a request is ignored: the field table says whether a method is oneway.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic, perf_counter
from typing import Any, cast

from strandline.errors import Overloaded, ProtocolError, StrandlineError, Unavailable
from strandline.logs import CLIENT
from strandline.metastore.request_memory import ALLOWANCE
from strandline.metastore.thrift.dispatch import (
    Answer,
    ConnectionInfo,
    Lookup,
    answer_error,
    answer_value,
    refusal,
)
from strandline.metastore.thrift.messages import (
    EXCEPTION,
    REPLY,
    TELLING_BYTES,
    ApplicationException,
    decode_head,
    encode_head,
    foreign_protocol,
    request_key,
)
from strandline.metastore.thrift.scanner import Scanner
from strandline.metastore.thrift.serving import SLICE_SECONDS, Outgoing, Serving, end_connection
from strandline.work import IN_THREAD, units_of_bytes, units_of_values

_log = logging.getLogger(__name__)

_REQUESTS_A_TURN = 32
"""The maximum number of requests of one connection that one turn of the event loop serves."""
_VALUES_AT_ONCE = 1_000
"""The maximum number of values that one turn walks over, or that are decoded on the event loop."""
_BYTES_OF_A_VALUE = 64
"""Bytes of memory that a decoded value takes in addition to its bytes in the message."""
_MAX_KEPT_REQUEST = 64 * 1024
"""The size in bytes of the largest request that is looked up among the kept answers."""
_DRAIN_SECONDS = 2.0
"""Seconds that a refused client may go on sending, so that it can read the reason."""


class Connection(asyncio.Protocol):
    """Serves one client of a server.

    ``admit`` is called with a new connection and returns whether the server accepts it; ``forget``
    is called with one that has ended.
    """

    def __init__(
        self,
        serving: Serving,
        connection_id: int,
        *,
        admit: Callable[[Connection], bool],
        forget: Callable[[Connection], object],
    ) -> None:
        self._serving = serving
        self._id = connection_id
        self._admit, self._forget = admit, forget
        self._scanner = Scanner(max_message_bytes=serving.settings.max_message_bytes)
        self._max_waiting = serving.settings.max_pipelined_bytes
        self._speaks_thrift = self._turn_is_due = False
        self._ended = self._closed = self._draining = False
        self._has_asked = self._is_turned_away = False
        self._running: asyncio.Task[Any] | None = None
        self._walking: asyncio.Task[bytes | None] | None = None
        self._decoding: asyncio.Future[dict[str, Any]] | None = None
        self._has_reserved = False
        self._bytes_in_work = self._unsent = 0
        self._outgoing = Outgoing(
            serving, self, write=self._write, sent=self._pump, is_closed=lambda: self._closed
        )
        self._began = self._coming_since = self.last_activity = monotonic()

    # Called by the event loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.info = ConnectionInfo(self._id, name)
        self._log_from_here()
        handle = transport.get_extra_info("socket")
        if handle is not None and handle.family in (socket.AF_INET, socket.AF_INET6):
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._is_turned_away = not self._admit(self)
        if self._is_turned_away:
            self._serving.loop.call_later(self._serving.settings.turned_away_seconds, self._close)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._stop_walking()
        self._scanner = Scanner()
        self.info.on_leave()
        self._outgoing.forget_connection()
        if self._running is None:  # else the task still holds its arguments
            self._serving.memory.release(self)
        self._forget(self)

    def data_received(self, data: bytes) -> None:
        if self._closed or self._ended or self._draining:
            return
        self._log_from_here()
        self.last_activity = monotonic()
        if not self._scanner.waiting:
            self._coming_since = self.last_activity
        self._serving.counters.bytes_received += len(data)
        self._scanner.feed(data)
        if not self._speaks_thrift and not self._check_protocol():
            return
        if self._reserve_memory():
            self._pump()

    def eof_received(self) -> bool:
        """The client sends no more. Answer what it has sent, then close the connection.

        With TLS, the event loop closes the connection at once.
        """
        self._log_from_here()
        self._ended = True
        if self._speaks_thrift:
            self._pump()
        has_tls = self._transport.get_extra_info("sslcontext") is not None
        return self._speaks_thrift and not self._closed and not has_tls

    def pause_writing(self) -> None:
        self._outgoing.writable = False

    def resume_writing(self) -> None:
        self._log_from_here()
        self._outgoing.writable = True
        self.last_activity = monotonic()
        if self._outgoing.in_work:
            self._outgoing.send_soon()
        else:
            self._pump()

    def _log_from_here(self) -> None:
        """Log what is called from here on as part of this connection.

        The event loop calls the methods of all connections in one context.
        """
        CLIENT.set(self.info.peer)

    # Called by the server -----------------------------------------------------------------------

    @property
    def in_work(self) -> bool:
        under_way = self._running or self._walking or self._decoding
        return under_way is not None or self._outgoing.in_work

    @property
    def is_silent(self) -> bool:
        """Whether the client has never sent a whole request."""
        return not (self._has_asked or self.in_work)

    def is_late(self, oldest: float) -> bool:
        """Whether the client has been sending one message, or has not read, since ``oldest``."""
        if not self._outgoing.writable:
            unsent = self._transport.get_write_buffer_size()
            if unsent != self._unsent:
                self._unsent, self.last_activity = unsent, monotonic()
            return self.last_activity <= oldest
        return not self.in_work and self._scanner.waiting > 0 and self._coming_since <= oldest

    def stop(self) -> None:
        """Start no further request, and close when the one in progress is answered."""
        self._ended = True
        self._stop_walking()
        self._scanner = Scanner()
        if not self.in_work:
            self._end()

    def abort(self) -> None:
        """Close at once, even if a request is in progress or an answer is unsent."""
        self._closed = True
        self._transport.abort()

    # Requests -----------------------------------------------------------------------------------

    def _check_protocol(self) -> bool:
        """Whether the client is known to speak Thrift; closes the connection if it does not."""
        first = self._scanner.beginning(TELLING_BYTES)
        if len(first) < TELLING_BYTES:
            return False
        foreign = foreign_protocol(first)
        if foreign is None:
            self._speaks_thrift = True
            return True
        self._serving.counters.foreign[foreign] += 1
        _log.warning(
            "closed the connection from %s: it speaks %s; this port takes the strict binary "
            "protocol of Thrift on a plain, unframed socket: switch off TLS, SASL, HTTP and "
            "framed transport in the client",
            self.info.peer,
            foreign,
        )
        self.abort()
        return False

    def _pump(self) -> None:
        """Serve the requests that have arrived, as far as possible now."""
        if self._turn_is_due:
            return
        for _ in range(_REQUESTS_A_TURN):
            if self._closed or self.in_work or not self._outgoing.writable:
                break
            if self._has_reserved:
                self._bytes_in_work = 0
                self._reserve_memory()
            try:
                message = self._scanner.next_message(steps=_VALUES_AT_ONCE)
            except ProtocolError as error:
                self._give_up(error)
                return
            if message is None:
                if self._scanner.paused:
                    self._walking = self._serving.loop.create_task(self._walk(self._scanner))
                    self._walking.add_done_callback(self._walked)
                elif self._ended:
                    self._end()
                break
            self._serve(message)
        else:
            self._turn_is_due = True
            self._serving.loop.call_soon(self._turn)
        self._regulate()

    async def _walk(self, scanner: Scanner) -> bytes | None:
        """Walk over the bytes that have arrived. Return the next message, or None if incomplete."""
        message = None
        while message is None and scanner.paused:
            async with self._serving.slicing:
                end = perf_counter() + SLICE_SECONDS
                while message is None and scanner.paused:  # one step even on a busy machine
                    message = scanner.next_message(steps=_VALUES_AT_ONCE // 4)
                    if perf_counter() >= end:
                        break
                await asyncio.sleep(0)
        return message

    def _walked(self, walk: asyncio.Task[bytes | None]) -> None:
        if walk.cancelled():
            return
        error = walk.exception()
        if walk is not self._walking:  # given up after its last slice
            return
        self._walking = None
        if isinstance(error, ProtocolError):
            self._give_up(error)
        elif isinstance(error, Exception):
            self._fail(error)
        elif self._reserve_memory(message := walk.result()) and message is not None:
            self._serve(message)
        if not self._closed:
            self._pump()

    def _stop_walking(self) -> None:
        if self._walking is not None:
            self._walking.cancel()
            self._walking = None

    def _reserve_memory(self, message: bytes | None = None) -> bool:
        """Reserve memory for what has arrived. If there is none, tell the client, return False."""
        scanner = self._scanner
        values = scanner.values if message is None else scanner.message_values
        amount = 2 * (scanner.waiting + len(message or b"")) + _BYTES_OF_A_VALUE * values
        total = self._bytes_in_work + amount
        if total < ALLOWANCE and not self._has_reserved:
            return True
        try:
            self._serving.memory.reserve(self, total, user=self.info.user)
        except Unavailable as error:
            self._refuse(error, message)
            return False
        self._has_reserved = total >= ALLOWANCE
        return True

    def _turn(self) -> None:
        self._turn_is_due = False
        self._pump()

    def _regulate(self) -> None:
        """Stop reading from the socket while enough requests wait; resume it otherwise."""
        if self._closed or self._ended:
            return
        busy = self.in_work or self._turn_is_due or not self._outgoing.writable
        reading = not (busy and self._scanner.waiting >= self._max_waiting)
        if reading != self._transport.is_reading():
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _serve(self, message: bytes) -> None:
        self._serving.counters.requests += 1
        self._has_asked = True
        self._coming_since = monotonic()
        self.info.received(message)
        lookup = None if self._is_turned_away else self._serving.dispatcher.lookup
        if lookup is not None and len(message) <= _MAX_KEPT_REQUEST:
            size = int.from_bytes(message[4:8], "big")
            name = message[8 : 8 + size]
            head = self._serving.reply_heads.get(name)
            answer = None if head is None else self._look_up(lookup, message)
            if head is not None and answer is not None:
                self._serving.counters.kept[name] += 1
                self._write(b"".join((head, message[8 + size : 12 + size], answer)))
                return
        self._call(message)

    def _look_up(self, lookup: Lookup, message: bytes) -> bytes | None:
        try:
            return lookup(request_key(message))
        except Exception:
            # The request is then served without it: a failed look-up costs time, nothing else.
            self._serving.counters.failures += 1
            _log.exception("looking up a kept answer failed; the request is served without it")
            return None

    def _call(self, message: bytes) -> None:
        """Decode a request and have it answered, in the place that `strandline.work` prescribes."""
        serving = self._serving
        head = decode_head(message)
        sequence = message[head.body - 4 : head.body]
        values = self._scanner.message_values
        if self._has_reserved:
            self._bytes_in_work = 2 * len(message) + _BYTES_OF_A_VALUE * values
        units = max(units_of_values(values), units_of_bytes(len(message)))
        delegate = serving.dispatcher.delegate
        try:
            serving.codec.method(head.name)
            if self._is_turned_away:
                raise Overloaded(
                    f"this node has {serving.settings.max_connections} open connections, which is "
                    "the maximum; nothing was done: close idle clients, or use another node"
                )
            if units > IN_THREAD and delegate is not None and not serving.base.answers(head.name):
                self._began = monotonic()
                arguments = memoryview(message)[head.body :]
                self._await(head.name, sequence, delegate(self.info, head.name, arguments))
                return
            if values > _VALUES_AT_ONCE:
                self._decode_in_thread(head.name, sequence, message, head.body)
                return
            args = serving.codec.decode_args(head.name, message, at=head.body)
        except (ApplicationException, StrandlineError) as error:
            self._undecoded(head.name, sequence, error)
            return
        kept_message = message if len(message) <= _MAX_KEPT_REQUEST else b""
        self._decoded(head.name, sequence, kept_message, args)

    def _decode_in_thread(self, method: str, sequence: bytes, message: bytes, at: int) -> None:
        decode = partial(self._serving.codec.decode_args, method, message, at=at)
        decoding = self._serving.dispatcher.in_thread(self.info, decode)

        def done(_: object) -> None:
            self._decoding = None
            if self._closed or decoding.cancelled():
                return
            error = decoding.exception()
            if error is None:
                self._decoded(method, sequence, b"", decoding.result())
            elif isinstance(error, Exception):
                self._undecoded(method, sequence, error)
            else:
                raise error
            if not self._closed:
                self._pump()

        self._decoding = decoding
        decoding.add_done_callback(done)

    def _undecoded(self, method: str, sequence: bytes, error: Exception) -> None:
        """Answer a request whose arguments could not be decoded."""
        if isinstance(error, ProtocolError):
            self._serving.counters.protocol_errors += 1
            self._answer(method, sequence, _protocol_failure(error))
        elif isinstance(error, ApplicationException | StrandlineError):
            if isinstance(error, StrandlineError):  # an unknown method has a name a client made up
                self._began = monotonic()
                self._log(method, error)
            self._answer(method, sequence, answer_error(self._serving.codec, method, error))
        else:
            self._fail(error)

    def _decoded(self, method: str, sequence: bytes, message: bytes, args: dict[str, Any]) -> None:
        """Have the handler answer a request. ``message`` is empty for a large request."""
        serving = self._serving
        self._began = monotonic()
        self.info.begin(message, is_large=not message)
        try:
            if serving.base.answers(method):
                value = serving.base.answer(self.info, method, args)
            else:
                value = serving.dispatcher.handler(self.info, method, args)
        except Exception as failure:
            self._log(method, failure)
            self._answer(method, sequence, answer_error(serving.codec, method, failure))
            return
        if isinstance(value, Awaitable):
            self._await(method, sequence, value)
            return
        self._log(method)
        self.info.begin(b"")
        self._answer(method, sequence, answer_value(serving.codec, method, value))

    def _await(self, method: str, sequence: bytes, value: Awaitable[Any]) -> None:
        async def wait() -> Any:
            return await value

        task = self._serving.loop.create_task(wait(), name=f"{method} of {self.info.peer}")
        self._running = task
        self._serving.running.add(task)
        task.add_done_callback(lambda finished_task: self._done(method, sequence, finished_task))

    def _done(self, method: str, sequence: bytes, task: asyncio.Task[Any]) -> None:
        self._running = None
        self.info.begin(b"")
        self._coming_since = monotonic()
        self._serving.running.discard(task)
        codec = self._serving.codec
        if self._closed:
            self._serving.memory.release(self)
        if task.cancelled():
            self.abort()
            return
        error = task.exception()
        if error is not None:
            answer = answer_error(codec, method, error)
        else:
            answer = answer_value(codec, method, task.result())
        self._log(method, error or answer.refused)
        self._answer(method, sequence, answer)
        if not self._closed:
            self._pump()

    def _log(self, method: str, error: BaseException | None = None) -> None:
        self._serving.calls.ended(
            "thrift",
            method,
            client=self.info.peer,
            user=self.info.user,
            seconds=monotonic() - self._began,
            error=None if error is None else refusal(error),
        )

    def _answer(self, method: str, sequence: bytes, answer: Answer) -> None:
        """Send the answer to a request, unless the method is oneway."""
        if self._serving.codec.is_oneway(method):
            return
        counters = self._serving.counters
        counters.exceptions += answer.kind == EXCEPTION
        counters.failures += answer.failed
        try:
            self._outgoing.reserve(method, answer.body, user=self.info.user)
        except Overloaded as error:
            answer = answer_error(self._serving.codec, method, error)
        head = self._serving.reply_heads.get(method.encode()) if answer.kind == REPLY else None
        if head is None:
            head = encode_head(answer.kind, method)
        self._outgoing.send(head + sequence, answer.body)

    def _write(self, data: bytes) -> None:
        if not self._closed:
            self._serving.counters.bytes_sent += len(data)
            self.last_activity = monotonic()
            self._transport.write(data)

    def _give_up(self, error: ProtocolError) -> None:
        """Tell the client why, if the name of the broken message is known, and close."""
        self._serving.counters.protocol_errors += 1
        _log.warning("closed the connection from %s: %s", self.info.peer, error)
        if (request := self._scanner.broken()) is not None:
            self._answer(*request, _protocol_failure(error))
        self._close()

    def _refuse(self, error: Unavailable, message: bytes | None) -> None:
        """Tell the client that there is no memory for its request, of which ``message`` is all."""
        if self._outgoing.in_work:  # an error cannot be sent in the middle of an answer
            self.abort()
            return
        # While a request is answered, the next one must not get its answer first.
        request = None if self._running or self._decoding else self._scanner.broken()
        if message is not None:
            head = decode_head(message)
            request = head.name, message[head.body - 4 : head.body]
        self._stop_walking()  # else the request that is refused would be served after all
        self._scanner, self._draining = Scanner(), True
        self._serving.memory.release(self)
        _log.warning("refused a request from %s: %s", self.info.peer, error.message)
        if request is not None:
            self._answer(*request, answer_error(self._serving.codec, request[0], error))
        self._regulate()
        self._serving.loop.call_later(_DRAIN_SECONDS, self.stop)

    def _fail(self, error: Exception) -> None:
        """Close the connection after an internal error."""
        self._serving.counters.failures += 1
        _log.error("reading a request from %s failed", self.info.peer, exc_info=error)
        self.abort()

    def _end(self) -> None:
        """Close the connection: its client sends no more, or the node stops."""
        self._closed = True
        end_connection(self._transport)

    def _close(self) -> None:
        """Close the connection once everything written has been sent."""
        self._closed = True
        self._transport.close()


def _protocol_failure(error: ProtocolError) -> Answer:
    failure = ApplicationException(ApplicationException.PROTOCOL_ERROR, error.message)
    return Answer(EXCEPTION, failure.encode())
