"""One client's connection: bytes in, requests one after the other, answers out.

The problem: a client may send requests faster than it reads answers, a handler may wait for a
store, and a byte stream may be anything. None of this may hold up the other connections, reorder
answers, or fill the memory.

The model: bytes stay in the scanner until their request is served. `_pump` takes the next whole
message only when nothing of this connection is in work and the client reads its answers; after a
few requests it lets the event loop turn. So answers are in order by construction, and the queue of
requests is the scanner's buffer: when it is full, the socket is not read and TCP slows the client.

What must stay true:

* After an unreadable byte nothing more is read: the boundary of messages is lost. Where the
  request had a name, the client is told (``TApplicationException`` 7); then the connection closes.
* Arguments that do not decode inside a message whose end is known fail that request alone.
* A request that has begun runs to its end, also when its client has gone.
* The request's type byte is not looked at: whether a method is oneway, the field table says.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable
from typing import Any, cast

from strandline.errors import (
    InvalidInput,
    ObjectNotFound,
    ProtocolError,
    UnsupportedOperation,
)
from strandline.logs import CLIENT
from strandline.metastore.call_log import log_call
from strandline.metastore.thrift.dispatch import (
    Answer,
    ConnectionInfo,
    Lookup,
    answer_error,
    answer_value,
    awaits,
)
from strandline.metastore.thrift.messages import (
    EXCEPTION,
    REPLY,
    ApplicationException,
    ThriftException,
    decode_head,
    encode_head,
    request_key,
)
from strandline.metastore.thrift.scanner import Scanner
from strandline.metastore.thrift.serving import Serving

_log = logging.getLogger(__name__)

# A turn of the event loop serves at most this many requests of one connection.
_REQUESTS_A_TURN = 32

# So many bytes tell strict binary Thrift from all else that clients send.
_TELLING_BYTES = 6

_HTTP_METHODS = tuple(
    name[:_TELLING_BYTES]
    for name in (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"PRI ")
)


def foreign_protocol(first: bytes) -> str | None:
    """What a connection speaks that begins with these bytes; None if it is strict binary Thrift."""
    if first.startswith(b"\x80\x01"):
        return None
    if first.startswith(_HTTP_METHODS):
        return "HTTP"
    if first.startswith(b"\x16\x03"):
        return "TLS"
    if first.startswith(b"\x01\x00\x00"):
        return "SASL"
    if first.startswith(b"\x82"):
        return "compact Thrift"
    if first.startswith(b"\x00"):
        if first[4:6] == b"\x80\x01":
            return "framed Thrift"
        return "framed compact Thrift" if first[4:5] == b"\x82" else "non-strict binary Thrift"
    return "an unknown protocol"


class Connection(asyncio.Protocol):
    """Serves one client of ``server``."""

    def __init__(self, server: Serving, connection_id: int) -> None:
        self._server = server
        self._id = connection_id
        settings = server.settings
        self._scanner = Scanner(max_message_bytes=settings.max_message_bytes)
        self._max_waiting = settings.max_pipelined_bytes
        self._recognised = False
        self._writable = True
        self._reading = True
        self._turning = False
        self._ended = False
        self._closed = False
        self._running: asyncio.Task[Any] | None = None
        self.last_activity = self._began = server.loop.time()

    # Called by the event loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.info = ConnectionInfo(self._id, name)
        handle = transport.get_extra_info("socket")
        if handle is not None and handle.family in (socket.AF_INET, socket.AF_INET6):
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not self._server.admit(self):
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._closed or self._ended:
            return
        self.last_activity = self._server.loop.time()
        self._server.counters.bytes_received += len(data)
        self._scanner.feed(data)
        if not self._recognised and not self._recognise():
            return
        self._pump()

    def eof_received(self) -> bool:
        """The client sends no more. What it has sent is still answered, and then it is closed."""
        self._ended = True
        if self._recognised:
            self._pump()
        return self._recognised and not self._closed

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.last_activity = self._server.loop.time()
        self._pump()

    # Called by the server -----------------------------------------------------------------------

    @property
    def in_work(self) -> bool:
        return self._running is not None

    def stop(self) -> None:
        """Begins no further request, and closes when the one in work is answered."""
        self._ended = True
        self._scanner = Scanner()
        if not self.in_work:
            self._close()

    def abort(self) -> None:
        """Closes at once, whatever is in work or unsent."""
        self._closed = True
        self._transport.abort()

    # Requests -----------------------------------------------------------------------------------

    def _recognise(self) -> bool:
        first = self._scanner.beginning(_TELLING_BYTES)
        if len(first) < _TELLING_BYTES:
            return False
        foreign = foreign_protocol(first)
        if foreign is None:
            self._recognised = True
            return True
        self._server.counters.count_foreign(foreign)
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
        """Serves what has come, as far as may be now."""
        if self._turning:
            return
        for _ in range(_REQUESTS_A_TURN):
            if self._closed or self.in_work or not self._writable:
                break
            try:
                message = self._scanner.next_message()
            except ProtocolError as error:
                self._give_up(error)
                return
            if message is None:
                if self._ended:
                    self._close()
                break
            self._serve(message)
        else:
            self._turning = True
            self._server.loop.call_soon(self._turn)
        self._regulate()

    def _turn(self) -> None:
        self._turning = False
        self._pump()

    def _regulate(self) -> None:
        """Reads from the socket, unless enough requests wait behind something already."""
        if self._closed or self._ended:
            return
        held = self.in_work or self._turning or not self._writable
        reading = not (held and self._scanner.waiting >= self._max_waiting)
        if reading != self._reading:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _serve(self, message: bytes) -> None:
        counters = self._server.counters
        counters.requests += 1
        lookup = self._server.dispatcher.lookup
        if lookup is not None:
            size = int.from_bytes(message[4:8], "big")
            head = self._server.reply_heads.get(message[8 : 8 + size])
            found = None if head is None else self._look_up(lookup, message)
            if head is not None and found is not None:
                counters.fast_answers += 1
                self._write(b"".join((head, message[8 + size : 12 + size], found)))
                return
        self._call(message)

    def _look_up(self, lookup: Lookup, message: bytes) -> bytes | None:
        try:
            return lookup(request_key(message))
        except Exception:
            # The slow way gives the right answer: a broken short cut costs time, nothing else.
            self._server.counters.failures += 1
            _log.exception("looking up a kept answer failed; the request is served without it")
            return None

    def _call(self, message: bytes) -> None:
        """Decodes a request and lets its handler answer it."""
        server = self._server
        head = decode_head(message)
        sequence = message[head.body - 4 : head.body]
        try:
            spec = server.codec.method(head.name)
            args = server.codec.decode_args(head.name, message, at=head.body)
        except ApplicationException as error:
            self._answer(head.name, sequence, Answer(EXCEPTION, error.encode()))
            return
        except ProtocolError as error:
            server.counters.protocol_errors += 1
            self._answer(head.name, sequence, _protocol_failure(error))
            return
        self.info.begin(message)
        CLIENT.set(self.info.peer)
        self._began = server.loop.time()
        try:
            if server.base.answers(head.name):
                value = server.base.answer(self.info, head.name, args)
            else:
                value = server.dispatcher.handler(self.info, head.name, args)
        except Exception as error:
            self._log(head.name, error)
            self._answer(head.name, sequence, answer_error(server.codec, head.name, error))
            return
        if awaits(value):
            self._await(head.name, sequence, value)
            return
        self._log(head.name)
        if not spec.oneway:
            self._answer(head.name, sequence, answer_value(server.codec, head.name, value))

    def _await(self, method: str, sequence: bytes, value: Awaitable[Any]) -> None:
        async def wait() -> Any:
            return await value

        task = self._server.loop.create_task(wait(), name=f"{method} of {self.info.peer}")
        self._running = task
        self._server.running.add(task)
        task.add_done_callback(lambda done: self._done(method, sequence, done))

    def _done(self, method: str, sequence: bytes, task: asyncio.Task[Any]) -> None:
        self._running = None
        self._server.running.discard(task)
        codec = self._server.codec
        if task.cancelled():
            self.abort()
            return
        error = task.exception()
        self._log(method, error)
        if error is not None:
            answer = answer_error(codec, method, error)
        else:
            answer = answer_value(codec, method, task.result())
        if not codec.method(method).oneway:
            self._answer(method, sequence, answer)
        if not self._closed:
            self._pump()

    def _log(self, method: str, error: BaseException | None = None) -> None:
        """Log the call that ends now, where it was refused or slow."""
        if isinstance(error, ThriftException):  # an error in the protocol's own words
            unknown = error.name.startswith(("Unknown", "NoSuch"))
            kind = ObjectNotFound if unknown else InvalidInput
            error = kind(str(error.value.get("message", error)))
        elif isinstance(error, ApplicationException):
            error = UnsupportedOperation(str(error))
        log_call(
            method,
            client=self.info.peer,
            user=self.info.user,
            seconds=self._server.loop.time() - self._began,
            slow_ms=self._server.settings.slow_call_ms,
            error=error,
        )

    def _answer(self, method: str, sequence: bytes, answer: Answer) -> None:
        counters = self._server.counters
        counters.exceptions += answer.kind == EXCEPTION
        counters.failures += answer.failed
        head = self._server.reply_heads.get(method.encode()) if answer.kind == REPLY else None
        if head is None:
            head = encode_head(answer.kind, method)
        self._write(b"".join((head, sequence, answer.body)))

    def _write(self, data: bytes) -> None:
        if not self._closed:
            self._server.counters.bytes_sent += len(data)
            self.last_activity = self._server.loop.time()
            self._transport.write(data)

    def _give_up(self, error: ProtocolError) -> None:
        """Tells the client why, as far as the broken message lets itself be answered; closes."""
        self._server.counters.protocol_errors += 1
        _log.warning("closed the connection from %s: %s", self.info.peer, error)
        known = self._scanner.broken()
        if known is not None:
            name, sequence = known
            self._answer(name, sequence.to_bytes(4, "big", signed=True), _protocol_failure(error))
        self._close()

    def _close(self) -> None:
        """Closes once all that was written has gone out."""
        self._closed = True
        self._transport.close()


def _protocol_failure(error: ProtocolError) -> Answer:
    failure = ApplicationException(ApplicationException.PROTOCOL_ERROR, error.message)
    return Answer(EXCEPTION, failure.encode())
