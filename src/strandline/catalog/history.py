"""The versions that a node holds in memory, found by number and by time.

One object holds both orders, so that a reader never sees one moved and the other not. Readers take
no lock: versions are only added at the end, and trimming makes a new object.
"""

from __future__ import annotations

from bisect import bisect_right

from strandline.catalog.catalog import Catalog
from strandline.clock import Timestamp, format_timestamp
from strandline.errors import CorruptData, VersionNotFound


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
        """The highest version; its time may lie ahead of the present."""
        return self._catalogs[-1]

    def append(self, catalog: Catalog) -> None:
        """Add the next version. The order of times is the order of versions, or it is corrupt.

        Versions that were appended together have one time; as of that time the last of them holds.
        """
        if catalog.version != self.latest.version + 1 or catalog.time < self.latest.time:
            raise CorruptData(
                f"version {catalog.version} active at {format_timestamp(catalog.time)} does not "
                f"follow {self.latest.version} active at {format_timestamp(self.latest.time)}"
            )
        # The catalog first: a reader that finds the time must find the catalog too.
        self._catalogs.append(catalog)
        self._times.append(catalog.time)

    def at_version(self, version: int) -> Catalog:
        """The catalog of ``version``; `VersionNotFound` names the versions that there are."""
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
        """The catalog of ``version``, or None."""
        index = version - self._base
        return self._catalogs[index] if 0 <= index < len(self._catalogs) else None

    def at_time(self, at: Timestamp) -> Catalog:
        """The catalog active at that time; `VersionNotFound` before the earliest."""
        index = bisect_right(self._times, at) - 1
        if index < 0:
            raise VersionNotFound(
                f"the catalog as of {format_timestamp(max(at, Timestamp(1)))} is no longer kept; "
                f"the earliest is version {self.earliest.version}, active from "
                f"{format_timestamp(self.earliest.time)}"
            )
        return self._catalogs[index]

    def ends_at(self, version: int) -> Timestamp | None:
        """When the version after ``version`` became active; None while there is none."""
        index = version + 1 - self._base
        return self._times[index] if 0 <= index < len(self._times) else None

    def trimmed(self, version: int) -> History:
        """The history from ``version`` on."""
        start = version - self._base
        return self if start <= 0 else History(*self._catalogs[start:])
