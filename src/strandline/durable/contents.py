"""`Contents`: all objects of the catalog at one version, as an immutable value.

The maps are persistent (hash array mapped tries): a new version shares all that did not change
with the one before, so a thousand versions cost about the sum of their differences. Beside the
objects two indexes are maintained, never rebuilt: the names in each namespace, and the objects of a
group (the indexes of a table). So n changes cost O(n log m) in a catalog of m objects, in one step
or in many.

An object knows when it was last changed (`Stored.updated`, the log's time of the update that wrote
it). That time is no part of its bytes: the log knows it only when it has ordered the update, which
is after the bytes were written.

What must stay true: a change is applied only over exactly the bytes that it says it replaces, and
no name is used twice in one namespace, without regard to case. Either would mean that the log and
this memory disagree, which is corruption, not a condition to repair.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

from immutables import Map, MapMutation

from strandline.clock import Timestamp
from strandline.durable.collections import COLLECTIONS, Collection, collection
from strandline.durable.update import Change
from strandline.errors import CorruptData
from strandline.model.identifiers import normalize
from strandline.wire.stored import NEVER_UPDATED, AnyStored
from strandline.work import keeping_garbage


class Reference(NamedTuple):
    """Which object a name stands for."""

    kind: str
    key: bytes


class Namespace(NamedTuple):
    """Where a name is unique: a scope (see `Collection.scope`) below a parent's id."""

    scope: str
    parent: int


class Group(NamedTuple):
    """Objects of a kind that are looked up together, by the id in their `Collection.group`."""

    kind: str
    id: int


def name_of(kind: Collection, stored: AnyStored | None) -> tuple[Namespace, str] | None:
    """Where ``stored`` has its name, and the name, normalized; None where it takes none."""
    if kind.scope is None or stored is None or not kind.occupies(stored):
        return None
    return Namespace(kind.scope, stored.parent), normalize(stored.name)


Objects = Map[bytes, AnyStored]
Kinds = Map[str, Objects]
Names = Map[str, Reference]
Keys = tuple[bytes, ...]

_NO_OBJECTS: Objects = Map()
_NO_NAMES: Names = Map()


def _of_kind(kinds: Kinds, kind: str) -> Objects:
    """The objects of ``kind``; `CorruptData` where it is no kind."""
    objects = kinds.get(kind)
    if objects is None:
        collection(kind)
        return _NO_OBJECTS
    return objects


