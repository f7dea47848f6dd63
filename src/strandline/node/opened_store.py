"""`OpenedStore`: a store as a node uses it, whether it is in a folder or on servers.

A node needs a SQL database, a log of the catalog, a clock that is ahead of every time in the store,
the folders of the tables, and the health checks of the store. `open_store` provides all of these,
for a folder and for servers. The callers of `open_store` do not know which of the two it is.

====================  ======================================  ====================================
what                  in a folder                             on servers
====================  ======================================  ====================================
catalog               the folder's SQLite database            PostgreSQL, or etcd
all else              the same database                       PostgreSQL
warehouse             ``warehouse`` in the folder             the folder of that setting
same place as before  path and inode of the database          warehouse, identity of the database
lost end of the rows  the head file shows it                  etcd shows it, if it has the catalog
delay, clock skew     0 and 0: one machine                    200 ms and 100 ms, or as set
====================  ======================================  ====================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from strandline.clock import HybridClock, WallClock, system_wall_clock
from strandline.config import Settings
from strandline.errors import InvalidInput
from strandline.metastorage import open_metastorage
from strandline.metastore.store.store_folders import WAREHOUSE_FOLDER, StoreFolders
from strandline.metastore.store.table_places import has_places
from strandline.metastore.store.warehouse import make_synced_folders
from strandline.node.address import DATABASE_FILE, StoreAddress, store_address
from strandline.node.catalog_log import LogPlace, OpenedLog, open_catalog_log, refuse_unknown
from strandline.node.database_mark import DatabaseMark
from strandline.node.health import Check
from strandline.node.store_database import (
    examine_in_background,
    keep_head,
    open_store_database,
    refuse_foreign_parts,
)
from strandline.node.store_place import claim_place
from strandline.node.warehouse_place import MARKER, place_of_warehouse, refuse_copied, refuse_nested
from strandline.sql import Database, highest_time, open_database

SERVERS_DELAY_MS, SERVERS_SKEW_MS = 200, 100
SERVERS_STALENESS_MS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class OpenedStore:
    """See the module.

    ``warehouse`` is the URI of the warehouse. ``delay_ms`` and ``skew_ms`` apply if this process
    creates the catalog. ``staleness_ms`` is how old an answer about a plain table's rows may be if
    the settings do not say. The node calls ``claim`` with the environment id after it has joined
    the catalog and before it writes rows; it raises if the store is not at its place. The node
    calls ``watch`` once all tables exist. ``examine`` checks the database in the background, unless
    that was done when it was opened. ``checks`` returns the checks of `NodeHealth` for the store,
    by name. ``mark`` records in etcd how far the database is, or is None if etcd does not keep the
    catalog.
    """

    address: StoreAddress
    database: Database
    catalog_log: OpenedLog
    clock: HybridClock
    folders: StoreFolders
    warehouse: str
    delay_ms: int
    skew_ms: int
    staleness_ms: int
    claim: Callable[[str], None]
    watch: Callable[[], None]
    examine: Callable[[], None]
    checks: Callable[[str], Sequence[tuple[str, Check]]]
    mark: DatabaseMark | None
    _stack: ExitStack

    def give_up(self) -> None:
        """`Database.give_up` for the database and for etcd."""
        self.database.give_up()
        if self.catalog_log.metastorage is not None:
            self.catalog_log.metastorage.give_up()
        if self.mark is not None:
            self.mark.metastorage.give_up()

    def close(self) -> None:
        """Close everything that `open_store` opened. Idempotent."""
        self._stack.close()


def open_store(
    store: str | Path | StoreAddress,
    *,
    settings: Settings,
    wall: WallClock = system_wall_clock,
    check: bool = True,
) -> OpenedStore:
    """Open the store, creating an empty one if it does not exist.

    Without ``check``, the database is not checked, because another process has done so.

    Raises `InvalidInput`, `CorruptData`, `IncompatibleFormat`, `Unavailable`, `StoreMoved`,
    `UnsupportedOperation` and `WrongEnvironment`.
    """
    address = store_address(store, settings)
    refuse_unknown(settings.catalog_log, option="catalog_log")
    clock = HybridClock(wall, max_ahead_ms=settings.clock_ahead_limit_ms)
    with ExitStack() as stack:
        if address.folder is not None:
            opened_store = _open_folder(address, settings, clock, stack, check=check)
        else:
            opened_store = _open_servers(address, settings, clock, stack)
        opened_store._stack.push(stack.pop_all())
    return opened_store


def _open_folder(
    address: StoreAddress,
    settings: Settings,
    clock: HybridClock,
    stack: ExitStack,
    *,
    check: bool,
) -> OpenedStore:
    folder = address.folder
    assert folder is not None
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; name the folder of a store")
    if not (folder / DATABASE_FILE).exists():
        refuse_nested(folder)
    try:
        make_synced_folders(folder, mode=settings.folder_mode)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be created: {error.strerror}") from error
    database = open_store_database(folder, mode=settings.folder_mode & 0o666, check=check)
    stack.callback(database.close)
    names = claim_place(database, folder)  # before the log, since opening it may finish a move
    opened_log = _log_of(address, database, settings, clock, stack)
    return OpenedStore(
        address=address,
        database=database,
        catalog_log=opened_log,
        clock=clock,
        folders=StoreFolders(
            folder,
            has_tables=partial(has_places, database),
            roots=settings.location_roots,
            names=names,
            mode=settings.folder_mode,
        ),
        warehouse=_uri(folder / WAREHOUSE_FOLDER),
        delay_ms=settings.delay_ms or 0,
        skew_ms=settings.clock_skew_ms or 0,
        staleness_ms=0,
        claim=lambda environment: None,
        watch=lambda: keep_head(folder, database),
        examine=partial(examine_in_background, database),
        checks=lambda environment: (
            ("database in its place", database.check_place),
            ("database sound", database.check_damage),
        ),
        mark=None,
        _stack=ExitStack(),
    )


def _open_servers(
    address: StoreAddress, settings: Settings, clock: HybridClock, stack: ExitStack
) -> OpenedStore:
    if settings.delay_ms == 0 and not address.is_one_database:
        raise InvalidInput(
            "delay_ms is 0, but the catalog is in etcd: a transaction could never know which "
            "catalog it commits under; leave delay_ms out, or give it at least 100 ms"
        )
    mark, mark_time = None, None
    if not address.is_one_database:
        metastorage = open_metastorage(address.catalog, clock)
        stack.callback(metastorage.close)
        mark = DatabaseMark(metastorage, address.name)
        mark_time = mark.marked_time()
    database = open_database(address.objects)
    stack.callback(database.close)
    refuse_foreign_parts(database)
    refuse_copied(database, address=address.name)
    if mark is not None and mark_time:
        mark.compare(mark_time, database)
    opened_log = _log_of(address, database, settings, clock, stack)
    place = place_of_warehouse(database, settings.warehouse)
    place.refuse_foreign(is_new=lambda: opened_log.log.token() is None)
    if place.recorded is None:  # no node has claimed a warehouse yet
        place.make(mode=settings.folder_mode)  # before the catalog records its path
    return OpenedStore(
        address=address,
        database=database,
        catalog_log=opened_log,
        clock=clock,
        folders=StoreFolders(
            place.folder,
            warehouse=place.folder,
            marker=MARKER,
            roots=settings.location_roots,
            names=place.recorded.names if place.recorded else (),
            mode=settings.folder_mode,
        ),
        warehouse=_uri(place.folder),
        delay_ms=SERVERS_DELAY_MS if settings.delay_ms is None else settings.delay_ms,
        skew_ms=SERVERS_SKEW_MS if settings.clock_skew_ms is None else settings.clock_skew_ms,
        staleness_ms=SERVERS_STALENESS_MS,
        claim=lambda environment: place.claim(environment, mode=settings.folder_mode),
        watch=lambda: None,
        examine=lambda: None,
        checks=lambda environment: (("warehouse in its place", lambda: place.check(environment)),),
        mark=mark,
        _stack=ExitStack(),
    )


def _log_of(
    address: StoreAddress,
    database: Database,
    settings: Settings,
    clock: HybridClock,
    stack: ExitStack,
) -> OpenedLog:
    """Open the catalog's log, after moving the clock past every time in the database."""
    with database.read() as connection:
        clock.update(highest_time(connection))
    place = LogPlace(
        database,
        address,
        clock,
        blobs=settings.catalog_blobs,
        warehouse=settings.warehouse,
        folder_mode=settings.folder_mode,
    )
    return open_catalog_log(place, stack, wanted=settings.catalog_log)


def _uri(folder: Path) -> str:
    # As Hadoop writes it: the path after the scheme, with nothing escaped.
    return f"file://{folder}"
