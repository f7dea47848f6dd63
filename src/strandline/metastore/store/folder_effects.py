"""The effects of DDL on folders, and on the places of managed tables.

An effect makes, moves or removes one folder. It may be repeated
(`strandline.metastore.store.effect_batch`), so it recognizes that it was already done: a made
folder exists, a moved folder is at the new place and not at the old one, and a removed folder is
gone. If later effects may have been done too, the folders cannot show this: then the batch knows it
(`strandline.metastore.store.warehouse_head`), and an effect changes only places.

The place of a table is one fact per table id. It is not versioned, and only this module decides it.
An entry says what the user asked for: a table was made, renamed, dropped or restored. A new managed
table gets the place that its name gives, in the place of its schema. A renamed table follows its
name if it was at the place that its old name gave; otherwise it stays. A restored table is moved
back out of the folder of dropped tables. Entries of release 0.2.1 and older name the place
themselves.

A refused effect does not stop other statements. A folder that cannot be moved stays, and the table
keeps that place. A folder that cannot be created is skipped; the writer of the table creates it, or
is refused in turn. Each refusal is counted, and logged as a warning. A mere shortage (space,
descriptors, a failing disk) is an error, and is tried again.

Only an own place of the store is moved or removed (`strandline.metastore.store.store_folders`), and
it is verified just before. Folders elsewhere stay, even those of managed tables that older releases
put where a client said.

Two tables never get the same place, since each would show the files of the other. A place is taken
as long as any table has it, even a dropped table that could not be moved or whose files are kept. A
new table then gets a place beside it, with its id in the name; a table to be moved stays. Only a
client that wrote into the place of a dropped table before it created its own table (as Spark does)
takes that place over.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain

from strandline.catalog import Catalog
from strandline.catalog.verbs import FolderEffect, verb_named
from strandline.durable import CatalogTransaction
from strandline.durable.update import Entry, Update
from strandline.errors import StrandlineError
from strandline.metastore.store.effect_batch import MAX_EFFECTS, DefaultPlaces, EffectBatch
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import FolderRefused, Moved, delete_or_leave
from strandline.model.descriptors import SchemaDescriptor, TableDescriptor, TableKind
from strandline.model.places import Place, place_of_table
from strandline.wire import decode
from strandline.wire.registry import decode_up_to
from strandline.wire.stored import RECENT

logger = logging.getLogger(__name__)

PARTITIONS_SUFFIX = ".partitions"
"""Added to a table's `Place.aside`: the folder of the table's dropped partitions."""
PURGED_SUFFIX = ".purged"
"""Added to a table's `Place.aside`: the folder of a purged table until its files are deleted."""
TRUNCATED_SUFFIX = ".truncated"
"""The end of the name of a folder whose files a truncation deletes, or moves back if it fails.

The name is a table's `Place.aside`, a random number, the time of the move in milliseconds since
1970, and this.
"""


@dataclass(frozen=True, slots=True)
class _Table:
    """The first fields of a table's record."""

    id: int
    schema_id: int
    name: str
    kind: TableKind

    @classmethod
    @lru_cache(maxsize=2 * MAX_EFFECTS)  # `prefetch` and the effects of a batch read each twice
    def read(cls, record: bytes) -> _Table:
        table = RECENT.get(record)  # the decoded table, if this process just made or changed it
        if table is not None:
            return cls(table.id, table.schema_id, table.name, table.kind)
        head = decode_up_to(record, TableDescriptor, "kind")
        return cls(head["id"], head["schema_id"], head["name"], head["kind"])


def folder_effect(entry: Entry) -> FolderEffect | None:
    """The effect of ``entry``, or None if the store has no folder for it or the folder stays."""
    effect = verb_named(entry.verb).folders
    if effect is None or not effect.is_of_table:
        return effect
    records = (change.new or change.old for change in entry.changes if change.kind == "table")
    record = next(filter(None, records), None)
    if record is not None and _Table.read(record).kind is not TableKind.MANAGED:
        return None
    keeps = effect is FolderEffect.REMOVE_TABLE and entry.arguments.get("data") == "keep"
    return None if keeps else effect


