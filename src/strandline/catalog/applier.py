"""Applying the log: how a node learns each version of the catalog.

**Order.** The log delivers each update to every node. The node stores the catalog, then calls its
listeners and waits for them. `CatalogApplier` keeps the versions, and so is the one owner of how
far the log was applied: the log and the state are asked for what comes after its latest version.

**Fencing.** Opening the catalog fences every node that has it open. A node that learns of it, when
it applies the log, drops what it has in memory, joins the newer epoch and goes on; its listeners
begin again from the catalog of then. What it was writing meanwhile was refused. Where the newer
holder is of another deploy generation, every call gets `Replaced` from then on.

**Large updates of this node.** Between an append and `apply_own` the log is ahead of this node. A
reader would then read and decode the update itself, although the thread that appended it has it in
memory. So where the update is large, the reader waits up to a second for it (`own_append`).

**Large updates of a child process.** A child process of a node that is about to append a large
update announces it (``announce``). The node decodes it, applies it to its latest version, and sets
it aside before the child appends (`expect`). When the log then has that very update, told by its
id, it takes the time of a look-up to apply, and no reader of the present waits for the decoding.
Where another version came first, what was set aside is dropped.

What must stay true: versions are applied once, in order, by the thread that has the apply lock; a
listener sees a version only after `CatalogFollower.catalog` can answer it; a listener's failure is
counted and reported, and does not stop the others.
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
from strandline.catalog.catalog import Catalog
from strandline.catalog.events import (
    AppliedVersion,
    CatalogReset,
    Listener,
    Listeners,
    OnReset,
)
from strandline.catalog.history import AwaitedVersions, History
from strandline.clock import HybridClock, Timestamp, add_milliseconds
from strandline.durable import (
    AppliedUpdate,
    CatalogTransaction,
    DurableCatalogState,
    Frontier,
    Update,
    config_in,
    joined_anew,
)
from strandline.durable.state import ExpectedUpdate, TrimmedAway
from strandline.errors import DeadlineExceeded, Fenced, Stopping, Unavailable
from strandline.fencing import FenceToken
from strandline.wire import decode, encode

logger = logging.getLogger(__name__)

DELAY = "delay_duration_ms"
SKEW = "max_clock_skew_ms"
DEFAULT_TIMEOUT = 30.0
ROUND_SECONDS = 0.1
LONGEST_ROUND_SECONDS = 0.5
"""How long the applier waits for news before it looks whether it is to stop; after long quiet."""
ROOM_SECONDS = 0.05
"""How long after a commit of this node the applier leaves the log alone."""
OWN_SECONDS = 1.0
"""How long a reader waits for a large update of this node."""
AHEAD_MS = 1000
"""How far ahead a time may be without a warning where nothing depends on the clocks."""

_STOPPING = "this node is stopping; ask another one, or again when it is back"


Announce = Callable[[bytes], None]
"""Gives the record of a large update to the node of this child; returns when it may be appended."""
JoinAnew = Callable[[DurableCatalogState], DurableCatalogState]
"""Gives a state of the newer epoch in place of a fenced one; `joined_anew` says how."""


def patience(timeout: float) -> float:
    """What locks take as a time-out: not below 0, which means for ever, and not too much."""
    return min(max(timeout, 0.0), threading.TIMEOUT_MAX)


class LogTime:
    """Moves the clock past the times of the log, and warns where this machine's clock is wrong.

    With a delay, what a reader of the present gets is fresh only while all clocks agree within
    the skew, which is ``allowed_ms``. It is None where nothing depends on the clocks.
    """

    def __init__(self, clock: HybridClock, *, allowed_ms: int | None) -> None:
        self._clock = clock
        self._allowed = AHEAD_MS if allowed_ms is None else allowed_ms
        self._warned = False
        self._heard: Timestamp | None = None
        self.times_ahead = 0

    def hear(self, at: Timestamp) -> None:
        """Move the clock past ``at``. Warns once as long as the times are too far ahead."""
        if at == self._heard:  # the versions of a group have one time
            return
        self._heard = at
        self._clock.update(at)
        ahead = self._clock.ahead_of_wall(at)
        if ahead <= self._allowed:
            self._warned = False
            return
        self.times_ahead += 1
        if not self._warned:
            self._warned = True
            logger.warning(
                "the log has a time that is %d ms ahead of this machine's clock, and the catalog"
                " allows %d; set the clocks of all nodes (with NTP, say)",
                ahead,
                self._allowed,
            )


@dataclass(frozen=True, slots=True, eq=False)
class _OwnAppend:
    """A large append of this node that is under way; where the log ends if it is taken."""

    thread: int
    upper: int


class CatalogApplier:
    """See the module. Safe to use from several threads."""

    def __init__(
        self,
        state: DurableCatalogState,
        clock: HybridClock,
        *,
        join_anew: JoinAnew = joined_anew,
        announce: Announce | None = None,
    ) -> None:
        self._state = state
        self._announce = announce
        self._clock = clock
        self._join_anew = join_anew
        latest = state.recovered[-1].contents
        self.delay = int(config_in(latest, DELAY) or 0)
        self.skew = int(config_in(latest, SKEW) or 0)
        self._log_time = LogTime(clock, allowed_ms=self.skew if self.delay else None)
        self._applying = threading.RLock()
        self._own_append: _OwnAppend | None = None
        self._expected: ExpectedUpdate | None = None
        self._own_applied = threading.Condition(self._applying)
        self._awaited = AwaitedVersions()
        self._listeners = Listeners()
        self._stop = threading.Event()
        self._applier: threading.Thread | None = None
        self._applier_failures = 0
        self._joined_anew = 0
        self._applier_failure: str | None = None  # of its last round, without its frames
        self._own_commit = float("-inf")  # when this node last applied what it had appended
        self._history = self._recovered(state)
        # Where the log began, and the version after the last that every listener was called for.
        self._seen = Frontier(self._history.earliest.version, self._history.latest.version + 1)

    def _recovered(self, state: DurableCatalogState) -> History:
        """Every version that a state which was just opened or joined has read."""
        history = History(*map(self._activated, state.take_recovered()))
        self._log_time.hear(self._given(history.latest))
        return history

    def _activated(self, applied: AppliedUpdate) -> Catalog:
        active = applied.time
        if applied.version and self.delay:
            active = add_milliseconds(active, self.delay)
        return Catalog(applied.version, active, applied.contents)

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

    def stop(self, *, wake: Callable[[], None] = lambda: None) -> None:
        """Stop following; pending and later calls get `Stopping`. Reads from memory go on.

        ``wake`` ends the wait for news, which takes up to `LONGEST_ROUND_SECONDS` otherwise.
        """
        self._stop.set()
        self._complete_awaited()
        wake()
        if self._applier is not None and self._applier is not threading.current_thread():
            self._applier.join()

    def _follow(self) -> None:
        pause = 0.1
        quiet = ROUND_SECONDS
        while not self._stop.is_set():
            try:
                self._leave_room()
                if self._state.log.listen(self._seen, timeout=quiet):
                    self.sync()
                    quiet = ROUND_SECONDS
                quiet = min(quiet * 1.1, LONGEST_ROUND_SECONDS)
                pause = 0.1
                self._applier_failure = None
            except Exception as error:
                if self._stop.is_set():
                    return
                self._applier_failures += 1
                self._applier_failure = str(error)
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
        self._state.log.check()

    def lag(self) -> int:
        """How many versions of the log are not applied here. Raises what the store raises."""
        applied = self._history.latest.version
        return max(0, self._state.log.frontier().upper - 1 - applied)

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
            if self._listeners.calling:
                return  # a listener reads; its version is not through yet
            self._listeners.call()  # for what an interrupt left pending
            self._seen = Frontier(frontier.since, self._history.latest.version + 1)
        self._complete_awaited()

    @contextmanager
    def own_append(self, transactions: Sequence[CatalogTransaction]) -> Iterator[None]:
        """The calling thread commits ``transactions`` in the block, and calls `apply_own`."""
        changes = sum(
            len(entry.changes) for transaction in transactions for entry in transaction.entries
        )
        if changes <= work.AT_ONCE:
            yield
            return
        if self._announce is not None and len(transactions) == 1:
            self._announce(encode(transactions[0].update(member=self._state.member)))
        own = _OwnAppend(threading.get_ident(), transactions[-1].version + 1)
        self._own_append = own
        try:
            yield
        finally:
            self._own_append = None
            with self._applying:
                self._own_applied.notify_all()

    def expect(self, record: bytes) -> None:
        """Set aside the update in ``record``, which a child process is about to append."""
        self.sync()
        latest, update = self._history.latest, decode(record, Update)
        if update.version == latest.version + 1:
            self._expected = ExpectedUpdate(latest, update)

    def _apply_expected(self) -> bool:
        """Apply what was set aside, if it is what the log has behind the latest version."""
        expected, latest = self._expected, self._history.latest
        if expected is None:
            return False
        applied = None
        if expected.base is latest:
            applied = self._state.if_appended(expected)
        if applied is None:
            if self._expected is expected:
                self._expected = None  # another version came first
            return False
        self._expected = None
        self._apply(applied)
        return True

    def _await_own(self) -> None:
        """Wait while the log ends with what another thread of this node has appended.

        Releases the lock meanwhile, so a listener, which is called under it, never waits.
        """
        own, end = self._own_append, time.monotonic() + OWN_SECONDS
        if own is None or own.thread == threading.get_ident() or self._listeners.calling:
            return
        while self._own_append is own and self._state.log.frontier().upper == own.upper:
            if not self._own_applied.wait(max(end - time.monotonic(), 0.0)):
                return

    def _apply_all(self) -> Frontier:
        """Apply the log up to its head, and return where that is. Raises `Fenced`."""
        frontier = self._state.log.frontier()
        while self._history.latest.version + 1 < frontier.upper:
            if not self._apply_expected():
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
        before, history = self._history.latest, self._recovered(state)
        self._state, self._history = state, history
        self._joined_anew += 1
        self._listeners.call(CatalogReset(before, history.latest))

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
                if applied.version > self._history.latest.version:
                    self._apply(applied)
                catalog = self._history.find(applied.version)  # None: trimmed meanwhile
                catalogs.append(catalog or self._activated(applied))
            if self._listeners.calling:
                return catalogs
            self._listeners.call()
            self._seen = Frontier(self._seen.since, self._history.latest.version + 1)
        self._complete_awaited()
        return catalogs

    def _complete_awaited(self) -> None:
        """Complete the futures of `ready` whose version is through, or all of them at the end."""
        self._awaited.complete(self._seen.upper, self._history.at_version)
        if self._stop.is_set():
            self._awaited.end(Stopping(_STOPPING))

    def _apply_some(self) -> None:
        latest = self._history.latest
        try:
            updates = self._state.updates_after(latest)
        except TrimmedAway as gone:
            # Nothing of the catalog is lost, but the listeners never hear of what was in between.
            logger.warning("%s", gone)
            self._history = History(self._activated(self._state.start()))
            self._log_time.hear(self._given(self._history.latest))
            self._listeners.call(CatalogReset(latest, self._history.latest))
            return
        for applied in updates:
            if applied.version > self._history.latest.version:  # else a listener's read did
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
        self._log_time.hear(applied.time)
        self._listeners.call(AppliedVersion(applied.update, before, catalog))

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
        self._complete_awaited()
        return future
