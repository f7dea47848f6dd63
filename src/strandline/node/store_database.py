"""The database of a store: opened only if it is complete and belongs to its folder.

A store is a folder: the database, the head file beside it (`strandline.sql.head_file`) and the
warehouse. Before a node reads a row, it makes sure that

* the database exists if other files of a store do: a lost database must not be replaced by an empty
  store;
* the database is sound: a small one is checked when it is opened, one above `CHECK_BYTES` later in
  the background;
* this program knows each part in it, and each part has all of its tables;
* it has everything that the head file says was committed.

If one of these fails, the node refuses the store with an error that says what was found, and
changes nothing.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from strandline.durable import stash_tables
from strandline.errors import (
    CorruptData,
    IncompatibleFormat,
    NotFound,
    StrandlineError,
    Unavailable,
)
from strandline.metastorage import sql_tables
from strandline.metastore.store import upgrades
from strandline.node import catalog_log, store_place
from strandline.node.address import DATABASE_FILE
from strandline.node.sequences import skip_ids
from strandline.node.store_place import HEAD_FILE, recorded_place, refuse_lost_database
from strandline.sql import Database, SqliteDatabase, open_sqlite, schema_versions, sqlite_file
from strandline.sql.head_file import HeadFile, Mark
from strandline.sql.sqlite_database import CHECK_BYTES
from strandline.transactions import tables as transaction_tables

logger = logging.getLogger(__name__)

PARTS = {
    part.name: part
    for part in (
        schema_versions.BASE,
        sql_tables.PART,
        transaction_tables.PART,
        stash_tables.PART,
        catalog_log.PART,
        store_place.PART,
        upgrades.PART,
    )
}
"""The parts that this program knows, by name."""
CATALOG_MARK = "catalog version"
MARKS = (
    Mark(
        CATALOG_MARK,
        "metastorage",
        "SELECT CAST(CAST(value AS TEXT) AS INTEGER) FROM metastorage"
        " WHERE key = 'catalog.version'",
    ),
    Mark(
        CATALOG_MARK,
        "metastorage",
        "SELECT CAST(CAST(value AS TEXT) AS INTEGER) FROM metastorage"
        " WHERE key = 'persist.version'",
    ),
    Mark(CATALOG_MARK, "stash", "SELECT upper - 1 FROM stash WHERE id = 1"),
    Mark("event", "notification_sequence", "SELECT event_id FROM notification_sequence"),
    Mark("transaction", "txn", "SELECT seq FROM sqlite_sequence WHERE name = 'txn'"),
)
"""If two marks have one name, the larger number counts: a store may have both tables."""


def head_of(folder: Path) -> HeadFile:
    return HeadFile(folder / HEAD_FILE, MARKS)


def open_store_database(
    folder: Path, *, mode: int = 0o600, read_only: bool = False, check: bool = True
) -> SqliteDatabase:
    """Open the database of the store in ``folder``, creating it with ``mode`` for a new store.

    Without ``check``, the database is not checked for damage.

    Raises `CorruptData` if the store is not complete, `IncompatibleFormat` if a newer release wrote
    it, `Unavailable` if its file cannot be created, and what `open_sqlite` raises.
    """

    def before_creation() -> None:
        refuse_lost_database(folder)
        # Created here, because SQLite gives its other files the permissions of this one.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            os.close(os.open(folder / DATABASE_FILE, flags, mode))
        except OSError as error:
            raise Unavailable(
                f"{folder / DATABASE_FILE} cannot be created: {error.strerror}; a store needs a "
                "folder that the user of this process may write to"
            ) from error

    database = open_sqlite(
        folder / DATABASE_FILE,
        check_bytes=CHECK_BYTES if check else 0,
        before_creation=before_creation,
        read_only=read_only,
    )
    try:
        refuse_foreign_parts(database)
        compare_head(folder, database)
    except BaseException:
        database.close()
        raise
    return database


def refuse_foreign_parts(database: Database) -> None:
    """Raise `IncompatibleFormat` if a newer release wrote a part of the database.

    Raises `CorruptData` if a table is missing, or if the version of a part is.
    """
    with database.read() as connection:
        versions = schema_versions.versions_of(connection)
        if not versions:
            return  # opened for reading, and there is no store yet
        _refuse_newer(versions, name=database.name)
        upgraded = (
            part for part in PARTS.values() if versions.get(part.name, part.version) == part.version
        )
        database.refuse_incomplete(connection, upgraded, versions)


def _refuse_newer(versions: Mapping[str, int], *, name: str) -> None:
    schema_versions.refuse_unknown_parts(versions, PARTS, name=name)
    for part in PARTS.values():
        # Raises for a newer version. An older one is upgraded later.
        schema_versions.is_current(versions.get(part.name), part, name=name)


def refuse_newer_parts(database: Database) -> None:
    """`refuse_foreign_parts`, for a database that may lack tables."""
    with database.read() as connection:
        _refuse_newer(schema_versions.versions_of(connection), name=database.name)


def older_parts(database: Database) -> Iterator[tuple[str, int, int]]:
    """Yield each part that an older release wrote, with its version and that of this program."""
    with database.read() as connection:
        versions = schema_versions.versions_of(connection)
    for part in PARTS.values():
        present = versions.get(part.name, part.version)
        if present < part.version:
            yield part.name, present, part.version


def refuse_older_parts(database: Database, *, todo: str) -> None:
    """Raise `IncompatibleFormat` if an older release wrote a part of the database."""
    for part, present, version in older_parts(database):
        raise IncompatibleFormat(
            f"{database.name} was written by an older release: its part {part!r} has "
            f"version {present}, but this program needs version {version}; {todo}"
        )


def compare_head(folder: Path, database: SqliteDatabase) -> None:
    """Raise `CorruptData` if the database lacks commits that the head file in ``folder`` names."""
    head = head_of(folder)
    head_marks = head.recorded_marks() or {}
    with database.read() as connection:
        marks = head.read_marks(sqlite_file.driver_of(connection))
    try:
        head.compare(head_marks, marks)
    except CorruptData as loss:
        recorded = recorded_place(database)
        if recorded is None or recorded.path == os.path.realpath(folder):
            raise
        raise CorruptData(
            f"the database in {folder} was last opened in {recorded.path}. If it is that of another"
            f" store, put the right one in its place; else: {loss.message}"
        ) from None


def keep_head(folder: Path, database: SqliteDatabase) -> None:
    """Write the marks of each commit to the head file from now on. All tables must exist."""
    head = head_of(folder)
    with database.read() as connection:
        marks = head.read_marks(sqlite_file.driver_of(connection))
    database.sync()  # a commit that is not synced yet may have moved the marks
    head.note(marks)  # brings a missing, damaged or late head file up to date
    database.keep_head(head)


def accept_loss(folder: Path, *, confirm: Callable[[dict[str, int], dict[str, int]], None]) -> None:
    """Reset the head file to the marks of the database.

    Use it if `open_store_database` refuses a database because it is older than the head file.
    ``confirm`` gets the marks of the head file and those of the database. It raises to stop this.
    Raises `NotFound` if there is no store, `CorruptData` if only its other files are there, and
    `Unavailable`.
    """

    def refuse() -> None:
        refuse_lost_database(folder)
        raise NotFound(f"there is no store in {folder}; name the folder of a store")

    head = head_of(folder)
    before = head.recorded_marks() or {}
    database = open_sqlite(folder / DATABASE_FILE, before_creation=refuse)
    try:
        with database.read() as connection:
            marks = head.read_marks(sqlite_file.driver_of(connection))
        if not any(marks.values()):
            refuse_lost_database(folder)  # it has tables and not a single version
        confirm(before, marks)
        if any(number > marks[name] for name, number in before.items()):
            with database.write() as connection:
                skip_ids(connection)
                marks = head.read_marks(sqlite_file.driver_of(connection))
        try:
            head.reset(marks)
        except OSError as error:
            raise Unavailable(
                f"{head.path} cannot be written: {error.strerror}; check the disk and the rights, "
                "and run the command again"
            ) from error
    finally:
        database.close()


def examine_in_background(database: SqliteDatabase) -> None:
    """Check in a thread a database that was too large to be checked when it was opened."""
    if not database.was_checked:
        threading.Thread(target=_examine, args=(database,), name="integrity", daemon=True).start()


def _examine(database: SqliteDatabase) -> None:
    """Log the damage of a database."""
    try:
        damage = database.find_damage()
    except (StrandlineError, sqlite3.Error) as error:
        logger.warning("reading all of %s failed: %s", database.path, error)
        return
    for line in damage:
        logger.error("%s is damaged: %s", database.path, line)
