"""The logs of a catalog: a commit, the same in a large catalog, and the start on a large catalog.

Each log is measured through the durable state, as a node uses it, and without the catalog's own
commands. Objects have some 120 bytes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg

from bench.registry import Measured, benchmark
from strandline.clock import HybridClock
from strandline.durable import (
    AppliedUpdate,
    CatalogTransaction,
    DurableCatalogState,
    StashLog,
    UpdateLog,
    durable_state,
)
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.maintenance import EVERY
from strandline.durable.persist.persist_log import PersistLog
from strandline.durable.state import ENVIRONMENT
from strandline.model.descriptors import ConfigEntry
from strandline.sql import open_engine
from tests.durable.logs import LOGS, SHARD, LogKind, Persist
from tests.durable.updates import TOKEN, begin, update
from tests.metastorage.stores import STORES
from tests.servers.postgresql import PostgresServer

MEASURED = (
    "metastorage on sqlite",
    "stash on sqlite",
    "stash on postgresql",
    "persist on sqlite",
    "persist on postgresql",
)
PERSIST = {
    f"persist on {name}": Persist(STORES[name], tidied_every=EVERY)
    for name in ("sqlite", "postgresql")
}
KINDS: dict[str, LogKind] = LOGS | PERSIST
FEW, MANY = 100, 100_000
BATCH = 10_000
CALLS, WARM_UP = 300, 30
SECONDS = 3.0


class Writer:
    """A state and the version that it has come to."""

    def __init__(self, log: UpdateLog) -> None:
        self.state: DurableCatalogState = durable_state(log).open(
            member="bench", initialize=_initialize, raise_fence=lambda _token, _environment: None
        )
        self.latest: AppliedUpdate = self.state.take_recovered()[-1]

    def insert(self, *names: str) -> None:
        """One transaction that inserts an object of each name."""
        transaction = self.state.transaction(self.latest, author="bench")
        with transaction.entry("set_configuration", {"names": len(names)}):
            for name in names:
                transaction.put(ConfigEntry(name, "x" * 100))
        self.latest = self.state.commit_transaction(transaction)

    def fill(self, count: int) -> None:
        """Insert so many objects, and let the log begin with a snapshot of them."""
        for start in range(0, count, BATCH):
            self.insert(*(f"object_{n}" for n in range(start, min(start + BATCH, count))))
        self.state.compact(self.latest.version)


def _initialize(transaction: CatalogTransaction) -> None:
    with transaction.entry("configure", {}):
        transaction.put(ConfigEntry(ENVIRONMENT, "bench"))


@contextmanager
def a_log(kind: LogKind) -> Iterator[UpdateLog]:
    with tempfile.TemporaryDirectory() as folder:
        address = kind.create(Path(folder))
        with kind.open(address, HybridClock()) as log:
            yield log


@benchmark(group="durable", name="transaction with one insert, p50", unit="ms", better="lower")
def insert_latency() -> list[Measured]:
    """At 100 and at 100,000 objects, asked in turns."""
    rows = []
    for name in MEASURED:
        few, many = medians(name)
        rows += [
            Measured(few, label=f"{name}, {FEW} objects"),
            Measured(many, label=f"{name}, {MANY:,} objects"),
            Measured(many / few, label=f"{name}, one against the other", target=1.3, unit="x"),
        ]
    return rows


def medians(name: str) -> list[float]:
    """In milliseconds, at few and at many objects."""
    with ExitStack() as stack:
        writers = []
        for count in (FEW, MANY):
            writer = Writer(stack.enter_context(a_log(KINDS[name])))
            writer.fill(count)
            writers.append(writer)
        spent: list[list[float]] = [[] for _ in writers]
        for n in range(CALLS + WARM_UP):
            for writer, times in zip(writers, spent, strict=True):
                began = time.perf_counter()
                writer.insert(f"one_{n}")
                times.append(time.perf_counter() - began)
    return [statistics.median(times[WARM_UP:]) * 1000 for times in spent]


@benchmark(group="durable", name=f"open of {MANY:,} objects", unit="s", better="lower", target=6.0)
def open_many() -> list[Measured]:
    """From the snapshot, by another handle than the one that wrote it."""
    rows = []
    for name in MEASURED:
        kind = KINDS[name]
        with tempfile.TemporaryDirectory() as folder:
            address = kind.create(Path(folder))
            with kind.open(address, HybridClock()) as log:
                Writer(log).fill(MANY)
            with kind.open(address, HybridClock()) as log:
                began = time.perf_counter()
                durable_state(log).join(member="other")
                spent = time.perf_counter() - began
        target = 3.0 if name.startswith("metastorage") else 6.0
        rows.append(Measured(spent, label=name, target=target))
    return rows


@contextmanager
def synced_server() -> Iterator[PostgresServer]:
    """A PostgreSQL that syncs each commit."""
    server = PostgresServer(durable=True)
    try:
        yield server
    finally:
        server.remove()


@benchmark(
    group="durable",
    name="stash on PostgreSQL: commits a second against one INSERT a transaction",
    unit="x",
    better="higher",
    target=0.4,
)
def stash_commits() -> list[Measured]:
    """One writer, each commit synced; the INSERT is of one row, by the same driver."""
    with synced_server() as server, closing(open_engine(server.new_schema())) as database:
        writer = Writer(StashLog(database, HybridClock()))
        writer.fill(FEW)
        ratios, commits, inserts = [], [], []
        for turn in range(3):  # in turns, so that both meet the same other load
            inserts.append(raw_inserts(server.url(), SECONDS / 3))
            done, end = 0, time.monotonic() + SECONDS / 3
            while time.monotonic() < end:
                writer.insert(f"one_{turn}_{done}")
                done += 1
            commits.append(done / (SECONDS / 3))
            ratios.append(commits[-1] / inserts[-1])
    return [
        Measured(statistics.median(ratios)),
        Measured(
            statistics.median(commits),
            reference=statistics.median(inserts),
            label="how many, beside the INSERTs",
            target=0.0,
            unit="1/s",
        ),
    ]


def raw_inserts(address: str, seconds: float) -> float:
    """Transactions of one INSERT a second, by one connection of the driver."""
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS raw (id BIGINT, data BYTEA)")
        connection.commit()
        done, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            connection.execute("INSERT INTO raw VALUES (%s, %s)", (done, bytes(200)))
            connection.commit()
            done += 1
    return done / seconds


@benchmark(
    group="durable",
    name="persist, one append: above the raw compare-and-set, p50",
    unit="µs",
    better="lower",
    target=400.0,
)
def persist_latency() -> Measured:
    """On SQLite and local files; both in turns. The reference is the compare-and-set."""
    with a_log(KINDS["persist on sqlite"]) as log:
        raw, appended = persist_calls(log)
    set_us = statistics.median(raw) * 1e6
    return Measured(statistics.median(appended) * 1e6 - set_us, reference=set_us)


@benchmark(
    group="durable",
    name="persist on PostgreSQL: appends a second against raw compare-and-sets",
    unit="x",
    better="higher",
    target=0.5,
)
def persist_rate() -> float:
    """One writer, maintenance included, each commit synced."""
    kind = PERSIST["persist on postgresql"]
    with synced_server() as server, tempfile.TemporaryDirectory() as folder:
        address = f"{server.new_schema()}|{folder}/blobs"
        with kind.open(address, HybridClock()) as log:
            raw, appended = persist_calls(log)
    return sum(raw) / sum(appended)


def persist_calls(log: UpdateLog) -> tuple[list[float], list[float]]:
    """Seconds of compare-and-sets of as many bytes, and of appends of one object, in turns."""
    assert isinstance(log, PersistLog)
    consensus = log.shard.consensus
    begin(log, WARM_UP)
    size = len(consensus.scan(SHARD, 0)[-1].data)
    log.maintenance.tidy()  # loads Parquet
    raw: list[float] = []
    appended: list[float] = []
    for n in range(2 * EVERY):
        raw.append(timed_set(consensus, n, bytes(size)))
        one = update(WARM_UP + 1 + n)
        began = time.perf_counter()
        log.append(one.version, TOKEN, [one])
        appended.append(time.perf_counter() - began)
    return raw, appended


def timed_set(consensus: Consensus, number: int, data: bytes) -> float:
    began = time.perf_counter()
    consensus.compare_and_set("raw", number or None, number + 1, data)
    return time.perf_counter() - began
