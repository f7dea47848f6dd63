"""Empty stores of each kind that a node can serve, for tests that run on all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from strandline.config import Settings
from tests.servers import etcd, postgresql

KINDS = ("folder", "postgresql", "etcd")
QUICK_DELAY_MS, QUICK_SKEW_MS = {"postgresql": 30, "etcd": 100}, 10
"""Delay and skew of a catalog on servers in a test: each change of it takes at least this long.

With etcd, a commit of rows must reach the database within the delay after a look at the catalog. On
a busy machine, it would not within 30 ms, however often it tries.
"""


class EmptyStore(NamedTuple):
    """What `Node.open` needs to create or open one store."""

    address: str
    settings: Settings


def new_store(kind: str, folder: Path, *, settings: Settings | None = None) -> EmptyStore:
    """An empty store; ``folder`` is the store's folder, or the parent of the servers' warehouse."""
    settings = settings or Settings()
    if kind == "folder":
        return EmptyStore(str(folder), settings)
    address = postgresql.running().new_database()
    settings = replace(
        settings,
        warehouse=str(folder / "warehouse"),
        delay_ms=QUICK_DELAY_MS[kind] if settings.delay_ms is None else settings.delay_ms,
        clock_skew_ms=QUICK_SKEW_MS if settings.clock_skew_ms is None else settings.clock_skew_ms,
    )
    if kind == "etcd":
        return EmptyStore(etcd.running().new_prefix(), replace(settings, objects=address))
    return EmptyStore(address, settings)
