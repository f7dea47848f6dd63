"""The messages that carry calls and answers: their head, and the two ways in which a call fails.

A client with a wrong setting sends another protocol to a port that expects strict binary Thrift
(`foreign_protocol`). The node's log should then tell the user which setting is wrong.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, ClassVar

from strandline.errors import ProtocolError, shortened

CALL, REPLY, EXCEPTION, ONEWAY = 1, 2, 3, 4

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_NAME_BYTES = 1024

_VERSION = 0x8001
_WORD = struct.Struct(">I")
_SEQUENCE = struct.Struct(">i")


class ThriftException(Exception):
    """An exception of the protocol: ``name`` is its struct, ``value`` its fields.

    A handler raises it to send it as the answer. It is not a `StrandlineError`, because it is a
    value on the wire that the protocol defines. A message that is too long is shortened.
    """

    def __init__(self, name: str, value: dict[str, Any]) -> None:
        message = value.get("message")
        if isinstance(message, str):
            value = {**value, "message": shortened(message)}
        super().__init__(f"{name}: {value.get('message', value)}")
        self.name = name
        self.value = value


class ApplicationException(Exception):
    """Thrift's ``TApplicationException``: a call failed in a way that its method does not declare.

    ``kind`` is one of the numbers below. Like `ThriftException` it is a value on the wire.
    """

    UNKNOWN_METHOD: ClassVar[int] = 1
    INTERNAL_ERROR: ClassVar[int] = 6
    PROTOCOL_ERROR: ClassVar[int] = 7

    def __init__(self, kind: int, message: str) -> None:
        self.message = shortened(message)
        super().__init__(self.message)
        self.kind = kind

    @classmethod
    def unknown_method(cls, name: str) -> ApplicationException:
        """The answer to a method that the protocol, or this server, does not have."""
        return cls(cls.UNKNOWN_METHOD, f"Invalid method name: '{name}'")

    def encode(self) -> bytes:
        """Return the encoded struct: field 1 is the message, field 2 the kind."""
        text = self.message.encode("utf-8", "replace")
        size = _WORD.pack(len(text))
        return b"\x0b\x00\x01" + size + text + b"\x08\x00\x02" + _WORD.pack(self.kind) + b"\x00"


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a strict binary message. ``body`` is the offset of the message's struct."""

    kind: int
    name: str
    sequence: int
    body: int


def encode_head(kind: int, name: str) -> bytes:
    """Return the part of a head before the sequence id."""
    text = name.encode("utf-8", "replace")
    return bytes((0x80, 0x01, 0, kind)) + _WORD.pack(len(text)) + text


def encode_message(kind: int, name: str, sequence: int, body: bytes) -> bytes:
    return encode_head(kind, name) + _SEQUENCE.pack(sequence) + body


def decode_head(message: bytes) -> Head:
    """Return the head of ``message``. Raises `ProtocolError` if it is not strict binary."""
    if len(message) < 12 or message[:2] != b"\x80\x01":
        raise ProtocolError("a message must begin with the head of strict binary Thrift, 80 01")
    size = int.from_bytes(message[4:8], "big")
    if size > MAX_NAME_BYTES or len(message) < 12 + size:
        raise ProtocolError(
            f"the name of a method has {size} bytes, at most {MAX_NAME_BYTES} are allowed"
        )
    name = message[8 : 8 + size].decode("utf-8", "replace")
    (sequence,) = _SEQUENCE.unpack_from(message, 8 + size)
    return Head(message[3], name, sequence, 12 + size)


def request_key(message: bytes) -> bytes:
    """Return a request without its sequence id: equal requests have equal keys.

    The key is the length of the name, the name, and the arguments as they arrived.
    """
    at = 8 + int.from_bytes(message[4:8], "big")
    return message[4:at] + message[at + 4 :]


TELLING_BYTES = 6
"""The number of bytes that distinguish strict binary Thrift from what else clients send."""

_HTTP_METHODS = tuple(
    name[:TELLING_BYTES]
    for name in (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"PRI ")
)


def foreign_protocol(first: bytes) -> str | None:
    """The protocol of a connection that begins with ``first``, or None if it is the right one."""
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
