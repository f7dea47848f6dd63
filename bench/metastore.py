"""The metastore as clients see it: ``get_table`` through the Hive Metastore protocol.

The reference is a node of release 0.2.0 with the same requests in the same run. `bench.peer`
compares with Hive's own metastore.
"""

from __future__ import annotations

import functools
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil
from hive_metastore.ttypes import Database, FieldSchema, SerDeInfo, StorageDescriptor, Table

from bench.peers.apache_client import connect
from bench.peers.hive_pair import Clients
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
COLUMNS = 20
RECEIVE_BYTES = 1 << 16


def prepared_request(name: bytes = b"t", schema: bytes = b"bench") -> bytes:
    """Return the bytes of ``get_table(schema, name)``: strict binary, sequence id 0."""

    def string(field: int, value: bytes) -> bytes:
        return b"\x0b" + field.to_bytes(2, "big") + len(value).to_bytes(4, "big") + value

    head = b"\x80\x01\x00\x01" + (9).to_bytes(4, "big") + b"get_table" + b"\x00\x00\x00\x00"
    return head + string(1, schema) + string(2, name) + b"\x00"


def create_table(port: int) -> None:
    """Create a table of twenty columns through the Apache Thrift client."""
    with connect(port) as client:
        client.create_database(Database("bench", "", f"file:{tempfile.gettempdir()}/bench.db", {}))
        columns = [FieldSchema(f"column_{n}", "string", None) for n in range(COLUMNS)]
        serde = SerDeInfo(None, "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe", {})
        descriptor = StorageDescriptor(
            cols=columns,
            inputFormat="org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
            outputFormat="org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
            serdeInfo=serde,
            numBuckets=-1,
            bucketCols=[],
            sortCols=[],
            parameters={},
        )
        table = Table(
            tableName="t",
            dbName="bench",
            owner="bench",
            sd=descriptor,
            partitionKeys=[],
            parameters={},
            tableType="MANAGED_TABLE",
        )
        client.create_table(table)


@contextmanager
def prepared_asker(port: int) -> Iterator[Callable[[], None]]:
    """A function that sends one prepared request on one connection and waits for its answer."""
    request = prepared_request()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request)
        # All answers to a request have the same length; the first is complete when no more comes.
        connection.settimeout(1.0)
        length = 0
        while True:
            try:
                length += len(connection.recv(RECEIVE_BYTES))
            except TimeoutError:
                break
        connection.settimeout(30.0)

        def ask() -> None:
            connection.sendall(request)
            left = length
            while left:
                left -= len(connection.recv(left))

        for _ in range(WARM_UP):
            ask()
        yield ask


def prepared_rate(port: int, *, seconds: float) -> float:
    """Return the answers per second on one connection, one request after the other."""
    with prepared_asker(port) as ask:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            ask()
            count += 1
        return count / (time.perf_counter() - began)


def latencies(port: int) -> list[float]:
    """Return the sorted microseconds of `ANSWERS` answers on one connection, in sequence."""
    with prepared_asker(port) as ask:
        times = []
        for _ in range(ANSWERS):
            began = time.perf_counter()
            ask()
            times.append((time.perf_counter() - began) * 1e6)
        return sorted(times)


def apache_rate(port: int, *, seconds: float) -> float:
    """Return the answers per second of four processes with the Apache Thrift client."""
    with Clients("GetTableThroughApache", port) as clients:
        return clients.rate(seconds)


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
        create_table(present.port)
        try:
            released = Served(*running.enter_context(released_node(folder / "0.2.0")))
        except NotInThisClone:
            yield present, None
            return
        create_table(released.port)
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
    value = functools.reduce(better, values)
    if not references:
        return Measured(value, label=f"{label} (release 0.2.0 is not in this clone)")
    reference = functools.reduce(better, references)
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
