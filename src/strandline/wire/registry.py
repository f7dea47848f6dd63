"""The one registry of formats, and the one pair of functions that turn objects into bytes.

The problem: what one release wrote, every later release must read, while objects gain fields. So
the layout of an object stands *outside* the object, in a format that is registered once under
``(type id, version, since)``. A format whose ``since`` is a released version never changes again; a
new layout is a new version of it, and old bytes keep being read by the old one.

::

    record  = 2 (2 bytes) checksum (4 bytes) nested     since 0.2.1
    record  = 1 (2 bytes) nested                        0.1.0 and 0.2.0
    nested  = type id (2 bytes) version (LEB128, 1 to 3 bytes) payload
    payload = the fields of that version's layout, in order
    list    = number of elements (UINT) [ type id, version, payload, payload, … ]

Nested objects carry their own header, so each type moves to its next version alone. A list of one
type carries the header once. The writer always uses the newest version.

The checksum is the CRC-32 of a context and of all bytes behind the checksum. The context is what
stands beside a record and is not in it (the columns of its row, `seal`), empty for most; so a
record that was moved to another row, or whose row was changed, is found like one that was changed
itself. It is compared when a record is decoded (`decode`), not when its head alone is read
(`open_record`): what is read by its head lies inside of another record, which was compared as a
whole when it came from the disk.

What must stay true: versions of a type are 1, 2, … without a gap or a double, which is checked when
the module that registers them is imported. An unknown protocol, type or version is an error that
names what was found and what is known. Rejected: a self-describing format (names on disk for every
field; twice the bytes, and it hides that a layout changed), and serializers as methods of the
objects (the old layouts would have nowhere to live). A checksum of more bits: CRC-32 finds every
change of up to four bytes in a row, and is in the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from operator import attrgetter
from typing import Any, TypeVar
from zlib import crc32

from strandline.clock import Timestamp
from strandline.errors import CorruptData, IncompatibleFormat, InvalidInput
from strandline.wire.codecs import NO_PARENT, TIME, TIME_BYTES, Codec, Reader, write_uint

PROTOCOL = 2
"""What is written; 1 is read, and has no checksum."""
MAX_FORMAT_VERSION = (1 << 21) - 1
_PROTOCOL_BYTES = 2
_MARKS = {number: number.to_bytes(_PROTOCOL_BYTES, "little") for number in (1, 2)}
_UNSEALED, _SEALED = _MARKS[1], _MARKS[2]
_CHECKSUM_BYTES = 4
_SEAL_BYTES = _PROTOCOL_BYTES + _CHECKSUM_BYTES
_HEADER_BYTES = 3
"""Of a header whose version is below 128: all there are, and looked up as they are."""

T = TypeVar("T")

Fields = Sequence[tuple[str, Codec[Any]]]  # each field has a codec of its own type


@dataclass(frozen=True, slots=True)
class Format:
    """One version of one type's layout."""

    type_id: int
    version: int
    since: str
    of: type[Any]  # any class may have a format
    header: bytes
    write: Callable[[bytearray, Any], None]
    read: Callable[[Reader], Any]
    timed: bool = False
    """Whether the payload begins with the time that the store gave the record."""
    fields: tuple[tuple[str, Callable[[Reader], Any]], ...] = ()
    """What reads each field, in the order of the bytes; none for a layout that is no such list."""


_by_type: dict[type[Any], list[Format]] = {}
_by_id: dict[int, list[Format]] = {}
_by_header: dict[bytes, Format] = {}


def formats() -> tuple[Format, ...]:
    """Every registered format, by type id and version."""
    return tuple(layout for _, versions in sorted(_by_id.items()) for layout in versions)


def register(
    of: type[T],
    *,
    type_id: int,
    version: int,
    since: str,
    fields: Fields,
    build: Callable[..., T] | None = None,
) -> None:
    """Register the layout ``fields`` as format ``version`` of ``of``, first written by ``since``.

    ``fields`` are (attribute, codec) in the order of the bytes. ``build`` makes the object from the
    values of the fields in that order; without it they go to the constructor by name. Neither gets
    the place of a parent that the object does not have (`NO_PARENT`). Raises ``ValueError`` for a
    gap, a double, or a type id that belongs to another class.
    """
    names = [name for name, _ in fields]
    codecs = [codec for _, codec in fields]
    get = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    writers = [codec.write for codec in codecs]
    readers = [codec.read for codec in codecs]
    without_parent = [position for position, codec in enumerate(codecs) if codec is NO_PARENT]
    given = [name for name, codec in fields if codec is not NO_PARENT]
    make = build or (of if _in_order(of, given) else _by_name(of, given))

    def write(out: bytearray, value: T) -> None:
        for put, part in zip(writers, get(value), strict=True):
            put(out, part)

    def read(reader: Reader) -> T:
        values = [take(reader) for take in readers]
        for position in without_parent:
            del values[position]
        return make(*values)

    timed = bool(fields) and fields[0][1] is TIME
    register_codec(
        of,
        type_id=type_id,
        version=version,
        since=since,
        codec=Codec(write, read),
        timed=timed,
        fields=tuple(zip(names, readers, strict=True)),
    )


