"""The elements of the binary format, and how they are combined.

A codec writes one kind of value to a ``bytearray`` and reads it back. All fixed-width numbers are
little-endian. Every value has exactly one encoding, so equal values have equal bytes:

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
``flags``     ``UINT``: the sum of the set flags
``TIME``      8 bytes: a time of the store (`strandline.clock`)
``FLOAT``     8 bytes, IEEE 754; never NaN or infinite, and zero without a sign
============  ==================================================================================

A reader checks every length against the remaining bytes before it reads, so a flipped bit raises
`CorruptData` and never causes a huge allocation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntFlag
from math import copysign, isfinite
from typing import Any, Generic, TypeVar

from strandline.clock import Timestamp
from strandline.errors import CorruptData, InvalidInput

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=Enum)
F = TypeVar("F", bound=IntFlag)

MAX_VARINT_BYTES = 10


class Reader:
    """A position in a byte string."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.end = len(data)

    def corrupt(self, what: str) -> CorruptData:
        """Return the error that reports ``what`` at the current position."""
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
        start = self.position
        if count > self.end - start:
            raise self.corrupt(f"{count} bytes announced, {self.end - start} left")
        self.position = start + count
        return self.data[start : self.position]

    def fixed16(self) -> int:
        """Read an unsigned number of two bytes."""
        return int.from_bytes(self.take(2), "little")

    def finish(self) -> None:
        """Raise `CorruptData` unless all bytes were read."""
        if self.position != self.end:
            raise self.corrupt(f"{self.end - self.position} bytes after the end of the record")


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """The functions that write and read one kind of value."""

    write: Callable[[bytearray, T], None]
    read: Callable[[Reader], T]


def write_uint(out: bytearray, value: int) -> None:
    """Append ``value`` as unsigned LEB128."""
    if 0 <= value <= 0x7F:
        out.append(value)
        return
    if value < 0 or value >> 64:
        raise InvalidInput(
            f"the number {value} cannot be stored: it does not fit into 64 unsigned bits"
        )
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def uint_bytes(value: int) -> bytes:
    """Return what `write_uint` appends for ``value``."""
    out = bytearray()
    write_uint(out, value)
    return bytes(out)


def _write_sint(out: bytearray, value: int) -> None:
    write_uint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _read_sint(reader: Reader) -> int:
    raw = reader.uint()
    return raw >> 1 if raw & 1 == 0 else -(raw + 1 >> 1)


