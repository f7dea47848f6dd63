"""The configuration in effect on a node: its settings, and what the catalog says instead.

A value in the catalog overrides the setting of the process as soon as this node has applied the
version that set it. Without such a value, the setting applies. No value is copied at start and
there are no change listeners: readers ask, and the answer is computed once for each catalog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.catalog import Catalog
from strandline.catalog.configuration import HISTORY_RETENTION, METADATA_STALENESS
from strandline.config import Settings


@dataclass(frozen=True, slots=True)
class _Effective:
    catalog: Catalog
    history_retention_ms: int
    metadata_staleness: float


class EffectiveConfiguration:
    """The configuration in effect on a node. Safe to use from several threads.

    ``latest`` returns the newest catalog that is applied here, and never waits. ``staleness_ms`` is
    the default if neither the catalog nor the settings say how old an answer may be.
    """

    def __init__(
        self, latest: Callable[[], Catalog], settings: Settings, *, staleness_ms: int
    ) -> None:
        self._latest = latest
        self._settings = settings
        self._staleness_ms = staleness_ms
        self._remembered: _Effective | None = None

    def history_retention_ms(self) -> int:
        """Return how long history is kept without a hold, in milliseconds."""
        return self._effective().history_retention_ms

    def metadata_staleness(self) -> float:
        """Return how old an answer about a plain table's rows may be, in seconds."""
        return self._effective().metadata_staleness

    def _effective(self) -> _Effective:
        catalog, remembered = self._latest(), self._remembered
        if remembered is not None and remembered.catalog is catalog:
            return remembered
        retention = HISTORY_RETENTION.value(catalog)
        staleness = METADATA_STALENESS.value(catalog)
        settings = self._settings
        if staleness is None:
            staleness = settings.metadata_staleness_ms
        if staleness is None:
            staleness = self._staleness_ms
        effective = _Effective(
            catalog,
            settings.history_retention_ms if retention is None else retention,
            staleness / 1000,
        )
        self._remembered = effective
        return effective
