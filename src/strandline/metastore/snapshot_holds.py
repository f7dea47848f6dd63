"""Snapshots that clients were given without asking for a hold stay readable for a while.

A client of the Hive protocol knows nothing of holds. It gets the names of files, and reads them
later, so no file of them may be cleaned meanwhile. What the present shows is removed by a later
commit, and cleaning takes nothing that was removed less than `SnapshotHolds.ttl_ms` ago. What the
past shows may have been removed long ago: there the node takes a hold for the client. One hold
keeps all later times too, so a node has few of them. A client does not wait long for it: while
another process holds the write lock, nothing is cleaned either.
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
        """Keep what ``at`` shows for `ttl_ms` at least, if the history still reaches there.

        What is older, and what no hold could be had for, is served as long as it is not cleaned.
        """
        if not self.ttl_ms:
            return
        now = self._monotonic()
        with self._lock:
            self._kept = {kept: until for kept, until in self._kept.items() if until > now}
            if any(kept <= at for kept in self._kept):
                return
        try:
            # Twice as long, so that it need not be taken anew for each client.
            self._holds.acquire(KIND, OWNER, at=at, ttl_ms=2 * self.ttl_ms, timeout=PATIENCE)
        except VersionNotFound:
            return
        except Unavailable as error:
            logger.warning("a snapshot is served without a hold: %s", error)
            return
        with self._lock:
            self._kept[at] = now + self.ttl_ms / 1000
