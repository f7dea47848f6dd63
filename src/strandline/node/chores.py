"""Chores: the work that a node repeats in background threads.

If a chore fails, the failure is logged, once until it changes or the chore succeeds, and the chore
runs again after the next pause. It does not affect other chores. All chores end soon after
`Chores.stopping` is set; a long chore checks it.

`StorageRecorder` is the chore that measures how many bytes the tables take, and records it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from strandline.catalog import CatalogManager
from strandline.catalog.storage_usage import RecordedSizes, measured, record_storage_usage
from strandline.clock import MIN_TIMESTAMP, Timestamp, milliseconds
from strandline.config import Settings
from strandline.errors import Stopping, StrandlineError, Unavailable
from strandline.metastore.store.storage_sizes import measured_sizes
from strandline.metastore.store.store_folders import StoreFolders
from strandline.sql import Database

logger = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
"""Seconds between two checks whether a measurement is due. A short-lived node never measures."""
_NEVER_MEASURED_MS = 3_600_000
"""The longest wait after its start before a node measures a store that was never measured."""


@dataclass(frozen=True, slots=True)
class ChoreStatistics:
    """How often each chore failed, by its name, since the start."""

    failures: Mapping[str, int]


class Chores:
    """See the module. ``stopping`` is set when the node stops, or a ``with`` block ends."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures = Counter[str]()  # each chore runs in one thread at a time
        self._logged: dict[str, str] = {}  # the last failure of each chore that fails now

    def statistics(self) -> ChoreStatistics:
        """The failures of the chores that are repeated."""
        return ChoreStatistics(dict(self._failures))

    def repeat(
        self, thread: str, chores: Mapping[str, Callable[[], object]], *, pauses: Iterator[float]
    ) -> None:
        """Run all ``chores`` after each of ``pauses``, in seconds, in a thread named ``thread``.

        The keys of ``chores`` are their names in the log.
        """
        self._failures.update(dict.fromkeys(chores, 0))

        def run() -> None:
            for pause in pauses:
                if self.stopping.wait(min(pause, threading.TIMEOUT_MAX)):
                    return
                for chore, do in chores.items():
                    if not self.do(chore, do):
                        return

        started = threading.Thread(target=run, name=thread, daemon=True)
        started.start()
        self._threads.append(started)

    def do(self, chore: str, do: Callable[[], object]) -> bool:
        """Run a chore now and log its failure. Return False if it raised `Stopping`."""
        try:
            do()
        except Stopping:
            return False
        except Exception as error:
            if isinstance(error, Unavailable) or not self.stopping.is_set():
                self._failed(chore, error)
        else:
            if self._logged.pop(chore, None) is not None:
                logger.info("%s works again", chore)
        return True

    def _failed(self, chore: str, error: Exception) -> None:
        self._failures[chore] += 1
        failure = f"{type(error).__name__}: {error}"
        if self._logged.get(chore) == failure:
            return
        self._logged[chore] = failure
        if isinstance(error, StrandlineError):
            level = logging.WARNING if isinstance(error, Unavailable) else logging.ERROR
            logger.log(level, "%s failed: %s; it will be tried again later", chore, error)
        else:
            logger.error("%s failed; it will be tried again later", chore, exc_info=error)

    def refuse_when_stopping(self) -> None:
        """Raise `Stopping` if the node is stopping."""
        if self.stopping.is_set():
            raise Stopping("the node is stopping; the remaining work is left to its next start")

    def join(self) -> None:
        """Wait until all threads have ended. They end when ``stopping`` is set."""
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Chores:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join()


class StorageRecorder:
    """See the module. ``chores`` says when the node stops.

    ``time_before`` returns the time that many milliseconds ago, not counting leaps of the clock.
    """

    def __init__(
        self,
        database: Database,
        folders: StoreFolders,
        catalogs: CatalogManager,
        settings: Settings,
        chores: Chores,
        *,
        time_before: Callable[[int], Timestamp],
    ) -> None:
        self._database = database
        self._folders = folders
        self._catalogs = catalogs
        self._interval_ms = settings.storage_usage_interval_ms
        self._retention_ms = settings.storage_usage_retention_ms
        self._chores = chores
        self._time_before = time_before
        self._recorded = RecordedSizes(chores.refuse_when_stopping)
        self._opened_at = catalogs.now()
        self._tried_at: Timestamp | None = None

    def is_due(self) -> bool:
        """Whether an interval has passed since this node or another one tried to measure."""
        last = measured(self._catalogs.latest_catalog())
        tried_at = [time for time in (last, self._tried_at) if time is not None]
        interval_ms = self._interval_ms
        if not tried_at:
            tried_at, interval_ms = [self._opened_at], min(interval_ms, _NEVER_MEASURED_MS)
        return milliseconds(max(tried_at)) + interval_ms <= milliseconds(self._catalogs.now())

    def measure_when_due(self) -> None:
        """Measure if a measurement `is_due`."""
        if self.is_due():
            self._tried_at = self._catalogs.now()
            self.measure()

    def measure(self) -> None:
        """Record the bytes in the folders of the tables, for tables whose size has changed.

        Also removes records that are older than the retention. Raises `Stopping`, `Unavailable`,
        and what `record_storage_usage` raises.
        """
        catalog, now = self._catalogs.present(), self._catalogs.now()
        retention_ms = self._retention_ms
        sizes = measured_sizes(
            self._database,
            self._folders,
            set(catalog.table_ids()),
            refuse_when_stopping=self._chores.refuse_when_stopping,
        )
        record_storage_usage(
            self._catalogs,
            self._recorded,
            sizes,
            catalog=catalog,
            at=now,
            oldest=self._time_before(retention_ms) if retention_ms else MIN_TIMESTAMP,
        )
