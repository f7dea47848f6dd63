"""The declarations of the kinds of objects."""

from __future__ import annotations

import dataclasses

import pytest

from strandline.clock import Timestamp
from strandline.durable.collections import (
    APPEND_ONLY,
    COLLECTIONS,
    Collection,
    collection,
    collection_of,
)
from strandline.errors import IncompatibleFormat
from strandline.model.descriptors import (
    IndexDescriptor,
    IndexKind,
    IndexStatus,
    Setting,
    TableDescriptor,
    ZoneDescriptor,
)

INDEX = IndexDescriptor(
    12, 5, "by_day", "ann", table_id=6, kind=IndexKind.HASH, columns=(), status=IndexStatus.BUILDING
)
NEVER_CHANGE = {"config", "fence", "setting", "audit_event"}


@pytest.mark.parametrize("status", IndexStatus)
def test_an_index_occupies_its_name_until_it_is_stopping(status: IndexStatus) -> None:
    kind = COLLECTIONS["index"]
    stored = kind.stored_value(dataclasses.replace(INDEX, status=status))
    assert kind.occupies(stored) == (status is not IndexStatus.STOPPING)


def test_indexes_are_grouped_by_their_table() -> None:
    assert COLLECTIONS["index"].stored_value(INDEX).group == 6


def test_an_object_keyed_by_name_occupies_no_namespace() -> None:
    kind = collection_of(Setting("a", "b"))
    assert not kind.occupies(kind.stored_value(Setting("a", "b")))


def test_relations_share_a_namespace_and_functions_have_their_own() -> None:
    scopes = {kind.kind: kind.scope for kind in COLLECTIONS.values()}
    relations = {name for name, scope in scopes.items() if scope == "relation"}
    assert relations == {"table", "view", "system_view", "index"}
    assert scopes["function"] == "function"


def test_the_kinds_that_every_release_must_read_are_not_migratable() -> None:
    fixed = {kind.kind for kind in COLLECTIONS.values() if not kind.migratable}
    fixed |= {kind.kind for kind in APPEND_ONLY.values() if not kind.migratable}
    assert fixed == NEVER_CHANGE


def test_a_kind_keyed_by_name_has_neither_scope_nor_group() -> None:
    with pytest.raises(ValueError, match="no scope and no group"):
        Collection("setting", Setting, has_id=False, scope="setting")
    with pytest.raises(ValueError, match="no scope and no group"):
        Collection("setting", Setting, has_id=False, group="value")


def test_only_a_kind_with_a_scope_can_free_names() -> None:
    with pytest.raises(ValueError, match="no scope, so its names cannot become free"):
        Collection("table", TableDescriptor, named=lambda stored: True)


def test_an_unknown_kind_is_refused_with_a_list_of_the_known_kinds() -> None:
    with pytest.raises(
        IncompatibleFormat, match=r"'tabel', which .* newer .* Known kinds are .*zone"
    ):
        collection("tabel")


def test_the_time_of_an_object_is_not_part_of_its_equality() -> None:
    kind = COLLECTIONS["zone"]
    first, second = (kind.stored_value(ZoneDescriptor(1, "z", "ann")) for _ in range(2))
    assert first.updated == 0
    first.updated = Timestamp(7)
    assert first == second
    assert hash(first) == hash(second)
