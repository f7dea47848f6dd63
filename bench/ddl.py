"""DDL on a node: the catalog, its projection, and the folders of managed tables.

Calls go through a session in this process, with full sync. For CREATE TABLE, the reference is the
minimum cost for any program: a commit of two rows and the sync of a folder with a new entry.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from bench.catalog import CALLERS, COLUMNS, SECONDS, medians_in_turns, raw_commit, timed
from bench.registry import Measured, benchmark
from strandline.catalog.commands import CreateSchema, CreateTable, DropSchema, TableDefinition
from strandline.config import Settings
from strandline.metastore.session import LocalSession
from strandline.node import Node
from tests.servers.stores import new_store

FEW, MANY = 100, 10_000
TIMEOUT = 600.0
RAW = 3.0
"""CREATE TABLE may take this many times the raw commit and folder sync."""
TOGETHER = 5.0
"""`CALLERS` callers must reach this many times the rate of one caller."""
BATCH_SECONDS = {"create": 5.0, "drop cascade": 4.0, "undo": 8.0}


AT_ONCE = Settings(delay_ms=0, clock_skew_ms=0)
"""Settings of a catalog on a server that waits for no other node, like a catalog in a folder."""


@contextmanager
def opened(kind: str = "folder") -> Iterator[tuple[Node, LocalSession]]:
    """Open a node on an empty store of this kind (`tests.servers.stores`), and a session."""
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(kind, Path(folder), settings=AT_ONCE)
        with Node.open(store.address, settings=store.settings) as node:
            yield node, node.session(user="bench")


def new_table(name: str, schema: str = "default") -> CreateTable:
    """Return a CREATE TABLE with twenty columns, managed and transactional."""
    definition = TableDefinition(name=name, columns=COLUMNS, transactional=True)
    return CreateTable(schema=schema, definition=definition)


def fill(session: LocalSession, count: int, schema: str = "default") -> None:
    """Create ``count`` tables in one batch."""
    commands = [new_table(f"table_{n}", schema) for n in range(count)]
    session.execute(commands, timeout=TIMEOUT)


@contextmanager
def raw_folders() -> Iterator[Callable[[], None]]:
    """Yield a function that makes a folder and syncs the folder above it."""
    with tempfile.TemporaryDirectory() as name:
        above = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        numbers = count()

        def make() -> None:
            os.mkdir(f"{name}/{next(numbers)}")
            os.fsync(above)

        try:
            yield make
        finally:
            os.close(above)


@benchmark(
    group="ddl", name="create table through a session, one caller, p50", unit="ms", better="lower"
)
def create_table_latency() -> list[Measured]:
    """At 100 and at 10,000 tables. The reference is a raw commit of two rows and a folder sync."""
    return [row for kind in ("folder", "postgresql") for row in latencies(kind)]


def latencies(kind: str) -> list[Measured]:
    """Return the rows of one kind of store."""
    calls: list[Callable[[int], object]] = []
    with ExitStack() as stack:
        for tables in (FEW, MANY):
            _, session = stack.enter_context(opened(kind))
            fill(session, tables)
            calls.append(partial(create_one, session))
        unused, _ = stack.enter_context(opened(kind))
        commit, make = raw_commit(unused.database), stack.enter_context(raw_folders())
        calls += [lambda n: commit(), lambda n: make()]
        few, many, *raw = medians_in_turns(calls)
    return [
        Measured(
            value,
            reference=sum(raw),
            label=f"{kind}, {tables:,} tables",
            target=RAW * sum(raw),
        )
        for tables, value in ((FEW, few), (MANY, many))
    ]


def create_one(session: LocalSession, number: int) -> None:
    """Create the table ``one_<number>`` in its own version."""
    session.execute(new_table(f"one_{number}"))


@benchmark(
    group="ddl",
    name=f"create table through a session, {CALLERS} callers, each its own version",
    unit="1/s",
    better="higher",
)
def create_table_rate() -> Measured:
    """The reference is the rate of one caller."""
    with opened() as (_, session):
        fill(session, FEW)
        alone, together = (rate(session, callers) for callers in (1, CALLERS))
    return Measured(together, reference=alone, target=TOGETHER * alone)


def rate(session: LocalSession, callers: int) -> float:
    """Return the tables per second that ``callers`` threads create, each in its own version."""
    end = time.monotonic() + SECONDS

    def call(caller: int) -> int:
        n = 0
        while time.monotonic() < end:
            session.execute(new_table(f"by_{callers}_{caller}_{n}"))
            n += 1
        return n

    began = time.monotonic()
    with ThreadPoolExecutor(callers) as threads:
        made = sum(threads.map(call, range(callers)))  # raises the error of a failed call
    return made / (time.monotonic() - began)


@benchmark(group="ddl", name=f"{MANY:,} tables in one version", unit="s", better="lower")
def batches() -> list[Measured]:
    """Create the tables, drop them with their schema, and undo the drop."""
    with opened() as (_, session):
        session.execute(CreateSchema(name="many"))
        create = timed(lambda: fill(session, MANY, "many"))
        versions: list[int] = []

        def drop_schema() -> None:
            executed = session.execute(DropSchema(name="many", cascade=True), timeout=TIMEOUT)
            versions.append(executed.version)

        drop = timed(drop_schema)
        undo = timed(lambda: session.undo(versions[0], timeout=TIMEOUT))
    spent = {"create": create, "drop cascade": drop, "undo": undo}
    return [
        Measured(seconds, label=what, target=BATCH_SECONDS[what]) for what, seconds in spent.items()
    ]
