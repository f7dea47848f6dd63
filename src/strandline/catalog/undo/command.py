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

* No later change is lost: an object that is not as the version left it is refused,
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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.declared_kinds import declared_kind
from strandline.catalog.kinds import (
    described,
    kind_named,
    kind_of,
    object_name,
    references,
    spoken,
)
from strandline.catalog.planning import Planning
from strandline.catalog.undo.net import (
    Net,
    Target,
    called_as,
    exchanged,
    listed,
    named_then,
    net_effect,
    renames,
    target_of,
    value_of,
)
from strandline.catalog.verbs import Action, verb_named
from strandline.durable.collections import collection, collection_of, id_key
from strandline.durable.contents import Namespace
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Argument, Change, Entry, Update
from strandline.errors import (
    AlreadyExists,
    Conflict,
    IllegalChange,
    ObjectNotFound,
    StrandlineError,
)
from strandline.model.descriptors import SchemaDescriptor, TableDescriptor

RESTORED_TABLES = "restored_table"
"""The allocator that counts the versions in which tables came back."""

_NOT_KEPT = frozenset({"location", "location_given", "instead_of", "data", "undoes"})
"""Arguments of an entry that do not hold for the step that takes it back."""


class HistoryMoved(Conflict):
    """A table came back while the history was being read; read it again."""


