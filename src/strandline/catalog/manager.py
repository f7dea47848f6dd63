"""The catalog manager: every change of the catalog goes through it, on every node.

**Accept.** `CatalogManager.execute` validates commands against the latest catalog, turns them into
entries and appends these to the update log, together with those of other callers of this node
(`strandline.catalog.group_commit`). **Apply** happens on every node (`strandline.catalog.applier`).
**Return.** The call returns when this node has applied the version and every node's clock has
passed its activation time. So the caller's next request, on any node, sees the version. Other
callers may see it earlier. A command that changed nothing, or was refused, waits in the same way
for the version it was validated against, so that the caller can see the reason.

**Time.** The log assigns a time to each version when it orders the append. The version becomes
active at that time + `delay`. `delay` and `skew` (the largest allowed difference between the clocks
of two machines) are fixed when a catalog is created, because changing them could reorder
activations. In a catalog in a folder both are 0.

A clock that is ahead, even for a moment, takes the time of the log along, and no other clock passes
an activation before it has caught up. So if the clocks are behind by more than the skew explains,
a call does not wait for them. It waits for the same *elapsed* time, and then moves the time of the
log past the activation. It returns when no node uses an earlier look at the log any more. While
this happens, the time of the log moves no faster than the clocks, so they catch up with it.

What must stay true: a refused command changes nothing and consumes no id; an appended command is
never reported as refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.catalog.applier import AHEAD_MS, DEFAULT_TIMEOUT, Announce, JoinAnew
from strandline.catalog.catalog import Catalog
from strandline.catalog.follower import CatalogFollower
from strandline.catalog.group_commit import Effects, GroupCommit
from strandline.catalog.planning import Command
from strandline.catalog.requests import Request
from strandline.clock import (
    HybridClock,
    Timestamp,
    add_milliseconds,
    format_timestamp,
    round_up,
    system_elapsed,
)
from strandline.durable import Arguments, DurableCatalogState, joined_anew
from strandline.errors import (
    DeadlineExceeded,
    InvalidInput,
    StrandlineError,
    UnknownOutcome,
    VersionNotFound,
)
from strandline.outage import waiting_until

LOOK_FOR_STOP_SECONDS = 0.1
MAX_COMMANDS = 10_000


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of `CatalogManager.execute`. ``applied[i]``: whether command i changed anything.

    ``actions`` are the actions of the version as its history lists them; empty if there is no new
    version.
    """

    version: int
    time: Timestamp
    applied: tuple[bool, ...]
    catalog: Catalog
    actions: tuple[tuple[str, Arguments], ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogStatistics:
    """Counts since this node started. Each failure was logged when it happened.

    ``executed`` calls of `CatalogManager.execute` were carried out in ``appends``, the largest of
    which had ``largest_group`` versions. Of the ``lost_appends``, ``rebased`` were not validated
    again. ``times_ahead`` counts the times from a clock that was ahead of this machine's by more
    than the skew allows. ``joined_anew`` counts how often this node was fenced and joined a newer
    epoch.
    """

    latest_version: int
    earliest_version: int
    executed: int
    appends: int
    largest_group: int
    lost_appends: int
    rebased: int
    listener_failures: int
    applier_failures: int
    times_ahead: int
    joined_anew: int


class CatalogManager(CatalogFollower):
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
        self._commits = GroupCommit(self)

    def execute(
        self,
        commands: Command | Sequence[Command],
        *,
        author: str,
        identity: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Applied:
        """Carry out ``commands`` as one version, all or none; see the module for when it returns.

        ``identity`` is the user whose privileges are checked if they are enforced; None is the
        program itself. If the store does not answer, the call tries again for ``timeout`` seconds.
        Raises `PermissionDenied` and what the commands raise (nothing was changed),
        `DeadlineExceeded` if the time is over (nothing was or will be changed), `UnknownOutcome` if
        the time is over after the change was sent or is in the log, `Fenced`, `Stopping`.
        """
        batch = list(commands) if isinstance(commands, Sequence) else [commands]
        if len(batch) > MAX_COMMANDS:
            raise InvalidInput(
                f"the batch has {len(batch)} commands; at most {MAX_COMMANDS} are allowed"
            )
        self._check_running()
        if not batch:  # there is no version to wait for
            present = self.present()
            return Applied(present.version, present.time, (), present)
        if self._listeners.are_called_by_this_thread():
            raise InvalidInput(
                "a catalog listener cannot change the catalog: the version that it handles would "
                "wait for itself; make the change from another thread"
            )
        request = Request(batch, author, time.monotonic() + timeout, identity=identity)
        self._commits.execute(request)
        catalog = request.catalog
        if catalog is None:  # it was never validated
            raise _error_of(request)
        try:
            self._await_activation(catalog, request.end)
        except StrandlineError as late:
            if request.error is not None:
                raise request.error from late
            if not any(request.applied):
                raise
            raise _not_active_yet(catalog, late) from late
        if request.error is not None:
            raise request.error
        return Applied(
            catalog.version, catalog.time, request.applied, catalog, actions=request.actions
        )

    def expect(self, record: bytes) -> None:
        """See `CatalogApplier.expect`. Commands of this node then wait until `child_ended`."""
        self._commits.priority.grant()
        super().expect(record)

    def child_ended(self) -> None:
        """Carry out commands again: no task is left whose child has announced an update."""
        self._commits.priority.end()

    def set_effects(self, effects: Effects) -> None:
        """Let ``effects`` be carried out for what this node appends, in the append or after it.

        The effects are there when `execute` returns, unless they failed. Does nothing in a catalog
        with a delay or a skew, because the effects must not come before the activation of their
        version.
        """
        if not self.delay and not self.skew:
            self._commits.effects = effects

    def start(self) -> None:
        """See `CatalogApplier.start`. Waits until a catalog that was just created is active.

        Before that, the present catalog is the empty one. Does not wait if the delay and skew are
        longer than a call may wait (`DEFAULT_TIMEOUT`).
        """
        super().start()
        first = self._history.find(1)
        if first is not None and self.delay + self.skew <= 1000 * DEFAULT_TIMEOUT:
            self._await_activation(first, time.monotonic() + DEFAULT_TIMEOUT)

    def stop(self, *, wake: Callable[[], None] = lambda: None) -> None:
        self._stop.set()
        self._commits.stop()
        super().stop(wake=wake)

    def _await_activation(self, catalog: Catalog, end: float) -> None:
        """Return when the clock of every node has passed the activation of ``catalog``."""
        if not self.delay and not self.skew:
            self._clock.update(catalog.time)
            return
        target = round_up(add_milliseconds(catalog.time, self.skew))
        if self._clock.ahead_of_wall(target) > self.delay + 2 * self.skew + AHEAD_MS:
            self._activate(target, end)
            return
        while True:
            seconds_left = max(0.0, end - time.monotonic())
            try:
                self._clock.wait_until(target, timeout=min(seconds_left, LOOK_FOR_STOP_SECONDS))
            except DeadlineExceeded:
                if seconds_left <= LOOK_FOR_STOP_SECONDS:
                    raise
                self._check_running()
            else:
                return

    def _activate(self, target: Timestamp, end: float) -> None:
        """`_await_activation` if the time of the log is too far ahead to wait for the clocks."""
        if self._clock.current() < target:
            self._wait(self.delay + self.skew, end)
            self._clock.update(target)
        with waiting_until(end):
            self.look()  # also after another call has moved the clock: its look may not have ended
        self._wait(self.delay - self.skew, end)  # an earlier look of a node is valid that long

    def _wait(self, ms: int, end: float) -> None:
        """Wait ``ms`` milliseconds. Raises `DeadlineExceeded` if ``end`` comes first."""
        seconds_left = end - time.monotonic()
        self._stop.wait(max(0.0, min(ms / 1000, seconds_left)))
        self._check_running()
        if seconds_left < ms / 1000:
            raise DeadlineExceeded(
                "the time of the log is far ahead of this machine's clock, and the version could "
                "not be activated before the time limit of the call; correct this machine's clock"
            )

    def compact(self, version: int) -> bool:
        """Trim all versions below ``version``. Return False if that was already done.

        Raises `VersionNotFound`, and what `check_active_everywhere` raises. Does not check holds:
        the caller first raises the low watermark, which checks them.
        """
        self._check_running()
        catalog = self.catalog(version)
        self.check_active_everywhere(catalog)
        trimmed = self.state.compact(version)
        self.sync()
        return trimmed

    def prune(self, kind: str, version: int) -> bool:
        """Remove the objects of an append-only kind up to ``version``; see `UpdateLog.prune`."""
        self._check_running()
        return self.state.prune(kind, version)

    def check_active_everywhere(self, catalog: Catalog) -> None:
        """Raise `VersionNotFound` if the version may not be active on every node yet.

        If history were trimmed to it, a node whose clock is behind by the skew would have no
        catalog for its present.
        """
        everywhere = round_up(add_milliseconds(catalog.time, self.skew))
        if self.delay and everywhere > self._clock.current():
            raise VersionNotFound(
                f"version {catalog.version} becomes active at {format_timestamp(catalog.time)}, "
                f"and on every node by {format_timestamp(everywhere)}; trim to it after that "
                "time, or trim to an older version"
            )

    def statistics(self) -> CatalogStatistics:
        """Counts since this node started."""
        counts = self._commits.counts
        return CatalogStatistics(
            self._history.latest.version,
            self._history.earliest.version,
            counts.executed,
            counts.appends,
            counts.largest_group,
            counts.lost_appends,
            counts.rebased,
            self._listeners.failures,
            self._applier.failures,
            self._log_time.times_ahead,
            self._joined_anew,
        )


def _error_of(request: Request) -> BaseException:
    if request.error is None:
        raise RuntimeError("a request ended with neither a catalog nor an error")
    return request.error


def _not_active_yet(catalog: Catalog, late: StrandlineError) -> StrandlineError:
    """The error of a call that ends before its version, which is in the log, is active.

    Also if the node stops: a client repeats a call that a stopping node has refused.
    """
    return UnknownOutcome(
        f"the change is in the log as version {catalog.version} and becomes active at "
        f"{format_timestamp(catalog.time)}; do not repeat it ({late.message})"
    )
