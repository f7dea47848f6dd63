"""The storage usage of tables in bytes, as nodes measure it periodically.

A measurement is stored in the catalog's log as an event, not in any version of the catalog. The
event contains only the tables whose size differs from the last one in the log. So a table that no
transaction writes to is in a single event for as long as that event is kept. Each measurement
removes the events older than the retention. If the last event of a table is among them, its size is
recorded again first.

The timestamp `MEASURED` is the time of the last measurement. If several nodes measure at the same
time, one of them moves the timestamp, and the others record and remove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from strandline import work
from strandline.catalog.catalog import Catalog
from strandline.catalog.manager import CatalogManager
from strandline.catalog.planning import Planning
from strandline.clock import Timestamp, add_milliseconds, milliseconds
from strandline.durable import UpdateLog
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.durable.log import Scanned
from strandline.errors import CorruptData
from strandline.model.descriptors import StorageUsageEvent, TimestampEntry
from strandline.model.privileges import SYSTEM_NAME
from strandline.wire.registry import decode

MEASURED = "storage_usage"
TABLES_AT_ONCE = 10_000
"""The maximum number of tables in one event, which is one version."""


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """The size of a table (``schema.name``) in bytes, as recorded at ``time``."""

    table: str
    table_id: int
    size_bytes: int
    time: Timestamp


@dataclass(frozen=True, slots=True)
class _Record:
    """Record ``sizes``, pairs of table id and bytes, and move the timestamp to ``at``.

    ``before`` is the time of the previous measurement.
    """

    sizes: tuple[tuple[int, int], ...]
    before: Timestamp | None
    at: Timestamp

    def plan(self, planning: Planning) -> None:
        """Record the sizes, unless another node has measured since ``before``."""
        if measured(planning.catalog) != self.before:
            return
        with planning.transaction.entry("configure", {"name": MEASURED}):
            planning.transaction.put(TimestampEntry(MEASURED, self.at))
        event = StorageUsageEvent(self.sizes, milliseconds(self.at))
        planning.transaction.append(STORAGE_USAGE_EVENT, event)


def measured(catalog: Catalog) -> Timestamp | None:
    """When the sizes were last measured, or None if never."""
    entry: TimestampEntry | None = catalog.get("timestamp", MEASURED)
    return None if entry is None else Timestamp(entry.time)


class RecordedSizes:
    """The last size of each table in a log. Not safe to use from several threads.

    ``refuse_when_stopping`` is called for each event read, and may raise.
    """

    def __init__(self, refuse_when_stopping: Callable[[], object] = lambda: None) -> None:
        self._refuse_when_stopping = refuse_when_stopping
        self._last_sizes: dict[int, tuple[int, int]] = {}  # by table: the version, and the size
        self._times: list[tuple[int, Timestamp]] = []  # of the versions with events
        self._upper = 1

    def read(self, log: UpdateLog) -> None:
        """Read the new events of ``log``, and drop those that were pruned. Raises `CorruptData`."""
        frontier = log.frontier()
        times, last = list(self._times), dict(self._last_sizes)
        for scanned, event in read_events(log, self._upper, frontier.upper):
            self._refuse_when_stopping()
            times.append((scanned.version, scanned.time))
            for table_id, size in event.sizes:
                last[table_id] = scanned.version, size
        pruned = frontier.pruned_up_to(STORAGE_USAGE_EVENT)
        self._times = [(version, time) for version, time in times if version > pruned]
        self._last_sizes = {table: place for table, place in last.items() if place[0] > pruned}
        self._upper = frontier.upper

    def sizes_above(self, version: int) -> dict[int, int]:
        """The last size of each table that has an event above ``version``, by table id."""
        return {table: size for table, (last, size) in self._last_sizes.items() if last > version}

    def last_version_before(self, time: Timestamp) -> int:
        """The version of the last event recorded before ``time``, or 0 if there is none."""
        return max((version for version, recorded in self._times if recorded < time), default=0)


def record_storage_usage(
    manager: CatalogManager,
    recorded: RecordedSizes,
    sizes: Mapping[int, int],
    *,
    catalog: Catalog,
    at: Timestamp,
    oldest: Timestamp,
) -> None:
    """Record those of ``sizes`` (bytes by table id) that differ from the last sizes in the log.

    They were measured at ``at``. ``catalog`` is a catalog from before that: if another measurement
    was recorded since, nothing is recorded. Events from before ``oldest`` are removed; a table of
    ``catalog`` that was not measured keeps its last size, which is recorded again if its event is
    removed. Raises what `CatalogManager.execute` raises, and `CorruptData`.
    """
    recorded.read(manager.state.log)
    removed = recorded.last_version_before(oldest)
    kept_sizes, last = recorded.sizes_above(removed), recorded.sizes_above(0)
    table_ids = set(catalog.table_ids())
    known = {table: size for table, size in last.items() if table in table_ids}
    rest = iter(
        sorted(pair for pair in {**known, **sizes}.items() if kept_sizes.get(pair[0]) != pair[1])
    )
    before = measured(catalog)
    while part := tuple(islice(rest, TABLES_AT_ONCE)):
        at = at if before is None else max(at, add_milliseconds(before, 1))
        if not manager.execute(_Record(part, before, at), author=SYSTEM_NAME).applied[0]:
            return
        before = at
    if removed:
        manager.prune(STORAGE_USAGE_EVENT, removed)


def read_events(
    log: UpdateLog, start: int, end: int
) -> Iterator[tuple[Scanned, StorageUsageEvent]]:
    """The events of versions ``start`` to ``end`` − 1, in order. Raises `CorruptData`."""
    for scanned in work.spending(log.scan(STORAGE_USAGE_EVENT, start, end)):
        work.spend(work.units_of_bytes(len(scanned.data)))  # a version may have many sizes
        try:
            yield scanned, decode(scanned.data, StorageUsageEvent)
        except CorruptData as error:
            raise CorruptData(
                f"the storage usage in version {scanned.version}: {error.message}"
            ) from error


def _recorded(log: UpdateLog) -> Iterator[tuple[int, int, Timestamp]]:
    """The storage usage in the log, in order: table id, bytes, time."""
    for scanned, event in read_events(log, 1, log.frontier().upper):
        for table_id, size in event.sizes:
            yield table_id, size, scanned.time


def latest_storage_usage(log: UpdateLog, catalog: Catalog) -> list[StorageUsage]:
    """The last recorded size of each table of ``catalog``, sorted by name."""
    last = {table_id: (size, time) for table_id, size, time in _recorded(log)}
    rows = [_row(catalog, table_id, *size_and_time) for table_id, size_and_time in last.items()]
    return sorted((row for row in rows if row is not None), key=lambda row: row.table)


def storage_usage_of(log: UpdateLog, catalog: Catalog, table_id: int) -> list[StorageUsage]:
    """Each recorded size of one table, oldest first."""
    rows = [_row(catalog, *of_table) for of_table in _recorded(log) if of_table[0] == table_id]
    return [row for row in rows if row is not None]


def _row(catalog: Catalog, table_id: int, size: int, time: Timestamp) -> StorageUsage | None:
    table = catalog.table_by_id(table_id)
    if table is None:
        return None
    return StorageUsage(catalog.qualified_name(table), table_id, size, time)