@dataclass(frozen=True, slots=True)
class Task:
    """An entry of an update that a batch projects, with its `folder_effect`."""

    batch: EffectBatch
    update: Update
    entry: Entry
    effect: FolderEffect | None

    @property
    def is_done(self) -> bool:
        """Whether the folders show the effect, and perhaps later ones: they must not be touched."""
        return self.update.version <= self.batch.done_up_to

    @property
    def table_ids(self) -> set[int]:
        """The ids of the tables that the entry changes."""
        return {change.object_id for change in self.entry.changes if change.kind == "table"}

    def table(self) -> tuple[_Table | None, _Table]:
        """The table of the entry: before it (None if new), and after it or, if dropped, as last."""
        for change in self.entry.changes:
            if change.kind == "table":
                old = None if change.old is None else _Table.read(change.old)
                new = old if change.new is None else _Table.read(change.new)
                if new is not None:
                    return old, new
        raise StrandlineError(
            f"a {self.entry.verb} does not contain a table; its catalog version cannot be projected"
        )

    def argument(self, name: str) -> str | None:
        """The argument of that name, or None if it is empty or not a text."""
        value = self.entry.arguments.get(name)
        return value if isinstance(value, str) and value else None


@dataclass(frozen=True, slots=True)
class _Work:
    """What an effect does, the places it makes, and the places that it moves or removes."""

    do: Callable[[], None]
    makes: tuple[Place, ...] = ()
    moves: tuple[Place, ...] = ()


