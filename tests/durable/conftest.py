"""A log on a fresh store of each kind, and more nodes on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from strandline.clock import HybridClock
from strandline.durable import MetastorageLog
from strandline.metastorage import Metastorage
from tests.metastorage.stores import STORES

NewStore = Callable[[], Metastorage]


@pytest.fixture(params=STORES)
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewStore]:
    """Opens one store, of each kind that there is, as one more node."""
    kind = STORES[request.param]
    address = kind.create(tmp_path)
    with ExitStack() as opened:
        yield lambda: opened.enter_context(kind.open(address, HybridClock()))


@pytest.fixture
def store(new_store: NewStore) -> Metastorage:
    return new_store()


@pytest.fixture
def any_log(store: Metastorage) -> MetastorageLog:
    """A log on the store, empty; its snapshots are cut at 100 bytes."""
    return MetastorageLog(store, chunk_bytes=100)
