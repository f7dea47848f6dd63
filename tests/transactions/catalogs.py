"""Catalogs for tests of transactions, in memory; a test makes their versions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import Connection

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.errors import VersionNotFound
from strandline.sql import Query
from strandline.transactions import Behind, CatalogVersion


@dataclass(frozen=True)
class Column:
    id: int
    name: str
    type: str = "bigint"
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    id: int
    name: str
    columns: tuple[Column, ...] = (Column(1, "k"), Column(2, "v", "string"))
    kind: str = "managed"
    transactional: bool = True
    primary_key: tuple[int, ...] = ()
    partition_columns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Version:
    version: int
    tables: dict[int, Table]
    time: Timestamp = MIN_TIMESTAMP

    def table_by_id(self, table_id: int, /) -> Table | None:
        return self.tables.get(table_id)


@dataclass
class Catalogs:
    """Versions by number. ``publish`` adds one; `catch_up` applies the ``unapplied`` ones."""

    versions: list[Version] = field(default_factory=lambda: [Version(0, {})])
    unapplied: list[Version] = field(default_factory=list)
    syncs: int = 0
    on_sync: Callable[[], None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def publish(self, *tables: Table, applied: bool = True) -> None:
        with self.lock:
            number = len(self.versions) + len(self.unapplied)
            made = Version(number, {table.id: table for table in tables})
            (self.versions if applied else self.unapplied).append(made)

    @property
    def ahead(self) -> tuple[Query, ...]:
        return ()

    def catalog_at(self, connection: Connection, at: Timestamp, /) -> CatalogVersion:
        with self.lock:
            if self.unapplied:
                raise Behind(f"version {self.unapplied[-1].version} is not applied here")
            return self.versions[-1]

    def catch_up(self, *, timeout: float) -> None:
        self.syncs += 1
        if self.on_sync is not None:
            self.on_sync()
            return
        with self.lock:
            self.versions.extend(self.unapplied)
            self.unapplied.clear()

    def catalog(self, version: int, /) -> CatalogVersion:
        with self.lock:
            if version >= len(self.versions):
                raise VersionNotFound(f"there is no version {version}")
            return self.versions[version]
