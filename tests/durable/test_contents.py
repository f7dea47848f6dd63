"""The contents of one version: indexes, times, and the cost of a change."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from strandline.clock import Timestamp
from strandline.durable.collections import (
    _BY_CLASS,
    _NUMBERS,
    COLLECTIONS,
    Collection,
    collection_of,
    id_key,
    register_collection,
)
from strandline.durable.contents import EMPTY, Contents, Namespace, Reference, restore
from strandline.durable.log import snapshot_of
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import CatalogSnapshot, Change
from strandline.errors import AlreadyExists, CorruptData, IncompatibleFormat, InvalidInput
from strandline.model.descriptors import (
    IdAllocator,
    IndexColumn,
    IndexDescriptor,
    IndexKind,
    IndexStatus,
    SchemaDescriptor,
    SystemConfiguration,
    TimestampEntry,
    ZoneDescriptor,
)
from strandline.wire.stored import AnyStored
from tests.positions import At

FIRST, SECOND, THIRD = (Timestamp(n << 20) for n in (1, 2, 3))


class _Later:
    """The class of a kind that a test registers."""


def index(number: int, name: str, table: int, status: IndexStatus) -> IndexDescriptor:
    columns = (IndexColumn(1),)
    return IndexDescriptor(number, 1, name, "ann", table, IndexKind.HASH, columns, status)


def after(contents: Contents, at: Timestamp, *values: object) -> Contents:
    """The contents after ``values`` were put at that time, as the log would apply them."""
    transaction = CatalogTransaction(At(0, contents), author="ann")
    with transaction.entry("put", {}):
        for value in values:
            transaction.put(value)
    return contents.apply(transaction.entries[0].changes, at=at)


def names(contents: Contents) -> dict[str, Reference]:
    return dict(contents.names(Namespace("relation", 1)))


def test_a_group_lists_its_objects_in_the_order_of_their_ids() -> None:
    contents = after(
        EMPTY,
        FIRST,
        index(300, "c", 7, IndexStatus.AVAILABLE),
        index(2, "a", 7, IndexStatus.BUILDING),
        index(40, "b", 8, IndexStatus.AVAILABLE),
    )
    assert contents.group("index", 7) == (id_key(2), id_key(300))
    assert contents.group("index", 8) == (id_key(40),)
    assert contents.group("index", 9) == ()
    moved = after(contents, SECOND, index(2, "a", 8, IndexStatus.BUILDING))
    assert moved.group("index", 7) == (id_key(300),)
    assert moved.group("index", 8) == (id_key(2), id_key(40))
    assert contents.group("index", 7) == (id_key(2), id_key(300))


def test_a_stopping_index_frees_its_name_and_stays_in_the_group_of_its_table() -> None:
    contents = after(EMPTY, FIRST, index(2, "i", 7, IndexStatus.AVAILABLE))
    assert names(contents) == {"i": Reference("index", id_key(2))}
    stopping = after(contents, SECOND, index(2, "i", 7, IndexStatus.STOPPING))
    assert names(stopping) == {}
    assert stopping.group("index", 7) == (id_key(2),)
    again = after(stopping, THIRD, index(3, "I", 7, IndexStatus.REGISTERED))
    assert names(again) == {"i": Reference("index", id_key(3))}
    assert again.group("index", 7) == (id_key(2), id_key(3))
    restored = restore(snapshot_of(3, THIRD, again))
    assert restored == again
    assert names(restored) == names(again)


def test_a_stopping_index_cannot_return_if_its_name_has_been_taken() -> None:
    contents = after(
        EMPTY,
        FIRST,
        index(2, "i", 7, IndexStatus.STOPPING),
        index(3, "i", 7, IndexStatus.AVAILABLE),
    )
    with pytest.raises(AlreadyExists):
        after(contents, SECOND, index(2, "i", 7, IndexStatus.AVAILABLE))


def test_a_change_updates_the_time_of_its_object_only() -> None:
    first, second = (ZoneDescriptor(n, f"z{n}", "ann") for n in (1, 2))
    contents = after(EMPTY, FIRST, first, second)
    changed = after(contents, SECOND, replace(second, partitions=5))
    times = {stored.name: stored.updated for stored in changed.objects("zone")}
    assert times == {"z1": FIRST, "z2": SECOND}
    assert {stored.updated for stored in contents.objects("zone")} == {FIRST}


def test_replay_and_recovery_give_equal_contents_and_times() -> None:
    contents = after(EMPTY, FIRST, ZoneDescriptor(1, "z", "ann"), SystemConfiguration("p", "1"))
    contents = after(contents, SECOND, SystemConfiguration("p", "2"))
    snapshot = snapshot_of(2, SECOND, contents)
    recovered = restore(snapshot)
    assert recovered == contents
    assert recovered.times() == ((SECOND,), (FIRST,))
    assert restore(replace(snapshot, times=())) != contents


def test_objects_restored_without_times_get_the_time_of_the_snapshot() -> None:
    contents = after(EMPTY, FIRST, ZoneDescriptor(1, "z", "ann"))
    assert restore(CatalogSnapshot(1, THIRD, contents.dump())).times() == ((THIRD,),)


def test_a_kind_that_is_registered_later_has_no_objects_yet() -> None:
    contents = after(EMPTY, FIRST, ZoneDescriptor(2, "z", "ann"))
    with pytest.raises(IncompatibleFormat, match="'later'"):
        contents.get("later", b"x")
    with ExitStack() as restored:
        for registered in (COLLECTIONS, _BY_CLASS, _NUMBERS):
            restored.enter_context(patch.dict(registered))
        later = register_collection(Collection("later", _Later, has_id=False))
        assert contents.get("later", b"x") is None
        assert contents.count("later") == 0
        written = contents.replaced(later, b"x", None, contents.get("zone", id_key(2)))
        assert written.count("later") == 1
        assert not written.shares(["later"], contents)
        assert written.shares(["zone"], contents)
        assert contents.count("later") == 0


def test_an_object_in_a_snapshot_that_cannot_be_indexed_is_named_by_its_kind() -> None:
    ((_, (record,)),) = after(EMPTY, FIRST, ZoneDescriptor(1, "zone", "ann")).dump()
    snapshot = CatalogSnapshot(1, FIRST, (("zone", (record.replace(b"zone", b"zo\xff\xfe"),)),))
    with pytest.raises(CorruptData, match=r"an object of the kind zone: .*UTF-8"):
        restore(snapshot)


def test_a_duplicate_object_in_a_snapshot_is_corrupt() -> None:
    dump = after(EMPTY, FIRST, ZoneDescriptor(1, "z", "ann")).dump()
    two = after(EMPTY, FIRST, ZoneDescriptor(2, "Z", "ann")).dump()
    (_, first), (_, second) = dump[0], two[0]
    for records in (first + first, first + second):
        with pytest.raises(CorruptData, match="duplicate"):
            restore(CatalogSnapshot(1, FIRST, (("zone", records),)))
    ((_, entry),) = after(EMPTY, FIRST, SystemConfiguration("p", "1")).dump()
    with pytest.raises(CorruptData, match="duplicate system_configuration in a snapshot"):
        restore(CatalogSnapshot(1, FIRST, (("system_configuration", entry + entry),)))


def test_a_second_object_with_the_same_name_in_the_log_is_corrupt() -> None:
    zones = [
        after(EMPTY, FIRST, ZoneDescriptor(n, name, "ann")) for n, name in ((1, "z"), (2, "Z"))
    ]
    changes = [
        Change("zone", id_key(zone.id), None, zone.data)
        for contents in zones
        for zone in contents.objects("zone")
    ]
    with pytest.raises(CorruptData, match="two objects of the log are named 'z'"):
        EMPTY.apply(changes)


@pytest.mark.parametrize("old", [None, b"something else"])
def test_a_change_whose_old_value_does_not_match_is_corrupt(old: bytes | None) -> None:
    contents = after(EMPTY, FIRST, ZoneDescriptor(1, "z", "ann"))
    with pytest.raises(CorruptData, match="memory differ"):
        contents.apply([Change("zone", id_key(1), old, None)])


def test_putting_an_unchanged_object_writes_nothing_and_keeps_its_bytes() -> None:
    zone = ZoneDescriptor(1, "z", "ann")
    contents = after(EMPTY, FIRST, zone)
    transaction = CatalogTransaction(At(1, contents), author="ann")
    with transaction.entry("alter_zone", {}):
        transaction.put(replace(zone, partitions=1))
    assert transaction.entries == []
    assert transaction.contents is contents


def test_a_put_encodes_its_object_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []
    real = Collection.stored_value

    def stored_value(self: Collection, value: object, **known: Any) -> AnyStored:
        encoded.append(value)
        return real(self, value, **known)

    monkeypatch.setattr(Collection, "stored_value", stored_value)
    after(EMPTY, FIRST, ZoneDescriptor(1, "z", "ann"))
    assert len(encoded) == 1


@pytest.mark.slow
def test_the_cost_of_a_batch_depends_on_its_changes_not_on_the_size_of_the_catalog() -> None:
    def zones(count: int) -> Contents:
        schemas = [SchemaDescriptor(n, 1, f"s{n}", "ann") for n in range(count)]
        return after(EMPTY, FIRST, *schemas)

    def seconds(contents: Contents) -> float:
        began = time.process_time()
        for n in range(200):
            after(contents, SECOND, ZoneDescriptor(1 << 40 | n, f"z{n}", "ann"))
        return time.process_time() - began

    small, large = zones(100), zones(20_000)
    ratio = min(seconds(large) for _ in range(3)) / min(seconds(small) for _ in range(3))
    assert ratio < 5  # copying the large one would cost two hundred times as much


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (IdAllocator("object", 40), IdAllocator("object", 39)),
        (TimestampEntry("epoch", 7), TimestampEntry("epoch", 6)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_allocator_or_timestamp_never_decreases_and_cannot_be_deleted(
    there: object, back: object
) -> None:
    """Else ids would be given twice; a transaction and a record in the log are both refused."""
    contents = after(EMPTY, FIRST, there)
    transaction = CatalogTransaction(At(0, contents), author="ann")
    with pytest.raises(InvalidInput, match="can only increase"):
        transaction.put(back)
    kind = collection_of(there)
    with pytest.raises(InvalidInput, match="to nothing"):
        transaction.delete(kind.kind, kind.stored_value(there).name)
    assert transaction.contents is contents
    old, new = kind.stored_value(there), kind.stored_value(back)
    for data in (new.data, None):
        with pytest.raises(CorruptData, match="would go back"):
            contents.apply([Change(kind.kind, kind.key(old), old.data, data)], at=SECOND)