def _in_order(of: type[Any], names: Sequence[str]) -> bool:
    """Whether ``names`` are the first parameters of the constructor of ``of``, by position."""
    parameters = signature(of).parameters.values()
    by_position = [item.name for item in parameters if item.kind is not item.KEYWORD_ONLY]
    return by_position[: len(names)] == list(names)


def _by_name(of: Callable[..., T], names: Sequence[str]) -> Callable[..., T]:
    return lambda *values: of(**dict(zip(names, values, strict=True)))


def register_codec(
    of: type[T],
    *,
    type_id: int,
    version: int,
    since: str,
    codec: Codec[T],
    timed: bool = False,
    fields: tuple[tuple[str, Callable[[Reader], Any]], ...] = (),
) -> None:
    """Register a layout that is not a list of fields; see `register`."""
    versions = _by_id.setdefault(type_id, [])
    if not 1 <= version <= MAX_FORMAT_VERSION or not 0 < type_id < 1 << 16 or not since.strip():
        raise ValueError(f"format {type_id}.{version} since {since!r} of {of.__name__}")
    if versions and versions[-1].of is not of:
        raise ValueError(f"type id {type_id} belongs to {versions[-1].of.__name__}")
    if _by_type.get(of, versions) is not versions:
        raise ValueError(f"{of.__name__} is registered under another type id already")
    if version != len(versions) + 1:
        raise ValueError(
            f"version {version} of {of.__name__} does not follow version {len(versions)}"
        )
    header = bytearray(type_id.to_bytes(2, "little"))
    write_uint(header, version)
    added = Format(
        type_id, version, since, of, bytes(header), codec.write, codec.read, timed, fields
    )
    versions.append(added)
    _by_type[of] = versions
    _by_header[added.header] = added


def _newest(of: type[Any]) -> Format:
    try:
        return _by_type[of][-1]
    except KeyError:
        raise TypeError(f"{of.__name__} has no registered format") from None


def newest_header(of: type[Any]) -> bytes:
    """What a nested object of that class, or a list of them, begins with when it is written."""
    return _newest(of).header


def _read_header(reader: Reader) -> Format:
    position = reader.position
    layout = _by_header.get(reader.data[position : position + _HEADER_BYTES])
    if layout is not None:
        reader.position = position + _HEADER_BYTES
        return layout
    type_id = reader.fixed16()
    start = reader.position
    version = reader.uint()
    if reader.position - start > 3:
        raise reader.corrupt("a format version of more than three bytes")
    versions = _by_id.get(type_id)
    if versions is None:
        known = ", ".join(f"{i} ({v[0].of.__name__})" for i, v in sorted(_by_id.items()))
        raise IncompatibleFormat(
            f"object type {type_id} is unknown to this program; known are {known}. "
            "It was written by a newer release: upgrade this node"
        )
    if not 1 <= version <= len(versions):
        raise IncompatibleFormat(
            f"format version {version} of {versions[0].of.__name__} is unknown to this program; "
            f"known are 1 to {len(versions)}. It was written by a newer release: upgrade this node"
        )
    return versions[version - 1]


def _is_sealed(data: bytes) -> bool:
    """Whether the record ``data`` begins with a seal.

    SQLite gives what it stored under the type that stands in the head of the row, whatever the
    column is declared as: one flipped bit there, and a record comes as a number or as text. Raises
    `CorruptData` for those.
    """
    try:
        return data.startswith(_SEALED)
    except (AttributeError, TypeError):
        raise CorruptData(
            f"a value of type {type(data).__name__} where a record belongs: what stands beside it "
            "was changed after it was written; restore the store from a backup"
        ) from None


def open_record(data: bytes) -> tuple[Format, Reader]:
    """Read the head of a record; the reader then stands at the payload.

    The checksum is not compared: see the module.
    """
    start = _SEAL_BYTES if _is_sealed(data) else _start_of(data)
    known = _by_header.get(data[start : start + _HEADER_BYTES])
    if known is not None:
        return known, Reader(data, start + _HEADER_BYTES)
    reader = Reader(data, start)
    return _read_header(reader), reader


def _start_of(data: bytes) -> int:
    """Where the header of a record stands. Raises `IncompatibleFormat` for an unknown protocol."""
    reader = Reader(data)
    protocol = reader.fixed16()
    if protocol == 1:
        return _PROTOCOL_BYTES
    if protocol == 2:
        return _SEAL_BYTES
    raise IncompatibleFormat(
        f"serialization protocol {protocol} is unknown to this program; known are 1 and {PROTOCOL}"
    )


def is_newest(data: bytes) -> bool:
    """Whether the record ``data`` has the form that its value would be written in now.

    Objects inside of it may have older formats.
    """
    layout, _ = open_record(data)
    return _is_sealed(data) and layout is _newest(layout.of)


