"""Undo: a new version that takes back what an older one did.

The problem: people drop, rename and alter what they did not mean to, and see it when others have
gone on working. The old version can still be read, but it is not the present. Undoing makes it the
present again, for the objects that the version touched and for nothing else, where that is still
possible; where it is not, the refusal says what stands in the way.

The model. An update says of each object what its bytes were before and after. To undo it is to go
through its entries backwards and put back what was before: one new version, all or nothing, that is
in the history like any other and can be undone itself (that is the redo). What it made is dropped
by the ordinary drop command, with its rules. What it dropped comes back *under its id*, and so with
everything that is kept under that id elsewhere: rows, files, partitions, grants. All of it is
judged by what the update did as a whole (`strandline.catalog.undo.net`), never by its steps.

What must stay true:

* Nothing that somebody did since is lost: an object that is not as the version left it is refused,
  naming the versions that changed it. Undo those first, or change it by hand.
* Ids are given once. A table goes on where it stands: its columns come back under their ids in one
  more schema version, and `next_column_id` never goes back. So two tables are as before that count
  their schema versions differently, and undoing one after the other works.
* What the object refers to is there (its schema, its zone, the roles of a privilege), its name is
  free, and what it must agree with (columns of indexes, types, sizes of clusters) still agrees.
* An index that was not kept up to date for a while begins its life anew: REGISTERED.
* What is part of something goes where that goes: an index that was created since to the schema of
  its table.

`Undo` is a command: a pure function of the catalog, of the update and of what came after it, which
are read from the log before (`strandline.catalog.undo.reading`). Versions that came in between that
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
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.object_names import described, object_name, references, spoken
from strandline.catalog.planning import Planning
from strandline.catalog.undo.net import (
    Net,
    Target,
    called_as,
    exchanged,
    net_effect,
    renames,
    target_of,
    value_of,
)
from strandline.catalog.undo.rules import (
    BY_COMMAND,
    GO_FIRST,
    PARTS_OF,
    as_it_comes_back,
    check_agreement,
    check_undoable,
    following,
    same_content,
)
from strandline.catalog.undo.words import NOT_KEPT, inverse, listed, named_then
from strandline.durable.collections import COLLECTIONS, collection, collection_of, id_key
from strandline.durable.contents import Namespace
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Argument, Change, Entry, Update
from strandline.errors import (
    AlreadyExists,
    Conflict,
    ObjectNotFound,
    StrandlineError,
)
from strandline.model.descriptors import SchemaDescriptor, TableDescriptor

RESTORED_TABLES = "restored_table"
"""The allocator that counts how often a table came back."""


class HistoryMoved(Conflict):
    """A table came back while the history was being read; read it again."""


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

    Several versions are undone as the one update that `as_one` makes of them, from ``first`` on.
    ``later`` are the updates since that touched the same objects, or dropped what they refer to;
    ``restored`` is how many tables had come back when these were read. ``places`` are the folders,
    as URIs, that managed tables go to, by the number of the entry that is undone.
    """

    update: Update
    first: int | None = None
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
        check_undoable(self.update)
        if any(move.now is None for move in self.moves()):
            counted = planning.base.get("id_allocator", RESTORED_TABLES)
            if (counted.next_id if counted else 1) != self.restored:
                raise HistoryMoved("tables came back meanwhile; try again")
        for target, net in self.net.items():
            self._check_unchanged(planning.catalog, target, net)
        before = planning.catalog
        first = len(planning.transaction.entries)
        steps = [_Step(self, planning, n) for n in reversed(range(len(self.update.entries)))]
        for step in steps:
            step.let_go()
        for step in steps:
            step.take()
        self._check_result(planning, before)
        entries = planning.transaction.entries
        entries[first:] = [
            replace(entry, arguments={**entry.arguments, "undoes": self._undoes})
            for entry in entries[first:]
        ]

    @property
    def _undoes(self) -> Argument:
        """What the history says is undone: a version, or ``3..5``."""
        last = self.update.version
        return last if self.first in (None, last) else f"{self.first}..{last}"

    @property
    def purpose(self) -> str:
        """What is undone, as the subject of a sentence."""
        last = self.update.version
        is_single = self.first in (None, last)
        version = f"version {last}" if is_single else f"what versions {self.first} to {last} did"
        return version if self.only is None else f"the drop in {version}"

    @cached_property
    def net(self) -> dict[Target, Net]:
        """What the update did to each object that is to be as before."""
        return net_effect(self.update.changes(), self.only)

    @cached_property
    def exchanged(self) -> frozenset[Target]:
        """The objects that get their names back one after the other, as they came by them."""
        there = {
            target: net
            for target, net in self.net.items()
            if net.old is not None or target.kind not in GO_FIRST
        }
        return exchanged(self.update.changes(), there)

    def moves(self) -> Iterator[TableMove]:
        """The tables that come back or get another name, in the order of the steps."""
        settled: set[Target] = set()
        for number in reversed(range(len(self.update.entries))):
            for change in self.update.entries[number].changes:
                target = target_of(change)
                net = self.net.get(target)
                if change.kind != "table" or not net or not net.old or not change.old:
                    continue
                if not renames(change):
                    continue
                then: TableDescriptor = value_of(change.kind, change.old)
                now: TableDescriptor | None = value_of(change.kind, change.new)
                if target not in self.exchanged:
                    if target in settled:
                        continue
                    settled.add(target)
                    then = called_as(then, net.was)
                if now is None or (now.schema_id, now.name) != (then.schema_id, then.name):
                    yield TableMove(number, then, now)

    def schema(self, catalog: Catalog, schema_id: int) -> SchemaDescriptor | None:
        """The schema with that id, in ``catalog`` or as it comes back with this undo."""
        net = self.net.get(Target("schema", id_key(schema_id)))
        back: SchemaDescriptor | None = net.was if net else None
        return back or catalog.schema_by_id(schema_id)

    # -- what stands in the way ----------------------------------------------------------------

    def _check_unchanged(self, catalog: Catalog, target: Target, net: Net) -> None:
        """Refuse an object that is not as the update left it."""
        stored = catalog.contents.get(*target)
        now = None if stored is None else stored.value
        left = net.left
        since = self._since(target)
        if left is None and now is None and not since:
            return
        if left is not None and now is not None and same_content(left, now):
            return
        named = named_then(catalog, now or left or net.was, (self.update, *self.later))
        if not since:
            raise Conflict(f"{named} was changed since; look at the history, and undo that first")
        if now is None:
            what = "was dropped" if left is not None else "came back and was dropped again"
        else:
            what = "came back" if left is None else "was altered again"
        if now is None or left is None:
            since = since[-1:]  # the others were undone by it, or do not matter any more
        raise Conflict(
            f"{named} {what} in {listed(since, target)}; undo that first, or change it by hand"
        )

    def _since(self, target: Target) -> list[Update]:
        return [
            update
            for update in self.later
            if any(target_of(one) == target for one in update.changes())
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
                    gone = named_then(catalog, value_of(kind, change.old), self.later)
                    when = listed([update], Target(kind, key))
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

    def let_go(self) -> None:
        """Drop what the entry made, of the kinds that nothing which is put back can need."""
        for change in reversed(self.entry.changes):
            if change.kind in GO_FIRST and self._made(change):
                BY_COMMAND[change.kind].run(self.planning, self._now(change), None)

    def take(self) -> None:
        """Take the entry back."""
        rest: list[Change] = []
        for change in reversed(self.entry.changes):
            net, by_command = self.undo.net.get(target_of(change)), BY_COMMAND.get(change.kind)
            if net is None or (net.old is None and self._goes_anyway(change)):
                continue
            if by_command is None or (change.old is not None and not by_command.restores):
                rest.append(change)
            elif change.old == net.old:
                self._write(rest)
                rest = []
                by_command.run(self.planning, self._now(change), net.was)
        self._write(rest)

    def _now(self, change: Change) -> Any:  # Any: a descriptor of the change's kind
        stored = self.planning.catalog.contents.get(change.kind, change.key)
        return None if stored is None else stored.value

    def _made(self, change: Change) -> bool:
        """Whether the change made what is there now, and not as a part of what is made too."""
        net, now = self.undo.net.get(target_of(change)), self._now(change)
        if net is None or net.old is not None or change.old is not None or now is None:
            return False
        whole = self._whole(change.kind, now)
        return whole is None or whole.old is not None

    def _goes_anyway(self, change: Change) -> bool:
        """Whether what the version made needs no step here: it is gone, or goes in another."""
        if change.kind in GO_FIRST or self._now(change) is None:
            return True
        if change.old is None:
            return not self._made(change)
        return not collection(change.kind).has_id

    def _whole(self, kind: str, value: Any) -> Net | None:  # Any: a descriptor of that kind
        """What the update did to what ``value`` is part of."""
        part_of = PARTS_OF.get(kind)
        if part_of is None:
            return None
        return self.undo.net.get(Target(part_of[0], id_key(getattr(value, part_of[1]))))

    def _write(self, changes: list[Change]) -> None:
        """Put back what the changes replaced, in one entry; none where it is so already."""
        back = [(change, self._back(change)) for change in changes]
        back = [(change, value) for change, value in back if value != self._now(change)]
        if not back:
            return
        verb, arguments = self._named(back)
        with self.planning.entry(verb, **arguments) as transaction:
            for change, value in back:
                if value is None:
                    transaction.delete(change.kind, _key_of(change))
                else:
                    self._put_back(transaction, value, new=self._now(change) is None)

    def _back(self, change: Change) -> Any:  # Any: a descriptor of the change's kind
        """What is put in the place of what is there now; None for nothing."""
        if change.old is None:
            return None
        target, now = target_of(change), self._now(change)
        net, then = self.undo.net[target], value_of(change.kind, change.old)
        whole = self._whole(change.kind, then)
        together = whole is not None and whole.new is None
        value = as_it_comes_back(then, now, net, together=together)
        if target in self.undo.exchanged or not collection(change.kind).has_id:
            return value
        goes = net.old is None or (now is not None and not renames(change))
        return called_as(value, now if goes else net.was)

    def _put_back(self, transaction: CatalogTransaction, value: Any, *, new: bool) -> None:
        self._check_name(value)
        if new and isinstance(value, TableDescriptor):
            transaction.allocate_id(RESTORED_TABLES)
        transaction.put(value)
        for part in following(self.planning.catalog, value):
            net = self.undo.net.get(Target(collection_of(part).kind, id_key(part.id)))
            if net is None or net.old is None:
                self._check_name(part, taken="{} goes with its table, and its name is held by {}")
                transaction.put(part)

    def _check_name(
        self, value: Any, *, taken: str = "the name of {} was taken by {} meanwhile"
    ) -> None:  # Any: a descriptor of any kind
        kind = collection_of(value)
        if kind.scope is None:
            return
        catalog, stored = self.planning.catalog, kind.stored_value(value)
        holder = catalog.contents.find(Namespace(kind.scope, stored.parent), stored.name)
        if not kind.occupies(stored) or holder in (None, (kind.kind, kind.key(stored))):
            return
        held = catalog.contents.get(*holder) if holder else None
        by = f"{spoken(holder.kind)} {held.name} (id {held.id})" if holder and held else "another"
        said = taken.format(described(catalog, value), by)
        raise AlreadyExists(f"{said}; rename or drop that first")

    def _named(self, back: list[tuple[Change, Any]]) -> tuple[str, dict[str, Argument]]:
        """The verb of the step, and what it says of the object that the entry is about."""
        entry, catalog = self.entry, self.planning.catalog
        verb, noun = inverse(entry.verb), entry.verb.partition("_")[2]
        about, value = next((one for one in back if one[0].kind == noun), back[-1])
        now = self._now(about)
        subject = next((k for k in (about.kind, "replica") if k in entry.arguments), about.kind)
        kept = {k: v for k, v in entry.arguments.items() if k not in NOT_KEPT}
        if about.kind != noun and noun in COLLECTIONS:  # what it was about is as before already
            renamed = now is not None and value is not None and renames(about)
            verb = f"rename_{about.kind}" if renamed else f"undo_{entry.verb}"
        if not verb.startswith(("restore_", "rename_")):
            if subject in kept:
                kept[subject] = object_name(catalog, now or value)
            return verb, kept
        named: dict[str, Argument] = {subject: object_name(catalog, value)}
        if verb.startswith("rename_") and now is not None:
            named = {subject: object_name(catalog, now), "to": named[subject]}
        if "id" in entry.arguments or about.kind == "table":
            named["id"] = int.from_bytes(about.key, "big")
        location = self.undo.places.get(self.number)
        if isinstance(value, SchemaDescriptor) and now is None:
            location = value.location
        named["location"] = location
        return verb, named


def _key_of(change: Change) -> int | str:
    has_id = collection(change.kind).has_id
    return int.from_bytes(change.key, "big") if has_id else change.key.decode()
