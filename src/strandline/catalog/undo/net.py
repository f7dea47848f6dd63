"""What a version did as a whole: its net, object by object.

The problem: a version may hold several commands, and an object may go through several states in it.
It is renamed twice, altered and then dropped, made and dropped again. If these states were judged
one after the other, harmless versions would be refused (an index that went forward and was dropped
in one version was never seen on its way), and what was never there would be restored.

The model: no reader ever saw the states between, because catalogs are versions. What a version did
to an object is what it was before the version and what it is after it. Whether it can be undone,
and to what, is judged by these two. The entries of the version only say in which order things are
put back, and what the history calls that.

Names are where the order matters: two objects that exchange their names need a third name on the
way. Such objects go back as they came, name by name. Every other goes back to its name of before at
once: a name that it had only within the version may belong to another object by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from strandline.catalog.catalog import Catalog
from strandline.catalog.kinds import described, kind_named, kind_of
from strandline.catalog.verbs import verb_named
from strandline.durable.collections import collection, id_key
from strandline.durable.update import Change, Update
from strandline.model.identifiers import normalize
from strandline.wire.stored import AnyStored


class Target(NamedTuple):
    """One object: its kind and its key."""

    kind: str
    key: bytes


@dataclass(frozen=True)
class Net:
    """What a version did to one object of ``kind``: its records before and after it, or None."""

    kind: str
    old: bytes | None
    new: bytes | None

    @cached_property
    def was(self) -> Any:  # Any: a descriptor of the kind, or None
        """The object before the version."""
        return value_of(self.kind, self.old)

    @cached_property
    def left(self) -> Any:  # Any: a descriptor of the kind, or None
        """The object as the version left it."""
        return value_of(self.kind, self.new)


def value_of(kind: str, record: bytes | None) -> Any:  # Any: a descriptor of that kind
    """The object in a record; None for None."""
    return None if record is None else collection(kind).stored(record).value


def target_of(change: Change) -> Target:
    """The object that is changed."""
    return Target(change.kind, change.key)


def as_one(updates: Sequence[Update]) -> Update:
    """What several versions, one after the other, did, as if it were the last of them."""
    if len(updates) == 1:
        return updates[0]
    entries = (entry for update in updates for entry in update.entries if not entry.silent)
    return replace(updates[-1], entries=tuple(entries))


def net_effect(changes: Iterable[Change], only: frozenset[Target] | None) -> dict[Target, Net]:
    """What ``changes``, in their order, did to each object, the books of the program aside.

    Objects that are as before are left out, and with ``only`` all others than these.
    """
    effects: dict[Target, Net] = {}
    for change in changes:
        target = target_of(change)
        name = "" if collection(change.kind).has_id else change.key.decode()
        is_book = kind_named(change.kind).is_book(name)
        if is_book or (only is not None and target not in only):
            continue
        old = effects[target].old if target in effects else change.old
        effects[target] = Net(change.kind, old, change.new)
    return {target: net for target, net in effects.items() if net.old != net.new}


# -- names -----------------------------------------------------------------------------------------


def renames(change: Change) -> bool:
    """Whether a change gives an object its name, another one, or takes it away."""
    before, after = _stored(change.kind, change.old), _stored(change.kind, change.new)
    if before is None or after is None:
        return True
    return (before.name, before.parent) != (after.name, after.parent)


def called_as(value: Any, other: Any) -> Any:  # Any: descriptors of one kind
    """``value`` under the name of ``other``, and in the same place."""
    parent = kind_of(value).parent
    if value.name == other.name and (
        parent is None or getattr(value, parent) == getattr(other, parent)
    ):
        return value
    place = {} if parent is None else {parent: getattr(other, parent)}
    return replace(value, name=other.name, **place)


def exchanged(changes: Iterable[Change], net: Mapping[Target, Net]) -> frozenset[Target]:
    """The objects in ``net`` whose name of before another of them had, at any time."""
    holders: dict[object, set[Target]] = {}
    for change in changes:
        target = target_of(change)
        for record in (change.old, change.new) if target in net else ():
            holders.setdefault(_name(change.kind, record), set()).add(target)
    return frozenset(
        target
        for target, of_target in net.items()
        if of_target.old is not None and holders[_name(of_target.kind, of_target.old)] != {target}
    )


def _name(kind: str, record: bytes | None) -> object:
    """The name in a record, as it is unique in its namespace; None where there is none."""
    stored, scope = _stored(kind, record), collection(kind).scope
    return None if stored is None else (scope or kind, stored.parent, normalize(stored.name))


def _stored(kind: str, record: bytes | None) -> AnyStored | None:
    return None if record is None else collection(kind).stored(record)


# -- what a refusal says ---------------------------------------------------------------------------

_SHOWN = 3


def named_then(catalog: Catalog, value: Any, updates: Iterable[Update]) -> str:
    """``table shop.orders``; by the name that its schema had where one of ``updates`` dropped that.

    ``value`` is a descriptor of any kind.
    """
    schema_id = value.schema_id if kind_of(value).in_schema else None
    if schema_id is not None and catalog.schema_by_id(schema_id) is None:
        schema = Target("schema", id_key(schema_id))
        for change in (change for update in updates for change in update.changes()):
            if target_of(change) == schema and change.old is not None:
                name = value_of(change.kind, change.old).name
                return f"{kind_of(value).spoken} {name}.{value.name}"
    return described(catalog, value)


def listed(updates: Sequence[Update], target: Target) -> str:
    """``version 19 by bob (add columns) and version 17 by ann (…)``, the newest first."""
    said = []
    for update in updates[: -_SHOWN - 1 : -1]:
        entries = (entry for entry in update.entries if target in map(target_of, entry.changes))
        verbs = dict.fromkeys(verb_named(entry.verb).spoken for entry in entries)
        said.append(f"version {update.version} by {update.author} ({', '.join(verbs)})")
    more = len(updates) - len(said)
    return " and ".join(said) + (f" and {more} before" if more else "")
