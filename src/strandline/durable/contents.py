"""`Contents`: all objects of the catalog at one version, as an immutable value.

The maps are persistent (hash array mapped tries): a new version shares all that did not change
with the one before, so a thousand versions cost about the sum of their differences. Beside the
objects two indexes are maintained, never rebuilt: the names in each namespace, and the next ids. So
a change costs the size of the change, never the size of the catalog.

What must stay true: a change is applied only over exactly the bytes that it says it replaces, and
no name stands twice in one namespace, without regard to case. Either would mean that the log and
this memory have parted, which is corruption, not a condition to repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from immutables import Map

from strandline.durable.collections import COLLECTIONS, collection
from strandline.durable.update import Change
from strandline.errors import CorruptData
from strandline.model.identifiers import normalize
from strandline.wire.stored import AnyStored


class Reference(NamedTuple):
    """Which object a name stands for."""

    kind: str
    key: bytes


class Namespace(NamedTuple):
    """Where a name is unique: a scope (see `Collection.scope`) below a parent's id."""

    scope: str
    parent: int


Objects = Map[bytes, AnyStored]
Names = Map[str, Reference]

_NO_OBJECTS: Objects = Map()
_NO_NAMES: Names = Map()


class Contents:
    """All objects at one version. Never changed; `apply` gives the next."""

    __slots__ = ("_names", "_objects")

    def __init__(self, objects: Map[str, Objects], names: Map[Namespace, Names]) -> None:
        self._objects = objects
        self._names = names

    def get(self, kind: str, key: bytes) -> AnyStored | None:
        """The object of ``kind`` at ``key``."""
        return self._objects.get(kind, _NO_OBJECTS).get(key)

    def objects(self, kind: str) -> Iterator[AnyStored]:
        """Every object of ``kind``, in no order."""
        return iter(self._objects.get(kind, _NO_OBJECTS).values())

    def count(self, kind: str) -> int:
        """How many objects of ``kind`` there are."""
        return len(self._objects.get(kind, _NO_OBJECTS))

    def find(self, namespace: Namespace, name: str) -> Reference | None:
        """What ``name`` stands for in ``namespace``, without regard to case."""
        return self._names.get(namespace, _NO_NAMES).get(normalize(name))

    def names(self, namespace: Namespace) -> Names:
        """Every name in ``namespace``, normalized, with what it stands for."""
        return self._names.get(namespace, _NO_NAMES)

    def apply(self, changes: Iterable[Change]) -> Contents:
        """These contents after ``changes``, in their order.

        Raises `CorruptData` where a change does not fit what is here.
        """
        objects, names = self._objects, self._names
        for change in changes:
            kind = collection(change.kind)
            of_kind = objects.get(change.kind, _NO_OBJECTS)
            old = of_kind.get(change.key)
            if (old.data if old else None) != change.old:
                raise CorruptData(
                    f"a change of {change.kind} {change.key.hex()} does not replace what is there: "
                    "the log and this node's memory have parted; restart the node"
                )
            new = None if change.new is None else kind.stored(change.new)
            if new is not None:
                of_kind = of_kind.set(change.key, new)
            elif old is not None:
                of_kind = of_kind.delete(change.key)
            objects = objects.set(change.kind, of_kind)
            if kind.scope is not None:
                names = _rename(names, kind.scope, Reference(change.kind, change.key), old, new)
        return Contents(objects, names)

    def dump(self) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
        """The bytes of every object by kind, kinds and keys in order."""
        return tuple(
            (kind, tuple(stored.data for _, stored in sorted(self._objects[kind].items())))
            for kind in sorted(self._objects)
            if self._objects[kind]
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and self.dump() == other.dump()

    __hash__ = None  # type: ignore[assignment]  # equality is deep; contents are no dict keys


def _rename(
    names: Map[Namespace, Names],
    scope: str,
    reference: Reference,
    old: AnyStored | None,
    new: AnyStored | None,
) -> Map[Namespace, Names]:
    """The index after ``reference`` went from the place and name of ``old`` to those of ``new``."""
    before = old and (Namespace(scope, old.parent), normalize(old.name))
    after = new and (Namespace(scope, new.parent), normalize(new.name))
    if before == after:
        return names
    if before:
        left = names[before[0]].delete(before[1])
        names = names.set(before[0], left) if left else names.delete(before[0])
    if after:
        there = names.get(after[0], _NO_NAMES)
        if after[1] in there:
            raise CorruptData(
                f"two objects of the log are named {after[1]!r} in one {scope} namespace"
            )
        names = names.set(after[0], there.set(after[1], reference))
    return names


EMPTY = Contents(Map(), Map())
"""The contents of version 0."""


def restore(kinds: Iterable[tuple[str, tuple[bytes, ...]]]) -> Contents:
    """The contents that `Contents.dump` gave."""
    contents = EMPTY
    for name, records in kinds:
        kind = collection(name)
        with_keys = ((kind.key(kind.stored(data)), data) for data in records)
        contents = contents.apply(Change(name, key, None, data) for key, data in with_keys)
    return contents


assert all(kind.scope is None or kind.has_id for kind in COLLECTIONS.values())
