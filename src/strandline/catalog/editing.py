"""Edits by hand: repairs of single objects, past the commands and within the rules.

No command checks what an edit means, so an edit is checked by what every catalog keeps to: names
are unique and numbers that grow do not fall (`CatalogTransaction`), ids are below the next id, what
an object refers to is there, the columns of a table have ids of their own, the default objects keep
their names, and a parameter has a value that it can have. An edit is one entry of the history, as
any change. Code that reads an older version relies on these rules too, so a
second edit cannot make up for one that broke them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from strandline.catalog.applier import DELAY, SKEW
from strandline.catalog.catalog import DEFAULT_DATABASE, DEFAULT_ZONE_CONFIG
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.commands.definition import check_distinct
from strandline.catalog.commands.zones import MAX_PARTITIONS
from strandline.catalog.configuration import parameter
from strandline.catalog.kinds import all_kinds, kind_of, references
from strandline.catalog.verbs import Verb, declare_verb
from strandline.durable.collections import COLLECTIONS, CONFIG, FENCE, SETTING, Collection
from strandline.durable.migrations import CONTENT, FORMAT
from strandline.durable.state import ENVIRONMENT
from strandline.durable.transaction import MAX_IDS_AT_ONCE, OBJECT_IDS, CatalogTransaction
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.model.descriptors import (
    ConfigEntry,
    DatabaseDescriptor,
    IdAllocator,
    SchemaDescriptor,
    SchemaVersion,
    SystemConfiguration,
    TableDescriptor,
    ZoneDescriptor,
)
from strandline.model.identifiers import check_name

# Below, Any stands for a descriptor of some kind.
Key = int | str
"""An object's id, or its name where the kind is keyed by name."""

EDIT, DELETE = "debug_edit", "debug_delete"

_SET_AT_CREATION = (
    "it is set when the catalog is made, and the times at which its versions became active depend"
    " on it"
)
_IN_BOTH_HALVES = (
    "it stands in both halves of a store; `strandline relocate --copy` gives a copied store an id"
    " of its own"
)
_OF_A_RELEASE = "the next release that opens the catalog migrates it and raises the number itself"
_FIXED: dict[tuple[str, Key], str] = {
    (CONFIG.kind, ENVIRONMENT): _IN_BOTH_HALVES,
    (CONFIG.kind, FORMAT): _OF_A_RELEASE,
    (SETTING.kind, CONTENT): _OF_A_RELEASE,
    (CONFIG.kind, DELAY): _SET_AT_CREATION,
    (CONFIG.kind, SKEW): _SET_AT_CREATION,
}
"""The objects that no edit changes, and why."""

for _name in (EDIT, DELETE):
    declare_verb(
        Verb(name=_name, subject="object", why_kept="it is a repair by hand; edit the object again")
    )


def editable(kind: str) -> Collection:
    """The collection of that name. `InvalidInput` where there is none, or it is not for hands.

    A node brings the system views whose fingerprints differ: to repair one, delete its fingerprint.
    """
    known = sorted(set(COLLECTIONS) - {FENCE.kind, "system_view"})
    if kind not in known:
        raise InvalidInput(f"there is no kind {kind!r} that can be edited: {', '.join(known)}")
    return COLLECTIONS[kind]


def key_of(kind: Collection, value: Any) -> Key:
    """The key of ``value``, an object of ``kind``."""
    key: Key = value.id if kind.has_id else value.name
    return key


def current(transaction: CatalogTransaction, kind: Collection, key: Key) -> Any:
    """The object at ``key``, or None. `InvalidInput` where the kind has no such keys."""
    expected = int if kind.has_id else str
    if type(key) is not expected:
        raise InvalidInput(
            f"the key of a {kind.kind} is its {'id, a number' if kind.has_id else 'name, a text'};"
            f" {key!r} is none"
        )
    if isinstance(key, int):
        return transaction.get(kind.kind, key) if 0 <= key < 2**63 else None
    return transaction.get_named(kind.kind, key)


def edit(transaction: CatalogTransaction, kind: Collection, key: Key, value: Any) -> None:
    """Put ``value`` at ``key``, whatever is there. Raises `InvalidInput`, `AlreadyExists`."""
    _refuse_fixed(kind, key)
    if key_of(kind, value) != key:
        raise InvalidInput(f"the key is {key!r}, and the value is of {key_of(kind, value)!r}")
    existing = current(transaction, kind, key)
    if existing is not None and value.name != existing.name:
        _refuse_default(transaction, existing)
    if isinstance(key, int):
        check_name(value.name, kind.kind.replace("_", " "))
        _require_given(transaction, key)
        if existing is None:
            _require_free(transaction, kind, key)
    match value:
        case TableDescriptor():
            _require_columns(value, existing_table=existing)
        case ZoneDescriptor():
            _require_partitions(value, existing_zone=existing)
        case IdAllocator():
            _require_next_id(transaction, value)
        case SystemConfiguration():
            parameter(value.name).read(value.value)
        case ConfigEntry(name=name, value=zone_id) if name == DEFAULT_ZONE_CONFIG:
            _require_zone(transaction, zone_id)
    with transaction.entry(EDIT, {"object": f"{kind.kind} {key}"}):
        transaction.put(value)
        for name, object_id in references(value):
            if transaction.get(name, object_id) is None:
                raise InvalidInput(f"the value refers to {name} {object_id}, which does not exist")


