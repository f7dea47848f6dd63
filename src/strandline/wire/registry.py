"""The one registry of formats, and the one pair of functions that turn objects into bytes.

The problem: what one release wrote, every later release must read, while objects gain fields. So
the layout of an object stands *outside* the object, in a format that is registered once under
``(type id, version, since)``. A format whose ``since`` is a released version never changes again; a
new layout is a new version of it, and old bytes keep being read by the old one.

::

    record  = protocol (2 bytes) nested
    nested  = type id (2 bytes) version (LEB128, 1 to 3 bytes) payload
    payload = the fields of that version's layout, in order
    list    = number of elements (UINT) [ type id, version, payload, payload, … ]

Nested objects carry their own header, so each type moves to its next version alone. A list of one
type carries the header once. The writer always uses the newest version.

What must stay true: versions of a type are 1, 2, … without a gap or a double, which is checked when
the module that registers them is imported. An unknown protocol, type or version is an error that
names what was found and what is known. Rejected: a self-describing format (names on disk for every
field; twice the bytes, and it hides that a layout changed), and serializers as methods of the
objects (the old layouts would have nowhere to live).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from operator import attrgetter
from typing import Any, TypeVar

from strandline.errors import CorruptData, IncompatibleFormat, InvalidInput
from strandline.wire.codecs import Codec, Reader, write_uint

PROTOCOL = 1
MAX_FORMAT_VERSION = (1 << 21) - 1
_PROTOCOL_BYTES = 2
_PROTOCOL_MARK = PROTOCOL.to_bytes(_PROTOCOL_BYTES, "little")
_HEADER_BYTES = 3
"""Of a header whose version is below 128: all there are, and looked up as they are."""
_HEAD_BYTES = _PROTOCOL_BYTES + _HEADER_BYTES

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


_by_type: dict[type[Any], list[Format]] = {}
_by_id: dict[int, list[Format]] = {}
_by_header: dict[bytes, Format] = {}


def formats() -> tuple[Format, ...]:
    """Every registered format, by type id and version."""
    return tuple(one for _, versions in sorted(_by_id.items()) for one in versions)


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
    values of the fields in that order; without it they go to the constructor by name. Raises
    ``ValueError`` for a gap, a double, or a type id that belongs to another class.
    """
    names = [name for name, _ in fields]
    codecs = [codec for _, codec in fields]
    get = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    writers = [codec.write for codec in codecs]
    readers = [codec.read for codec in codecs]
    make = build or (of if _in_order(of, names) else _by_name(of, names))

    def write(out: bytearray, value: T) -> None:
        for put, part in zip(writers, get(value), strict=True):
            put(out, part)

    def read(reader: Reader) -> T:
        return make(*[take(reader) for take in readers])

    register_codec(of, type_id=type_id, version=version, since=since, codec=Codec(write, read))


def _in_order(of: type[Any], names: Sequence[str]) -> bool:
    """Whether ``names`` are the first parameters of the constructor of ``of``, by position."""
    parameters = signature(of).parameters.values()
    by_position = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
    return by_position[: len(names)] == list(names)


def _by_name(of: Callable[..., T], names: Sequence[str]) -> Callable[..., T]:
    return lambda *values: of(**dict(zip(names, values, strict=True)))


def register_codec(of: type[T], *, type_id: int, version: int, since: str, codec: Codec[T]) -> None:
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
    added = Format(type_id, version, since, of, bytes(header), codec.write, codec.read)
    versions.append(added)
    _by_type[of] = versions
    _by_header[added.header] = added


def _newest(of: type[Any]) -> Format:
    try:
        return _by_type[of][-1]
    except KeyError:
        raise TypeError(f"{of.__name__} has no registered format") from None


def _read_header(reader: Reader) -> Format:
    position = reader.position
    found = _by_header.get(reader.data[position : position + _HEADER_BYTES])
    if found is not None:
        reader.position = position + _HEADER_BYTES
        return found
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


def open_record(data: bytes) -> tuple[Format, Reader]:
    """Read the head of a record; the reader then stands at the payload."""
    known = _by_header.get(data[_PROTOCOL_BYTES:_HEAD_BYTES])
    if known is not None and data.startswith(_PROTOCOL_MARK):
        return known, Reader(data, _HEAD_BYTES)
    reader = Reader(data)
    protocol = reader.fixed16()
    if protocol != PROTOCOL:
        raise IncompatibleFormat(
            f"serialization protocol {protocol} is unknown to this program; known is {PROTOCOL}"
        )
    return _read_header(reader), reader


def encode(value: object) -> bytes:
    """The record of ``value``, in the newest format of its type."""
    newest = _newest(type(value))
    out = bytearray(_PROTOCOL_MARK)
    out += newest.header
    newest.write(out, value)
    return bytes(out)


def decode(data: bytes, of: type[T]) -> T:
    """The object in ``data``, which must be one ``of`` that type and nothing behind it.

    Raises `CorruptData` or `IncompatibleFormat`.
    """
    found, reader = open_record(data)
    if found.of is not of:
        raise CorruptData(f"a {found.of.__name__} record where a {of.__name__} belongs")
    try:
        value: T = found.read(reader)
    except InvalidInput as error:  # the class itself refuses its fields
        raise reader.corrupt(f"a {of.__name__} that cannot be ({error.message})") from None
    reader.finish()
    return value


def nested(of: type[T]) -> Codec[T]:
    """An object inside another one, with its own header."""

    def write(out: bytearray, value: T) -> None:
        newest = _newest(of)
        out += newest.header
        newest.write(out, value)

    def read(reader: Reader) -> T:
        found = _read_header(reader)
        if found.of is not of:
            raise reader.corrupt(f"a {found.of.__name__} where a {of.__name__} belongs")
        value: T = found.read(reader)
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
            for one in value:
                put(out, one)

    def read(reader: Reader) -> tuple[T, ...]:
        count = reader.uint()
        if count == 0:
            return ()
        if count > reader.end - reader.position:
            raise reader.corrupt(f"{count} objects announced")
        found = _read_header(reader)
        if found.of is not of:
            raise reader.corrupt(f"a {found.of.__name__} where a {of.__name__} belongs")
        take = found.read
        return tuple([take(reader) for _ in range(count)])

    return Codec(write, read)
