"""The versioned catalog without the metastore: its manager on SQLite with full sync.

Tables have twenty columns. A large catalog is created in batches and compacted. So it is read from
a snapshot, as by a node at startup. This is measured in a separate process.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path

from bench.registry import Measured, benchmark
from strandline.catalog import CatalogManager, initial_catalog
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    SetTableProperties,
    TableDefinition,
)
from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, durable_state
from strandline.errors import NotFound
from strandline.metastorage import SqlMetastorage
from strandline.model.types import BIGINT, STRING
from strandline.sql import Database, open_sqlite
from strandline.wire.stored import RECENT
from tests.catalog.catalog_process import CatalogProcess
from tests.metastorage.stores import STORES

COLUMNS = tuple(
    ColumnDefinition(f"column_{n}", STRING if n % 2 else BIGINT, comment=None) for n in range(20)
)
FEW, MANY = 100, 100_000
VERSIONS = 10_000
BATCH = 10_000
CALLS, WARM_UP = 400, 50
CALLERS = 16
SECONDS = 4.0


def new_table(name: str) -> CreateTable:
    """Return a CREATE TABLE with twenty columns."""
    return CreateTable(schema="default", definition=TableDefinition(name=name, columns=COLUMNS))


@contextmanager
def opened(folder: Path) -> Iterator[tuple[CatalogManager, Database]]:
    """Open a node's catalog in ``folder`` and follow its log."""
    database = open_sqlite(folder / "strandline.db")
    clock = HybridClock()
    store = SqlMetastorage(database, clock)
    log = MetastorageLog(store)
    try:
        state = durable_state(log).join(member="bench")
    except NotFound:
        state = durable_state(log).open(
            member="bench",
            initialize=initial_catalog(delay_ms=0, skew_ms=0, default_location="file:/bench"),
            raise_fence=lambda _token, _environment: None,
        )
    manager = CatalogManager(state, clock)
    manager.start()
    try:
        yield manager, database
    finally:
        manager.stop()
        store.close()
        database.close()


def fill(manager: CatalogManager, count: int) -> None:
    """Create ``count`` tables, and compact the log so that it begins with a snapshot of them."""
    for start in range(0, count, BATCH):
        names = range(start, min(start + BATCH, count))
        manager.execute([new_table(f"table_{n}") for n in names], author="bench", timeout=600)
    manager.compact(manager.latest_catalog().version)


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that ``call`` takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def medians_in_turns(calls: Sequence[Callable[[int], object]]) -> list[float]:
    """Return the median milliseconds of each of ``calls``, which get the number of the round.

    Each round makes every call once, because the speed of a disk changes within a second, and a
    program that does nothing but sync finds its caches warm.
    """
    rounds = [[timed(partial(call, n)) for call in calls] for n in range(WARM_UP + CALLS)]
    return [statistics.median(times) * 1000 for times in zip(*rounds[WARM_UP:], strict=True)]


def create_one(manager: CatalogManager, number: int) -> None:
    """Create the table ``one_<number>`` in its own version."""
    manager.execute(new_table(f"one_{number}"), author="bench")


@benchmark(
    group="catalog", name="create table, one caller, p50", unit="ms", better="lower", target=1.5
)
def create_table_latency() -> list[Measured]:
    """At 100 and at 100,000 tables. The reference is a raw commit of two rows."""
    with ExitStack() as stack:
        managers = []
        for count in (FEW, MANY):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            manager, database = stack.enter_context(opened(folder))
            fill(manager, count)
            managers.append(manager)
        few, many = medians_in_turns([partial(create_one, manager) for manager in managers])
        raw = 1000 / raw_commits(database)
    return [
        Measured(few, reference=raw, label=f"{FEW:,} tables"),
        Measured(many, reference=raw, label=f"{MANY:,} tables"),
        Measured(many / few, label=f"{MANY:,} against {FEW} tables", target=1.3, unit="x"),
    ]