class FolderEffects:
    """Carries out the effects of entries on folders and places; ``refused`` counts those refused.

    ``catalog`` returns a version that this node has applied.
    """

    def __init__(self, folders: StoreFolders, *, catalog: Callable[[int], Catalog]) -> None:
        self._folders = folders
        self._schemas = _Schemas(catalog)
        self.refused = Counter[str]()
        self._purged: deque[Place] = deque()

    def places_of_new(
        self, transactions: Iterable[CatalogTransaction], catalogs: Iterable[Catalog]
    ) -> DefaultPlaces:
        """The places that the names of the first new tables in versions to be appended give.

        Safe for any thread, outside of the SQL transaction: it touches no state of `prefetch`.
        """
        places: DefaultPlaces = {}
        for transaction, catalog in zip(transactions, catalogs, strict=True):
            for entry in transaction.entries:
                if len(places) == MAX_EFFECTS:
                    return places
                makes_table = verb_named(entry.verb).folders is FolderEffect.MAKE_TABLE
                if not makes_table or folder_effect(entry) is None:
                    continue
                argument = entry.arguments.get("table")
                requested_name = argument if isinstance(argument, str) else None
                for change in entry.changes:
                    if change.kind == "table" and change.new is not None:
                        table = _Table.read(change.new)
                        schema = catalog.schema_by_id(table.schema_id)
                        place = self._place_by_name(schema, table, requested_name)
                        places[transaction.version, table.id] = place
                        break
        return places

    def prefetch(self, batch: EffectBatch, tasks: Sequence[Task]) -> None:
        """Read what the effects of the batch's tasks will need, in a few statements."""
        table_ids: list[int] = []
        new_places: list[Place] = []
        for task in tasks:
            if task.effect is FolderEffect.MAKE_TABLE:
                new_places += self._prefetch_made(task)
            elif task.effect is not None:
                table_ids += task.table_ids
        batch.places.prefetch(table_ids)
        batch.places.prefetch_at(chain(new_places, self._places_to_restore(tasks)))

    def _prefetch_made(self, task: Task) -> list[Place]:
        """The place that the name of a new table gives, if any."""
        _, table = task.table()
        task.batch.places.note_new(table.id)
        key = task.update.version, table.id
        if key not in task.batch.default_places:
            place = self._named(task) or self._default_place(task, table, argument="table")
            task.batch.default_places[key] = place
        place = task.batch.default_places[key]
        return [] if place is None else [place]

    def _places_to_restore(self, tasks: Iterable[Task]) -> Iterator[Place]:
        """The places that restored tables would go back to."""
        for task in tasks:
            for change in task.entry.changes if task.effect is FolderEffect.MOVE_TABLE else ():
                if change.kind == "table" and change.old is None and change.new is not None:
                    table = _Table.read(change.new)
                    place = task.batch.places.of(table.id)
                    if place is not None:
                        yield place.back(table.id, table.name)

    def carry_out(self, task: Task) -> bool:
        """Carry out the effect of a task, if any; return False if it must wait for the next batch.

        It may have been done before. Raises `Unavailable` for a shortage, and in the batch of an
        append also for a refusal.
        """
        if not task.batch.effects_left:
            return False
        work = None if task.effect is None else _PLANS[task.effect](self, task)
        if work is None:
            return True
        if not task.batch.add(self._paths(work.makes), self._paths(work.moves)):
            return False
        work.do()
        return True

    def _paths(self, places: Iterable[Place]) -> Iterator[str]:
        """The paths of these places, without those out of reach."""
        paths = map(self._folders.path_if_local, places)
        return (path for path in paths if path is not None)

    # -- the effect of each verb

    def _schema_made(self, task: Task) -> _Work | None:
        place = self._named(task)
        return None if place is None else _Work(partial(self._make, task, place), makes=(place,))

    def _schema_dropped(self, task: Task) -> _Work | None:
        place = self._named(task)
        if place is None or not place.is_of_schema:
            return None
        return _Work(partial(self._remove, task, place), moves=(place,))

    def _table_made(self, task: Task) -> _Work | None:
        """A new managed table gets a place that no other table has."""
        _, table = task.table()
        requested_place = task.batch.default_places[task.update.version, table.id]
        if requested_place is None:
            return None
        places, replaced = task.batch.places, task.entry.arguments.get("instead_of")
        holders = places.holders(requested_place) - {table.id}
        if holders and holders == {replaced}:
            places.put(next(iter(holders)), None)
        choices = chain([requested_place], requested_place.beside(table.id))
        place = next(
            choice for choice in choices if not places.taken(choice, by_other_than=table.id)
        )
        return _Work(
            partial(self._make_table, task, table.id, place), makes=(requested_place, place)
        )

    def _table_moved(self, task: Task) -> _Work | None:
        """A renamed table follows its name if it was at the place that its old name gave.

        A restored table leaves the folder of dropped tables for the place of its name.
        """
        old, new = task.table()
        place = task.batch.places.of(new.id)
        if place is None:
            return None
        target = self._named(task)
        if target is None and old is None:
            target = place.back(new.id, new.name)
        elif target is None and old is not None:
            before = self._default_place(task, old, argument="table")
            if place == before:
                target = self._default_place(task, new, argument="to")
        return self._moving(task, new.id, place, target, own=False)

    def _table_dropped(self, task: Task) -> _Work | None:
        _, table = task.table()
        place = task.batch.places.of(table.id)
        if place is None:
            return None
        aside = place.aside(table.id)
        if task.argument("data") == "purge":
            if not place.is_of_table:
                return None
            do = partial(self._purge, task, table.id, place, aside)
            return _Work(do, moves=(place, _purged(aside)))
        return self._moving(task, table.id, place, aside, own=True)

    def _default_place(self, task: Task, table: _Table, *, argument: str) -> Place | None:
        """The place of a table unless another table has it; None if its schema is not found.

        The ``argument`` of the entry is the qualified name, and so gives the name that the schema
        had then.
        """
        schema = self._schemas.schema(task, table.schema_id)
        return self._place_by_name(schema, table, task.argument(argument))

    def _place_by_name(
        self, schema: SchemaDescriptor | None, table: _Table, requested_name: str | None
    ) -> Place | None:
        if schema is None or requested_name is None:
            return None
        schema_name = requested_name[: -len(table.name) - 1]
        place = self._folders.place_of_schema(schema)
        return place_of_table(place, table.name, schema_name=schema_name)

    def _named(self, task: Task) -> Place | None:
        """The place that an entry names: that of a schema, or of a table up to release 0.2.1."""
        location = task.argument("location")
        return None if location is None else self._folders.place(location)

    def _moving(
        self, task: Task, table_id: int, source: Place | None, target: Place | None, *, own: bool
    ) -> _Work | None:
        if source is None or target is None or source == target:
            return None
        if not source.is_of_table:
            logger.info(
                "version %d leaves the files of table %d where they are, at %s, because a user "
                "chose that location",
                task.update.version,
                table_id,
                self._folders.location(source),
            )
            return None
        do = partial(self._move, task, table_id, source, target, own=own)
        return _Work(do, moves=(source, target))

    # -- carrying it out

    def _make_table(self, task: Task, table_id: int, place: Place) -> None:
        self._make(task, place)
        task.batch.places.put(table_id, place)

    def _make(self, task: Task, place: Place) -> None:
        own = place.is_of_table or place.is_of_schema
        if task.is_done or (not own and not self._folders.may_make(place)):
            return
        outcome = " without the folder {}: {}. Create it, with permission for its writers"
        with self._or_refused("unmade", task, place, outcome):
            if own:
                self._folders.verify(place)
            self._folders.make(place, unsynced=task.batch.unsynced)

    def _move(self, task: Task, table_id: int, source: Place, target: Place, *, own: bool) -> None:
        """Move the folder of a table; ``own``: no other table can have ``target``."""
        places = task.batch.places
        outcome = (
            f", but the folder of table {table_id} stays at {{}} and the table keeps using it: "
            "{}. To move it, fix that, undo the version and make the change again"
        )
        with self._or_refused("stayed", task, source, outcome):
            self._folders.verify(source, target, free_of_links=task.batch.free_of_links)
            self._refuse_shared(task, table_id, (source,) if own else (source, target))
            if not task.is_done:
                moved = self._folders.move(source, target, unsynced=task.batch.unsynced)
                if moved is Moved.MISSING:
                    self._make(task, target)
            places.put(table_id, target)

    def _refuse_shared(self, task: Task, table_id: int, places: Iterable[Place]) -> None:
        """Raise `FolderRefused` if another table has one of ``places``, as in older releases."""
        for place in places:
            if task.batch.places.taken(place, by_other_than=table_id):
                raise FolderRefused(
                    f"{self._folders.location(place)} is also the folder of another table"
                )

    def _purge(self, task: Task, table_id: int, place: Place, aside: Place) -> None:
        """Move the folder of a table to a name that no table has, and forget its place.

        `delete_purged` deletes its files later, when no lock is held.
        """
        outcome = (
            ", but the folder {} that it purges stays: {}. Delete it if no other table is there"
        )
        with self._or_refused("stayed", task, place, outcome):
            self._folders.verify(place, aside)
            self._refuse_shared(task, table_id, (place,))
            if not task.is_done:
                purged = _purged(aside)
                self._folders.move(place, purged, unsynced=task.batch.unsynced)
                self._purged += [purged, Place(f"{aside.text}{PARTITIONS_SUFFIX}")]
        task.batch.places.put(table_id, None)

    def _remove(self, task: Task, place: Place) -> None:
        if task.is_done:
            return
        outcome = (
            ", but the folder {} of its schema is still there: {}. It is not needed; remove it"
            " when you can"
        )
        with self._or_refused("unremoved", task, place, outcome):
            self._folders.verify(place)
            self._folders.remove_empty(place, unsynced=task.batch.unsynced)

    @contextmanager
    def _or_refused(self, how: str, task: Task, place: Place, outcome: str) -> Iterator[None]:
        """Count and log a refusal. ``outcome`` is formatted with the folder and the reason."""
        try:
            yield
        except FolderRefused as refused:
            if task.batch.appends:
                raise  # the append may still fail; the version is projected after it
            self.refused[how] += 1
            outcome = outcome.format(self._folders.location(place), refused.message)
            logger.warning("version %d is carried out%s", task.update.version, outcome)

    def delete_purged(self) -> None:
        """Delete the folders of purged tables. One that cannot be deleted is logged and left."""
        while self._purged:
            with suppress(IndexError):  # another thread was faster
                delete_or_leave(self._folders.path(self._purged.popleft()))