def delete(transaction: CatalogTransaction, kind: Collection, key: Key) -> None:
    """Remove the object at ``key``. Raises `ObjectNotFound`, and `InvalidInput` while needed."""
    _refuse_fixed(kind, key)
    existing = current(transaction, kind, key)
    if existing is None:
        raise ObjectNotFound(f"{kind.kind} {key} does not exist")
    if isinstance(key, int):
        _require_unneeded(transaction, kind.kind, key)
    _refuse_default(transaction, existing)
    with transaction.entry(DELETE, {"object": f"{kind.kind} {key}"}):
        transaction.delete(kind.kind, key)


def _refuse_fixed(kind: Collection, key: Key) -> None:
    reason = _FIXED.get((kind.kind, key))
    if reason is not None:
        raise InvalidInput(f"{kind.kind} {key!r} cannot be edited: {reason}")


def _refuse_default(transaction: CatalogTransaction, existing: Any) -> None:
    """Clients take the default database and schema for granted, and new tables the default zone."""
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
            f"{kind} {existing.name!r} is the default one, and can be neither renamed nor deleted"
        )


def _require_given(transaction: CatalogTransaction, object_id: int) -> None:
    """Ids are taken from the allocator: one that it has yet to give would be given twice."""
    allocator = transaction.get_named("id_allocator", OBJECT_IDS)
    if not 0 < object_id < allocator.next_id:
        raise InvalidInput(
            f"id {object_id} was never given, the next one is {allocator.next_id};"
            f" edit id_allocator '\"{OBJECT_IDS}\"' first if that is too low"
        )


def _require_free(transaction: CatalogTransaction, kind: Collection, object_id: int) -> None:
    """All kinds take their ids from one allocator, so an id is that of one object."""
    for other in COLLECTIONS.values():
        if other.has_id and transaction.get(other.kind, object_id) is not None:
            raise InvalidInput(
                f"id {object_id} is that of a {other.kind.replace('_', ' ')};"
                f" a {kind.kind.replace('_', ' ')} needs one of its own"
            )


def _require_next_id(transaction: CatalogTransaction, allocator: IdAllocator) -> None:
    """Above every id in use, and not so far that ids would run out."""
    existing = transaction.get_named("id_allocator", allocator.name)
    if existing is not None and allocator.next_id <= existing.next_id:
        return  # the transaction refuses a lower one
    in_use = [
        stored.id
        for kind in COLLECTIONS.values()
        if kind.has_id
        for stored in transaction.contents.objects(kind.kind)
    ]
    highest = max(in_use, default=0) if allocator.name == OBJECT_IDS else 0
    present = max(highest + 1, 1 if existing is None else existing.next_id)
    if not highest < allocator.next_id <= present + MAX_IDS_AT_ONCE:
        raise InvalidInput(
            f"next_id cannot be {allocator.next_id}: the highest id in use is {highest}, and it may"
            f" go at most to {present + MAX_IDS_AT_ONCE} at once"
        )


def _require_partitions(zone: ZoneDescriptor, *, existing_zone: ZoneDescriptor | None) -> None:
    """Files belong to the partitions of a zone by their number, which never changes."""
    if existing_zone is not None and zone.partitions != existing_zone.partitions:
        raise InvalidInput(
            f"zone {zone.name} has {existing_zone.partitions} partitions, which never changes:"
            " files belong to them by a hash"
        )
    if not 1 <= zone.partitions <= MAX_PARTITIONS:
        raise InvalidInput(
            f"zone {zone.name} cannot have {zone.partitions} partitions; 1 to {MAX_PARTITIONS} may"
        )


def _require_zone(transaction: CatalogTransaction, zone_id: str) -> None:
    known = {str(stored.id) for stored in transaction.contents.objects("zone")}
    if zone_id not in known:
        raise InvalidInput(
            f"{zone_id!r} is not the id of a zone; those of this catalog are"
            f" {', '.join(sorted(known))}"
        )


def _require_columns(table: TableDescriptor, *, existing_table: TableDescriptor | None) -> None:
    """Columns are found by their ids: in data files, in keys, and in the past of the table."""
    numbers = [version.number for version in table.schema_versions]
    if not numbers or any(later <= earlier for earlier, later in pairwise(numbers)):
        raise InvalidInput(
            f"the schema versions of {table.name} have the numbers {numbers}; a table has at least"
            " one version, and the numbers rise"
        )
    if existing_table is not None and table.next_column_id < existing_table.next_column_id:
        raise InvalidInput(
            f"next_column_id of {table.name} cannot go back from {existing_table.next_column_id} to"
            f" {table.next_column_id}; it only ever grows"
        )
    for version in table.schema_versions:
        _require_distinct_columns(table, version)
    ids = {column.id for column in table.columns}
    for field in ("partition_columns", "primary_key", "colocation"):
        unknown = set(getattr(table, field)) - ids
        if unknown:
            raise InvalidInput(f"{field} of {table.name} has column {min(unknown)}, which it lacks")


def _require_distinct_columns(table: TableDescriptor, version: SchemaVersion) -> None:
    what = f"schema version {version.number} of {table.name}"
    check_distinct([column.name for column in version.columns], what=what)
    ids = [column.id for column in version.columns]
    if len(set(ids)) < len(ids) or not all(0 < n < table.next_column_id for n in ids):
        raise InvalidInput(
            f"the columns of {what} have the ids {ids}; each has its own, below next_column_id,"
            f" which is {table.next_column_id}"
        )


def _require_unneeded(transaction: CatalogTransaction, kind: str, object_id: int) -> None:
    for other in all_kinds():
        if not other.references:
            continue
        for stored in transaction.contents.objects(other.name):
            if (kind, object_id) in references(stored.value):
                raise InvalidInput(
                    f"{kind_of(stored.value).name} {key_of(other.collection, stored.value)} refers"
                    f" to {kind} {object_id}; delete or edit that first"
                )
