"""Manual edits: repairs of single objects that bypass the commands but not the rules.

No command validates such an edit. Instead it is checked against the rules that every catalog keeps
(`strandline.catalog.rules`) and against the rules for changes: names are unique and growing numbers
do not fall (`CatalogTransaction`), a zone keeps its partitions, the default objects keep their
names. Like any change, an edit is one entry of the history. A second edit cannot make up for one
that broke a rule, because code that reads an older version relies on the rules too.
"""

from __future__ import annotations

from typing import Any

from strandline.catalog.applier import DELAY, SKEW
from strandline.catalog.catalog import DEFAULT_DATABASE, DEFAULT_ZONE_CONFIG
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.commands.roles import check_role_name
from strandline.catalog.kinds import all_kinds, kind_of
from strandline.catalog.rules import Key, check_object, highest_id, key_of, required_objects
from strandline.catalog.verbs import Verb, declare_verb
from strandline.durable.collections import COLLECTIONS, CONFIG, FENCE, SETTING, Collection
from strandline.durable.migrations import CONTENT, FORMAT
from strandline.durable.state import ENVIRONMENT
from strandline.durable.transaction import MAX_IDS_AT_ONCE, OBJECT_IDS, CatalogTransaction
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.model.descriptors import (
    DatabaseDescriptor,
    IdAllocator,
    SchemaDescriptor,
    TableDescriptor,
    ViewDescriptor,
    ZoneDescriptor,
)
from strandline.model.identifiers import check_versioned_name
from strandline.model.privileges import RoleDescriptor

# Below, Any stands for a descriptor of some kind.
EDIT, DELETE = "debug_edit", "debug_delete"

_SET_AT_CREATION = (
    "it is set when the catalog is created, and the times at which its versions became active "
    "depend on it"
)
_IN_BOTH_HALVES = (
    "both halves of a store contain it; `strandline relocate --copy` gives a copied store a new id"
)
_OF_A_RELEASE = "the next release that opens the catalog migrates it and raises the number itself"
_FIXED: dict[tuple[str, Key], str] = {
    (CONFIG.kind, ENVIRONMENT): _IN_BOTH_HALVES,
    (CONFIG.kind, FORMAT): _OF_A_RELEASE,
    (SETTING.kind, CONTENT): _OF_A_RELEASE,
    (CONFIG.kind, DELAY): _SET_AT_CREATION,
    (CONFIG.kind, SKEW): _SET_AT_CREATION,
}
"""The objects that cannot be edited, and the reasons."""

for _name in (EDIT, DELETE):
    declare_verb(
        Verb(name=_name, subject="object", why_kept="it was edited by hand; edit the object again")
    )


def editable(kind: str) -> Collection:
    """The collection of that name. Raises `InvalidInput` if it does not exist or is not editable.

    System views are not editable: a node replaces those whose fingerprint differs. To repair a
    system view, delete its fingerprint.
    """
    known = sorted(set(COLLECTIONS) - {FENCE.kind, "system_view"})
    if kind not in known:
        raise InvalidInput(
            f"objects of the kind {kind!r} cannot be edited; kinds that can are {', '.join(known)}"
        )
    return COLLECTIONS[kind]


def current(transaction: CatalogTransaction, kind: Collection, key: Key) -> Any:
    """The object at ``key``, or None. Raises `InvalidInput` if the key has the wrong type."""
    expected = int if kind.has_id else str
    if type(key) is not expected:
        raise InvalidInput(
            f"the key of a {kind.kind} is its "
            f"{'id, a number' if kind.has_id else 'name, a text'}, found {key!r}"
        )
    if isinstance(key, int):
        return transaction.get(kind.kind, key) if 0 <= key < 2**63 else None
    return transaction.get_named(kind.kind, key)


def edit(transaction: CatalogTransaction, kind: Collection, key: Key, value: Any) -> None:
    """Store ``value`` at ``key``, replacing any object. Raises `InvalidInput`, `AlreadyExists`."""
    _refuse_fixed(kind, key)
    if key_of(kind, value) != key:
        raise InvalidInput(f"the key is {key!r}, but the value has the key {key_of(kind, value)!r}")
    existing = current(transaction, kind, key)
    if existing is not None and value.name != existing.name:
        _refuse_default(transaction, existing)
    if existing is None or value.name != existing.name:
        _check_new_name(value)
    match value:
        case TableDescriptor():
            _require_no_lower_column_id(value, existing)
        case ZoneDescriptor():
            _require_same_partitions(value, existing)
        case IdAllocator():
            _require_near_next_id(transaction, value, existing)
    check_object(transaction.contents, kind, value)
    with transaction.entry(EDIT, {"object": f"{kind.kind} {key}"}):
        transaction.put(value)


