"""Undo: a new version that takes back what an older one did.

The problem: users drop, rename and alter objects by mistake, and notice it after others have gone
on working. The old version can still be read, but it is not the present. Undo makes it the present
again, only for the objects that the version touched, and only if that is still possible. If it is
not, the refusal says what prevents it.

The model. An update holds the bytes of each object before and after it. Undo goes through the
entries of the update backwards and puts back the bytes from before. The result is one new version,
all or nothing, which is in the history like any other and can itself be undone (that is the redo).
An object that the update created is dropped by the ordinary drop command, with its rules. An object
that it dropped comes back *under its id*, and so with everything stored elsewhere under that id:
rows, files, partitions, grants. All checks look at the net effect of the update
(`strandline.catalog.undo.net`), never at its single steps.

What must stay true:

* No later change is lost. If what the version changed about an object was changed again, the undo
  is refused, and the refusal names the versions that changed it. Undo those first, or change it by
  hand. Owner, comment, properties and privileges are each apart from the rest of an object: a later
  change of the one stays when the other is undone. An undo that would drop a part that was created
  since, such as an index of a table, is refused too.
* An id is assigned once. The schema versions of a table only advance: its columns come back under
  their ids in one more schema version, and `next_column_id` never goes back. Two tables are
  therefore equal even if their schema version numbers differ, so undoing one version after another
  works.
* Everything that the object refers to exists (its schema, its zone, the roles of a privilege), its
  name is free, and what it must agree with (columns of indexes, types, sizes of clusters) agrees.
* An index that was not maintained for a while starts again: REGISTERED.
* A part follows its whole: an index that was created since moves to the schema of its table. A
  renamed role keeps what it owns, under its restored name.

`Undo` is a command: a pure function of the catalog, of the update and of the later updates, which
are read from the log before (`strandline.catalog.undo.reading`). A version between that reading and
the planning shows in the catalog itself: the object is then not as the update left it. If a table
was restored and dropped again meanwhile, the count of restored tables has moved (`HistoryMoved`).

Rejected: going back to the older version as a whole (it would take back what others did to other
objects), inverse commands for each command (every new one would need one), and a restored object
under a new id (its rows would have to be copied).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.declared_kinds import declared_kind
from strandline.catalog.kinds import described, kind_named, kind_of, object_name, references, spoken
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.access import Access
from strandline.catalog.undo.net import (
    Net,
    Target,
    called_as,
    exchanged,
    keeping_later,
    listed,
    named_then,
    net_effect,
    renames,
    target_of,
    value_of,
)
from strandline.catalog.verbs import Action, verb_named
from strandline.durable.collections import collection, collection_of, id_key
from strandline.durable.contents import Namespace, Reference
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Argument, Change, Entry, Update
from strandline.errors import (
    AlreadyExists,
    Conflict,
    IllegalChange,
    ObjectNotFound,
    StrandlineError,
)
from strandline.model.descriptors import IndexDescriptor, SchemaDescriptor, TableDescriptor
from strandline.model.identifiers import normalize
from strandline.model.privileges import RoleDescriptor

RESTORED_TABLES = "restored_table"
"""The allocator that counts the versions in which tables were restored, and each `ReadAgain`."""

_NOT_KEPT = frozenset({"location", "location_given", "instead_of", "data", "undoes"})
"""Arguments of an entry that are not valid for the entry that takes it back."""


class HistoryMoved(Conflict):
    """A table was restored while the history was being read, or `ReadAgain`; read it again."""


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """Refuse to restore tables by a history that was read before: it may have been trimmed."""

    def plan(self, planning: Planning) -> None:
        with planning.transaction.entry("allocate", {"name": RESTORED_TABLES}):
            planning.transaction.allocate_id(RESTORED_TABLES)


@dataclass(frozen=True, kw_only=True)
class Undo:
    """Take back what ``update`` did, or only what it did to the objects in ``only``.

    Several versions, from ``first`` on, are undone as the one update that `as_one` makes of them.
    ``later`` are the later updates that touched the same objects, or dropped what they refer to.
    ``restored`` is the next number of `RESTORED_TABLES` when these were read. ``owners`` are the
    ids of the roles that owned the objects, by the normalized names that they had then. ``kept``
    are objects that do not follow a renamed role back: their owner had its later name before.
    """

    update: Update
    first: int | None = None
    later: tuple[Update, ...] = ()
    restored: int = 1
    owners: Mapping[str, int] = field(default_factory=dict)
    kept: frozenset[Target] = frozenset()
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
        is_same = planning.base.next_number(RESTORED_TABLES) == self.restored
        if not is_same and any(self.restored_tables()):
            raise HistoryMoved("dropped tables were restored or cleaned in the meantime; try again")
        for target, net in self.net.items():
            self._check_unchanged(planning, target, net)
        before = planning.catalog
        first = len(planning.transaction.entries)
        steps = [_Step(self, planning, n) for n in reversed(range(len(self.update.entries)))]
        for step in steps:
            step.drop_created()
        refused: dict[Target, Callable[[], None]] = {}
        for step in steps:
            refused |= step.take_back()
        for target, drop in refused.items():  # what a role owned is by now its previous owner's
            if planning.catalog.contents.get(*target) is not None:  # it may have been created twice
                drop()
        self._check_result(planning, before)
        entries = planning.transaction.entries
        self._check_parts(before, entries[first:])
        entries[first:] = [
            replace(entry, arguments={**entry.arguments, "undoes": self._undoes})
            for entry in entries[first:]
        ]

    @property
    def _undoes(self) -> Argument:
        """What is undone, for the history: a version, or ``3..5``."""
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
        """The net effect of the update on each object to restore.

        The last of several versions may have undone the others: then their tables are as before,
        with more schema versions. To undo these again would double the entries at each repetition.
        """
        effects = net_effect(self.update.changes(), self.only)
        if self.first is None:
            return effects
        return {
            target: net
            for target, net in effects.items()
            if net.old is None
            or net.new is None
            or not declared_kind(target.kind).undo.same(net.old_value, net.new_value)
        }

    @cached_property
    def touched(self) -> frozenset[Target]:
        """The objects that the update changed, also those that ended as they began."""
        return frozenset(map(target_of, self.update.changes()))

    @cached_property
    def first_drops(self) -> dict[Target, Change]:
        """The first drop of each object that the update dropped."""
        drops = [change for change in self.update.changes() if change.new is None]
        return {target_of(change): change for change in reversed(drops)}

    @cached_property
    def last_records(self) -> dict[Target, bytes | None]:
        """Each object as the update left it or, if it was dropped then, as it was just before."""
        return {target_of(change): change.new or change.old for change in self.update.changes()}

    @cached_property
    def exchanged(self) -> frozenset[Target]:
        """The objects that go back name by name (`strandline.catalog.undo.net.exchanged`)."""
        considered = {
            target: net
            for target, net in self.net.items()
            if net.old is not None or not declared_kind(target.kind).undo.is_dropped_first
        }
        return exchanged(self.update.changes(), considered)

    def keeping_later(self, value: Any, target: Target, now: Any) -> Any:
        """`strandline.catalog.undo.net.keeping_later`, except for objects that exchange names."""
        return value if target in self.exchanged else keeping_later(value, self.net[target], now)

    def with_later(
        self,
        later: Sequence[Update],
        *,
        restored: int,
        owners: Mapping[str, int],
        kept: frozenset[Target],
    ) -> Undo:
        """This undo, with what came later. Reuses the net effect that was already computed."""
        completed = replace(self, later=tuple(later), restored=restored, owners=owners, kept=kept)
        completed.__dict__["net"] = self.net
        return completed

    def restored_tables(self) -> Iterator[TableDescriptor]:
        """The dropped tables that are restored, as they were."""
        for target, net in self.net.items():
            if target.kind == "table" and net.old is not None and net.new is None:
                yield net.old_value

    def schema(self, schema_id: int) -> SchemaDescriptor | None:
        """The schema with that id as this undo restores it, or None if it does not restore it."""
        net = self.net.get(Target("schema", id_key(schema_id)))
        back: SchemaDescriptor | None = net.old_value if net else None
        return back

    # -- reasons for a refusal -----------------------------------------------------------------

    def _check_unchanged(self, planning: Planning, target: Target, net: Net) -> None:
        """Refuse an object that is not as the update left it."""
        catalog = planning.catalog
        now = catalog.contents.value(*target)
        left = self.keeping_later(net.new_value, target, now)
        since = self._later_by_target.get(target, [])
        if left is None and now is None and not since:
            return
        if left is not None and now is not None and declared_kind(target.kind).undo.same(left, now):
            return
        named = named_then(catalog, now or left or net.old_value, (self.update, *self.later))
        if not since:
            raise Conflict(
                f"{named} has changed since; find that change in the history and undo it first"
            )
        if now is None:
            what = "was dropped" if left is not None else "was restored and dropped again"
        else:
            what = "came back" if left is None else "was altered again"
        if now is None or left is None:
            since = since[-1:]  # that one undid the others, or made them irrelevant
        by_hand = "drop it" if now is not None and net.old is None else "change it by hand"
        when = _listed(planning, since, target)
        raise Conflict(f"{named} {what} in {when}; undo that first, or {by_hand}")

    @cached_property
    def _later_by_target(self) -> dict[Target, list[Update]]:
        updates: dict[Target, list[Update]] = {}
        for update in self.later:
            for target in dict.fromkeys(map(target_of, update.changes())):
                updates.setdefault(target, []).append(update)
        return updates

    def _check_result(self, planning: Planning, before: Catalog) -> None:
        """Refuse a result that refers to a missing object, or does not agree with other objects."""
        for target, net in self.net.items():
            now = planning.catalog.contents.value(*target)
            if now is None or net.old is None:
                continue
            for kind, object_id in references(now):
                if planning.catalog.get(kind, object_id) is None:
                    raise self._missing_reference(planning, now, kind, object_id)
            check = declared_kind(target.kind).undo.check
            check(planning, before.contents.value(*target), now)

    def _check_parts(self, before: Catalog, entries: Sequence[Entry]) -> None:
        """Refuse to drop what others created since as part of an object that goes.

        Memberships in a role that goes are such parts, too.
        """
        for change in (change for entry in entries for change in entry.changes):
            if target_of(change) in self.net:
                continue
            part, now = value_of(change.kind, change.old), value_of(change.kind, change.new)
            if isinstance(part, RoleDescriptor) and now is not None:
                if len(now.member_of) < len(part.member_of):
                    raise Conflict(
                        f"{described(before, part)} has become a member of it since; revoke that "
                        "first"
                    )
            elif now is None:
                if isinstance(part, IndexDescriptor) and not part.alive:
                    continue  # it was dropped, and only serves transactions that began before
                raise Conflict(
                    f"{described(before, part)} was created since and would go with it; drop or "
                    "revoke that first"
                )

    def _missing_reference(
        self, planning: Planning, value: Any, kind: str, object_id: int
    ) -> ObjectNotFound:  # value: a descriptor of any kind
        catalog, key = planning.catalog, id_key(object_id)
        for update in reversed((self.update, *self.later)):
            for change in update.changes():
                if (change.kind, change.key) == (kind, key) and change.new is None:
                    dropped_name = named_then(catalog, value_of(kind, change.old), self.later)
                    when = _listed(planning, [update], Target(kind, key))
                    of = kind_of(value)  # the name of a kind that is `called` otherwise is a key
                    part = f"{of.spoken} {value.name}" if of.called is None else f"a {of.spoken}"
                    return ObjectNotFound(
                        f"{dropped_name}, which {part} belongs to, was dropped in {when}; undo that"
                        " drop first"
                    )
        return ObjectNotFound(
            f"{spoken(kind)} {object_id}, which {described(catalog, value)} belongs to, no longer "
            "exists"
        )


@dataclass(frozen=True)
class _Step:
    """The undo of one entry of the update."""

    undo: Undo
    planning: Planning
    number: int

    @property
    def entry(self) -> Entry:
        return self.undo.update.entries[self.number]

    def drop_created(self) -> None:
        """Drop what the entry created, of the kinds that no restored object can need."""
        for change in reversed(self.entry.changes):
            kind = declared_kind(change.kind)
            if kind.undo.is_dropped_first and kind.drop is not None and self._was_created(change):
                kind.drop(self.planning, self._present_value(change))

    def take_back(self) -> dict[Target, Callable[[], None]]:
        """Return the drops that were refused, to try again after all steps."""
        rest: list[Change] = []
        refused: dict[Target, Callable[[], None]] = {}
        for change in reversed(self.entry.changes):
            net, kind = self.undo.net.get(target_of(change)), declared_kind(change.kind)
            by_command = kind.undo.by_command
            if net is None or (net.old is None and self._needs_no_step(change)):
                continue
            is_dropped = change.old is None and kind.drop is not None
            if by_command is None and not is_dropped:
                rest.append(change)
            elif change.old == net.old:
                self._write(rest)
                rest = []
                if by_command is not None:
                    by_command(self.planning, self._present_value(change), net.old_value)
                elif kind.drop is not None:
                    drop = partial(kind.drop, self.planning, self._present_value(change))
                    try:
                        drop()
                    except IllegalChange:
                        refused[target_of(change)] = drop
        self._write(rest)
        return refused

    def _present_value(self, change: Change) -> Any:  # Any: a descriptor of the change's kind
        return self.planning.catalog.contents.value(change.kind, change.key)

    def _was_created(self, change: Change) -> bool:
        """Whether the change created the present object, and not as part of a created object."""
        net, now = self.undo.net.get(target_of(change)), self._present_value(change)
        if net is None or net.old is not None or change.old is not None or now is None:
            return False
        whole = self._whole(change.kind, now)
        return whole is None or whole.old is not None

    def _needs_no_step(self, change: Change) -> bool:
        """Whether an object that the version created needs no step here.

        It is already gone, or another step removes it.
        """
        if declared_kind(change.kind).undo.is_dropped_first or self._present_value(change) is None:
            return True
        if change.old is None:
            return not self._was_created(change)
        return not collection(change.kind).has_id

    def _whole(self, kind: str, value: Any) -> Net | None:  # Any: a descriptor of that kind
        """The net effect on the object that ``value`` is part of, or None."""
        whole = kind_named(kind).whole_of(value)
        return None if whole is None else self.undo.net.get(Target(whole[0], id_key(whole[1])))

    def _write(self, changes: list[Change]) -> None:
        """Put back what the changes replaced, in one entry; no entry if nothing differs."""
        changes = [change for change in changes if not self._waits(change)]
        back = [(change, self._restored_value(change)) for change in changes]
        back = [(change, value) for change, value in back if value != self._present_value(change)]
        if not back:
            return
        verb, arguments = self._named(back)
        with self.planning.entry(verb, **arguments) as transaction:
            for change in changes:
                # Computed again, because an entry may change an object more than once.
                value = self._restored_value(change)
                if value == self._present_value(change):
                    continue
                if value is None:
                    transaction.delete(change.kind, _key_of(change))
                else:
                    self._put_back(transaction, change, value)

    def _waits(self, change: Change) -> bool:
        """Whether the undo of an earlier drop brings a dropped object back.

        A range may have dropped an object twice, and what took its name may go in between.
        """
        if change.old is None or self._present_value(change) is not None:
            return False
        if change.new is not None:
            drops = (other for other in self.entry.changes if other.new is None)
            drop = next((other for other in drops if target_of(other) == target_of(change)), None)
            return drop is None or self._waits(drop)  # its undo comes first
        if change is self.undo.first_drops[target_of(change)]:
            return False
        value = self._restored_value(change)
        whole = kind_named(change.kind).whole_of(value)
        if whole is not None and self._whole(change.kind, value) is not None:
            return self.planning.catalog.get(*whole) is None
        return self._other_holder(value) is not None

    def _restored_value(self, change: Change) -> Any:  # Any: a descriptor of the change's kind
        """The value to put in place of the present one, or None to delete it."""
        if change.old is None:
            return None
        target, now = target_of(change), self._present_value(change)
        net = self.undo.net[target]
        earlier = net.old_value if change.old == net.old else value_of(change.kind, change.old)
        earlier = self.undo.keeping_later(earlier, target, now)
        whole = self._whole(change.kind, earlier)
        value = declared_kind(change.kind).undo.comes_back(earlier, now, net, whole)
        owner = getattr(value, "owner", "")
        # A present owner has its present name: that may be another role's former one.
        is_present = now is not None and getattr(now, "owner", "") == owner
        if not is_present and (present_owner := self._present_owner(owner)) != owner:
            value = replace(value, owner=present_owner)
        if target in self.undo.exchanged or not collection(change.kind).has_id:
            return value
        # Without a net rename, the present name may be that of a later version.
        keeps_present_name = net.old is None or (
            now is not None and not (renames(change) and renames(net))
        )
        return called_as(value, now if keeps_present_name else net.old_value)

    def _present_owner(self, owner: str) -> str:
        """The present name of ``owner``: the name of a role may be another's by now.

        Empty if the role is gone and another one has its name, or if the owner was a user without a
        role and has one now, whose members may be others: only that user and superusers bring the
        object back to it.
        """
        role_id = self.undo.owners.get(normalize(owner))
        catalog, author = self.planning.catalog, self.planning.author
        if role_id is None:
            role = catalog.role(owner)
            if role is None or Target("role", id_key(role.id)) in self.undo.net:
                return owner
            is_owner = normalize(author) == normalize(owner)
            return owner if is_owner or Access(catalog, author).free else ""
        now, holder = catalog.role_by_id(role_id), catalog.role(owner)
        if now is None:
            return owner if holder is None else ""
        return owner if now == holder else now.name

    def _put_back(self, transaction: CatalogTransaction, change: Change, value: Any) -> None:
        self._check_name(value)
        if isinstance(value, TableDescriptor) and self._present_value(change) is None:
            base = self.planning.base.next_number(RESTORED_TABLES)
            if self.planning.catalog.next_number(RESTORED_TABLES) == base:
                transaction.allocate_id(RESTORED_TABLES)
        before, now = self.undo.net[target_of(change)], self._present_value(change)
        transaction.put(value, record=before.old if value is before.old_value else None)
        following = declared_kind(kind_of(value).name).undo.following
        for part in following(self.planning.catalog, now, value):
            target = Target(collection_of(part).kind, id_key(part.id))
            net = self.undo.net.get(target)
            if isinstance(value, RoleDescriptor) and target in self.undo.kept:
                continue
            if target not in self.undo.touched or (net is not None and net.old is None):
                self._check_name(
                    part, taken="{} is restored with its table, but its name is used by {}"
                )
                transaction.put(part)

    def _check_name(
        self, value: Any, *, taken: str = "the name of {} is now used by {}"
    ) -> None:  # Any: a descriptor of any kind
        catalog, holder = self.planning.catalog, self._other_holder(value)
        if holder is None:
            return
        stored = catalog.contents.get(*holder)
        by = f"{spoken(holder.kind)} {stored.name} (id {stored.id})" if stored else "another"
        problem = taken.format(described(catalog, value), by)
        raise AlreadyExists(f"{problem}; rename or drop that first")

    def _other_holder(self, value: Any) -> Reference | None:  # Any: a descriptor of any kind
        """The other object that has the name of ``value``, if that needs its name."""
        kind = kind_of(value)
        scope = kind.collection.scope
        if scope is None:
            return None
        parent = 0 if kind.parent is None else getattr(value, kind.parent)
        holder = self.planning.catalog.contents.find(Namespace(scope, parent), value.name)
        if holder is None or holder == (kind.name, id_key(value.id)):
            return None
        if not kind.collection.occupies(kind.collection.stored_value(value)):
            return None
        return holder

    def _named(self, back: list[tuple[Change, Any]]) -> tuple[str, dict[str, Argument]]:
        """The verb of the entry that takes this one back, and its arguments."""
        entry, catalog = self.entry, self.planning.catalog
        undone = verb_named(entry.verb)
        of_kind = [pair for pair in back if pair[0].kind == undone.kind] or back[-1:]
        about, value = next((pair for pair in of_kind if renames(pair[0])), of_kind[0])
        now, verb = self._present_value(about), verb_named(undone.inverse)
        kind = kind_named(about.kind)
        own = kind.subject or kind.name
        # Such a verb names another object than the one that it changes.
        names_another = undone.kind is None and undone.subject is not None
        kept_arguments = {k: v for k, v in entry.arguments.items() if k not in _NOT_KEPT}
        if undone.kind not in (None, about.kind):  # the object it was about is already as before
            renamed = now is not None and value is not None and renames(about)
            verb = verb_named(kind.verb(Action.RENAME) if renamed else undone.undone)
        if verb.action is Action.RESTORE and now is not None and called_as(value, now) != value:
            # A later version of the range has restored the object already, under another name.
            verb = verb_named(kind.verb(Action.RENAME))
        if verb.action not in (Action.RESTORE, Action.RENAME):
            if own in kept_arguments and not names_another:
                kept_arguments[own] = object_name(catalog, now or value)
            return verb.name, kept_arguments
        named: dict[str, Argument] = {own: object_name(catalog, value)}
        if verb.action is Action.RENAME and now is not None:
            named = {own: object_name(catalog, now), "to": named[own]}
        if "id" in entry.arguments or about.kind == "table":
            named["id"] = int.from_bytes(about.key, "big")
        if isinstance(value, SchemaDescriptor) and now is None:
            named["location"] = value.location
        return verb.name, named


def _listed(planning: Planning, updates: Sequence[Update], target: Target) -> str:
    """`listed`, with the authors that the history shows to the user of the undo."""
    user = planning.author
    is_free = Access(planning.catalog, user).free
    return listed(
        updates, target, authors=lambda author: is_free or normalize(author) == normalize(user)
    )


def check_undoable(update: Update) -> None:
    """Refuse a silent version, and a version with a change that cannot be undone."""
    if update.silent:
        raise IllegalChange(
            "it contains only the catalog's internal records, and no change by a user"
        )
    reasons = [verb_named(entry.verb).why_kept for entry in update.entries]
    reasons += [declared_kind(change.kind).undo.why_kept for change in update.changes()]
    why_kept = next(filter(None, reasons), None)
    if why_kept is not None:
        raise IllegalChange(why_kept)


def _key_of(change: Change) -> int | str:
    has_id = collection(change.kind).has_id
    return change.object_id if has_id else change.key.decode()