class Contents:
    """All objects at one version. Never changed; `apply` gives the next."""

    __slots__ = ("_groups", "_kinds", "_names")

    def __init__(
        self,
        kinds: Kinds,
        names: Map[Namespace, Names],
        groups: Map[Group, Keys],
    ) -> None:
        self._kinds = kinds
        self._names = names
        self._groups = groups

    def get(self, kind: str, key: bytes) -> AnyStored | None:
        """The object of ``kind`` at ``key``."""
        return _of_kind(self._kinds, kind).get(key)

    def objects(self, kind: str) -> Iterator[AnyStored]:
        """Every object of ``kind``, in no order."""
        return iter(_of_kind(self._kinds, kind).values())

    def all_of(self, kind: str) -> Objects:
        """Every object of ``kind`` by its key; the same value as long as none of them changes."""
        return _of_kind(self._kinds, kind)

    def count(self, kind: str) -> int:
        """How many objects of ``kind`` there are."""
        return len(_of_kind(self._kinds, kind))

    def find(self, namespace: Namespace, name: str) -> Reference | None:
        """What ``name`` stands for in ``namespace``, without regard to case."""
        return self._names.get(namespace, _NO_NAMES).get(normalize(name))

    def names(self, namespace: Namespace) -> Names:
        """Every name in ``namespace``, normalized, with what it stands for."""
        return self._names.get(namespace, _NO_NAMES)

    def group(self, kind: str, group_id: int) -> Keys:
        """The keys of the objects of ``kind`` whose group is ``group_id``, in order."""
        return self._groups.get(Group(kind, group_id), ())

    def shares(self, kinds: Iterable[str], other: Contents) -> bool:
        """Whether no object of ``kinds`` was changed between these contents and ``other``."""
        return all(self._kinds.get(kind) is other._kinds.get(kind) for kind in kinds)

    def toward(self, changes: Iterable[Change], later: Contents) -> Contents:
        """These contents after ``changes``, which led from here to ``later``, with its objects.

        What ``later`` holds is not read from its bytes again.
        """
        draft = _Draft(self._kinds, self._names, self._groups)
        for change in changes:
            kind, new = collection(change.kind), later.get(change.kind, change.key)
            if change.new is None:
                new = None
            elif new is None or new.data != change.new:
                new = kind.stored(change.new)
            draft.put(kind, change.key, draft.objects(change.kind).get(change.key), new)
        return draft.finish()

    def apply(self, changes: Iterable[Change], *, at: Timestamp = NEVER_UPDATED) -> Contents:
        """These contents after ``changes``, in their order, made at the log's time ``at``.

        Raises `CorruptData` where a change does not fit what is here.
        """
        draft = _Draft(self._kinds, self._names, self._groups)
        for change in changes:
            old = draft.objects(change.kind).get(change.key)
            if (old.data if old else None) != change.old:
                raise CorruptData(
                    f"a change of {change.kind} {change.key.hex()} does not replace what is there: "
                    "the log and this node's memory have parted; restart the node"
                )
            kind = collection(change.kind)
            new = None if change.new is None else kind.stored(change.new)
            if new is not None:
                new.updated = at
                if old is not None:
                    share_parts(old, new)
            if (backwards := kind.runs_back(old, new)) is not None:
                raise CorruptData(f"in the log {backwards}; restore the store from a backup")
            draft.put(kind, change.key, old, new)
        return draft.finish()

    def replaced(
        self, kind: Collection, key: bytes, old: AnyStored | None, new: AnyStored | None
    ) -> Contents:
        """These contents with ``new`` in the place of ``old``, which is what stands at ``key``."""
        draft = _Draft(self._kinds, self._names, self._groups)
        draft.put(kind, key, old, new)
        return draft.finish()

    def written_by(self, changes: Iterable[Change]) -> list[AnyStored]:
        """What ``changes``, which led to these contents, have written and is still there."""
        of_kind: dict[str, Objects] = {}
        written = []
        for change in changes:
            if change.new is None:
                continue
            objects = of_kind.get(change.kind)
            if objects is None:
                objects = of_kind[change.kind] = _of_kind(self._kinds, change.kind)
            stored = objects.get(change.key)
            if stored is not None:
                written.append(stored)
        return written

    def differing(
        self, newer: Contents
    ) -> Iterator[tuple[str, bytes, AnyStored | None, AnyStored | None]]:
        """What is not the same bytes here and in ``newer``: kind, key, and the object in each.

        Kinds that both share cost nothing, other objects a comparison; nothing is decoded.
        """
        for kind in COLLECTIONS:
            old, new = _of_kind(self._kinds, kind), _of_kind(newer._kinds, kind)
            if old is new:
                continue
            kept = 0
            for key, before in old.items():
                after = new.get(key)
                kept += after is not None
                if after is not before and after != before:
                    yield kind, key, before, after
            if kept < len(new):
                yield from (
                    (kind, key, None, added) for key, added in new.items() if key not in old
                )

    def dump(self) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
        """The bytes of every object by kind, kinds and keys in order."""
        return tuple(
            (kind, tuple(stored.data for stored in objects)) for kind, objects in self._in_order()
        )

    def times(self) -> tuple[tuple[Timestamp, ...], ...]:
        """When each object of `dump` was last changed, in the same order."""
        return tuple(tuple(stored.updated for stored in objects) for _, objects in self._in_order())

    def _in_order(self) -> Iterator[tuple[str, list[AnyStored]]]:
        for kind in sorted(self._kinds):
            objects = self._kinds[kind]
            if objects:
                yield kind, [objects[key] for key in sorted(objects)]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Contents)
            and self.dump() == other.dump()
            and self.times() == other.times()
        )

    __hash__ = None  # type: ignore[assignment]  # equality is deep; contents are no dict keys