@dataclass(frozen=True, kw_only=True)
class Undo:
    """Take back what ``update`` did, or what it did to the objects in ``only``.

    Several versions are undone as the one update that `as_one` makes of them, from ``first`` on.
    ``later`` are the updates since that touched the same objects, or dropped what they refer to;
    ``restored`` is the next number of `RESTORED_TABLES` when these were read.
    """

    update: Update
    first: int | None = None
    later: tuple[Update, ...] = ()
    restored: int = 1
    only: frozenset[Target] | None = None

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
        if any(self.restored_tables()):
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
        judged = {
            target: net
            for target, net in self.net.items()
            if net.old is not None or not declared_kind(target.kind).undo.goes_first
        }
        return exchanged(self.update.changes(), judged)

    def with_later(self, later: Sequence[Update], *, restored: int) -> Undo:
        """This undo, with what is known of what came after. What it read is not read again."""
        completed = replace(self, later=tuple(later), restored=restored)
        completed.__dict__["net"] = self.net
        return completed

    def restored_tables(self) -> Iterator[TableDescriptor]:
        """The tables that come back, as they were."""
        for target, net in self.net.items():
            if target.kind == "table" and net.old is not None and net.new is None:
                yield net.was

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
        since = self._later_by_target.get(target, [])
        if left is None and now is None and not since:
            return
        if left is not None and now is not None and declared_kind(target.kind).undo.same(left, now):
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

    @cached_property
    def _later_by_target(self) -> dict[Target, list[Update]]:
        """The later updates of each object that they changed, in order."""
        updates: dict[Target, list[Update]] = {}
        for update in self.later:
            for target in dict.fromkeys(map(target_of, update.changes())):
                updates.setdefault(target, []).append(update)
        return updates

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
            check = declared_kind(target.kind).undo.check
            check(planning, None if was is None else was.value, stored.value)

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
                        f"{gone}, which {kind_of(value).spoken} {value.name} belongs "
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
            kind = declared_kind(change.kind)
            if kind.undo.goes_first and kind.drop is not None and self._made(change):
                kind.drop(self.planning, self._now(change))

    def take(self) -> None:
        """Take the entry back."""
        rest: list[Change] = []
        for change in reversed(self.entry.changes):
            net, kind = self.undo.net.get(target_of(change)), declared_kind(change.kind)
            set_back = kind.undo.set_back
            if net is None or (net.old is None and self._goes_anyway(change)):
                continue
            is_dropped = change.old is None and kind.drop is not None
            if set_back is None and not is_dropped:
                rest.append(change)
            elif change.old == net.old:
                self._write(rest)
                rest = []
                if set_back is not None:
                    set_back(self.planning, self._now(change), net.was)
                elif kind.drop is not None:
                    kind.drop(self.planning, self._now(change))
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
        if declared_kind(change.kind).undo.goes_first or self._now(change) is None:
            return True
        if change.old is None:
            return not self._made(change)
        return not collection(change.kind).has_id

    def _whole(self, kind: str, value: Any) -> Net | None:  # Any: a descriptor of that kind
        """What the update did to what ``value`` is part of."""
        whole = kind_named(kind).whole_of(value)
        return None if whole is None else self.undo.net.get(Target(whole[0], id_key(whole[1])))

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
                    self._put_back(transaction, change, value)

    def _back(self, change: Change) -> Any:  # Any: a descriptor of the change's kind
        """What is put in the place of what is there now; None for nothing."""
        if change.old is None:
            return None
        target, now = target_of(change), self._now(change)
        net = self.undo.net[target]
        then = net.was if change.old == net.old else value_of(change.kind, change.old)
        whole = self._whole(change.kind, then)
        value = declared_kind(change.kind).undo.comes_back(then, now, net, whole)
        if target in self.undo.exchanged or not collection(change.kind).has_id:
            return value
        goes = net.old is None or (now is not None and not renames(change))
        return called_as(value, now if goes else net.was)

    def _put_back(self, transaction: CatalogTransaction, change: Change, value: Any) -> None:
        self._check_name(value)
        if isinstance(value, TableDescriptor) and self._now(change) is None:
            base = self.planning.base.get("id_allocator", RESTORED_TABLES)
            if self.planning.catalog.get("id_allocator", RESTORED_TABLES) == base:
                transaction.allocate_id(RESTORED_TABLES)
        before = self.undo.net[target_of(change)]
        transaction.put(value, record=before.old if value is before.was else None)
        for part in declared_kind(kind_of(value).name).undo.following(self.planning.catalog, value):
            net = self.undo.net.get(Target(collection_of(part).kind, id_key(part.id)))
            if net is None or net.old is None:
                self._check_name(part, taken="{} goes with its table, and its name is held by {}")
                transaction.put(part)

    def _check_name(
        self, value: Any, *, taken: str = "the name of {} was taken by {} meanwhile"
    ) -> None:  # Any: a descriptor of any kind
        kind, catalog = kind_of(value), self.planning.catalog
        scope = kind.collection.scope
        if scope is None:
            return
        parent = 0 if kind.parent is None else getattr(value, kind.parent)
        holder = catalog.contents.find(Namespace(scope, parent), value.name)
        if holder is None or holder == (kind.name, id_key(value.id)):
            return
        if not kind.collection.occupies(kind.collection.stored_value(value)):
            return
        stored = catalog.contents.get(*holder)
        by = f"{spoken(holder.kind)} {stored.name} (id {stored.id})" if stored else "another"
        said = taken.format(described(catalog, value), by)
        raise AlreadyExists(f"{said}; rename or drop that first")

    def _named(self, back: list[tuple[Change, Any]]) -> tuple[str, dict[str, Argument]]:
        """The verb of the step, and what it says of the object that the entry is about."""
        entry, catalog = self.entry, self.planning.catalog
        undone = verb_named(entry.verb)
        about, value = next((pair for pair in back if pair[0].kind == undone.kind), back[-1])
        now, verb = self._now(about), verb_named(undone.inverse)
        kind = kind_named(about.kind)
        own = kind.subject or kind.name
        # Such a verb names another object than the one that it changes.
        names_another = undone.kind is None and undone.subject is not None
        kept = {k: v for k, v in entry.arguments.items() if k not in _NOT_KEPT}
        if undone.kind not in (None, about.kind):  # what it was about is as before already
            renamed = now is not None and value is not None and renames(about)
            verb = verb_named(kind.verb(Action.RENAME) if renamed else undone.undone)
        if verb.action not in (Action.RESTORE, Action.RENAME):
            if own in kept and not names_another:
                kept[own] = object_name(catalog, now or value)
            return verb.name, kept
        named: dict[str, Argument] = {own: object_name(catalog, value)}
        if verb.action is Action.RENAME and now is not None:
            named = {own: object_name(catalog, now), "to": named[own]}
        if "id" in entry.arguments or about.kind == "table":
            named["id"] = int.from_bytes(about.key, "big")
        if isinstance(value, SchemaDescriptor) and now is None:
            named["location"] = value.location
        return verb.name, named


def check_undoable(update: Update) -> None:
    """Refuse a version that has no change which can be undone."""
    if update.silent:
        raise IllegalChange("it holds the catalog's own bookkeeping alone, and no change by a user")
    reasons = [verb_named(entry.verb).why_kept for entry in update.entries]
    reasons += [declared_kind(change.kind).undo.why_kept for change in update.changes()]
    why_kept = next(filter(None, reasons), None)
    if why_kept is not None:
        raise IllegalChange(why_kept)


def _key_of(change: Change) -> int | str:
    has_id = collection(change.kind).has_id
    return change.object_id if has_id else change.key.decode()
