"""The node's cache of the object store: a start with a large cache, and reads of other clients.

The store of the first rows has `TABLES` tables, some of them with `PARTITIONS_OF_EACH` partitions.
Its node was stopped once with all these partitions in memory. *Serves from memory* means that the
node has returned the names of all partitions and has read no table from the store.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import psutil

from bench.large import CALM_SECONDS, Prober, Store, p99
from bench.peers.metastore_calls import Connection, prepared
from bench.registry import Measured, benchmark
from strandline.catalog.commands import ColumnDefinition, CreateSchema, CreateTable, TableDefinition
from strandline.cli.demo.node_process import NodeProcess
from strandline.config import Settings
from strandline.metastore.store.object_store import ObjectStore
from strandline.metastore.store.rows import DataFile, NewRow, PartitionRow, RowKind, new_file
from strandline.model.partitioning import PartitionValue
from strandline.model.types import INT, STRING
from strandline.node import Node
from strandline.node.node import CACHE_FILE
from tests.servers import stores

TABLES, PARTITIONED, PARTITIONS_OF_EACH = 50_000, 500, 1_000
BATCH = 10_000
START_SECONDS, START_MIB = 15.0, 1_536.0
LISTED = 500_000
P99_MS, LISTED_SECONDS = 3.0, 20.0
WRITES, WRITERS, FILES_OF_A_WRITER = 10_000, 10, 10
LIST_P99_MS, LIST_SECONDS = 5.0, 10.0
TOGETHER, ROUNDS = 20, 20
CACHE_BYTES = 1 << 30
COLUMNS = (ColumnDefinition("k", INT), ColumnDefinition("p", STRING))


def partition(number: int) -> NewRow:
    """Return a partition as a client adds it, without a folder."""
    value = f"{number:06d}"
    return NewRow.of(PartitionRow(values=(value,), location=f"p={value}"), name=f"p={value}")


def add_partitions(store: ObjectStore, table_id: int, count: int) -> None:
    """Add ``count`` partitions to a table."""
    for first in range(0, count, BATCH):
        with store.change(table_id, author="bench") as change:
            change.stage(add=[partition(n) for n in range(first, min(first + BATCH, count))])


def fill(folder: Path) -> None:
    """Create the store and the cache file of its node."""
    settings = Settings(cache_bytes=CACHE_BYTES)
    with Node.open(folder, settings=settings, keeps_cache=True) as node:
        session = node.session(user="bench")
        session.execute(CreateSchema(name="bench"))
        for first in range(0, TABLES, BATCH):
            definitions = [
                TableDefinition(
                    name=f"t{n}",
                    columns=COLUMNS,
                    partition_columns=("p",) if n < PARTITIONED else (),
                )
                for n in range(first, first + BATCH)
            ]
            commands = [CreateTable(schema="bench", definition=of) for of in definitions]
            session.execute(commands, timeout=600.0)
        catalog = node.catalogs.latest_catalog()
        for number in range(PARTITIONED):
            table = catalog.table("bench", f"t{number}")
            assert table is not None
            add_partitions(node.store, table.id, PARTITIONS_OF_EACH)
            node.store.rows(table.id, RowKind.PARTITION, write_ids=None)
        for name, count in (("large", LISTED), ("t", 0)):
            definition = TableDefinition(name=name, columns=COLUMNS, partition_columns=("p",))
            session.execute(CreateTable(schema="bench", definition=definition))
            add_partitions(node.store, session.table(f"bench.{name}").descriptor.id, count)
    (folder / "strandline.toml").write_text(f"cache_bytes = {CACHE_BYTES}\n")


def list_all(store: Store) -> None:
    """Request the names of all partitions from the node."""
    with store.thrift() as client:
        for number in range(PARTITIONED):
            named = {"db_name": "bench", "tbl_name": f"t{number}", "max_parts": -1}
            assert len(client.call("get_partition_names", **named)) == PARTITIONS_OF_EACH


def loads(store: Store) -> float:
    """Return how many tables the node has read into memory."""
    with urllib.request.urlopen(f"{store.node.http_uri}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("strandline_cache_loads_total ")]
    return float(line.rpartition(" ")[2])


@contextmanager
def started(node: NodeProcess) -> Iterator[tuple[Store, float]]:
    """Start the node. Yield it, and the seconds until it served from memory."""
    began = time.perf_counter()
    node.start()
    try:
        store = Store(node)
        list_all(store)
        yield store, time.perf_counter() - began
    finally:
        node.stop()


@cache
def measured() -> dict[str, list[Measured]]:
    """Return the rows of the benchmarks on the large store, by benchmark."""
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as name:
        folder = Path(name) / "store"
        fill(folder)
        state = folder / CACHE_FILE
        kept = state.read_bytes()
        node = NodeProcess(folder)
        state.unlink()
        with started(node) as (store, without):
            assert loads(store) == PARTITIONED
            memory_without = store.memory()
        state.write_bytes(kept)
        with started(node) as (store, seconds):
            assert loads(store) == 0
            memory = store.memory()
            return {
                "start": [Measured(seconds, reference=without, target=START_SECONDS)],
                "memory": [Measured(memory, reference=memory_without, target=START_MIB)],
                "p99": [listing(store)],
            }


def listing(store: Store) -> Measured:
    """Return the p99 of a client while another client lists many partitions repeatedly."""
    named = {"db_name": "bench", "tbl_name": "large", "max_parts": -1}
    ask = store.thrift_call("get_partitions", **named)
    prober = Prober(store.port)
    try:
        time.sleep(CALM_SECONDS)
        calm = p99(prober.lap())
        until = time.perf_counter() + LISTED_SECONDS
        while time.perf_counter() < until:
            ask()
        return Measured(p99(prober.lap()), reference=calm)
    finally:
        prober.close()


@benchmark(group="cache", name="start until all is served from memory", unit="s", better="lower")
def start() -> list[Measured]:
    """The reference is a start without the cache file, which reads each table on request."""
    return measured()["start"]


@benchmark(group="cache", name="memory of the node then", unit="MiB", better="lower")
def memory() -> list[Measured]:
    """Resident, including child processes. The reference is a start without the cache file."""
    return measured()["memory"]


@benchmark(
    group="cache",
    name=f"get_table p99 while another lists {LISTED:,} partitions",
    unit="ms",
    better="lower",
    target=P99_MS,
)
def get_table_while_another_lists() -> list[Measured]:
    """The reference is the value of the calm node."""
    return measured()["p99"]


@benchmark(
    group="cache", name="read with the writer's list on another node", unit="ms", better="lower"
)
def read_with_a_list() -> list[Measured]:
    """On a table with many writes and ten active writers.

    Measures how fast each writer reads its own write on the other node, and how many answers
    lacked it.
    """
    rows = []
    for kind in ("folder", "postgresql"):
        with two_nodes(kind) as nodes:
            times, lacking = written_and_read(*(node.http_uri for node in nodes))
        rows += [
            Measured(p99(times), label=f"p99, {kind}", target=LIST_P99_MS),
            Measured(lacking, label=f"answers that lacked a write, {kind}", target=0, unit=""),
        ]
    return rows


@benchmark(
    group="cache",
    name=f"{TOGETHER} clients list 1,000 partitions together after a commit, processor time",
    unit="ms",
    better="lower",
)
def list_together() -> Measured:
    """Of the node, with its child processes. The reference is one client."""
    with ExitStack() as opened:
        name = opened.enter_context(tempfile.TemporaryDirectory(prefix="strandline-bench-"))
        with Node.open(name) as node:
            session = node.session(user="bench")
            definition = TableDefinition(name="t", columns=COLUMNS, partition_columns=("p",))
            session.execute(CreateTable(schema="default", definition=definition))
            add_partitions(node.store, session.table("default.t").descriptor.id, 1_000)
        served = NodeProcess(name)
        served.start()
        opened.callback(served.stop)
        port = int(served.thrift_uri.rpartition(":")[2])
        clients = [Connection(port) for _ in range(TOGETHER)]
        together, alone = (
            statistics.median(time_of_lists(served, chosen) for _ in range(ROUNDS))
            for chosen in (clients, clients[:1])
        )
    return Measured(together, reference=alone)


def time_of_lists(served: NodeProcess, clients: Sequence[Connection]) -> float:
    """Commit, and have each client list the partitions of ``default.t``.

    Return the milliseconds of processor time of the node.
    """
    clients[0].call("create_database", database={"name": f"s{time.monotonic_ns()}"})
    request = prepared("get_partitions", db_name="default", tbl_name="t", max_parts=-1)
    began = processor_seconds(served.pid)
    with ThreadPoolExecutor(len(clients)) as threads:
        answers = list(threads.map(lambda client: client.answer(request), clients))
    assert len(set(answers)) == 1
    return (processor_seconds(served.pid) - began) * 1000


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its children."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


@contextmanager
def two_nodes(kind: str) -> Iterator[list[NodeProcess]]:
    """Start two nodes on one store with the table ``bench.writes``."""
    with ExitStack() as opened:
        name = opened.enter_context(tempfile.TemporaryDirectory(prefix="strandline-bench-"))
        store = stores.new_store(kind, Path(name) / "lake")
        with Node.open(store.address, settings=store.settings) as node:
            session = node.session(user="bench")
            definition = TableDefinition(
                name="writes", columns=COLUMNS, transactional=True, partitioned_by=("k",)
            )
            session.execute(CreateSchema(name="bench"))
            session.execute(CreateTable(schema="bench", definition=definition))
            table = session.table("bench.writes").descriptor
            for number in range(WRITES):
                txn_id = node.transactions.begin(user="bench").txn_id
                known = (PartitionValue(table.partitioning[0].id, number // FILES_OF_A_WRITER),)
                path = f"_files/{txn_id << 20}-a.parquet"
                file = DataFile(file_id=txn_id << 20, path=path, rows=1, bytes=1, partition=known)
                with node.store.sql_store.staging(txn_id, table.id) as staging:
                    staging.stage(add=[new_file(file)])
                node.transactions.commit(txn_id)
        nodes = [
            NodeProcess(store.address, settings=store.settings, log=Path(name) / f"{number}.log")
            for number in range(2)
        ]
        for served in nodes:
            served.start()
            opened.callback(served.stop)
        yield nodes


def written_and_read(writing: str, reading: str) -> tuple[list[float], int]:
    """Return the milliseconds of the answers to ten writers, and how many lacked a write.

    The time starts when all writers have written once.
    """
    command = [sys.executable, "-m", "bench.peers.list_writer", writing, reading, "bench.writes"]
    writers = [
        subprocess.Popen(
            [*command, str(key)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for key in range(WRITERS)
    ]
    for writer in writers:  # one that ended leaves an empty line, which is no JSON
        assert writer.stdout is not None
        json.loads(writer.stdout.readline())
    for writer in writers:
        print(file=writer.stdin, flush=True)
    time.sleep(LIST_SECONDS)
    answers = [json.loads(writer.communicate()[0]) for writer in writers]
    return sorted(time for times, _ in answers for time in times), sum(n for _, n in answers)
