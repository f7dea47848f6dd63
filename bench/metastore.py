"""The metastore as clients see it: ``get_table`` through the Hive Metastore protocol.

The reference is a node of release 0.2.0 with the same requests in the same run. `bench.peer`
compares with Hive's own metastore.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil

from bench.catalog import timed
from bench.peers.hive_pair import Clients
from bench.peers.metastore_calls import SCHEMA, Connection, GetTable, make_schema, table
from bench.peers.released_node import NotInThisClone, released_node
from bench.registry import Measured, benchmark
from strandline.cli.demo.node_process import NodeProcess

SECONDS = 4.0
WARM_UP = 500
ANSWERS = 2_000
TURNS = 5
"""How many turns this release and the other take. The best turn of each counts."""
AS_GOOD = 1.05
"""The ratio by which two runs of the same release differ."""


def prepared_asker(port: int) -> Callable[[], object]:
    """Return a function that sends one prepared request and waits for its answer."""
    ask = partial(Connection(port).ask, GetTable.request)
    for _ in range(WARM_UP):
        ask()
    return ask


def prepared_rate(port: int, *, seconds: float) -> float:
    """Return the answers per second on one connection, one request after the other."""
    ask = prepared_asker(port)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        ask()
        count += 1
    return count / (time.perf_counter() - began)


def latencies(port: int) -> list[float]:
    """Return the sorted microseconds of `ANSWERS` answers on one connection, in sequence."""
    ask = prepared_asker(port)
    return sorted(timed(ask) * 1e6 for _ in range(ANSWERS))


def apache_rate(port: int, *, seconds: float) -> float:
    """Return the answers per second of four processes with the Apache Thrift client."""
    with Clients("GetTableThroughApache", port) as clients:
        return clients.rate(seconds)


def fill(port: int) -> None:
    """Create the schema and the table of twenty columns."""
    connection = Connection(port)
    make_schema(connection, SCHEMA)
    connection.call("create_table", tbl=table("t", columns=20))


class Served(NamedTuple):
    """A node with the table: its Thrift port and process id."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Return the processor time of the node's process so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def _releases() -> Iterator[tuple[Served, Served | None]]:
    """Start a node and a node of release 0.2.0, both with the table.

    The second is None if the repository does not contain the release.
    """
    with ExitStack() as running:
        folder = Path(running.enter_context(TemporaryDirectory(prefix="strandline-bench-")))
        node = NodeProcess(folder / "store")
        node.start()
        running.callback(node.stop)
        present = Served(int(node.thrift_uri.rpartition(":")[2]), node.pid)
        fill(present.port)
        try:
            released = Served(*running.enter_context(released_node(folder / "0.2.0")))
        except NotInThisClone:
            yield present, None
            return
        fill(released.port)
        yield present, released


def _after(
    nodes: tuple[Served, Served | None],
    measure: Callable[[Served], float],
    *,
    better: Callable[[float, float], float],
    label: str,
) -> Measured:
    """Measure this release and 0.2.0 in turns, and return the best turn of each."""
    present, released = nodes
    values, references = [], []
    for _ in range(TURNS):
        values.append(measure(present))
        if released is not None:
            references.append(measure(released))
    value = reduce(better, values)
    if not references:
        return Measured(value, label=f"{label} (release 0.2.0 is not in this clone)")
    reference = reduce(better, references)
    target = reference / AS_GOOD if better is max else reference * AS_GOOD
    return Measured(value, reference=reference, label=label, target=target)


@benchmark(group="metastore", name="get_table after 0.2.0", unit="1/s", better="higher")
def get_table_rate_after_0_2_0() -> list[Measured]:
    """Calls of ``get_table`` per second. The reference is release 0.2.0."""

    def prepared(node: Served) -> float:
        return prepared_rate(node.port, seconds=SECONDS / TURNS)

    def apache(node: Served) -> float:
        return apache_rate(node.port, seconds=SECONDS / TURNS)

    with _releases() as nodes:
        return [
            _after(nodes, prepared, better=max, label="prepared request bytes, one connection"),
            _after(nodes, apache, better=max, label="Apache Thrift client, four processes"),
        ]


@benchmark(group="metastore", name="get_table latency after 0.2.0", unit="µs", better="lower")
def get_table_latency_after_0_2_0() -> list[Measured]:
    """Prepared request bytes on one connection. The reference is release 0.2.0.

    The processor time of the node is the value that other load on the machine affects least.
    """

    def p50(node: Served) -> float:
        return latencies(node.port)[ANSWERS // 2]

    def p99(node: Served) -> float:
        return latencies(node.port)[ANSWERS * 99 // 100]

    def processor_time(node: Served) -> float:
        before = node.cpu_seconds()
        latencies(node.port)
        return (node.cpu_seconds() - before) / (ANSWERS + WARM_UP) * 1e6

    with _releases() as nodes:
        return [
            _after(nodes, p50, better=min, label="p50"),
            _after(nodes, p99, better=min, label="p99"),
            _after(nodes, processor_time, better=min, label="processor time of the node"),
        ]
