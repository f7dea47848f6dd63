"""The registry of the kinds of objects that a log holds.

A kind is registered once (`register_collection`); the state, the transaction, snapshots and dumps
are driven by what it says. The kinds that keep the log's own books are registered here. All others
are the catalog's, and are declared there with everything else that is known of them
(`strandline.catalog.kinds`): importing `strandline.catalog` registers them.

``scope`` names the namespace in which the name of an object is unique below its parent (tables,
views, system views and indexes share one). ``migratable`` is False where the shape can never
change, because every release must be able to read it before it knows anything else. Append-only
kinds have no key and no memory: they are written with an update and scanned by version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline.durable.update import AuditEvent
from strandline.errors import IncompatibleFormat
from strandline.model.descriptors import (
    ConfigEntry,
    FenceEntry,
    IdAllocator,
    Setting,
    StorageUsageEvent,
    TimestampEntry,
)
from strandline.wire.stored import AnyStored, Stored

KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Collection:
    """One kind of object.

    Objects with an id are keyed by it (8 bytes, big-endian, so that byte order is id order), all
    others by their name in UTF-8. ``group`` is the field, an id that stands right behind the name,
    by which objects of this kind are looked up together. ``named`` says whether an object occupies
    its name; None is always. ``grows`` is a number in objects of this kind that never gets smaller,
    and such an object never goes: ids would be given twice.
    """

    kind: str
    of: type[Any]  # the descriptor's class
    has_id: bool = True
    scope: str | None = None
    migratable: bool = True
    group: str | None = None
    named: Callable[[AnyStored], bool] | None = None
    grows: str | None = None

    def __post_init__(self) -> None:
        if (self.scope is not None or self.group is not None) and not self.has_id:
            raise ValueError(f"{self.kind} is keyed by name: it has no scope and no group")
        if self.named is not None and self.scope is None:
            raise ValueError(f"{self.kind} has no scope that a name could be free in")

    def stored(self, data: bytes) -> AnyStored:
        """The object in the record ``data``."""
        return Stored(data, self.of, has_id=self.has_id, has_group=self.group is not None)

    def stored_value(self, value: object, *, record: bytes | None = None) -> AnyStored:
        """The stored form of a descriptor of this kind, which ``record`` was decoded to, if any."""
        has_group = self.group is not None
        return Stored.of_value(value, has_id=self.has_id, has_group=has_group, record=record)

    def key(self, stored: AnyStored) -> bytes:
        """The key of an object of this kind."""
        return id_key(stored.id) if self.has_id else stored.name.encode()

    def occupies(self, stored: AnyStored) -> bool:
        """Whether the name of ``stored`` stands for it in the namespace of this kind."""
        return self.scope is not None and (self.named is None or self.named(stored))

    def runs_back(self, old: AnyStored | None, new: AnyStored | None) -> str | None:
        """What is wrong with ``new`` in the place of ``old``, where a number must grow."""
        if self.grows is None or old is None:
            return None
        before = getattr(old.value, self.grows)
        after = None if new is None else getattr(new.value, self.grows)
        if after is not None and after >= before:
            return None
        to = "nothing" if after is None else after
        return f"{self.kind} {old.name!r} would go back from {before} to {to}"


@dataclass(frozen=True, slots=True)
class AppendOnly:
    """One kind of object that is only ever added; it is in no snapshot and in no memory.

    Trimming the history leaves it alone. What is ``lasting`` stays for good; all else goes when it
    is older than its retention (`UpdateLog.prune`).
    """

    kind: str
    of: type[Any]  # the class of the objects
    migratable: bool = True
    lasting: bool = True


def id_key(object_id: int) -> bytes:
    """The key of the object with that id."""
    return object_id.to_bytes(KEY_BYTES, "big")


COLLECTIONS: dict[str, Collection] = {}
"""Every registered kind, by its name."""

_BY_CLASS: dict[type[Any], Collection] = {}


def register_collection(added: Collection) -> Collection:
    """Register a kind. `ValueError` where its name, or its class, belongs to another."""
    if COLLECTIONS.get(added.kind, added) != added or _BY_CLASS.get(added.of, added) != added:
        raise ValueError(f"the kind {added.kind} or its class {added.of.__name__} is registered")
    COLLECTIONS[added.kind] = _BY_CLASS[added.of] = added
    return added


def forget_collection(removed: Collection) -> None:
    """Take back `register_collection`, as a test does behind it."""
    del COLLECTIONS[removed.kind], _BY_CLASS[removed.of]


def collection(kind: str) -> Collection:
    """The collection of ``kind``. Raises `IncompatibleFormat` for one that only others know."""
    try:
        return COLLECTIONS[kind]
    except KeyError:
        known = ", ".join(sorted(COLLECTIONS))
        raise IncompatibleFormat(
            f"the catalog has objects of the kind {kind!r}, which this release does not know: a"
            f" newer release wrote them; use that one. Known are {known}"
        ) from None


def collection_of(value: object) -> Collection:
    """The collection that a descriptor belongs to."""
    return _BY_CLASS[type(value)]


ID_ALLOCATOR = register_collection(
    Collection("id_allocator", IdAllocator, has_id=False, grows="next_id")
)
TIMESTAMP = register_collection(Collection("timestamp", TimestampEntry, has_id=False, grows="time"))
SETTING = register_collection(Collection("setting", Setting, has_id=False, migratable=False))
CONFIG = register_collection(Collection("config", ConfigEntry, has_id=False, migratable=False))
FENCE = register_collection(Collection("fence", FenceEntry, has_id=False, migratable=False))

AUDIT_EVENT = "audit_event"
STORAGE_USAGE_EVENT = "storage_usage_event"

APPEND_ONLY: dict[str, AppendOnly] = {
    declared.kind: declared
    for declared in (
        AppendOnly(AUDIT_EVENT, AuditEvent, migratable=False),
        AppendOnly(STORAGE_USAGE_EVENT, StorageUsageEvent, lasting=False),
    )
}

LASTING = frozenset(kind for kind, declared in APPEND_ONLY.items() if declared.lasting)
