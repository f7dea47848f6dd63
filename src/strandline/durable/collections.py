"""The one registry of the kinds of objects that the catalog is made of.

A collection is declared once, here; the state, the transaction, snapshots and dumps are driven by
these declarations. ``scope`` names the namespace in which the name of an object is unique below its
parent (tables and views share one). ``migratable`` is False where the shape can never change,
because every release must be able to read it before it knows anything else. Append-only kinds have
no key and no memory: they are written with an update and scanned by version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strandline.errors import CorruptData
from strandline.model.bookkeeping import ConfigEntry, FenceEntry, IdAllocator
from strandline.model.descriptors import (
    DatabaseDescriptor,
    SchemaDescriptor,
    TableDescriptor,
    ViewDescriptor,
    ZoneDescriptor,
)
from strandline.wire.stored import AnyStored, Stored

KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Collection:
    """One kind of object.

    Objects with an id are keyed by it (8 bytes, big-endian, so that byte order is id order), all
    others by their name in UTF-8.
    """

    kind: str
    of: type[Any]  # the descriptor's class
    has_id: bool = True
    scope: str | None = None
    migratable: bool = True

    def stored(self, data: bytes) -> AnyStored:
        """The object in the record ``data``."""
        return Stored(data, self.of, has_id=self.has_id)

    def stored_value(self, value: object) -> AnyStored:
        """The stored form of a descriptor of this kind."""
        return Stored.of_value(value, has_id=self.has_id)

    def key(self, stored: AnyStored) -> bytes:
        """The key of an object of this kind."""
        return id_key(stored.id) if self.has_id else stored.name.encode()


def id_key(object_id: int) -> bytes:
    """The key of the object with that id."""
    return object_id.to_bytes(KEY_BYTES, "big")


COLLECTIONS: dict[str, Collection] = {
    one.kind: one
    for one in (
        Collection("database", DatabaseDescriptor, scope="database"),
        Collection("schema", SchemaDescriptor, scope="schema"),
        Collection("table", TableDescriptor, scope="relation"),
        Collection("view", ViewDescriptor, scope="relation"),
        Collection("zone", ZoneDescriptor, scope="zone"),
        Collection("id_allocator", IdAllocator, has_id=False),
        Collection("config", ConfigEntry, has_id=False, migratable=False),
        Collection("fence", FenceEntry, has_id=False, migratable=False),
    )
}

AUDIT_EVENT = "audit_event"
"""The append-only kind: it is scanned by version and is in no snapshot."""

_BY_CLASS = {one.of: one for one in COLLECTIONS.values()}


def collection(kind: str) -> Collection:
    """The collection of ``kind``; `CorruptData` if there is none."""
    try:
        return COLLECTIONS[kind]
    except KeyError:
        known = ", ".join(sorted(COLLECTIONS))
        raise CorruptData(f"object kind {kind!r} is unknown; known are {known}") from None


def collection_of(value: object) -> Collection:
    """The collection that a descriptor belongs to."""
    return _BY_CLASS[type(value)]
