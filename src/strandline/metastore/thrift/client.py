"""A synchronous client of the Hive Metastore protocol, over the same field table as the server.

For tests, measurements and the command line. One connection, one thread at a time.
"""

from __future__ import annotations

import socket
import sys
from types import TracebackType
from typing import Any, Self

from strandline.errors import DeadlineExceeded, ProtocolError, Unavailable, UnknownOutcome
from strandline.metastore.thrift.codec import HIVE_CODEC, Codec, decode_application_exception
from strandline.metastore.thrift.messages import (
    CALL,
    EXCEPTION,
    ONEWAY,
    REPLY,
    decode_head,
    encode_message,
)
from strandline.metastore.thrift.scanner import Scanner

_PIECE = 256 * 1024


class ThriftClient:
    """A connection to ``host`` and ``port``. ``timeout`` is in seconds, for each wait.

    `Unavailable` where nobody listens there.
    """

    def __init__(
        self, host: str, port: int, *, timeout: float = 60.0, codec: Codec = HIVE_CODEC
    ) -> None:
        self._codec = codec
        self._where = f"{host}:{port}"
        self._sequence = 0
        # A table may have any number of partitions: what an answer holds is the asker's choice.
        self._scanner = Scanner(max_values=sys.maxsize)
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout)
        except OSError as error:
            raise Unavailable(
                f"no metastore answers on {self._where}: {error}; start one, or correct the address"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # Arguments and answers are of as many types as the protocol has: hence Any.
    def call(self, method: str, **args: Any) -> Any:
        """What ``method`` returns, None for a void method; an argument of None is left out.

        Raises the `ThriftException` or `ApplicationException` that the server answered with,
        `UnknownOutcome` where the request went out and no answer came. After any error but the
        first two, close the client.
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
        return self._codec.decode_result(method, message, at=head.body)

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
