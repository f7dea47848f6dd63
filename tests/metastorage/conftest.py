"""Fixtures: an empty store of each kind, and more nodes on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strandline.clock import HybridClock
from strandline.metastorage import Metastorage, Outcome, Put, SqlMetastorage
from strandline.metastorage.etcd.store import EtcdMetastorage
from tests.conftest import ManualWall
from tests.metastorage.stores import STORES, Server, StoreKind
from tests.servers import postgresql

LONG = 60.0
"""Seconds given to a waiter that a change has to wake; it wakes within milliseconds."""
MEETING = 60.0
"""Seconds given to threads that wait for each other; a planted fault does not shorten them."""


@dataclass
class Place:
    """One store, which a test can open as any number of nodes."""

    kind: str
    address: str
    _open: ExitStack = field(default_factory=ExitStack)

    def node(
        self,
        wall: ManualWall | None = None,
        *,
        elapsed: ManualWall | None = None,
        port: int | None = None,
    ) -> Metastorage:
        """Open the store as one more node, with that node's wall clock and the one that runs on.

        ``port`` is that of a proxy in front of the server.
        """
        kind = STORES[self.kind]
        clock = HybridClock() if wall is None else HybridClock(wall, elapsed=elapsed)
        address = self.address if port is None else kind.through(self.address, port)
        return self._open.enter_context(kind.open(address, clock))

    def close(self) -> None:
        self._open.close()


@pytest.fixture(params=STORES)
def kind_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def kind(kind_name: str) -> StoreKind:
    return STORES[kind_name]


@pytest.fixture
def place(kind_name: str, tmp_path: Path) -> Iterator[Place]:
    made = Place(kind_name, STORES[kind_name].create(tmp_path))
    yield made
    made.close()


@pytest.fixture
def server(kind: StoreKind) -> Iterator[Server]:
    """The server of a kind that has one; it is started again after the test."""
    server = kind.server()
    yield server
    if server.running():
        server.resume()
    else:
        server.start()


@pytest.fixture
def store(place: Place) -> Metastorage:
    return place.node()


@pytest.fixture
def url() -> str:
    """The address of an empty schema in PostgreSQL."""
    return postgresql.running().new_schema()


@contextmanager
def impatient(store: Metastorage, seconds: float) -> Iterator[None]:
    """In the block, the store waits no longer than this for an answer; a busy server needs more."""
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(store, EtcdMetastorage):
            patch.setattr(store._gateway, "timeout", seconds)
        if isinstance(store, SqlMetastorage):
            patch.setattr(store._database, "_timeout", seconds)
        yield


def put(store: Metastorage, key: str, value: bytes = b"") -> Outcome:
    return store.invoke([], [Put(key, value)])


def keys(store: Metastorage, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.range(prefix, prefix + "~")]


def hears(store: Metastorage, prefix: str, after: int) -> bool:
    """Whether a change wakes the waiter; finding it at the end of the timeout does not count."""
    began = time.monotonic()
    changed = store.wait_for_change(prefix, after, timeout=LONG)
    return changed and time.monotonic() - began < LONG / 2
