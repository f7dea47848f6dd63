"""Transactions over HTTP: the time that a writer waits, apart from writing its files.

The node runs in a separate process. One client adds one file with bounds of three columns in each
transaction.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.catalog import disk_sync
from bench.ddl import new_table
from bench.registry import Measured, benchmark
from strandline.cli.demo.node_process import NodeProcess
from strandline.config import Settings
from strandline.metastore.session import HttpSession
from strandline.metastore.store.rows import ColumnStatistics, DataFile
from strandline.node import Node
from strandline.node.opened_store import SERVERS_DELAY_MS, SERVERS_SKEW_MS
from strandline.transactions import Transactions
from tests.servers import stores
from tests.sql.statements import recorded

CALLS, WARM_UP = 300, 50
STATEMENT_CALLS = 21
SETTINGS = {
    "folder": Settings(),
    "postgresql": Settings(delay_ms=SERVERS_DELAY_MS, clock_skew_ms=SERVERS_SKEW_MS),
}
"""The default settings of a catalog. The tests use shorter delays for stores on servers."""
LIMITS_MS = {"folder": 4.0, "postgresql": 6.0}
"""The targets for a write of one file, which contains three commits of the database."""


@contextmanager
def served(kind: str) -> Iterator[tuple[HttpSession, int, Path]]:
    """A session with a node on a new store, the id of a table, and a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = stores.new_store(kind, folder / "lake")
        node = NodeProcess(store.address, settings=store.settings, log=folder / "node.log")
        node.start()
        try:
            with HttpSession(node.http_uri, user="bench") as session:
                session.execute(new_table("files"))
                yield session, session.table("default.files").descriptor.id, folder
        finally:
            node.stop()


def data_file(txn_id: int) -> DataFile:
    """Return a file as Strandline's Spark code adds it, with bounds of three columns."""
    return DataFile(
        file_id=txn_id << 20,
        path=f"_data/_file={txn_id << 20}/part-00000-5f2c0ad1.parquet",
        rows=100_000,
        bytes=4_000_000,
        statistics=tuple(
            ColumnStatistics(column_id=column, lower="1", upper=str(txn_id), nulls=0)
            for column in (1, 2, 3)
        ),
    )


@benchmark(
    group="session", name="begin, stage one file, commit over HTTP, p50", unit="ms", better="lower"
)
def write_latency() -> list[Measured]:
    """The whole write and each of its calls. The reference is three page syncs of the same run."""
    return [row for kind in LIMITS_MS for row in latencies(kind)]


def latencies(kind: str) -> list[Measured]:
    """Return the rows of one kind of store."""
    spent: dict[str, list[float]] = {"begin": [], "stage": [], "commit": [], "whole": []}
    with served(kind) as (session, table_id, folder):
        for _ in range(WARM_UP + CALLS):
            times = [time.perf_counter()]
            txn_id = session.begin().txn_id
            times.append(time.perf_counter())
            session.stage(txn_id, table_id, add=[data_file(txn_id)])
            times.append(time.perf_counter())
            session.commit(txn_id)
            times.append(time.perf_counter())
            for call, began, ended in zip(spent, times, times[1:], strict=False):
                spent[call].append(ended - began)
            spent["whole"].append(times[-1] - times[0])
        syncs = 3 * disk_sync(folder) * 1000
    p50 = {call: statistics.median(times[WARM_UP:]) * 1000 for call, times in spent.items()}
    return [
        Measured(p50["whole"], reference=syncs, target=LIMITS_MS[kind], label=kind),
        *(Measured(p50[call], label=f"{kind}, {call}") for call in ("begin", "stage", "commit")),
    ]


@benchmark(
    group="session",
    name="SQL statements of begin, stage one file, commit",
    unit="statements",
    better="lower",
)
def write_statements() -> list[Measured]:
    """In this process, in the thread of the call, without BEGIN and COMMIT of SQLite.

    Statements sent to a server in one text count once, because they are one round trip.
    """
    return [row for kind in LIMITS_MS for row in statement_counts(kind)]