class _Schemas:
    """The schemas of tables, as of the update that is being projected."""

    def __init__(self, catalog: Callable[[int], Catalog]) -> None:
        self._catalog = catalog
        self._update: Update | None = None
        self._by_id: dict[int, SchemaDescriptor | None] = {}

    def schema(self, task: Task, schema_id: int) -> SchemaDescriptor | None:
        """The schema with that id, even if the update drops it; its name may be a later one."""
        update = task.update
        if update is not self._update:
            self._update = update
            records = (
                change.new or change.old for change in update.changes() if change.kind == "schema"
            )
            changed = (decode(record, SchemaDescriptor) for record in records if record)
            self._by_id = {schema.id: schema for schema in changed}
        if schema_id not in self._by_id:
            catalog = task.batch.catalogs.get(update.version) or self._catalog(update.version)
            self._by_id[schema_id] = catalog.schema_by_id(schema_id)
        return self._by_id[schema_id]


_PLANS: dict[FolderEffect, Callable[[FolderEffects, Task], _Work | None]] = {
    FolderEffect.MAKE_SCHEMA: FolderEffects._schema_made,
    FolderEffect.REMOVE_SCHEMA: FolderEffects._schema_dropped,
    FolderEffect.MAKE_TABLE: FolderEffects._table_made,
    FolderEffect.MOVE_TABLE: FolderEffects._table_moved,
    FolderEffect.REMOVE_TABLE: FolderEffects._table_dropped,
}


def _purged(aside: Place) -> Place:
    return Place(f"{aside.text}{PURGED_SUFFIX}")
