"""Catalogs for tests of transactions, in memory; a test makes their versions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from strandline.catalog import Catalog
from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.durable.collections import id_key
from strandline.durable.contents import EMPTY
from strandline.durable.update import Change
from strandline.errors import VersionNotFound
from strandline.model.descriptors import (
    ColumnDescriptor,
    SchemaDescriptor,
    SchemaVersion,
    TableDescriptor,
    TableKind,
)
from strandline.model.type_parser import parse_type
from strandline.sql import Query
from strandline.transactions import Behind
from strandline.wire import encode

SCHEMA_ID = 900


def new_column(
    column_id: int, name: str, text: str = "bigint", *, nullable: bool = True
) -> ColumnDescriptor:
    return ColumnDescriptor(column_id, name, parse_type(text), nullable)


COLUMNS = (new_column(1, "k"), new_column(2, "v", "string"))


def new_table(
    table_id: int, name: str, columns: tuple[ColumnDescriptor, ...] = COLUMNS, **values: Any
) -> TableDescriptor:
    """A transactional table, with these values of other fields."""
    fields = {"kind": TableKind.MANAGED, "transactional": True, **values}
    versions = (SchemaVersion(1, columns),)
    return TableDescriptor(
        table_id,
        SCHEMA_ID,
        name,
        "ann",
        provider="strandline",
        schema_versions=versions,
        next_column_id=9,
        zone_id=0,
        **fields,
    )


def new_catalog(number: int, *tables: TableDescriptor, time: Timestamp = MIN_TIMESTAMP) -> Catalog:
    """The catalog of version ``number``, with these tables in the schema ``db``."""
    schema = SchemaDescriptor(SCHEMA_ID, 0, "db", "ann")
    changes = [
        Change("schema", id_key(SCHEMA_ID), None, encode(schema)),
        *(Change("table", id_key(table.id), None, encode(table)) for table in tables),
    ]
    return Catalog(number, time, EMPTY.apply(changes))


@dataclass
class Catalogs:
    """Versions by number. ``publish`` adds one; `catch_up` applies the ``unapplied`` ones."""

    versions: list[Catalog] = field(default_factory=lambda: [new_catalog(0)])
    unapplied: list[Catalog] = field(default_factory=list)
    syncs: int = 0
    on_sync: Callable[[], None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def publish(self, *tables: TableDescriptor, applied: bool = True) -> None:
        with self.lock:
            number = len(self.versions) + len(self.unapplied)
            made = new_catalog(number, *tables)
            (self.versions if applied else self.unapplied).append(made)

    @property
    def first_queries(self) -> tuple[Query, ...]:
        return ()

    def catalog_at(self, connection: Connection, at: Timestamp, /) -> Catalog:
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

    def catalog(self, version: int, /) -> Catalog:
        with self.lock:
            if version >= len(self.versions):
                raise VersionNotFound(f"there is no version {version}")
            return self.versions[version]
