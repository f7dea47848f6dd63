"""The projection: the effects of DDL outside the catalog.

A version of the catalog has effects that the catalog does not hold: an event in the notification
log, the place of a managed table, folders that are made and moved. They are derived from the
entries of the update log, in order, exactly once. The position of the projection is a row of the
store. It moves by compare-and-set in the SQL transaction that writes the events and the places.

`entry_projection` does this, and says what must stay true in one SQL transaction.

**With the append.** If the log is in the same database and versions become active at once, the SQL
transaction that appends a group of versions also projects them, up to the first version that may
move or remove a folder. (DDL on an external table does neither.) Their folders are made and synced
before the commit. So a version never lacks its events, places and folders, and a crash before the
commit leaves at most an empty folder, which the next table of that name takes. If this is not
possible (an earlier version is not projected yet, the fence row has another token, a resource for a
folder is short), the append writes nothing of the projection. The version is projected after the
append, and its caller gets the error, if any.

**Batches.** Everything else is projected after the append: moves of folders, since no rollback
would move them back, versions that become active later, and what another process left. One thread
of a process at a time does this. It takes as many as fit of the versions that this node has
applied, in one SQL transaction, with one sync of each folder. Usually it is the thread of the group
commit, before it answers the callers. If a version becomes active later, or if that thread failed,
it is the thread of one of the callers. The others wait until the batch ends; if it has not reached
their version, one of them continues. No lock of the catalog is held meanwhile. A version whose
caller gave up or whose node died is projected a little later by a background thread, unless a child
process of the node is projecting it.

**Durability.** A batch is on disk before its callers are answered. A client may then write into the
old place of a folder that was moved or removed (as Spark does before it creates a table anew), and
repeating the move must not move those files.

A refused effect is skipped and counted. A shortage (a full disk, no descriptors) is an error, and
is tried again before anything else is projected.

Rejected: making folders before the SQL transaction while another thread syncs them (the hand-over
takes as long as it saves), effects after the commit (a crash in between would lose them), a journal
beside the folders (a second truth), places named by table id (people look into these folders, and
Hive names them by table), and a separate thread for every batch (each DDL call would pay for two
hand-overs between threads).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile

from sqlalchemy import Connection

from strandline.catalog import Behind, Catalog
from strandline.condition import Condition
from strandline.durable import CatalogTransaction, Companion
from strandline.durable.update import Update
from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    Stopping,
    Unavailable,
    UnknownOutcome,
    VersionNotFound,
    WrongEnvironment,
)
from strandline.metastore.store.effect_batch import DefaultPlaces, EffectBatch
from strandline.metastore.store.entry_projection import (
    AppliedUpdates,
    EntryProjection,
    NotCarriedOut,
    ReadUpdates,
)
from strandline.metastore.store.folder_effects import FolderEffects, folder_effect
from strandline.metastore.store.notifications import POSITION, LogPosition, NotificationLog
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.table_places import foreign_places, put_places, tables_at_queries
from strandline.metastore.store.warehouse_head import WarehouseHead
from strandline.sql import FENCE_ROW, Database, StoreFull
from strandline.work import keeping_garbage
from strandline.work.following import FollowingThread

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 30.0
"""Seconds that `Projector.project_up_to` waits by default."""
LONGEST_TIMEOUT = 365 * 86_400.0
"""Longer timeouts, such as `math.inf`, are cut to this: locks have a limit."""
GRACE_SECONDS = 1.0
"""How long the background thread leaves a version to its caller."""


@dataclass(frozen=True, slots=True)
class ProjectionStatistics:
    """Counts of what this process did.

    ``batches`` are SQL transactions after the append, including failed ones. ``entries`` became
    events, and ``effects`` were carried out; both include those of SQL transactions that failed at
    their end, and count again when they are repeated. ``failures`` are effects that failed and are
    tried again. The system refused to create the folders ``unmade``, to move the folders of tables
    that ``stayed``, and to remove those of dropped schemas that are ``unremoved``.
    """

    projected_version: int
    batches: int
    entries: int
    effects: int
    failures: int
    unmade: int
    stayed: int
    unremoved: int


class _Known:
    """Which part of the log is projected, as far as this process knows.

    `Projector.set_back` replaces it. A thread that began before that notes its end in the old one:
    the database may have lost that end.
    """

    def __init__(self) -> None:
        self.projected = 0


class Projector:
    """The projection of one store. Safe for threads, and for several processes on one store.

    ``updates(start, end)`` returns the catalog's updates of the versions from ``start`` to ``end``
    − 1, or only the first of them. ``catalog`` returns the catalog at a version. History must not
    be compacted above the projected version. ``head`` is needed if ``database`` may be set back
    and the warehouse is not.
    """

    def __init__(
        self,
        database: Database,
        notifications: NotificationLog,
        *,
        updates: ReadUpdates,
        catalog: Callable[[int], Catalog],
        folders: StoreFolders,
        head: WarehouseHead | None = None,
    ) -> None:
        self._database = database
        self._notifications = notifications
        self._updates = AppliedUpdates(updates)
        self._store_folders = folders
        self._folders = FolderEffects(folders, catalog=catalog)
        self._entries = EntryProjection(
            database, notifications, updates=self._updates, folders=self._folders, head=head
        )
        self._head = head
        self._known = _Known()
        self._state = Condition()
        self._projecting: object = None  # the call whose batch is in progress
        self._applied = 0
        self._delegated = 0
        self._failed_batch: tuple[int, NotCarriedOut | StoreFull] | None = None
        self._batches = 0
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = FollowingThread(self._project_news, name="projector")

    def projected_version(self) -> int:
        """The highest version of which all entries are projected, as of now."""
        return self._notifications.position().projected_version

    def catch_up(self) -> None:
        """Note which versions any process has projected. Does not wait for writers."""
        known = self._known
        self.note_projected(known, self.projected_version())

    def project_up_to(self, version: int, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Return when ``version`` and all versions before it are projected.

        Raises `Unavailable` if a folder of a version cannot be changed for a shortage; the message
        names the version, and the next call tries it again. Raises `VersionNotFound` if a version
        is no longer in the log, and `DeadlineExceeded` after ``timeout`` seconds.
        """
        deadline = time.monotonic() + min(timeout, LONGEST_TIMEOUT)
        repeats_left, call = 1, object()
        while version > self._known.projected:
            last = max(version, self._applied)
            try:
                if self._await_batch(deadline, call):
                    continue
                self._project_batch(last, deadline)
            except UnknownOutcome as error:
                if not repeats_left:  # the caller may be a reader, who has changed nothing
                    raise Unavailable(
                        f"the folders and events of the catalog up to version {last} could not be "
                        f"recorded ({error.reason}); try again"
                    ) from error
                repeats_left -= 1
            finally:
                if self._projecting is call:  # Ctrl-C may have come just after it was set
                    with self._state:
                        self._batches += 1
                        self._projecting = None
                        self._state.notify_all()

    def companion(
        self, transactions: Sequence[CatalogTransaction], catalogs: Sequence[Catalog]
    ) -> Companion:
        """The `Companion` that projects the versions of ``catalogs`` in their append."""
        default_places = self._folders.places_of_new(transactions, catalogs)
        return _WithAppend(self, catalogs, default_places, self._known)

    def project_appended(
        self,
        connection: Connection,
        updates: Sequence[Update],
        catalogs: Sequence[Catalog],
        default_places: DefaultPlaces,
    ) -> LogPosition | None:
        """Project ``updates`` in the transaction that appends them, up to the first that moves.

        Return the position reached, or None if nothing was projected; `project_up_to` then does it
        and reports the reason. Raises `WrongEnvironment`, which undoes the append: the database was
        made anew. Its new catalog may have the same version and token, and must not get a change
        of the old one.
        """
        making = list(takewhile(_only_makes, updates))
        try:
            self._database.guard(connection)
            if not making:
                return None
            before = self._notifications.position_on(connection)
            if (before.projected_version + 1, before.projected_entries) != (making[0].version, 0):
                return None
            batch = EffectBatch(connection, catalogs, default_places=default_places)
            with keeping_garbage:
                return self._entries.advance_by(connection, before, making, batch)
        except WrongEnvironment:
            raise
        except (Fenced, NotCarriedOut) as error:  # nothing was written
            logger.debug(
                "version %d is appended first and projected later: %s", updates[0].version, error
            )
            return None

    def _await_batch(self, deadline: float, call: object) -> bool:
        """Wait for the batch in progress and share its failure; return False if there is none.

        In that case ``call`` must project.
        """
        with self._state:
            if self._projecting is None:
                self._projecting = call
                return False
            batch = self._batches
            seconds_left = deadline - time.monotonic()
            if not self._state.wait_for(
                lambda: self._batches != batch, timeout=max(seconds_left, 0.0)
            ):
                raise DeadlineExceeded(
                    "the folders and events of a change were not made within the time allowed, "
                    "because those of earlier changes are still in progress; the change itself "
                    "is in the catalog"
                )
            failed = self._failed_batch  # another thread may reset it
            if failed is not None and failed[0] == batch:
                # Otherwise each waiting caller would try the same folder again in turn.
                raise type(failed[1])(failed[1].message) from failed[1]
            return True

    def _project_batch(self, version: int, deadline: float) -> None:
        """Project at most up to ``version``, with the effects that one SQL transaction may have."""
        known = self._known
        try:
            with self._database.guarded_write(
                deadline=deadline, first=[(POSITION, ())]
            ) as connection:
                reached = self._entries.advance(connection, version)
        except (NotCarriedOut, StoreFull) as error:
            self._failed_batch = self._batches, error
            raise
        self._failed_batch = None
        last = self._updates.remembered(reached.projected_version)
        if self._head is not None and last is not None:
            self._head.note(last)
        self.note_projected(known, reached.projected_version)  # not before the commit
        self._folders.delete_purged()

    def note_projected(self, known: _Known, version: int) -> None:
        """Note that any process has projected all versions up to this one."""
        known.projected = max(known.projected, version)
        self._updates.forget(known.projected)

    def check(self) -> None:
        """Raise `Unavailable` if the last attempt to project failed for a shortage.

        It is `StoreFull` if the database has no space.
        """
        failed = self._failed_batch
        if failed is not None and self._applied > self._known.projected:
            raise type(failed[1])(failed[1].message)

    def project_on(self, connection: Connection, version: int) -> None:
        """Project up to ``version`` in the caller's write transaction, which checked the fence.

        Raises `Behind` if this takes more effects on folders than one SQL transaction may have. The
        caller then rolls back, calls `project_up_to`, and tries again.
        """
        if version <= self._known.projected:
            return
        before = None
        while (after := self._entries.advance(connection, version)).projected_version < version:
            if after == before:
                raise Behind(
                    f"catalog version {version} is needed in the notification log, which ends at"
                    f" {after.projected_version}; project up to it, and try again"
                )
            before = after

    def statistics(self) -> ProjectionStatistics:
        """What this process did, and the projected version of the store."""
        refused = self._folders.refused
        return ProjectionStatistics(
            projected_version=self.projected_version(),
            batches=self._batches,
            entries=self._entries.entries,
            effects=self._entries.effects,
            failures=self._entries.failures,
            unmade=refused["unmade"],
            stayed=refused["stayed"],
            unremoved=refused["unremoved"],
        )

    # -- in the background

    def applied(self, update: Update) -> None:
        """Note that this node has applied ``update``; for a listener of the catalog.

        The background thread projects it a little later, unless a caller does so first.
        """
        if update.version > self._known.projected:
            self._updates.remember(update)
            self.applied_up_to(update.version)

    def applied_up_to(self, version: int) -> None:
        """`applied`, for versions that were trimmed before this node could read them."""
        self._applied = max(self._applied, version)
        self._news.set()

    def set_back(self) -> None:
        """Project again what the database has lost: it was set back, and the catalog was not."""
        self._known = _Known()
        self._news.set()

    def adopt(self) -> None:
        """Rewrite the places that older releases recorded into the form of this release."""
        with self._database.read() as connection:
            if not foreign_places(connection, self._store_folders):
                return
        with self._database.guarded_write() as connection:
            put_places(connection, foreign_places(connection, self._store_folders))

    @contextmanager
    def delegated(self) -> Iterator[None]:
        """While the block runs, a child process of this node projects what it appends itself."""
        with self._state:
            self._delegated += 1
        try:
            yield
        finally:
            with self._state:
                self._delegated -= 1

    def start(self) -> None:
        if self._head is not None:  # an older release may have projected, and written no head
            version = self.projected_version()
            with suppress(VersionNotFound):  # trimmed
                for update in self._updates(version, version + 1):
                    self._head.note(update)
        self._thread.start()

    def stop(self) -> None:
        """Stop. The next node that opens the store projects the rest. Idempotent."""
        self._stop.set()
        self._thread.stop(wake=self._news.set)

    def _project_news(self) -> None:
        self._news.wait()
        if self._stop.wait(GRACE_SECONDS):
            raise Stopping.of_node()
        if self._delegated:
            return
        self._news.clear()  # before reading `_applied`, so that a later version sets it again
        if self._stop.is_set():  # the event just cleared may have been that of `stop`
            raise Stopping.of_node()
        try:
            if self._applied > self._known.projected:
                self.catch_up()  # another process may have projected it
            self.project_up_to(self._applied)
            self._folders.delete_purged()  # those that a commit of rows has projected
        except Exception:
            self._news.set()
            raise


class _WithAppend:
    """A `Companion` that projects versions in the transaction that appends them."""

    def __init__(
        self,
        projector: Projector,
        catalogs: Sequence[Catalog],
        default_places: DefaultPlaces,
        known: _Known,
    ) -> None:
        self._known = known
        self._projector = projector
        self._catalogs = catalogs
        self._default_places = default_places
        # `write` projects the versions from the first on: as many places make the same queries.
        places = list(
            dict.fromkeys(place for place in default_places.values() if place is not None)
        )
        self.first_queries = (FENCE_ROW, ()), (POSITION, ()), *tables_at_queries(places)
        self._reached: LogPosition | None = None

    def write(self, connection: Connection, updates: Sequence[Update]) -> None:
        self._reached = self._projector.project_appended(
            connection, updates, self._catalogs, self._default_places
        )

    def committed(self) -> None:
        if self._reached is not None:
            self._projector.note_projected(self._known, self._reached.projected_version)


def _only_makes(update: Update) -> bool:
    effects = map(folder_effect, update.entries)
    return all(effect is None or effect.only_makes for effect in effects)
