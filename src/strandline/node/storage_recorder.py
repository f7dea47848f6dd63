"""The chore of a node that measures how many bytes the tables take, and records it."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.catalog import CatalogManager
from strandline.catalog.storage_usage import RecordedSizes, measured, record_storage_usage
from strandline.clock import Timestamp, milliseconds
from strandline.config import Settings
from strandline.metastore.store.storage_sizes import measured_sizes
from strandline.metastore.store.store_folders import StoreFolders
from strandline.node.chores import Chores
from strandline.sql import Database

_AFTER_START_MS = 60_000
"""What runs for a moment leaves the measuring to others."""
_NEVER_MEASURED_MS = 3_600_000
"""How long after its start a node measures a store that was never measured, at most."""


class StorageRecorder:
    """See the module. ``chores`` says when the node stops."""

    def __init__(
        self,
        database: Database,
        folders: StoreFolders,
        catalogs: CatalogManager,
        settings: Settings,
        chores: Chores,
    ) -> None:
        self._database = database
        self._folders = folders
        self._catalogs = catalogs
        self._interval_ms = settings.storage_usage_interval_ms
        self._retention_ms = settings.storage_usage_retention_ms
        self._chores = chores
        self._recorded = RecordedSizes(chores.refuse_when_stopping)
        self._opened_at = catalogs.now()
        self._tried_at: Timestamp | None = None

    def pauses(self) -> Iterator[float]:
        """The seconds until a measurement may be due, each time."""
        while True:
            yield max(self._seconds_left(), 0)

    def _seconds_left(self) -> float:
        """Until an interval after the last measurement that this node or another one has tried."""
        opened, interval_ms = milliseconds(self._opened_at), self._interval_ms
        last = measured(self._catalogs.latest_catalog())
        tried = [milliseconds(time) for time in (last, self._tried_at) if time is not None]
        if tried:
            due = max(max(tried) + interval_ms, opened + min(interval_ms, _AFTER_START_MS))
        else:
            due = opened + min(interval_ms, _NEVER_MEASURED_MS)
        return (due - milliseconds(self._catalogs.now())) / 1000

    def measure_when_due(self) -> None:
        """Measure, unless another node has done it meanwhile."""
        if self._seconds_left() <= 0:
            self._tried_at = self._catalogs.now()
            self.measure()

    def measure(self) -> None:
        """Record how many bytes lie in the folders of the tables, where that is another number.

        What is older than the retention is removed. Raises `Stopping`, `Unavailable`, and what
        `record_storage_usage` raises.
        """
        catalog, now = self._catalogs.present(), self._catalogs.now()
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
            before=measured(catalog),
            at=now,
            retention_ms=self._retention_ms,
        )
