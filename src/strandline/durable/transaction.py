"""A transaction on the catalog: changes over an immutable base, not yet in the log.

Opening one copies nothing; each operation costs the size of the change. It remembers its base. Any
number may be open: one commits, the others find out that they are out of sync and are validated
again on the new base. What a transaction wrote, it reads. A transaction has the id of the update
that it makes, so committing it a second time (because the first outcome is unknown) is no second
commit.
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
from strandline.model.descriptors import IdAllocator
from strandline.wire.registry import encode
from strandline.wire.stored import AnyStored

OBJECT_IDS = "object"
"""The allocator that every object of the catalog takes its id from."""

MAX_IDS_AT_ONCE = 1_000_000
MAX_ID = 2**63 - 1
"""Databases and clients keep ids in 64 bits with a sign, the next one too."""
ID_BYTES = 16


class Position(Protocol):
    """A version, and all objects of the catalog at it."""

    @property
    def version(self) -> int: ...
    @property
    def contents(self) -> Contents: ...


class _Written(NamedTuple):
    """What stands at a key, and what takes its place."""

    kind: Collection
    key: bytes
    old: AnyStored | None
    new: AnyStored | None


class CatalogTransaction:
    """See the module. Not for several threads."""

    def __init__(self, base: Position, *, author: str) -> None:
        self.base = base
        self.author = author
        self.contents = base.contents
        self.entries: list[Entry] = []
        self._id = secrets.token_bytes(ID_BYTES)
        self.on_insert: Callable[[object], object] | None = None
        """Completes a value that is about to be inserted."""
        self.environment: str | None = None
        """The environment id that a new catalog is to have, if any."""
        self._changes: list[Change] = []
        self._appended: list[Appended] = []
        # The last change of an allocator, by its key: the number of the entry, the place in it.
        self._allocations: dict[bytes, tuple[int, int]] = {}

    def get(self, kind: str, object_id: int) -> Any:  # Any: the descriptor of that kind
        """The object of ``kind`` with that id, or None."""
        stored = self.contents.get(kind, id_key(object_id))
        return None if stored is None else stored.value

    def get_named(self, kind: str, name: str) -> Any:  # Any: the descriptor of that kind
        """The object of a kind that is keyed by name, or None."""
        stored = self.contents.get(kind, name.encode())
        return None if stored is None else stored.value

    def put(
        self,
        value: Any,  # Any: a descriptor of some kind
        *,
        record: bytes | None = None,
    ) -> None:
        """Insert ``value``, or replace the object with its key.

        An equal value writes nothing, so what an older release wrote keeps its bytes. ``record`` is
        what ``value`` was decoded from, if it is known. Raises `AlreadyExists` when its name stands
        for another object of its namespace.
        """
        written = self._written(value, record=record)
        if written is not None:
            self._require_free(written)
            self._change(written)

    def put_all(self, values: Iterable[Any]) -> None:  # Any: descriptors of some kinds
        """Put ``values`` together: their names are judged by where all of them end.

        So objects may exchange their names, which put one by one would each meet the other. Of two
        values for one key the last counts. Raises `AlreadyExists`, and then has put none of them.
        """
        before, done = self.contents, len(self._changes)
        of_keys = {}
        for value in values:
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
            del self._changes[done:]
            raise

    def _written(
        self,
        value: Any,  # Any: a descriptor of some kind
        *,
        record: bytes | None = None,
    ) -> _Written | None:
        """What putting ``value`` replaces and by what; None where an equal value is there."""
        kind = collection_of(value)
        key = id_key(value.id) if kind.has_id else value.name.encode()
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
            raise AlreadyExists(f"{holder.kind} {new.name!r} exists already")

    def delete(self, kind: str, key: int | str) -> None:
        """Remove the object of ``kind`` with that id, or that name where it is keyed by name.

        `ObjectNotFound` if there is none.
        """
        stored_key = id_key(key) if isinstance(key, int) else key.encode()
        old = self.contents.get(kind, stored_key)
        if old is None:
            raise ObjectNotFound(f"{kind} {key} does not exist")
        _refuse_running_back(collection(kind), old, None)
        self._change(_Written(collection(kind), stored_key, old, None))

    def append(self, kind: str, event: object) -> None:
        """Add an object of an append-only kind, which no transaction reads."""
        self._appended.append(Appended(kind, encode(event)))

    def _change(self, written: _Written) -> None:
        kind, key, old, new = written
        change = Change(
            kind.kind, key, None if old is None else old.data, None if new is None else new.data
        )
        self.contents = self.contents.replaced(kind, key, old, new)
        self._changes.append(change)

    def allocate_id(self, name: str = OBJECT_IDS, *, amount: int = 1) -> range:
        """Take the next ``amount`` ids of the allocator ``name``; nothing else ever gets them."""
        if not 0 <= amount <= MAX_IDS_AT_ONCE:
            raise InvalidInput(f"{amount} ids asked for at once; ask for 0 to {MAX_IDS_AT_ONCE}")
        key = name.encode()
        old = self.contents.get(ID_ALLOCATOR.kind, key)
        start: int = 1 if old is None else old.value.next_id
        if start + amount > MAX_ID:
            raise LimitExceeded(
                f"{amount} ids of the allocator {name!r} were asked for, and the next one is "
                f"{start}; the last that can be given is {MAX_ID - 1}"
            )
        if amount:
            new = ID_ALLOCATOR.stored_value(IdAllocator(name, start + amount))
            self._change(_Written(ID_ALLOCATOR, key, old, new))
        return range(start, start + amount)

    @contextmanager
    def entry(self, verb: str, arguments: Arguments) -> Iterator[None]:
        """Everything put or deleted inside belongs to one entry; no change, no entry.

        An exception takes back what was done inside.
        """
        if self._changes:
            raise RuntimeError("entries do not nest")
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
        """What came of the changes since ``before``; what ends as it began is as it was there."""
        consolidated = _consolidated(self._changes)
        if len(consolidated) < len(self._changes):
            left = {(change.kind, change.key) for change in consolidated}
            for kind, key in {(change.kind, change.key) for change in self._changes} - left:
                # With the same bytes it would yet be a new object, which gets another time.
                ended, began = self.contents.get(kind, key), before.get(kind, key)
                if ended is not began:
                    self.contents = self.contents.replaced(collection(kind), key, ended, began)
        return consolidated

    def _fold_allocations(self, changes: Iterable[Change]) -> list[Change]:
        """``changes``, without those of an allocator that an earlier entry has changed.

        The change of that entry then goes on to the present number. So a batch of n commands
        changes an allocator once, and not n times.
        """
        kept: list[Change] = []
        for change in changes:
            if change.kind == ID_ALLOCATOR.kind:
                number, place = self._allocations.get(change.key, (len(self.entries), 0))
                if number < len(self.entries):
                    entry = self.entries[number]
                    folded = list(entry.changes)
                    folded[place] = replace(folded[place], new=change.new)
                    self.entries[number] = replace(entry, changes=tuple(folded))
                    continue
                self._allocations[change.key] = number, len(kept)
            kept.append(change)
        return kept

    @property
    def version(self) -> int:
        """The version that this transaction becomes."""
        return self.base.version + 1

    def changes(self) -> Iterator[Change]:
        """The changes of all entries, in order."""
        return (change for entry in self.entries for change in entry.changes)

    def update(self, *, member: str) -> Update:
        """The update that this transaction makes, each time the same."""
        return new_update(
            self.version,
            self.entries,
            author=self.author,
            member=member,
            update_id=self._id,
            appended=self._appended,
        )

    def rebased(self, base: Position) -> CatalogTransaction:
        """The same entries on a newer base, which differs from the old one in other objects."""
        rebased = CatalogTransaction(base, author=self.author)
        rebased.entries = self.entries
        rebased._appended = self._appended
        rebased.contents = base.contents.apply(self.changes())
        return rebased


def _refuse_running_back(kind: Collection, old: AnyStored | None, new: AnyStored | None) -> None:
    backwards = kind.runs_back(old, new)
    if backwards is not None:
        raise InvalidInput(f"{backwards}; it only ever grows")


def _consolidated(changes: list[Change]) -> list[Change]:
    """``changes`` without those that came to nothing: they lead to the same objects.

    An object that was made and removed leaves none, and changes of one object in a row are one.
    Others stay as they are: what came between may rest on a name that was given up or taken.
    """
    ends: dict[tuple[str, bytes], tuple[bytes | None, bytes | None]] = {}
    for change in changes:
        target = change.kind, change.key
        ends[target] = ends.get(target, (change.old, None))[0], change.new
    if len(ends) == len(changes):
        return changes
    kept: list[Change] = []
    for change in changes:
        target = change.kind, change.key
        if ends[target] == (None, None):
            continue
        if kept and (kept[-1].kind, kept[-1].key) == target:
            change = replace(change, old=kept.pop().old)
            if change.old == change.new:
                continue
        kept.append(change)
    return kept


def new_update(
    version: int,
    entries: Sequence[Entry],
    *,
    author: str,
    member: str,
    update_id: bytes | None = None,
    appended: Iterable[Appended] = (),
) -> Update:
    """An update with the audit event of what is not silent in it; without an id, a random one."""
    update_id = update_id or secrets.token_bytes(ID_BYTES)
    actions = tuple((entry.verb, entry.arguments) for entry in entries if not entry.silent)
    objects = tuple(appended)
    if actions:
        event = AuditEvent(version, update_id, author, member, actions)
        objects = (Appended(AUDIT_EVENT, encode(event)), *objects)
    return Update(version, update_id, author, member, tuple(entries), appended=objects)
