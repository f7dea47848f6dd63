"""Holds for clients that do not take holds, so that their snapshots stay readable for a while.

A client of the Hive protocol does not know holds. It gets the names of files and reads them later,
so the files must not be cleaned meanwhile. Files of a snapshot of the present can only be removed
by a later commit, and cleaning keeps what was removed less than `SnapshotHolds.ttl_ms` ago. So
these need no hold. Files of a snapshot of the past may have been removed long ago: there the node
takes a hold for the client. A hold also keeps all later times, so a node needs few of them.

What must stay true: a snapshot of the past is answered with a hold, or not at all. The hold is a
write, so it waits for other writers, but not longer than `TIMEOUT`: then the client gets
`DeadlineExceeded` and can ask again. Rejected: to answer without a hold after a wait. The other
writer may be the one that raises the low watermark, and cleaning may follow at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.clock import Timestamp, elapsed_seconds, format_timestamp
from strandline.errors import DeadlineExceeded, Unavailable, UnknownOutcome, VersionNotFound
from strandline.transactions.holds import Holds

KIND = "snapshot"
"""The kind of these holds."""
OWNER = "strandline"
TIMEOUT = 5.0
"""Seconds that a client waits for the database to grant a hold."""


class SnapshotHolds:
    """See the module. Safe for threads."""

    def __init__(
        self,
        holds: Holds,
        ttl_ms: int,
        *,
        monotonic: Callable[[], float] = elapsed_seconds,
    ) -> None:
        self._holds = holds
        self.ttl_ms = ttl_ms
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept_until: dict[Timestamp, float] = {}

    def keep(self, at: Timestamp, *, last: Timestamp) -> None:
        """Keep the snapshot of a table as of ``at`` for at least `ttl_ms`.

        ``last`` is the last time at which the table had this snapshot: if the history at ``at`` is
        no longer kept, a hold on ``last`` keeps its files too. Does nothing if `ttl_ms` is 0.

        Raises `VersionNotFound` if the history at ``last`` is no longer kept either, and
        `DeadlineExceeded` if other writers kept the database busy.
        """
        if not self.ttl_ms:
            return
        now = self._monotonic()
        with self._lock:
            self._kept_until = {since: end for since, end in self._kept_until.items() if end > now}
            if any(held_from <= last for held_from in self._kept_until):
                return
        try:
            self._take(at)
            held_from = at
        except VersionNotFound:
            if at == last:
                raise
            self._take(last)
            held_from = last
        with self._lock:
            self._kept_until[held_from] = now + self.ttl_ms / 1000

    def _take(self, at: Timestamp) -> None:
        try:
            # Twice as long, so that it serves other clients too.
            self._holds.acquire(KIND, OWNER, at=at, ttl_ms=2 * self.ttl_ms, timeout=TIMEOUT)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"the snapshot as of {format_timestamp(at)} cannot be kept for its reader now,"
                f" because the store is busy; try again ({error.message})"
            ) from error
        except UnknownOutcome as error:
            raise Unavailable(
                f"the snapshot as of {format_timestamp(at)} cannot be kept for its reader now,"
                " because the database did not confirm it; check the database, and try again"
            ) from error
