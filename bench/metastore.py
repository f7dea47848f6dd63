"""The metastore as its clients feel it: ``get_table`` through the Hive Metastore protocol.

The reference of both rows is Hive's own metastore 2.3.10, asked the same in the same run.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hive_metastore.ttypes import (
    Database,
    FieldSchema,
    SerDeInfo,
    StorageDescriptor,
    Table,
)

from bench.peers.apache_client import connect
from bench.peers.hive_peer import hive_metastore
from bench.registry import Measured, benchmark
from strandline.cli.demo.node_process import NodeProcess

SECONDS = 4.0
WARM_UP = 500
PROCESSES = 4
COLUMNS = 20
RECEIVE_BYTES = 1 << 16


def prepared_request(name: bytes = b"t", schema: bytes = b"bench") -> bytes:
    """The bytes of ``get_table(schema, name)``: strict binary, sequence id 0."""

    def string(field: int, value: bytes) -> bytes:
        return b"\x0b" + field.to_bytes(2, "big") + len(value).to_bytes(4, "big") + value

    head = b"\x80\x01\x00\x01" + (9).to_bytes(4, "big") + b"get_table" + b"\x00\x00\x00\x00"
    return head + string(1, schema) + string(2, name) + b"\x00"


def create_table(port: int) -> None:
    """A table of twenty columns, made through the Apache Thrift client."""
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


def prepared_rate(port: int) -> float:
    """Answers a second on one connection, one request after the other, for `SECONDS`."""
    request = prepared_request()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request)
        # Answers to one request have one length; the first is known to be whole when it pauses.
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
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            ask()
            count += 1
        return count / (time.perf_counter() - began)


def apache_rate(port: int) -> float:
    """Answers a second of four processes with the Apache Thrift client, for `SECONDS` each."""
    command = [sys.executable, "-m", "bench.peers.apache_client", str(port), str(SECONDS)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    return sum(float(process.communicate()[0]) for process in running)


@contextmanager
def _servers() -> Iterator[tuple[int, int]]:
    """The Thrift ports of a node and of Hive's metastore, both holding the table."""
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as name:
        folder = Path(name)
        (folder / "hive").mkdir()
        node = NodeProcess(folder / "store")
        node.start()
        try:
            with hive_metastore(folder / "hive") as hive:
                ours = int(node.thrift_uri.rpartition(":")[2])
                for port in (ours, hive):
                    create_table(port)
                yield ours, hive
        finally:
            node.stop()


@benchmark(group="metastore", name="get_table", unit="1/s", better="higher")
def get_table() -> list[Measured]:
    """`get_table` a second: prepared request bytes on one connection; Apache Thrift clients."""
    with _servers() as (ours, hive):
        return [
            Measured(
                prepared_rate(ours),
                reference=prepared_rate(hive),
                label="prepared request bytes, one connection",
            ),
            Measured(
                apache_rate(ours),
                reference=apache_rate(hive),
                label="Apache Thrift client, four processes",
            ),
        ]
