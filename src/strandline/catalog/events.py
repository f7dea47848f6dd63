"""The versions that listeners of the catalog receive, and the history that people read."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from strandline import work
from strandline.catalog.catalog import Catalog
from strandline.clock import Timestamp, add_milliseconds
from strandline.durable.collections import AUDIT_EVENT
from strandline.durable.log import UpdateLog
from strandline.durable.update import Arguments, AuditEvent, Update
from strandline.errors import CorruptData
from strandline.wire.registry import decode

logger = logging.getLogger(__name__)

READ_AT_ONCE = 100
"""The number of versions that `read_history_backwards` reads first."""
UNITS_OF_VERSION = 5
"""The cost of a version in a history, with its text in the answer. Few versions have no entry."""


@dataclass(frozen=True, slots=True)
class AppliedVersion:
    """An update and the catalogs before and after it."""

    update: Update
    before: Catalog
    catalog: Catalog


Listener = Callable[[AppliedVersion], None]
"""Called for each applied version, in order; the next version waits until all have returned."""

OnReset = Callable[[Catalog], None]
"""Called if a `Listener` missed versions, which were trimmed before this node applied them.

A listener that follows the catalog version by version has to read this one as a whole.
"""


class Listeners:
    """The listeners of applied versions. Used only by the thread that applies.

    A listener may read the present, which may apply further versions. The listeners are called for
    these after it has returned, so each listener gets the versions in order.
    """

    def __init__(self) -> None:
        self._listeners: list[tuple[Listener, OnReset | None]] = []
        self._pending: deque[AppliedVersion | Catalog] = deque()
        self._caller: int | None = None
        self.failures = 0

    @property
    def calling(self) -> bool:
        """Whether a thread is inside a listener."""
        return self._caller is not None

    def add(self, listener: Listener, *, on_reset: OnReset | None = None) -> None:
        """Call ``listener`` for each version from now on, or ``on_reset`` if it missed some."""
        self._listeners.append((listener, on_reset))

    def call(self, *versions: AppliedVersion | Catalog) -> None:
        """Call the listeners for ``versions``, after those pending. Logs and counts failures.

        A catalog is one that the listeners have to begin again from.
        """
        self._pending += versions
        if self.calling:
            return
        self._caller = threading.get_ident()
        try:
            while self._pending:
                self._call_each(self._pending.popleft())
        finally:
            self._caller = None

    def are_called_by_this_thread(self) -> bool:
        """Whether the calling thread is inside a listener."""
        return self._caller == threading.get_ident()

    def _call_each(self, version: AppliedVersion | Catalog) -> None:
        catalog = version.catalog if isinstance(version, AppliedVersion) else version
        for listener, on_reset in self._listeners:
            try:
                if isinstance(version, AppliedVersion):
                    listener(version)
                elif on_reset is not None:
                    on_reset(catalog)
            except Exception:
                self.failures += 1
                logger.exception("a listener failed at catalog version %d", catalog.version)


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One version as people see it. ``time`` is when it became active.

    ``trimmed`` versions can no longer be read as catalogs.
    """

    version: int
    time: Timestamp
    author: str
    member: str
    actions: tuple[tuple[str, Arguments], ...]
    trimmed: bool = False


def read_history(
    log: UpdateLog, start: int = 1, end: int | None = None, *, delay_ms: int = 0
) -> list[VersionInfo]:
    """The actions of versions ``start`` to ``end`` − 1, with trimmed and without silent versions.

    ``delay_ms`` is the time from the commit of a version of this catalog to its activation.
    """
    frontier = log.frontier()
    stop = frontier.upper if end is None else min(end, frontier.upper)
    work.require(lambda _: UNITS_OF_VERSION * (stop - max(start, 1)))
    infos = []
    for scanned in work.spending(log.scan(AUDIT_EVENT, start, stop)):
        work.spend(work.units_of_bytes(len(scanned.data)))  # a version may have many actions
        event = decode(scanned.data, AuditEvent)
        if event.version != scanned.version:
            raise CorruptData(
                f"the history has the entry of version {event.version} at version "
                f"{scanned.version}; restore the store from a backup"
            )
        infos.append(
            VersionInfo(
                event.version,
                add_milliseconds(scanned.time, delay_ms) if delay_ms else scanned.time,
                event.author,
                event.member,
                event.actions,
                trimmed=event.version < frontier.since,
            )
        )
    return infos


def read_history_backwards(log: UpdateLog, *, delay_ms: int) -> Iterator[VersionInfo]:
    """`read_history`, the last version first. Reads in proportion to what the caller takes."""
    end, at_once = log.frontier().upper, READ_AT_ONCE
    while end > 1:
        start = max(end - at_once, 1)
        yield from reversed(read_history(log, start, end, delay_ms=delay_ms))
        end, at_once = start, 2 * at_once  # the log persist reads whole parts at each call
