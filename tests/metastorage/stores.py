"""The stores that the conformance suite is run on.

A kind makes an empty store and opens it, any number of times and in any process, by its address.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from strandline.clock import HybridClock
from strandline.metastorage import Metastorage, SqliteMetastorage
from strandline.sql import open_engine, sqlite_url


class StoreKind(ABC):
    """One implementation of the metastorage and the server behind it."""

    @abstractmethod
    def create(self, folder: Path) -> str:
        """The address of an empty store; what it keeps on disk lies in ``folder``."""

    @abstractmethod
    def open(self, address: str, clock: HybridClock) -> AbstractContextManager[Metastorage]:
        """The store at ``address`` as one more node opens it."""


class Sqlite(StoreKind):
    def create(self, folder: Path) -> str:
        return sqlite_url(folder / "strandline.db")

    @contextmanager
    def open(self, address: str, clock: HybridClock) -> Iterator[Metastorage]:
        database = open_engine(address)
        store = SqliteMetastorage(database, clock)
        try:
            yield store
        finally:
            store.close()
            database.close()


STORES: dict[str, StoreKind] = {"sqlite": Sqlite()}
