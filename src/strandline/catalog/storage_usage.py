"""How many bytes the tables take, as nodes measure it now and then.

A measurement is in the catalog's log and in no version of the catalog: an event with the tables
whose sizes are not the ones that the log says last. So a table that nobody writes to is in one
event, as long as the log has it. Events go with the history (`AppendOnly.lasting`); a table whose
last event was trimmed is in the next one again.

The timestamp `MEASURED` is that of the last measurement. Of several nodes that measure at a time,
one moves it, and the others record nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from strandline import work
from strandline.catalog.catalog import Catalog
from strandline.catalog.planning import Command, Planning
from strandline.clock import Timestamp, add_milliseconds, milliseconds
from strandline.durable import Frontier, UpdateLog
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.durable.log import Scanned
from strandline.errors import CorruptData
from strandline.model.descriptors import StorageUsageEvent, TimestampEntry
from strandline.model.privileges import SYSTEM_NAME
from strandline.wire.registry import decode

MEASURED = "storage_usage"
TABLES_AT_ONCE = 10_000
"""In one event, which is one version."""


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """How many bytes a table, ``schema.name``, took, as it was recorded at ``time``."""

    table: str
    table_id: int
    size_bytes: int
    time: Timestamp


@dataclass(frozen=True, slots=True)
class _Record:
    """Record ``sizes``, pairs of table id and bytes, and move the timestamp to ``at``."""

    sizes: tuple[tuple[int, int], ...]
    since: Timestamp | None
    at: Timestamp

    def plan(self, planning: Planning) -> None:
        """Nothing where another node has measured since."""
        if measured(planning.catalog) != self.since:
            return
        with planning.transaction.entry("configure", {"name": MEASURED}):
            planning.transaction.put(TimestampEntry(MEASURED, self.at))
        event = StorageUsageEvent(self.sizes, milliseconds(self.at))
        planning.transaction.append(STORAGE_USAGE_EVENT, event)


class Executor(Protocol):
    """What carries out commands: a catalog manager."""

    def execute(self, commands: Command, *, author: str) -> object:
        """Carry out a command as one version."""


def measured(catalog: Catalog) -> Timestamp | None:
    """When the sizes were measured last; None if never."""
    entry: TimestampEntry | None = catalog.get("timestamp", MEASURED)
    return None if entry is None else Timestamp(entry.time)


class RecordedSizes:
    """The last size of each table that a log says; asked again, it reads what is new. One thread's.

    ``wanted`` is called for each event, and may raise.
    """

    def __init__(self, wanted: Callable[[], object] = lambda: None) -> None:
        self._wanted = wanted
        self._sizes: dict[int, int] = {}
        self._read = Frontier(0, 0)

    def of(self, log: UpdateLog) -> Mapping[int, int]:
        """By table id. Raises `CorruptData`."""
        frontier = log.frontier()
        if frontier.since != self._read.since:  # some are gone
            self._sizes, self._read = {}, Frontier(frontier.since, frontier.since + 1)
        sizes = dict(self._sizes)
        for table_id, size, _ in _recorded(log, Frontier(self._read.upper - 1, frontier.upper)):
            self._wanted()
            sizes[table_id] = size
        self._sizes, self._read = sizes, frontier
        return sizes


def record_storage_usage(
    manager: Executor,
    known: Mapping[int, int],
    sizes: Mapping[int, int],
    *,
    since: Timestamp | None,
    at: Timestamp,
) -> None:
    """Record those of ``sizes``, by table id, that are not ``known`` from the log.

    They were measured at ``at``, and ``since`` is the measurement before: where there is another
    one meanwhile, nothing is recorded. Raises what `CatalogManager.execute` raises.
    """
    rest = iter(sorted(item for item in sizes.items() if known.get(item[0]) != item[1]))
    while part := tuple(islice(rest, TABLES_AT_ONCE)):
        at = at if since is None else max(at, add_milliseconds(since, 1))
        manager.execute(_Record(part, since, at), author=SYSTEM_NAME)
        since = at


def read_events(
    log: UpdateLog, after: int, end: int
) -> Iterator[tuple[Scanned, StorageUsageEvent]]:
    """The events of versions above ``after`` and below ``end``, in order. Raises `CorruptData`."""
    for scanned in work.spending(log.scan(STORAGE_USAGE_EVENT, after + 1, end)):
        work.spend(work.things_of_bytes(len(scanned.data)))  # a version may have many sizes
        try:
            yield scanned, decode(scanned.data, StorageUsageEvent)
        except CorruptData as error:
            raise CorruptData(
                f"the storage usage in version {scanned.version}: {error.message}"
            ) from error


def _recorded(
    log: UpdateLog, between: Frontier | None = None
) -> Iterator[tuple[int, int, Timestamp]]:
    """What the log says of storage usage, in order: table id, bytes, time."""
    frontier = between or log.frontier()
    for scanned, event in read_events(log, frontier.since, frontier.upper):
        for table_id, size in event.sizes:
            yield table_id, size, scanned.time


def latest_storage_usage(log: UpdateLog, catalog: Catalog) -> list[StorageUsage]:
    """How many bytes each table of ``catalog`` took when that was last recorded; by name."""
    last = {table_id: (size, time) for table_id, size, time in _recorded(log)}
    rows = [_row(catalog, table_id, *what) for table_id, what in last.items()]
    return sorted((row for row in rows if row is not None), key=lambda row: row.table)


def storage_usage_of(log: UpdateLog, catalog: Catalog, table_id: int) -> list[StorageUsage]:
    """Each size of one table that is recorded, the oldest first."""
    rows = [_row(catalog, *what) for what in _recorded(log) if what[0] == table_id]
    return [row for row in rows if row is not None]


def _row(catalog: Catalog, table_id: int, size: int, time: Timestamp) -> StorageUsage | None:
    table = catalog.table_by_id(table_id)
    if table is None:
        return None
    return StorageUsage(catalog.qualified_name(table), table_id, size, time)
