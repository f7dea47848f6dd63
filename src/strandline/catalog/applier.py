"""Applying the log: how a node learns each version of the catalog.

**Order.** The log delivers each update to every node. The node stores the catalog, then calls its
listeners and waits for them. Only `CatalogApplier` records how far the log was applied, because it
keeps the versions: it requests from the log and the state what comes after its latest version.

**Fencing.** Opening the catalog fences every node that has it open. A fenced node notices this when
it applies the log. It drops its in-memory state, joins the newer epoch and continues; its listeners
begin again from the catalog at that point. The log refused everything that the node was writing
meanwhile. If the newer holder belongs to a newer deploy generation, every call raises `Superseded`
from then on.

**Large updates.** Between an append and `apply_own` the log is ahead of this node. A reader would
then read and decode the update itself, although the thread that appends it has it in memory. So the
result of a large update is set aside before the append (`own_append`). If the log then has that
same update, by its id, applying it costs one lookup. If another version came first, the result is
dropped. A child process of a node announces a large update before it appends it (``announce``): the
node decodes the update, applies it to its latest version, and sets the result aside (`expect`).

What must stay true: versions are applied once, in order, by the thread that holds the apply lock; a
listener sees a version only after `CatalogFollower.catalog` can return it; the failure of a
listener is counted and logged, and does not stop the others.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from strandline import work
from strandline.catalog.catalog import Catalog
from strandline.catalog.events import AppliedVersion, Listener, Listeners, OnReset
from strandline.catalog.history import AwaitedVersions, History
from strandline.catalog.set_back import SetBackCheck
from strandline.clock import HybridClock, Timestamp, add_milliseconds, system_elapsed
from strandline.condition import TimedLock
from strandline.durable import (
    AppliedUpdate,
    CatalogTransaction,
    DurableCatalogState,
    Frontier,
    SetBack,
    Superseded,
    Update,
    config_in,
    joined_anew,
)
from strandline.durable.state import ExpectedUpdate, TrimmedAway
from strandline.errors import DeadlineExceeded, Fenced, Stopping, Unavailable
from strandline.fencing import FenceToken
from strandline.outage import answer_deadline
from strandline.wire import decode, encode
from strandline.work.following import FollowingThread

logger = logging.getLogger(__name__)

DELAY = "delay_duration_ms"
SKEW = "max_clock_skew_ms"
DEFAULT_TIMEOUT = 30.0
ROUND_SECONDS = 0.1
LONGEST_ROUND_SECONDS = 0.5
"""The longest wait for new versions, reached after a quiet time, before a check for a stop."""
AFTER_COMMIT_SECONDS = 0.05
"""The time after a commit of this node during which the applier does not read the log."""
FINAL = (SetBack, Superseded)
"""Errors that every later call raises too: the process should end."""
AHEAD_MS = 1000
"""The lead of a log time that causes no warning, in a catalog that does not depend on clocks."""


Announce = Callable[[bytes], None]
"""Sends the record of a large update to the parent node; returns when it may be appended."""
JoinAnew = Callable[[DurableCatalogState], DurableCatalogState]
"""Returns a state of the newer epoch in place of a fenced one; see `joined_anew`."""


def lock_timeout(timeout: float) -> float:
    """``timeout`` limited to what locks accept: not too large, nor negative (which is for ever)."""
    return min(max(timeout, 0.0), threading.TIMEOUT_MAX)


def activated(applied: AppliedUpdate, *, delay_ms: int) -> Catalog:
    """The catalog of a version, which becomes active ``delay_ms`` after its time in the log.

    Version 0, the empty catalog, is active from the beginning.
    """
    active = applied.time
    if applied.version and delay_ms:
        active = add_milliseconds(active, delay_ms)
    return Catalog(applied.version, active, applied.contents)


class LogTime:
    """Moves the clock past the times of the log, and warns if this machine's clock is wrong.

    With a delay, reads of the present are fresh only while all clocks agree within the skew, which
    is ``allowed_ms``. ``allowed_ms`` is None if nothing depends on the clocks.
    """

    def __init__(self, clock: HybridClock, *, allowed_ms: int | None) -> None:
        self._clock = clock
        self._allowed = AHEAD_MS if allowed_ms is None else allowed_ms
        self._warned = False
        self._latest_time: Timestamp | None = None
        self.times_ahead = 0

    def move_past(self, at: Timestamp) -> None:
        """Move the clock past ``at``. Warns once while the times stay too far ahead."""
        if at == self._latest_time:  # the versions of a group have one time
            return
        self._latest_time = at
        self._clock.update(at)
        ahead = self._clock.ahead_of_wall(at)
        if ahead <= self._allowed:
            self._warned = False
            return
        self.times_ahead += 1
        if not self._warned:
            self._warned = True
            logger.warning(
                "the log has a time that is %d ms ahead of this machine's clock, but the catalog "
                "allows only %d ms; synchronize the clocks of all nodes, for example with NTP",
                ahead,
                self._allowed,
            )


class CatalogApplier:
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
        self.state = state
        """The durable state that this node writes with; a new one after it joins a newer epoch."""
        self._elapsed = elapsed
        self._announce = announce
        self._clock = clock
        self._join_anew = join_anew
        latest = state.recovered[-1].contents
        self.delay = int(config_in(latest, DELAY) or 0)
        self.skew = int(config_in(latest, SKEW) or 0)
        self._log_time = LogTime(clock, allowed_ms=self.skew if self.delay else None)
        self._applying = threading.RLock()
        self._expected: Sequence[ExpectedUpdate] = ()  # the next ones, in order
        self._awaited = AwaitedVersions()
        self._listeners = Listeners()
        self._stop = threading.Event()
        self._applier = FollowingThread(self._follow, name="catalog-applier", final=FINAL)
        self._quiet = ROUND_SECONDS
        self._joined_anew = 0
        self._set_back_check = SetBackCheck(elapsed)
        self._own_commit = float("-inf")  # when this node last applied its own append
        self._history = self._recovered(state)
        # The last frontier that was read, except that `upper` is the version after the last one for
        # which every listener was called.
        self._seen = Frontier(self._history.earliest.version, self._history.latest.version + 1)

    def _recovered(self, state: DurableCatalogState) -> History:
        """Every version that a newly opened or joined state has read."""
        recovered = state.take_recovered()
        history = History(*map(self._activated, recovered))
        self._latest_update = recovered[-1].version, recovered[-1].update.id  # b"" if unknown
        self._log_time.move_past(self._time_in_log(history.latest))
        return history

    def _activated(self, applied: AppliedUpdate) -> Catalog:
        return activated(applied, delay_ms=self.delay)

    def _time_in_log(self, catalog: Catalog) -> Timestamp:
        """The time that the log assigned to a version, which becomes active `delay` later."""
        late = catalog.version and self.delay
        return add_milliseconds(catalog.time, -self.delay) if late else catalog.time

    # -- life cycle ----------------------------------------------------------------------------

    def start(self) -> None:
        """Follow the log in a separate thread until `stop`."""
        self.sync()
        self._applier.start()

    def stop(self, *, wake: Callable[[], None] = lambda: None) -> None:
        """Stop following. Pending and later calls get `Stopping`. Reads from memory still work.

        ``wake`` ends the wait for new versions, which otherwise takes up to
        `LONGEST_ROUND_SECONDS`.
        """
        self._stop.set()
        self._complete_awaited()
        self._applier.stop(wake=wake)
        self.state.expire()

    def _follow(self) -> None:
        try:
            self._yield_to_commits()
            began = self._elapsed()
            if self.state.log.listen(self._seen, timeout=self._quiet) or (
                self._set_back_check.was_away
            ):
                self.sync()
                self._quiet = ROUND_SECONDS
            else:
                self._set_back_check.looked(began)
        except Exception:
            self._check_running()
            self._set_back_check.look_failed()
            raise
        self._quiet = min(self._quiet * 1.1, LONGEST_ROUND_SECONDS)

    def _yield_to_commits(self) -> None:
        """Wait, at most `ROUND_SECONDS`, while this node commits and so brings itself up to date.

        A look at the log after each commit would find nothing new and would delay the next commit.
        """
        latest_end = time.monotonic() + ROUND_SECONDS
        while (now := time.monotonic()) < (
            end := min(self._own_commit + AFTER_COMMIT_SECONDS, latest_end)
        ):
            if self._stop.wait(end - now):
                return

    def _check_running(self) -> None:
        if self._stop.is_set():
            raise Stopping.of_node()

    def check_head(self) -> None:
        """Read the head of the log as readers of the present do, who wait for no writer of rows.

        Raises what the store raises, and `SetBack`.
        """
        log = self.state.log
        frontier = log.look().frontier if self.delay else log.frontier()
        if frontier.upper <= self._history.latest.version or self._set_back_check.was_away:
            self.sync(up_to=frontier)

    def lag(self) -> int:
        """The number of versions in the log that are not applied here.

        Raises what the store raises.
        """
        applied = self._history.latest.version
        return max(0, self.state.log.frontier().upper - 1 - applied)

    def check_applier(self, *, longest: float) -> None:
        """Raise `Unavailable` with the reason if new versions are not being applied here.

        That is the case if the thread that applies them has been behind the log for more than
        ``longest`` seconds.
        """
        self._check_running()
        self._applier.check(longest=longest)

    def subscribe(self, listener: Listener, *, on_reset: OnReset | None = None) -> None:
        """Call ``listener`` for each version applied from now on.

        If versions were trimmed before this node applied them, ``on_reset`` is called instead, with
        the catalog to begin again from. A listener without ``on_reset`` must not depend on seeing
        every version.
        """
        with self._applying:
            self._listeners.add(listener, on_reset=on_reset)

    # -- apply ---------------------------------------------------------------------------------

    def sync(self, *, up_to: Frontier | None = None) -> None:
        """Apply the log up to its present head, or at least to a frontier that was just read.

        Raises `Superseded`, `WrongEnvironment`, `SetBack`.
        """
        with self._turn():
            began = self._elapsed()
            try:
                frontier = up_to or self.state.log.frontier()
                latest = self._history.latest.version
                version, update_id = self._latest_update
                self._set_back_check.refuse_lost_version(
                    self.state, latest, frontier, version=version, update_id=update_id
                )
                frontier = self._apply_all(frontier)
            except Fenced:
                self._begin_anew()
                frontier = self._apply_all(self.state.log.frontier())
            except Unavailable:
                self._set_back_check.look_failed()
                raise
            self._set_back_check.looked(began)
            if self._listeners.calling:
                return  # a listener reads; its version is not complete yet
            self._listeners.call()  # for what an interrupt left pending
            upper = self._history.latest.version + 1
            self._seen = Frontier(frontier.since, upper, frontier.pruned)
        self._complete_awaited()

    def _turn(self) -> AbstractContextManager[object]:
        """For a block that reads the log and applies it.

        Waits for other threads no longer than this thread may wait for the store. Raises
        `DeadlineExceeded`.
        """
        deadline = answer_deadline()
        if deadline == math.inf:
            return self._applying
        late = DeadlineExceeded(
            "the log of the catalog did not answer another call of this node within the time limit "
            "of this one, which did nothing; try again"
        )
        seconds_left = min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
        return TimedLock(self._applying, timeout=seconds_left, late=late)

    def connection_lost(self) -> None:
        """Compare the latest version with the log before anything else is applied.

        For a connection to the server of the log that was found lost. Safe to call at any time.
        """
        self._set_back_check.look_failed()

    def refuse_set_back(self) -> None:
        """Raise `SetBack` if this node was paused and the log has lost its latest version."""
        if self._set_back_check.was_away:
            self.sync()

    @contextmanager
    def own_append(self, transactions: Sequence[CatalogTransaction]) -> Iterator[None]:
        """In the block, the calling thread commits ``transactions`` and calls `apply_own`."""
        changes = sum(
            len(entry.changes) for transaction in transactions for entry in transaction.entries
        )
        if changes <= work.AT_ONCE:
            yield
            return
        updates = [transaction.update(member=self.state.member) for transaction in transactions]
        if self._announce is not None and len(transactions) == 1:
            self._announce(encode(updates[0]))
        self._expected = [
            ExpectedUpdate(transaction.base.contents, update, transaction.contents)
            for transaction, update in zip(transactions, updates, strict=True)
        ]
        try:
            yield
        finally:
            self._expected = ()

    def expect(self, record: bytes) -> None:
        """Prepare the update in ``record``, which a child process is about to append."""
        self.sync()
        latest, update = self._history.latest, decode(record, Update)
        if update.version == latest.version + 1:
            contents = latest.contents.apply(update.changes())
            self._expected = [ExpectedUpdate(latest.contents, update, contents)]

    def _apply_expected(self) -> bool:
        """Apply the expected update if it is the next one in the log. Return whether it was."""
        expected = self._expected
        if not expected:
            return False
        applied = None
        if expected[0].base is self._history.latest.contents:
            applied = self.state.if_appended(expected[0])
        if self._expected is expected:
            # Without the next update, none of them: another version came first.
            self._expected = () if applied is None else expected[1:]
        if applied is None:
            return False
        self._apply(applied)
        return True

    def _apply_all(self, frontier: Frontier) -> Frontier:
        """Apply the log up to ``frontier``, and return it. Raises `Fenced`, `Unavailable`."""
        while (latest := self._history.latest).version + 1 < frontier.upper:
            if not self._apply_expected():
                self._apply_some()
            if self._history.latest is latest:
                raise Unavailable(
                    f"the log had version {frontier.upper - 1} a moment ago and now ends at "
                    f"{latest.version}: its database was set back under this node; start the node "
                    "again"
                )
        if frontier.since > self._history.earliest.version:
            self._keep_only(self._history.trimmed(frontier.since))
        return frontier

    def _keep_only(self, history: History) -> None:
        """Continue with ``history``. What it lacks is freed when no reader uses it any more."""
        former = self._history.catalogs()
        self._history = history  # first: `former` must have the last references
        work.free_slowly(former)

    def _begin_anew(self) -> None:
        """Drop the in-memory state, and join the epoch that has fenced this node."""
        lost_token = self.state.token
        state = self._join_anew(self.state)
        logger.warning(
            "another node fenced this node at %s; it has now joined %s", lost_token, state.token
        )
        history = self._recovered(state)
        self.state = state
        self._keep_only(history)
        self._joined_anew += 1
        self._listeners.call(history.latest)

    @property
    def set_back(self) -> Future[str]:
        """See `SetBackCheck.set_back`."""
        return self._set_back_check.set_back

    @property
    def token(self) -> FenceToken:
        """The fence token that this node writes with now."""
        return self.state.token

    def apply_own(self, updates: Sequence[AppliedUpdate]) -> list[Catalog]:
        """Apply updates that this node has just appended after its latest version.

        Returns their catalogs. Some may already have been applied, by a reader of the log.
        """
        catalogs = []
        self._own_commit = time.monotonic()
        with self._applying:
            self.refuse_set_back()  # the log may be another one since they were validated
            for applied in updates:
                if applied.version > self._history.latest.version:
                    self._apply(applied)
                catalog = self._history.find(applied.version)  # None: trimmed meanwhile
                catalogs.append(catalog or self._activated(applied))
            if self._listeners.calling:
                return catalogs
            self._listeners.call()
            self._seen = replace(self._seen, upper=self._history.latest.version + 1)
        self._complete_awaited()
        return catalogs

    def _complete_awaited(self) -> None:
        """Complete the futures of versions that all listeners have seen; fail the rest on stop."""
        self._awaited.complete(self._seen.upper, self._history.at_version)
        if self._stop.is_set():
            self._awaited.end(Stopping.of_node())

    def _apply_some(self) -> None:
        try:
            updates = self.state.updates_after(self._history.latest)
        except TrimmedAway as error:
            # The catalog is complete, but the listeners never see the versions in between.
            logger.info("%s", error)
            self._keep_only(History(self._activated(self.state.start())))
            self._log_time.move_past(self._time_in_log(self._history.latest))
            self._listeners.call(self._history.latest)
            return
        for applied in updates:
            if applied.version > self._history.latest.version:  # else a listener's read did
                self._apply(applied)

    def _apply(self, applied: AppliedUpdate) -> None:
        before = self._history.latest
        catalog = self._activated(applied)
        self._history.append(catalog)
        self._latest_update = applied.version, applied.update.id
        for change in applied.update.changes():
            if change.old is None:
                continue
            replaced = before.contents.get(change.kind, change.key)
            if replaced is not None:  # few read the past: keep only its bytes
                replaced.forget()
        self._log_time.move_past(applied.time)
        self._listeners.call(AppliedVersion(applied.update, before, catalog))

    def catalog_ready(self, version: int, *, timeout: float = DEFAULT_TIMEOUT) -> Catalog:
        """Wait until ``version`` is applied here and its listeners have returned.

        Return its catalog. Raises `DeadlineExceeded` after ``timeout`` seconds.
        """
        future = self.ready(version)
        try:
            return future.result(timeout=lock_timeout(timeout))
        except FutureTimeout:
            self._awaited.forget(future)
            raise DeadlineExceeded(
                f"version {version} did not arrive within {timeout} s; check the number, and try"
                " again"
            ) from None

    def ready(self, version: int) -> Future[Catalog]:
        """A future for `catalog_ready`; on an event loop, ``await asyncio.wrap_future`` it.

        Fails with `Stopping` if this node stops first.
        """
        future = self._awaited.add(version)
        self._complete_awaited()
        return future
