"""A synchronous client of the Hive Metastore protocol, over the same field table as the server.

For tests and measurements. One connection, one thread at a time.
"""

from __future__ import annotations

import socket
import sys
from typing import Any, Self

from strandline.errors import DeadlineExceeded, ProtocolError, Unavailable, UnknownOutcome
from strandline.metastore.thrift.codec import HIVE_CODEC, Codec
from strandline.metastore.thrift.field_table import load_field_table
from strandline.metastore.thrift.messages import (
    CALL,
    EXCEPTION,
    ONEWAY,
    REPLY,
    ApplicationException,
    ThriftException,
    decode_head,
    encode_message,
)
from strandline.metastore.thrift.scanner import Scanner

MISSING_RESULT = 5
"""The kind of `ApplicationException` that clients of Thrift raise for an answer with no result."""

_PIECE = 256 * 1024
_EXCEPTIONS = Codec(
    load_field_table("exception TApplicationException = 1:message string, 2:type i32")
)


def decode_result(method: str, data: bytes, *, at: int = 0, codec: Codec = HIVE_CODEC) -> Any:
    """The result of ``method``; raises the `ThriftException` that it answered with."""
    spec = codec.method(method)
    result = codec.decode_struct(spec.result.name, data, at=at)
    for name, value in result.items():
        if name != "success":
            raise ThriftException(name, value)
    if spec.returns is not None and "success" not in result:
        raise ApplicationException(MISSING_RESULT, f"{method} failed: it answered with no result")
    return result.get("success")


def decode_application_exception(data: bytes, *, at: int = 0) -> ApplicationException:
    """The ``TApplicationException`` that fills ``data`` from ``at`` to its end."""
    fields = _EXCEPTIONS.decode_struct("TApplicationException", data, at=at)
    return ApplicationException(fields.get("type", 0), fields.get("message", ""))


class ThriftClient:
    """A connection to ``host`` and ``port``. ``timeout`` is in seconds, for each wait.

    Raises `Unavailable` if no process listens there.
    """

    def __init__(
        self, host: str, port: int, *, timeout: float = 60.0, codec: Codec = HIVE_CODEC
    ) -> None:
        self._codec = codec
        self._where = f"{host}:{port}"
        self._sequence = 0
        # A table may have any number of partitions: the caller decides how much an answer contains.
        self._scanner = Scanner(max_values=sys.maxsize)
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout)
        except OSError as error:
            raise Unavailable(
                f"no metastore answers on {self._where}: {error}; start one, or correct the address"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # Arguments and answers have as many types as the protocol: hence Any.
    def call(self, method: str, **args: Any) -> Any:
        """The result of ``method``, None for a void method; an argument of None is left out.

        Raises the `ThriftException` or `ApplicationException` that the server answered with, and
        `UnknownOutcome` if the request was sent and no answer came. After any error but the first
        two, close the client.
        """
        spec = self._codec.method(method)
        self._sequence = (self._sequence + 1) & 0x7FFFFFFF
        body = self._codec.encode_args(method, args)
        kind = ONEWAY if spec.oneway else CALL
        self._send(encode_message(kind, method, self._sequence, body))
        return None if spec.oneway else self._result(method, self._receive(method))

    def _result(self, method: str, message: bytes) -> Any:
        head = decode_head(message)
        if head.kind == EXCEPTION:
            raise decode_application_exception(message, at=head.body)
        if (head.kind, head.name, head.sequence) != (REPLY, method, self._sequence):
            raise ProtocolError(
                f"{self._where} answered call {self._sequence} of {method} with message "
                f"{head.sequence} of {head.name} (type {head.kind}); close the connection"
            )
        return decode_result(method, message, at=head.body, codec=self._codec)

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise UnknownOutcome(
                f"the connection to {self._where} broke while a request was sent: {error}; "
                "connect again and look whether it was done"
            ) from error

    def _receive(self, method: str) -> bytes:
        while (message := self._scanner.next_message()) is None:
            try:
                data = self._socket.recv(_PIECE)
            except TimeoutError as error:
                raise DeadlineExceeded(
                    f"{self._where} did not answer {method} within {self._socket.gettimeout()} s; "
                    "it may still be done"
                ) from error
            except OSError as error:
                raise self._no_answer(method, str(error)) from error
            if not data:
                raise self._no_answer(method, "the server closed the connection")
            self._scanner.feed(data)
        return message

    def _no_answer(self, method: str, reason: str) -> UnknownOutcome:
        return UnknownOutcome(
            f"{self._where} did not answer {method}: {reason}; connect again and look whether it "
            "was done"
        )

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
