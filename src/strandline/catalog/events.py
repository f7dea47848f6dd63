"""What subscribers of the catalog are told, and the history that people read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.catalog.catalog import Catalog
from strandline.clock import Timestamp
from strandline.durable.update import Arguments, Entry, Update


@dataclass(frozen=True, slots=True)
class CatalogEvent:
    """One entry of an applied update. ``before`` and ``catalog`` can be read by the listener."""

    version: int
    time: Timestamp
    author: str
    entry: Entry
    before: Catalog
    catalog: Catalog

    @property
    def verb(self) -> str:
        """What was done."""
        return self.entry.verb


@dataclass(frozen=True, slots=True)
class AppliedVersion:
    """An update and the catalogs before and after it, for who follows version by version."""

    update: Update
    before: Catalog
    catalog: Catalog

    def events(self) -> list[CatalogEvent]:
        """The events of this version, one for each entry that is not silent."""
        return [
            CatalogEvent(
                self.update.version,
                self.update.time,
                self.update.author,
                entry,
                self.before,
                self.catalog,
            )
            for entry in self.update.entries
            if not entry.silent
        ]


Listener = Callable[[AppliedVersion], None]
"""Called for each applied version, in order; the next version waits until all have returned."""


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One version as people see it. ``trimmed`` versions can no longer be read as catalogs."""

    version: int
    time: Timestamp
    author: str
    member: str
    actions: tuple[tuple[str, Arguments], ...]
    trimmed: bool = False
