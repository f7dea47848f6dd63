"""What DDL does to folders, and to the places of managed tables.

An effect makes, moves or removes one folder. A SQL transaction (a `Turn`) carries out some of them.
Its rollback moves no folder back, so an effect may be done and its transaction lost: then it is met
again, and must be recognized. A made folder is found there; a moved one is gone from the old place
and is at the new one; a removed one is gone.

What must stay true for that: no effect of a turn touches what another one of it made, moved or
removed. After "rename a to b, create a" there are folders at a and b, as if nothing had been moved
yet. So an effect waits for the next turn if one of its folders is a folder that was touched before,
or lies above or below one that is moved or removed. Then each effect finds what it found the first
time, or what it did itself, whichever of the others were done, and whichever of them a power cut
took back. All are put on disk before the transaction commits: every folder in which something
changed is synced, once.

Where a table lies is one fact per table id and not versioned. So what is refused stops nobody. A
folder that cannot be moved stays and is found where it is; one that cannot be made is left unmade,
and whoever writes the table makes it, or is refused in turn. Each is counted, and logged as a
warning. What is merely short (space, descriptors, a disk that fails) is an error and tried again.

Only an own place of the store is moved or removed (`strandline.metastore.store.store_folders`), and
it is verified just before. What lies elsewhere stays, also the managed tables that older releases
put where a client said.

Two tables never get one place: what lies there would be shown in both. A place is taken as long as
any table has it, also a dropped one that could not be moved or whose files were to be kept. A new
table then lies beside it, under its id; a moved one stays. Only a client that has written into the
place of a dropped table before it created its own (as Spark does) takes that place over.

Rejected: one effect a transaction (10,000 tables dropped are 10,000 commits), and a list of effects
that are harmless together (it has to be proved again for each pair of them).
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path

from sqlalchemy import Connection

from strandline.catalog.verbs import FolderEffect, verb_named
from strandline.durable.update import Entry
from strandline.errors import StrandlineError
from strandline.metastore.store import row_queries as queries
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import (
    FolderRefused,
    Moved,
    Unsynced,
    delete_folder,
    same_place,
)
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.wire import decode

logger = logging.getLogger(__name__)

PURGED_SUFFIX = ".purged"
"""What the folder of a purged table is called while its files are being deleted."""
MOST_EFFECTS = 256
"""Effects that one SQL transaction carries out; others wait for the database meanwhile."""


@dataclass(frozen=True, slots=True)
class RefusedFolders:
    """Counts of what the system refused to this process.

    ``unmade`` folders of schemas and tables that are not there, ``stayed`` folders of tables that
    lie where they were before, ``unremoved`` folders of dropped schemas that are still there.
    """

    unmade: int = 0
    stayed: int = 0
    unremoved: int = 0


class Turn:
    """What one SQL transaction does with folders: effects that do not touch one another."""

    def __init__(self, connection: Connection, *, most: int = MOST_EFFECTS) -> None:
        self.places = Places(connection)
        self.unsynced = Unsynced()
        self._most = self._left = most
        self._touched: set[str] = set()
        self._above_touched: set[str] = set()
        self._moved: set[str] = set()
        self._above_moved: set[str] = set()
        self._real: dict[Path, str] = {}

    @property
    def untouched(self) -> bool:
        """Whether nothing was taken yet."""
        return self._left == self._most

    @property
    def full(self) -> bool:
        """Whether nothing more can be taken."""
        return self._left == 0

    def take(self, *, makes: Iterable[Path], moves: Iterable[Path]) -> bool:
        """Take an effect that makes and moves or removes these; False where it has to wait."""
        making, moving = self._names(makes), self._names(moves)
        if self.full or not self._free(making, moving):
            return False
        self._left -= 1
        self._touched |= making | moving
        self._above_touched |= _above(making | moving)
        self._moved |= moving
        self._above_moved |= _above(moving)
        return True

    def _free(self, making: set[str], moving: set[str]) -> bool:
        """Whether none was touched, and none that is moved lies above or below one that was."""
        return (
            self._touched.isdisjoint(making | moving)
            and self._touched.isdisjoint(_above(moving))
            and self._above_touched.isdisjoint(moving)
            and self._moved.isdisjoint(_above(making))
            and self._above_moved.isdisjoint(making)
        )

    def _names(self, paths: Iterable[Path]) -> set[str]:
        """The paths as they are written, and as they are without symbolic links above them."""
        found = set()
        for path in paths:
            real = self._real.get(path.parent)
            if real is None:
                real = self._real[path.parent] = os.path.realpath(path.parent)
            found |= {str(path), os.path.join(real, path.name)}
        return found


class Places:
    """Where managed tables lie, as one SQL transaction sees it and changes it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked = False
        self._known: dict[int, str] | None = None
        self._holders: dict[str, set[int]] = {}

    def of(self, table_id: int) -> str | None:
        """Where that table lies; None if it has no place."""
        return queries.location_of(self._connection, table_id)

    def put(self, table_id: int, location: str) -> None:
        """Say where that table lies."""
        queries.put_location(self._connection, table_id, location)
        if self._known is not None:
            self._hold(table_id, location)

    def forget(self, table_id: int) -> None:
        """Say that the table has no place any more."""
        queries.delete_location(self._connection, table_id)
        if self._known is not None:
            before = self._known.pop(table_id, None)
            if before is not None:
                self._holders[before].discard(table_id)

    def taken(self, location: str, *, by_other_than: int) -> bool:
        """Whether another table, be it a dropped one, lies there."""
        return not self.holders(location) <= {by_other_than}

    def holders(self, location: str) -> frozenset[int]:
        """The tables, dropped ones too, that lie there.

        The first question is put to the database, which costs little; at the second, all places
        are read, so that more cost nothing.
        """
        wanted = same_place(location)
        if not self._asked:
            self._asked = True
            near = queries.locations(self._connection, part=wanted.rpartition("/")[2])
            return frozenset(i for i, place in near if same_place(place) == wanted)
        if self._known is None:
            self._known = {}
            for table_id, place in queries.locations(self._connection):
                self._hold(table_id, place)
        return frozenset(self._holders.get(wanted, ()))

    def _hold(self, table_id: int, location: str) -> None:
        assert self._known is not None
        before, now = self._known.get(table_id), same_place(location)
        if before is not None:
            self._holders[before].discard(table_id)
        self._known[table_id] = now
        self._holders.setdefault(now, set()).add(table_id)


