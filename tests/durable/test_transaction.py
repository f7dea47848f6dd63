"""A transaction by itself: what it accepts, refuses and undoes, before any log sees it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline.catalog  # noqa: F401 - registers the kinds
from strandline.clock import Timestamp
from strandline.durable import AppliedUpdate, CatalogTransaction, Update
from strandline.durable.contents import EMPTY, stamp
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
    SystemObjectFingerprint,
    SystemViewDescriptor,
    SystemViewKind,
    TableDescriptor,
    TableKind,
    ViewDescriptor,
    ZoneDescriptor,
)
from strandline.model.privileges import ObjectKind, RoleDescriptor


@pytest.fixture
def transaction() -> CatalogTransaction:
    return CatalogTransaction(AppliedUpdate(Update(0, b"", "", "", ()), EMPTY), author="ann")


def test_a_transaction_reads_its_own_writes_and_leaves_its_base_unchanged(
    transaction: CatalogTransaction,
) -> None:
    with transaction.entry("configure", {}):
        transaction.put(ConfigEntry("a", "1"))
        transaction.put(ConfigEntry("a", "2"))
    assert transaction.get_named("config", "a") == ConfigEntry("a", "2")
    assert transaction.base.contents is EMPTY
    assert EMPTY.get("config", b"a") is None
    assert len(transaction.entries) == 1


def test_a_failed_entry_is_undone(transaction: CatalogTransaction) -> None:
    with pytest.raises(InvalidInput), transaction.entry("configure", {}):
        transaction.put(ConfigEntry("a", "1"))
        transaction.delete("config", "a")
        transaction.allocate_id(amount=5)
        raise InvalidInput("no")
    assert transaction.contents is EMPTY
    assert transaction.entries == []


def test_deleting_an_object_that_does_not_exist_is_refused(transaction: CatalogTransaction) -> None:
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


def test_allocating_above_the_largest_id_is_refused(transaction: CatalogTransaction) -> None:
    with transaction.entry("configure", {}):
        transaction.put(IdAllocator("object", MAX_ID - 1))
        assert list(transaction.allocate_id()) == [MAX_ID - 1]
        for amount in (1, 5):
            with pytest.raises(LimitExceeded, match=f".object. cannot allocate {amount} ids"):
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
def test_a_name_is_unique_below_its_parent_ignoring_case(
    transaction: CatalogTransaction, kind: str
) -> None:
    make = (TOP_LEVEL | BELOW)[kind]
    with transaction.entry("create", {}):
        transaction.put(make(10, "Sales", 1))
        before = transaction.contents
        with pytest.raises(AlreadyExists, match="'sALES' already exists"):
            transaction.put(make(11, "sALES", 1))
        assert transaction.contents is before
        if kind in BELOW:
            transaction.put(make(12, "sales", 2))
        transaction.put(make(10, "SALES", 1))
        transaction.put(make(10, "other", 1))
        transaction.put(make(11, "sales", 1))
        transaction.delete(kind, 11)
        transaction.put(make(13, "sales", 1))


def test_relations_share_a_namespace_and_functions_have_their_own(
    transaction: CatalogTransaction,
) -> None:
    table = replace(TABLE, schema_id=1, name="x")
    with transaction.entry("create", {}):
        transaction.put(BELOW["view"](10, "x", 1))
        transaction.put(BELOW["function"](11, "x", 1))
        with pytest.raises(AlreadyExists, match="view 'X' already exists"):
            transaction.put(replace(table, id=12, name="X"))


def test_a_refused_put_leaves_the_object_unchanged(
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


def test_objects_put_together_may_swap_names(transaction: CatalogTransaction) -> None:
    """Reference cases 50 and 51: put one by one, the first would collide with the other object."""
    first, second = BELOW["view"](10, "x", 1), BELOW["view"](11, "y", 1)
    with transaction.entry("create", {}):
        transaction.put_all([first, second])
    with transaction.entry("exchange", {}):
        with pytest.raises(AlreadyExists, match="view 'Y' already exists"):
            transaction.put(replace(first, name="Y"))
        transaction.put_all([replace(first, name="Y"), replace(second, name="x")])
    views = transaction.contents.objects("view")
    assert {view.id: view.name for view in views} == {10: "Y", 11: "x"}
    assert EMPTY.apply(transaction.changes()) == transaction.contents


def test_a_name_given_up_is_free_for_an_object_put_together_with_it(
    transaction: CatalogTransaction,
) -> None:
    with transaction.entry("create", {}):
        transaction.put_all([ZoneDescriptor(10, "a", "ann"), ZoneDescriptor(11, "b", "ann")])
    with transaction.entry("move", {}):
        transaction.put_all([ZoneDescriptor(10, "b", "ann"), ZoneDescriptor(11, "c", "ann")])
    assert {zone.id: zone.name for zone in transaction.contents.objects("zone")} == {
        10: "b",
        11: "c",
    }
    assert EMPTY.apply(transaction.changes()) == transaction.contents


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("b", "B", "c"), id="two of them"),
        pytest.param(("b", "a", "taken"), id="one that stays, after an exchange"),
    ],
)
def test_no_object_is_put_if_two_put_together_end_with_the_same_name(
    transaction: CatalogTransaction, names: tuple[str, ...]
) -> None:
    zones = [ZoneDescriptor(10 + place, name, "ann") for place, name in enumerate("abc")]
    with transaction.entry("create", {}):
        transaction.put_all([*zones, ZoneDescriptor(20, "taken", "ann")])
        transaction.delete("zone", 12)
        before, written = transaction.contents, len(transaction._changes)
        with pytest.raises(AlreadyExists):
            transaction.put_all(
                replace(zone, name=name) for zone, name in zip(zones, names, strict=True)
            )
        assert transaction.contents is before
        assert len(transaction._changes) == written


def test_the_last_of_two_values_for_one_key_is_put(transaction: CatalogTransaction) -> None:
    with transaction.entry("configure", {}):
        transaction.put_all([ConfigEntry("a", "1"), ConfigEntry("a", "2")])
    (change,) = transaction.changes()
    assert change.old is None
    assert transaction.get_named("config", "a") == ConfigEntry("a", "2")
    with transaction.entry("configure", {}):
        transaction.put_all([ConfigEntry("a", "3"), ConfigEntry("a", "2")])
    assert transaction.get_named("config", "a") == ConfigEntry("a", "2")


def test_objects_outside_a_namespace_put_together_are_changed_in_place(
    transaction: CatalogTransaction,
) -> None:
    for value in "12":
        with transaction.entry("configure", {}):
            transaction.put_all(ConfigEntry(name, value) for name in "abc")
    _, second = transaction.entries
    assert [(change.old is None, change.new is None) for change in second.changes] == [
        (False, False)
    ] * 3


def test_a_system_object_can_only_be_mapped_to_an_existing_object(
    transaction: CatalogTransaction,
) -> None:
    first, second = (
        SystemObjectFingerprint(f"system.{name}", object_id, ObjectKind.SYSTEM_VIEW, "f" * 64)
        for name, object_id in (("a", 7), ("b", 8))
    )
    kind = next(iter(SystemViewKind))
    with transaction.entry("initialize", {}):
        transaction.put(SystemViewDescriptor(7, 1, "a", "system", (), kind))
        with pytest.raises(ObjectNotFound, match=r"system_view 8, which system.b is mapped to"):
            transaction.set_system_object_mapping([first, second])
        assert transaction.get_named("system_object_fingerprint", "system.a") is None
        transaction.put(SystemViewDescriptor(8, 1, "b", "system", (), kind))
        transaction.set_system_object_mapping([first, second])
    for entry in (first, second):
        assert transaction.get_named("system_object_fingerprint", entry.name) == entry


def test_an_entry_records_only_the_net_changes(transaction: CatalogTransaction) -> None:
    """Reference cases 45 to 48: the log has the result of the entry, not each step to it."""
    with transaction.entry("create", {}):
        transaction.put(ZoneDescriptor(10, "a", "ann"))
        transaction.put(ZoneDescriptor(11, "b", "ann"))
        transaction.delete("zone", 10)
    (made,) = transaction.changes()
    assert int.from_bytes(made.key, "big") == 11
    with transaction.entry("nothing", {}):
        transaction.put(ZoneDescriptor(12, "c", "ann"))
        transaction.delete("zone", 12)
    with transaction.entry("back", {}):
        transaction.put(ZoneDescriptor(11, "z", "ann"))
        transaction.put(ZoneDescriptor(11, "b", "ann"))
    assert len(transaction.entries) == 1
    with transaction.entry("again", {}):
        transaction.delete("zone", 11)
        transaction.put(ZoneDescriptor(11, "c", "ann"))
    *_, again = transaction.changes()
    assert again.old == made.new
    assert again.new is not None
    assert EMPTY.apply(transaction.changes()) == transaction.contents


def test_an_object_that_ends_unchanged_keeps_the_time_of_its_last_change(
    transaction: CatalogTransaction,
) -> None:
    """The node that commits has the same times as the nodes that read the log."""
    with transaction.entry("create", {}):
        transaction.put_all(ConfigEntry(name, "1") for name in "ab")
    base = EMPTY.apply(transaction.changes(), at=Timestamp(5))
    later = CatalogTransaction(AppliedUpdate(Update(1, b"", "", "", ()), base), author="ann")
    with later.entry("configure", {}):
        for name, value in (("a", "2"), ("a", "1"), ("b", "2")):
            later.put(ConfigEntry(name, value))
    changes = list(later.changes())
    stamp(later.contents.written_by(changes), Timestamp(9))
    assert later.contents == base.apply(changes, at=Timestamp(9))
    assert later.contents.times() == ((5, 9),)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["1", "2", "a", "b", None])), max_size=12)
)
def test_consolidated_changes_give_the_same_objects_and_times(
    steps: list[tuple[int, str | None]],
) -> None:
    transaction = CatalogTransaction(AppliedUpdate(Update(0, b"", "", "", ()), EMPTY), author="ann")
    with transaction.entry("create", {}):
        transaction.put_all(ZoneDescriptor(number, f"{number}", "ann") for number in (1, 2))
    base = EMPTY.apply(transaction.changes(), at=Timestamp(5))
    transaction = CatalogTransaction(AppliedUpdate(Update(1, b"", "", "", ()), base), author="ann")
    with transaction.entry("several steps", {}):
        for number, name in steps:
            with suppress(AlreadyExists, ObjectNotFound):
                if name is None:
                    transaction.delete("zone", number)
                else:
                    transaction.put(ZoneDescriptor(number, name, "ann"))
    changes = list(transaction.changes())
    stamp(transaction.contents.written_by(changes), Timestamp(9))
    assert base.apply(changes, at=Timestamp(9)) == transaction.contents  # with their times


def test_any_number_of_transactions_may_follow_each_other(transaction: CatalogTransaction) -> None:
    for _ in range(10_000):
        transaction = CatalogTransaction(transaction, author="ann")
    assert transaction.version == 10_001
