"""Objects in memory are their stored bytes, decoded on first access. Recently decoded values are
cached by their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.durable.collections import COLLECTIONS, collection_of
from strandline.durable.contents import EMPTY, restore
from strandline.durable.update import CatalogSnapshot, Change
from strandline.errors import CorruptData
from strandline.model.descriptors import (
    ConfigEntry,
    DatabaseDescriptor,
    SchemaDescriptor,
    ZoneDescriptor,
)
from strandline.wire import Stored, encode, registry
from strandline.wire.stored import MAX_RECORD_BYTES, NEVER_UPDATED, RECENT, RecentValues

SCHEMA = SchemaDescriptor(7, 3, "sales", "ann")


def test_the_index_fields_of_an_object_are_read_without_decoding_it() -> None:
    stored = Stored(encode(SCHEMA), SchemaDescriptor, has_id=True)
    assert (stored.id, stored.parent, stored.name) == (7, 3, "sales")
    assert stored._value is None


def test_a_record_of_another_class_is_refused() -> None:
    with pytest.raises(CorruptData, match="found a SchemaDescriptor record where a ZoneDesc"):
        Stored(encode(SCHEMA), ZoneDescriptor, has_id=True)


def test_an_object_is_decoded_once_on_first_access(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    RECENT.forget()
    stored = Stored(encode(SCHEMA), SchemaDescriptor, has_id=True)

    def count(data: bytes, of: type[SchemaDescriptor]) -> SchemaDescriptor:
        decoded.append(of)
        return registry.decode(data, of)

    monkeypatch.setattr("strandline.wire.stored.decode", count)
    assert stored.value == SCHEMA
    assert stored.value is stored.value
    assert decoded == [SchemaDescriptor]


def test_a_stored_object_keeps_the_bytes_that_were_read() -> None:
    data = encode(SCHEMA)
    assert Stored(data, SchemaDescriptor, has_id=True).data is data


@pytest.mark.parametrize(
    "value",
    [
        SCHEMA,
        DatabaseDescriptor(1, "hive", "ann"),
        ZoneDescriptor(2, "z", "ann"),
        ConfigEntry("k", "v"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_layout_begins_with_its_index_fields(value: object) -> None:
    kind = collection_of(value)
    stored = kind.stored(encode(value))
    assert stored.name == value.name  # type: ignore[attr-defined]  # every descriptor has a name
    assert stored.id == (value.id if kind.has_id else 0)  # type: ignore[attr-defined]  # same


def test_the_class_of_every_collection_has_a_format() -> None:
    for kind in COLLECTIONS.values():
        assert any(layout.of is kind.of for layout in registry.formats())


def test_a_dump_of_contents_is_the_stored_bytes_and_restores_them() -> None:
    kind = COLLECTIONS["schema"]
    data = encode(SCHEMA)
    contents = EMPTY.apply([Change("schema", kind.key(kind.stored(data)), None, data)])
    assert contents.dump() == (("schema", (data,)),)
    assert restore(CatalogSnapshot(1, NEVER_UPDATED, contents.dump())) == contents


def test_a_change_whose_old_value_is_not_the_stored_value_is_corrupt() -> None:
    kind = COLLECTIONS["schema"]
    data = encode(SCHEMA)
    change = Change("schema", kind.key(kind.stored(data)), b"something else", data)
    with pytest.raises(CorruptData, match="memory differ"):
        EMPTY.apply([change])


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    RECENT.forget()
    yield
    RECENT.forget()


def stored(data: bytes) -> Stored[SchemaDescriptor]:
    return Stored(bytes(bytearray(data)), SchemaDescriptor, has_id=True)


def test_equal_bytes_give_the_same_object() -> None:
    data = encode(SCHEMA)
    assert stored(data).value is stored(data).value


def test_a_record_just_written_is_not_decoded_when_it_is_read_from_the_log() -> None:
    written = Stored.of_value(SCHEMA, has_id=True)
    assert stored(written.data).value is SCHEMA


def test_different_bytes_give_different_objects() -> None:
    first, second = stored(encode(SCHEMA)), stored(encode(SchemaDescriptor(7, 3, "sales", "bob")))
    assert (first.value.owner, second.value.owner) == ("ann", "bob")


def cached_bytes(recent: RecentValues) -> int:
    return sum(map(len, (*recent._young, *recent._old)))


def test_values_in_use_stay_cached_and_others_are_evicted() -> None:
    recent = RecentValues(generation_bytes=10)
    recent.add(b"used", 1)
    for number in range(100):
        recent.add(b"%04d" % number, number)
        assert recent.get(b"used") == 1
        assert cached_bytes(recent) <= 20
    assert recent.get(b"0000") is None
    assert recent.get(b"0099") == 99


def test_a_large_record_is_not_cached_and_evicts_nothing() -> None:
    recent, large = RecentValues(), bytes(MAX_RECORD_BYTES)
    recent.add(b"small", 1)
    recent.add(large + b"x", 2)
    recent.add(large, 3)
    values = [recent.get(data) for data in (b"small", large + b"x", large)]
    assert values == [1, None, 3]


def test_a_value_added_twice_takes_the_room_of_one() -> None:
    recent = RecentValues(generation_bytes=2)
    for data in (b"a", b"a", b"b"):
        recent.add(data, data)
    assert list(recent._young) == [b"a", b"b"]


def test_concurrent_adds_and_reads_return_the_right_values() -> None:
    recent = RecentValues(generation_bytes=64)

    def work(first: int) -> None:
        for number in range(first, first + 2000):
            data = number.to_bytes(4, "big")
            recent.add(data, number)
            assert recent.get(data) in (number, None)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(0, 4000, 1000)))
    assert cached_bytes(recent) <= 128


def test_a_stored_object_that_cannot_be_decoded_is_named() -> None:
    data = encode(SchemaDescriptor(7, 1, "sales", "ann", comment="all"))
    stored = Stored(data.replace(b"all", b"alk"), SchemaDescriptor, has_id=True)
    with pytest.raises(CorruptData, match=r"SchemaDescriptor 'sales' with id 7: .*checksum"):
        _ = stored.value
