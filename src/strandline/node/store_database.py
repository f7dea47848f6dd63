"""The database of a store: opened only where it is whole, and the one that belongs to its folder.

A store is a folder: the database, the head file beside it (`strandline.sql.head_file`) and the
warehouse. Before a node reads a row it makes sure that

* there is a database where there are files: one that was lost would be replaced by an empty store;
* the database is sound (read through at once up to a size, later in the background above it);
* each part in it is one that this program knows, with all of its tables;
* it has all that the head file says was committed.

Each of these is refused with a sentence about what was found, and nothing is changed.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from pathlib import Path

from strandline.durable import stash_tables
from strandline.errors import IncompatibleFormat, StrandlineError
from strandline.metastorage import sql_tables as metastorage_tables
from strandline.metastore.store import tables as metastore_tables
from strandline.node import catalog_log, place
from strandline.node.place import DATABASE_FILE, HEAD_FILE, refuse_lost_database
from strandline.sql import Database, SqliteDatabase, ground, open_sqlite, sqlite_file
from strandline.sql.head_file import HeadFile, Mark
from strandline.sql.sqlite_database import CHECK_BYTES
from strandline.transactions import tables as transaction_tables

logger = logging.getLogger(__name__)

PARTS = {
    ground.GROUND_PART: (ground.GROUND_VERSION, ground.GROUND),
    metastorage_tables.PART: (metastorage_tables.VERSION, metastorage_tables.METADATA),
    transaction_tables.PART: (transaction_tables.VERSION, transaction_tables.METADATA),
    stash_tables.PART: (stash_tables.VERSION, stash_tables.METADATA),
    catalog_log.PART: (catalog_log.VERSION, catalog_log.METADATA),
    place.PART: (place.VERSION, place.METADATA),
    metastore_tables.PART: (metastore_tables.VERSION, metastore_tables.METADATA),
}
"""The parts that this program knows: their version, and their tables."""
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
"""Of two marks with one name that which is further counts: a store may have both tables."""


def head_of(folder: Path) -> HeadFile:
    """The head file of the store in ``folder``."""
    return HeadFile(folder / HEAD_FILE, MARKS)


def open_store_database(
    folder: Path, *, mode: int = 0o600, read_only: bool = False, check: bool = True
) -> SqliteDatabase:
    """The database of the store in ``folder``, made with ``mode`` if there is no store yet.

    Without ``check`` it is not read through.

    Raises `CorruptData` for a store that is not whole, `IncompatibleFormat` for one of a newer
    release, and what `open_sqlite` raises.
    """

    def before_creation() -> None:
        refuse_lost_database(folder)
        # SQLite gives its other files the permissions of this one.
        os.close(os.open(folder / DATABASE_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode))

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
    """Raise `IncompatibleFormat` for a part of a newer release.

    Raises `CorruptData` for a table that is lost, and for a part whose version is.
    """
    with database.read() as connection:
        versions = ground.versions_of(connection)
        if not versions:
            return  # opened for reading before there is a store
        ground.refuse_unknown_parts(versions, PARTS, name=database.name)
        for part, (version, _) in PARTS.items():
            # A newer version is refused; an older one is upgraded later.
            ground.is_current(versions.get(part), part=part, version=version, name=database.name)
        upgraded = {
            part: (versions.get(part), metadata)
            for part, (version, metadata) in PARTS.items()
            if versions.get(part) in (version, None)
        }
        database.refuse_incomplete(connection, upgraded)


def refuse_older_parts(database: Database, *, todo: str) -> None:
    """Raise `IncompatibleFormat` where the tables are those of an older release."""
    with database.read() as connection:
        versions = ground.versions_of(connection)
        for part, (version, _) in PARTS.items():
            present = versions.get(part)
            if present is not None and present < version:
                raise IncompatibleFormat(
                    f"{database.name} was written by an older release: its part {part!r} has"
                    f" version {present}, this program knows version {version}; {todo}"
                )


def compare_head(folder: Path, database: SqliteDatabase) -> None:
    """Raise `CorruptData` where the head file in ``folder`` knows more than the database."""
    head = head_of(folder)
    said = head.says() or {}
    with database.read() as connection:
        head.compare(said, head.marks_of(sqlite_file.driver_of(connection)))


def keep_head(folder: Path, database: SqliteDatabase) -> None:
    """From now on say in the head file what is committed. All tables are there."""
    head = head_of(folder)
    with database.read() as connection:
        marks = head.read_marks(sqlite_file.driver_of(connection))
    database.sync()  # a commit that was not synced may have moved them
    head.note(marks)  # one that was missing, damaged or behind is level again
    database.keep_head(head)


def accept_loss(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Make the head file say what the database has; what it said before, and says now.

    The way out where `open_store_database` refuses a database that is older than the head file.
    """
    head = head_of(folder)
    before = head.says() or {}
    database = open_sqlite(
        folder / DATABASE_FILE, before_creation=lambda: refuse_lost_database(folder)
    )
    try:
        with database.read() as connection:
            marks = head.marks_of(sqlite_file.driver_of(connection))
        if not any(marks.values()):
            refuse_lost_database(folder)  # it has tables, and not one version
        head.reset(marks)
    finally:
        database.close()
    return before, marks


class BackgroundCheck:
    """Reads a database through that was too large to be read at its opening."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._thread = threading.Thread(target=self._run, name="integrity", daemon=True)

    def start(self) -> None:
        """Read it, in a thread of its own, unless it was read already."""
        if not self._database.was_checked:
            self._thread.start()

    def join(self) -> None:
        """Wait until it was read."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            damage = self._database.find_damage()
        except (StrandlineError, sqlite3.Error) as error:
            logger.warning("reading %s through failed: %s", self._database.path, error)
            return
        for line in damage:
            logger.error("%s is damaged: %s", self._database.path, line)
