"""Projecting what no caller of this node waits for, in a thread of its own.

A DDL call projects its version before it returns, and a reader that relies on one that is not yet
projected does that first. Left over are versions of callers that gave up or died, and of nodes that
died: `BackgroundProjection` carries these out a little later, so that their folders and events come
without being asked. The pause lets the caller do its own work, which would else be done twice.

No caller waits for this thread: while thousands of folders are made, readers of the catalog go on.
"""

from __future__ import annotations

import logging
import threading

from strandline.errors import Stopping, Unavailable
from strandline.metastore.store.projection import Projector

logger = logging.getLogger(__name__)

GRACE_SECONDS = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class BackgroundProjection:
    """See the module. ``grace`` is in seconds."""

    def __init__(self, projector: Projector, *, grace: float = GRACE_SECONDS) -> None:
        self._projector = projector
        self._grace = grace
        self._wanted = 0
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="projector", daemon=True)
        self.failures = 0

    def want(self, version: int) -> None:
        """Have ``version`` projected; returns at once."""
        self._wanted = max(self._wanted, version)
        self._news.set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End. What was wanted is projected by the node that opens the store next. Idempotent."""
        self._stop.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._news.wait()
            if self._stop.wait(self._grace):
                return
            self._news.clear()  # before the look at what is wanted: what comes now comes again
            try:
                self._projector.project_up_to(self._wanted)
                pause = FIRST_PAUSE
            except Stopping:
                return
            except Exception as error:
                self.failures += 1
                if isinstance(error, Unavailable):
                    logger.warning("%s; it is tried again in %.1f s", error, pause)
                else:
                    logger.exception("projecting failed; it is tried again in %.1f s", pause)
                self._news.set()
                self._stop.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
