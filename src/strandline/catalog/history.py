"""The versions that a node has in memory, by number and by time; and versions that callers await.

One object holds both orders, so a reader always sees them consistent. Readers take no lock:
versions are only appended, and trimming creates a new object.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future

from strandline.catalog.catalog import Catalog
from strandline.clock import Timestamp, format_timestamp
from strandline.errors import CorruptData, StrandlineError, VersionNotFound


class History:
    """Catalogs of consecutive versions, in order of activation."""

    __slots__ = ("_base", "_catalogs", "_times")

    def __init__(self, first: Catalog, *rest: Catalog) -> None:
        self._base = first.version
        self._catalogs = [first]
        self._times = [first.time]
        for catalog in rest:
            self.append(catalog)

    @property
    def earliest(self) -> Catalog:
        """The lowest version that can be read."""
        return self._catalogs[0]

    @property
    def latest(self) -> Catalog:
        """The highest version; its time may be ahead of the present."""
        return self._catalogs[-1]

    def append(self, catalog: Catalog) -> None:
        """Add the next version. Raises `CorruptData` if its number or its time is out of order.

        Versions that were appended together have one time; as of that time the last of them is
        active.
        """
        if catalog.version != self.latest.version + 1 or catalog.time < self.latest.time:
            raise CorruptData(
                f"version {catalog.version} active at {format_timestamp(catalog.time)} does not "
                f"follow {self.latest.version} active at {format_timestamp(self.latest.time)}; "
                "restore the store from a backup"
            )
        # The catalog first: a reader that finds the time must find the catalog too.
        self._catalogs.append(catalog)
        self._times.append(catalog.time)

    def at_version(self, version: int) -> Catalog:
        """The catalog of ``version``. Raises `VersionNotFound`, which names the nearest version."""
        index = version - self._base
        if index < 0 or version < 0:
            raise VersionNotFound(
                f"version {version} is no longer kept; the earliest is version "
                f"{self.earliest.version}, active from {format_timestamp(self.earliest.time)}"
            )
        if index >= len(self._catalogs):
            raise VersionNotFound(
                f"version {version} does not exist; the latest is {self.latest.version}"
            )
        return self._catalogs[index]

    def find(self, version: int) -> Catalog | None:
        index = version - self._base
        return self._catalogs[index] if 0 <= index < len(self._catalogs) else None

    def at_time(self, at: Timestamp) -> Catalog:
        """The catalog active at that time. Raises `VersionNotFound` before the earliest version."""
        index = bisect_right(self._times, at) - 1
        if index < 0:
            raise VersionNotFound(
                f"the catalog as of {format_timestamp(max(at, Timestamp(1)))} is no longer kept; "
                f"the earliest is version {self.earliest.version}, active from "
                f"{format_timestamp(self.earliest.time)}"
            )
        return self._catalogs[index]

    def ends_at(self, version: int) -> Timestamp | None:
        """When the version after ``version`` becomes active, or None if there is none."""
        index = version + 1 - self._base
        return self._times[index] if 0 <= index < len(self._times) else None

    def trimmed(self, version: int) -> History:
        start = version - self._base
        if start <= 0:
            return self
        trimmed = History(self._catalogs[start])
        trimmed._catalogs, trimmed._times = self._catalogs[start:], self._times[start:]
        return trimmed

    def catalogs(self) -> list[Catalog]:
        """A new list of all versions."""
        return self._catalogs.copy()


class AwaitedVersions:
    """Versions that callers wait for: a future for each, which the applier completes.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._futures: list[tuple[int, Future[Catalog]]] = []
        self._lock = threading.Lock()

    def add(self, version: int) -> Future[Catalog]:
        future: Future[Catalog] = Future()
        with self._lock:
            self._futures.append((version, future))
        return future

    def forget(self, future: Future[Catalog]) -> None:
        """Cancel a future that its caller no longer waits for."""
        future.cancel()
        self._take(lambda _, awaited: awaited is future)

    def complete(self, upper: int, catalog: Callable[[int], Catalog]) -> None:
        """Complete the futures of versions below ``upper`` with the result of ``catalog``."""
        if not self._futures:
            return
        for version, future in self._take(lambda version, _: version < upper):
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(catalog(version))
            except StrandlineError as error:
                future.set_exception(error)

    def end(self, error: StrandlineError) -> None:
        """Fail all remaining futures with ``error``."""
        for _, future in self._take(lambda *_: True):
            if future.set_running_or_notify_cancel():
                future.set_exception(type(error)(error.message))

    def _take(
        self, due: Callable[[int, Future[Catalog]], bool]
    ) -> list[tuple[int, Future[Catalog]]]:
        """Remove and return the futures for which ``due`` is true."""
        with self._lock:
            taken_entries = [entry for entry in self._futures if due(*entry)]
            self._futures = [entry for entry in self._futures if not due(*entry)]
        return taken_entries
