"""`Node`: one process's view of a store, wired from the layers below.

A node that serves clients and a driver that embeds the store in its own process are the same thing;
serving only adds listeners (`strandline.node.server`). Several nodes may have one folder open.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path

from sqlalchemy import Connection

from strandline.catalog import CatalogManager
from strandline.catalog.applier import Announce
from strandline.catalog.system_views.synchronization import synchronize_system_views
from strandline.clock import WallClock, milliseconds, system_wall_clock
from strandline.config import Settings
from strandline.durable import DurableCatalogState, Superseded
from strandline.errors import (
    Fenced,
    InvalidInput,
    StoreMoved,
    StrandlineError,
    UnsupportedOperation,
)
from strandline.fencing import FenceToken
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.state_file import StateFile
from strandline.metastore.metastore import Metastore
from strandline.metastore.session import LocalSession
from strandline.metastore.store.aborted_rows import AbortedRows
from strandline.metastore.store.cleaning import Cleaner
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.row_queries import name_change
from strandline.metastore.store.transaction_order import ProjectedCatalogs, TransactionEvents
from strandline.metastore.store.warehouse_head import WarehouseHead
from strandline.metastore.unfinished_moves import UnfinishedMoves, finish_partition_moves
from strandline.node.address import DATABASE_FILE, StoreAddress, store_address
from strandline.node.chores import LOOK_SECONDS, Chores, StorageRecorder
from strandline.node.configuration import EffectiveConfiguration
from strandline.node.database_mark import NOTE_SECONDS, DatabaseMark
from strandline.node.health import NodeHealth
from strandline.node.inspection import StoreInspection
from strandline.node.membership import (
    half_raised,
    join_newer_epoch,
    join_or_create,
    new_member_id,
    open_newer_epoch,
)
from strandline.node.opened_store import OpenedStore, open_store
from strandline.node.sequences import skip_ids, skip_statements
from strandline.node.settings import shown_settings
from strandline.node.store_database import refuse_newer_parts
from strandline.node.warehouse_place import WAREHOUSE_HEAD
from strandline.sql import Database, FenceRow, check_time, look_in_order
from strandline.transactions import Transactions
from strandline.work.served_store import ServedStore

logger = logging.getLogger(__name__)

LAG_SECONDS = 5.0
"""How much longer than the ``metadata_staleness`` a healthy node may lag behind the logs.