def delete(transaction: CatalogTransaction, kind: Collection, key: Key) -> None:
    """Delete the object at ``key``.

    Raises `ObjectNotFound`, or `InvalidInput` if another object refers to it or it cannot be
    edited.
    """
    _refuse_fixed(kind, key)
    existing = current(transaction, kind, key)
    if existing is None:
        raise ObjectNotFound(f"{kind.kind} {key} does not exist")
    if isinstance(key, int):
        _require_unneeded(transaction, kind.kind, key)
    if (kind.kind, key) == (CONFIG.kind, DEFAULT_ZONE_CONFIG):
        raise InvalidInput(
            f"{kind.kind} {key!r} cannot be deleted, because tables are created in that zone; edit "
            "it to name another zone"
        )
    _refuse_default(transaction, existing)
    with transaction.entry(DELETE, {"object": f"{kind.kind} {key}"}):
        transaction.delete(kind.kind, key)


def _refuse_fixed(kind: Collection, key: Key) -> None:
    reason = _FIXED.get((kind.kind, key))
    if reason is not None:
        raise InvalidInput(f"{kind.kind} {key!r} cannot be edited: {reason}")


def _refuse_default(transaction: CatalogTransaction, existing: Any) -> None:
    """Refuse a default object: clients rely on the database and schema, new tables on the zone."""
    match existing:
        case DatabaseDescriptor():
            is_default = existing.name == DEFAULT_DATABASE
        case SchemaDescriptor(name=name) if name == DEFAULT_SCHEMA:
            database = transaction.get("database", existing.database_id)
            is_default = database is not None and database.name == DEFAULT_DATABASE
        case ZoneDescriptor():
            entry = transaction.get_named(CONFIG.kind, DEFAULT_ZONE_CONFIG)
            is_default = entry is not None and entry.value == str(existing.id)
        case _:
            is_default = False
    if is_default:
        kind = kind_of(existing).name
        raise InvalidInput(
            f"{kind} {existing.name!r} is the default {kind}, and cannot be renamed or deleted"
        )


def _check_new_name(value: Any) -> None:
    """Raise `InvalidName` for a name that a command refuses. Older releases may have allowed it."""
    match value:
        case SchemaDescriptor() | TableDescriptor() | ViewDescriptor():
            check_versioned_name(value.name, kind_of(value).name)
        case RoleDescriptor():
            check_role_name(value.name)


def _require_near_next_id(
    transaction: CatalogTransaction, allocator: IdAllocator, existing: IdAllocator | None
) -> None:
    """Refuse a large step of the next id, so that ids do not run out."""
    highest = highest_id(transaction.contents) if allocator.name == OBJECT_IDS else 0
    present = max(highest + 1, 1 if existing is None else existing.next_id)
    if allocator.next_id > present + MAX_IDS_AT_ONCE:
        raise InvalidInput(
            f"next_id cannot be {allocator.next_id}: it can be raised at most to "
            f"{present + MAX_IDS_AT_ONCE} at once"
        )


def _require_same_partitions(zone: ZoneDescriptor, existing: ZoneDescriptor | None) -> None:
    """Refuse another number of partitions, because files are assigned to partitions by number."""
    if existing is not None and zone.partitions != existing.partitions:
        raise InvalidInput(
            f"the number of partitions of zone {zone.name} is {existing.partitions} and cannot be "
            "changed: a hash assigns each file to a partition"
        )


def _require_no_lower_column_id(table: TableDescriptor, existing: TableDescriptor | None) -> None:
    if existing is not None and table.next_column_id < existing.next_column_id:
        raise InvalidInput(
            f"next_column_id of {table.name} cannot go back from {existing.next_column_id} to "
            f"{table.next_column_id}; it can only increase"
        )


def _require_unneeded(transaction: CatalogTransaction, kind: str, object_id: int) -> None:
    for other in all_kinds():
        for stored in transaction.contents.objects(other.name):
            if (kind, object_id) in required_objects(stored.value):
                raise InvalidInput(
                    f"{kind_of(stored.value).name} {key_of(other.collection, stored.value)} refers"
                    f" to {kind} {object_id}; delete or edit that first"
                )
