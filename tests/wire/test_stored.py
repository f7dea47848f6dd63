"""Objects in memory are the bytes they were stored as, decoded at the first touch."""

from __future__ import annotations

import pytest

from strandline.durable.collections import COLLECTIONS, collection_of
from strandline.durable.contents import EMPTY, restore
from strandline.durable.update import Change
from strandline.errors import CorruptData
from strandline.model.descriptors import (
    ConfigEntry,
    DatabaseDescriptor,
    SchemaDescriptor,
    ZoneDescriptor,
)
from strandline.wire import Stored, encode, registry
from strandline.wire.stored import RECENT

SCHEMA = SchemaDescriptor(7, 3, "sales", "ann")


def test_what_finds_an_object_is_read_without_decoding_it() -> None:
    stored = Stored(encode(SCHEMA), SchemaDescriptor, has_id=True)
    assert (stored.id, stored.parent, stored.name) == (7, 3, "sales")
    assert stored._value is None


def test_an_object_is_decoded_once_at_the_first_touch(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_bytes_stay_those_that_were_read() -> None:
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
def test_every_kind_of_layout_begins_with_what_finds_it(value: object) -> None:
    kind = collection_of(value)
    stored = kind.stored(encode(value))
    assert stored.name == value.name  # type: ignore[attr-defined]  # every descriptor has a name
    assert stored.id == (value.id if kind.has_id else 0)  # type: ignore[attr-defined]  # same


def test_every_collection_knows_its_class_and_a_format_of_it() -> None:
    for kind in COLLECTIONS.values():
        assert any(found.of is kind.of for found in registry.formats())


def test_a_snapshot_of_contents_is_their_bytes_side_by_side() -> None:
    kind = COLLECTIONS["schema"]
    data = encode(SCHEMA)
    contents = EMPTY.apply([Change("schema", kind.key(kind.stored(data)), None, data)])
    assert contents.dump() == (("schema", (data,)),)
    assert restore(contents.dump()) == contents


def test_a_change_that_does_not_replace_what_is_there_is_corrupt() -> None:
    kind = COLLECTIONS["schema"]
    data = encode(SCHEMA)
    change = Change("schema", kind.key(kind.stored(data)), b"something else", data)
    with pytest.raises(CorruptData, match="parted"):
        EMPTY.apply([change])
