"""The registry of formats and its one encode and decode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptData, IncompatibleFormat, InvalidInput
from strandline.model.bookkeeping import ConfigEntry, FenceEntry
from strandline.model.descriptors import DatabaseDescriptor, SchemaDescriptor
from strandline.model.privileges import Grant, Privilege
from strandline.wire import codecs, registry
from strandline.wire.codecs import (
    BOOL,
    BYTES,
    SINT,
    TEXT,
    UINT,
    Codec,
    Reader,
    optional,
    pair,
    sequence,
)
from strandline.wire.registry import decode, encode, register
from strandline.wire.stored import Stored


@dataclass(frozen=True)
class Thing:
    name: str


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that a test may spoil."""
    monkeypatch.setattr(registry, "_by_type", {})
    monkeypatch.setattr(registry, "_by_id", {})
    monkeypatch.setattr(registry, "_by_header", {})


def written(codec: Codec[Any], value: object) -> bytes:
    out = bytearray()
    codec.write(out, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("codec", "value", "data"),
    [
        (UINT, 0, "00"),
        (UINT, 127, "7f"),
        (UINT, 128, "8001"),
        (UINT, (1 << 64) - 1, "ffffffffffffffffff01"),
        (SINT, 0, "00"),
        (SINT, -1, "01"),
        (SINT, 1, "02"),
        (SINT, -64, "7f"),
        (BOOL, True, "01"),
        (TEXT, "é", "02c3a9"),
        (BYTES, b"\0", "0100"),
        (optional(UINT), None, "00"),
        (optional(UINT), 0, "0100"),
        (sequence(UINT), (1, 2), "020102"),
        (pair(UINT, TEXT), (5, ""), "0500"),
    ],
)
def test_an_element_has_the_documented_bytes(codec: Codec[Any], value: object, data: str) -> None:
    assert written(codec, value).hex() == data
    assert codec.read(Reader(bytes.fromhex(data))) == value


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (UINT, ""),
        (UINT, "80"),
        (UINT, "8000"),
        (UINT, "ffffffffffffffffff7f"),
        (UINT, "ffffffffffffffffffffff01"),
        (BOOL, "02"),
        (TEXT, "05414243"),
        (TEXT, "01ff"),
        (BYTES, "ffffffff7f00"),
        (sequence(UINT), "ffffff7f"),
    ],
)
def test_bytes_that_are_no_element_are_corrupt(codec: Codec[Any], data: str) -> None:
    with pytest.raises(CorruptData):
        codec.read(Reader(bytes.fromhex(data)))


@pytest.mark.parametrize("length", range(1, 11))
def test_a_number_takes_a_byte_for_each_seven_bits(length: int) -> None:
    lowest = 1 << 7 * (length - 1) if length > 1 else 0
    highest = min((1 << 7 * length) - 1, (1 << 64) - 1)
    for number in (lowest, highest):
        data = written(UINT, number)
        assert len(data) == length
        assert UINT.read(Reader(data)) == number


@given(st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1))
def test_every_signed_number_survives(number: int) -> None:
    assert SINT.read(Reader(written(SINT, number))) == number


@pytest.mark.usefixtures("formats")
@pytest.mark.parametrize("versions", [(2,), (1, 1), (1, 3), (0,), (1, 2, 2)])
def test_a_gap_or_a_double_fails_at_registration(versions: tuple[int, ...]) -> None:
    def everything() -> None:
        for version in versions:
            register(Thing, type_id=99, version=version, since="1", fields=[("name", TEXT)])

    with pytest.raises(ValueError, match=r"version|format"):
        everything()


@pytest.mark.usefixtures("formats")
@pytest.mark.parametrize(
    ("type_id", "version", "since"),
    [(99, 0, "1"), (99, -1, "1"), (99, 1, ""), (99, 1, " "), (0, 1, "1"), (1 << 16, 1, "1")],
)
def test_a_format_has_a_number_a_version_and_a_release(
    type_id: int, version: int, since: str
) -> None:
    with pytest.raises(ValueError, match="format"):
        register(Thing, type_id=type_id, version=version, since=since, fields=[("name", TEXT)])
    assert registry.formats() == ()


@pytest.mark.usefixtures("formats")
def test_versions_beyond_one_byte_are_written_and_read() -> None:
    for version in range(1, 301):
        register(Thing, type_id=99, version=version, since="1", fields=[("name", TEXT)])
        if version in (127, 128, 300):
            data = encode(Thing("a"))
            assert decode(data, Thing) == Thing("a")
            assert len(data) == (7 if version < 128 else 8)


def test_a_class_without_a_format_is_not_written() -> None:
    with pytest.raises(TypeError, match="Thing has no registered format"):
        encode(Thing("a"))


