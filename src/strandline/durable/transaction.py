"""A transaction on the catalog: changes over an immutable base, not yet in the log.

Opening one copies nothing; each operation costs the size of the change. It remembers the version of
its base. Any number may be open: one commits, the others find out that they are out of sync and are
validated again on the new base. What a transaction wrote, it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from strandline.durable.collections import Collection, collection, collection_of, id_key
from strandline.durable.contents import Contents, Namespace, Reference
from strandline.durable.update import Arguments, Change, Entry
from strandline.errors import AlreadyExists, InvalidInput, ObjectNotFound
from strandline.model.bookkeeping import IdAllocator
from strandline.wire.stored import AnyStored

OBJECT_IDS = "object"
"""The allocator that every object of the catalog takes its id from."""

MAX_IDS_AT_ONCE = 1_000_000


class CatalogTransaction:
    """See the module. Not for several threads."""

    def __init__(self, base_version: int, base: Contents) -> None:
        self.base_version = base_version
        self.base = base
        self.contents = base
        self.entries: list[Entry] = []
        self.on_insert: Callable[[object], object] | None = None
        """Gives a value that is about to be put where none is, complete."""
        self._changes: list[Change] = []

    def get(self, kind: str, object_id: int) -> Any:  # Any: the descriptor of that kind
        """The object of ``kind`` with that id, or None."""
        found = self.contents.get(kind, id_key(object_id))
        return None if found is None else found.value

    def get_named(self, kind: str, name: str) -> Any:  # Any: the descriptor of that kind
        """The object of a kind that is keyed by name, or None."""
        found = self.contents.get(kind, name.encode())
        return None if found is None else found.value

    def put(self, value: Any) -> None:  # Any: a descriptor of some kind
        """Insert ``value``, or replace the object with its key.

        A value that is there already writes nothing: what was written by an older release keeps
        its bytes. Raises `AlreadyExists` when its name stands for another object of its namespace.
        """
        kind = collection_of(value)
        key = id_key(value.id) if kind.has_id else value.name.encode()
        old = self.contents.get(kind.kind, key)
        if old is None:
            if self.on_insert is not None:
                value = self.on_insert(value)
        elif old.value == value:
            return
        new = kind.stored_value(value)
        if kind.scope is not None and kind.occupies(new):
            namespace = Namespace(kind.scope, new.parent)
            holder = self.contents.find(namespace, new.name)
            if holder is not None and holder != Reference(kind.kind, key):
                raise AlreadyExists(f"{holder.kind} {new.name!r} exists already")
        self._record(kind, key, old, new)

    def delete(self, kind: str, key: int | str) -> None:
        """Remove the object of ``kind`` with that id, or that name where it is keyed by name.

        `ObjectNotFound` if there is none.
        """
        found = id_key(key) if isinstance(key, int) else key.encode()
        old = self.contents.get(kind, found)
        if old is None:
            raise ObjectNotFound(f"{kind} {key} does not exist")
        self._record(collection(kind), found, old, None)

    def _record(
        self, kind: Collection, key: bytes, old: AnyStored | None, new: AnyStored | None
    ) -> None:
        backwards = kind.runs_back(old, new)
        if backwards is not None:
            raise InvalidInput(f"{backwards}; it only ever grows")
        change = Change(
            kind.kind, key, None if old is None else old.data, None if new is None else new.data
        )
        self.contents = self.contents.replaced(kind, key, old, new)
        self._changes.append(change)

    def allocate_id(self, name: str = OBJECT_IDS, *, amount: int = 1) -> range:
        """Take the next ``amount`` ids of the allocator ``name``; nothing else ever gets them."""
        if not 0 <= amount <= MAX_IDS_AT_ONCE:
            raise InvalidInput(f"{amount} ids asked for at once; ask for 0 to {MAX_IDS_AT_ONCE}")
        found = self.get_named("id_allocator", name)
        start: int = found.next_id if found else 1
        if amount:
            self.put(IdAllocator(name, start + amount))
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
        if self._changes:
            self.entries.append(Entry(verb, arguments, tuple(self._changes)))
            self._changes = []
