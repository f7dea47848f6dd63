"""Following the notification log: how events change replicas, and whether memory is level with it.

Events are read in batches and applied one by one, in order, by the thread that has the lock. All
reads of SQL happen before the lock of the replicas is taken.

Memory is *level* at a moment if every event that the log had then is applied. A *look* at the log
takes the mark of the database, reads the head, and applies the events up to it. In a folder, an
unchanged mark proves that nothing was committed since, so the head has not moved. A server's
notification of a commit may still be on its way: there, memory counts as level while the mark has
not changed, but for less than ``staleness`` seconds after the look. Reading the mark takes
microseconds, so each reader of the present can compare it.

If the database was set back (a standby without the last commits took over, or an older backup was
restored), the log may have ended earlier and have other events now. So each read of the log begins
with the last event that was applied. If it is another one than before, memory is dropped. After a
failed read or a lost connection, memory answers no reader until the next read: a write may have got
the write id of a lost one. A table that was loaded with later events than the last applied one is
followed by a look, so that a lost event is always noticed.

A look also reads up to which catalog version DDL was projected. Memory may answer for the places of
tables to readers of catalogs up to that version.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from strandline.catalog.verbs import verb_named
from strandline.clock import Timestamp
from strandline.condition import LockTaken, TimedLock
from strandline.errors import Stopping, StrandlineError, Unavailable
from strandline.metastore.cache.replica_set import Change, HeldReplica, ReplicaSet
from strandline.metastore.cache.replicas import Replica
from strandline.metastore.store.notifications import (
    ABORT,
    COMMIT,
    STAGED,
    LogPosition,
    Notification,
    WriteEvent,
)
from strandline.metastore.store.object_store import SqlObjectStore

logger = logging.getLogger(__name__)

BATCH = 100
"""The number of events that are read and applied at once."""
MAX_CHANGED_ROWS = 20_000
"""The maximum number of rows that are applied as one change; more evict their table."""
INTERVAL_SECONDS = 0.05
"""The shortest time between a look at the log and the next one of the following thread."""
ROUND_SECONDS = 0.25
_OF_ROWS = frozenset((*STAGED, COMMIT, ABORT))
SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 0.05, 30.0
"""How long in seconds a reader waits for another reader's look at the head: the staleness, within
these limits."""


class _Level(NamedTuple):
    """The result of a look that applied the log up to its head.

    ``mark`` is the database's mark, ``at`` the time, and ``invalidations`` the number of calls of
    `invalidate_level`, all as the look began. ``projected_version`` is what the log contained.
    """

    mark: int
    at: float
    projected_version: int
    invalidations: int


class LogApplier:
    """See the module. Calls ``on_move`` with each moved table, or None if any may have moved.

    Calls ``on_set_back`` if the database was set back.
    """

    def __init__(
        self,
        store: SqlObjectStore,
        replicas: ReplicaSet,
        *,
        on_move: Callable[[int | None], None],
        on_set_back: Callable[[], object],
        staleness: float | Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._notifications = store.notifications
        self._replicas = replicas
        self._on_move = on_move
        self._on_set_back = on_set_back
        self._staleness = staleness if callable(staleness) else lambda: staleness
        self._monotonic = monotonic
        self._applying = threading.Lock()
        self._last_applied: tuple[int, Timestamp] | None = None  # the last event, if it was read
        self._last_outage = self._noticed_outage = object()  # noticed by a read that began after it
        self._checking = threading.RLock()
        self._last_level: _Level | None = None
        self._looks = 0  # that have begun; changed under `_checking`
        self._last_reach = 0  # the last look that reached the head
        self._far_behind = 0  # threads that are applying more than a batch
        self._invalidating = threading.Lock()
        self._invalidations = 0  # grows with each `invalidate_level`

    # -- applying

    def apply(self, limit: int) -> int:
        """Apply the next events, at most ``limit``; return their number. One thread at a time.

        Raises `Unavailable` if the store cannot be read; then no event was skipped.
        """
        return self._apply_next(limit)[1]

    def _apply_next(self, limit: int) -> tuple[LogPosition, int]:
        """`apply`; return also the log's position when the events were read."""
        with self._applying:
            applied, outage = self._replicas.applied_event, self._last_outage
            try:
                position, events = self._notifications.read_next(applied, limit=limit)
            except Unavailable:
                self.connection_lost()
                raise
            if events and events[0].event_id == applied:
                last = events.pop(0)
                is_set_back = self._is_another(last)
                self._last_applied = last.event_id, last.time
            else:
                is_set_back = position.event_id < applied
            if is_set_back:
                logger.error(
                    "event %d of the notification log was applied here, but is no longer in it: "
                    "the database was set back (a standby without the last commits took over, or "
                    "an older backup was restored). This node goes on without the lost commits; "
                    "find out which jobs made them (`strandline log --data` shows the last one "
                    "that is kept), and run these again",
                    applied,
                )
                self._start_after(position.event_id)
                self._on_set_back()
            self._noticed_outage = outage
            if is_set_back:
                return position, 0
            if events and events[0].event_id != applied + 1:
                # The log was cleaned beyond `applied`: the events in between are unknown.
                self._start_after(events[0].event_id - 1)
            for _, run in groupby(events, key=_run_key):
                self._apply_run(list(run))
            if events:
                self._last_applied = events[-1].event_id, events[-1].time
            return position, len(events)

    def connection_lost(self) -> None:
        """Look at the log before memory answers again: another server may have taken over.

        Safe to call at any time.
        """
        self._last_outage = object()

    @property
    def was_away(self) -> bool:
        """Whether the database may have been set back since the last read of the log."""
        return self._last_outage is not self._noticed_outage

    def _is_another(self, event: Notification) -> bool:
        """Whether an event has the id of the last one that was applied, and is not that one."""
        last = self._last_applied
        return last is not None and last[0] == event.event_id and last[1] != event.time

    def _start_after(self, event_id: int) -> None:
        self._replicas.restart(event_id)
        self._on_move(None)

    def _apply_run(self, run: Sequence[Notification]) -> None:
        """Apply consecutive events as one change: DDL, or stagings under one write id.

        If a staging cannot be read, each event is applied or skipped by itself.
        """
        if run[0].verb not in _OF_ROWS:
            self._apply_ddl(run)
            return
        if len(run) > 1:
            try:
                changes = self._staged(run)
            except (Unavailable, Stopping):
                raise
            except Exception:
                logger.exception("events from %d on cannot be applied together", run[0].event_id)
            else:
                self._replicas.apply(run[-1].event_id, changes)
                return
        for event in run:
            self._apply_event(event)

    def _apply_ddl(self, run: Sequence[Notification]) -> None:
        """Apply events of the catalog: in memory, they change only the places of tables."""
        for event in run:
            folders = verb_named(event.verb).folders
            if folders is not None and folders.is_of_table:
                self._on_move(event.table_id)
        self._replicas.apply(run[-1].event_id, ())

    def _apply_event(self, event: Notification) -> None:
        try:
            changes = self._changes(event)
        except (Unavailable, Stopping):
            raise
        except Exception:
            logger.exception("event %d (%s) cannot be read", event.event_id, event.verb)
            self._replicas.skip(event.event_id, poisoned=self._tables_of(event))
            return
        self._replicas.apply(event.event_id, changes)

    def _changes(self, event: Notification) -> list[tuple[int, Change]]:
        number = event.event_id
        if event.verb in STAGED:
            return self._staged([event])
        end = committing if event.verb == COMMIT else aborting
        return [(t, end(number, w)) for t, w in event.end().writes]

    def _staged(self, run: Sequence[Notification]) -> list[tuple[int, Change]]:
        """The changes that stagings under one write id make to the replicas."""
        last = run[-1]
        table_id, write_id, number = last.table_id, last.write_id, last.event_id
        if table_id is None or write_id is None or not self._replicas.needs(table_id, number):
            return []
        stagings = [(event.event_id, event.write()) for event in run]
        if sum(body.rows + len(body.removed) for _, body in stagings) > MAX_CHANGED_ROWS:
            self._replicas.evict(table_id)
            return []
        added = [
            row
            for part in _joined(body for _, body in stagings)
            for row in self._store.staged_rows(table_id, write_id, part)
        ]
        if len(added) < sum(body.rows for _, body in stagings):
            # Some rows are cleaned already: the next load reads the cleaning limit.
            self._replicas.evict(table_id)
            return []

        def stage(replica: Replica) -> Replica:
            # A replica that was loaded during the run has the rows of its first events.
            fresh = [body for event_id, body in stagings if event_id > replica.event_id]
            ids = {row_id for body in fresh for row_id in body.added}
            rows = [row for row in added if row.row_id in ids]
            removed = tuple(row_id for body in fresh for row_id in body.removed)
            return replica.staged(number, write_id, rows, removed)

        return [(table_id, stage)]

    def _tables_of(self, event: Notification) -> Collection[int] | None:
        """The tables that an event is about, without its body; None if they are unknown."""
        if event.table_id is not None:
            return (event.table_id,)
        try:
            if event.txn_id is not None:
                return [t for t, _ in self._store.transactions.write_id_pairs(event.txn_id)]
        except StrandlineError:
            logger.exception("the tables of transaction %d cannot be read", event.txn_id)
        return None

    # -- being level

    @property
    def _level(self) -> _Level | None:
        """The result of the last look; None if `invalidate_level` was called since it began."""
        level = self._last_level
        return level if level is not None and level.invalidations == self._invalidations else None

    def is_at_head(self) -> bool:
        """Whether every event of the log is known to be applied. Does not wait."""
        level = self._level
        if level is None or level.mark != self._notifications.mark():
            return False
        return self._notifications.mark_is_proof or self._is_young(level)

    def mark(self) -> int | None:
        """A number that changes whenever answers about the present may change.

        None if this cannot be known without waiting. If it is no proof, it changes a little later.
        The number does not cover a catalog in another database or with a delay.
        """
        mark = self._notifications.mark()
        if self._notifications.mark_is_proof:
            return mark
        level = self._level
        if level is None or level.mark != mark or not self._is_young(level):
            return None
        return mark + level.invalidations  # neither ever decreases, so no sum recurs

    def has_projected(self, version: int, *, is_last: bool) -> bool:
        """Whether memory has all changes of places up to ``version``, and by all later DDL.

        ``is_last`` says that there is no later DDL. Then commits of rows that are not applied do
        not matter.
        """
        level = self._last_level
        if level is None or level.projected_version < version:
            return False
        return is_last or self.is_at_head()

    def _is_young(self, level: _Level) -> bool:
        # Not "<=": the clock counts whole milliseconds. With a staleness of 0, a look would count
        # for the rest of its millisecond, in which another node may commit.
        return self._monotonic() - level.at < self._staleness()

    def is_known_level(self) -> bool:
        """Whether memory is known to be fresh enough for the present. Does not wait."""
        level = self._level
        return level is not None and (self._is_young(level) or self.is_at_head())

    def is_level(self) -> bool:
        """Whether memory is fresh enough for the present; looks at the head if necessary.

        Returns False if this takes too long: the caller must read the store.
        """
        return self.is_known_level() or self.look()

    def is_same_log(self) -> bool:
        """Whether memory reflects this log; looks at it if it was away."""
        return not self.was_away or self.look() or not self.was_away

    def look(self) -> bool:
        """Look at the head and apply the events up to it; return whether memory is then level.

        False if it takes more than a batch, if another look takes too long, or if the log fails.
        Readers that arrive during a look share the next one.
        """
        if self._far_behind:
            return False
        looks = self._looks
        timeout = min(max(self._staleness(), SHORTEST_TIMEOUT), LONGEST_TIMEOUT)
        try:
            with TimedLock(self._checking, timeout=timeout):
                # The look that this reader waited for may have found memory far behind.
                if self._far_behind:
                    return False
                return self._last_reach > looks or self._look() is None
        except LockTaken:
            return False
        except (Unavailable, Stopping):
            logger.warning("the head of the notification log cannot be read", exc_info=True)
            return False

    def catch_up(self) -> None:
        """Apply the log up to its present head.

        If this takes more than a batch, readers of the present do not wait, but read the store.
        """
        with self._checking:
            ahead = self._look()
            if ahead is None:
                return
            self._far_behind += 1
        head, level = ahead
        try:
            while self._replicas.applied_event < head:
                if not self._apply_next(BATCH)[1] and self._replicas.applied_event < head:
                    return  # the log was set back meanwhile; the next look begins anew
        finally:
            with self._checking:
                self._far_behind -= 1
        with self._checking:
            self._record_level(level)

    def restore(self, applied_event: int, replicas: Iterable[HeldReplica]) -> None:
        """Hold the replicas of a `CachedStore.snapshot`, and apply the events since."""
        with self._applying:
            self.invalidate_level()
            self._replicas.restore(applied_event, replicas)
        self.catch_up()

    def invalidate_level(self) -> None:
        """Let memory count as level only after a look that begins later: it may lack a write.

        `mark` never returns an earlier value again, even before the database's mark has moved.
        """
        with self._invalidating:
            self._invalidations += 1

    def apply_own(self) -> None:
        """Apply what this node has just written. Errors are logged: the write is committed."""
        try:
            self.catch_up()
        except Exception as error:  # of any kind: its caller must not take the write for undone
            level = logging.WARNING if isinstance(error, StrandlineError) else logging.ERROR
            logger.log(
                level, "a write of this node could not be applied to memory yet", exc_info=True
            )
            self.invalidate_level()  # reads of the present look at the log before they answer

    def follow(self) -> None:
        """Wait for a commit, for a bounded time, and catch up.

        Waits a little so that consecutive commits are applied together. A reader that needs one
        sooner applies it itself.
        """
        last = self._last_level
        if last is not None:
            mark = self._notifications.wait(last.mark, timeout=ROUND_SECONDS)
            if mark == last.mark and last.invalidations == self._invalidations:
                return
            pause = last.at + INTERVAL_SECONDS - self._monotonic()
            if pause > 0:
                time.sleep(min(pause, INTERVAL_SECONDS))
        self.catch_up()

    def _look(self) -> tuple[int, _Level] | None:
        """Apply one batch, under `_checking`; return None if that reached the head.

        Otherwise return the head, and the level that is reached when it is applied. If the previous
        look serves this thread too, no event is read.
        """
        self._looks += 1
        look = self._looks
        invalidations = self._invalidations  # read first: a later one needs another look
        at, mark = self._monotonic(), self._notifications.mark()
        level = self._level
        if level is not None and level.mark == mark and self._notifications.mark_is_proof:
            self._last_level = level._replace(at=at)
            return None
        position, _ = self._apply_next(BATCH)
        level = _Level(mark, at, position.projected_version, invalidations)
        if self._replicas.applied_event < position.event_id:
            return position.event_id, level
        self._record_level(level)
        self._last_reach = look
        return None

    def _record_level(self, level: _Level) -> None:
        """Record the level, under `_checking`, unless that of a later look is recorded already."""
        if self._last_level is None or self._last_level.at <= level.at:
            self._last_level = level


def _run_key(event: Notification) -> tuple[str | None, int | None, int | None]:
    """A key that is equal for events in a row that `LogApplier._apply_run` applies as one change.

    The id makes each end of a transaction a run of its own.
    """
    if event.verb in STAGED:
        return event.verb, event.table_id, event.write_id
    if event.verb in _OF_ROWS:
        return event.verb, event.event_id, None
    return None, None, None


def _joined(stagings: Iterable[WriteEvent]) -> Iterator[WriteEvent]:
    """The row ranges that the stagings added, with consecutive ranges joined."""
    before = WriteEvent()
    for body in stagings:
        if body.first_row_id == before.added.stop:
            before = WriteEvent(first_row_id=before.first_row_id, rows=before.rows + body.rows)
            continue
        yield before
        before = body
    yield before


def committing(event_id: int, write_id: int) -> Change:
    return lambda replica: replica.with_commit(event_id, write_id)


def aborting(event_id: int, write_id: int) -> Change:
    return lambda replica: replica.with_abort(event_id, write_id)