def _write_bool(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def _read_bool(reader: Reader) -> bool:
    position = reader.position
    if position >= reader.end:
        raise reader.corrupt("the record ends before a Boolean")
    byte = reader.data[position]
    if byte > 1:
        raise reader.corrupt(f"found {byte} where a Boolean (0 or 1) was expected")
    reader.position = position + 1
    return byte == 1


def _write_bytes(out: bytearray, value: bytes) -> None:
    length = len(value)
    if length < 0x80:
        out.append(length)
    else:
        write_uint(out, length)
    out += value


def _read_bytes(reader: Reader) -> bytes:
    return reader.take(reader.uint())


def encode_text(value: str) -> bytes:
    """Return ``value`` in UTF-8. Raises `InvalidInput` for half a surrogate pair."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise _no_text(value, error) from None


def is_text(value: str) -> bool:
    """Whether ``value`` contains no half of a surrogate pair, which UTF-8 cannot encode."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _no_text(value: str, error: UnicodeEncodeError) -> InvalidInput:
    return InvalidInput(
        f"{value[:80]!r} is not valid text: character {error.start} is half of a surrogate pair; "
        "send whole characters"
    )


def write_text(out: bytearray, value: str) -> None:
    """Append ``value`` in UTF-8, after its length. Raises `InvalidInput` like `encode_text`."""
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise _no_text(value, error) from None
    length = len(data)
    if length < 0x80:
        out.append(length)
    else:
        write_uint(out, length)
    out += data


def _read_text(reader: Reader) -> str:
    count = reader.uint()
    start = reader.position
    end = start + count
    if end > reader.end:
        raise reader.corrupt(f"{count} bytes announced, {reader.end - start} left")
    reader.position = end
    try:
        return reader.data[start:end].decode()
    except UnicodeDecodeError as error:
        raise reader.corrupt(f"text that is not UTF-8 ({error.reason})") from None


def _write_float(out: bytearray, value: float) -> None:
    if not isfinite(value):
        raise InvalidInput(f"the number {value} cannot be stored; send a finite number")
    out += _FLOAT64.pack(value + 0.0)  # −0.0 equals 0.0, so both have the bytes of 0.0


def _read_float(reader: Reader) -> float:
    value: float = _FLOAT64.unpack(reader.take(8))[0]
    if not isfinite(value) or (value == 0 and copysign(1, value) < 0):
        raise reader.corrupt(f"found {value} where a finite number was expected")
    return value


_FLOAT64 = struct.Struct("<d")
TIME_BYTES = 8


def _write_time(out: bytearray, value: Timestamp) -> None:
    out += value.to_bytes(TIME_BYTES, "little")


def _read_time(reader: Reader) -> Timestamp:
    return Timestamp(int.from_bytes(reader.take(TIME_BYTES), "little"))


UINT: Codec[int] = Codec(write_uint, Reader.uint)
SINT: Codec[int] = Codec(_write_sint, _read_sint)
BOOL: Codec[bool] = Codec(_write_bool, _read_bool)
TEXT: Codec[str] = Codec(write_text, _read_text)
BYTES: Codec[bytes] = Codec(_write_bytes, _read_bytes)
FLOAT: Codec[float] = Codec(_write_float, _read_float)
TIME: Codec[Timestamp] = Codec(_write_time, _read_time)


def optional(element: Codec[T]) -> Codec[T | None]:
    """Return a codec for ``element`` or None."""
    put, take = element.write, element.read

    def write(out: bytearray, value: T | None) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(1)
            put(out, value)

    def read(reader: Reader) -> T | None:
        return take(reader) if _read_bool(reader) else None

    return Codec(write, read)


def sequence(element: Codec[T]) -> Codec[tuple[T, ...]]:
    """Return a codec for any number of ``element``."""

    def write(out: bytearray, value: tuple[T, ...]) -> None:
        write_uint(out, len(value))
        for item in value:
            element.write(out, item)

    def read(reader: Reader) -> tuple[T, ...]:
        count = reader.uint()
        if count > reader.end - reader.position:
            raise reader.corrupt(f"{count} elements announced")
        return tuple([element.read(reader) for _ in range(count)])

    return Codec(write, read)


def pair(first: Codec[T], second: Codec[U]) -> Codec[tuple[T, U]]:
    """Return a codec for two elements in a row."""

    def write(out: bytearray, value: tuple[T, U]) -> None:
        first.write(out, value[0])
        second.write(out, value[1])

    return Codec(write, lambda reader: (first.read(reader), second.read(reader)))


def triple(
    first: Codec[T], second: Codec[U], third: Codec[Any]
) -> Codec[tuple[T, U, Any]]:  # Any: no caller would gain from a third type variable
    """Return a codec for three elements in a row."""

    def write(out: bytearray, value: tuple[T, U, Any]) -> None:
        first.write(out, value[0])
        second.write(out, value[1])
        third.write(out, value[2])

    return Codec(write, lambda r: (first.read(r), second.read(r), third.read(r)))


def enum(members: type[E]) -> Codec[E]:
    """Return a codec for a member of ``members``, by its number."""
    by_number = {member.value: member for member in members}

    def read(reader: Reader) -> E:
        number = reader.uint()
        if number not in by_number:
            raise reader.corrupt(f"{number} is not a {members.__name__}")
        return by_number[number]

    return Codec(lambda out, value: write_uint(out, value.value), read)


def flags(members: type[F]) -> Codec[F]:
    """Return a codec for any flags of ``members``, as the sum of their numbers."""
    unknown = ~(~members(0)).value

    def write(out: bytearray, value: F) -> None:
        if value.value & unknown:  # Python keeps them
            raise InvalidInput(f"{value.value} has bits that are not flags of {members.__name__}")
        write_uint(out, value.value)

    def read(reader: Reader) -> F:
        number = reader.uint()
        if number & unknown:
            raise reader.corrupt(f"{number} has bits that are not flags of {members.__name__}")
        return members(number)

    return Codec(write, read)


def _write_no_parent(out: bytearray, value: object) -> None:
    out.append(0)


def _read_no_parent(reader: Reader) -> None:
    if reader.uint() != 0:
        raise reader.corrupt("a parent in an object of a kind without parents")


NO_PARENT: Codec[object] = Codec(_write_no_parent, _read_no_parent)
"""Takes the place of the parent's id in an object without a parent; always 0."""

OPTIONAL_TEXT = optional(TEXT)
IDS = sequence(UINT)
PROPERTIES = sequence(pair(TEXT, TEXT))
"""A sorted text map."""
