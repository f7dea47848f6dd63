"""Following the log: how a node learns each version, and what it answers from memory.

**Apply.** The log delivers each update to every node, in order; the node stores the catalog, then
tells its listeners and waits for them.

**Freshness.** After a look at the log that returned the time s, a node that has applied all it saw
knows every catalog that is active up to s + delay. Until its clock reaches that (less the skew) it
answers for the present from memory; then it looks again. With a delay of 0 it asks at every read
whether anything was appended, which a folder answers in microseconds. So a node that was stopped
or cut off waits or fails; it never answers with an old catalog. What was learned is good for no
longer than delay − skew of *elapsed* time either, counted from before the look: a wall clock that
is set back does not make it last. (Elapsed time goes on while the process or the machine sleeps.)
Who waits for the same look shares it, and its failure too.

**Fencing.** Who opens the catalog anew fences all that have it open. A node that learns of it, when
it applies the log, drops what it has in memory, joins the newer epoch and goes on; its listeners
begin again from the catalog of then. What it was writing meanwhile was refused. Where the newer
holder is of another deploy generation, `Replaced` is what every call gets from then on.

**Large updates of this node.** Between an append and `apply_own` the log is ahead of this node. A
reader would then read and decode the update itself, although the thread that appended it has it in
memory. So where the update is large, the reader waits up to a second for it (`own_append`).

What must stay true: versions are applied once, in order, by whoever gets the apply lock; a listener
sees a version only after `CatalogFollower.catalog` can answer it; a listener's failure is counted
and reported and stops nobody. The history is the truth: where the state was left ahead of it (an
interrupt in the middle), the state returns to it. Rejected: reading the log on every read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import dataclass

from strandline import work
from strandline.catalog.awaited import AwaitedVersions
from strandline.catalog.catalog import Catalog
from strandline.catalog.events import (
    AppliedVersion,
    CatalogReset,
    Listener,
    Listeners,
    OnReset,
    VersionInfo,
    read_history,
)
from strandline.catalog.history import History
from strandline.catalog.log_time import LogTime
from strandline.clock import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    HybridClock,
    Timestamp,
    add_milliseconds,
    format_timestamp,
    milliseconds,
    system_elapsed,
)
from strandline.durable import AppliedUpdate, DurableCatalogState, Frontier, Update, joined_anew
from strandline.durable.state import TrimmedAway
from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    InvalidInput,
    NotFresh,
    Stopping,
    StrandlineError,
    Unavailable,
)
from strandline.fencing import FenceToken

logger = logging.getLogger(__name__)

DELAY = "delay_duration_ms"
SKEW = "max_clock_skew_ms"
DEFAULT_TIMEOUT = 30.0
LOOKS = 3
"""How often a read looks at the log before it gives up proving that it is fresh."""
ROUND_SECONDS = 0.1
LONGEST_ROUND_SECONDS = 0.5
"""How long the applier waits for news before it looks whether it is to stop; after long quiet."""
ROOM_SECONDS = 0.02
"""How long after a commit of this node the applier leaves the log alone."""
OWN_SECONDS = 1.0
"""How long who needs a large update of this node waits for the thread that appended it."""


def patience(timeout: float) -> float:
    """What locks take as a time-out: not below 0, which means for ever, and not too much."""
    return min(max(timeout, 0.0), threading.TIMEOUT_MAX)


_STOPPING = "this node is stopping; ask another one, or again when it is back"


JoinAnew = Callable[[DurableCatalogState], DurableCatalogState]
"""Gives a state of the newer epoch in place of a fenced one; `joined_anew` says how."""


class Behind(NotFresh):
    """This node has not applied all that the question needs; sync and ask again."""


@dataclass(frozen=True, slots=True)
class _Horizon:
    """What a look at the log is good for.

    Every version that is active at or before ``known`` was applied. A clock that may be behind by
    the skew stands for the present up to ``present``, and up to ``until`` in elapsed time.
    """

    known: Timestamp
    present: Timestamp
    until: int


_NOTHING_KNOWN = _Horizon(MIN_TIMESTAMP, MIN_TIMESTAMP, 0)


@dataclass(frozen=True, slots=True, eq=False)
class _OwnAppend:
    """A large append of this node that is under way; where the log ends if it is taken."""

    thread: int
    upper: int


class CatalogFollower:
    """See the module. Safe to use from several threads."""

    def __init__(
        self,
        state: DurableCatalogState,
        clock: HybridClock,
        *,
        elapsed: Callable[[], int] = system_elapsed,
        join_anew: JoinAnew = joined_anew,
    ) -> None:
        self._state = state
        self._clock = clock
        self._elapsed = elapsed
        self._join_anew = join_anew
        self.delay = int(state.config(DELAY) or 0)
        self.skew = int(state.config(SKEW) or 0)
        self._log_time = LogTime(clock, allowed_ms=self.skew if self.delay else None)
        self._applying = threading.RLock()
        self._own_append: _OwnAppend | None = None
        self._own_applied = threading.Condition(self._applying)
        self._awaited = AwaitedVersions()
        self._listeners = Listeners()
        self._stop = threading.Event()
        self._applier: threading.Thread | None = None
        self._horizon = _NOTHING_KNOWN
        self._applier_failures = 0
        self._joined_anew = 0
        self._applier_failure: Exception | None = None  # of its last round
        self._looks = 0  # begun by readers of the present
        self._last_look: tuple[int, StrandlineError | None] = (0, None)  # that ended, its number
        self._own_commit = float("-inf")  # when this node last applied what it had appended
        self._history = self._history_of(state)
        self._seen = Frontier(state.base.update.version, self._history.latest.version + 1)
        self._log_time.hear(self._given(self._history.latest))

    def _history_of(self, state: DurableCatalogState) -> History:
        """Every version that a state which was just opened or joined has read."""
        history = History(self._activated(state.base))
        for applied in state.backlog:
            history.append(self._activated(applied))
        state.backlog = []
        return history

    def _activated(self, applied: AppliedUpdate) -> Catalog:
        version, at = applied.update.version, applied.update.time
        active = add_milliseconds(at, self.delay) if version and self.delay else at
        return Catalog(version, active, applied.contents)

    def _given(self, catalog: Catalog) -> Timestamp:
        """The time that the log gave to a version; it is active `delay` later."""
        late = catalog.version and self.delay
        return add_milliseconds(catalog.time, -self.delay) if late else catalog.time

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Follow the log in a thread of its own until `stop`."""
        self.sync()
        self._applier = threading.Thread(target=self._follow, name="catalog-applier", daemon=True)
        self._applier.start()

    def stop(self) -> None:
        """Stop following; pending and later calls get `Stopping`. Reads from memory go on."""
        self._stop.set()
        self._tell_awaiting()
        if self._applier is not None and self._applier is not threading.current_thread():
            self._applier.join()

    def _follow(self) -> None:
        pause = 0.1
        quiet = ROUND_SECONDS
        while not self._stop.is_set():
            try:
                self._leave_room()
                if self._state.log.wait(self._seen, timeout=quiet):
                    self.sync()
                    quiet = ROUND_SECONDS
                quiet = min(quiet * 1.1, LONGEST_ROUND_SECONDS)
                pause = 0.1
                self._applier_failure = None
            except Exception as error:
                if self._stop.is_set():
                    return
                self._applier_failures += 1
                self._applier_failure = error
                if isinstance(error, Unavailable | Fenced):
                    logger.warning("%s; the catalog asks again in %.1f s", error, pause)
                else:
                    logger.exception("the catalog applier failed; it tries again in %.1f s", pause)
                self._stop.wait(pause)
                pause = min(pause * 2, 5.0)

    def _leave_room(self) -> None:
        """Look less often while this node commits: its commits bring it up to date by themselves.

        Each look after a commit would find nothing new, and take the time of the next commit.
        """
        latest_end = time.monotonic() + ROUND_SECONDS
        while (now := time.monotonic()) < (end := min(self._own_commit + ROOM_SECONDS, latest_end)):
            if self._stop.wait(end - now):
                return

    def _check_running(self) -> None:
        if self._stop.is_set():
            raise Stopping(_STOPPING)

    def check_head(self) -> None:
        """Read the head of the log from the store. Raises what the store raises."""
        self._state.check()

    def check_applier(self) -> None:
        """Raises `Unavailable` where new versions are not being applied here, with the reason."""
        self._check_running()
        if self._applier is None or not self._applier.is_alive():
            raise Unavailable("the thread that applies new versions of the catalog does not run")
        if self._applier_failure is not None:
            raise Unavailable(f"new versions cannot be applied: {self._applier_failure}")

    def subscribe(self, listener: Listener, *, on_reset: OnReset | None = None) -> None:
        """Call ``listener`` for each version applied from now on.

        ``on_reset`` is called with the catalog to begin again from, in place of ``listener``, where
        versions were trimmed before this node had applied them. Without it, the listener must not
        depend on hearing of every version.
        """
        with self._applying:
            self._listeners.add(listener, on_reset=on_reset)

    # -- apply ---------------------------------------------------------------------------------

    def sync(self) -> None:
        """Apply the log up to its head as it is now. Raises `Replaced`, `WrongEnvironment`."""
        with self._applying:
            self._await_own()
            try:
                frontier = self._apply_all()
            except Fenced:
                self._begin_anew()
                frontier = self._apply_all()
            if self._listeners.telling:
                return  # a listener reads; its version is not through yet
            self._listeners.tell()  # what an interrupt left untold
            self._seen = Frontier(frontier.since, self._history.latest.version + 1)
        self._tell_awaiting()

    @contextmanager
    def own_append(self, updates: Sequence[Update]) -> Iterator[None]:
        """The calling thread appends ``updates`` in the block, and calls `apply_own`."""
        changes = sum(len(entry.changes) for update in updates for entry in update.entries)
        if changes <= work.AT_ONCE:
            yield
            return
        own = _OwnAppend(threading.get_ident(), updates[-1].version + 1)
        self._own_append = own
        try:
            yield
        finally:
            self._own_append = None
            with self._applying:
                self._own_applied.notify_all()

    def _await_own(self) -> None:
        """Wait while the log ends with what another thread of this node has appended.

        Lets go of the lock meanwhile, so never for a listener, who is told in the middle of it.
        """
        own, end = self._own_append, time.monotonic() + OWN_SECONDS
        if own is None or own.thread == threading.get_ident() or self._listeners.telling:
            return
        while self._own_append is own and self._state.frontier().upper == own.upper:
            if not self._own_applied.wait(max(end - time.monotonic(), 0.0)):
                return

    def _apply_all(self) -> Frontier:
        """Apply the log up to its head, and return where that is. Raises `Fenced`."""
        frontier = self._state.frontier()
        while self._history.latest.version + 1 < frontier.upper:
            self._apply_some()
        if frontier.since > self._history.earliest.version:
            self._history = self._history.trimmed(frontier.since)
        return frontier

    def _begin_anew(self) -> None:
        """Drop what is in memory, and join the epoch that has fenced this node."""
        lost_token = self._state.token
        state = self._join_anew(self._state)
        logger.warning(
            "another holder fenced this node at %s; it joined %s", lost_token, state.token
        )
        before, history = self._history.latest, self._history_of(state)
        self._state, self._history = state, history
        self._horizon = _NOTHING_KNOWN
        self._joined_anew += 1
        self._log_time.hear(self._given(history.latest))
        self._listeners.tell(CatalogReset(before, history.latest))

    @property
    def token(self) -> FenceToken:
        """The fence token that this node writes with now."""
        return self._state.token

    @property
    def state(self) -> DurableCatalogState:
        """What this node writes with now; another one once it has joined a newer epoch."""
        return self._state

    def apply_own(self, updates: Sequence[AppliedUpdate]) -> list[Catalog]:
        """Apply updates that this node has just appended behind its latest version.

        Returns their catalogs. Some may have been applied already, as read from the log.
        """
        catalogs = []
        self._own_commit = time.monotonic()
        with self._applying:
            for applied in updates:
                version = applied.update.version
                if version > self._history.latest.version:
                    self._apply(applied)
                held = self._history.find(version)  # None: trimmed meanwhile
                catalogs.append(self._activated(applied) if held is None else held)
            latest = self._history.latest
            if self._state.version < latest.version:
                self._state.return_to(latest.version, self._given(latest), latest.contents)
            if self._listeners.telling:
                return catalogs
            self._listeners.tell()
            self._seen = Frontier(self._seen.since, self._history.latest.version + 1)
        self._tell_awaiting()
        return catalogs

    def _tell_awaiting(self) -> None:
        """Complete the futures of `ready` whose version is through, or all of them at the end."""
        self._awaited.tell(self._seen.upper, self._history.at_version)
        if self._stop.is_set():
            self._awaited.end(Stopping(_STOPPING))

    def _apply_some(self) -> None:
        latest = self._history.latest
        if self._state.version != latest.version:
            self._state.return_to(latest.version, self._given(latest), latest.contents)
        try:
            updates = self._state.sync()
        except TrimmedAway as gone:
            # Nothing of the catalog is lost, but the listeners never hear of what was in between.
            logger.warning("%s", gone)
            self._state.begin_again()
            self._history = History(self._activated(self._state.base))
            self._log_time.hear(self._given(self._history.latest))
            self._listeners.tell(CatalogReset(latest, self._history.latest))
            return
        for applied in updates:
            if applied.update.version > self._history.latest.version:  # else a listener's read did
                self._apply(applied)

    def _apply(self, applied: AppliedUpdate) -> None:
        before = self._history.latest
        catalog = self._activated(applied)
        self._history.append(catalog)
        for change in applied.update.changes():
            if change.old is None:
                continue
            replaced = before.contents.get(change.kind, change.key)
            if replaced is not None:  # few look at the past, and it should cost its bytes alone
                replaced.forget()
        self._log_time.hear(applied.update.time)
        self._listeners.tell(AppliedVersion(applied.update, before, catalog))

    # -- read ----------------------------------------------------------------------------------

    def known_present(self) -> Catalog | None:
        """The catalog of the present if that can be proved without waiting, else None."""
        if self.delay:
            horizon, elapsed, now = self._horizon, self._elapsed(), self._clock.current()
            fresh = now <= horizon.present and elapsed <= horizon.until
            return self._history.at_time(now) if fresh else None
        latest, seen = self._history.latest, self._seen
        if self._state.frontier() == seen and latest.version + 1 == seen.upper:
            return latest
        return None

    def present(self) -> Catalog:
        """The catalog active now: no older than any `execute` that has returned, on any node."""
        present = self.known_present()
        if present is not None:
            return present
        if not self.delay:
            self.sync()
            return self._history.latest
        for _ in range(LOOKS):
            looks, asked = self._looks, self._clock.current()
            with self._applying:
                present = self.known_present()  # another thread may have looked meanwhile
                if present is not None:
                    return present
                known = self._look_for_all(since=looks)
                if asked <= known:
                    # On a slow machine the look may take longer than the delay. The catalog of
                    # ``known`` still has every change that had returned when this call began.
                    return self._history.at_time(min(known, self._clock.current()))
        raise NotFresh(
            f"this node looked at the log {LOOKS} times and could not prove that its catalog is "
            "the present one: its clock runs ahead of the store's by more than the catalog allows; "
            "set the clock, or ask another node"
        )

    def look(self) -> Timestamp:
        """Look at the log and apply it; returns the time up to which all catalogs are known.

        Callers that wait at the same time share one look, and its failure.
        """
        looks = self._looks
        with self._applying:
            return self._look_for_all(since=looks)

    def _look_for_all(self, *, since: int) -> Timestamp:
        """`_look` for all callers that wait; ``since`` is how many had begun when this one came.

        A look that began later answers this caller too, and so does its failure. If each caller
        tried again, the last would hear that the store is away after as many time-outs.
        """
        number, error = self._last_look
        if number > since:
            if error is not None:
                raise type(error)(error.message) from error
            return self._horizon.known
        self._looks += 1
        number = self._looks
        try:
            known = self._look()
        except StrandlineError as found:
            self._last_look = number, found
            raise
        self._last_look = number, None
        return known

    def _look(self) -> Timestamp:
        """Look at the log and apply it; returns the time up to which all catalogs are known."""
        began = self._elapsed()
        checked = self._state.check()
        self.sync()
        known = add_milliseconds(checked.time, self.delay)
        self._log_time.hear(checked.time)
        self._horizon = _Horizon(
            known,
            add_milliseconds(known, -self.skew) if self.skew else known,
            began + self.delay - self.skew,
        )
        return known

    def wait_for_completeness(self, at: Timestamp, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Return when this node knows every catalog that is or will be active at ``at``.

        Raises `DeadlineExceeded`, also when ``at`` lies further ahead than ``timeout`` seconds.
        """
        if not MIN_TIMESTAMP <= at <= MAX_TIMESTAMP:
            raise InvalidInput(f"{at} is not a time")
        end = time.monotonic() + timeout
        while True:
            self._check_running()
            known = self._look()
            if at <= known:
                return
            ahead = (milliseconds(at) - milliseconds(known)) / 1000
            left = end - time.monotonic()
            if ahead > left:
                raise DeadlineExceeded(
                    f"{format_timestamp(at)} lies {ahead:.3f} s ahead of the store's time; ask for "
                    "a time in the past"
                )
            self._stop.wait(max(ahead, 0.001))

    def complete_now(self) -> Timestamp:
        """A time that the store gives for the present; all catalogs active by then are known."""
        checked = self._state.check()
        self.sync()
        return checked.time

    def active_catalog(self, at: Timestamp) -> Catalog:
        """The catalog active at ``at``, of those that this node has applied."""
        return self._history.at_time(at)

    def catalog_as_of(self, at: Timestamp, *, timeout: float = DEFAULT_TIMEOUT) -> Catalog:
        """The catalog active at ``at``; the answer for one time never changes."""
        self.wait_for_completeness(at, timeout=timeout)
        return self._history.at_time(at)

    def catalog(self, version: int) -> Catalog:
        """The catalog of ``version``; `VersionNotFound` names the earliest and the latest.

        Takes no lock for a version that was applied here, so it may be called inside a SQL
        transaction.
        """
        if version > self._history.latest.version:
            self.sync()
        return self._history.at_version(version)

    def last_moment(self, version: int) -> Timestamp | None:
        """The last time at which ``version`` was active; None while it is."""
        if version > self._history.latest.version:
            self.sync()
        history = self._history  # one look: it may be trimmed meanwhile
        history.at_version(version)
        end = history.ends_at(version)
        return None if end is None else Timestamp(end - 1)

    def latest_catalog(self) -> Catalog:
        """The highest version applied here; it may not be active yet."""
        return self._history.latest

    def earliest_catalog(self) -> Catalog:
        """The lowest version that can be read."""
        return self._history.earliest

    def catalog_ready(self, version: int, *, timeout: float = DEFAULT_TIMEOUT) -> Catalog:
        """Wait until ``version`` is applied here and its listeners have returned."""
        future = self.ready(version)
        try:
            return future.result(timeout=patience(timeout))
        except FutureTimeout:
            self._awaited.forget(future)
            raise DeadlineExceeded(f"version {version} did not arrive within {timeout} s") from None

    def ready(self, version: int) -> Future[Catalog]:
        """A future of `catalog_ready`; on an event loop, ``await asyncio.wrap_future`` of it.

        Ends with `Stopping` when this node stops before.
        """
        future = self._awaited.add(version)
        self._tell_awaiting()
        return future

    def catalog_at(self, at: Timestamp, *, upper: int | None) -> Catalog:
        """The catalog active at ``at``, for a SQL transaction that is about to commit at ``at``.

        ``upper`` is the log's, read inside that very transaction, so no version can come between.
        It is None where the log lies in another database; then a look must have shown that no
        other version can be active at ``at``. Never waits. Raises `Behind`: roll back, `sync`
        (where ``upper`` is None, `look`), and try again with a later time.
        """
        if upper is None:
            if at > self._horizon.known:
                raise Behind(
                    f"the catalog of {format_timestamp(at)} is not known yet: this node last "
                    f"looked at the log for times up to {format_timestamp(self._horizon.known)}"
                )
        elif upper != self._history.latest.version + 1:
            raise Behind(
                f"the log ends at version {upper - 1}, and version {self._history.latest.version} "
                "is the latest that was applied here"
            )
        return self._history.at_time(at)

    # -- history -------------------------------------------------------------------------------

    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        """The updates of versions ``start`` to ``end`` − 1, from the log."""
        return self._state.log.updates(start, end)

    def history(self, start: int = 1, end: int | None = None) -> list[VersionInfo]:
        """What people did, version by version, trimmed versions too; silent ones are left out."""
        return read_history(self._state.log, start, end)
