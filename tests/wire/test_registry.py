"""The registry of formats, and encode and decode, which serve every format."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.clock import Timestamp
from strandline.durable.update import Entry, Update
from strandline.errors import CorruptData, IncompatibleFormat, InvalidInput
from strandline.model.descriptors import (
    ConfigEntry,
    DatabaseDescriptor,
    FenceEntry,
    SchemaDescriptor,
)
from strandline.model.privileges import Grant, Privilege
from strandline.wire import registry
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
from tests.case_table import CaseTable


@dataclass(frozen=True)
class Thing:
    name: str


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty registry for one test."""
    monkeypatch.setattr(registry, "_by_type", {})
    monkeypatch.setattr(registry, "_by_id", {})
    monkeypatch.setattr(registry, "_by_header", {})


def unsealed(data: bytes) -> bytes:
    """Return the record as a release before 0.2.1 wrote it, without its checksum."""
    return b"\x01\x00" + data[6:]


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
def test_invalid_bytes_of_an_element_are_corrupt(codec: Codec[Any], data: str) -> None:
    with pytest.raises(CorruptData):
        codec.read(Reader(bytes.fromhex(data)))


def longest(length: int) -> int:
    """Return the highest number that takes ``length`` bytes."""
    return min((1 << 7 * length) - 1, (1 << 64) - 1)


NUMBERS = CaseTable(
    "a number takes a byte for each seven bits, at most ten",
    cases=[85],
    rows=[
        (UINT, 0, 1),
        *((UINT, longest(length), length) for length in range(1, 11)),
        *((UINT, longest(length) + 1, length + 1) for length in range(1, 10)),
        *((SINT, number, 1) for number in (0, -1, 1, 63, -64)),
        *((SINT, number, 2) for number in (64, -65, 8191, -8192)),
        *((SINT, number, 3) for number in (8192, -8193)),
        (SINT, (1 << 63) - 1, 10),
        (SINT, -(1 << 63), 10),
    ],
    note="a number without a sign begins at 0; one with a sign lies between, so that small ones "
    "are short on both sides",
)


@pytest.mark.parametrize(("codec", "number", "length"), NUMBERS.rows)
def test_a_number_takes_one_byte_for_every_seven_bits(
    codec: Codec[int], number: int, length: int
) -> None:
    data = written(codec, number)
    assert len(data) == length
    reader = Reader(data)
    assert codec.read(reader) == number
    reader.finish()


NO_NUMBERS = CaseTable(
    "a number outside 64 bits is not written",
    cases=[85],
    rows=[(UINT, -1), (UINT, 1 << 64), (SINT, 1 << 63), (SINT, -(1 << 63) - 1)],
)


@pytest.mark.parametrize(("codec", "number"), NO_NUMBERS.rows)
def test_a_number_outside_64_bits_is_not_written(codec: Codec[int], number: int) -> None:
    with pytest.raises(InvalidInput, match="64"):
        written(codec, number)


@given(st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1))
def test_every_signed_64_bit_number_reads_back(number: int) -> None:
    assert SINT.read(Reader(written(SINT, number))) == number


REFUSED_FORMATS = CaseTable(
    "a gap, a double, or a format without a number, a version or a release is not registered",
    cases=[86],
    rows=[
        ([], (Thing, 99, 2, "1"), "version 2 of Thing does not follow version 0"),
        ([1], (Thing, 99, 1, "1"), "version 1 of Thing does not follow version 1"),
        ([1], (Thing, 99, 3, "1"), "version 3 of Thing does not follow version 1"),
        ([1, 2], (Thing, 99, 2, "1"), "version 2 of Thing does not follow version 2"),
        ([], (Thing, 99, 0, "1"), "format 99.0 "),
        ([], (Thing, 99, -1, "1"), "format 99.-1 "),
        ([], (Thing, 99, 1 << 21, "1"), "format 99.2097152 "),
        ([], (Thing, 99, 1, ""), "format 99.1 since ''"),
        ([], (Thing, 99, 1, " "), "format 99.1 since ' '"),
        ([], (Thing, 0, 1, "1"), "format 0.1 "),
        ([], (Thing, 1 << 16, 1, "1"), "format 65536.1 "),
        ([1], (ConfigEntry, 99, 2, "1"), "type id 99 belongs to Thing"),
        ([1], (Thing, 98, 1, "1"), "Thing is registered under another type id"),
    ],
    note="a format is a list of fields and the class that they make, so nothing is registered that "
    "has no layout; the program does not start with one of these",
)


@pytest.mark.usefixtures("formats")
@pytest.mark.parametrize(("there", "added", "says"), REFUSED_FORMATS.rows)
def test_a_format_that_does_not_fit_is_not_registered(
    there: list[int], added: tuple[type[Any], int, int, str], says: str
) -> None:
    for version in there:
        register(Thing, type_id=99, version=version, since="1", fields=[("name", TEXT)])
    before = registry.formats()
    of, type_id, version, since = added
    with pytest.raises(ValueError, match=re.escape(says)):
        register(of, type_id=type_id, version=version, since=since, fields=[("name", TEXT)])
    assert registry.formats() == before


@pytest.mark.usefixtures("formats")
def test_versions_beyond_one_byte_are_written_and_read() -> None:
    for version in range(1, 301):
        register(Thing, type_id=99, version=version, since="1", fields=[("name", TEXT)])
        if version in (127, 128, 300):
            data = encode(Thing("a"))
            assert decode(data, Thing) == Thing("a")
            assert len(data) == (11 if version < 128 else 12)


def test_a_class_without_a_format_is_not_written() -> None:
    with pytest.raises(TypeError, match="Thing has no registered format"):
        encode(Thing("a"))


