"""`Contents`: all objects of the catalog at one version, as an immutable value.

The maps are persistent (hash array mapped tries). A new version shares everything that did not
change with the version before it, so a thousand versions cost about the sum of their differences.
Two indexes are maintained with the objects and never rebuilt: the names in each namespace, and the
objects of each group (such as the indexes of a table). So n changes cost O(n log m) in a catalog of
m objects, in one step or in many.

An object has the time of its last change (`Stored.updated`, the log's time of the update that wrote
it). The time is not in its bytes: the log assigns it when it orders the update, after the bytes
were written.

What must stay true: a change is applied only if the object has exactly the bytes that the change
says it replaces, and no name occurs twice in a namespace, ignoring case. A violation means that the
log and the contents in memory disagree. That is corruption and is not repaired.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

from immutables import Map, MapMutation

from strandline.clock import Timestamp
from strandline.durable.collections import COLLECTIONS, Collection, collection, collection_number
from strandline.durable.update import CatalogSnapshot, Change
from strandline.errors import CorruptData
from strandline.model.identifiers import normalize
from strandline.wire.stored import NEVER_UPDATED, AnyStored
from strandline.work import keeping_garbage


class Reference(NamedTuple):
    """The object that a name refers to."""

    kind: str
    key: bytes


class Namespace(NamedTuple):
    """Where a name is unique: a scope (see `Collection.scope`) below the id of a parent."""

    scope: str
    parent: int


class Group(NamedTuple):
    """Objects of a kind that are looked up together, by the id in their `Collection.group`."""

    kind: str
    id: int


def name_of(kind: Collection, stored: AnyStored | None) -> tuple[Namespace, str] | None:
    if kind.scope is None or stored is None or not kind.occupies(stored):
        return None
    return Namespace(kind.scope, stored.parent), normalize(stored.name)


Objects = Map[bytes, AnyStored]
Kinds = tuple[Objects, ...]  # by `collection_number`; a kind beyond the end has no objects
Names = Map[str, Reference]
Keys = tuple[bytes, ...]

_NO_OBJECTS: Objects = Map()
_NO_NAMES: Names = Map()


def _of_kind(kinds: Kinds, kind: str) -> Objects:
    """The objects of ``kind``. Raises `IncompatibleFormat` if the kind is not registered."""
    number = collection_number(kind)
    return kinds[number] if number < len(kinds) else _NO_OBJECTS


class Contents:
    """All objects at one version. Immutable; `apply` returns the next version."""

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
        return _of_kind(self._kinds, kind).get(key)

    def value(self, kind: str, key: bytes) -> Any:  # Any: the descriptor of that kind
        stored = self.get(kind, key)
        return None if stored is None else stored.value

    def objects(self, kind: str) -> Iterator[AnyStored]:
        """Every object of ``kind``, in no particular order."""
        return iter(_of_kind(self._kinds, kind).values())

    def all_of(self, kind: str) -> Objects:
        """Every object of ``kind`` by its key. The same map as long as none of them changes."""
        return _of_kind(self._kinds, kind)

    def count(self, kind: str) -> int:
        return len(_of_kind(self._kinds, kind))

    def find(self, namespace: Namespace, name: str) -> Reference | None:
        """The object that ``name`` refers to in ``namespace``, ignoring case, or None."""
        return self._names.get(namespace, _NO_NAMES).get(normalize(name))

    def names(self, namespace: Namespace) -> Names:
        """Every normalized name in ``namespace``, with the object that it refers to."""
        return self._names.get(namespace, _NO_NAMES)

    def group(self, kind: str, group_id: int) -> Keys:
        """The keys of the objects of ``kind`` whose group is ``group_id``, in order."""
        return self._groups.get(Group(kind, group_id), ())

    def shares(self, kinds: Iterable[str], other: Contents) -> bool:
        """Whether no object of ``kinds`` differs between these contents and ``other``."""
        return all(_of_kind(self._kinds, kind) is _of_kind(other._kinds, kind) for kind in kinds)

    def toward(self, changes: Iterable[Change], later: Contents) -> Contents:
        """These contents after ``changes``, which led from here to ``later``.

        An object that ``later`` still has in that form is reused, not decoded again.
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
        """These contents after ``changes``, in their order, with the log's time ``at``.

        Raises `CorruptData` if a change does not fit these contents.
        """
        draft = _Draft(self._kinds, self._names, self._groups)
        for change in changes:
            old = draft.objects(change.kind).get(change.key)
            if (old.data if old else None) != change.old:
                raise CorruptData(
                    f"a change of {change.kind} {change.key.hex()} does not replace the present "
                    "object: the log and this node's memory differ; restart the node"
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
        """These contents with ``new`` at ``key`` in place of ``old``, the present object."""
        draft = _Draft(self._kinds, self._names, self._groups)
        draft.put(kind, key, old, new)
        return draft.finish()

    def written_by(self, changes: Iterable[Change]) -> list[AnyStored]:
        """The objects that ``changes``, which led to these contents, wrote and that still exist."""
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
        """The objects whose bytes differ between these contents and ``newer``.

        Yields kind, key, and the object in each. A kind that is the same map in both costs nothing,
        other objects one comparison each. No object is decoded.
        """
        for kind in COLLECTIONS:
            old, new = _of_kind(self._kinds, kind), _of_kind(newer._kinds, kind)
            if old is new:
                continue
            kept_count = 0
            for key, before in old.items():
                after = new.get(key)
                kept_count += after is not None
                if after is not before and after != before:
                    yield kind, key, before, after
            if kept_count < len(new):
                yield from (
                    (kind, key, None, added) for key, added in new.items() if key not in old
                )

    def dump(self) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
        """The bytes of every object by kind; kinds and keys are sorted."""
        return tuple(
            (kind, tuple(stored.data for stored in objects)) for kind, objects in self._in_order()
        )

    def times(self) -> tuple[tuple[Timestamp, ...], ...]:
        """The time of the last change of each object of `dump`, in the same order."""
        return tuple(tuple(stored.updated for stored in objects) for _, objects in self._in_order())

    def _in_order(self) -> Iterator[tuple[str, list[AnyStored]]]:
        for kind in sorted(COLLECTIONS):
            objects = _of_kind(self._kinds, kind)
            if objects:
                yield kind, [objects[key] for key in sorted(objects)]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Contents)
            and self.dump() == other.dump()
            and self.times() == other.times()
        )

    __hash__ = None  # type: ignore[assignment]  # equality is deep, so contents cannot be dict keys


