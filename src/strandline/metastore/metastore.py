"""`Metastore`: one interface to a store's catalog, transactions and rows.

The protocols (Hive Thrift, HTTP, a session in process) differ in form, but make the same requests.
`strandline.metastore.reader.Reader` serves their reads. `Metastore` serves their changes: it
executes DDL with all its effects.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from strandline import work
from strandline.catalog import Applied, Catalog, CatalogManager, Command
from strandline.catalog.undo.command import HistoryMoved, Undo
from strandline.catalog.verbs import describe_all
from strandline.clock import Timestamp
from strandline.errors import ObjectNotFound, StrandlineError, UnknownOutcome
from strandline.logs import kept
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.inspection import Inspection
from strandline.metastore.requested_places import WHY_FILES_ARE_GONE, RequestedPlaces
from strandline.metastore.snapshot_holds import SnapshotHolds
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.store_folders import StoreFolders
from strandline.model.descriptors import SchemaDescriptor, TableDescriptor
from strandline.outage import waiting_until
from strandline.sql import NewerEpoch
from strandline.transactions import Hold, Transaction, Transactions

logger = logging.getLogger("strandline.ddl")

LEAST_SECONDS_FOR_FOLDERS = 1.0
"""The minimum time that a call waits for its folders and events, even after its timeout."""
FENCE_PAUSE = 0.1
"""Seconds between two attempts to make them while the fences of the store differ."""
_ADVICE = re.compile("; (?:nothing was (?:changed|written|done)|try again)")
"""Begins the part of a store's error that would be wrong once a change is in the log."""


@contextmanager
def completing(applied: Applied, what: str) -> Iterator[None]:
    """For a block that does what a change needs after it is in the log; ``what`` if it fails.

    An error in the block must not look like a refusal of the change. Raises `UnknownOutcome`.
    """
    try:
        yield
    except StrandlineError as error:
        reason = _ADVICE.split(error.message)[0]
        raise UnknownOutcome(
            f"the change is in the log as version {applied.version}, and {what}; do not repeat it"
            f" ({reason})"
        ) from error


