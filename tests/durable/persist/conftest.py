"""A shard in a SQLite file and a folder of blobs, which any number of nodes open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from strandline.clock import HybridClock
from strandline.durable import UpdateLog
from strandline.durable.contents import Contents, restore
from strandline.durable.persist.blob import Blob, FileBlob
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.persist_log import PersistLog, shard_name
from strandline.metastorage import Metastorage, open_metastorage
from tests.servers.sqlite import sqlite_url

SHARD = shard_name("environment")
EVERY = 3
"""Diffs between two rollups: few, so that even a short log has rollups and parts."""
LARGE = 60
"""Number of objects that makes an update too large to be stored inside the state."""


class Killed(BaseException):
    """The process is killed: no code handles this exception."""


class Place:
    """One shard, and the means to open it as further nodes."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.folder = folder
        self._opened = opened
        self.store = self.new_store()
        self.consensus = Consensus(self.store)
        self.blob = FileBlob(folder / "blobs")

    def new_store(self) -> Metastorage:
        store = open_metastorage(sqlite_url(self.folder / "consensus.db"), HybridClock())
        self._opened.callback(store.close)
        return store

    def log(
        self,
        *,
        every: int = EVERY,
        consensus: Consensus | None = None,
        blob: Blob | None = None,
    ) -> PersistLog:
        """Open the log as one more node, on connections of its own unless they are given."""
        return PersistLog(
            consensus or Consensus(self.new_store()),
            blob or self.blob,
            SHARD,
            tidied_every=every,
        )

    def blobs(self) -> set[str]:
        """The keys of all blobs."""
        return set(self.blob.list())

    def file_of(self, key: str) -> Path:
        """The file of a blob."""
        return self.folder / "blobs" / key.replace("/", "%2F")


class Meddled:
    """A consensus or a blob store that calls ``meddle`` around each call of one method.

    ``meddle`` gets the real method and its arguments, and its result is returned to the caller.
    """

    def __init__(self, real: object, method: str, meddle: Any) -> None:
        self._real, self._method, self._meddle = real, method, meddle

    def __getattr__(self, name: str) -> Any:  # Any: whatever the real one has
        attribute = getattr(self._real, name)
        if name != self._method:
            return attribute
        return lambda *arguments, **named: self._meddle(attribute, *arguments, **named)


def meddled(real: Any, method: str, meddle: Any) -> Any:
    """Wrap ``real`` so that ``method`` is answered by ``meddle(real method, …)``."""
    return Meddled(real, method, meddle)


def versions(log: UpdateLog) -> list[int]:
    frontier = log.frontier()
    return [logged.version for logged in log.updates(frontier.since + 1, frontier.upper)]


def contents_of(log: UpdateLog) -> Contents:
    """The contents of the last version, computed from the snapshot and all later updates."""
    snapshot = log.snapshot()
    contents = restore(snapshot)
    for logged in log.updates(snapshot.version + 1, log.frontier().upper):
        contents = contents.apply(logged.changes(), at=logged.time)
    return contents


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as opened:
        yield Place(tmp_path, opened)


@pytest.fixture(autouse=True)
def _short_logs_have_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts and merges happen early, and skip every fsync of a blob's file."""
    monkeypatch.setattr("strandline.durable.persist.shard.INLINE_BYTES", 4000)
    monkeypatch.setattr("strandline.durable.persist.maintenance.MERGED_AT_ONCE", 3)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
