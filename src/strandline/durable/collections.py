"""The registry of the kinds of objects that a log holds.

A kind is registered once (`register_collection`). The state, the transaction, snapshots and dumps
all follow its declaration. The kinds of the log's own bookkeeping are registered here. All others
belong to the catalog, which declares them together with everything else about them
(`strandline.catalog.kinds`); importing `strandline.catalog` registers them.

``scope`` is the namespace in which an object's name is unique below its parent (tables, views,
system views and indexes share one). ``migratable`` is False for kinds whose shape can never change,
because every release must be able to read them before it knows anything else. Append-only kinds
have no key and are not kept in memory: they are written with an update and scanned by version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline.durable.update import AuditEvent
from strandline.errors import CorruptData, IncompatibleFormat
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

    An object with an id has it as its key (8 bytes, big-endian, so that byte order is id order);
    all others have their name in UTF-8. ``group`` is the field by which objects of this kind are
    looked up together. It is an id, and it is encoded directly after the name. ``named`` says
    whether an object occupies its name; if ``named`` is None, every object does. ``grows`` is a
    numeric field that never decreases. Such an object is never deleted either; otherwise ids would
    be allocated twice.
    """

    kind: str
    of: type[Any]  # the class of the descriptors
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
            raise ValueError(f"{self.kind} has no scope, so its names cannot become free")

    def stored(self, data: bytes) -> AnyStored:
        try:
            return Stored(data, self.of, has_id=self.has_id, has_group=self.group is not None)
        except (CorruptData, IncompatibleFormat) as error:
            raise type(error)(f"an object of the kind {self.kind}: {error.message}") from error

    def stored_value(self, value: object, *, record: bytes | None = None) -> AnyStored:
        """The stored form of a descriptor, which was decoded from ``record`` if that is given."""
        has_group = self.group is not None
        return Stored.of_value(value, has_id=self.has_id, has_group=has_group, record=record)

    def key(self, stored: AnyStored) -> bytes:
        """The key of an object of this kind."""
        return id_key(stored.id) if self.has_id else stored.name.encode()

    def occupies(self, stored: AnyStored) -> bool:
        """Whether ``stored`` occupies its name in the namespace of this kind."""
        return self.scope is not None and (self.named is None or self.named(stored))

    def runs_back(self, old: AnyStored | None, new: AnyStored | None) -> str | None:
        """What is wrong if ``new`` replaces ``old`` and lowers the ``grows`` field, or None."""
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
    """One kind of object that is only ever added. It is in no snapshot and not kept in memory.

    Compaction does not remove it. Objects of a ``lasting`` kind are kept for ever. Others are
    removed when they are older than their retention (`UpdateLog.prune`).
    """

    kind: str
    of: type[Any]  # the class of the objects
    migratable: bool = True
    lasting: bool = True


def id_key(object_id: int) -> bytes:
    return object_id.to_bytes(KEY_BYTES, "big")


COLLECTIONS: dict[str, Collection] = {}
"""Every registered kind, by its name."""

_BY_CLASS: dict[type[Any], Collection] = {}
_NUMBERS: dict[str, int] = {}


def register_collection(added: Collection) -> Collection:
    """Register a kind. Raises `ValueError` if another kind has its name or its class."""
    if COLLECTIONS.get(added.kind, added) != added or _BY_CLASS.get(added.of, added) != added:
        raise ValueError(
            f"the kind {added.kind} or its class {added.of.__name__} is already registered"
        )
    COLLECTIONS[added.kind] = _BY_CLASS[added.of] = added
    _NUMBERS.setdefault(added.kind, len(_NUMBERS))
    return added


def collection(kind: str) -> Collection:
    """The collection of ``kind``. Raises `IncompatibleFormat` if this release does not know it."""
    try:
        return COLLECTIONS[kind]
    except KeyError:
        raise _unknown(kind) from None


def collection_number(kind: str) -> int:
    """The number of ``kind`` in this process, in the order of registration, from 0.

    Raises `IncompatibleFormat` if this release does not know the kind.
    """
    try:
        return _NUMBERS[kind]
    except KeyError:
        raise _unknown(kind) from None


def _unknown(kind: str) -> IncompatibleFormat:
    known = ", ".join(sorted(COLLECTIONS))
    return IncompatibleFormat(
        f"the catalog has objects of the kind {kind!r}, which this release does not know: a "
        f"newer release wrote them; use that release. Known kinds are {known}"
    )


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
