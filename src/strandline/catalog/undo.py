"""Undo: a new version that takes back what an older one did.

The problem: people drop, rename and alter what they did not mean to, and see it when others have
gone on working. The old version can still be read, but it is not the present. Undoing makes it the
present again, for the objects that the version touched and for nothing else, where that is still
possible; where it is not, the refusal says what stands in the way.

The model. An update says of each object what its bytes were before and after. To undo it is to go
through its entries backwards and put back what was before: one new version, all or nothing, that is
in the history like any other and can be undone itself (that is the redo). What an entry made is
dropped by the ordinary drop command, with its rules. What it dropped comes back *under its id*,
and so with everything that is kept under that id elsewhere: rows, files, partitions, grants.

What must stay true:

* Nothing that somebody did since is lost: an object that is not as the version left it is refused,
  naming the versions that changed it. Undo those first, or change it by hand.
* Ids are given once. A table goes on where it stands: its columns come back under their ids in one
  more schema version, and `next_column_id` never goes back. So two tables are as before that count
  their schema versions differently, and undoing one after the other works.
* What the object refers to is there (its schema, its zone, the roles of a privilege), its name is
  free, and what it must agree with (columns of indexes, types, sizes of clusters) still agrees.
* An index that was not kept up to date for a while begins its life anew: REGISTERED.

`Undo` is a command: a pure function of the catalog, of the update and of what came after it, which
are read from the log before (`strandline.catalog.undo_reading`). Versions that came in between that
reading and the planning show in the catalog itself: an object is then not as it was left, and for a
table that was restored and dropped again, the count of restored tables has moved (`HistoryMoved`).

Rejected: going back to the older version as a whole (it would take back what others did to other
objects), inverse commands for each command (every new one would need one), and a restored object
under a new id (its rows would have to be copied).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from strandline.catalog.catalog import Catalog
from strandline.catalog.differences import is_bookkeeping
from strandline.catalog.object_names import described, object_name, references, spoken
from strandline.catalog.planning import Planning
from strandline.catalog.undo_rules import (
    BY_COMMAND,
    PARTS_OF,
    as_it_comes_back,
    check_agreement,
    same_content,
)
from strandline.durable.collections import COLLECTIONS, collection, collection_of, id_key
from strandline.durable.contents import Namespace
from strandline.durable.transaction import Transaction
from strandline.durable.update import Argument, Change, Entry, Update
from strandline.errors import (
    AlreadyExists,
    Conflict,
    IllegalChange,
    ObjectNotFound,
    StrandlineError,
)
from strandline.model.descriptors import SchemaDescriptor, TableDescriptor
from strandline.wire.registry import decode

RESTORED_TABLES = "restored_table"
"""The allocator that counts how often a table came back."""

INITIALIZE = "initialize"
"""The verb of the version that filled the catalog."""


class HistoryMoved(Conflict):
    """A table came back while the history was being read; read it again."""


class Target(NamedTuple):
    """One object: its kind and its key."""

    kind: str
    key: bytes


@dataclass(frozen=True, slots=True)
class Net:
    """What an update did to one object: its record before and after; None where it was not."""

    old: bytes | None
    new: bytes | None


@dataclass(frozen=True, slots=True)
class TableMove:
    """A table that a step of an undo brings back or renames: ``entry`` of the update is undone.

    ``now`` is the table as it stands before the step, None where it is dropped.
    """

    entry: int
    then: TableDescriptor
    now: TableDescriptor | None


@dataclass(frozen=True, kw_only=True)
class Undo:
    """Take back what ``update`` did, or what it did to the objects in ``only``.

    ``later`` are the updates since that touched the same objects, or dropped what they refer to;
    ``restored`` is how many tables had come back when these were read. ``places`` are the folders,
    as URIs, that managed tables go to, by the number of the entry that is undone.
    """

    update: Update
    later: tuple[Update, ...] = ()
    restored: int = 1
    only: frozenset[Target] | None = None
    places: Mapping[int, str] = field(default_factory=dict)

    def plan(self, planning: Planning) -> None:
        """Raises `IllegalChange`, `Conflict`, `AlreadyExists`, `ObjectNotFound`, `InvalidInput`."""
        try:
            self._plan(planning)
        except HistoryMoved:
            raise
        except StrandlineError as error:
            raise type(error)(f"{self.purpose} cannot be undone: {error.message}") from error

    def _plan(self, planning: Planning) -> None:
        self._check_undoable()
        if any(move.now is None for move in self.moves()):
            counted = planning.base.get("id_allocator", RESTORED_TABLES)
            if (counted.next_id if counted else 1) != self.restored:
                raise HistoryMoved("tables came back meanwhile; try again")
        for target, net in self.net.items():
            self._check_unchanged(planning.catalog, target, net)
        before = planning.catalog
        first = len(planning.transaction.entries)
        for number in reversed(range(len(self.update.entries))):
            _Step(self, planning, number).take()
        self._check_result(planning, before)
        entries = planning.transaction.entries
        entries[first:] = [
            replace(entry, arguments={**entry.arguments, "undoes": self.update.version})
            for entry in entries[first:]
        ]

    @property
    def purpose(self) -> str:
        """What is undone, as the subject of a sentence."""
        version = f"version {self.update.version}"
        return version if self.only is None else f"the drop in {version}"

    @cached_property
    def net(self) -> dict[Target, Net]:
        """What the update did to each object that is to be as before."""
        found: dict[Target, Net] = {}
        for change in self.update.changes():
            target = Target(change.kind, change.key)
            name = "" if collection(change.kind).has_id else change.key.decode()
            if is_bookkeeping(change.kind, name) or (self.only and target not in self.only):
                continue
            old = found[target].old if target in found else change.old
            found[target] = Net(old, change.new)
        return {target: net for target, net in found.items() if net.old != net.new}

    def moves(self) -> Iterator[TableMove]:
        """The tables that come back or get another name, in the order of the steps."""
        for number in reversed(range(len(self.update.entries))):
            for change in self.update.entries[number].changes:
                net = self.net.get(Target(change.kind, change.key))
                if change.kind != "table" or change.old is None or not net or not net.old:
                    continue
                then: TableDescriptor = _value(change.kind, change.old)
                now: TableDescriptor | None = _value(change.kind, change.new)
                named = now and (now.schema_id, now.name)
                if named != (then.schema_id, then.name):
                    yield TableMove(number, then, now)

    def schema(self, catalog: Catalog, schema_id: int) -> SchemaDescriptor | None:
        """The schema with that id, in ``catalog`` or as it comes back with this undo."""
        net = self.net.get(Target("schema", id_key(schema_id)))
        back: SchemaDescriptor | None = _value("schema", net.old) if net else None
        return back or catalog.schema_by_id(schema_id)

    # -- what stands in the way ----------------------------------------------------------------

    def _check_undoable(self) -> None:
        update = self.update
        if update.silent:
            raise IllegalChange("it only kept the catalog's own books, nobody did anything in it")
        if any(entry.verb == INITIALIZE for entry in update.entries):
            raise IllegalChange("it is the one that made the catalog")
        if any(change.kind == "system_view" for change in update.changes()):
            raise IllegalChange("it gave the catalog its own views, which the program keeps")

    def _check_unchanged(self, catalog: Catalog, target: Target, net: Net) -> None:
        """Refuse an object that is not as the update left it."""
        stored = catalog.contents.get(*target)
        now = None if stored is None else stored.value
        left = _value(target.kind, net.new)
        since = self._since(target)
        if left is None and now is None and not since:
            return
        if left is not None and now is not None and same_content(left, now):
            return
        named = described(catalog, now or left or _value(target.kind, net.old))
        if not since:
            raise Conflict(f"{named} was changed since; look at the history, and undo that first")
        if now is None:
            what = "was dropped" if left is not None else "came back and was dropped again"
        else:
            what = "came back" if left is None else "was altered again"
        if now is None or left is None:
            since = since[-1:]  # the others were undone by it, or do not matter any more
        raise Conflict(
            f"{named} {what} in {_listed(since, target)}; undo that first, or change it by hand"
        )

    def _since(self, target: Target) -> list[Update]:
        return [
            update
            for update in self.later
            if any((one.kind, one.key) == target for one in update.changes())
        ]

    def _check_result(self, planning: Planning, before: Catalog) -> None:
        """Refuse a result in which something is referred to that is gone, or does not agree."""
        for target, net in self.net.items():
            stored = planning.catalog.contents.get(*target)
            if stored is None or net.old is None:
                continue
            for kind, object_id in references(stored.value):
                if planning.catalog.get(kind, object_id) is None:
                    raise self._gone(planning.catalog, stored.value, kind, object_id)
            was = before.contents.get(*target)
            check_agreement(planning, None if was is None else was.value, stored.value)

    def _gone(
        self, catalog: Catalog, value: Any, kind: str, object_id: int
    ) -> ObjectNotFound:  # value: a descriptor of any kind
        key = id_key(object_id)
        for update in reversed(self.later):
            for change in update.changes():
                if (change.kind, change.key) == (kind, key) and change.new is None:
                    gone = described(catalog, _value(kind, change.old))
                    when = _listed([update], Target(kind, key))
                    return ObjectNotFound(
                        f"{gone}, which {spoken(collection_of(value).kind)} {value.name} belongs "
                        f"to, was dropped in {when}; undo that first"
                    )
        return ObjectNotFound(
            f"{spoken(kind)} {object_id}, which {described(catalog, value)} belongs to, is gone"
        )


@dataclass(frozen=True)
class _Step:
    """One entry of the update, taken back."""

    undo: Undo
    planning: Planning
    number: int

    @property
    def entry(self) -> Entry:
        return self.undo.update.entries[self.number]

    def take(self) -> None:
        rest: list[Change] = []
        for change in reversed(self.entry.changes):
            net = self.undo.net.get(Target(change.kind, change.key))
            if net is None or (net.old is None and change.old is not None):
                continue  # bookkeeping, or a change of what goes altogether
            if change.old is None and self._goes_with_another(change):
                continue
            by_command = BY_COMMAND.get(change.kind)
            if by_command is not None and (change.old is None or by_command.restores):
                self._write(rest)
                rest = []
                stored = self.planning.catalog.contents.get(change.kind, change.key)
                now = None if stored is None else stored.value
                by_command.run(self.planning, now, _value(change.kind, change.old))
            else:
                rest.append(change)
        self._write(rest)

    def _goes_with_another(self, change: Change) -> bool:
        """Whether what the entry made is gone already, or goes with what it is part of."""
        stored = self.planning.catalog.contents.get(change.kind, change.key)
        if stored is None:
            return True
        whole = self._whole(change.kind, stored.value)
        return whole is not None and whole.old is None

    def _whole(self, kind: str, value: Any) -> Net | None:  # Any: a descriptor of that kind
        """What the update did to what ``value`` is part of."""
        part_of = PARTS_OF.get(kind)
        if part_of is None:
            return None
        return self.undo.net.get(Target(part_of[0], id_key(getattr(value, part_of[1]))))

    def _write(self, changes: list[Change]) -> None:
        if not changes:
            return
        verb, arguments = self._named(changes)
        with self.planning.entry(verb, **arguments) as transaction:
            for change in changes:
                if change.old is None:
                    transaction.delete(change.kind, _key_of(change))
                else:
                    self._put_back(transaction, change)

    def _put_back(self, transaction: Transaction, change: Change) -> None:
        then = _value(change.kind, change.old)
        stored = transaction.contents.get(change.kind, change.key)
        now = None if stored is None else stored.value
        whole = self._whole(change.kind, then)
        together = whole is not None and whole.new is None
        value = as_it_comes_back(then, now, together=together)
        self._check_name(value)
        if now is None and change.kind == "table":
            transaction.allocate_id(RESTORED_TABLES)
        transaction.put(value)

    def _check_name(self, value: Any) -> None:  # Any: a descriptor of any kind
        kind = collection_of(value)
        if kind.scope is None:
            return
        catalog, stored = self.planning.catalog, kind.stored_value(value)
        holder = catalog.contents.find(Namespace(kind.scope, stored.parent), stored.name)
        if not kind.occupies(stored) or holder in (None, (kind.kind, kind.key(stored))):
            return
        held = catalog.contents.get(*holder) if holder else None
        by = f"{spoken(holder.kind)} {held.name} (id {held.id})" if holder and held else "another"
        raise AlreadyExists(
            f"the name of {described(catalog, value)} was taken by {by} meanwhile; rename or drop "
            "that first"
        )

    def _named(self, changes: list[Change]) -> tuple[str, dict[str, Argument]]:
        """The verb of the step, and what it says of the object that the entry is about."""
        entry, catalog = self.entry, self.planning.catalog
        verb, noun = _inverse(entry.verb), entry.verb.partition("_")[2]
        about = next((one for one in changes if one.kind == noun), changes[-1])
        then = _value(about.kind, about.old or about.new)
        stored = catalog.contents.get(about.kind, about.key)
        subject = next((k for k in (about.kind, "replica") if k in entry.arguments), about.kind)
        kept = {k: v for k, v in entry.arguments.items() if k not in _NOT_KEPT}
        if not verb.startswith(("restore_", "rename_")):
            if subject in kept:
                kept[subject] = object_name(catalog, stored.value if stored else then)
            return verb, kept
        named: dict[str, Argument] = {subject: object_name(catalog, then)}
        if verb.startswith("rename_") and stored is not None:
            named = {subject: object_name(catalog, stored.value), "to": named[subject]}
        if "id" in entry.arguments or about.kind == "table":
            named["id"] = int.from_bytes(about.key, "big")
        location = self.undo.places.get(self.number)
        if isinstance(then, SchemaDescriptor) and stored is None:
            location = then.location
        named["location"] = location
        return verb, named


_NOT_KEPT = frozenset({"location", "data", "undoes"})


def _inverse(verb: str) -> str:
    """The verb of what takes back an entry of that verb, where no command does it."""
    if verb == "index_removed":
        return "restore_index"
    action, _, noun = verb.partition("_")
    if action == "drop":
        return f"restore_{noun}"
    if action == "rename" and noun in COLLECTIONS:
        return verb
    if action == "undo":
        return f"redo_{noun}"
    return f"undo_{noun}" if action == "redo" else f"undo_{verb}"


def _value(kind: str, record: bytes | None) -> Any:  # Any: a descriptor of that kind
    return None if record is None else decode(record, collection(kind).of)


def _key_of(change: Change) -> int | str:
    has_id = collection(change.kind).has_id
    return int.from_bytes(change.key, "big") if has_id else change.key.decode()


def _listed(updates: list[Update], target: Target) -> str:
    """``version 19 by bob (add columns) and version 17 by ann (…)``, the newest first."""
    said = []
    for update in updates[: -_SHOWN - 1 : -1]:
        entries = (e for e in update.entries if target in {(c.kind, c.key) for c in e.changes})
        verbs = dict.fromkeys(entry.verb.replace("_", " ") for entry in entries)
        said.append(f"version {update.version} by {update.author} ({', '.join(verbs)})")
    more = len(updates) - len(said)
    return " and ".join(said) + (f" and {more} before" if more else "")


_SHOWN = 3
