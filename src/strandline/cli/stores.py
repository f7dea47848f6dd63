"""How the commands read a store and its history.

Reading changes nothing, so a catalog of an older release is refused until a node has migrated it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote

from sqlalchemy import inspect

from strandline.catalog import Catalog
from strandline.catalog.applier import DELAY, activated
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.history import History
from strandline.cli.options import Store
from strandline.clock import HybridClock, Timestamp, format_timestamp, milliseconds, parse_timestamp
from strandline.durable import UpdateLog, durable_state
from strandline.durable.state import ReadOnlyState, config_in
from strandline.errors import InvalidInput, NotFound, ObjectNotFound, VersionNotFound
from strandline.metastorage import open_metastorage
from strandline.metastore.store.data_history import DataCommit, data_commits
from strandline.model.identifiers import QualifiedName, version_number
from strandline.node import DATABASE_FILE
from strandline.node.address import StoreAddress, shown_address, store_address
from strandline.node.catalog_log import LogPlace, reading_catalog_log, remembered_log
from strandline.node.database_mark import DatabaseMark
from strandline.node.settings import load
from strandline.node.store_database import open_store_database, refuse_foreign_parts
from strandline.node.store_place import claim_place, recorded_place, refuse_lost_database
from strandline.node.warehouse_place import lost_catalog, refuse_copied
from strandline.sql import Database, SqliteDatabase, open_database, schema_versions
from strandline.transactions.tables import TXN


def ensure_store(folder: Path) -> Path:
    """Return the path of the database of the store in ``folder``.

    Raises `NotFound`, and `CorruptData` if the database of a store is lost.
    """
    file = folder / DATABASE_FILE
    if folder.is_file():
        raise NotFound(f"{folder} is a file; name the folder of a store, which holds {file.name}")
    if not file.exists():
        refuse_lost_database(folder)
        raise NotFound(
            f"there is no store in {folder}; `strandline serve {quote(str(folder))}` creates one"
        )
    return file.absolute()


def address_of(store: Store) -> StoreAddress:
    """Return the address of ``store``, as its settings complete it. Raises `InvalidInput`."""
    return store_address(store, load(store).settings)


@contextmanager
def database_at(address: StoreAddress, *, read_only: bool = True) -> Iterator[Database]:
    """Open the SQL database of an existing store, without upgrading it. Raises `NotFound`."""
    if not read_only:
        with database_at(address):  # opening it for writing would create tables in any database
            pass
    if address.folder is not None:
        folder = ensure_store(address.folder).parent
        opened: Database = open_store_database(folder, read_only=read_only)
    else:
        opened = open_database(address.objects, read_only=read_only)
    with closing(opened) as database:
        refuse_empty(database, address)
        refuse_foreign_parts(database)
        yield database


def refuse_empty(database: Database, address: StoreAddress) -> None:
    """Raise `NotFound` if ``database`` has no tables of a store."""
    with database.read() as connection:
        if schema_versions.version_of(connection, schema_versions.BASE) is None:
            raise _no_store(address)


@contextmanager
def log_at(
    address: StoreAddress, *, read_only: bool = True
) -> Iterator[tuple[UpdateLog, Database]]:
    """Open the log of a store's catalog, and the store's database. Raises `NotFound`."""
    with database_at(address, read_only=read_only) as database:
        place = LogPlace(database, address, HybridClock())
        if remembered_log(place) is None:
            raise _no_store(address)
        with reading_catalog_log(place) as log:
            if log.token() is None:
                is_claimed = address.folder is None and recorded_place(database) is not None
                raise lost_catalog(database) if is_claimed else _no_store(address)
            yield log, database


def refuse_moved(database: Database, address: StoreAddress) -> None:
    """Raise `StoreMoved` if ``database`` was moved or copied, like a node that opens the store."""
    if address.folder is not None and isinstance(database, SqliteDatabase):
        claim_place(database, address.folder)
    else:
        refuse_copied(database, address=address.name)


def _no_store(address: StoreAddress) -> NotFound:
    name = address.name if address.folder is not None else shown_address(address.objects)
    return NotFound(f"there is no store in {name} yet; `strandline serve` creates one")


@contextmanager
def reading(store: Store, *, latest_only: bool = True) -> Iterator[tuple[ReadOnlyState, Database]]:
    """Open the catalog of a store for reading, and its database, without joining it.

    ``latest_only`` is that of `ReadOnlyState`. Raises `NotFound`.
    """
    with log_at(address_of(store)) as (log, database):
        yield durable_state(log).open_read_only(latest_only=latest_only), database


def delay_of(state: ReadOnlyState) -> int:
    """Return the milliseconds from the commit of a version to its activation."""
    return int(config_in(state.recovered[-1].contents, DELAY) or 0)


def catalogs_of(state: ReadOnlyState) -> History:
    """Return the versions that ``state`` has read."""
    delay_ms = delay_of(state)
    return History(*(activated(applied, delay_ms=delay_ms) for applied in state.recovered))


def history_of(store: Store) -> History:
    """Return all retained versions of a store's catalog. Raises `NotFound`."""
    with reading(store, latest_only=False) as (state, _):
        return catalogs_of(state)


