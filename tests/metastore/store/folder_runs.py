"""Runs of the projection over generated entries, with a power cut at any point."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, delete

from strandline.catalog import Catalog
from strandline.clock import HybridClock, Timestamp
from strandline.durable.update import Change, Entry, Update
from strandline.fencing import FenceToken
from strandline.metastore.store import tables
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.table_places import all_places, put_places
from strandline.metastore.store.warehouse import Moved, Unsynced
from strandline.metastore.store.warehouse_head import WarehouseHead
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.places import Place
from strandline.sql import FenceRow, SqliteDatabase, open_sqlite
from strandline.wire import encode


class PowerCut(Exception):
    """Ends an attempt."""


class Interrupted(StoreFolders):
    """A warehouse whose machine fails after the n-th operation; ``done`` are the operations so far.

    An operation can be undone, as by a power cut before it was synced.
    """

    def __init__(self, folder: Path, after: int | None = None) -> None:
        super().__init__(folder)
        self._after = after
        self.done: list[tuple[Path | None, Path | None]] = []

    def _count(self, before: Path | None, after: Path | None) -> None:
        self.done.append((before, after))
        if len(self.done) == self._after:
            raise PowerCut

    def make(self, location: str | Place, *, unsynced: Unsynced | None = None) -> None:
        new = not self.path(location).exists()
        super().make(location, unsynced=unsynced)
        self._count(None, self.path(location) if new else None)

    def move(
        self, source: str | Place, target: str | Place, *, unsynced: Unsynced | None = None
    ) -> Moved:
        moved = super().move(source, target, unsynced=unsynced)
        did = moved is Moved.MOVED
        self._count(*((self.path(source), self.path(target)) if did else (None, None)))
        return moved

    def remove_empty(self, location: str | Place, *, unsynced: Unsynced | None = None) -> bool:
        there = self.path(location).exists()
        gone = super().remove_empty(location, unsynced=unsynced)
        self._count(self.path(location) if there and gone else None, None)
        return gone

    def lose(self, which: int) -> None:
        """Undo the operations whose bits are set, the last one first.

        A folder that still has contents cannot be lost.
        """
        for number, (before, after) in reversed(list(enumerate(self.done))):
            if not which >> number & 1:
                continue
            with suppress(OSError):
                if before and after:
                    after.rename(before)
                elif after:
                    after.rmdir()
                elif before:
                    before.mkdir()


@dataclass
class Script:
    """Entries as the catalog would write them; `updates` groups them into versions."""

    base: str
    entries: list[Entry] = field(default_factory=list)
    alive: dict[str, int] = field(default_factory=dict)
    dropped: list[tuple[str, int]] = field(default_factory=list)
    last: int = 10

    def place(self, name: str) -> str:
        return f"{self.base}/{name}"

    def table(self, verb: str, table_id: int, **arguments: str | bool) -> None:
        table = TableDescriptor(
            id=table_id,
            schema_id=1,
            name="t",
            owner="ann",
            kind=TableKind.MANAGED,
            transactional=True,
            provider="parquet",
            schema_versions=(),
            next_column_id=1,
            zone_id=1,
        )
        change = Change("table", table_id.to_bytes(8, "big"), None, encode(table))
        self.entries.append(Entry(verb, arguments, (change,)))

    def schema(self, verb: str, location: str) -> None:
        self.entries.append(Entry(verb, {"location": location}, ()))

    def create(self, name: str) -> bool:
        if name in self.alive:
            return False
        self.last += 1
        self.alive[name] = self.last
        self.table("create_table", self.last, location=self.place(name))
        return True

    def rename(self, old: str, new: str) -> bool:
        if old not in self.alive or new in self.alive:
            return False
        table_id = self.alive[new] = self.alive.pop(old)
        self.table("rename_table", table_id, location=self.place(new))
        return True

    def swap(self, first: str, other: str) -> bool:
        moves = ((first, "swap"), (other, first), ("swap", other))
        both = first in self.alive and other in self.alive
        return both and all(self.rename(*move) for move in moves)

    def drop(self, name: str) -> bool:
        if name not in self.alive:
            return False
        table_id = self.alive.pop(name)
        self.dropped.append((name, table_id))
        self.table("drop_table", table_id)
        return True

    def purge(self, name: str) -> bool:
        if name not in self.alive:
            return False
        self.table("drop_table", self.alive.pop(name), data="purge")
        return True

    def restore(self) -> bool:
        """Restore the table that was dropped last, if its name is free."""
        if not self.dropped or self.dropped[-1][0] in self.alive:
            return False
        name, table_id = self.dropped.pop()
        self.alive[name] = table_id
        self.table("restore_table", table_id, location=self.place(name))
        return True

    def replace_schema(self) -> bool:
        """Drop the schema, whose folder may be empty by now, and create it again."""
        if self.alive:
            return False
        self.schema("drop_schema", self.base)
        self.schema("create_schema", self.base)
        return True

    def updates(self, *, per_version: int) -> list[Update]:
        entries = iter(self.entries)
        history: list[Update] = []
        while chunk := tuple(itertools.islice(entries, per_version)):
            version = len(history) + 1
            history.append(
                Update(version, bytes(16), "ann", "m", chunk, time=Timestamp(version << 16))
            )
        return history


State = tuple[frozenset[str], dict[int, Place]]
"""The paths of all folders and files below the base, and the places of all tables."""


def no_catalog(version: int) -> Catalog:
    """Fail: the entries name their places themselves, like those of release 0.2.1."""
    raise AssertionError(f"version {version} is asked for")


class Store:
    """One database for many runs; each run begins with empty tables."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "warehouse"
        self.database: SqliteDatabase = open_sqlite(folder / "runs.db")
        self.log = NotificationLog(self.database, HybridClock())
        with self.database.write() as connection:
            FenceRow.initialize(connection, "", FenceToken(0, 1))

    def begin(self, script: Script, *, layout: str) -> None:
        """Set up a warehouse that has only the tables from before the script, with files."""
        shutil.rmtree(self.base, ignore_errors=True)
        (self.base / "s.db").mkdir(parents=True)
        for name in script.alive:
            (self.base / "s.db" / name).mkdir()
        self.set_back(script)
        with self.database.read() as connection:
            self.write_files(connection)
        LAYOUTS[layout](self.base / "s.db")

    def set_back(self, script: Script) -> None:
        """Make the database what it was before the script; the warehouse stays as it is."""
        with self.database.write() as connection:
            for table in (
                tables.TABLE_LOCATION,
                tables.NOTIFICATION_LOG,
                tables.NOTIFICATION_SEQUENCE,
            ):
                connection.execute(delete(table))
            for name, table_id in script.alive.items():
                put_places(connection, {table_id: Place(f"s.db/{name}")})

    def write_files(self, connection: Connection) -> None:
        """Put a file into each table, as writers do between the SQL transactions."""
        for table_id, place in all_places(connection).items():
            if (self.base / place.path).is_dir():
                (self.base / place.path / str(table_id)).touch()

    def attempt(
        self,
        updates: Sequence[Update],
        warehouse: StoreFolders,
        *,
        head: WarehouseHead | None = None,
        writes: bool = True,
    ) -> bool:
        """Project as much as one SQL transaction may; return whether everything is projected.

        Afterwards, with ``writes``, a file is put into each table.
        """
        projector = Projector(
            self.database,
            self.log,
            updates=lambda start, end: updates[start - 1 : end - 1],
            catalog=no_catalog,
            folders=warehouse,
            head=head,
        )
        with self.database.write() as connection:
            reached = projector._entries.advance(connection, len(updates))
        projector._folders.delete_purged()
        if writes:
            with self.database.read() as connection:
                self.write_files(connection)
        return reached.projected_version == len(updates)

    def state(self) -> State:
        paths = frozenset(str(path.relative_to(self.base)) for path in self.base.rglob("*"))
        with self.database.read() as connection:
            return paths, all_places(connection)

    def undisturbed(self, updates: Sequence[Update]) -> tuple[State, list[int]]:
        """Return the final state, and how many operations each SQL transaction had."""
        operations: list[int] = []
        for _ in range(1000):
            warehouse = Interrupted(self.base.parent)
            ready = self.attempt(updates, warehouse)
            operations.append(len(warehouse.done))
            if ready:
                return self.state(), operations
        raise AssertionError("it does not come to an end")

    def cut(
        self, updates: Sequence[Update], transaction: int, *, after: int, lost: int = 0
    ) -> State:
        """Return the final state after a power cut in a SQL transaction, after its n-th operation.

        The operations whose bits are set in ``lost`` are undone.
        """
        for number in range(1000):
            if number == transaction:
                warehouse = Interrupted(self.base.parent, after)
                try:
                    self.attempt(updates, warehouse)
                except PowerCut:
                    warehouse.lose(lost)
                else:
                    raise AssertionError("the power did not go")
            if self.attempt(updates, StoreFolders(self.base.parent)):
                return self.state()
        raise AssertionError("it does not come to an end")


def _no_aside(schema: Path) -> None:
    (schema / ".dropped").write_text("a file where dropped tables belong")


def _occupied(schema: Path) -> None:
    (schema / "b").mkdir(exist_ok=True)
    (schema / "b" / "foreign").touch()


LAYOUTS = {"plain": lambda _: None, "nothing can be dropped": _no_aside, "b is taken": _occupied}


def points(operations: Sequence[int], *, subsets: bool) -> Iterator[tuple[int, int, int]]:
    """Yield the points of a power cut: the transaction, after which operation, what is lost."""
    for transaction, most in enumerate(operations):
        for after in range(1, most + 1):
            for lost in range(1 << after) if subsets else (0,):
                yield transaction, after, lost