@benchmark(
    group="catalog",
    name="create table, 16 callers, each its own version",
    unit="1/s",
    better="higher",
    target=1500,
)
def create_table_rate() -> Measured:
    """The reference is the rate of raw commits of two rows by one writer."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as (manager, database):
        fill(manager, FEW)
        raw = raw_commits(database)
        first = manager.latest_catalog().version
        end = time.monotonic() + SECONDS

        def call(caller: int) -> None:
            n = 0
            while time.monotonic() < end:
                manager.execute(new_table(f"by_{caller}_{n}"), author="bench")
                n += 1

        began = time.monotonic()
        with ThreadPoolExecutor(CALLERS) as threads:
            list(threads.map(call, range(CALLERS)))  # raises the error of a failed call
        spent = time.monotonic() - began
        made = manager.latest_catalog().version - first
    return Measured(made / spent, reference=raw)


@benchmark(group="catalog", name="disk: fdatasync of 12 kB, p50", unit="ms", better="lower")
def sync_time() -> float:
    """The minimum cost of a durable commit."""
    with tempfile.TemporaryDirectory() as folder:
        return disk_sync(Path(folder), size=12_288) * 1000


def disk_sync(folder: Path, *, size: int = 4096) -> float:
    """Return the median seconds of appending ``size`` bytes to a file and syncing it."""
    with open(folder / "page", "wb", buffering=0) as file:

        def append() -> None:
            file.write(bytes(size))
            os.fdatasync(file.fileno())

        return statistics.median(timed(append) for _ in range(CALLS))


def raw_commits(database: Database, seconds: float = 1.0) -> float:
    """Return the commits of two rows per second, by one writer with full sync."""
    commit = raw_commit(database)
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        commit()
        count += 1
    return count / seconds


def raw_commit(database: Database) -> Callable[[], None]:
    """Return a function that commits two rows of 500 bytes to ``database``, with full sync."""
    blob, value = ("BYTEA", "%s") if database.dialect == "postgresql" else ("BLOB", "?")
    with database.write() as connection:
        connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS raw (id INTEGER, data {blob})")

    def commit() -> None:
        with database.write() as connection:
            for _ in range(2):
                connection.exec_driver_sql(f"INSERT INTO raw VALUES (1, {value})", (bytes(500),))

    return commit


@benchmark(
    group="catalog",
    name="memory of 1,000 versions, each altering one of 10,000 tables, against one",
    unit="x",
    better="lower",
    target=1.2,
)
def memory_of_versions() -> list[Measured]:
    """Allocated memory, on a node that has just started and on the node that made the versions.

    On the second node, the same thousand tables were read before the versions were made, because a
    table that was read stays decoded, regardless of the number of versions.
    """

    def allocated() -> int:
        RECENT.forget()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def held(folder: str, versions: int) -> int:
        RECENT.forget()
        tracemalloc.start()
        with opened(Path(folder)) as (manager, _):
            figures = allocated()
            count = manager.latest_catalog().version - manager.earliest_catalog().version
        tracemalloc.stop()
        if count != versions:
            raise RuntimeError(f"{count} versions are held, not {versions}")
        return figures

    with tempfile.TemporaryDirectory() as folder:
        with opened(Path(folder)) as (manager, _):
            fill(manager, 10_000)
        empty = held(folder, 0)
        tracemalloc.start()
        with opened(Path(folder)) as (manager, _):
            tables = [manager.present().table("default", f"table_{n * 10}") for n in range(1000)]
            before = allocated()
            del tables
            for n in range(1000):
                change = SetTableProperties(
                    schema="default", table=f"table_{n * 10}", set=(("k", str(n)),)
                )
                manager.execute(change, author="bench")
            made = allocated() / before
        tracemalloc.stop()
        return [
            Measured(held(folder, 1000) / empty, label="on a node that starts"),
            Measured(made, label="on the node that made them"),
        ]


@cache
def a_large_start() -> dict[str, float]:
    """Return the results of a start on 100,000 tables in a separate process, measured once."""
    with tempfile.TemporaryDirectory() as folder:
        with opened(Path(folder)) as (manager, _):
            fill(manager, MANY)
        answer = subprocess.run(
            [sys.executable, "-c", "from bench import catalog; catalog.read_all()", folder],
            check=True,
            capture_output=True,
            text=True,
        )
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures


@benchmark(group="catalog", name="100,000 tables from a snapshot", unit="s", better="lower")
def from_snapshot() -> list[Measured]:
    """Until any table can be read, and until all tables were accessed."""
    figures = a_large_start()
    return [
        Measured(figures["any"], label="until any can be read", target=3.0),
        Measured(figures["all"], label="until all were touched", target=25.0),
    ]


@benchmark(group="catalog", name="memory of 100,000 tables", unit="MB", better="lower")
def memory_from_snapshot() -> list[Measured]:
    """The peak of the resident memory of the process."""
    figures = a_large_start()
    return [
        Measured(figures["memory"], label="when any can be read", target=400.0),
        Measured(figures["memory_all"], label="when all were touched"),
    ]


def read_all() -> None:
    """Run in the separate process of `a_large_start`."""
    began = time.perf_counter()
    with opened(Path(sys.argv[1])) as (manager, _):
        assert manager.latest_catalog().table("default", "table_77777") is not None
        read_any = time.perf_counter() - began
        memory = peak_megabytes()
        for table in manager.latest_catalog().tables():
            assert len(table.columns) == len(COLUMNS)
        figures = {
            "any": read_any,
            "all": time.perf_counter() - began,
            "memory": memory,
            "memory_all": peak_megabytes(),
        }
    print(json.dumps(figures))


def peak_megabytes() -> float:
    """Return the peak of the resident memory of this program.

    The value of `resource` starts with the memory of the parent process.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024


