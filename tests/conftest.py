"""What the tests of several layers need: stores in real files, clocks that a test sets."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop
from _pytest.runner import runtestprotocol
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from httpx._transports import default
from hypothesis import HealthCheck, core, settings
from hypothesis.internal.reflection import function_digest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

from strandline.catalog import Catalog, CatalogManager, initial_catalog
from strandline.clock import HybridClock
from strandline.durable import (
    DurableCatalogState,
    Frontier,
    MetastorageLog,
    OpenableState,
    UpdateLog,
    durable_state,
)
from strandline.fencing import FenceToken
from strandline.metastorage import SqlMetastorage
from strandline.sql import SqliteDatabase, open_sqlite
from tests import spark_classes

# A test of `make test` gives the same result each time: its examples are derived from its own text,
# and a slow machine is not a failure. `make soak` uses other examples, from the seed that it
# prints.
settings.register_profile(
    "repeatable",
    max_examples=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "random",
    settings.get_profile("repeatable"),
    max_examples=300,
    derandomize=False,
    print_blob=True,
)
settings.load_profile("repeatable")
_digests: dict[object, bytes] = {}


def _digest_of(test: Any) -> bytes:
    """The seed of a test, which Hypothesis would compute from its source again at each run."""
    key = test.__code__, getattr(test, "_hypothesis_internal_add_digest", None)
    if key not in _digests:
        _digests[key] = function_digest(test)
    return _digests[key]


vars(core)["function_digest"] = _digest_of

for phase in ("connect", "read", "write", "pool"):  # of clients that set no timeout
    setattr(DEFAULT_TIMEOUT_CONFIG, phase, 60.0)
# Each client would read all certificate authorities, which takes longer than most of its calls.
vars(default)["create_ssl_context"] = cache(vars(default)["create_ssl_context"])

MEMORY = Path("/dev/shm")
"""A folder in memory, on Linux."""
FREE_FOR_FILES, FREE_MEMORY = 4 << 30, 10 << 30
"""Bytes: a run writes less than half of the first; its Sparks and servers need memory too."""


def pytest_configure(config: pytest.Config) -> None:
    """Make every Spark that a test starts share the archived classes; workers inherit that."""
    if not hasattr(config, "workerinput"):
        spark_classes.use(os.environ)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Put the files of the workers and of their servers in memory, if there is enough.

    A store syncs each change. On a disk, a test mostly waits for that, and no test of `make test`
    cuts the power. Set TMPDIR to choose another place.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    free = shutil.disk_usage(MEMORY).free
    if free >= FREE_FOR_FILES and psutil.virtual_memory().available >= FREE_MEMORY:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # was cached: it is looked up again


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import and collect tests without garbage collection, and exclude their objects from it later.

    Nearly all of their million objects are permanent, and each process of the run has them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop of its own."""
    test = pyfuncitem.obj
    if not iscoroutinefunction(test):
        return None
    uvloop.run(test(**{name: pyfuncitem.funcargs[name] for name in signature(test).parameters}))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Report the set-up and the end of a test only if they did not pass, in the workers of xdist.

    A report costs half a millisecond of processor: it is sent to the process of the run, and read.
    So do the messages that a test starts and that it has ended, which change nothing there.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


SERVERS, FILES = ("postgresql", "etcd"), ("sqlite", "folder")
"""How the parameters of tests name the stores on servers, and those in files."""
ON_EACH = ("sql", "metastorage", "end_to_end", "node/test_several_nodes")
"""The tests of the seams between stores. `make test` runs them on each kind of store."""


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make tests on servers slow if they also run on a file, and run tests with Spark first.

    These take long, and mostly wait. At the end, nothing else would run while they wait
    (``--no-loadscope-reorder``).
    """
    ids = {item.nodeid for item in items}
    for item in items:
        if not item.nodeid.startswith(tuple(f"tests/{path}" for path in ON_EACH)):
            test, _, parameters = item.nodeid.partition("[")
            on_files = (
                f"{test}[{parameters.replace(server, file)}"
                for server in SERVERS
                if server in parameters
                for file in FILES
            )
            if not ids.isdisjoint(on_files):
                item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Twice as many as cores: half of the time a test waits for a server or the disk."""
    return len(os.sched_getaffinity(0)) * 2


def scope_of(test: str) -> str:
    """The group of tests that run in one process with a test: see `FilesTogether`."""
    file, _, name = test.partition("::")
    return test if name.startswith("test_many_rounds[") else _scope_of_file(file)


@cache  # it is called three times for each test
def _scope_of_file(file: str) -> str:
    path = Path(file)
    shares = path.parent == Path("tests/spark") or path.match("hive/test_spark_*.py")
    return str(path.parent) if shares else file


