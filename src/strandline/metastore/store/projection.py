"""The projection: what DDL does outside the catalog.

A version of the catalog has effects that the catalog does not hold: an event in the notification
log, the place of a managed table, folders made and moved. They are derived from the entries of the
update log, in order, exactly once. How far the projection has come is a row of the store, moved by
compare-and-set in the SQL transaction that writes the events and the places.

**With the append.** Where the log is in the same database, and a version is active at once, a group
of versions is projected in the SQL transaction that appends it, up to the first version that may
move or remove a folder. (What is done to an external table does neither.) Its folders are made and
synced before the commit. So a crash before the commit leaves no version, no event and no place, at
most an empty folder that no table has: the next table of that name takes it, and one that is
renamed to it replaces it. A crash behind it leaves the version with its events, places and folders,
though its caller was not told. There is no version without its folders. Where that cannot be (a
version before it is not projected yet, the fence row has another token, a folder is short of
something), nothing of it is written: the version is appended by itself and projected behind the
append, and its caller hears what is wrong.

**Batches.** All else is projected behind the append: what moves folders, since no rollback would
move them back, versions that become active later, and what another process left. One thread of a
process does it at a time, and takes all versions up to the highest that this node has applied, in
one SQL transaction, with one sync of each folder. It is the thread of the group commit, before it
answers the callers. Where a version becomes active later, or that failed, it is the thread of one
of the callers; the others wait until the position has reached their version, and one of them goes
on where it has not. No lock of the catalog is held meanwhile. What no caller waits for (its caller
gave up, its node died) a thread in the background carries out a little later, unless a child
process of the node is at it.

What must stay true: a folder cannot be moved back by a rollback, so effects may be done and their
SQL transaction lost. Then they are met again, and each must be recognized. `folder_turns` says
which of them one SQL transaction may have for that; the position counts entries within a version.

**Durability.** Behind an append that is durable, all of this can be done again. So in a folder that
SQL transaction waits for no disk: the next commit of any other kind syncs it too, and after a power
cut the first process that opens the store projects again, before it does anything else, the same
events under the same numbers. (Folders are synced all the same: a later commit may make the rows
durable, and no folder.) Effects of two SQL transactions may touch, so only one may be lost: before
the first effect of one, those before it are on disk. (Not where both only make: what is made twice
is found.) And one that moved or removed a folder is on disk before its callers are answered: a
client may then write into the old place (as Spark does before it creates a table anew), and those
files must not be moved too. On a server all are synced: other nodes, which go on when the server's
machine fails, have seen the events, and their numbers must not come again for others.

A commit needs all of it done in its own SQL transaction. Where more effects are left, it gets
`Behind`, as with the catalog itself: `transaction_order` then does them in several.

No folder stops what comes behind it: what is refused is left as it is, and counted. What is short
(a full disk, no descriptors) is an error, and is tried again before anything else is projected.

Rejected: moves with the append (its rollback leaves them, and no version says so), folders that are
made before the SQL transaction and put on disk by another thread meanwhile (handing them over takes
as long as it saves), effects after the commit (a crash between would lose them), a journal beside
the folders (a second truth), places named by table id (people look into these folders, and Hive
names them so), and a thread of its own for every batch (each DDL call would pay two hand-overs
between threads).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from strandline.catalog import Behind, Catalog
from strandline.catalog.kinds import kind_named
from strandline.durable import CatalogTransaction, Companion
from strandline.durable.update import Entry, Update
from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    Stopping,
    StrandlineError,
    Unavailable,
    WrongEnvironment,
)
from strandline.metastore.store.folder_effects import Asked, FolderEffects, folder_effect
from strandline.metastore.store.folder_turns import AskedPlaces, Turn
from strandline.metastore.store.notifications import (
    POSITION,
    DdlEvent,
    LogPosition,
    NewEvent,
    NotificationLog,
)
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.table_places import finding_at, foreign_places, put_places
from strandline.sql import FENCE_ROW, Database, FenceRow
from strandline.wire import encode
from strandline.work import keeping_garbage

logger = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds that `Projector.project_up_to` waits by default."""
BATCH = 64
"""Versions that are read from the update log at once."""
GRACE_SECONDS = 1.0
"""How long the thread in the background leaves a version to its caller."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
MOST_REMEMBERED = 1024
"""Versions that were applied here, and are not read from the log again."""

ReadUpdates = Callable[[int, int], Sequence[Update]]
"""The updates of versions from the first number to the second − 1, all of them or the first few."""


@dataclass(frozen=True, slots=True)
class ProjectionStatistics:
    """Counts of what this process did.

    ``batches`` are SQL transactions. ``failures`` are effects that were short of something and
    tried again; ``unmade``, ``stayed`` and ``unremoved`` those that were refused
    (`RefusedFolders`).
    """

    projected_version: int
    batches: int
    entries: int
    effects: int
    failures: int
    unmade: int
    stayed: int
    unremoved: int


class Projector:
    """The projection of one store. Safe for threads, and for several processes on one store.

    ``updates(start, end)`` gives the catalog's updates of the versions from ``start`` to ``end``
    − 1, ``catalog`` a version as a whole. History must not be compacted above the projected
    version.
    """

    def __init__(
        self,
        database: Database,
        notifications: NotificationLog,
        *,
        updates: ReadUpdates,
        guard: Callable[[Connection], None],
        catalog: Callable[[int], Catalog],
        folders: StoreFolders,
    ) -> None:
        self._database = database
        self._notifications = notifications
        self._updates = AppliedUpdates(updates)
        self._guard = guard
        self._store_folders = folders
        self._folders = FolderEffects(folders, catalog=catalog)
        self._turns: WeakKeyDictionary[object, Turn] = WeakKeyDictionary()
        self._state = threading.Condition()
        self._projecting = False
        self._projected = 0  # committed, as far as this process knows
        self._own_end: tuple[int, int] | None = None  # where the last own batch ended
        self._moved = False  # a folder, by a batch that is committed and perhaps not synced
        self._applied = 0
        self._delegated = 0
        self._failed_batch: tuple[int, Unavailable] | None = None
        self._batches = self._entries = self._effects = self._failures = 0
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="projector", daemon=True)

    def projected_version(self) -> int:
        """The highest version that is projected as a whole, as of now."""
        with self._database.read() as connection:
            return self._notifications.position_on(connection).projected_version

    def catch_up(self) -> None:
        """Note what is projected already, by whatever process. Waits for no writer."""
        self._note_projected(self.projected_version())

    def project_up_to(self, version: int, *, timeout: float = PATIENCE) -> None:
        """Return when ``version`` and all before it are projected.

        Raises `Unavailable` naming the version for whose folders something is short; it is tried
        again by the next call. `VersionNotFound` if it is no longer in the log, `DeadlineExceeded`.
        """
        deadline = time.monotonic() + timeout
        while version > self._projected:
            if self._await_batch(deadline):
                continue
            try:
                self._project_batch(max(version, self._applied), deadline)
            finally:
                with self._state:
                    self._batches += 1
                    self._projecting = False
                    self._state.notify_all()

    def companion(
        self, transactions: Sequence[CatalogTransaction], catalogs: Sequence[Catalog]
    ) -> Companion:
        """What projects the versions of ``catalogs`` in the transaction that appends them."""
        asked = self._folders.places_of_new(transactions, catalogs)
        return _WithAppend(self, catalogs, asked)

    def project_appended(
        self,
        connection: Connection,
        updates: Sequence[Update],
        catalogs: Sequence[Catalog],
        asked: AskedPlaces,
    ) -> LogPosition | None:
        """Project ``updates`` in the transaction that appends them, as far as they only make.

        None where nothing of them is; `project_up_to` then does it, and says why it cannot. Raises
        `WrongEnvironment`, which undoes the append: the database was made anew, its new catalog may
        be at the same version and have the same token, and is not to get a change of the old one.
        """
        making = list(takewhile(_only_makes, updates))
        try:
            self._guard(connection)
            if not making:
                return None
            before = self._notifications.position_on(connection)
            if (before.projected_version + 1, before.projected_entries) != (making[0].version, 0):
                return None
            turn = Turn(connection, catalogs, asked=asked)
            with keeping_garbage:
                return self._advance_by(connection, before, making, turn)
        except WrongEnvironment:
            raise
        except (Fenced, _NotCarriedOut) as error:  # nothing was written
            logger.debug("version %d is appended by itself: %s", making[0].version, error)
            return None

    def appended(self, reached: LogPosition) -> None:
        """Note what `project_appended` has reached, when that is committed."""
        self._projected = max(self._projected, reached.projected_version)
        self._own_end = reached.projected_version, reached.projected_entries

    def _await_batch(self, deadline: float) -> bool:
        """Wait for the batch that is under way, and share its failure; False where there is none.

        Then the calling thread is the one that projects.
        """
        with self._state:
            if not self._projecting:
                self._projecting = True
                return False
            batch = self._batches
            left = deadline - time.monotonic()
            if not self._state.wait_for(lambda: self._batches != batch, timeout=max(left, 0.0)):
                raise DeadlineExceeded(
                    "the folders and events of a change were not made within the time allowed,"
                    " because those before it still are; the change itself is in the catalog"
                )
            if self._failed_batch is not None and self._failed_batch[0] == batch:
                # Else each waiting caller would try the same folder again, one after the other.
                raise Unavailable(self._failed_batch[1].message) from self._failed_batch[1]
            return True

    def _project_batch(self, version: int, deadline: float) -> None:
        """Project what one SQL transaction may have, at most up to ``version``."""
        try:
            with self._database.write_derived(
                deadline=deadline, first=[(POSITION, ())]
            ) as connection:
                self._guard(connection)
                turn = self._turn(connection)
                reached = self._advance(connection, version, turn)
        except _NotCarriedOut as error:
            self._failed_batch = self._batches, error
            raise
        self._moved = self._moved or turn.moves
        self._note_projected(reached.projected_version)  # only now is it committed
        self._own_end = reached.projected_version, reached.projected_entries
        self._folders.delete_purged()

    def _note_projected(self, version: int) -> None:
        """Note that all versions up to this one are projected, by whatever process."""
        if self._moved:  # its callers may write into the folder that is gone
            self._database.sync()
            self._moved = False
        self._projected = max(self._projected, version)
        self._updates.forget(self._projected)

    def project_on(self, connection: Connection, version: int) -> None:
        """Project up to ``version`` in the caller's write transaction, which checked the fence.

        Raises `Behind` where that takes more effects on folders than one SQL transaction may have:
        roll back, `project_up_to`, and try again.
        """
        if version <= self._projected:
            return
        before = self._notifications.position_on(connection)
        turn = self._turn(connection)
        while before.projected_version < version:
            after = self._advance(connection, version, turn)
            if after == before:
                raise Behind(
                    f"catalog version {version} is needed in the notification log, which ends at"
                    f" {before.projected_version}; project up to it, and try again"
                )
            before = after

    def statistics(self) -> ProjectionStatistics:
        """What this process did, and where the store stands."""
        refused = self._folders.refused()
        return ProjectionStatistics(
            projected_version=self.projected_version(),
            batches=self._batches,
            entries=self._entries,
            effects=self._effects,
            failures=self._failures,
            unmade=refused.unmade,
            stayed=refused.stayed,
            unremoved=refused.unremoved,
        )

    # -- in the background

    def applied(self, update: Update) -> None:
        """Tell that this node has applied ``update``; for a listener of the catalog.

        It is projected a little later, unless a caller asks for it first.
        """
        if update.version > self._projected:
            self._updates.remember(update)
            self.applied_up_to(update.version)

    def applied_up_to(self, version: int) -> None:
        """`applied`, for versions that were trimmed before this node had read them."""
        self._applied = max(self._applied, version)
        self._news.set()

    def adopt(self) -> None:
        """Bring what older releases recorded about places to the form of this one."""
        with self._database.read() as connection:
            if not foreign_places(connection, self._store_folders):
                return
        with self._database.write() as connection:
            self._guard(connection)
            put_places(connection, foreign_places(connection, self._store_folders))

    @contextmanager
    def delegated(self) -> Iterator[None]:
        """While the block runs, another process of this node projects what it appends itself."""
        with self._state:
            self._delegated += 1
        try:
            yield
        finally:
            with self._state:
                self._delegated -= 1

    def start(self) -> None:
        """Begin to project in the background."""
        self._thread.start()

    def stop(self) -> None:
        """End. What is left is projected by the node that opens the store next. Idempotent."""
        self._stop.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._news.wait()
            if self._stop.wait(GRACE_SECONDS):
                return
            if self._delegated:
                continue
            self._news.clear()  # before the look at what was applied: what comes now comes again
            if self._stop.is_set():  # its news may be what was cleared
                return
            try:
                if self._applied > self._projected:  # perhaps another process did it
                    self.catch_up()
                self.project_up_to(self._applied)
                pause = FIRST_PAUSE
            except Stopping:
                return
            except Exception as error:
                if isinstance(error, Unavailable):
                    logger.warning("%s; it is tried again in %.1f s", error, pause)
                else:
                    logger.exception("projecting failed; it is tried again in %.1f s", pause)
                self._news.set()
                self._stop.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    # -- inside one SQL transaction

    def _turn(self, connection: Connection) -> Turn:
        """The turn of the SQL transaction, which may project more than once."""
        transaction = connection.get_transaction() or connection.begin()
        return self._turns.setdefault(transaction, Turn(connection))

    def _advance(self, connection: Connection, version: int, turn: Turn) -> LogPosition:
        """Project some versions, at most up to ``version``, with the effects that ``turn`` takes.

        Returns where it stands then. An effect that fails is an error only if it is the first:
        what comes before it is projected in any case.
        """
        before = self._notifications.position_on(connection)
        last = before.projected_version
        if last >= version:
            return before
        updates = self._updates(last + 1, min(version, last + BATCH) + 1)
        with keeping_garbage:
            return self._advance_by(connection, before, updates, turn)

    def _advance_by(
        self, connection: Connection, before: LogPosition, updates: Sequence[Update], turn: Turn
    ) -> LogPosition:
        """`_advance` by some of ``updates``, which come behind ``before``."""
        last, done = before.projected_version, before.projected_entries
        events: list[NewEvent] = []
        entries = ((update, entry) for update in updates for entry in update.entries)
        behind = islice(entries, done, None)
        asked = list(_with_effects(behind, most=turn.left))
        self._folders.expect(turn, asked)
        effects = chain((effect for _, _, effect in asked), (folder_effect(e) for _, e in behind))
        for update in updates:
            for entry in islice(update.entries, done, None):
                effect = next(effects)
                if effect is not None:
                    first = turn.untouched
                    try:
                        if first:
                            self._database.check_place()  # else folders would be made elsewhere
                            self._require_synced(before, turn)
                        if not self._folders.carry_out(turn, entry, effect, update=update):
                            break
                    except StrandlineError as error:
                        failed = self._failed(update.version, entry.verb, error)
                        if first:
                            raise failed from error
                        break
                    self._effects += 1
                if not entry.silent:
                    events.append(_event(update, entry))
                done += 1
            if done < len(update.entries):
                break
            last, done = update.version, 0
        try:
            turn.unsynced.sync()
        except Unavailable as error:
            raise self._failed(last + 1 if done else last, "change of folders", error) from error
        also = turn.places.take_writes()
        if not turn.appends:  # else the log is in this database, and no older than it
            also.append(FenceRow.noting(last))
        after = self._notifications.move_projection(
            connection,
            before,
            version=last,
            entries=done,
            events=events,
            also=also,
        )
        self._entries += len(events)
        return after

    def _require_synced(self, before: LogPosition, turn: Turn) -> None:
        """Return when the effects up to ``before`` cannot be met again, where that would do harm.

        The append of a version syncs what was projected before it. What one append holds, or
        another process projected, may take several SQL transactions. What this process made may be
        met again behind a ``turn`` that only makes (`_WithAppend`); what it moved is on disk.
        """
        is_own = self._own_end == (before.projected_version, before.projected_entries)
        if not (is_own and (turn.appends or self._database.is_synced)):
            self._database.sync()

    def _failed(self, version: int, what: str, error: StrandlineError) -> _NotCarriedOut:
        self._failures += 1
        return _NotCarriedOut(
            f"version {version} is in the catalog, but its {what} is not carried out:"
            f" {error.message}. It is tried again before the next change"
        )


class _WithAppend:
    """A `Companion`: projects versions in the transaction that appends them."""

    def __init__(
        self, projector: Projector, catalogs: Sequence[Catalog], asked: AskedPlaces
    ) -> None:
        self._projector = projector
        self._catalogs = catalogs
        self._asked = asked
        # What is projected is the first of these: so many places as asked for are the same ones.
        places = list(dict.fromkeys(place for place in asked.values() if place is not None))
        self.asks = (FENCE_ROW, ()), (POSITION, ()), *finding_at(places)
        self._reached: LogPosition | None = None

    def write(self, connection: Connection, updates: Sequence[Update]) -> None:
        self._reached = self._projector.project_appended(
            connection, updates, self._catalogs, self._asked
        )

    def committed(self) -> None:
        if self._reached is not None:
            self._projector.appended(self._reached)


def _with_effects(entries: Iterator[tuple[Update, Entry]], *, most: int) -> Iterator[Asked]:
    """The next of ``entries``, with what each does to folders, up to so many that do something."""
    while most and (following := next(entries, None)) is not None:
        update, entry = following
        effect = folder_effect(entry)
        most -= effect is not None
        yield update, entry, effect


def _only_makes(update: Update) -> bool:
    effects = map(folder_effect, update.entries)
    return all(effect is None or effect.only_makes for effect in effects)


class _NotCarriedOut(Unavailable):
    """Something is short for the folders of a version."""


class AppliedUpdates:
    """The updates that are to be projected: those that this node has applied, else from the log.

    Those that were read from the log are kept too: of a version of n effects one SQL transaction
    does but a part, and it would be decoded for each of them.
    """

    def __init__(self, read: ReadUpdates) -> None:
        self._read = read
        self._remembered: dict[int, Update] = {}

    def remember(self, update: Update) -> None:
        """Keep ``update`` until it is projected."""
        if len(self._remembered) < MOST_REMEMBERED:
            self._remembered[update.version] = update

    def forget(self, version: int) -> None:
        """Drop what is projected: the versions up to this one."""
        for old in [old for old in list(self._remembered) if old <= version]:
            self._remembered.pop(old, None)

    def __call__(self, start: int, end: int) -> Sequence[Update]:
        updates: list[Update] = []
        while start + len(updates) < end:
            update = self._remembered.get(start + len(updates))
            if update is None:
                break
            updates.append(update)
        if updates:
            return updates
        read = self._read(start, end)
        self._remembered |= {update.version: update for update in read}
        return read


def _event(update: Update, entry: Entry) -> NewEvent:
    shown = tuple(change for change in entry.changes if kind_named(change.kind).in_events)
    body = DdlEvent(author=update.author, arguments=entry.arguments, changes=shown)
    return NewEvent(
        verb=entry.verb,
        body=encode(body),
        time=update.time,
        catalog_version=update.version,
        table_id=next((change.object_id for change in shown if change.kind == "table"), None),
    )
