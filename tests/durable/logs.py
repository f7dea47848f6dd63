"""The logs that the conformance suite is run on.

A kind makes an empty log and opens it, any number of times and in any process, by its address.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, StashLog, UpdateLog
from strandline.sql import open_engine
from tests.metastorage.stores import PATIENCE, STORES, StoreKind

CHUNKED = 100
"""Snapshots above so many bytes are cut, as large ones are."""


class LogKind(ABC):
    """One implementation of the update log, and what it is kept in."""

    @abstractmethod
    def create(self, folder: Path) -> str:
        """The address of an empty log; what it keeps on disk lies in ``folder``."""

    @contextmanager
    def open(self, address: str, clock: HybridClock) -> Iterator[UpdateLog]:
        """The log at ``address`` as one more node opens it."""
        raise NotImplementedError
        yield


class OnMetastorage(LogKind):
    def __init__(self, stores: StoreKind) -> None:
        self._stores = stores

    def create(self, folder: Path) -> str:
        return self._stores.create(folder)

    @contextmanager
    def open(self, address: str, clock: HybridClock) -> Iterator[UpdateLog]:
        with self._stores.open(address, clock) as store:
            yield MetastorageLog(store, chunk_bytes=CHUNKED)


class Stash(OnMetastorage):
    @contextmanager
    def open(self, address: str, clock: HybridClock) -> Iterator[UpdateLog]:
        with (
            closing(open_engine(address, patience=PATIENCE)) as database,
            closing(StashLog(database, clock)) as log,
        ):
            yield log


LOGS: dict[str, LogKind] = {
    **{f"metastorage on {name}": OnMetastorage(stores) for name, stores in STORES.items()},
    **{f"stash on {name}": Stash(STORES[name]) for name in ("sqlite", "postgresql")},
}
