"""Fixtures: an empty log on a fresh store of each kind, and more nodes on the same log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, UpdateLog
from strandline.metastorage import Metastorage
from tests.conftest import LogMember
from tests.durable.logs import CHUNKED, IN_SQLITE, LOGS, LONG, LogKind
from tests.metastorage.stores import STORES

NewStore = Callable[[], Metastorage]
NewLog = Callable[[], UpdateLog]


@pytest.fixture(params=STORES)
def new_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], NewStore]]:
    """Makes stores of each kind. Each call of a store's opener opens it as one more node."""
    kind = STORES[request.param]
    with ExitStack() as opened:

        def make() -> NewStore:
            folder = tmp_path / f"store {len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            address = kind.create(folder)
            return lambda: opened.enter_context(kind.open(address, HybridClock()))

        yield make


@pytest.fixture
def new_store(new_stores: Callable[[], NewStore]) -> NewStore:
    return new_stores()


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.soak] * (name in LONG)) for name in LOGS]
)
def new_logs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], NewLog]]:
    """Makes logs of each kind. Each call of a log's opener opens it as one more node."""
    with making_logs(LOGS[request.param], tmp_path) as make:
        yield make


@contextmanager
def making_logs(kind: LogKind, tmp_path: Path) -> Iterator[Callable[[], NewLog]]:
    with ExitStack() as opened:

        def make() -> NewLog:
            folder = tmp_path / f"log {len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            address = kind.create(folder)
            return lambda: opened.enter_context(kind.open(address, HybridClock()))

        yield make


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.soak] * (name not in IN_SQLITE)) for name in LOGS]
)
def new_member(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], LogMember]]:
    """Makes members of one catalog, for each kind of log."""
    with making_logs(LOGS[request.param], tmp_path) as make:
        new_log = make()
        yield lambda: LogMember(new_log(), [])


@pytest.fixture
def member(new_member: Callable[[], LogMember]) -> LogMember:
    return new_member()


@pytest.fixture
def new_log(new_logs: Callable[[], NewLog]) -> NewLog:
    """Opens one log as one more node."""
    return new_logs()


@pytest.fixture
def log(new_log: NewLog) -> UpdateLog:
    return new_log()


@pytest.fixture
def another_log(new_logs: Callable[[], NewLog]) -> UpdateLog:
    """An empty log of the same kind, elsewhere."""
    return new_logs()()


@pytest.fixture
def store(new_store: NewStore) -> Metastorage:
    return new_store()


@pytest.fixture
def any_log(store: Metastorage) -> MetastorageLog:
    """A log on the store, empty."""
    return MetastorageLog(store, chunk_bytes=CHUNKED)
