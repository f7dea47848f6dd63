"""A store for tests of the metastore's DML: a real database, a manual clock, a manual fence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection

from strandline.clock import HybridClock
from strandline.errors import Fenced
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.store import row_queries
from strandline.metastore.store.notifications import NewEvent, Notification, NotificationLog
from strandline.metastore.store.object_store import ObjectStore, SqlObjectStore
from strandline.metastore.store.rows import (
    DataFile,
    NewRow,
    Row,
    RowKind,
    TableParametersRow,
    new_file,
)
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.table_places import put_places
from strandline.metastore.store.transaction_order import TransactionEvents
from strandline.model.descriptors import Properties
from strandline.model.places import Place
from strandline.sql import open_database
from strandline.transactions import Transactions, ValidWriteIdList
from tests.servers.sqlite import sqlite_url
from tests.sql.statements import contents_of
from tests.transactions.catalogs import Catalogs, new_table

START_MS = 1_700_000_000_000
FLIGHTS, CANCELLATIONS, WEATHER = 1, 2, 3
TABLES = (FLIGHTS, CANCELLATIONS, WEATHER)

ONLY_PROOF = pytest.mark.parametrize("dml", ["sqlite"], indirect=True)
"""On SQLite an unchanged mark proves that nothing was committed, and threads are cheap."""

S = TypeVar("S", bound=SqlObjectStore)


def stage(store: SqlObjectStore, txn_id: int, table_id: int, **changes: Any) -> tuple[int, ...]:
    """`Staging.stage` in a staging of its own. ``changes`` are the arguments."""
    with store.staging(txn_id, table_id) as staging:
        return staging.stage(**changes)


def parameters(
    store: ObjectStore, table_id: int, *, write_ids: ValidWriteIdList | None
) -> Properties:
    """The parameters of a table that count or date its content; empty if none were set."""
    rows = store.rows(table_id, RowKind.TABLE_PARAMETERS, write_ids=write_ids)
    return rows[0].as_(TableParametersRow).parameters if rows else ()


def hits(cache: CachedStore) -> tuple[int, int]:
    """The hits and the misses of the cache so far."""
    statistics = cache.statistics()
    return statistics.hits, statistics.misses


class NoDdl:
    """The catalog of these tests has no log that could be projected."""

    def project_on(self, connection: Connection, version: int) -> None:
        pass


class Dml:
    """The parts that a node would hold. ``wall_ms`` is the wall clock, ``fenced`` the fence."""

    def __init__(self, address: Path | str) -> None:
        self.wall_ms = START_MS
        self.fenced = False
        self.folder = address.parent if isinstance(address, Path) else Path("/nowhere")
        self.address = address if isinstance(address, str) else sqlite_url(address)
        self.database = open_database(self.address)
        self.database.guard = self.guard
        self.clock = HybridClock(lambda: self.wall_ms)
        self.catalogs = Catalogs()
        names = ("flights", "cancellations", "weather")
        self.catalogs.publish(*(new_table(i, name) for i, name in zip(TABLES, names, strict=True)))
        self.log = NotificationLog(self.database, self.clock)
        self.transactions = Transactions(
            self.database,
            self.clock,
            catalogs=self.catalogs,
            listeners=[TransactionEvents(self.log, projector=NoDdl())],
            monotonic=lambda: self.wall_ms / 1000,
        )
        self.store = self.store_of(SqlObjectStore)

    def store_of(self, kind: type[S]) -> S:
        """An object store of that kind on the database."""
        return kind(
            self.database,
            self.transactions,
            self.log,
            folders=StoreFolders(self.folder),
            projector=NoDdl(),
        )

    def put_place(self, table_id: int, text: str) -> str:
        """Set the place of a table, as the projection does; return its URI."""
        with self.database.write() as connection:
            put_places(connection, {table_id: Place(text)})
            self.log.append(connection, [NewEvent(verb="rename_table", table_id=table_id)])
        return f"file://{self.folder}/warehouse/{text}"

    def guard(self, connection: Connection) -> None:
        if self.fenced:
            raise Fenced("a newer holder has opened the store; nothing was written")

    def cached(
        self,
        *,
        kind: type[CachedStore] = CachedStore,
        memory_bytes: int = 64 << 20,
        staleness: float = 0.0,
        zone_partitions: Callable[[int], frozenset[int] | None] = lambda table_id: None,
    ) -> CachedStore:
        """Return a cache in front of this store."""
        return kind(
            self.store,
            memory_bytes=memory_bytes,
            staleness=staleness,
            zone_partitions=zone_partitions,
        )

    def begin(self) -> int:
        return self.transactions.begin(user="ann").txn_id

    def append(self, *names: str, table_id: int = FLIGHTS) -> int:
        """Commit files with these names; return the id of the transaction."""
        txn_id = self.begin()
        stage(self.store, txn_id, table_id, add=[data_file(name) for name in names])
        self.transactions.commit(txn_id)
        return txn_id

    def rows_of_write(self, table_id: int, write_id: int) -> tuple[list[Row], list[int]]:
        """The rows of a write id, committed or not, and the ids of those that it removed."""
        with self.database.read() as connection:
            rows = row_queries.rows_of_write(connection, table_id, write_id)
            return rows, row_queries.removed_by_write(connection, table_id, write_id)

    def events(self, after: int = 0) -> list[Notification]:
        return self.log.read(after, limit=10_000)

    def verbs(self, after: int = 0) -> list[str]:
        return [event.verb for event in self.events(after)]

    def contents(self) -> dict[str, list[tuple[object, ...]]]:
        """Return every row of every table of the database."""
        return contents_of(self.database)


def data_file(name: str, *, rows: int = 1, bucket: int = -1) -> NewRow:
    """Return a data file at the path ``name``."""
    return new_file(DataFile(file_id=1, path=name, rows=rows, bytes=10), bucket=bucket)


def names(rows: Sequence[Row]) -> list[str]:
    return [row.name for row in rows]


def files(store: ObjectStore, table_id: int = FLIGHTS, **reader: object) -> list[str]:
    """Return the names of the data files that a reader sees; without ``write_ids``, at present."""
    write_ids = reader.get("write_ids")
    return names(store.rows(table_id, RowKind.DATA_FILE, write_ids=write_ids))  # type: ignore[arg-type]  # a list or nothing
