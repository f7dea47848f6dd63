"""What holds on this node: the catalog's configuration over the process's own settings.

A value that the catalog has wins, from the moment on that this node has applied the version that
set it; without one, what the process was started with holds. Nothing is copied at start and nothing
listens: a reader asks, and the answer is computed once for each catalog.
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
    """See the module. ``latest`` gives the newest catalog that is applied here, and never waits.

    ``staleness_ms`` holds where neither the catalog nor the settings say how old an answer may be.

    Safe to use from several threads.
    """

    def __init__(
        self, latest: Callable[[], Catalog], settings: Settings, *, staleness_ms: int = 0
    ) -> None:
        self._latest = latest
        self._settings = settings
        self._staleness_ms = staleness_ms
        self._known: _Effective | None = None

    def history_retention_ms(self) -> int:
        """How long history is kept without a hold, in milliseconds."""
        return self._effective().history_retention_ms

    def metadata_staleness(self) -> float:
        """How old an answer about a plain table's rows may be, in seconds."""
        return self._effective().metadata_staleness

    def _effective(self) -> _Effective:
        catalog, known = self._latest(), self._known
        if known is not None and known.catalog is catalog:
            return known
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
        self._known = effective
        return effective
