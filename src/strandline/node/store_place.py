"""Where a store is: how a moved or copied folder is recognized, and how a node reacts.

The problem: two folders with one environment id look like one store. Their fences, holds and caches
get mixed, and the places that a copied folder has recorded lead to the original.

So a store records in its database the **real path** of its folder (without symbolic links) and the
**inode number** of its database file. If one of them has changed, no node opens the store for
writing:

* another path: the folder was moved or copied, or the same folder is mounted elsewhere;
* another inode: the database was restored, or another folder replaced this one.

Only `strandline.node.relocation` changes the record. Its caller says whether the folder was moved
or copied, because a process cannot tell: a user who copies a folder and removes the original has
moved it. A copy gets its own environment id.

The device number is not recorded: on many file systems it changes when the machine restarts. A
clone of a whole disk or machine has the same path and inode as the original, so it is not
recognized as a copy; relocate it by hand. A database that was removed first and then restored may
get the inode of the removed one, and is then not recognized: it replaced that one, so there is
nothing to relocate. If the same folder is refused because it is mounted at another path (in a
container), one command accepts it.

``names`` are all absolute paths that this folder had. If older versions of the catalog record a
place below one of them, that place is inside the folder; see
`strandline.metastore.store.store_folders`.

The catalog of a store of release 0.2.0 or older shows where the store was made: the location of its
schema ``default`` is the warehouse.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table

from strandline.catalog import Catalog
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, ReadOnlyState, durable_state
from strandline.errors import CorruptData, StoreMoved
from strandline.metastorage import SqlMetastorage
from strandline.metastorage.sql_tables import PART as METASTORAGE_PART
from strandline.metastore.store.store_folders import WAREHOUSE_FOLDER
from strandline.node.address import DATABASE_FILE
from strandline.sql import Database, SqliteDatabase, change, first_row, schema_versions
from strandline.sql.schema_versions import Part, whole_row

HEAD_FILE = "strandline.head"
UNFINISHED_FILE = f"{DATABASE_FILE}.unfinished"
"""The name of the database until a restore ends."""
METADATA = MetaData()
PART = Part("place", 1, METADATA)
PLACE = Table(
    "strandline_place",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("path", String, nullable=False),
    Column("inode", BigInteger, nullable=False),
    Column("names", String, nullable=False),
)
whole_row(PLACE)
_ROW = 1


@dataclass(frozen=True, slots=True)
class RecordedPlace:
    """The place where a store is or was; see the module.

    For a store on servers, ``path`` is that of the warehouse, and ``inode`` is the
    `Database.identity`, or 0 if it is not known yet.
    """

    path: str
    inode: int
    names: tuple[str, ...]


def claim_place(database: SqliteDatabase, folder: Path) -> tuple[str, ...]:
    """Check that ``folder`` is the place of the store, and return all names of the folder.

    ``folder`` is absolute. The first opener records the place. Raises `StoreMoved`, and then
    changes nothing, if the store was recorded at another place.
    """
    recorded, present = recorded_place(database), current_place(folder)
    original_folder = None
    if recorded is None:
        original_folder = made_at(database)
        if original_folder is not None and os.path.realpath(original_folder) != present.path:
            raise _moved(folder, original_folder)
    elif recorded.path != present.path:
        raise _moved(folder, recorded.path)
    elif recorded.inode != present.inode:
        raise StoreMoved(
            f"the database in {folder} is not the one that was here before: it was restored, or "
            f"copied to this place. If it replaces that one, run `{_relocate(folder)}`; if both "
            f"stay in use, run `{_relocate(folder)} --copy`"
        )
    names = united(
        recorded.names if recorded else (),
        [original_folder] if original_folder else (),
        present.names,
    )
    if recorded is None or names != recorded.names:
        with database.write() as connection:
            put(connection, RecordedPlace(present.path, present.inode, names))
    return names


def refuse_lost_database(folder: Path) -> None:
    """Raise `CorruptData` if ``folder`` has other files of a store, so there was a database."""
    names = WAREHOUSE_FOLDER, HEAD_FILE, UNFINISHED_FILE
    remains = [name for name in names if _has_content(folder / name)]
    if remains:
        raise CorruptData(
            f"{folder} has {' and '.join(remains)}, but no database: {DATABASE_FILE} is missing "
            "or empty. Restore it from a backup of the whole folder; for a new store, name "
            "another folder"
        )


def _has_content(path: Path) -> bool:
    if path.is_dir():
        return next(path.iterdir(), None) is not None
    return path.is_file() and path.stat().st_size > 0


def made_at(database: SqliteDatabase) -> str | None:
    """Return the folder in which an older release made the store, or None without a catalog."""
    with database.read() as connection:
        if schema_versions.version_of(connection, METASTORAGE_PART) is None:
            return None
    log = MetastorageLog(SqlMetastorage(database, HybridClock()))
    if not durable_state(log).is_initialized():
        return None
    latest = ReadOnlyState(log, latest_only=True).recovered[-1]
    schema = Catalog(latest.version, latest.time, latest.contents).schema(DEFAULT_SCHEMA)
    location = "" if schema is None else schema.location
    warehouse = Path("/" + location.removeprefix("file:").lstrip("/"))
    if not location or warehouse.name != WAREHOUSE_FOLDER:
        raise CorruptData(
            f"{database.name} does not say where its store was made; restore it from a backup"
        )
    return str(warehouse.parent)


def current_place(folder: Path) -> RecordedPlace:
    """Return the place of the store in ``folder`` as it is now."""
    path = os.path.realpath(folder)
    inode = os.stat(folder / DATABASE_FILE).st_ino
    return RecordedPlace(path, inode, united([str(folder), path]))


def united(*groups: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return the names in all groups, each once."""
    return tuple(dict.fromkeys(name for group in groups for name in group))


def _moved(folder: Path, old: str) -> StoreMoved:
    real = os.path.realpath(folder)
    link = "" if real == str(folder) else f", which leads to {real},"
    return StoreMoved(
        f"the store in {folder}{link} was made or last opened in {old}. If the folder was moved, or"
        f" is mounted here from now on, run `{_relocate(folder)}`; if it is a copy, run"
        f" `{_relocate(folder)} --copy`"
    )


def _relocate(folder: Path) -> str:
    return f"strandline relocate {quote(str(folder))}"


def recorded_place(database: Database) -> RecordedPlace | None:
    """Return the recorded place of the store in ``database``, or None before it has one."""
    database.ensure_schema(PART)
    with database.read() as connection:
        if schema_versions.version_of(connection, PART) is None:
            return None  # opened for reading, and there is no table
        return read(connection)


def read(connection: Connection) -> RecordedPlace | None:
    """Return the recorded place of the store, or None if none is recorded."""
    row = first_row(connection, f"SELECT path, inode, names FROM {PLACE.name} WHERE id = {_ROW}")
    if row is None:
        return None
    path, inode, names_text = row
    try:
        names = tuple(str(name) for name in json.loads(names_text))
    except (ValueError, TypeError) as error:
        raise CorruptData(
            f"the names of the store's folder are damaged: {error}; restore the store from a backup"
        ) from error
    return RecordedPlace(path, inode, names)


def put(connection: Connection, place: RecordedPlace) -> None:
    """Record the place of the store."""
    change(connection, f"DELETE FROM {PLACE.name}")
    names = json.dumps(list(place.names))
    change(
        connection,
        f"INSERT INTO {PLACE.name} (id, path, inode, names) VALUES ({_ROW}, ?, ?, ?)",
        (place.path, place.inode, names),
    )
