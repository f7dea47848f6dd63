"""A transaction on the catalog: changes to an immutable base that are not in the log yet.

Starting a transaction copies nothing; each operation costs in proportion to the change. The
transaction remembers its base. Any number may be open. If one commits, the others are out of sync
and are validated again on the new base. A transaction reads its own writes. It has the id of the
update that it makes, so committing it again (after an unknown outcome) is not a second commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from strandline.durable.collections import (
    AUDIT_EVENT,
    ID_ALLOCATOR,
    Collection,
    collection,
    collection_of,
    id_key,
)
from strandline.durable.contents import Contents, Reference, name_of
from strandline.durable.update import (
    Appended,
    Arguments,
    AuditEvent,
    Change,
    Entry,
    EntryArguments,
    Update,
)
from strandline.errors import AlreadyExists, InvalidInput, LimitExceeded, ObjectNotFound
from strandline.model.descriptors import IdAllocator, SystemObjectFingerprint
from strandline.wire.registry import encode
from strandline.wire.stored import AnyStored

OBJECT_IDS = "object"
"""The allocator from which every object of the catalog takes its id."""

MAX_IDS_AT_ONCE = 1_000_000
MAX_ID = 2**63 - 1
"""Databases and clients store ids as signed 64-bit integers, including the next id."""
ID_BYTES = 16


class Position(Protocol):
    """A version, and all objects of the catalog in it."""

    @property
    def version(self) -> int: ...
    @property
    def contents(self) -> Contents: ...


class _Written(NamedTuple):
    """The old object at a key and the new one, either None."""

    kind: Collection
    key: bytes
    old: AnyStored | None
    new: AnyStored | None


class CatalogTransaction:
    """See the module. Not safe for use by several threads."""

    def __init__(self, base: Position, *, author: str) -> None:
        self.base = base
        self.version = base.version + 1
        """The version that this transaction becomes."""
        self.author = author
        self.contents = base.contents
        self.entries: list[Entry] = []
        self._id = secrets.token_bytes(ID_BYTES)
        self.on_insert: Callable[[object], object] | None = None
        """Completes a value that is about to be inserted."""
        self.environment: str | None = None
        """The environment id that a new catalog must have, or None for any."""
        self._changes: list[Change] = []
        self._appended: list[Appended] = []
        # By the key of an allocator, its last change: the number of the entry, the place in it.
        self._allocations: dict[bytes, tuple[int, int]] = {}

    def get(self, kind: str, object_id: int) -> Any:  # Any: the descriptor of that kind
        return self.contents.value(kind, id_key(object_id))

    def get_named(self, kind: str, name: str) -> Any:  # Any: the descriptor of that kind
        """The object of that name, of a kind that is keyed by name, or None."""
        return self.contents.value(kind, name.encode())

    def put(
        self,
        value: Any,  # Any: a descriptor of some kind
        *,
        record: bytes | None = None,
    ) -> None:
        """Insert ``value``, or replace the object with its key.

        If the object equals ``value``, nothing is written, so an object of an older release keeps
        its bytes. ``record`` is the record that ``value`` was decoded from, if known. Raises
        `AlreadyExists` if another object of the namespace has its name.
        """
        written = self._written(value, record=record)
        if written is not None:
            self._require_free(written)
            self._change(written)

    def put_all(self, values: Iterable[Any]) -> None:  # Any: descriptors of some kinds
        """Put ``values`` together. Names are checked only against the final result.

        So objects may swap their names, which would conflict if they were put one by one. If two
        values have one key, the last one counts. Raises `AlreadyExists`, in which case none of them
        is put.
        """
        before, kept_changes = self.contents, len(self._changes)
        of_keys = {}
        for value in {_target(value): value for value in values}.values():
            written = self._written(value)
            if written is not None:
                of_keys[written.kind.kind, written.key] = written
        takers = {
            name: target
            for target, written in of_keys.items()
            if (name := name_of(written.kind, written.new)) is not None
        }
        try:
            for target, written in of_keys.items():
                name = name_of(written.kind, written.old)
                if name is not None and takers.get(name, target) != target:
                    self._change(written._replace(new=None))
                    of_keys[target] = written._replace(old=None)
            for written in of_keys.values():
                self._require_free(written)
                self._change(written)
        except AlreadyExists:
            self.contents = before
            del self._changes[kept_changes:]
            raise

    def set_system_object_mapping(self, mapping: Iterable[SystemObjectFingerprint]) -> None:
        """Record which object of the catalog each system object is, and its definition.

        Raises `ObjectNotFound` if one of these objects does not exist, and then records nothing: a
        later start could neither replace nor drop it.
        """
        entries = tuple(mapping)
        for entry in entries:
            kind = entry.object_kind.name.lower()
            if self.get(kind, entry.object_id) is None:
                raise ObjectNotFound(
                    f"{kind} {entry.object_id}, which {entry.name} is mapped to, does not exist"
                )
        self.put_all(entries)

    def _written(
        self,
        value: Any,  # Any: a descriptor of some kind
        *,
        record: bytes | None = None,
    ) -> _Written | None:
        """The change that putting ``value`` makes, or None if the object equals it."""
        kind, key = _target(value)
        old = self.contents.get(kind.kind, key)
        if old is None:
            if self.on_insert is not None:
                inserted = self.on_insert(value)
                value, record = inserted, record if inserted is value else None
        elif old.value == value:
            return None
        new = kind.stored_value(value, record=record)
        _refuse_running_back(kind, old, new)
        return _Written(kind, key, old, new)

    def _require_free(self, written: _Written) -> None:
        kind, key, _, new = written
        name = name_of(kind, new)
        if name is None or new is None:
            return
        holder = self.contents.find(*name)
        if holder is not None and holder != Reference(kind.kind, key):
            raise AlreadyExists(f"{holder.kind} {new.name!r} already exists")

    def delete(self, kind: str, key: int | str) -> None:
        """Remove the object of ``kind`` with that id, or that name if it is keyed by name.

        Raises `ObjectNotFound` if it does not exist.
        """
        stored_key = id_key(key) if isinstance(key, int) else key.encode()
        old = self.contents.get(kind, stored_key)
        if old is None:
            raise ObjectNotFound(f"{kind} {key} does not exist")
        _refuse_running_back(collection(kind), old, None)
        self._change(_Written(collection(kind), stored_key, old, None))

    def append(self, kind: str, event: object) -> None:
        """Add an object of an append-only kind. Transactions cannot read it."""
        self._appended.append(Appended(kind, encode(event)))

    def _change(self, written: _Written) -> None:
        kind, key, old, new = written
        change = Change(
            kind.kind, key, None if old is None else old.data, None if new is None else new.data
        )
        self.contents = self.contents.replaced(kind, key, old, new)
        self._changes.append(change)

    def allocate_id(self, name: str = OBJECT_IDS, *, amount: int = 1) -> range:
        """Take the next ``amount`` ids of the allocator ``name``; they are never reused."""
        if not 0 <= amount <= MAX_IDS_AT_ONCE:
            raise InvalidInput(
                f"{amount} ids cannot be allocated at once; allocate 0 to {MAX_IDS_AT_ONCE}"
            )
        key = name.encode()
        old = self.contents.get(ID_ALLOCATOR.kind, key)
        start: int = 1 if old is None else old.value.next_id
        if start + amount > MAX_ID:
            raise LimitExceeded(
                f"the allocator {name!r} cannot allocate {amount} ids: its next id is {start}, "
                f"and the highest possible id is {MAX_ID - 1}"
            )
        if amount:
            new = ID_ALLOCATOR.stored_value(IdAllocator(name, start + amount))
            self._change(_Written(ID_ALLOCATOR, key, old, new))
        return range(start, start + amount)

    @contextmanager
    def entry(self, verb: str, arguments: Arguments) -> Iterator[None]:
        """Collect what the block puts and deletes into one entry.

        A block that changes nothing makes no entry. If the block raises, its changes are undone.
        """
        if self._changes:
            raise RuntimeError("entries cannot be nested")
        before = self.contents
        try:
            yield
        except BaseException:
            self.contents = before
            self._changes = []
            raise
        consolidated, self._changes = self._consolidate(before), []
        if consolidated:
            changes = tuple(self._fold_allocations(consolidated))
            self.entries.append(Entry(verb, EntryArguments(arguments), changes))

    def _consolidate(self, before: Contents) -> list[Change]:
        """The net changes since ``before``. An object that ends as it began is restored."""
        consolidated = _consolidated(self._changes)
        if len(consolidated) < len(self._changes):
            remaining_keys = {(change.kind, change.key) for change in consolidated}
            for kind, key in {
                (change.kind, change.key) for change in self._changes
            } - remaining_keys:
                # Even with the same bytes, a new object would get another time.
                ended, began = self.contents.get(kind, key), before.get(kind, key)
                if ended is not began:
                    self.contents = self.contents.replaced(collection(kind), key, ended, began)
        return consolidated

    def _fold_allocations(self, changes: Iterable[Change]) -> list[Change]:
        """``changes`` without those of allocators that an earlier entry has changed already.

        The change in that entry is extended to the present number instead. So a batch of n commands
        changes an allocator once, not n times.
        """
        kept_changes: list[Change] = []
        for change in changes:
            if change.kind == ID_ALLOCATOR.kind:
                number, place = self._allocations.get(change.key, (len(self.entries), 0))
                if number < len(self.entries):
                    entry = self.entries[number]
                    folded = list(entry.changes)
                    folded[place] = replace(folded[place], new=change.new)
                    self.entries[number] = replace(entry, changes=tuple(folded))
                    continue
                self._allocations[change.key] = number, len(kept_changes)
            kept_changes.append(change)
        return kept_changes

    def changes(self) -> Iterator[Change]:
        """The changes of all entries, in order."""
        return (change for entry in self.entries for change in entry.changes)

    def update(self, *, member: str) -> Update:
        """The update that this transaction makes; the same one at each call."""
        return new_update(
            self.version,
            self.entries,
            author=self.author,
            member=member,
            update_id=self._id,
            appended=self._appended,
        )

    def rebased(self, base: Position) -> CatalogTransaction:
        """The same entries on a newer base that differs from the old one only in other objects."""
        rebased = CatalogTransaction(base, author=self.author)
        rebased.entries = self.entries
        rebased._appended = self._appended
        rebased.contents = base.contents.apply(self.changes())
        return rebased


def _target(value: Any) -> tuple[Collection, bytes]:  # Any: a descriptor of some kind
    """The kind and the key of the object that ``value`` describes."""
    kind = collection_of(value)
    return kind, id_key(value.id) if kind.has_id else value.name.encode()


def _refuse_running_back(kind: Collection, old: AnyStored | None, new: AnyStored | None) -> None:
    backwards = kind.runs_back(old, new)
    if backwards is not None:
        raise InvalidInput(f"{backwards}; it can only increase")


def _consolidated(changes: list[Change]) -> list[Change]:
    """``changes`` without those that cancel out; they lead to the same objects.

    If an object was created and then removed, both changes are dropped. Consecutive changes of one
    object become one. All others stay as they are, because a change in between may depend on a name
    that was released or taken.
    """
    ends: dict[tuple[str, bytes], tuple[bytes | None, bytes | None]] = {}
    for change in changes:
        target = change.kind, change.key
        ends[target] = ends.get(target, (change.old, None))[0], change.new
    if len(ends) == len(changes):
        return changes
    kept_changes: list[Change] = []
    for change in changes:
        target = change.kind, change.key
        if ends[target] == (None, None):
            continue
        if kept_changes and (kept_changes[-1].kind, kept_changes[-1].key) == target:
            change = replace(change, old=kept_changes.pop().old)
            if change.old == change.new:
                continue
        kept_changes.append(change)
    return kept_changes


def new_update(
    version: int,
    entries: Sequence[Entry],
    *,
    author: str,
    member: str,
    update_id: bytes | None = None,
    appended: Iterable[Appended] = (),
) -> Update:
    """An update, with an audit event of its entries that are not silent.

    ``update_id`` is random by default.
    """
    update_id = update_id or secrets.token_bytes(ID_BYTES)
    actions = tuple((entry.verb, entry.arguments) for entry in entries if not entry.silent)
    objects = tuple(appended)
    if actions:
        event = AuditEvent(version, update_id, author, member, actions)
        objects = (Appended(AUDIT_EVENT, encode(event)), *objects)
    return Update(version, update_id, author, member, tuple(entries), appended=objects)