@pytest.mark.usefixtures("formats")
def test_records_are_read_by_the_format_that_wrote_them_and_written_by_the_newest() -> None:
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
    assert unsealed(encode(Thing("a")))[4] == 2


UNREADABLE = CaseTable(
    "a record of an unknown protocol, type or version is an error that names it",
    cases=[86],
    rows=[
        (lambda data: b"\x09\x00" + data[2:], IncompatibleFormat, "protocol 9"),
        (lambda data: data[:2] + b"\xff\x7f" + data[4:], IncompatibleFormat, "object type 32767"),
        (lambda data: data[:4] + b"\x09" + data[5:], IncompatibleFormat, "format version 9"),
        (lambda data: data[:4] + b"\x00" + data[5:], IncompatibleFormat, "format version 0"),
        (
            lambda data: data[:4] + b"\x02" + data[5:],
            IncompatibleFormat,
            "known versions are 1 to 1",
        ),
        (lambda data: data[:4] + b"\xff\xff\x7f" + data[5:], IncompatibleFormat, "2097151"),
        (lambda data: data[:4] + b"\x81\x80\x80\x00" + data[5:], CorruptData, "at byte"),
        (lambda data: data[:4] + b"\x81\x80\x80\x01" + data[5:], CorruptData, "three bytes"),
        (lambda data: data + b"\x00", CorruptData, "after the end"),
        (lambda data: data[:-1], CorruptData, "left"),
        (lambda data: data[:3], CorruptData, "left"),
    ],
)


@pytest.mark.parametrize(("spoil", "error", "says"), UNREADABLE.rows)
def test_an_unreadable_record_raises_an_error_that_names_what_was_found(
    spoil: Callable[[bytes], bytes], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        decode(spoil(unsealed(encode(ConfigEntry("k", "v")))), ConfigEntry)


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
def test_a_nested_object_has_its_own_header(
    header: bytes, error: type[Exception], says: str
) -> None:
    granted = DatabaseDescriptor(1, "d", "o", (Grant(1, 2, Privilege.SELECT),))
    assert b"\x41\x00\x02" in encode(granted)
    with pytest.raises(error, match=says):
        decode(unsealed(encode(granted)).replace(b"\x41\x00\x02", header), DatabaseDescriptor)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_typed_errors(data: bytes) -> None:
    record = unsealed(encode(SchemaDescriptor(1, 2, "s", "o")))[:5] + data
    with suppress(CorruptData, IncompatibleFormat):
        decode(record, SchemaDescriptor)


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_changed_byte_of_a_record_without_a_checksum_raises_only_typed_errors(
    where: int, flip: int
) -> None:
    data = bytearray(
        unsealed(encode(SchemaDescriptor(1, 2, "s", "o", comment="c", properties=(("a", "b"),))))
    )
    data[where % len(data)] ^= flip
    with suppress(CorruptData, IncompatibleFormat):
        decode(bytes(data), SchemaDescriptor)


def test_a_record_is_decoded_only_with_the_context_that_it_was_sealed_with() -> None:
    entry = ConfigEntry("k", "v")
    data = registry.seal(encode(entry), b"row 7")
    assert decode(data, ConfigEntry, context=b"row 7") == entry
    for context in (b"row 8", b""):
        with pytest.raises(CorruptData, match="the data stored beside"):
            decode(data, ConfigEntry, context=context)


def test_a_record_of_an_older_release_has_no_context() -> None:
    data = unsealed(encode(ConfigEntry("k", "v")))
    assert registry.seal(data, b"row 7") == data
    assert decode(data, ConfigEntry, context=b"row 7") == ConfigEntry("k", "v")


def test_a_record_of_an_unknown_protocol_has_no_valid_checksum() -> None:
    with pytest.raises(IncompatibleFormat, match="protocol 9"):
        registry.compare(b"\x09\x00" + encode(ConfigEntry("k", "v"))[2:])


def test_a_record_without_a_checksum_does_not_have_the_newest_format() -> None:
    data = encode(ConfigEntry("k", "v"))
    assert registry.is_newest(data)
    assert not registry.is_newest(unsealed(data))


def test_the_first_fields_of_a_changed_record_are_not_read() -> None:
    data = encode(SchemaDescriptor(1, 2, "s", "o", comment="c"))
    assert registry.decode_up_to(data, SchemaDescriptor, "name")["name"] == "s"
    with pytest.raises(CorruptData, match="checksum"):
        registry.decode_up_to(data[:-1] + b"\xff", SchemaDescriptor, "name")


def test_an_empty_record_can_be_sealed() -> None:
    data = registry.seal(b"", b"row 7")
    registry.compare(data, b"row 7")
    with pytest.raises(CorruptData):
        registry.compare(data, b"row 8")


def test_a_record_gets_its_time_without_being_encoded_again() -> None:
    update = Update(7, b"id", "ann", "m1", (Entry("touch", {}, ()),))
    split = registry.timed_head(encode(update))
    assert split is not None
    head, body = split
    data = head(Timestamp(99)) + body
    assert data == encode(update.at(Timestamp(99)))
    assert registry.time_in(data) == 99
    assert registry.timed_head(encode(ConfigEntry("k", "v"))) is None
    assert registry.time_in(encode(ConfigEntry("k", "v"))) is None


def test_a_name_that_is_not_utf_8_is_corrupt_when_the_record_is_indexed() -> None:
    data = encode(SchemaDescriptor(1, 2, "name", "o")).replace(b"name", b"na\xff\xfe")
    with pytest.raises(CorruptData, match="UTF-8"):
        Stored(data, SchemaDescriptor, has_id=True)


def test_a_text_with_a_lone_surrogate_is_not_written() -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        encode(SchemaDescriptor(1, 2, "name", "o", comment="\ud800"))
