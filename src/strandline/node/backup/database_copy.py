"""Copying the rows of a store from one SQL database to another.

The tables are those of `PARTS`, which are the same in every dialect. They are read in the order of
their primary keys, a part at a time, all in one snapshot. A part has at most `_ROWS` rows, and few
if they are large: a version of the catalog may have ten megabytes. So memory is bounded, and no
writer waits. A backup of a store on a server therefore contains a SQLite database, like that of a
folder. The sequences (ids of transactions, holds and locks) continue where they were, so no id is
assigned twice.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    LargeBinary,
    Select,
    Table,
    delete,
    func,
    insert,
    select,
    text,
    tuple_,
)

from strandline.errors import AlreadyExists, CorruptData
from strandline.metastorage import sql_tables
from strandline.node import sequences
from strandline.node.catalog_log import REMEMBERED
from strandline.node.store_database import PARTS, refuse_older_parts
from strandline.sql import (
    Database,
    FenceRow,
    SqliteDatabase,
    open_sqlite,
    schema_versions,
    sqlite_file,
)
from strandline.sql.schema_versions import CLOCK, SCHEMA

_ROWS, _BYTES = 256, 10 << 20
_IN_EMPTY_STORES = {SCHEMA.name, CLOCK.name, REMEMBERED.name, sql_tables.HEAD.name}
_SET_CLOCK = text(
    f"INSERT INTO {CLOCK.name} (id, time) VALUES (:id, :time)"
    " ON CONFLICT (id) DO UPDATE SET time = excluded.time"
)


def copy_database(store: Database, file: Path) -> None:
    """Copy a snapshot of the database of a store to ``file``, which is empty."""
    if isinstance(store, SqliteDatabase):
        try:
            with (
                closing(sqlite3.connect(f"{store.path.as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(file)) as copied,
            ):
                source.backup(copied)  # all pages in one step: one read transaction
        except sqlite3.Error as error:
            refused = sqlite_file.translate(error, file)
            if isinstance(refused, CorruptData):  # the copy is new, so the store is damaged
                refused = sqlite_file.translate(error, store.path)
            raise refused or error from error
        return
    refuse_older_parts(store, todo="start a node of this release on it before it is backed up")
    with closing(open_sqlite(file)) as copied_database:
        copy_rows(store, copied_database)


def copy_rows(source: Database, target: Database) -> None:
    """Copy the rows of ``source`` to ``target``, in one transaction on each database.

    Raises `AlreadyExists` if the target has a store, which another process may have just created.
    """
    with source.read() as connection:
        parts = schema_versions.versions_of(connection)
    for part in PARTS.values():
        if part.name in parts and part is not schema_versions.BASE:
            target.ensure_schema(part)
    tables = [t for part in sorted(parts) for t in PARTS[part].metadata.sorted_tables]
    with target.write() as into, source.read() as connection:
        _refuse_rows(into, name=target.name)
        for table in tables:
            target.allow_more_time(into)
            if table is CLOCK:
                # Other writers wait for a lock on its row, and would not wait for a new row.
                for row in connection.execute(select(CLOCK)).mappings():
                    into.execute(_SET_CLOCK, dict(row))
                continue
            into.execute(delete(table))
            _copy_table(table, source, connection, target, into)
        _copy_sequences(connection, into)


def _copy_table(
    table: Table, source: Database, connection: Connection, target: Database, into: Connection
) -> None:
    key = tuple_(*table.primary_key)
    names = [column.name for column in table.primary_key]
    query = page = select(table).order_by(*table.primary_key)
    while True:
        source.allow_more_time(connection)
        count = _rows_at_once(table, page, connection)
        rows = connection.execute(page.limit(count)).mappings().all()
        target.allow_more_time(into)
        if rows:
            into.execute(insert(table), [dict(row) for row in rows])
        if len(rows) < count:
            return
        last = tuple(rows[-1][name] for name in names)
        page = query.where(key > tuple_(*last))


def _rows_at_once(table: Table, page: Select[Any], connection: Connection) -> int:
    """How many rows of ``page`` to read at once: one more than fit into `_BYTES`."""
    sizes = [func.length(c) for c in table.columns if isinstance(c.type, LargeBinary)]
    if not sizes:
        return _ROWS
    total = 0
    read = connection.execute(page.with_only_columns(*sizes).limit(_ROWS))
    for count, row in enumerate(read.all(), start=1):
        total += sum(size or 0 for size in row)
        if total > _BYTES:
            return count
    return _ROWS


def _copy_sequences(connection: Connection, into: Connection) -> None:
    for table in sequences.sequences(connection):
        if last := sequences.last_id(connection, table):
            sequences.continue_after(into, table, last)


def refuse_used(database: Database) -> None:
    """Raise `AlreadyExists` unless the database is new or its tables hold no store.

    A killed restore leaves tables without a store. So does a node that is refused after it.
    """
    with database.read() as connection:
        _refuse_rows(connection, name=database.name)


def _refuse_rows(connection: Connection, *, name: str) -> None:
    # If the database has no part yet, `open_database` refuses the tables of other programs.
    parts = schema_versions.versions_of(connection)
    tables = [t for part in parts if part in PARTS for t in PARTS[part].metadata.sorted_tables]
    rows = [table for table in tables if table.name not in _IN_EMPTY_STORES]
    if parts.keys() - PARTS.keys() or any(
        connection.execute(select(table).limit(1)).first() for table in rows
    ):
        raise AlreadyExists(
            f"{name} is not empty: it contains a store, or remains of one; restore to a new "
            "database"
        )


def clear(database: Database, environment: str) -> None:
    """Remove all rows of the store ``environment``, whose restore failed, if it is there."""
    with database.read() as connection:
        parts = schema_versions.versions_of(connection)
    with database.write() as connection:
        fence = FenceRow.read(connection)
        if fence is None or fence.environment != environment:
            return
        for part in parts:
            for table in PARTS[part].metadata.sorted_tables:
                if table.name not in (SCHEMA.name, CLOCK.name):
                    database.allow_more_time(connection)
                    connection.execute(delete(table))