class Metastore:
    """See the module. Safe to use from several threads."""

    def __init__(
        self,
        *,
        catalogs: CatalogManager,
        transactions: Transactions,
        store: CachedStore,
        projector: Projector,
        warehouse: str,
        folders: StoreFolders,
        inspection: Inspection,
        snapshot_hold_ms: int,
    ) -> None:
        self.catalogs = catalogs
        self.transactions = transactions
        self.store = store
        self.notifications = store.sql_store.notifications
        self.projector = projector
        self.warehouse = warehouse.rstrip("/")
        self.folders = folders
        self.inspection = inspection
        self.snapshot_holds = SnapshotHolds(transactions.holds, snapshot_hold_ms)

    def execute(
        self, commands: Command | Sequence[Command], *, user: str, timeout: float = 30.0
    ) -> Applied:
        """Execute DDL commands and wait until their folders and notification events are made.

        ``user`` is their author, whose privileges are checked. Raises `UnknownOutcome` if the
        folders and events are not made in time.
        """
        self.transactions.refuse_in_a_fork()  # where no thread commits changes of the catalog
        batch = commands if isinstance(commands, Sequence) else [commands]
        deadline = time.monotonic() + timeout
        places = RequestedPlaces(
            self.catalogs,
            self.store.sql_store,
            self.projector,
            self.folders,
            user=user,
            deadline=deadline,
        )
        with waiting_until(deadline):
            resolved = places.resolve(batch)
        seconds_left = deadline - time.monotonic()
        applied = self.catalogs.execute(resolved, author=user, identity=user, timeout=seconds_left)
        if applied.actions and logger.isEnabledFor(logging.INFO):
            logger.info(
                "version %d: %s",
                applied.version,
                describe_all(applied.actions),
                extra=kept(user=user, catalog_version=applied.version),
            )
        with completing(applied, "its folders and events will follow"):
            self.transactions.pass_activation(applied.time)
            self._project(applied.version, deadline)
        return applied

    def _project(self, version: int, deadline: float) -> None:
        """`Projector.project_up_to`. Waits while only one of the store's two fences is raised.

        An opener raises both within milliseconds. If it ended in between, a node of its generation
        does so later.
        """
        for attempt in itertools.count():
            seconds_left = max(deadline - time.monotonic(), LEAST_SECONDS_FOR_FOLDERS)
            try:
                if attempt:
                    with waiting_until(deadline):
                        self.catalogs.sync()  # joins the newer epoch
                self.projector.project_up_to(version, timeout=seconds_left)
                return
            except NewerEpoch:
                if time.monotonic() + FENCE_PAUSE > deadline:
                    raise
            time.sleep(FENCE_PAUSE)

    def undo(self, read: Callable[[], Undo], *, user: str, timeout: float) -> Applied:
        """Execute the undo that ``read`` returns; read it again if the history has moved.

        Raises what ``read`` and `Undo` raise, and `ObjectNotFound` if the files of a table to be
        restored are gone. ``read`` is charged to the budget.
        """
        deadline = time.monotonic() + timeout
        while True:
            with waiting_until(deadline):
                undo = read()
            seconds_left = max(0.0, deadline - time.monotonic())
            try:
                with work.budget(None):  # what changes something is not given up
                    return self.execute(undo, user=user, timeout=seconds_left)
            except HistoryMoved:
                if time.monotonic() >= deadline:
                    raise

    def mark(self) -> tuple[int, int] | None:
        """A value that changes whenever present answers may change; see `LogApplier.mark`."""
        mark, version = self.store.log_applier.mark(), 0
        is_covered = self.notifications.mark_is_proof and not self.transactions.has_own_times
        if self.catalogs.delay or not is_covered:
            catalog = self.catalogs.known_present()
            if catalog is None:
                return None
            version = catalog.version
        return None if mark is None else (mark, version)

    def hold(
        self, kind: str, owner: str, *, at: Timestamp | None, ttl_ms: int, user: str | None = None
    ) -> Hold:
        """Keep the history of rows and of the catalog from ``at`` on, for ``ttl_ms``.

        None is the present. Raises `VersionNotFound` if one of them was trimmed already.
        """
        if at is not None:
            self.catalogs.sync()
            self.catalogs.active_catalog(at)
        return self.transactions.holds.acquire(kind, owner, at=at, ttl_ms=ttl_ms, user=user)

    def commit(self, txn_id: int, *, owner: str | None = None) -> Transaction:
        """`Transactions.commit`; memory answers for the present only when it has the writes.

        The caller does not wait for that: the next reader, or the thread that follows the log,
        applies the writes of several commits at once.
        """
        try:
            return self.transactions.commit(txn_id, owner=owner)
        finally:
            self.store.log_applier.invalidate_level()

    def abort(self, txn_id: int, *, owner: str | None = None) -> Transaction:
        """`Transactions.abort`, followed like `commit`."""
        try:
            return self.transactions.abort(txn_id, owner=owner)
        finally:
            self.store.log_applier.invalidate_level()

    def abort_all(self, txn_ids: Iterable[int], *, owner: str | None = None) -> list[int]:
        """`Transactions.abort_all`, followed like `commit`."""
        try:
            return self.transactions.abort_all(txn_ids, owner=owner)
        finally:
            self.store.log_applier.invalidate_level()

    def compact(self, version: int, *, author: str) -> bool:
        """Trim the catalog's history below ``version``; return False if it was trimmed already.

        Raises `VersionNotFound`, `Conflict` naming an open transaction or a hold that needs an
        older version, and `Unavailable` if a version to be trimmed cannot be projected yet.
        """
        catalog = self.catalogs.catalog(version)
        if version <= self.catalogs.earliest_catalog().version:
            return self.catalogs.compact(version)
        self.catalogs.check_active_everywhere(catalog)  # else the watermark would rise too far
        # A trimmed version could not be projected any more, and would block all later ones.
        self.projector.project_up_to(version)
        # Raise the watermark first: later holds are then granted only above it.
        self.transactions.holds.raise_low_watermark(catalog.time)
        trimmed = self.catalogs.compact(version)
        if trimmed:
            logger.info("trimmed the history below version %d", version, extra=kept(user=author))
        return trimmed

    def location(self, table: TableDescriptor) -> str:
        """The URI of the folder of ``table`` now. Raises `ObjectNotFound` if it has no place."""
        return self.locations([table])[table.id]

    def locations(
        self, tables: Iterable[TableDescriptor], *, present: Catalog | None = None
    ) -> dict[int, str]:
        """`location` of each of ``tables``, by id, read together.

        ``present`` is the catalog that was the present one when the caller's request began.
        """
        version = self.catalogs.latest_catalog().version
        is_last = present is not None and present.version == version and not self.catalogs.delay
        locations: dict[int, str] = {}
        unknown: dict[int, TableDescriptor] = {}
        for table in tables:
            location = self.known_location(table, version=version, is_last=is_last)
            if location is None:
                unknown[table.id] = table
            else:
                locations[table.id] = location
        if unknown:
            locations |= self.store.locations(unknown.keys())
        if not unknown.keys() <= locations.keys():
            # Another caller's DDL is in the catalog, but not projected yet: project it here. Only
            # now, so that a table that has a place does not wait for the folders of others.
            self.projector.project_up_to(version)
            locations |= self.store.locations(unknown.keys() - locations.keys())
        for table in unknown.values():
            if table.id not in locations:
                raise ObjectNotFound(
                    f"the files of table {table.name!r} (id {table.id}) are gone: "
                    f"{WHY_FILES_ARE_GONE}"
                )
        return locations

    def known_location(
        self, table: TableDescriptor, *, version: int, is_last: bool = False
    ) -> str | None:
        """`location`, or None if that has to wait; see `CachedStore.known_location`."""
        location = self.folders.named_location(table)
        # No event tells memory that a new table takes over the folder of a dropped one.
        if location is None and self.catalogs.latest_catalog().table_by_id(table.id) is not None:
            location = self.store.known_location(table.id, version=version, is_last=is_last)
        return location

    def location_of_schema(self, schema: SchemaDescriptor) -> str:
        if schema.location:
            return self.folders.shown(schema.location)
        return self.folders.location(self.folders.place_of_schema(schema))

    def default_location(self, schema: SchemaDescriptor, name: str) -> str:
        """The URI of the folder that a new managed table of that name gets."""
        return self.folders.location(self.folders.place_of_new(schema, name))
