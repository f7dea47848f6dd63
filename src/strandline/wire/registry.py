"""The registry of formats, and the functions that convert objects to bytes and back.

The problem: every release must read what earlier releases wrote, while objects gain fields. So the
layout of an object is defined *outside* the object, in a format that is registered once under
``(type id, version, since)``. A format whose ``since`` is a released version never changes again. A
new layout is a new version of the format, and the old version still reads the old bytes.

::

    record  = 2 (2 bytes) checksum (4 bytes) nested     since 0.2.1
    record  = 1 (2 bytes) nested                        0.1.0 and 0.2.0
    nested  = type id (2 bytes) version (LEB128, 1 to 3 bytes) payload
    payload = the fields of that version's layout, in order
    list    = number of elements (UINT) [ type id, version, payload, payload, … ]

Nested objects have their own header, so each type gets new versions independently of the others. A
list of one type has the header once. The writer always uses the newest version.

The checksum is the CRC-32 of a context and of all bytes after the checksum. The context is data
that is stored next to the record but not in it (the other columns of its row, `seal`). Most records
have an empty context. With it, the checksum also detects a record that was moved to another row,
and a change of its row. `decode` verifies the checksum. `open_record`, which reads only the head of
a record, does not: such a record is part of another record, which was verified as a whole when it
was read from disk.

What must stay true: the versions of a type are 1, 2, … without gaps or duplicates. This is checked
when the module that registers them is imported. An unknown protocol, type or version raises an
error with the number found and the known numbers.

Rejected: a self-describing format with field names on disk (twice the bytes, and it hides that a
layout changed); serializers as methods of the objects (old layouts would have no place); a longer
checksum (CRC-32 detects every change within four consecutive bytes and is in the standard library).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from operator import attrgetter
from typing import Any, TypeVar
from zlib import crc32

from strandline.clock import Timestamp
from strandline.errors import CorruptData, IncompatibleFormat, InvalidInput
from strandline.wire.codecs import NO_PARENT, TIME, TIME_BYTES, Codec, Reader, write_uint

PROTOCOL = 2
"""The protocol that is written. Protocol 1 has no checksum and can still be read."""
MAX_FORMAT_VERSION = (1 << 21) - 1
_PROTOCOL_BYTES = 2
_UNSEALED, _SEALED = (number.to_bytes(_PROTOCOL_BYTES, "little") for number in (1, 2))
_CHECKSUM_BYTES = 4
_SEAL_BYTES = _PROTOCOL_BYTES + _CHECKSUM_BYTES
_HEADER_BYTES = 3
"""The length of a header with a version below 128. So far all are; they are looked up as bytes."""

T = TypeVar("T")

Fields = Sequence[tuple[str, Codec[Any]]]  # each field has a codec of its own type


@dataclass(frozen=True, slots=True)
class Format:
    """One version of the layout of a type."""

    type_id: int
    version: int
    since: str
    of: type[Any]  # any class may have a format
    header: bytes
    write: Callable[[bytearray, Any], None]
    read: Callable[[Reader], Any]
    timed: bool = False
    """Whether the payload begins with the time that the store assigned to the record."""
    fields: tuple[tuple[str, Callable[[Reader], Any]], ...] = ()
    """Names and readers of the fields, in byte order. Empty for a layout with its own codec."""


_by_type: dict[type[Any], list[Format]] = {}
_by_id: dict[int, list[Format]] = {}
_by_header: dict[bytes, Format] = {}


def formats() -> tuple[Format, ...]:
    """Return all registered formats, ordered by type id and version."""
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

    ``fields`` are (attribute, codec) in byte order. ``build`` creates the object from the field
    values in that order. Without it, the values are passed to the constructor by name. Neither gets
    a value for `NO_PARENT`. Raises ``ValueError`` for a gap or duplicate in the versions, or a type
    id that belongs to another class.
    """
    names = [name for name, _ in fields]
    codecs = [codec for _, codec in fields]
    get = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    writers = [codec.write for codec in codecs]
    readers = [codec.read for codec in codecs]
    without_parent = [position for position, codec in enumerate(codecs) if codec is NO_PARENT]
    given_names = [name for name, codec in fields if codec is not NO_PARENT]
    make = build or (of if _in_order(of, given_names) else _by_name(of, given_names))

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


