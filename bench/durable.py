"""The catalog logs: a commit in a small and in a large catalog, and opening a large catalog.

Each log is measured through the durable state, as a node uses it, but without catalog commands.
Objects are tables of twenty columns, in a log that begins with a snapshot of them.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import psycopg

from bench.catalog import medians_in_turns, peak_megabytes
from bench.registry import Measured, benchmark
from strandline.clock import HybridClock
from strandline.durable import (
    AppliedUpdate,
    CatalogTransaction,
    DurableCatalogState,
    Position,
    StashLog,
    Update,
    UpdateLog,
    durable_state,
)
from strandline.durable.chunks import CHUNK_BYTES
from strandline.durable.contents import EMPTY
from strandline.durable.migrations import present_format
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.maintenance import EVERY
from strandline.durable.persist.persist_log import PersistLog
from strandline.durable.state import ENVIRONMENT
from strandline.model.descriptors import (
    ColumnDescriptor,
    ConfigEntry,
    SchemaVersion,
    TableDescriptor,
    TableKind,
)
from strandline.model.types import BIGINT, STRING
from strandline.node.catalog_dump import dump_pieces
from strandline.sql import open_database
from strandline.work import keeping_garbage
from tests.durable.logs import LOGS, SHARD, LogKind, OnMetastorage, Persist, Shadow
from tests.durable.updates import TOKEN, begin, update
from tests.metastorage.stores import STORES
from tests.servers.postgresql import PostgresServer

KINDS: dict[str, LogKind] = {
    "metastorage on sqlite": OnMetastorage(STORES["sqlite"], chunk_bytes=CHUNK_BYTES),
    "stash on sqlite": LOGS["stash on sqlite"],
    "stash on postgresql": LOGS["stash on postgresql"],
    "persist on sqlite": Persist(STORES["sqlite"], tidied_every=EVERY),
    "persist on postgresql": Persist(STORES["postgresql"], tidied_every=EVERY),
    "shadow in sqlite": Shadow(
        OnMetastorage(STORES["sqlite"], chunk_bytes=CHUNK_BYTES),
        LOGS["stash on sqlite"],
        share=True,
    ),
}
"""The logs, configured as in a node. The tests take snapshots and roll up far more often."""
FEW, MANY = 100, 100_000
VERSIONS, APPENDED_TOGETHER = 20_000, 100
BATCH = 10_000
WARM_UP = 30
SECONDS = 3.0
INSERT_MS = 1.5
CONSTANT_MIB = 32.0
"""The memory that a dump may need, regardless of the size of the catalog."""
IN_A_FOLDER = "metastorage on sqlite"

COLUMNS = tuple(
    ColumnDescriptor(n + 1, f"column_{n}", STRING if n % 2 else BIGINT) for n in range(20)
)
TABLE = TableDescriptor(
    0, 1, "", "bench", TableKind.MANAGED, False, "parquet", (SchemaVersion(1, COLUMNS),), 21, 2
)


class Writer:
    """A durable state and its latest version."""

    def __init__(self, log: UpdateLog) -> None:
        openable = durable_state(log)
        self.state: DurableCatalogState = (
            openable.join(member="bench")
            if openable.is_initialized()
            else openable.open(
                member="bench",
                initialize=_initialize,
                raise_fence=lambda _token, _environment: None,
            )
        )
        self.latest: AppliedUpdate = self.state.take_recovered()[-1]

    def insert(self, *names: str) -> None:
        """Insert tables in one transaction."""
        transaction = self.state.transaction(self.latest, author="bench")
        insert(transaction, *names)
        self.latest = self.state.commit_transaction(transaction)


def insert(transaction: CatalogTransaction, *names: str) -> None:
    with transaction.entry("create_table", {"tables": len(names)}):
        for object_id, name in zip(transaction.allocate_id(amount=len(names)), names, strict=True):
            transaction.put(replace(TABLE, id=object_id, name=name))


def _initialize(transaction: CatalogTransaction) -> None:
    with transaction.entry("configure", {}):
        transaction.put(ConfigEntry(ENVIRONMENT, "bench"))
        transaction.put(present_format())


@cache
def filling(count: int) -> list[Update]:
    """Return the updates that create ``count`` tables, from version 3 on, the same for each log."""
    updates: list[Update] = []
    base: Position = AppliedUpdate(Update(2, b"", "", "", ()), EMPTY)
    with keeping_garbage:
        for start in range(0, count, BATCH):
            transaction = CatalogTransaction(base, author="bench")
            insert(transaction, *(f"table_{n}" for n in range(start, min(start + BATCH, count))))
            updates.append(transaction.update(member="bench"))
            base = transaction
    return updates


def fill(log: UpdateLog, count: int) -> None:
    """Open a catalog, append the tables, and compact the log so that it begins with a snapshot."""
    state = Writer(log).state
    updates = filling(count)
    with keeping_garbage:
        for made in updates:
            log.append(made.version, state.token, [made])
        state.compact(log.frontier().upper - 1)


def alter(log: UpdateLog, count: int) -> None:
    """Open a catalog of `FEW` tables, and append ``count`` versions that alter one of them each."""
    writer = Writer(log)
    writer.insert(*(f"table_{n}" for n in range(FEW)))
    tables = [stored.value for stored in writer.latest.contents.objects("table")]
    for start in range(0, count, APPENDED_TOGETHER):
        base: Position = writer.latest
        transactions = []
        for n in range(start, start + APPENDED_TOGETHER):
            transaction = writer.state.transaction(base, author="bench")
            with transaction.entry("set_table_properties", {"properties": ["load"]}):
                transaction.put(replace(tables[n % FEW], properties=(("load", str(n)),)))
            transactions.append(base := transaction)
        writer.latest = writer.state.commit_transactions(transactions)[-1]


@contextmanager
def a_log(kind: LogKind) -> Iterator[UpdateLog]:
    with tempfile.TemporaryDirectory() as folder:
        address = kind.create(Path(folder))
        with kind.open(address, HybridClock()) as log:
            yield log


@dataclass(frozen=True, slots=True)
class Opened:
    """The measurements of a separate process on a log of many tables.

    Seconds are pairs of wall time and processor time. Sizes are in MiB.
    """

    open_seconds: tuple[float, float]
    open_memory: float
    dump_seconds: tuple[float, float] | None = None
    dump_memory: float | None = None


@dataclass(frozen=True, slots=True)
class OfLog:
    """The measurements of one log. ``few`` and ``many`` are medians of an insert, in ms."""

    few: float
    many: float
    opened: Opened


@cache
def measured(name: str) -> OfLog:
    """Return all measurements of the log ``name``, which share one log of many tables."""
    kind = KINDS[name]
    with ExitStack() as stack:
        logs = []
        for count in (FEW, MANY):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            address = kind.create(Path(folder))
            with kind.open(address, HybridClock()) as log:
                fill(log, count)
            if count == MANY:
                # A dump reads memory only, so one log is enough.
                opened = opened_by_another(name, address, dumps=name == IN_A_FOLDER)
            logs.append(stack.enter_context(kind.open(address, HybridClock())))
        few, many = medians_in_turns([partial(insert_one, Writer(log)) for log in logs])
    return OfLog(few, many, opened)


def insert_one(writer: Writer, number: int) -> None:
    writer.insert(f"one_{number}")


def opened_by_another(name: str, address: str, *, dumps: bool) -> Opened:
    """Open the log in a new process, and dump it if ``dumps``."""
    code = f"from bench import durable; durable.open_and_dump({dumps=})"
    answer = subprocess.run(
        [sys.executable, "-c", code, name, address],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Opened(**json.loads(answer.stdout))


def open_and_dump(*, dumps: bool) -> None:
    """Run in the new process of `opened_by_another`."""
    name, address = sys.argv[1:]
    with KINDS[name].open(address, HybridClock()) as log, tempfile.TemporaryFile("w+") as file:
        before, spent = resident_now(), stopwatch()
        state = durable_state(log).join(member="other")
        opened = Opened(spent(), peak_megabytes() - before)
        if dumps:
            before, spent = resident_now(), stopwatch()
            file.writelines(dump_pieces(state))
            opened = replace(opened, dump_seconds=spent(), dump_memory=peak_megabytes() - before)
            file.flush()
            assert file.seek(0, os.SEEK_END) > MANY * len(COLUMNS) * 10
    print(json.dumps(asdict(opened)))


def stopwatch() -> Callable[[], tuple[float, float]]:
    """Return a function that returns the seconds since now, in wall time and processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    return lambda: (time.perf_counter() - wall, time.process_time() - processor)