A round of the threads that follow them takes up to half a second if nothing happens.
"""
BUSY_SECONDS = 1.0
"""How long a check of the health waits for other writers."""
CLEANING_SECONDS = 10.0
"""The longest time from an abort until its rows are removed."""
FIRST_CLEANING_SECONDS = 60.0
"""The longest time from the start of a node until it first cleans the store."""
CACHE_FILE = "strandline.cache"
"""The name of the cache file in the folder of a store."""
CACHE_PAUSE_SECONDS = 0.02
"""The pause between two parts of that file, so that its writer does not delay callers."""
WRITING_CACHE = "writing the cache file"
NOTING_MARK = "recording the time of the database in etcd"


@dataclass(frozen=True, slots=True)
class LagStatistics:
    """How many events or versions of a log the memory of this node does not reflect yet."""

    lag: int


class Node:
    """See the module. Create one with `Node.open`. As a context manager, it closes itself.

    ``replaced`` completes, with a message as its result, when a newer deploy generation has taken
    over the store. From then on, the node refuses every call, and the caller should close it.
    """

    def __init__(
        self,
        store: OpenedStore,
        settings: Settings,
        member: str,
        announce: Announce | None = None,
        origins: Mapping[str, str] | None = None,
        *,
        caches: bool = True,
    ) -> None:
        self.address = store.address
        self.name = store.address.name
        self.member = member
        self.settings = settings
        self.database = store.database
        self.folders = store.folders
        self._opened_store = store
        self._clock = store.clock
        state = join_or_create(
            store.catalog_log.log,
            store.database,
            store.clock,
            member=member,
            delay_ms=store.delay_ms,
            skew_ms=store.skew_ms,
            default_location=store.warehouse,
            deploy_generation=settings.deploy_generation,
            require_log=store.catalog_log.require_log,
        )
        self._environment = state.environment or ""
        store.database.guard = self._guard
        store.claim(self._environment)
        self.replaced: Future[str] = Future()
        self._half_raised: FenceToken | None = None
        self.catalogs = CatalogManager(
            state, store.clock, join_anew=self._join_anew, announce=announce
        )
        store.database.if_connection_is_lost(self.catalogs.connection_lost)
        self.configuration = EffectiveConfiguration(
            self.catalogs.latest_catalog, settings, staleness_ms=store.staleness_ms
        )
        self.notifications = NotificationLog(store.database, store.clock)
        self._warehouse_head = None
        if store.address.folder is None:
            path, mode = store.folders.warehouse / WAREHOUSE_HEAD, settings.folder_mode & 0o666
            self._warehouse_head = WarehouseHead(path, mode=mode)
        self.projector = self._new_projector()
        self.transactions = self._new_transactions()
        store.database.at_takeover(skip_statements())  # its tables exist now
        self.aborted_rows = AbortedRows(store.database)
        self._cleaned_aborts = -1  # an earlier process may have left some
        self.store = self._new_cache(memory_bytes=settings.cache_bytes if caches else 0)
        store.database.if_connection_is_lost(self.store.log_applier.connection_lost)
        self.cleaner = self._new_cleaner()
        self.metastore = self._new_metastore(origins)
        self.health = self._new_health()
        store.watch()
        self._chores = chores = Chores()
        self.storage = StorageRecorder(
            store.database,
            store.folders,
            self.catalogs,
            settings,
            chores,
            time_before=self.transactions.holds.time_before,
        )
        self._note_mark: Callable[[], object] | None = None
        if store.mark is not None:
            self._note_mark = partial(self._write_mark, store.mark)
        self._has_reserved_ids = False
        self._cache_file: StateFile | None = None
        self._closing = threading.Lock()
        self._is_closed = False
        self._process = os.getpid()

    def _new_projector(self) -> Projector:
        return Projector(
            self.database,
            self.notifications,
            updates=self.catalogs.updates,
            catalog=self.catalogs.catalog,
            folders=self.folders,
            head=self._warehouse_head,
        )

    def _new_transactions(self) -> Transactions:
        upper_within = self._opened_store.catalog_log.upper_within
        return Transactions(
            self.database,
            self._clock,
            catalogs=ProjectedCatalogs(self.catalogs, self.projector, upper_within=upper_within),
            listeners=[TransactionEvents(self.notifications, projector=self.projector)],
            timeout_ms=self.settings.transaction_timeout_ms,
            history_retention_ms=self.configuration.history_retention_ms,
            name_row=name_change,
            has_own_times=upper_within is None,
        )

    def _new_cache(self, *, memory_bytes: int) -> CachedStore:
        rows = SqlObjectStore(
            self.database,
            self.transactions,
            self.notifications,
            folders=self.folders,
            projector=self.projector,
        )
        return CachedStore(
            rows,
            memory_bytes=memory_bytes,
            staleness=self.configuration.metadata_staleness,
            on_set_back=self.projector.set_back,
        )

    def _new_cleaner(self) -> Cleaner:
        return Cleaner(
            self.database,
            self._clock,
            self.transactions,
            self.aborted_rows,
            self.catalogs,
            folders=self.folders,
            store=self.store,
            on_rows_gone=self.store.forget,
            cached_tables=self.store.cached_tables,
            notification_retention_ms=self.settings.notification_retention_ms,
            snapshot_hold_ms=self.settings.snapshot_hold_ms,
        )

    def _new_metastore(self, origins: Mapping[str, str] | None) -> Metastore:
        shown = shown_settings(self.settings, origins)
        return Metastore(
            catalogs=self.catalogs,
            transactions=self.transactions,
            store=self.store,
            projector=self.projector,
            warehouse=self._opened_store.warehouse,
            folders=self.folders,
            inspection=StoreInspection(self._opened_store, self.notifications, self.cleaner, shown),
            snapshot_hold_ms=self.settings.snapshot_hold_ms,
        )

    def _new_health(self) -> NodeHealth:
        health = NodeHealth()
        for name, check in self._opened_store.checks(self._environment):
            health.add(name, check)
        health.add("catalog head", self.catalogs.check_head)
        health.add(
            "catalog applier", lambda: self.catalogs.check_applier(longest=self._longest_lag())
        )
        health.add("fence", self._check_fence)
        health.add("release", partial(refuse_newer_parts, self.database))
        health.add("clock", self._check_clock, stops_reads=False)
        health.add("database writable", self._check_writes, stops_reads=False)
        health.add("warehouse writable", self._check_warehouse, stops_reads=False)
        check_blobs = self._opened_store.catalog_log.check_blobs
        if check_blobs is not None:
            health.add("catalog blobs writable", check_blobs, stops_reads=False)
        return health

    def served_store(self) -> ServedStore:
        """Return the store that a child process of this node must open."""
        return ServedStore(self._environment, self.database.timeline())

    @property
    def folder(self) -> Path:
        """The folder of the store. Raises `UnsupportedOperation` if it is kept on servers."""
        folder = self.address.folder
        if folder is None:
            raise UnsupportedOperation(f"the store {self.name} is on servers, not in a folder")
        return folder

    @classmethod
    def open(
        cls,
        store: str | Path | StoreAddress,
        *,
        settings: Settings | None = None,
        served: ServedStore | None = None,
        member: str | None = None,
        wall: WallClock = system_wall_clock,
        background: bool = True,
        keeps_cache: bool = False,
        announce: Announce | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> Node:
        """Open the store at a folder or an address, creating it if need be, and start following it.

        With ``served``, it must be that store. Without ``background``, the node only
        follows the log, and caches no rows. It leaves expiry, cleaning and checks to the node whose
        child process it runs in. With ``keeps_cache``, it loads the cache file at start and writes
        it again later. ``announce`` is called before a large catalog update is appended, to
        announce it to the parent node. ``origins`` are those of the ``settings``, for users who ask
        (`shown_settings`).

        Raises `InvalidInput`, `CorruptData`, `IncompatibleFormat`, `Unavailable`, `Fenced`,
        `WrongEnvironment`, and `StoreMoved` if the store is not at its recorded place or is another
        one.
        """
        settings = Settings() if settings is None else settings
        if not isinstance(settings, Settings):
            raise InvalidInput(
                "settings are a Settings(…) of strandline.config, such as "
                f"Settings(cache_bytes=1 << 30), not a {type(settings).__name__}"
            )
        if keeps_cache:
            _require_cache_folder(settings.cache_folder)
        address = store_address(store, settings)
        if served is not None and _is_missing(address):  # opening it would create another one
            raise _another_store(address.name)
        opened_store = open_store(address, settings=settings, wall=wall, check=background)
        try:
            if served is not None:
                _require_store(served, opened_store.database)
            node = cls(
                opened_store,
                settings,
                member or new_member_id(),
                announce,
                origins,
                caches=background,
            )
        except BaseException:
            opened_store.close()
            raise
        try:
            if background:
                node.projector.adopt()
            node._follow()
            if keeps_cache:
                node._load_cache()
            if background:
                node._start()
        except BaseException:
            node.close()
            raise
        return node

    def _join_anew(self, fenced: DurableCatalogState) -> DurableCatalogState:
        try:
            require_log = self._opened_store.catalog_log.require_log
            return join_newer_epoch(fenced, self.database, require_log=require_log)
        except Superseded as replaced:
            with suppress(InvalidStateError):  # another call has set it already
                self.replaced.set_result(replaced.message)
            raise

    def _follow(self) -> None:
        self.projector.catch_up()
        self.projector.project_up_to(self.catalogs.latest_catalog().version)
        self.catalogs.subscribe(
            lambda applied: self.projector.applied(applied.update),
            on_reset=lambda catalog: self.projector.applied_up_to(catalog.version),
        )
        self.catalogs.set_effects(self.projector)
        self.catalogs.start()

    def _start(self) -> None:
        synchronize_system_views(self.catalogs)
        self.projector.project_up_to(self.catalogs.latest_catalog().version)
        self._compare_warehouse_head()
        self.projector.start()
        self.health.add("folders and events", self.projector.check)
        self.store.follower.start()
        self.health.add(
            "notification follower",
            lambda: self.store.follower.check(longest=self._longest_lag()),
        )
        self.transactions.reserved_ids.skip_lost()
        finish_partition_moves(self.metastore)  # may commit a transaction
        self.transactions.heartbeats.start(
            now=milliseconds(self._clock.current()),
            has_other_nodes=self.address.folder is None,
        )
        self._has_reserved_ids = True
        self._start_chores()
        self._opened_store.examine()

    def _compare_warehouse_head(self) -> None:
        """Log that the catalog was set back, if it has lost the version of the warehouse's folders.

        Clients may remember ids of lost transactions.
        """
        head, log = self._warehouse_head, self.catalogs.state.log
        if head is None:
            return
        lost_version = head.lost_version(lambda: log.frontier().upper - 1, log.updates)
        if lost_version is None:
            return
        logger.error(
            "the catalog has lost version %d, of which %s has the folders: its database was set "
            "back (a standby without the last commits took over, or an older backup was restored). "
            "Folders that lost versions moved stay there; `strandline verify` finds tables whose "
            "folders or files are missing",
            lost_version,
            self.folders.warehouse,
        )
        with self.database.guarded_write() as connection:
            skip_ids(connection)
        head.forget()

    def _start_chores(self) -> None:
        settings, chores = self.settings, self._chores
        period = max(settings.transaction_timeout_ms / 4000, 0.25)
        chores.repeat(
            "reaper",
            {
                "looking for timed-out transactions": self.transactions.expire,
                "removing aborted rows": self.clean_aborted,
                "comparing the fences": self.finish_half_raised_fence,
                "finishing moves of partitions": UnfinishedMoves(self.metastore).finish,
            },
            pauses=repeat(min(period, CLEANING_SECONDS)),
        )
        if settings.clean_interval_ms:
            interval = settings.clean_interval_ms / 1000
            clean = partial(self.cleaner.clean, most_named=0, stopped=chores.stopping.is_set)
            # A process that runs only for a moment leaves cleaning to other nodes.
            pauses = chain([min(interval, FIRST_CLEANING_SECONDS)], repeat(interval))
            chores.repeat("cleaner", {"cleaning": clean}, pauses=pauses)
        if settings.storage_usage_interval_ms:
            measure = {"measuring the storage": self.storage.measure_when_due}
            interval = settings.storage_usage_interval_ms / 1000
            chores.repeat("storage", measure, pauses=repeat(min(interval, LOOK_SECONDS)))
        if self._note_mark is not None:
            note = {NOTING_MARK: self._note_mark}
            chores.repeat("mark", note, pauses=chain([0.0], repeat(NOTE_SECONDS)))

    def _load_cache(self) -> None:
        folder, settings = self.address.folder, self.settings
        if settings.cache_folder:
            path = Path(settings.cache_folder) / f"{self._environment}.cache"
        elif folder is not None:
            path = folder / CACHE_FILE
        else:
            return
        if not settings.cache_interval_ms or not settings.cache_bytes:
            return
        file = StateFile(
            path,
            self.store,
            environment=self._environment,
            token=lambda: self.catalogs.token,
            memory_bytes=settings.cache_bytes,
            mode=settings.folder_mode & 0o666,
        )
        file.load()
        self._cache_file = file
        wait = self._chores.stopping.wait
        write = partial(file.write, between=lambda: wait(CACHE_PAUSE_SECONDS))
        pauses = repeat(settings.cache_interval_ms / 1000)
        self._chores.repeat("cache-writer", {WRITING_CACHE: write}, pauses=pauses)

    def finish_half_raised_fence(self) -> None:
        """Repair a fence that an opener raised only in the object store before it ended.

        The node calls this periodically. If two calls in a row see the same half-raised fence, its
        opener is assumed to have ended. An opener that was only slow is refused, and opens the
        epoch after the new one. Until the repair, every write of rows raises `Fenced`.
        """
        state = self.catalogs.state
        half_raised_fence = half_raised(FenceRow.stored(self.database), state)
        if half_raised_fence is not None and half_raised_fence == self._half_raised:
            logger.warning(
                "a node stopped after it raised only one of the two fences of the store (%s); this"
                " node raises both",
                half_raised_fence,
            )
            log, generation = state.log, state.token.deploy_generation
            open_newer_epoch(log, self.database, self._clock, generation, member=state.member)
            self.catalogs.sync()
            half_raised_fence = None
        self._half_raised = half_raised_fence

    def clean_aborted(self) -> int:
        """Remove the rows of aborted transactions; return the number of write ids cleaned.

        Does nothing if no transaction was aborted since the last call.
        """
        aborts = self.transactions.aborts
        if aborts == self._cleaned_aborts:
            return 0
        cleaned = self.aborted_rows.clean(stopped=self._chores.stopping.is_set)
        self._cleaned_aborts = aborts
        return cleaned

    def _longest_lag(self) -> float:
        """How many seconds the memory of a healthy node may lag behind the logs."""
        return self.configuration.metadata_staleness() + LAG_SECONDS

    def _guard(self, connection: Connection) -> None:
        """Raise `Fenced` or `WrongEnvironment` if this node may not write rows.

        Every transaction that writes rows calls it, and is then rolled back.
        """
        FenceRow.check(connection, environment=self._environment, token=self.catalogs.token)

    def _write_mark(self, mark: DatabaseMark) -> None:
        """Record the time of the database beside the catalog, unless another catalog is there."""
        token = self.catalogs.token
        if self.catalogs.state.log.token() != token:
            raise Fenced(
                f"the catalog of {self.name} does not have {token}, which this node holds: it has"
                " a newer epoch, or is that of another store; nothing was recorded"
            )
        mark.note(self.database, self._clock)

    def _check_fence(self) -> None:
        with self.database.read() as connection:
            self._guard(connection)

    def _check_clock(self) -> None:
        with self.database.read() as connection:
            check_time(connection, self._clock)

    def _check_writes(self) -> None:
        deadline = time.monotonic() + BUSY_SECONDS
        look_in_order(self.database, self._clock, lambda _: None, first=(), deadline=deadline)

    def _check_warehouse(self) -> None:
        warehouse = self.folders.warehouse
        if warehouse.exists() and not os.access(warehouse, os.W_OK | os.X_OK):
            raise PermissionError(
                f"this node may not write in {warehouse}, so it creates no managed tables; mount"
                " its file system for writing, or change its permissions"
            )

    def session(self, *, user: str, host: str = "") -> LocalSession:
        """Return a session in this process for ``user``. It is valid while the node is open."""
        return LocalSession(self.metastore, user=user, host=host)

    def __repr__(self) -> str:
        return f"<Node of {self.name}>"

    @property
    def statistics(self) -> Mapping[str, Callable[[], object]]:
        """The functions that return the statistics of the parts of this node, by name.

        Any thread may call them.
        """
        metastorage = self._opened_store.catalog_log.metastorage
        return {
            **({} if metastorage is None else {"metastorage": metastorage.statistics}),
            "catalog": self.catalogs.statistics,
            "transactions": self.transactions.statistics,
            "projection": self.projector.statistics,
            "store": self.store.statistics,
            "follower": lambda: LagStatistics(self.store.lag()),
            "cleaner": self.cleaner.statistics,
            "chores": self._chores.statistics,
            "database": self.database.statistics,
        }

    def stop_waiting(self) -> None:
        """Refuse all calls that wait for another writer, now and later. Called before `close`.

        Such calls raise `Stopping` and change nothing. All other calls go on.
        """
        self.database.stop_waiting()

    def give_up(self) -> None:
        """Wait no longer for servers that do not answer. Called when no caller waits any more."""
        self._opened_store.give_up()

    def close(self) -> None:
        """Stop following and close the store. Idempotent; after Ctrl-C, the next call goes on.

        Does nothing in a fork, which has none of the threads, but perhaps locks that they hold.
        """
        if self._process != os.getpid():
            return
        if self._is_closed or not self._closing.acquire(blocking=False):
            return
        try:
            self._close()
            self._is_closed = True
        finally:
            self._closing.release()

    def _close(self) -> None:
        self._chores.stopping.set()
        self.give_up()
        self.catalogs.stop(wake=self.database.wake)
        self.projector.stop()
        self.store.follower.stop(wake=self.database.wake)
        self._chores.join()
        if self._cache_file is not None:
            self._chores.do(WRITING_CACHE, self._cache_file.write)
        self.transactions.heartbeats.stop()
        if self._has_reserved_ids:
            with suppress(StrandlineError):  # if this fails, the next start skips these ids
                self.transactions.reserved_ids.release()
            if self._note_mark is not None:
                self._chores.do(NOTING_MARK, self._note_mark)
        self._opened_store.close()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _require_cache_folder(folder: str) -> None:
    """Raise `InvalidInput` unless ``folder`` is empty or can be the `Settings.cache_folder`."""
    if folder and not (os.path.isabs(folder) and os.path.isdir(folder)):
        raise InvalidInput(
            f"cache_folder is {folder!r}; name the absolute path of an existing folder"
        )


def _is_missing(address: StoreAddress) -> bool:
    return address.folder is not None and not (address.folder / DATABASE_FILE).exists()


def _require_store(served: ServedStore, database: Database) -> None:
    """Raise `StoreMoved` unless ``database`` has the rows of that store, on no former primary."""
    fence = FenceRow.stored(database)
    is_former = database.timeline() < served.timeline
    if fence is None or fence.environment != served.environment or is_former:
        raise _another_store(database.name)


def _another_store(name: str) -> StoreMoved:
    return StoreMoved(
        f"{name} does not have the store that this node serves: it was moved or replaced, or the "
        "address leads to another server, such as a former primary that was started after a "
        "takeover; nothing was done. Correct the address, or stop that server; if the other store "
        "is to be used, start the node again"
    )