def statement_counts(kind: str) -> list[Measured]:
    """Return the rows of one kind of store."""
    counts: dict[str, list[int]] = {"begin": [], "stage": [], "commit": []}

    @contextmanager
    def counted(call: str) -> Iterator[None]:
        with recorded(of_this_thread=True) as statements:
            yield
        counts[call].append(len(statements))

    with tempfile.TemporaryDirectory() as name:
        store = stores.new_store(kind, Path(name) / "lake", settings=SETTINGS[kind])
        with Node.open(store.address, settings=store.settings) as node:
            session = node.session(user="bench")
            session.execute(new_table("files"))
            table_id = session.table("default.files").descriptor.id
            for _ in range(STATEMENT_CALLS):
                with counted("begin"):
                    txn_id = session.begin().txn_id
                with counted("stage"):
                    session.stage(txn_id, table_id, add=[data_file(txn_id)])
                with counted("commit"):
                    session.commit(txn_id)
    return [
        Measured(statistics.median(numbers), label=f"{kind}, {call}")
        for call, numbers in counts.items()
    ]


OPEN_TRANSACTIONS, BATCH = 5_000, 1_000
COMMITS = 60


@benchmark(
    group="session",
    name="begin and commit beside 5,000 open transactions, p50",
    unit="ms",
    better="lower",
)
def commits_beside_open_transactions() -> list[Measured]:
    """In process. The reference is a store with no other open transactions, measured in turns.

    The other transactions have write ids of another table, and then also of the same table.
    """
    return [row for kind in LIMITS_MS for row in beside_open_transactions(kind)]


def beside_open_transactions(kind: str) -> list[Measured]:
    """Return the rows of one kind of store."""
    with new_writer(kind) as alone, new_writer(kind) as beside:
        txn_ids = beside.begin_many()
        measured = []
        for table_id, label in zip(
            beside.table_ids, ("another table", "the same table"), strict=True
        ):
            beside.allocate_all(txn_ids, table_id)
            spent = [(alone.write(), beside.write()) for _ in range(COMMITS)]
            reference, value = (statistics.median(times) for times in zip(*spent, strict=True))
            measured.append(Measured(value, reference=reference, label=f"{kind}, {label}"))
        return measured


@benchmark(
    group="session",
    name="abort of 5,000 transactions with a write id each",
    unit="s",
    better="lower",
)
def aborts() -> list[Measured]:
    """All transactions are aborted in one call."""
    return [Measured(seconds_to_abort(kind), label=kind) for kind in LIMITS_MS]


def seconds_to_abort(kind: str) -> float:
    """Return the seconds until all are aborted, on a new store of this kind."""
    with new_writer(kind) as writer:
        txn_ids = writer.begin_many()
        writer.allocate_all(txn_ids, writer.table_ids[0])
        began = time.perf_counter()
        aborted = writer.transactions.abort_all(txn_ids)
        spent = time.perf_counter() - began
        assert aborted == txn_ids
        return spent


@dataclass(frozen=True)
class Writer:
    """A node in this process and the ids of two tables. It writes the second table."""

    node: Node
    table_ids: tuple[int, int]

    @property
    def transactions(self) -> Transactions:
        return self.node.transactions

    def begin_many(self) -> list[int]:
        """Begin `OPEN_TRANSACTIONS` transactions and return their ids."""
        return [
            transaction.txn_id
            for _ in range(OPEN_TRANSACTIONS // BATCH)
            for transaction in self.transactions.beginning(BATCH, user="bench").run()
        ]

    def allocate_all(self, txn_ids: list[int], table_id: int) -> None:
        """Allocate a write id of the table for each of the transactions."""
        for start in range(0, len(txn_ids), BATCH):
            self.transactions.allocate(txn_ids[start : start + BATCH], table_id)

    def write(self) -> float:
        """Run a transaction with a write id and return its milliseconds."""
        session = self.node.session(user="bench")
        began = time.perf_counter()
        txn_id = session.begin().txn_id
        self.transactions.allocate([txn_id], self.table_ids[1])
        session.commit(txn_id)
        return (time.perf_counter() - began) * 1000


@contextmanager
def new_writer(kind: str) -> Iterator[Writer]:
    """A writer on a new store with two empty tables."""
    with tempfile.TemporaryDirectory() as name:
        store = stores.new_store(kind, Path(name) / "lake", settings=SETTINGS[kind])
        with Node.open(store.address, settings=store.settings) as node:
            session = node.session(user="bench")
            for table in ("others", "files"):
                session.execute(new_table(table))
            others, files = (
                session.table(f"default.{table}").descriptor.id for table in ("others", "files")
            )
            yield Writer(node, (others, files))