def _in_order(cls: type[Any], names: Sequence[str]) -> bool:
    """Whether ``names`` are the first positional parameters of the constructor of ``of``."""
    parameters = signature(cls).parameters.values()
    by_position = [item.name for item in parameters if item.kind is not item.KEYWORD_ONLY]
    return by_position[: len(names)] == list(names)


def _by_name(cls: Callable[..., T], names: Sequence[str]) -> Callable[..., T]:
    return lambda *values: cls(**dict(zip(names, values, strict=True)))


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


def _newest(cls: type[Any]) -> Format:
    try:
        return _by_type[cls][-1]
    except KeyError:
        raise TypeError(f"{cls.__name__} has no registered format") from None


def newest_header(of: type[Any]) -> bytes:
    """Return the header of a nested object of this class, or a list of them, when it is written."""
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
            f"object type {type_id} is unknown to this program; known types are {known}. It was "
            "written by a newer release: upgrade this node"
        )
    if not 1 <= version <= len(versions):
        raise IncompatibleFormat(
            f"format version {version} of {versions[0].of.__name__} is unknown to this program; "
            f"known versions are 1 to {len(versions)}. It was written by a newer release: upgrade "
            "this node"
        )
    return versions[version - 1]


def _is_sealed(data: bytes) -> bool:
    """Whether the record ``data`` begins with a seal.

    SQLite returns a value with the type in the row's header, not the column's declared type. So one
    flipped bit there turns a record into a number or text. Raises `CorruptData` for these.
    """
    try:
        return data.startswith(_SEALED)
    except (AttributeError, TypeError):
        raise CorruptData(
            f"found a value of type {type(data).__name__} where a record was expected: the data "
            "stored beside the value was changed after it was written; restore the store from a "
            "backup"
        ) from None


def open_record(data: bytes) -> tuple[Format, Reader]:
    """Read the head of a record. Return its format and a reader positioned at the payload.

    The checksum is not verified; see the module docstring.
    """
    start = _SEAL_BYTES
    if not _is_sealed(data):
        _refuse_unknown_protocol(data)
        start = _PROTOCOL_BYTES
    layout = _by_header.get(data[start : start + _HEADER_BYTES])
    if layout is not None:
        return layout, Reader(data, start + _HEADER_BYTES)
    reader = Reader(data, start)
    return _read_header(reader), reader


def _refuse_unknown_protocol(data: bytes) -> None:
    """Raise `IncompatibleFormat` unless ``data``, a record without a seal, is of protocol 1."""
    protocol = Reader(data).fixed16()
    if protocol != 1:
        raise IncompatibleFormat(
            f"serialization protocol {protocol} is unknown to this program; known are 1 and "
            f"{PROTOCOL}"
        )


def is_newest(data: bytes) -> bool:
    """Whether the record ``data`` has the newest protocol, and the newest format of its type.

    Objects nested in it may have older formats.
    """
    layout, _ = open_record(data)
    return _is_sealed(data) and layout is _newest(layout.of)


def encode(value: object) -> bytes:
    """Return the record of ``value``, in the newest format of its type."""
    newest = _newest(type(value))
    out = bytearray(newest.header)
    newest.write(out, value)
    if PROTOCOL == 1:  # only in a test that writes like an older release
        return _UNSEALED + out
    return b"".join((_SEALED, _checksum(out), out))


def _checksum(content: bytes | bytearray | memoryview, context: bytes = b"") -> bytes:
    return crc32(content, crc32(context)).to_bytes(_CHECKSUM_BYTES, "little")