def encode(value: object) -> bytes:
    """The record of ``value``, in the newest format of its type."""
    newest = _newest(type(value))
    out = bytearray(newest.header)
    newest.write(out, value)
    if PROTOCOL == 1:  # only where a test writes as an older release
        return _UNSEALED + out
    return b"".join((_SEALED, _checksum(out), out))


def _checksum(content: bytes | bytearray | memoryview, context: bytes = b"") -> bytes:
    return crc32(content, crc32(context)).to_bytes(_CHECKSUM_BYTES, "little")


def seal(data: bytes, context: bytes) -> bytes:
    """The record ``data`` as it is stored where ``context`` is.

    No bytes are sealed like a record, so that what stands beside them is compared. A record without
    a checksum stays as it is.
    """
    if data and not _is_sealed(data):
        return data
    content = memoryview(data)[_SEAL_BYTES:]
    return b"".join((_SEALED, _checksum(content, context), content))


def timed_head(data: bytes) -> tuple[Callable[[Timestamp], bytes], bytes] | None:
    """How the record ``data`` gets its time: what makes its first bytes of it, and all others.

    None where the record has no time in it.
    """
    if not _is_sealed(data):
        return None
    layout, reader = open_record(data)
    if not layout.timed:
        return None
    start = reader.position
    header, rest = data[_SEAL_BYTES:start], data[start + TIME_BYTES :]

    def head(time: Timestamp) -> bytes:
        content = header + time.to_bytes(TIME_BYTES, "little")
        checksum = crc32(rest, crc32(content)).to_bytes(_CHECKSUM_BYTES, "little")
        return b"".join((_SEALED, checksum, content))

    return head, rest


def time_in(data: bytes) -> Timestamp | None:
    """The time inside the record ``data``; None where its format has none."""
    layout, reader = open_record(data)
    return TIME.read(reader) if layout.timed else None


def is_empty(data: bytes) -> bool:
    """Whether there are no bytes below the seal of ``data``, or no seal either."""
    return len(data) == _SEAL_BYTES if _is_sealed(data) else not data


def compare(data: bytes, context: bytes = b"") -> None:
    """Raise `CorruptData` unless the checksum in ``data`` is that of its bytes and ``context``."""
    if not _is_sealed(data):
        if data:
            _start_of(data)
        return
    content = memoryview(data)[_SEAL_BYTES:]
    if data[_PROTOCOL_BYTES:_SEAL_BYTES] != _checksum(content, context):
        raise CorruptData(
            f"a record of {len(data)} bytes does not have its checksum: it, or what stands beside "
            "it, was changed after it was written; restore the store from a backup"
        )


def decode(data: bytes, of: type[T], *, context: bytes = b"") -> T:
    """The object in ``data``, which must be one ``of`` that type and nothing behind it.

    ``context`` is what it was sealed with. Raises `CorruptData` or `IncompatibleFormat`.
    """
    compare(data, context)
    layout, reader = open_record(data)
    if layout.of is not of:
        raise CorruptData(f"a {layout.of.__name__} record where a {of.__name__} belongs")
    try:
        value: T = layout.read(reader)
    except InvalidInput as error:  # the class itself refuses its fields
        raise reader.corrupt(f"a {of.__name__} that cannot be ({error.message})") from None
    reader.finish()
    return value


def decode_up_to(data: bytes, of: type[Any], last: str) -> dict[str, Any]:
    """The first fields of the record ``data`` by name, up to the field ``last``.

    For what needs the head of many large records. Raises `CorruptData` or `IncompatibleFormat`.
    """
    compare(data)
    layout, reader = open_record(data)
    if layout.of is not of:
        raise CorruptData(f"a {layout.of.__name__} record where a {of.__name__} belongs")
    values: dict[str, Any] = {}
    for name, read in layout.fields:
        values[name] = read(reader)
        if name == last:
            return values
    raise ValueError(f"format {layout.version} of {of.__name__} has no field {last}")


def nested(of: type[T]) -> Codec[T]:
    """An object inside another one, with its own header."""

    def write(out: bytearray, value: T) -> None:
        newest = _newest(of)
        out += newest.header
        newest.write(out, value)

    def read(reader: Reader) -> T:
        layout = _read_header(reader)
        if layout.of is not of:
            raise reader.corrupt(f"a {layout.of.__name__} where a {of.__name__} belongs")
        value: T = layout.read(reader)
        return value

    return Codec(write, read)


def nested_list(of: type[T]) -> Codec[tuple[T, ...]]:
    """Any number of objects of one type, under one header."""

    def write(out: bytearray, value: tuple[T, ...]) -> None:
        write_uint(out, len(value))
        if value:
            newest = _newest(of)
            out += newest.header
            put = newest.write
            for item in value:
                put(out, item)

    def read(reader: Reader) -> tuple[T, ...]:
        count = reader.uint()
        if count == 0:
            return ()
        if count > reader.end - reader.position:
            raise reader.corrupt(f"{count} objects announced")
        layout = _read_header(reader)
        if layout.of is not of:
            raise reader.corrupt(f"a {layout.of.__name__} where a {of.__name__} belongs")
        take = layout.read
        return tuple([take(reader) for _ in range(count)])

    return Codec(write, read)