class _Draft:
    """Contents on their way to the next: maps that are copied where they are first touched."""

    __slots__ = ("_groups", "_kinds", "_names", "_new_groups", "_new_names", "_new_objects")

    def __init__(
        self, kinds: Kinds, names: Map[Namespace, Names], groups: Map[Group, Keys]
    ) -> None:
        self._kinds, self._names, self._groups = kinds, names, groups
        self._new_objects: dict[str, MapMutation[bytes, AnyStored]] = {}
        self._new_names: dict[Namespace, MapMutation[str, Reference]] = {}
        self._new_groups: dict[Group, list[bytes]] = {}

    def objects(self, kind: str) -> MapMutation[bytes, AnyStored]:
        objects = self._new_objects.get(kind)
        if objects is None:
            objects = self._new_objects[kind] = _of_kind(self._kinds, kind).mutate()
        return objects

    def names_in(self, namespace: Namespace) -> MapMutation[str, Reference]:
        names = self._new_names.get(namespace)
        if names is None:
            names = self._names.get(namespace, _NO_NAMES).mutate()
            self._new_names[namespace] = names
        return names

    def _keys_of(self, group: Group) -> list[bytes]:
        keys = self._new_groups.get(group)
        if keys is None:
            keys = self._new_groups[group] = list(self._groups.get(group, ()))
        return keys

    def put(
        self, kind: Collection, key: bytes, old: AnyStored | None, new: AnyStored | None
    ) -> None:
        """Put ``new`` where ``old`` stands, in the objects and in both indexes."""
        objects = self.objects(kind.kind)
        if new is not None:
            objects[key] = new
        elif old is not None:
            del objects[key]
        if kind.scope is not None:
            self._rename(kind, key, old, new)
        if kind.group is not None:
            before = None if old is None else old.group
            after = None if new is None else new.group
            if before != after:
                if before is not None:
                    self._keys_of(Group(kind.kind, before)).remove(key)
                if after is not None:
                    insort(self._keys_of(Group(kind.kind, after)), key)

    def _rename(
        self, kind: Collection, key: bytes, old: AnyStored | None, new: AnyStored | None
    ) -> None:
        before, after = name_of(kind, old), name_of(kind, new)
        if before == after:
            return
        if before is not None:
            del self.names_in(before[0])[before[1]]
        if after is not None:
            there = self.names_in(after[0])
            if after[1] in there:
                raise CorruptData(
                    f"two objects of the log are named {after[1]!r} in one {kind.scope} namespace"
                )
            there[after[1]] = Reference(kind.kind, key)

    def finish(self) -> Contents:
        kinds, names, groups = self._kinds, self._names, self._groups
        for kind, of_kind in self._new_objects.items():
            kinds = kinds.set(kind, of_kind.finish())
        for namespace, mutated in self._new_names.items():
            names_in = mutated.finish()
            if names_in:
                names = names.set(namespace, names_in)
            elif namespace in names:
                names = names.delete(namespace)
        for group, keys in self._new_groups.items():
            if keys:
                groups = groups.set(group, tuple(keys))
            elif group in groups:
                groups = groups.delete(group)
        return Contents(kinds, names, groups)


def stamp(written: Iterable[AnyStored], at: Timestamp) -> None:
    """Give what a transaction has written its time.

    Only for objects that the caller has made and no other thread has seen: this is the one place
    where an object in memory is written to. Readers of the present wait for it.
    """
    for stored in written:
        stored.updated = at


def share_parts(old: AnyStored, new: AnyStored) -> None:
    """Let ``new``, in the place of ``old``, hold the same name and id and not equal ones."""
    new.id = old.id
    if new.name == old.name:
        new.name = old.name


EMPTY = Contents(Map(), Map(), Map())
"""The contents of version 0."""


def restore(
    kinds: Iterable[tuple[str, tuple[bytes, ...]]],
    times: Iterable[Iterable[Timestamp]] = (),
    *,
    at: Timestamp = NEVER_UPDATED,
) -> Contents:
    """The contents that `Contents.dump` and `Contents.times` gave.

    Where there are no ``times`` every object was last changed ``at``.
    """
    draft = _Draft(Map(), Map(), Map())
    of_kinds = list(times)
    with keeping_garbage:  # looks for it take twice as long as all the rest
        for number, (name, records) in enumerate(kinds):
            when = of_kinds[number] if of_kinds else repeat(at, len(records))
            _restore_kind(draft, collection(name), records, when)
        return draft.finish()


def _restore_kind(
    draft: _Draft, kind: Collection, records: tuple[bytes, ...], times: Iterable[Timestamp]
) -> None:
    """All objects of one kind into an empty draft: what `_Draft.put` does, without the looks."""
    objects = draft.objects(kind.kind)
    parent, names = -1, _NO_NAMES.mutate()
    for data, at in zip(records, times, strict=True):
        stored = kind.stored(data)
        stored.updated = at
        key = kind.key(stored)
        if kind.group is not None:
            draft.put(kind, key, None, stored)
            continue
        objects[key] = stored
        if kind.scope is not None and kind.occupies(stored):
            if stored.parent != parent:
                parent = stored.parent
                names = draft.names_in(Namespace(kind.scope, parent))
            name = normalize(stored.name)
            if name in names:
                raise CorruptData(f"duplicate name {name!r} in one {kind.scope} namespace")
            names[name] = Reference(kind.kind, key)
    if len(objects) != len(records):
        raise CorruptData(f"duplicate {kind.kind} in a snapshot")
