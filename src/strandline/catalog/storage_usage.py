"""Storage usage: how many bytes each table took, measured now and then and kept as events.

Events are append-only: they are in no snapshot and in no memory, so a year of them costs a node
nothing. They travel in a commit of their own that changes no object, a silent version: nobody is
told of it and no command is judged again because of it. They are read by scanning the log.

Nothing prunes them yet; what measures is to measure seldom.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from strandline.catalog.catalog import Catalog
from strandline.clock import Timestamp
from strandline.durable import DurableCatalogState, UpdateLog
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.errors import DeadlineExceeded, InvalidInput, OutOfSync
from strandline.model.bookkeeping import StorageUsageEvent
from strandline.wire.registry import decode, encode

EVENTS_OF_A_VERSION = 100
"""A store takes a limited number of operations at once, and each event is one."""


@dataclass(frozen=True, slots=True)
class RecordedUsage:
    """An event, and the version and time at which it was written down."""

    version: int
    time: Timestamp
    event: StorageUsageEvent


class UsageWriter(Protocol):
    """What this needs of the follower of the log."""

    @property
    def state(self) -> DurableCatalogState: ...
    def sync(self) -> None: ...
    def latest_catalog(self) -> Catalog: ...


def append_storage_usage(
    writer: UsageWriter,
    events: Sequence[StorageUsageEvent],
    *,
    author: str,
    timeout: float = 30.0,
) -> int:
    """Write ``events`` down, at most `EVENTS_OF_A_VERSION` a version; the last version of them.

    0 if there are none. Raises `InvalidInput` for a number below 0, `DeadlineExceeded` after
    ``timeout`` seconds, `UnknownOutcome`, `Fenced`; then some of them may be written.
    """
    for event in events:
        if min(event.table_id, event.size_bytes, event.collected) < 0:
            raise InvalidInput(f"storage usage cannot have a number below 0: {event}")
    end, version = time.monotonic() + timeout, 0
    for first in range(0, len(events), EVENTS_OF_A_VERSION):
        group = events[first : first + EVENTS_OF_A_VERSION]
        version = _append(writer, group, author=author, end=end)
    return version


def _append(
    writer: UsageWriter, events: Sequence[StorageUsageEvent], *, author: str, end: float
) -> int:
    while True:
        writer.sync()
        transaction = writer.state.transaction(writer.latest_catalog(), author=author)
        for event in events:
            transaction.append(STORAGE_USAGE_EVENT, encode(event))
        try:
            return writer.state.commit_transaction(transaction).version
        except OutOfSync:
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    "the catalog was changed by others each time; record the usage later"
                ) from None


def scan_storage_usage(
    log: UpdateLog, start: int = 1, end: int | None = None
) -> Iterator[RecordedUsage]:
    """What was recorded in versions ``start`` to ``end`` − 1, in order; trimmed ones too."""
    stop = log.frontier().upper if end is None else end
    for found in log.scan(STORAGE_USAGE_EVENT, start, stop):
        yield RecordedUsage(found.version, found.time, decode(found.data, StorageUsageEvent))
