"""A node and Hive's metastore, with the same objects, on databases of one durable PostgreSQL."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from bench.ddl import AT_ONCE, new_table
from bench.peers.metastore_calls import (
    MANY_PARTITIONS,
    PARTITIONS,
    SCHEMA,
    TRANSACTIONAL,
    Connection,
    make_partitioned,
    make_schema,
    table,
)
from bench.peers.windows import MOST_WINDOWS, settled
from strandline.cli.demo.node_process import NodeProcess
from strandline.config import Settings
from strandline.node import Node
from tests.servers.hive_metastore import hive_metastore
from tests.servers.postgresql import PostgresServer

PROCESSES = 4


@dataclass(frozen=True)
class Pair:
    """The Thrift ports of the servers, the address of another database, and a folder.

    The catalog of ``ours`` has no delay: a change returns as soon as in Hive, and each read asks
    the database whether anything was committed. That of ``ours_delayed`` has the default delay of a
    server, so reads are answered from memory.
    """

    ours: int
    ours_delayed: int
    hive: int
    database: str
    folder: Path


@cache
def running() -> Pair:
    """Return the pair of this process. The first call starts it; it stops at process exit."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strandline-bench-")))
        server = PostgresServer(durable=True)
        stack.callback(server.remove)
        (folder / "hive").mkdir()
        hive = stack.enter_context(
            hive_metastore(folder / "hive", transactions=True, server=server)
        )
        ours = _start_node(server, folder / "ours", stack, settings=AT_ONCE)
        delayed = _start_node(server, folder / "delayed", stack, settings=Settings())
        for port in (ours, delayed, hive):
            _fill(port)
        atexit.register(stack.pop_all().close)
        return Pair(ours, delayed, hive, server.url(), folder)


def _start_node(
    server: PostgresServer, folder: Path, stack: ExitStack, *, settings: Settings = AT_ONCE
) -> int:
    folder.mkdir(exist_ok=True)
    address, warehouse = server.new_database(), str(folder / "warehouse")
    with Node.open(address, settings=replace(settings, warehouse=warehouse)) as made:
        made.session(user="bench").execute(new_table(TRANSACTIONAL))
    node = NodeProcess(address, log=folder / "node.log")
    node.start()
    stack.callback(node.stop)
    return int(node.thrift_uri.rpartition(":")[2])


def _fill(port: int) -> None:
    connection = Connection(port)
    make_schema(connection, SCHEMA)
    connection.call("create_table", tbl=table("t", columns=20))
    make_partitioned(connection, table("p1000"), PARTITIONS)
    make_partitioned(connection, table("p10000"), MANY_PARTITIONS)


class Clients:
    """The client processes of one operation. Each has its own connection to ``place``."""

    def __init__(self, operation: str, place: int | str) -> None:
        command = [sys.executable, "-m", "bench.peers.metastore_calls", operation, str(place)]
        self._processes = [
            subprocess.Popen(
                [*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for number in range(PROCESSES)
        ]

    def __enter__(self) -> Clients:
        self._answers()  # each process writes a line when it is ready
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.communicate()

    def rate(self, seconds: float) -> float:
        """Measure one window and return the calls per second of all clients together."""
        self._step("prepare")
        made: list[tuple[int, float]] = self._step("run", seconds)
        self._step("clean")
        return sum(calls / spent for calls, spent in made)

    def _step(self, *step: object) -> list[Any]:
        for process in self._processes:
            assert process.stdin is not None
            print(json.dumps(step), file=process.stdin, flush=True)
        return self._answers()

    def _answers(self) -> list[Any]:
        lines = []
        for process in self._processes:
            assert process.stdout is not None
            if not (line := process.stdout.readline()):
                raise RuntimeError("a client process ended; its error is above")
            lines.append(json.loads(line))
        return lines


def rate(operation: str, place: int | str, *, most: int = MOST_WINDOWS) -> float:
    """Return the calls per second of four client processes, once the rate has settled."""
    with Clients(operation, place) as clients:
        return settled(clients.rate, most=most)
