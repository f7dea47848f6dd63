"""Holds for clients that do not take holds, so that their snapshots stay readable for a while.

A client of the Hive protocol does not know holds. It gets the names of files and reads them later,
so the files must not be cleaned meanwhile. Files of a snapshot of the present can only be removed
by a later commit, and cleaning keeps what was removed less than `SnapshotHolds.ttl_ms` ago. Files
of a snapshot of the past may have been removed long ago: there the node takes a hold for the
client. A hold also keeps all later times, so a node needs few of them. A client does not wait long
for the hold: while another process has the write lock, nothing is cleaned either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from strandline.clock import Timestamp
from strandline.errors import Unavailable, VersionNotFound
from strandline.transactions.holds import Holds

KIND = "snapshot"
"""The kind of these holds."""
OWNER = "strandline"
PATIENCE = 1.0
"""Seconds that a client waits for the database to grant a hold."""

logger = logging.getLogger(__name__)


class SnapshotHolds:
    """See the module. Safe for threads."""

    def __init__(
        self,
        holds: Holds,
        ttl_ms: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._holds = holds
        self.ttl_ms = ttl_ms
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: dict[Timestamp, float] = {}

    def keep(self, at: Timestamp) -> None:
        """Keep the snapshot as of ``at`` for at least `ttl_ms`, if the history still contains it.

        A snapshot that is older, or for which no hold was granted, is served until it is cleaned.
        """
        if not self.ttl_ms:
            return
        now = self._monotonic()
        with self._lock:
            self._kept = {kept: until for kept, until in self._kept.items() if until > now}
            if any(kept <= at for kept in self._kept):
                return
        try:
            # Twice as long, so that it serves other clients too.
            self._holds.acquire(KIND, OWNER, at=at, ttl_ms=2 * self.ttl_ms, timeout=PATIENCE)
        except VersionNotFound:
            return
        except Unavailable as error:
            logger.warning("a snapshot is served without a hold: %s", error)
            return
        with self._lock:
            self._kept[at] = now + self.ttl_ms / 1000
