"""How many bytes the tables take, as nodes measure it now and then.

A measurement is in the catalog's log and in no version of the catalog: an event with the tables
whose sizes are not the ones that the log says last. So a table that nobody writes to is in one
event, as long as the log has it. Events go with the history (`AppendOnly.lasting`); a table whose
last event was trimmed is in the next one again.

The timestamp `MEASURED` is that of the last measurement. Of several nodes that measure at a time,
one moves it, and the others record nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from strandline import work
from strandline.catalog.catalog import Catalog
from strandline.catalog.planning import Command, Planning
from strandline.clock import Timestamp, add_milliseconds, milliseconds
from strandline.durable import UpdateLog
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.model.descriptors import StorageUsageEvent, TimestampEntry
from strandline.model.privileges import SYSTEM_NAME
from strandline.wire.registry import decode

MEASURED = "storage_usage"
TABLES_AT_ONCE = 10_000
"""In one event, which is one version."""


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """How many bytes a table, ``schema.name``, took at ``time``."""

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


def record_storage_usage(
    manager: Executor,
    log: UpdateLog,
    sizes: Mapping[int, int],
    *,
    since: Timestamp | None,
    at: Timestamp,
) -> None:
    """Record those of ``sizes``, by table id, that the log does not say.

    They were measured at ``at``, and ``since`` is the measurement before: where there is another
    one meanwhile, nothing is recorded. Raises what `CatalogManager.execute` raises.
    """
    last = {table_id: size for table_id, size, _ in _recorded(log)}
    rest = iter(sorted(item for item in sizes.items() if last.get(item[0]) != item[1]))
    while part := tuple(islice(rest, TABLES_AT_ONCE)):
        at = at if since is None else max(at, add_milliseconds(since, 1))
        manager.execute(_Record(part, since, at), author=SYSTEM_NAME)
        since = at


def _recorded(log: UpdateLog) -> Iterator[tuple[int, int, Timestamp]]:
    """What the log says of storage usage, from its first event on: table id, bytes, time."""
    frontier = log.frontier()
    events = log.scan(STORAGE_USAGE_EVENT, frontier.since + 1, frontier.upper)
    for scanned in work.spending(events):
        event = decode(scanned.data, StorageUsageEvent)
        work.spend(len(event.sizes))
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
    return (
        None if table is None else StorageUsage(catalog.qualified_name(table), table_id, size, time)
    )
