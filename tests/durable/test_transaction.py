"""A transaction by itself: what it takes, refuses and takes back, before any log sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import strandline.catalog  # noqa: F401 - registers the kinds
from strandline.durable import AppliedUpdate, CatalogTransaction, Update
from strandline.durable.contents import EMPTY
from strandline.durable.transaction import MAX_ID
from strandline.errors import AlreadyExists, InvalidInput, LimitExceeded, ObjectNotFound
from strandline.model.descriptors import (
    ClusterDescriptor,
    ClusterReplica,
    ConfigEntry,
    DatabaseDescriptor,
    FunctionDescriptor,
    IdAllocator,
    SchemaDescriptor,
    TableDescriptor,
    TableKind,
    ViewDescriptor,
    ZoneDescriptor,
)
from strandline.model.privileges import RoleDescriptor


@pytest.fixture
def transaction() -> CatalogTransaction:
    return CatalogTransaction(AppliedUpdate(Update(0, b"", "", "", ()), EMPTY), author="ann")


def test_transactions_read_their_own_writes_and_leave_the_base_alone(
    transaction: CatalogTransaction,
) -> None:
    with transaction.entry("configure", {}):
        transaction.put(ConfigEntry("a", "1"))
        transaction.put(ConfigEntry("a", "2"))
    assert transaction.get_named("config", "a") == ConfigEntry("a", "2")
    assert transaction.base.contents is EMPTY
    assert EMPTY.get("config", b"a") is None
    assert len(transaction.entries) == 1


def test_an_entry_that_fails_takes_back_what_it_did(transaction: CatalogTransaction) -> None:
    with pytest.raises(InvalidInput), transaction.entry("configure", {}):
        transaction.put(ConfigEntry("a", "1"))
        transaction.delete("config", "a")
        transaction.allocate_id(amount=5)
        raise InvalidInput("no")
    assert transaction.contents is EMPTY
    assert transaction.entries == []


def test_what_is_not_there_cannot_be_deleted(transaction: CatalogTransaction) -> None:
    with transaction.entry("configure", {}):
        with pytest.raises(ObjectNotFound, match="zone 7 does not exist"):
            transaction.delete("zone", 7)
        transaction.put(ConfigEntry("a", "1"))
    assert [change.kind for change in transaction.changes()] == ["config"]


def test_ids_are_never_given_twice(transaction: CatalogTransaction) -> None:
    with transaction.entry("allocate", {}):
        first = transaction.allocate_id(amount=3)
        second = transaction.allocate_id()
        assert list(transaction.allocate_id(amount=0)) == []
    assert second[0] == first[-1] + 1
    with pytest.raises(InvalidInput):
        transaction.allocate_id(amount=10**9)


def test_ids_end_where_a_database_has_no_larger_number(transaction: CatalogTransaction) -> None:
    with transaction.entry("configure", {}):
        transaction.put(IdAllocator("object", MAX_ID - 1))
        assert list(transaction.allocate_id()) == [MAX_ID - 1]
        for amount in (1, 5):
            with pytest.raises(LimitExceeded, match=f"{amount} ids of the allocator .object."):
                transaction.allocate_id(amount=amount)
        assert transaction.get_named("id_allocator", "object").next_id == MAX_ID
        assert transaction.allocate_id(amount=0) == range(MAX_ID, MAX_ID)


TABLE = TableDescriptor(
    0,
    1,
    "",
    "ann",
    TableKind.MANAGED,
    transactional=False,
    provider="parquet",
    schema_versions=(),
    next_column_id=1,
    zone_id=2,
)
Make = Callable[[int, str, int], Any]  # Any: a descriptor with this id, name and parent
TOP_LEVEL: dict[str, Make] = {
    "database": lambda number, name, _: DatabaseDescriptor(number, name, "ann"),
    "zone": lambda number, name, _: ZoneDescriptor(number, name, "ann"),
    "role": lambda number, name, _: RoleDescriptor(number, name, "ann"),
    "cluster": lambda number, name, _: ClusterDescriptor(number, name, "ann"),
}
BELOW: dict[str, Make] = {
    "schema": lambda number, name, parent: SchemaDescriptor(number, parent, name, "ann"),
    "view": lambda number, name, parent: ViewDescriptor(number, parent, name, "ann", (), "", ""),
    "function": lambda number, name, parent: FunctionDescriptor(number, parent, name, "ann", "f"),
    "cluster_replica": lambda number, name, parent: ClusterReplica(
        number, parent, name, "ann", "small", "local"
    ),
}


@pytest.mark.parametrize("kind", [*TOP_LEVEL, *BELOW])
def test_a_name_is_unique_below_its_parent_without_regard_to_case(
    transaction: CatalogTransaction, kind: str
) -> None:
    make = (TOP_LEVEL | BELOW)[kind]
    with transaction.entry("create", {}):
        transaction.put(make(10, "Sales", 1))
        before = transaction.contents
        with pytest.raises(AlreadyExists, match="'sALES' exists already"):
            transaction.put(make(11, "sALES", 1))
        assert transaction.contents is before
        if kind in BELOW:
            transaction.put(make(12, "sales", 2))
        transaction.put(make(10, "SALES", 1))
        transaction.put(make(10, "other", 1))
        transaction.put(make(11, "sales", 1))
        transaction.delete(kind, 11)
        transaction.put(make(13, "sales", 1))


def test_relations_share_names_and_functions_have_their_own(
    transaction: CatalogTransaction,
) -> None:
    table = replace(TABLE, schema_id=1, name="x")
    with transaction.entry("create", {}):
        transaction.put(BELOW["view"](10, "x", 1))
        transaction.put(BELOW["function"](11, "x", 1))
        with pytest.raises(AlreadyExists, match="view 'X' exists already"):
            transaction.put(replace(table, id=12, name="X"))


def test_a_put_that_is_refused_leaves_the_object_as_it_was(
    transaction: CatalogTransaction,
) -> None:
    with transaction.entry("create", {}):
        for number, name in ((10, "a"), (11, "b")):
            transaction.put(ZoneDescriptor(number, name, "ann"))
        before = transaction.contents
        with pytest.raises(AlreadyExists):
            transaction.put(ZoneDescriptor(11, "a", "bob"))
        transaction.put(ZoneDescriptor(11, "b", "ann"))
    assert transaction.contents is before
    assert len(list(transaction.changes())) == 2
