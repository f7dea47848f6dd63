"""Finding the objects of an owner by their encoded records alone."""

from __future__ import annotations

import pytest

from strandline.catalog.privileges.access import owned_by, owned_kinds, owner_of
from strandline.clock import Timestamp
from strandline.durable.collections import COLLECTIONS
from strandline.durable.contents import restore
from strandline.durable.log import snapshot_of
from strandline.durable.transaction import CatalogTransaction
from strandline.model.descriptors import (
    ClusterDescriptor,
    ClusterReplica,
    DatabaseDescriptor,
    FunctionDescriptor,
    IndexDescriptor,
    IndexKind,
    IndexStatus,
    IntrospectionIndex,
    SchemaDescriptor,
    SchemaVersion,
    SystemViewDescriptor,
    SystemViewKind,
    TableDescriptor,
    TableKind,
    ViewDescriptor,
    ZoneDescriptor,
)
from strandline.model.privileges import RoleDescriptor
from strandline.wire.stored import Stored
from tests.positions import NOTHING

OWNER = "Änne"
OWNED = [
    DatabaseDescriptor(1, "n", OWNER),
    SchemaDescriptor(2, 1, "n", OWNER),
    TableDescriptor(
        3, 2, "t", OWNER, TableKind.MANAGED, True, "p", (SchemaVersion(1, ()),), 1, zone_id=8
    ),
    ViewDescriptor(4, 2, "v", OWNER, (), "", ""),
    SystemViewDescriptor(5, 2, "sv", OWNER, (), SystemViewKind.NODE),
    FunctionDescriptor(6, 2, "n", OWNER, "c"),
    IndexDescriptor(7, 2, "i", OWNER, 3, IndexKind.HASH, (), IndexStatus.AVAILABLE),
    ZoneDescriptor(8, "n", OWNER),
    RoleDescriptor(9, "n", OWNER),
    ClusterDescriptor(10, "n", OWNER),
    ClusterReplica(11, 10, "n", OWNER, "small", "local"),
    IntrospectionIndex(12, 11, "n", OWNER, "http://x"),
]


def test_every_kind_with_an_owner_is_searched() -> None:
    with_owner = {
        collection.kind for collection in COLLECTIONS.values() if hasattr(collection.of, "owner")
    }
    assert {kind.name for kind in owned_kinds()} == with_owner
    assert {kind.collection.of for kind in owned_kinds()} == {
        type(descriptor) for descriptor in OWNED
    }


@pytest.mark.parametrize("value", OWNED, ids=lambda value: type(value).__name__)
def test_the_owner_is_read_from_the_record(value: object) -> None:
    kind = next(k.collection for k in owned_kinds() if k.collection.of is type(value))
    assert owner_of(kind, kind.stored_value(value)) == OWNER


def test_owners_are_matched_case_insensitively() -> None:
    transaction = CatalogTransaction(NOTHING, author="ann")
    with transaction.entry("create", {}):
        for value in OWNED:
            transaction.put(value)
        transaction.put(ZoneDescriptor(13, "other", "ann"))
    owned = {stored.value for _, stored in owned_by(transaction.contents, "äNNE")}
    assert owned == set(OWNED)


def test_the_objects_of_an_owner_are_listed_without_decoding_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transaction = CatalogTransaction(NOTHING, author="ann")
    with transaction.entry("create", {}):
        for value in OWNED:
            transaction.put(value)
    contents = restore(snapshot_of(1, Timestamp(1), transaction.contents))
    monkeypatch.setattr(Stored, "value", property(lambda _: pytest.fail("an object is decoded")))
    owned = {(kind, stored.id) for kind, stored in owned_by(contents, OWNER)}
    assert len(owned) == len(OWNED)