class _Draft:
    """The next contents under construction. Each map is copied when it is first changed."""

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
        """Put ``new`` in the place of ``old``, in the objects and in both indexes."""
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
            names_there = self.names_in(after[0])
            if after[1] in names_there:
                raise CorruptData(
                    f"two objects of the log are named {after[1]!r} in one {kind.scope} "
                    "namespace; restore the store from a backup"
                )
            names_there[after[1]] = Reference(kind.kind, key)

    def finish(self) -> Contents:
        kinds, names, groups = self._kinds, self._names, self._groups
        if self._new_objects:
            numbers = {collection_number(kind): kind for kind in self._new_objects}
            of_kinds = list(kinds)
            of_kinds += [_NO_OBJECTS] * (max(numbers) + 1 - len(kinds))
            for number, kind in numbers.items():
                of_kinds[number] = self._new_objects[kind].finish()
            kinds = tuple(of_kinds)
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
    """Set the time of the objects that a transaction has written.

    Only for objects that the caller made and no other thread has seen. This is the only place that
    changes an object in memory. Readers of the latest version wait for it.
    """
    for stored in written:
        stored.updated = at


def share_parts(old: AnyStored, new: AnyStored) -> None:
    """Let ``new`` use the id and name objects of ``old`` if they are equal, to save memory."""
    new.id = old.id
    if new.name == old.name:
        new.name = old.name


EMPTY = Contents((), Map(), Map())
"""The contents of version 0."""


def restore(snapshot: CatalogSnapshot) -> Contents:
    """The contents of the catalog at the version of ``snapshot``."""
    draft = _Draft((), Map(), Map())
    with keeping_garbage:  # garbage collection would take twice as long as the rest
        for number, (name, records) in enumerate(snapshot.kinds):
            in_one = repeat(snapshot.time, len(records))
            times = snapshot.times[number] if snapshot.times else in_one
            _restore_kind(draft, collection(name), records, times)
        return draft.finish()


def _restore_kind(
    draft: _Draft, kind: Collection, records: tuple[bytes, ...], times: Iterable[Timestamp]
) -> None:
    """Add all objects of one kind to an empty draft, without the lookups of `_Draft.put`."""
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
                raise CorruptData(
                    f"duplicate name {name!r} in one {kind.scope} namespace; restore the store from"
                    " a backup"
                )
            names[name] = Reference(kind.kind, key)
    if len(objects) != len(records):
        raise CorruptData(f"duplicate {kind.kind} in a snapshot; restore the store from a backup")
