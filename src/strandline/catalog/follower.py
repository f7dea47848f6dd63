"""How a node answers reads from the versions that it has applied.

**Freshness.** A node looks at the log, gets the log's time s, and applies all versions it saw. It
then knows every catalog that is active up to s + delay. Until its clock reaches that time (less the
skew) it answers reads of the present from memory. After that it looks again. With a delay of 0 it
checks at every read whether anything was appended, which takes microseconds for a log in a folder.
So a node that was stopped or cut off waits or fails; it never answers with an old catalog.

A look also expires after delay − skew of *elapsed* time, counted from before the look, so that
setting the wall clock back does not extend it. (Elapsed time goes on while the process or the
machine sleeps.) Callers that wait for the same look share it, and its failure too.

A look stays valid when the node joins a newer epoch, because the log is the same.

A look at a server is a write, which waits for the appends before it, but not for writes of rows.
So a thread looks again ahead of time: when a reader uses a look whose second half has begun. While
a node is asked often, its readers find a valid look; a node without readers does not look.

If the store is full, no look succeeds. Then each read of the present reads the end of the log.
Reads that also need the time, such as those of transactions, fail.

Rejected: reading the log on every read.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass

from strandline import work
from strandline.catalog.applier import DEFAULT_TIMEOUT, FINAL, Announce, CatalogApplier, JoinAnew
from strandline.catalog.catalog import Catalog
from strandline.catalog.events import VersionInfo, read_history
from strandline.clock import (
    MIN_TIMESTAMP,
    HybridClock,
    Timestamp,
    add_milliseconds,
    format_timestamp,
    milliseconds,
    require_time,
    system_elapsed,
)
from strandline.durable import DurableCatalogState, Update, joined_anew
from strandline.errors import DeadlineExceeded, NotFresh, StrandlineError
from strandline.outage import answer_deadline, waits_for_less
from strandline.sql import StoreFull
from strandline.work.following import FollowingThread

LOOKS = 3
"""The number of looks at the log before a read gives up proving that it is fresh."""


class Behind(NotFresh):
    """This node has not applied all versions that the read needs; sync and read again."""


@dataclass(frozen=True, slots=True)
class _Horizon:
    """How long the result of a look at the log is valid.

    Every version that is active at or before ``known`` was applied. The node may answer for the
    present while its clock, which may be slow by the skew, is at most ``present``, and the elapsed
    time is less than ``until``. A reader at ``half`` or later causes the next look.
    """

    known: Timestamp
    present: Timestamp
    half: int
    until: int


_NOTHING_KNOWN = _Horizon(MIN_TIMESTAMP, MIN_TIMESTAMP, 0, 0)


class CatalogFollower(CatalogApplier):
    """See the module. Safe to use from several threads."""

    def __init__(
        self,
        state: DurableCatalogState,
        clock: HybridClock,
        *,
        elapsed: Callable[[], int] = system_elapsed,
        join_anew: JoinAnew = joined_anew,
        announce: Announce | None = None,
    ) -> None:
        super().__init__(state, clock, elapsed=elapsed, join_anew=join_anew, announce=announce)
        self._horizon = _NOTHING_KNOWN
        self._half_used = _NOTHING_KNOWN  # the last horizon that a reader used in its second half
        self._look_ahead = threading.Event()
        self._looker = FollowingThread(
            self._look_for_readers,
            name="catalog-looker",
            final=FINAL,
        )
        self._looks = 0  # begun by readers of the present
        self._last_look: tuple[int, StrandlineError | None] = (0, None)  # the last that ended

    def start(self) -> None:
        super().start()
        if self.delay:
            self._looker.start()

    def stop(self, *, wake: Callable[[], None] = lambda: None) -> None:
        super().stop(wake=wake)
        self._looker.stop(wake=self._look_ahead.set)

    def _look_for_readers(self) -> None:
        """Look at the log after a reader has found a look half used, once for each look.

        If the look fails, the next reader looks for itself, and gets the error.
        """
        self._look_ahead.wait()
        self._look_ahead.clear()
        if self._half_used is self._horizon and not self._stop.is_set():
            self.look()

    # -- the present ---------------------------------------------------------------------------

    def known_present(self) -> Catalog | None:
        """The catalog of the present if it can be proved without waiting, else None."""
        if self.delay:
            horizon, elapsed, now = self._horizon, self._elapsed(), self._clock.current()
            fresh = now <= horizon.present and elapsed < horizon.until
            if fresh and elapsed >= horizon.half and horizon is not self._half_used:
                self._half_used = horizon
                self._look_ahead.set()
            return self._history.at_time(now) if fresh else None
        latest, seen, log = self._history.latest, self._seen, self.state.log
        if not log.frontier_is_cheap:
            return None
        if log.frontier() == seen and latest.version + 1 == seen.upper:
            return latest
        return None

    def present(self) -> Catalog:
        """The catalog active now. It includes every `execute` that has returned, on any node.

        Raises `NotFresh` if `LOOKS` looks at the log cannot prove that.
        """
        present = self.known_present()
        if present is not None:
            return present
        if not self.delay:
            looks = self._looks
            with self._turn():
                self._for_all(self.sync, since=looks)
            return self._history.latest
        for _ in range(LOOKS):
            looks, called_at = self._looks, self._clock.current()
            with self._turn():
                present = self.known_present()  # another thread may have looked meanwhile
                if present is not None:
                    return present
                try:
                    self._for_all(self._look, since=looks)
                except StoreFull:
                    return self._present_of_full_store()
                known_until = self._horizon.known
                if called_at <= known_until:
                    # On a slow machine the look may take longer than the delay. The catalog of
                    # ``known_until`` still has every change that had returned when this call began.
                    return self._history.at_time(min(known_until, self._clock.current()))
        raise NotFresh(
            f"this node read the log {LOOKS} times and could not prove that its catalog is "
            "current: its clock is ahead of the store's clock by more than the catalog allows; "
            "set the clock, or use another node"
        )

    def _present_of_full_store(self) -> Catalog:
        """The present from a read of the log's end, which writes nothing.

        It too includes every `execute` that has returned. But without the write of a look, a change
        that is still on its way may get an earlier time than this read, after there is space again.
        So this is no answer to a caller that keeps the time.
        """
        self.sync()
        return self._history.at_time(self._clock.current())

    def look(self) -> Timestamp:
        """Look at the log and apply it. Return the time up to which all catalogs are known.

        Callers that wait at the same time share one look, and its failure.
        """
        looks = self._looks
        with self._turn():
            self._for_all(self._look, since=looks)
            return self._horizon.known

    def _for_all(self, look: Callable[[], object], *, since: int) -> None:
        """Run ``look`` once for all waiting callers.

        The caller holds the lock; ``since`` is the number of looks that had begun when it arrived.
        A look that began after that also answers this caller, and so does its failure. If each
        caller tried again, the last would wait for one time-out per caller before it learned that
        the store is unavailable. A call that waited less for the store than others may keeps its
        failure for itself.
        """
        number, error = self._last_look
        if number > since:
            if error is not None:
                raise copy(error)
            return
        self._looks += 1
        number = self._looks
        try:
            look()
        except StrandlineError as failure:
            is_silent = isinstance(failure, DeadlineExceeded) and answer_deadline() == math.inf
            if is_silent or not waits_for_less():
                # Without its frames, which would keep an open cursor and a closed database alive.
                self._last_look = number, copy(failure)
            raise
        self._last_look = number, None

    def _look(self) -> Timestamp:
        """Look at the log and apply it. Return the time up to which all catalogs are known."""
        began = self._elapsed()
        checked = self.state.log.look()
        self.sync(up_to=checked.frontier)
        known_until = add_milliseconds(checked.time, self.delay)
        valid_ms = self.delay - self.skew
        self._log_time.move_past(checked.time)
        self._horizon = _Horizon(
            known_until,
            add_milliseconds(known_until, -self.skew) if self.skew else known_until,
            began + valid_ms // 2,
            began + valid_ms,
        )
        return known_until

    def wait_for_completeness(self, at: Timestamp, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Return when this node knows every catalog that is or will be active at ``at``.

        Raises `DeadlineExceeded`, also if ``at`` is more than ``timeout`` seconds ahead, and what a
        look raises, unless an earlier one has shown these catalogs.
        """
        require_time(at)
        end = time.monotonic() + timeout
        # Every later version becomes active after the time that a look has shown.
        while at > self._horizon.known:
            self._check_running()
            known_until = self._look()
            if at <= known_until:
                return
            ahead = (milliseconds(at) - milliseconds(known_until)) / 1000
            seconds_left = end - time.monotonic()
            if ahead > seconds_left:
                raise DeadlineExceeded(
                    f"{format_timestamp(at)} is {ahead:.3f} s ahead of the store's time; ask for "
                    "a time in the past"
                )
            self._stop.wait(max(ahead, 0.001))

    def complete_now(self) -> Timestamp:
        """Return the store's present time, after all catalogs active by then were applied."""
        checked = self.state.log.check()
        self.sync(up_to=checked.frontier)
        return checked.time

    def now(self) -> Timestamp:
        """The present time of this node's clock."""
        return self._clock.current()

    def active_catalog(self, at: Timestamp) -> Catalog:
        """The catalog active at ``at`` among those that this node has applied."""
        return self._history.at_time(at)

    def catalog_as_of(self, at: Timestamp) -> Catalog:
        """The catalog active at ``at``. Repeated calls with the same time give the same catalog."""
        self.wait_for_completeness(at)
        return self._history.at_time(at)

    def catalog(self, version: int) -> Catalog:
        """The catalog of ``version``. Raises `VersionNotFound` with the earliest or latest version.

        Takes no lock if the version was already applied here, so it may be called inside a SQL
        transaction.
        """
        if version > self._history.latest.version:
            self.sync()
        return self._history.at_version(version)

    def last_moment(self, version: int) -> Timestamp | None:
        """The last time at which ``version`` was active, or None if no version follows it.

        Versions that were appended together have one time. That is the last time of each but the
        last of them, so that no version ends before its history begins.
        """
        if version > self._history.latest.version:
            self.sync()
        history = self._history  # read once: it may be trimmed meanwhile
        catalog, end = history.at_version(version), history.ends_at(version)
        return None if end is None else max(catalog.time, Timestamp(end - 1))

    def latest_catalog(self) -> Catalog:
        """The highest version applied here; it may not be active yet."""
        return self._history.latest

    def earliest_catalog(self) -> Catalog:
        """The lowest version that can be read."""
        return self._history.earliest

    def catalog_at(self, at: Timestamp, *, upper: int | None) -> Catalog:
        """The catalog active at ``at``, for a SQL transaction that is about to commit at ``at``.

        ``upper`` is the upper of the log, read inside that SQL transaction, so no version can come
        between. It is None if the log is in another database. Then an earlier look must have shown
        that no other version can be active at ``at``. Never waits. Raises `Behind`: roll back, call
        `sync` (or `look` if ``upper`` is None), and try again with a later time.
        """
        if upper is None:
            if at > self._horizon.known:
                raise Behind(
                    f"the catalog of {format_timestamp(at)} is not known yet: this node last "
                    f"looked at the log for times up to {format_timestamp(self._horizon.known)}"
                )
        elif upper != self._history.latest.version + 1:
            raise Behind(
                f"the log ends at version {upper - 1}, but the latest version that this node has "
                f"applied is {self._history.latest.version}"
            )
        elif self._set_back_check.was_away:
            raise Behind(
                "this node has not read the log for a while, so the log may have lost versions "
                "that were applied here"
            )
        return self._history.at_time(at)

    # -- history -------------------------------------------------------------------------------

    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        """The updates of versions ``start`` to ``end`` − 1, read from the log."""
        return self.state.log.updates(start, end)

    def each_update(self, first: int, last: int) -> Iterator[Update]:
        """The updates of versions ``first`` to ``last``, of which a part is in memory at a time.

        Charges them to the budget.
        """
        work.spend(max(0, last + 1 - first))
        yield from self.state.log.each_update(first, last + 1)

    def history(self, start: int = 1, end: int | None = None) -> list[VersionInfo]:
        """The actions of each version, including trimmed versions, without silent versions."""
        return read_history(self.state.log, start, end, delay_ms=self.delay)