@pytest.mark.usefixtures("formats")
def test_a_type_id_belongs_to_one_class_and_a_class_to_one_type_id() -> None:
    register(Thing, type_id=99, version=1, since="1", fields=[("name", TEXT)])
    with pytest.raises(ValueError, match="belongs to Thing"):
        register(ConfigEntry, type_id=99, version=2, since="1", fields=[("name", TEXT)])
    with pytest.raises(ValueError, match="another type id"):
        register(Thing, type_id=98, version=1, since="1", fields=[("name", TEXT)])


@pytest.mark.usefixtures("formats")
def test_old_bytes_are_read_by_the_old_format_and_written_by_the_newest() -> None:
    register(Thing, type_id=99, version=1, since="1", fields=[("name", TEXT)])
    old = encode(Thing("a"))
    register(
        Thing,
        type_id=99,
        version=2,
        since="2",
        fields=[("name", TEXT), ("name", TEXT)],
        build=lambda name, _: Thing(name),
    )
    assert decode(old, Thing) == Thing("a")
    assert encode(Thing("a"))[4] == 2


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (lambda data: b"\x09\x00" + data[2:], IncompatibleFormat, "protocol 9"),
        (lambda data: data[:2] + b"\xff\x7f" + data[4:], IncompatibleFormat, "object type 32767"),
        (lambda data: data[:4] + b"\x09" + data[5:], IncompatibleFormat, "format version 9"),
        (lambda data: data[:4] + b"\x00" + data[5:], IncompatibleFormat, "format version 0"),
        (lambda data: data[:4] + b"\x02" + data[5:], IncompatibleFormat, "known are 1 to 1"),
        (lambda data: data[:4] + b"\xff\xff\x7f" + data[5:], IncompatibleFormat, "2097151"),
        (lambda data: data[:4] + b"\x81\x80\x80\x00" + data[5:], CorruptData, "at byte"),
        (lambda data: data[:4] + b"\x81\x80\x80\x01" + data[5:], CorruptData, "three bytes"),
        (lambda data: data + b"\x00", CorruptData, "behind the end"),
        (lambda data: data[:-1], CorruptData, "left"),
        (lambda data: data[:3], CorruptData, "left"),
    ],
)
def test_what_is_no_record_of_this_program_says_what_was_found(
    spoil: Callable[[bytes], bytes], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        decode(spoil(encode(ConfigEntry("k", "v"))), ConfigEntry)


def test_a_record_of_another_type_is_refused() -> None:
    with pytest.raises(CorruptData, match="ConfigEntry record where a FenceEntry"):
        decode(encode(ConfigEntry("k", "v")), FenceEntry)


@pytest.mark.parametrize(
    ("header", "error", "says"),
    [
        (b"\xff\x7f\x01", IncompatibleFormat, "object type 32767"),
        (b"\x41\x00\x09", IncompatibleFormat, "format version 9 of Grant"),
        (b"\x41\x00\x81\x80\x80\x01", CorruptData, "three bytes"),
        (b"\x42\x00\x01", CorruptData, "a IndexColumn where a Grant"),
    ],
)
def test_a_nested_object_has_a_header_of_its_own(
    header: bytes, error: type[Exception], says: str
) -> None:
    granted = DatabaseDescriptor(1, "d", "o", (Grant(1, 2, Privilege.SELECT),))
    assert b"\x41\x00\x01" in encode(granted)
    with pytest.raises(error, match=says):
        decode(encode(granted).replace(b"\x41\x00\x01", header), DatabaseDescriptor)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_raise_anything_but_a_typed_error(data: bytes) -> None:
    record = encode(SchemaDescriptor(1, 2, "s", "o"))[:5] + data
    with suppress(CorruptData, IncompatibleFormat):
        decode(record, SchemaDescriptor)


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_flipped_bit_gives_a_typed_error_or_another_object(where: int, flip: int) -> None:
    data = bytearray(
        encode(SchemaDescriptor(1, 2, "s", "o", comment="c", properties=(("a", "b"),)))
    )
    data[where % len(data)] ^= flip
    with suppress(CorruptData, IncompatibleFormat):
        decode(bytes(data), SchemaDescriptor)


def test_numbers_beyond_64_bits_are_not_written() -> None:
    with pytest.raises(InvalidInput, match="64"):
        codecs.write_uint(bytearray(), 1 << 64)


def test_a_name_that_is_no_text_is_corrupt_where_records_are_indexed() -> None:
    data = encode(SchemaDescriptor(1, 2, "name", "o")).replace(b"name", b"na\xff\xfe")
    with pytest.raises(CorruptData, match="UTF-8"):
        Stored(data, SchemaDescriptor, has_id=True)


def test_half_a_character_is_refused_and_not_written() -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        encode(SchemaDescriptor(1, 2, "name", "o", comment="\ud800"))
