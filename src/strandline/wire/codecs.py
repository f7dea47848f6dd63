"""The elements of the binary format, and how they are put together.

A codec writes one kind of value to a ``bytearray`` and reads it back. All numbers of fixed width
are little-endian. Every element has exactly one form, so equal values have equal bytes:

============  ==================================================================================
``UINT``      unsigned LEB128: 7 bits a byte, low bits first, the high bit set on all but the last
``SINT``      zigzag (0, −1, 1, −2, … become 0, 1, 2, 3, …), then ``UINT``
``BOOL``      one byte, 0 or 1
``TEXT``      ``UINT`` number of bytes, then UTF-8
``BYTES``     ``UINT`` number of bytes, then the bytes
``optional``  one byte, 0 (nothing follows) or 1
``sequence``  ``UINT`` number of elements, then the elements
``pair``      the two elements
``enum``      ``UINT``: the member's number
============  ==================================================================================

A reader checks every length against what is left before it takes anything, so a flipped bit gives
`CorruptData`, never a huge allocation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from strandline.errors import CorruptData, InvalidInput

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=Enum)

MAX_VARINT_BYTES = 10


class Reader:
    """A place in a run of bytes."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.end = len(data)

    def corrupt(self, what: str) -> CorruptData:
        """The error of finding ``what`` at this place."""
        return CorruptData(f"{what} at byte {self.position} of {self.end}")

    def uint(self) -> int:
        """Read an unsigned LEB128 number of at most 64 bits, in its shortest form."""
        data, position = self.data, self.position
        if position >= self.end:
            raise self.corrupt("the record ends inside a number")
        byte = data[position]
        if byte < 0x80:
            self.position = position + 1
            return byte
        value, shift = byte & 0x7F, 7
        while True:
            position += 1
            if position >= self.end:
                raise self.corrupt("the record ends inside a number")
            byte = data[position]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= 7 * MAX_VARINT_BYTES:
                raise self.corrupt("a number of more than ten bytes")
        if byte == 0 or value >> 64:
            raise self.corrupt("a number that is not in its shortest form or above 64 bits")
        self.position = position + 1
        return value

    def take(self, count: int) -> bytes:
        """Read ``count`` bytes."""
        start = self.position
        if count > self.end - start:
            raise self.corrupt(f"{count} bytes announced, {self.end - start} left")
        self.position = start + count
        return self.data[start : self.position]

    def fixed16(self) -> int:
        """Read an unsigned number of two bytes."""
        return int.from_bytes(self.take(2), "little")

    def finish(self) -> None:
        """Check that nothing is left."""
        if self.position != self.end:
            raise self.corrupt(f"{self.end - self.position} bytes behind the end of the record")


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How one kind of value is written and read."""

    write: Callable[[bytearray, T], None]
    read: Callable[[Reader], T]


def write_uint(out: bytearray, value: int) -> None:
    """Append ``value`` as unsigned LEB128."""
    if value < 0 or value >> 64:
        raise ValueError(f"{value} does not fit 64 unsigned bits")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_sint(out: bytearray, value: int) -> None:
    write_uint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _read_sint(reader: Reader) -> int:
    raw = reader.uint()
    return raw >> 1 if raw & 1 == 0 else -(raw + 1 >> 1)


def _write_bool(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def _read_bool(reader: Reader) -> bool:
    byte = reader.take(1)[0]
    if byte > 1:
        raise reader.corrupt(f"{byte} where a yes or no belongs")
    return byte == 1


def _write_bytes(out: bytearray, value: bytes) -> None:
    write_uint(out, len(value))
    out += value


def _read_bytes(reader: Reader) -> bytes:
    return reader.take(reader.uint())


def _write_text(out: bytearray, value: str) -> None:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{value[:80]!r} is no text: character {error.start} is half of a surrogate pair; "
            "send whole characters"
        ) from None
    write_uint(out, len(data))
    out += data


def _read_text(reader: Reader) -> str:
    data = reader.take(reader.uint())
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise reader.corrupt(f"text that is not UTF-8 ({error.reason})") from None


UINT: Codec[int] = Codec(write_uint, Reader.uint)
SINT: Codec[int] = Codec(_write_sint, _read_sint)
BOOL: Codec[bool] = Codec(_write_bool, _read_bool)
TEXT: Codec[str] = Codec(_write_text, _read_text)
BYTES: Codec[bytes] = Codec(_write_bytes, _read_bytes)


def optional(element: Codec[T]) -> Codec[T | None]:
    """``element`` or None."""

    def write(out: bytearray, value: T | None) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(1)
            element.write(out, value)

    def read(reader: Reader) -> T | None:
        return element.read(reader) if _read_bool(reader) else None

    return Codec(write, read)


def sequence(element: Codec[T]) -> Codec[tuple[T, ...]]:
    """Any number of ``element``."""

    def write(out: bytearray, value: tuple[T, ...]) -> None:
        write_uint(out, len(value))
        for one in value:
            element.write(out, one)

    def read(reader: Reader) -> tuple[T, ...]:
        count = reader.uint()
        if count > reader.end - reader.position:
            raise reader.corrupt(f"{count} elements announced")
        return tuple([element.read(reader) for _ in range(count)])

    return Codec(write, read)


def pair(first: Codec[T], second: Codec[U]) -> Codec[tuple[T, U]]:
    """Two elements, one behind the other."""

    def write(out: bytearray, value: tuple[T, U]) -> None:
        first.write(out, value[0])
        second.write(out, value[1])

    return Codec(write, lambda reader: (first.read(reader), second.read(reader)))


def triple(
    first: Codec[T], second: Codec[U], third: Codec[Any]
) -> Codec[tuple[T, U, Any]]:  # Any: a third type variable would say no more to any caller
    """Three elements, one behind the other."""

    def write(out: bytearray, value: tuple[T, U, Any]) -> None:
        first.write(out, value[0])
        second.write(out, value[1])
        third.write(out, value[2])

    return Codec(write, lambda r: (first.read(r), second.read(r), third.read(r)))


def enum(members: type[E]) -> Codec[E]:
    """A member of ``members``, by its number."""
    known = {member.value: member for member in members}

    def read(reader: Reader) -> E:
        number = reader.uint()
        if number not in known:
            raise reader.corrupt(f"{number}, which is no {members.__name__}")
        return known[number]

    return Codec(lambda out, value: write_uint(out, value.value), read)


PROPERTIES = sequence(pair(TEXT, TEXT))
"""A sorted text map."""