def latest_of(store: Store) -> Catalog:
    """Return the latest version of a store's catalog. Raises `NotFound`."""
    with reading(store) as (state, _):
        return catalogs_of(state).latest


@contextmanager
def data_of(
    history: History,
    database: Database,
    *,
    since: Timestamp,
    until: Timestamp,
    table_name: str | None,
) -> Iterator[Iterator[DataCommit]]:
    """Read the data commits of ``table_name`` or of all tables in the block, newest first.

    The table is looked up in every version of ``history``, so dropped tables are found too. Raises
    `ObjectNotFound`.
    """
    table_ids = None if table_name is None else _ids_of(history, table_name)
    with database.read() as connection:
        commits: Iterator[DataCommit] = iter(())
        if inspect(connection).has_table(TXN.name):
            commits = data_commits(
                connection, since=since, until=until, table_ids=table_ids, newest_first=True
            )
        yield commits


def _ids_of(history: History, name: str) -> set[int]:
    qualified = QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)
    table_ids = {
        table.id
        for version in range(history.earliest.version, history.latest.version + 1)
        for table in [history.at_version(version).table(qualified.schema, qualified.name)]
        if table is not None
    }
    if not table_ids:
        raise ObjectNotFound(
            f"no version from {history.earliest.version} to {history.latest.version} has a table "
            f"{name}; name it like schema.table"
        )
    return table_ids


def moment_named(text: str) -> Timestamp:
    """Parse ``text``, which is not a version, as a time. Raises `InvalidInput`."""
    try:
        return parse_timestamp(text)
    except InvalidInput:
        raise InvalidInput(
            f"{text[:80]!r} is neither a version nor a time; write a time like "
            "2026-11-20T10:00:00Z, between 1970 and the year 6429"
        ) from None


def catalog_named(history: History, text: str) -> Catalog:
    """Return the catalog at the version or time ``text``.

    Raises `InvalidInput`, `VersionNotFound`.
    """
    version = version_number(text)
    if version is not None:
        return history.at_version(version)
    at = moment_named(text)
    earliest, now = history.earliest, max(HybridClock().current(), history.latest.time)
    if milliseconds(at) > milliseconds(now):
        raise VersionNotFound(
            f"{text} is in the future: it is now {format_timestamp(now)}; name a time in the past"
        )
    if at < earliest.time:
        raise VersionNotFound(
            f"{text} is before the earliest version that is kept: {earliest.version}, active from "
            f"{format_timestamp(earliest.time)}; name a later time"
        )
    return history.at_time(at)


@contextmanager
def mark_of(address: StoreAddress, clock: HybridClock) -> Iterator[DatabaseMark]:
    """Open the mark of a store whose catalog is in etcd, which says how far its database was."""
    with closing(open_metastorage(address.catalog, clock)) as metastorage:
        yield DatabaseMark(metastorage, address.name)
