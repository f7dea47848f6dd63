"""DDL on a node: the catalog, its projection, and the folders of managed tables.

Calls go through a session in process, on one folder with full sync. What a table costs must not
grow with the size of its batch: one of ten thousand is compared with ten of a thousand.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.catalog import CALLS, COLUMNS, WARM_UP, raw_commits
from bench.registry import Measured, benchmark
from strandline.catalog.commands import CreateSchema, CreateTable, DropSchema, TableDefinition
from strandline.metastore.session import LocalSession
from strandline.node import Node

FEW, MANY = 100, 10_000
PART = 1_000
TIMEOUT = 600.0
PROPORTIONAL = 2.0
"""A batch may take so many times as long as ten of a tenth."""


@contextmanager
def opened() -> Iterator[tuple[Node, LocalSession]]:
    """A node on an empty store, and a session with it."""
    with tempfile.TemporaryDirectory() as folder, Node.open(Path(folder)) as node:
        yield node, node.session(user="bench")


def new_table(name: str, schema: str = "default") -> CreateTable:
    """CREATE TABLE of twenty columns, managed and transactional."""
    definition = TableDefinition(name=name, columns=COLUMNS, transactional=True)
    return CreateTable(schema=schema, definition=definition)


def fill(session: LocalSession, count: int, schema: str = "default") -> None:
    """Make ``count`` tables in one batch."""
    commands = [new_table(f"table_{n}", schema) for n in range(count)]
    session.execute(commands, timeout=TIMEOUT)


@benchmark(
    group="node",
    name="create table through a session, one caller, p50",
    unit="ms",
    better="lower",
    target=6.0,
)
def create_table_latency() -> list[Measured]:
    """At 100 and at 10,000 tables; the reference is a raw commit of two rows."""
    with ExitStack() as stack:
        sessions = []
        for count in (FEW, MANY):
            node, session = stack.enter_context(opened())
            fill(session, count)
            sessions.append(session)
        spent: list[list[float]] = [[] for _ in sessions]
        for n in range(CALLS + WARM_UP):
            for session, times in zip(sessions, spent, strict=True):
                times.append(timed(partial(session.execute, new_table(f"one_{n}"))))
        few, many = (statistics.median(times[WARM_UP:]) * 1000 for times in spent)
        raw = 1000 / raw_commits(node.database)
    return [
        Measured(few, reference=raw, label=f"{FEW:,} tables"),
        Measured(many, reference=raw, label=f"{MANY:,} tables"),
        Measured(many / few, label=f"{MANY:,} against {FEW} tables", target=1.3, unit="x"),
    ]


@benchmark(group="node", name="one batch of 10,000 tables", unit="s", better="lower")
def batches() -> list[Measured]:
    """Made, dropped with their schema, and brought back; the reference is ten batches of 1,000."""
    part, whole = a_batch(PART), a_batch(MANY)
    tens = {what: seconds * MANY / PART for what, seconds in part.items()}
    return [
        Measured(seconds, reference=tens[what], label=what, target=tens[what] * PROPORTIONAL)
        for what, seconds in whole.items()
    ]


def a_batch(count: int) -> dict[str, float]:
    """The seconds of each step for so many tables."""
    with opened() as (_, session):
        session.execute(CreateSchema(name="many"))
        made = timed(lambda: fill(session, count, "many"))
        versions: list[int] = []

        def drop() -> None:
            done = session.execute(DropSchema(name="many", cascade=True), timeout=TIMEOUT)
            versions.append(done.version)

        dropped = timed(drop)
        back = timed(lambda: session.undo(versions[0], timeout=TIMEOUT))
    return {"create table": made, "drop schema cascade": dropped, "its undo": back}


def timed(call: Callable[[], object]) -> float:
    """The seconds that ``call`` takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