def seal(data: bytes, context: bytes) -> bytes:
    """Return the record ``data`` with a checksum that covers ``context`` too.

    Empty data gets a checksum like a record, so that its context is protected. A record without a
    checksum is returned unchanged.
    """
    if data and not _is_sealed(data):
        return data
    content = memoryview(data)[_SEAL_BYTES:]
    return b"".join((_SEALED, _checksum(content, context), content))


def timed_head(data: bytes) -> tuple[Callable[[Timestamp], bytes], bytes] | None:
    """Return how to put a time into the record ``data``, or None if its format has no time.

    The result is a function that returns the first bytes of the record for a time, and all bytes
    after those.
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
    """Return the time in the record ``data``, or None if its format has no time."""
    layout, reader = open_record(data)
    return TIME.read(reader) if layout.timed else None


def is_empty(data: bytes) -> bool:
    """Whether ``data`` is empty, or a seal with no bytes after it."""
    return len(data) == _SEAL_BYTES if _is_sealed(data) else not data


def compare(data: bytes, context: bytes = b"") -> None:
    """Raise `CorruptData` unless the checksum in ``data`` matches its bytes and ``context``.

    Data without a checksum passes. Raises `IncompatibleFormat` for an unknown protocol.
    """
    if not _is_sealed(data):
        if data:
            _refuse_unknown_protocol(data)
        return
    content = memoryview(data)[_SEAL_BYTES:]
    if data[_PROTOCOL_BYTES:_SEAL_BYTES] != _checksum(content, context):
        raise CorruptData(
            f"a record of {len(data)} bytes does not match its checksum: the record, or the data "
            "stored beside it, was changed after it was written; restore the store from a backup"
        )


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Begin the message of an error of `decode` in the block with ``what``: where the record is."""
    try:
        yield
    except (CorruptData, IncompatibleFormat) as error:
        raise type(error)(f"{what}: {error.message}") from error


def decode(data: bytes, of: type[T], *, context: bytes = b"") -> T:
    """Return the object in ``data``, which must be a single record of the type ``of``.

    ``context`` is the context that the record was sealed with. Raises `CorruptData` or
    `IncompatibleFormat`.
    """
    compare(data, context)
    layout, reader = open_record(data)
    if layout.of is not of:
        raise CorruptData(
            f"found a {layout.of.__name__} record where a {of.__name__} record was expected"
        )
    try:
        value: T = layout.read(reader)
    except InvalidInput as error:  # from the constructor of the class
        raise reader.corrupt(f"an invalid {of.__name__} ({error.message})") from None
    reader.finish()
    return value


def decode_up_to(data: bytes, of: type[Any], last: str) -> dict[str, Any]:
    """Return the first fields of the record ``data`` by name, up to and including ``last``.

    For callers that need the head of many large records. Raises `CorruptData` or
    `IncompatibleFormat`, and ``ValueError`` if the format has no field ``last``.
    """
    compare(data)
    layout, reader = open_record(data)
    if layout.of is not of:
        raise CorruptData(
            f"found a {layout.of.__name__} record where a {of.__name__} record was expected"
        )
    values: dict[str, Any] = {}
    for name, read in layout.fields:
        values[name] = read(reader)
        if name == last:
            return values
    raise ValueError(f"format {layout.version} of {of.__name__} has no field {last}")


def nested(of: type[T]) -> Codec[T]:
    """Return a codec for an object inside another one, with its own header."""

    def write(out: bytearray, value: T) -> None:
        newest = _newest(of)
        out += newest.header
        newest.write(out, value)

    def read(reader: Reader) -> T:
        layout = _read_header(reader)
        if layout.of is not of:
            raise reader.corrupt(f"found a {layout.of.__name__} where a {of.__name__} was expected")
        value: T = layout.read(reader)
        return value

    return Codec(write, read)


def nested_list(of: type[T]) -> Codec[tuple[T, ...]]:
    """Return a codec for any number of objects of one type, with a single header."""

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
            raise reader.corrupt(f"found a {layout.of.__name__} where a {of.__name__} was expected")
        take = layout.read
        return tuple([take(reader) for _ in range(count)])

    return Codec(write, read)
