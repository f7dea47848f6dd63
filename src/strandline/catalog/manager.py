"""The catalog manager: every change of the catalog goes through it, on every node.

**Accept.** `CatalogManager.execute` judges commands by the latest catalog, turns them into entries
and appends these to the update log. An append that is lost to another node's is judged again on the
newer catalog, until the caller's deadline. **Apply** is the business of every node
(`strandline.catalog.follower`). **Return.** The call returns when this node has applied its version
and every node's clock has passed the activation, so that whatever the caller does next, on any
node, sees it. Others may see it before. A command that changed nothing, or was refused, waits
likewise for the version that it was judged by: the caller must be able to see why.

**Time.** The log gives a version its time when it orders the append; the version is active from
that time + `delay` on. Both `delay` and `skew` (the most by which clocks of two machines differ)
are fixed when a catalog is created, since changing them could reorder activations. In a folder both
are 0.

What must stay true: a refused command changes nothing and uses up no id; what was appended is never
reported as refused. Rejected: a thread of its own for each waiting caller.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from strandline import faults
from strandline.catalog.catalog import Catalog
from strandline.catalog.follower import DEFAULT_TIMEOUT, CatalogFollower, patience
from strandline.catalog.planning import Command, Planning
from strandline.clock import (
    HybridClock,
    Timestamp,
    add_milliseconds,
    format_timestamp,
    round_up,
)
from strandline.durable import DurableCatalogState
from strandline.durable.transaction import Transaction
from strandline.errors import (
    DeadlineExceeded,
    InvalidInput,
    OutOfSync,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
    VersionNotFound,
)

MAX_COMMANDS = 10_000


@dataclass(frozen=True, slots=True)
class Applied:
    """What `CatalogManager.execute` did. ``applied[i]``: whether command i changed anything."""

    version: int
    time: Timestamp
    applied: tuple[bool, ...]
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class CatalogStatistics:
    """Counts since this node started; each failure was logged when it happened."""

    latest_version: int
    earliest_version: int
    executed: int
    lost_appends: int
    listener_failures: int
    applier_failures: int


class CatalogManager(CatalogFollower):
    """See the module. Safe to use from several threads."""

    def __init__(self, state: DurableCatalogState, clock: HybridClock) -> None:
        super().__init__(state, clock)
        self._writing = threading.Lock()
        self._executed = self._lost = 0

    def execute(
        self,
        commands: Command | Sequence[Command],
        *,
        author: str,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Applied:
        """Carry out ``commands`` as one version, all or none; see the module for when it returns.

        Raises what the commands raise (and nothing was changed), `DeadlineExceeded` after
        ``timeout`` seconds, `Fenced`, `UnknownOutcome`, `Stopping`.
        """
        batch = list(commands) if isinstance(commands, Sequence) else [commands]
        if len(batch) > MAX_COMMANDS:
            raise InvalidInput(f"{len(batch)} commands in one batch; at most {MAX_COMMANDS}")
        end = time.monotonic() + timeout
        if not self._writing.acquire(timeout=patience(timeout)):
            raise DeadlineExceeded(f"other changes of the catalog took longer than {timeout} s")
        try:
            base, applied, refusal = self._accept(batch, author, end)
        finally:
            self._writing.release()
        try:
            self._await_activation(base, end)
        except StrandlineError as error:
            if refusal is None:
                raise
            raise refusal from error
        if refusal is not None:
            raise refusal
        self._executed += 1
        return Applied(base.version, base.time, applied, base)

    def _accept(
        self, batch: list[Command], author: str, end: float
    ) -> tuple[Catalog, tuple[bool, ...], StrandlineError | None]:
        while True:
            self._check_running()
            self.sync()
            base = self._history.latest
            transaction = Transaction(base.version, base.contents)
            planning = Planning(base, transaction, self._clock.current())
            applied = []
            try:
                for command in batch:
                    before = len(transaction.entries)
                    command.plan(planning)
                    applied.append(len(transaction.entries) > before)
            except StrandlineError as error:
                return base, (), error
            if not transaction.entries:
                return base, tuple(applied), None
            try:
                update = self._state.commit_transaction(transaction, author=author)
            except OutOfSync:
                self._lost += 1
                if time.monotonic() > end:
                    raise DeadlineExceeded(
                        "the catalog was changed by others each time; try again"
                    ) from None
                continue
            faults.reached("ddl-appended")
            try:
                self.sync()
            except Unavailable as error:
                raise UnknownOutcome(
                    f"the change is in the log as version {update.version}, but this node could "
                    f"not apply it yet: {error.message}. Do not repeat it; read the catalog"
                ) from error
            return self._history.at_version(update.version), tuple(applied), None

    def _await_activation(self, catalog: Catalog, end: float) -> None:
        if self.delay or self.skew:
            target = round_up(add_milliseconds(catalog.time, self.skew))
            self._clock.wait_until(target, timeout=max(0.0, end - time.monotonic()))
        else:
            self._clock.update(catalog.time)

    def compact(self, version: int) -> bool:
        """Trim all versions below ``version``; False if that was done before.

        Raises `VersionNotFound`, also for a version that is not active yet: before it is, the
        present is an older one.
        """
        self._check_running()
        catalog = self.catalog(version)
        if self.delay and catalog.time > self._clock.current():
            raise VersionNotFound(
                f"version {version} becomes active at {format_timestamp(catalog.time)}; trim to it "
                "after that, or to an older one"
            )
        done = self._state.compact_at(version, self._given(catalog), catalog.contents)
        self.sync()
        return done

    def statistics(self) -> CatalogStatistics:
        """Counts since this node started."""
        return CatalogStatistics(
            self._history.latest.version,
            self._history.earliest.version,
            self._executed,
            self._lost,
            self._listeners.failures,
            self._applier_failures,
        )