@dataclass(frozen=True, slots=True)
class _Task:
    """An entry whose effect is to be carried out in a turn."""

    turn: Turn
    entry: Entry
    version: int

    @property
    def table(self) -> TableDescriptor:
        """The table that it is about, as it is after it; as it was, if it is dropped."""
        for change in self.entry.changes:
            record = change.new or change.old
            if change.kind == "table" and record is not None:
                return decode(record, TableDescriptor)
        raise StrandlineError(
            f"a {self.entry.verb} holds no table; its catalog version cannot be projected"
        )

    @property
    def location(self) -> str | None:
        """The place that it names."""
        value = self.entry.arguments.get("location")
        return value if isinstance(value, str) and value else None


@dataclass(frozen=True, slots=True)
class _Work:
    """What an effect does, and the places of the folders that it makes, and moves or removes."""

    do: Callable[[], None]
    makes: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()


class FolderEffects:
    """The effects of entries on folders and places. Counts what was refused."""

    def __init__(self, warehouse: StoreFolders) -> None:
        self._warehouse = warehouse
        self._refused: Counter[str] = Counter()
        self._purged: deque[str] = deque()

    def refused(self) -> RefusedFolders:
        """What was refused so far."""
        return RefusedFolders(**self._refused)

    def carry_out(self, turn: Turn, entry: Entry, *, version: int) -> bool:
        """Do what ``entry`` asks for; False where it has to wait for the next turn.

        It may have been done before. Raises `Unavailable` for what is short.
        """
        if turn.full:
            return False
        effect = verb_named(entry.verb).folders
        work = None if effect is None else _PLANS[effect](self, _Task(turn, entry, version))
        if work is None:
            return True
        if not turn.take(makes=self._paths(work.makes), moves=self._paths(work.moves)):
            return False
        work.do()
        return True

    def _paths(self, locations: Iterable[str]) -> list[Path]:
        """The folders at these places, as far as they are in reach."""
        return [self._warehouse.path(one) for one in locations if self._warehouse.reaches(one)]

    # -- what each verb asks for

    def _schema_made(self, task: _Task) -> _Work | None:
        place = task.location
        return _Work(partial(self._make, task, place), makes=(place,)) if place else None

    def _schema_dropped(self, task: _Task) -> _Work | None:
        place = task.location
        if place is None or not self._warehouse.is_own_schema(place):
            return None
        return _Work(partial(self._remove, task, place), moves=(place,))

    def _table_made(self, task: _Task) -> _Work | None:
        """A new managed table: a place that no other table has."""
        table, asked = task.table, task.location
        if table.kind is not TableKind.MANAGED or asked is None:
            return None
        place, places = asked, task.turn.places
        replaced = task.entry.arguments.get("instead_of")
        # Where nothing is there no files can be shown, and nobody has to be asked.
        if not (self._warehouse.reaches(asked) and self._warehouse.missing(asked)):
            holders = places.holders(asked) - {table.id}
            if holders and holders == {replaced}:
                places.forget(next(iter(holders)))
            beside = f"{asked.rstrip('/')}~{table.id}"
            others = chain([asked, beside], (f"{beside}~{number}" for number in count(2)))
            place = next(one for one in others if not places.taken(one, by_other_than=table.id))
        return _Work(partial(self._make_table, task, table.id, place), makes=(asked, place))

    def _table_placed(self, task: _Task) -> _Work | None:
        """A renamed or restored table goes to where the entry says."""
        table, target = task.table, task.location
        if table.kind is not TableKind.MANAGED or target is None:
            return None
        return self._moving(task, table.id, task.turn.places.of(table.id), target, own=False)

    def _table_dropped(self, task: _Task) -> _Work | None:
        table = task.table
        if table.kind is not TableKind.MANAGED or task.entry.arguments.get("data") == "keep":
            return None
        place = task.turn.places.of(table.id)
        aside = self._warehouse.dropped_place(place or "", table.id)
        if task.entry.arguments.get("data") == "purge":
            own = place is not None and self._warehouse.is_own_table(place)
            if place is None or not own:
                return None
            do = partial(self._purge, task, table.id, place, aside)
            return _Work(do, moves=(place, f"{aside}{PURGED_SUFFIX}"))
        return self._moving(task, table.id, place, aside, own=True)

    def _moving(
        self, task: _Task, table_id: int, source: str | None, target: str, *, own: bool
    ) -> _Work | None:
        if source is None or source == target:
            return None
        if not self._warehouse.is_own_table(source):
            logger.info(
                "version %d leaves the files of table %d where they are, at %s: a user named that"
                " place",
                task.version,
                table_id,
                source,
            )
            return None
        do = partial(self._move, task, table_id, source, target, own=own)
        return _Work(do, moves=(source, target))

    # -- doing it

    def _make_table(self, task: _Task, table_id: int, place: str) -> None:
        self._make(task, place)
        task.turn.places.put(table_id, self._warehouse.shown(place))

    def _make(self, task: _Task, place: str) -> None:
        own = self._warehouse.is_own_table(place) or self._warehouse.is_own_schema(place)
        if not own and not self._warehouse.may_make(place):
            return
        try:
            if own:
                self._warehouse.verify(place)
            self._warehouse.make(place, unsynced=task.turn.unsynced)
        except FolderRefused as refused:
            self._refused["unmade"] += 1
            logger.warning(
                "version %d is carried out without the folder %s: %s. Make it, with permission for"
                " those who write there",
                task.version,
                place,
                refused.message,
            )

    def _move(self, task: _Task, table_id: int, source: str, target: str, *, own: bool) -> None:
        """Move the folder of a table; ``own`` says that nobody else can have ``target``."""
        places = task.turn.places
        try:
            self._warehouse.verify(source)
            self._warehouse.verify(target)
            if places.taken(source, by_other_than=table_id):
                raise FolderRefused(f"{source} is the place of another table too")
            if not own and places.taken(target, by_other_than=table_id):
                raise FolderRefused(f"{target} is the place of another table")
            moved = self._warehouse.move(source, target, unsynced=task.turn.unsynced)
        except FolderRefused as refused:
            self._refused["stayed"] += 1
            logger.warning(
                "version %d is carried out, but the folder of table %d stays at %s and is found"
                " there: %s. To move it, mend that, undo the version and make the change again",
                task.version,
                table_id,
                source,
                refused.message,
            )
            return
        if moved is Moved.MISSING:
            self._make(task, target)
        places.put(table_id, self._warehouse.shown(target))

    def _purge(self, task: _Task, table_id: int, place: str, aside: str) -> None:
        """Take the folder of a table away under a name of its own, and forget its place.

        Its files are deleted by `delete_purged`, when no lock is held.
        """
        try:
            self._warehouse.verify(place)
            self._warehouse.verify(aside)
            purged = f"{aside}{PURGED_SUFFIX}"
            self._warehouse.move(place, purged, unsynced=task.turn.unsynced)
        except FolderRefused as refused:
            self._refused["stayed"] += 1
            logger.warning(
                "version %d is carried out, but the folder %s that it purges stays: %s. No table"
                " names it any more; delete it",
                task.version,
                place,
                refused.message,
            )
        else:
            self._purged += [purged, f"{aside}.partitions"]
        task.turn.places.forget(table_id)

    def delete_purged(self) -> None:
        """Delete what purged tables had. What cannot be deleted is a leftover, and logged."""
        while self._purged:
            place = self._purged.popleft()
            try:
                delete_folder(self._warehouse.path(place))
            except OSError:
                logger.warning("the purged folder %s cannot be deleted", place, exc_info=True)

    def _remove(self, task: _Task, place: str) -> None:
        try:
            self._warehouse.verify(place)
            self._warehouse.remove_empty(place, unsynced=task.turn.unsynced)
        except FolderRefused as refused:
            self._refused["unremoved"] += 1
            logger.warning(
                "version %d is carried out, but the folder %s of its schema is still there: %s."
                " Nobody needs it; remove it when you can",
                task.version,
                place,
                refused.message,
            )


_PLANS: dict[FolderEffect, Callable[[FolderEffects, _Task], _Work | None]] = {
    FolderEffect.MAKE_SCHEMA: FolderEffects._schema_made,
    FolderEffect.REMOVE_SCHEMA: FolderEffects._schema_dropped,
    FolderEffect.MAKE_TABLE: FolderEffects._table_made,
    FolderEffect.MOVE_TABLE: FolderEffects._table_placed,
    FolderEffect.REMOVE_TABLE: FolderEffects._table_dropped,
}


def _above(names: Iterable[str]) -> set[str]:
    """The paths above these, but for the root, which is never moved."""
    found: set[str] = set()
    for name in names:
        while (name := name.rpartition("/")[0]) and name not in found:
            found.add(name)
    return found