@benchmark(
    group="catalog",
    name=f"active_catalog(timestamp) among {VERSIONS:,} versions",
    unit="us",
    better="lower",
    target=3.0,
)
def active_catalog() -> float:
    """The median of a hundred rounds over times across the whole history of a manager."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as (manager, _):
        manager.execute(new_table("one"), author="bench")

        def change(number: int) -> None:
            command = SetTableProperties(
                schema="default", table="one", set=(("number", str(number)),)
            )
            manager.execute(command, author="bench")

        with ThreadPoolExecutor(CALLERS) as threads:
            list(threads.map(change, range(VERSIONS)))
        latest = manager.latest_catalog()
        times = [manager.catalog(latest.version - n * 7919 % VERSIONS).time for n in range(1000)]
        spent = []
        for _ in range(100):
            began = time.perf_counter()
            for at in times:
                manager.active_catalog(at)
            spent.append((time.perf_counter() - began) / len(times))
    return statistics.median(spent) * 1e6


NODES = 3
NODES_DELAY_MS, NODES_SKEW_MS = 200, 100
NODES_CALLS = 20


@benchmark(
    group="catalog",
    name="create table on three nodes, p50 beyond delay + skew",
    unit="ms",
    better="lower",
    target=20.0,
)
def ddl_on_three_nodes() -> list[Measured]:
    """One caller per node, each node in a separate process. The slowest node counts."""
    rows = []
    for name, kind in STORES.items():
        if not kind.has_server:
            continue
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            address = kind.create(Path(folder))
            nodes = [
                stack.enter_context(
                    CatalogProcess(
                        address,
                        Path(folder),
                        number,
                        delay_ms=NODES_DELAY_MS,
                        skew_ms=NODES_SKEW_MS,
                    )
                )
                for number in range(NODES)
            ]
            for node in nodes:
                node.ready.result(60)
            asked = [
                node.ask("created_and_read", reader=(n + 1) % NODES, calls=NODES_CALLS, threads=1)
                for n, node in enumerate(nodes)
            ]
            medians = [
                statistics.median(answer["call"] for answer in future.result(120))
                for future in asked
            ]
        beyond = max(medians) * 1000 - NODES_DELAY_MS - NODES_SKEW_MS
        rows.append(Measured(beyond, label=name))
    return rows