def resident_now() -> float:
    """Return the resident MiB of this process, and reset `peak_megabytes` to it."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_megabytes()


@benchmark(group="durable", name="transaction with one insert, p50", unit="ms", better="lower")
def insert_latency() -> list[Measured]:
    """At 100 and at 100,000 tables, in turns."""
    rows = []
    for name in KINDS:
        of_log, target = measured(name), INSERT_MS if name == IN_A_FOLDER else None
        few, many = of_log.few, of_log.many
        rows += [
            Measured(few, label=f"{name}, {FEW} tables", target=target),
            Measured(many, label=f"{name}, {MANY:,} tables", target=target),
            Measured(many / few, label=f"{name}, one against the other", target=1.3, unit="x"),
        ]
    return rows


@benchmark(group="durable", name=f"open of {MANY:,} tables", unit="s", better="lower", target=6.0)
def open_many() -> list[Measured]:
    """From the snapshot, in a new process. The reference is the processor time of that process."""
    rows = []
    for name in KINDS:
        wall, processor = measured(name).opened.open_seconds
        target = 3.0 if name.startswith("metastorage") else None
        rows.append(Measured(wall, reference=processor, label=name, target=target))
    return rows


@benchmark(group="durable", name=f"open of {VERSIONS:,} versions", unit="s", better="lower")
def open_long_history() -> list[Measured]:
    """A history that was never trimmed, in a new process, and the memory that this takes.

    The reference is the processor time of that process.
    """
    rows = []
    for name, kind in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            address = kind.create(Path(folder))
            with kind.open(address, HybridClock()) as log:
                alter(log, VERSIONS)
            opened = opened_by_another(name, address, dumps=False)
        wall, processor = opened.open_seconds
        rows.append(Measured(wall, reference=processor, label=name))
        rows.append(Measured(opened.open_memory, unit="MiB", label=f"{name}, memory"))
    return rows


@benchmark(
    group="durable",
    name=f"memory of the opened state of {MANY:,} tables",
    unit="MiB",
    better="lower",
    target=400.0,
)
def memory_of_many() -> list[Measured]:
    """The peak of resident memory during the opening, above the value before it."""
    return [Measured(measured(name).opened.open_memory, label=name) for name in KINDS]


@benchmark(group="durable", name=f"dump of {MANY:,} tables", unit="s", better="lower", target=15.0)
def dump_many() -> list[Measured]:
    """Dump an opened state to a file. The memory is the peak above that of the opened state.

    The reference is the processor time.
    """
    opened = measured(IN_A_FOLDER).opened
    assert opened.dump_seconds is not None
    assert opened.dump_memory is not None
    wall, processor = opened.dump_seconds
    return [
        Measured(wall, reference=processor),
        Measured(opened.dump_memory, label="memory", target=CONSTANT_MIB, unit="MiB"),
    ]


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
    """One writer, each commit synced. The INSERT is of one row, with the same driver."""
    with synced_server() as server, closing(open_database(server.new_schema())) as database:
        log = StashLog(database, HybridClock())
        fill(log, FEW)
        writer = Writer(log)
        ratios, commits, inserts = [], [], []
        for turn in range(3):  # in turns, so that other load affects both equally
            inserts.append(raw_inserts(server.url(), SECONDS / 3))
            count, end = 0, time.monotonic() + SECONDS / 3
            while time.monotonic() < end:
                writer.insert(f"one_{turn}_{count}")
                count += 1
            commits.append(count / (SECONDS / 3))
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
    """Return the transactions of one INSERT per second, on one connection of the driver."""
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS raw (id BIGINT, data BYTEA)")
        connection.commit()
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            connection.execute("INSERT INTO raw VALUES (%s, %s)", (count, bytes(200)))
            connection.commit()
            count += 1
    return count / seconds


@benchmark(
    group="durable",
    name="persist, one append: above the raw compare-and-set, p50",
    unit="µs",
    better="lower",
    target=400.0,
)
def persist_latency() -> Measured:
    """On SQLite and local files, in turns. The reference is the compare-and-set."""
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
    kind = KINDS["persist on postgresql"]
    with synced_server() as server, tempfile.TemporaryDirectory() as folder:
        address = f"{server.new_schema()}|{folder}/blobs"
        with kind.open(address, HybridClock()) as log:
            raw, appended = persist_calls(log)
    return sum(raw) / sum(appended)


def persist_calls(log: UpdateLog) -> tuple[list[float], list[float]]:
    """Return the seconds of compare-and-sets and of appends of one object, in turns.

    Both write the same number of bytes.
    """
    assert isinstance(log, PersistLog)
    consensus = log.shard.consensus
    begin(log, WARM_UP)
    size = len(consensus.scan(SHARD, 0)[-1].data)
    log.maintenance.tidy()  # loads Parquet
    raw: list[float] = []
    appended: list[float] = []
    for n in range(8 * EVERY):
        raw.append(timed_set(consensus, n, bytes(size)))
        next_update = update(WARM_UP + 1 + n)
        began = time.perf_counter()
        log.append(next_update.version, TOKEN, [next_update])
        appended.append(time.perf_counter() - began)
    return raw, appended


def timed_set(consensus: Consensus, number: int, data: bytes) -> float:
    began = time.perf_counter()
    consensus.compare_and_set("raw", number or None, number + 1, data)
    return time.perf_counter() - began
