"""The net effect of a version, object by object.

The problem: a version may hold several commands, and an object may go through several states in it.
It may be renamed twice, altered and then dropped, or created and dropped again. If undo checked
each of these states, it would refuse harmless versions (for example an index that advanced and was
dropped within one version), and it would restore objects that no reader ever saw.

The model: no reader ever sees the states in between, because catalogs are versions. The net effect
of a version on an object is the object before the version and the object after it. These two decide
whether the version can be undone, and what is restored. The entries of the version only determine
the order in which objects are put back, and the words of the history.

The order matters for names: two objects that exchange their names need a temporary third name. Undo
takes such objects back through the same names, one by one. Every other object goes straight back to
the name it had before the version, because a name that it had only within the version may belong to
another object by now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """The net effect of a version on one object: its records before and after it, or None."""

    kind: str
    old: bytes | None
    new: bytes | None

    @cached_property
    def old_value(self) -> Any:  # Any: a descriptor of the kind, or None
        """The object before the version, or None."""
        return value_of(self.kind, self.old)

    @cached_property
    def new_value(self) -> Any:  # Any: a descriptor of the kind, or None
        """The object as the version left it, or None."""
        return value_of(self.kind, self.new)


def value_of(kind: str, record: bytes | None) -> Any:  # Any: a descriptor of that kind
    return None if record is None else collection(kind).stored(record).value


def target_of(change: Change) -> Target:
    return Target(change.kind, change.key)


def as_one(updates: Sequence[Update]) -> Update:
    """The non-silent entries of versions, as one update at the last of them."""
    if len(updates) == 1:
        return updates[0]
    entries = (entry for update in updates for entry in update.entries if not entry.silent)
    return replace(updates[-1], entries=tuple(entries))


def net_effect(changes: Iterable[Change], only: frozenset[Target] | None) -> dict[Target, Net]:
    """The net effect of ``changes``, in order, on each object except the program's own records.

    Objects that ended as they began are left out and, with ``only``, all objects not in it.
    """
    effects: dict[Target, Net] = {}
    for change in changes:
        target = target_of(change)
        name = "" if collection(change.kind).has_id else change.key.decode()
        is_internal = kind_named(change.kind).is_internal(name)
        if is_internal or (only is not None and target not in only):
            continue
        old = effects[target].old if target in effects else change.old
        effects[target] = Net(change.kind, old, change.new)
    return {target: net for target, net in effects.items() if net.old != net.new}


# -- what a version did not change -----------------------------------------------------------------

_APART = (("owner", "owner_type"), ("comment",), ("properties",), ("privileges",))
"""Groups of fields on which the rest of an object does not depend. Each is undone by itself."""


def keeping_later(value: Any, net: Net, now: Any) -> Any:  # Any: descriptors of the kind of ``net``
    """``value``, an earlier state, with what the version did not change as it is ``now``.

    So a later grant or comment neither prevents an undo nor is lost by it.
    """
    if net.old is None or net.new is None or now is None:
        return value
    old, new = net.old_value, net.new_value
    changed: list[str] = []
    kept: list[str] = []
    for group in _APART:
        fields = [name for name in group if hasattr(now, name)]
        is_same = _fields(old, fields) == _fields(new, fields)
        (kept if is_same else changed).extend(fields)
    if replace(new, **_fields(old, changed)) == old:
        return replace(now, **_fields(value, changed))
    return replace(value, **_fields(now, kept))


def _fields(value: Any, names: Iterable[str]) -> dict[str, Any]:  # Any: a descriptor
    return {name: getattr(value, name) for name in names}


# -- names -----------------------------------------------------------------------------------------


def renames(change: Change | Net) -> bool:
    """Whether a change, or a net effect, creates, drops, renames or moves the object."""
    before, after = _stored(change.kind, change.old), _stored(change.kind, change.new)
    if before is None or after is None:
        return True
    return (before.name, before.parent) != (after.name, after.parent)


def called_as(value: Any, other: Any) -> Any:  # Any: descriptors of one kind
    """``value`` with the name and the parent of ``other``."""
    parent = kind_of(value).parent
    if value.name == other.name and (
        parent is None or getattr(value, parent) == getattr(other, parent)
    ):
        return value
    place = {} if parent is None else {parent: getattr(other, parent)}
    return replace(value, name=other.name, **place)


def exchanged(changes: Iterable[Change], net: Mapping[Target, Net]) -> frozenset[Target]:
    """The objects in ``net`` whose previous name another object in ``net`` held at any time.

    Also the new objects that hold the previous name of another object in ``net``.
    """
    holders: dict[object, set[Target]] = {}
    for change in changes:
        target = target_of(change)
        for record in (change.old, change.new) if target in net else ():
            holders.setdefault(_name(change.kind, record), set()).add(target)
    previous_names = {
        target: _name(target.kind, of_target.old) for target, of_target in net.items()
    }
    wanted_names = set(previous_names.values()) - {None}
    return frozenset(
        target
        for target, name in previous_names.items()
        if (name is not None and holders[name] != {target})
        or (name is None and _name(target.kind, net[target].new) in wanted_names)
    )


def _name(kind: str, record: bytes | None) -> object:
    stored, scope = _stored(kind, record), collection(kind).scope
    return None if stored is None else (scope or kind, stored.parent, normalize(stored.name))


def _stored(kind: str, record: bytes | None) -> AnyStored | None:
    return None if record is None else collection(kind).stored(record)


# -- texts of refusals -----------------------------------------------------------------------------

_SHOWN = 3


def named_then(catalog: Catalog, value: Any, updates: Iterable[Update]) -> str:
    """``table shop.orders``. If the schema is gone, uses the name that it had in ``updates``.

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


def listed(updates: Sequence[Update], target: Target, *, authors: Callable[[str], bool]) -> str:
    """``version 19 by bob (add columns) and version 17 (…)``, newest first.

    Names those of the ``authors``.
    """
    descriptions = []
    for update in updates[: -_SHOWN - 1 : -1]:
        entries = (entry for entry in update.entries if target in map(target_of, entry.changes))
        verbs = dict.fromkeys(verb_named(entry.verb).spoken for entry in entries)
        by = f" by {update.author}" if authors(update.author) else ""
        descriptions.append(f"version {update.version}{by} ({', '.join(verbs)})")
    more = len(updates) - len(descriptions)
    return " and ".join(descriptions) + (f" and {more} before" if more else "")
