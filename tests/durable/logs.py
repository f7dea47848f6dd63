"""The logs that the conformance suite is run on.

A kind makes an empty log and opens it by its address, any number of times and in any process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_hex

import pytest

from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, ShadowLog, StashLog, UpdateLog
from strandline.durable.persist.blob import Blob, FileBlob, open_bucket
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.persist_log import PersistLog, shard_name
from strandline.sql import open_database
from tests.metastorage.stores import STORES, StoreKind
from tests.servers import s3

CHUNKED = 100
"""Snapshots above this many bytes are cut into chunks. Read when a log is opened."""

SHARD = shard_name("environment")
TIDIED_EVERY = 2
"""Diffs between two rollups of a shard: few, so that even a short log has parts."""


class LogKind(ABC):
    """One implementation of the update log, with the stores that hold it."""

    @abstractmethod
    def create(self, folder: Path) -> str:
        """Make an empty log and return its address; its files are in ``folder``."""

    @contextmanager
    def open(self, address: str, clock: HybridClock) -> Iterator[UpdateLog]:
        """Open the log at ``address`` as one more node."""
        raise NotImplementedError
        yield


class OnMetastorage(LogKind):
    def __init__(self, stores: StoreKind, *, chunk_bytes: int | None = None) -> None:
        self._stores = stores
        self._chunk_bytes = chunk_bytes

    def create(self, folder: Path) -> str:
        return self._stores.create(folder)

    @contextmanager
    def open(self, address: str, clock: HybridClock) -> Iterator[UpdateLog]:
        with self._stores.open(address, clock) as store:
            yield MetastorageLog(store, chunk_bytes=self._chunk_bytes or CHUNKED)


class Stash(OnMetastorage):
    @contextmanager
    def open(self, address: str, clock: HybridClock) -> Iterator[UpdateLog]:
        with (
            closing(open_database(address)) as database,
            closing(StashLog(database, clock)) as log,
        ):
            yield log


class Persist(OnMetastorage):
    """A persist log: its state in a metastorage, its blobs in a folder."""

    def __init__(self, stores: StoreKind, *, tidied_every: int = TIDIED_EVERY) -> None:
        super().__init__(stores)
        self._tidied_every = tidied_every

    def create(self, folder: Path) -> str:
        return f"{self._stores.create(folder)}|{folder}/blobs"

    def open_blobs(self, place: str) -> Blob:
        return FileBlob(Path(place))

    @contextmanager
    def open(self, address: str, clock: HybridClock) -> Iterator[UpdateLog]:
        store_address, _, place = address.partition("|")
        with self._stores.open(store_address, clock) as store:
            blob, every = self.open_blobs(place), self._tidied_every
            yield PersistLog(Consensus(store), blob, SHARD, tidied_every=every)


class PersistOnS3(Persist):
    """A persist log whose blobs are in a bucket of the S3 protocol."""

    def create(self, folder: Path) -> str:
        pytest.importorskip("obstore", reason="the extra s3 is not installed")
        return f"{self._stores.create(folder)}|{s3.running().url(token_hex(4))}"

    def open_blobs(self, place: str) -> Blob:
        return open_bucket(place)


class Shadow(LogKind):
    """Two logs side by side; both are in one database if ``share`` is true."""

    def __init__(self, first: LogKind, second: LogKind, *, share: bool) -> None:
        self._first, self._second, self._share = first, second, share

    def create(self, folder: Path) -> str:
        first, second = folder / "first", folder / "second"
        first.mkdir()
        second.mkdir()
        address = self._first.create(first)
        return f"{address}\n{address if self._share else self._second.create(second)}"

    @contextmanager
    def open(self, address: str, clock: HybridClock) -> Iterator[UpdateLog]:
        first, second = address.split("\n")
        with (
            self._first.open(first, clock) as first_log,
            self._second.open(second, clock) as other,
        ):
            yield ShadowLog(first_log, other, names=("first", "second"))


SQLITE, POSTGRESQL = STORES["sqlite"], STORES["postgresql"]
LOGS: dict[str, LogKind] = {
    **{f"metastorage on {name}": OnMetastorage(stores) for name, stores in STORES.items()},
    **{f"stash on {name}": Stash(STORES[name]) for name in ("sqlite", "postgresql")},
    "shadow in sqlite": Shadow(OnMetastorage(SQLITE), Stash(SQLITE), share=True),
    "shadow of two": Shadow(Stash(POSTGRESQL), OnMetastorage(SQLITE), share=False),
    **{f"persist on {name}": Persist(STORES[name]) for name in ("sqlite", "postgresql")},
    "persist on sqlite and s3": PersistOnS3(SQLITE),
}

LONG = ("shadow of two", "persist on sqlite and s3")
"""Slow kinds, which only `make soak` runs."""

IN_SQLITE = ("metastorage on sqlite", "stash on sqlite", "persist on sqlite", "shadow in sqlite")
"""The fastest log of each kind. Tests of layers above the log run on these only."""
