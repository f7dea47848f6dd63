"""Bytes written by hand from the documented layout, for the golden tests.

These few functions are the words of the layout, written without the encoder that they check: a
golden file made by the encoder would only prove that the encoder agrees with itself.
"""

from __future__ import annotations

from zlib import crc32


def record(type_id: int, version: int, *payload: bytes) -> bytes:
    """A whole record: protocol 1, the header, the payload."""
    return b"\x01\x00" + nested(type_id, version, *payload)


def sealed(type_id: int, version: int, *payload: bytes) -> bytes:
    """A whole record since 0.2.1: protocol 2, the checksum of what follows, header and payload."""
    content = nested(type_id, version, *payload)
    return b"\x02\x00" + crc32(content).to_bytes(4, "little") + content


def nested(type_id: int, version: int, *payload: bytes) -> bytes:
    """A nested object: type id (2 bytes, low first), version, payload."""
    assert version < 128
    return bytes([type_id & 0xFF, type_id >> 8, version]) + b"".join(payload)


def n(*small: int) -> bytes:
    """Numbers below 128: one byte each."""
    assert all(number < 128 for number in small)
    return bytes(small)


def text(value: str) -> bytes:
    """A length below 128 and ASCII."""
    assert len(value) < 128
    return bytes([len(value)]) + value.encode("ascii")


NONE = b"\x00"


def some(value: bytes) -> bytes:
    """An optional with a value."""
    return b"\x01" + value


NO = b"\x00"
YES = b"\x01"
