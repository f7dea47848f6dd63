"""Opening a metastorage by its URL.

The module of a store is imported when its scheme is first used, so users need no client library of
a server that they do not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from strandline.clock import HybridClock
from strandline.errors import UnsupportedOperation
from strandline.metastorage.sql_store import SqlMetastorage
from strandline.metastorage.store import Metastorage
from strandline.sql import PATIENCE, Database

KINDS = {
    "sqlite": "strandline.metastorage.sqlite",
    "postgresql": "strandline.metastorage.postgresql",
    "etcd": "strandline.metastorage.etcd.store",
}
"""Scheme of a URL, and the module whose ``open_store`` opens it."""


class _SqlKind(Protocol):
    def metastorage_on(self, database: Database, clock: HybridClock) -> SqlMetastorage: ...


def metastorage_on(database: Database, clock: HybridClock) -> SqlMetastorage:
    """The store in an open SQL database, which stays open when the store is closed."""
    kind = cast(_SqlKind, import_module(KINDS[database.dialect]))
    return kind.metastorage_on(database, clock)


class _Kind(Protocol):
    def open_store(self, url: str, clock: HybridClock, *, patience: float) -> Metastorage: ...


def open_metastorage(url: str, clock: HybridClock, *, patience: float = PATIENCE) -> Metastorage:
    """Open the store at ``url``, on connections of its own that `Metastorage.close` closes.

    ``url`` is ``sqlite:////folder/file``, ``postgresql://user@host/database`` or
    ``etcd://host:port``. A call without an answer fails after ``patience`` seconds. Raises
    `InvalidInput` for a malformed URL or a library that is not installed, `UnsupportedOperation`
    for an unknown scheme, `IncompatibleFormat`, and `Unavailable` if nothing answers there.
    """
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme not in KINDS:
        raise UnsupportedOperation(
            f"{scheme!r} is not the scheme of a store; use one of {', '.join(KINDS)}"
        )
    return cast(_Kind, import_module(KINDS[scheme])).open_store(url, clock, patience=patience)