class _Collection(list[str]):
    """The tests of a worker. Its `index` does not compare a test with all that are before it."""

    def __init__(self, tests: Iterable[str]) -> None:
        super().__init__(tests)
        self._places = {test: place for place, test in enumerate(self)}

    def index(self, test: str, *_: object) -> int:
        return self._places[test]


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Runs the tests of a file in one process, and files that can share a Spark in one process too.

    Races of many rounds take a minute each, mostly waiting: each is a group by itself.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def add_node_collection(self, node: object, collection: list[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:  # it is the same as that of the others
            self.registered_collections[node] = _Collection(collection)

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        # It is called several times for each test: what has ended is not counted again and again.
        for scope in [scope for scope, ended in workload.items() if all(ended.values())]:
            del workload[scope]
        pending: int = super()._pending_of(workload)
        return pending


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesTogether:
    return FilesTogether(config, log)


def await_no_activation(manager: CatalogManager) -> None:
    """Make each caller of ``manager`` time out as soon as it begins to wait for the activation."""
    await_activation = manager._await_activation

    def give_up(catalog: Catalog, end: float) -> None:
        await_activation(catalog, time.monotonic())

    manager._await_activation = give_up  # type: ignore[method-assign]  # what a test replaces


class ManualWall:
    """A wall clock that a test sets, in milliseconds."""

    def __init__(self, start: int = 1_000_000) -> None:
        self.now = start

    def __call__(self) -> int:
        return self.now


@dataclass
class LogMember:
    """One process's view of a catalog, in any kind of log."""

    log: UpdateLog
    fences: list[FenceToken]

    def openable(self) -> OpenableState:
        return durable_state(self.log)

    def open(
        self, *, delay_ms: int = 0, skew_ms: int = 0, generation: int = 0
    ) -> DurableCatalogState:
        return self.openable().open(
            member="opener",
            initialize=initial_catalog(
                delay_ms=delay_ms, skew_ms=skew_ms, default_location="file:/warehouse"
            ),
            raise_fence=lambda token, _environment: self.fences.append(token),
            deploy_generation=generation,
        )

    def join(self, name: str = "joiner") -> DurableCatalogState:
        return self.openable().join(member=name)

    def head(self) -> tuple[object, ...]:
        """What every append and every compaction changes, and nothing else."""
        return self.log.token(), self.log.frontier()


NOTHING = (None, Frontier(0, 1))
"""The head of an empty log."""


@dataclass
class Member(LogMember):
    """One process's view of a store in a folder, opened on the shared file."""

    log: MetastorageLog
    database: SqliteDatabase
    store: SqlMetastorage
    clock: HybridClock

    def close(self) -> None:
        self.store.close()
        self.database.close()


@pytest.fixture
def wall() -> ManualWall:
    return ManualWall()


def new_member_of(file: Path, wall: ManualWall) -> Member:
    database = open_sqlite(file)
    clock = HybridClock(wall)
    store = SqlMetastorage(database, clock)
    return Member(MetastorageLog(store), [], database, store, clock)


@pytest.fixture
def new_store_member(tmp_path: Path, wall: ManualWall) -> Iterator[Callable[[], Member]]:
    """Makes members of one store; each has separate connections and a separate clock."""
    opened: list[Member] = []

    def make() -> Member:
        opened.append(new_member_of(tmp_path / "strandline.db", wall))
        return opened[-1]

    yield make
    for member in opened:
        member.close()


@pytest.fixture
def new_member(new_store_member: Callable[[], Member]) -> Callable[[], Member]:
    """Makes members; in the tests of the durable state, on each kind of log."""
    return new_store_member


@pytest.fixture(scope="session", autouse=True)
def store_with_a_catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store that was opened without a delay; a copy is faster than a new store."""
    file = tmp_path_factory.mktemp("catalog") / "strandline.db"
    member = new_member_of(file, ManualWall())
    member.open()
    member.close()
    return file


@pytest.fixture
def member(new_member: Callable[[], Member]) -> Member:
    return new_member()


@pytest.fixture
def new_manager(
    new_member: Callable[[], Member],
    wall: ManualWall,
    tmp_path: Path,
    store_with_a_catalog: Path,
) -> Iterator[Callable[..., CatalogManager]]:
    """Makes catalog managers on one store; the first opens a copied one, unless told otherwise."""
    running: list[CatalogManager] = []

    def make(
        *, delay_ms: int = 0, skew_ms: int = 0, copied: bool = True, **options: Any
    ) -> CatalogManager:
        file = tmp_path / "strandline.db"
        if copied and not (delay_ms or skew_ms or file.exists()):
            shutil.copyfile(store_with_a_catalog, file)
        joined = new_member()
        state = (
            joined.open(delay_ms=delay_ms, skew_ms=skew_ms)
            if joined.log.token() is None
            else joined.join(f"m{len(running)}")
        )
        running.append(CatalogManager(state, joined.clock, elapsed=wall, **options))
        return running[-1]

    yield make
    for manager in running:
        manager.stop()


@pytest.fixture
def manager(new_manager: Callable[..., CatalogManager]) -> CatalogManager:
    return new_manager()
