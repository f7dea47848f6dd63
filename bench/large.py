"""Large requests of one client, and how they delay other clients.

A small client in a separate process requests one table continuously (`bench.peers.prober`). Its
answers are timed while the node is idle otherwise ("calm") and during each large request. Large
requests are encoded in advance and their answers are not decoded, so that the benchmark measures
the node and not the clients.

A limit is a multiple of the calm p99 of the same run, because absolute times depend on the machine.
The first request is the slowest, and it is short: of the 250 answers during half a second, the 99th
percentile is the third longest. So each work is measured in two ways, both with the limit:

* with repetitions, until `ANSWERS` answers of the small client are timed;
* only as the first request. For this, a node is started `STARTS` times. Each node gets one request
  of each set of works that request the same things (`Work.of`). All answers of the small client
  during the first requests of a work count.

The time of a work is the time of the very first request.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil

from bench.ddl import new_table
from bench.registry import Measured, benchmark
from strandline.catalog.commands import CreateSchema, DropSchema
from strandline.cli.demo.node_process import NodeProcess
from strandline.metastore.session import HttpSession
from strandline.metastore.session.calls import CALLS
from strandline.metastore.store.rows import ColumnStatistics, DataFile
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.messages import CALL, REPLY, encode_message
from tests.servers.thrift_client import ThriftClient

TABLES = 10_000
FILES = 50_000
READERS = 8
PARTITIONS = 110_000
ALTERED = 5_000
EVENTS = 7_000
PIECE = 10_000
ANSWERS = 1_000
STARTS = 8
CALM_SECONDS = 3.0
TIMEOUT = 600.0
TIMES_CALM = 10.0
LONGEST_MS = 50.0
MEMORY = 1.5
STARTING_SECONDS = 20.0
"""How long a starting node may check a large database in the background."""
IDLE_SECONDS = 10.0
IDLE_PERCENT = 0.5

SD: dict[str, Any] = {
    "cols": [{"name": f"c{n}", "type": "string"} for n in range(5)],
    "inputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
    "outputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
    "serdeInfo": {
        "serializationLib": "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
        "parameters": {"serialization.format": "1"},
    },
    "numBuckets": -1,
    "bucketCols": [],
    "sortCols": [],
    "parameters": {},
    "compressed": False,
}


class Store:
    """A node that serves a large store, and the requests that it gets."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.port = int(node.thrift_uri.rpartition(":")[2])

    def start_anew(self) -> None:
        """Restart the node on the same ports, and wait until its background checks are done."""
        self.node.stop()
        self.node.start()
        time.sleep(STARTING_SECONDS)

    def thrift(self) -> ThriftClient:
        """Return a Hive client."""
        return ThriftClient("127.0.0.1", self.port, timeout=TIMEOUT)

    def session(self) -> HttpSession:
        """Return a transactional client."""
        return HttpSession(self.node.http_uri, user="bench", timeout=TIMEOUT)

    def memory(self) -> float:
        """Return the memory of the node and its child processes, in MiB.

        Pages that they share count once.
        """
        node = psutil.Process(self.node.pid)
        total = 0
        for process in (node, *node.children(recursive=True)):
            try:
                total += process.memory_full_info().pss
            except psutil.NoSuchProcess:
                continue
        return total / 2**20

    def fill(self) -> None:
        """Create the small client's table, a table of many files, and two of many partitions."""
        with self.session() as session, self.thrift() as client:
            session.execute([CreateSchema(name="bench"), CreateSchema(name="many")])
            session.execute(new_table("files", "bench"))
            columns = [{"name": f"column_{n}", "type": "string"} for n in range(20)]
            client.call("create_table", tbl=self.table("t", columns, partitioned=False))
            for name, count in (("parts", PARTITIONS), ("altered", ALTERED)):
                client.call("create_table", tbl=self.table(name, SD["cols"], partitioned=True))
                for first in range(0, count, PIECE):
                    added = [
                        self.partition(name, n) for n in range(first, min(first + PIECE, count))
                    ]
                    client.call("add_partitions", new_parts=added)
            table_id = session.table("bench.files").descriptor.id
            for first in range(0, FILES, PIECE):
                txn_id = session.begin().txn_id
                files = [data_file(n) for n in range(first, first + PIECE)]
                session.stage(txn_id, table_id, add=files)
                session.commit(txn_id)

    def table(self, name: str, columns: Any, *, partitioned: bool) -> dict[str, Any]:
        """Return a table as a client sends it."""
        return {
            "tableName": name,
            "dbName": "bench",
            "owner": "bench",
            "sd": {**SD, "cols": columns},
            "partitionKeys": [{"name": "p", "type": "string"}] if partitioned else [],
            "parameters": {},
            "tableType": "MANAGED_TABLE",
        }

    def partition(self, table: str, number: int, **parameters: str) -> dict[str, Any]:
        """Return a partition as a client sends it, at a location where no folder is created."""
        return {
            "values": [f"{number:06d}"],
            "dbName": "bench",
            "tableName": table,
            "sd": {**SD, "location": f"s3a://elsewhere/{table}/p={number:06d}"},
            "parameters": {"written": "1", **parameters},
        }

    def thrift_call(self, method: str, **args: Any) -> Callable[[], None]:
        """Return a function that calls ``method`` and reads the answer without decoding it.

        Each call uses a new connection. A second, small request follows, and its answer marks the
        end of the first answer.
        """
        message = encode_message(CALL, method, 1, HIVE_CODEC.encode_args(method, args))
        small = encode_message(CALL, "getName", 2, HIVE_CODEC.encode_args("getName", {}))
        small_answer = self._exchange(small, None)

        def call() -> None:
            answer = self._exchange(message + small, small_answer)
            assert answer[3] == REPLY, answer[:400]

        return call

    def _exchange(self, request: bytes, end: bytes | None) -> bytes:
        """Send ``request`` and read until ``end``. Return the first bytes of the answers."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT) as connection:
            connection.sendall(request)
            first = tail = connection.recv(1 << 20)
            while end is not None and not tail.endswith(end):
                data = connection.recv(1 << 20)
                assert data, "the node closed the connection"
                tail = (tail + data)[-len(end) :]
            return first

    def http_call(self, name: str, **arguments: Any) -> Callable[[], None]:
        """Return a function that makes the call ``name`` and reads the answer, not decoding it."""
        call = CALLS[name]
        body = call.write_arguments(arguments)
        headers = {"Content-Type": call.request_type, "X-Strandline-User": "bench"}
        request = urllib.request.Request(self.node.http_uri + call.path, body, headers)

        def send() -> None:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                while answer.read(1 << 20):
                    pass

        return send


def data_file(number: int) -> DataFile:
    """Return a file as Strandline's Spark code adds it, with bounds of three columns."""
    return DataFile(
        file_id=number + 1,
        path=f"data/{number // 1000:03d}/part-{number:08d}-5f2c0ad1.parquet",
        rows=10_000,
        bytes=1_234_567,
        statistics=tuple(
            ColumnStatistics(column_id=c, lower=str(number), upper=str(number + 9_999), nulls=0)
            for c in (1, 2, 3)
        ),
    )


class Prober:
    """The small client; see `bench.peers.prober`."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "bench.peers.prober", str(port), "bench", "t"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lap()

    def lap(self) -> list[float]:
        """Return the milliseconds of each answer since the previous lap."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        times: list[float] = json.loads(self._process.stdout.readline())
        return times

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass(frozen=True)
class Work:
    """A large request, or several at the same time."""

    calls: list[Callable[[], None]]
    """The requests that its clients make at the same time, each in a thread."""
    of: str
    """The things that it requests. After the first request, the node has them in memory."""
    limit: float | None = None
    """The target for its duration, in seconds."""
    writes: bool = False
    once: bool = False
    """Whether it cannot be repeated."""


def together(calls: Sequence[Callable[[], None]]) -> float:
    """Run ``calls`` concurrently, each in a thread, and return the seconds until all are done."""
    began = time.perf_counter()
    with ThreadPoolExecutor(len(calls)) as threads:
        for running in [threads.submit(call) for call in calls]:
            running.result()
    return time.perf_counter() - began


def asked_again(work: Work, prober: Prober) -> tuple[float, list[float], list[float]]:
    """Run ``work`` repeatedly until `ANSWERS` answers of the small client are timed.

    Return the seconds of the first run, the small client's times during it, and all its times.
    """
    prober.lap()
    seconds = together(work.calls)
    first = prober.lap()
    times = [*first]
    while len(times) < ANSWERS and not work.once:
        prober.lap()
        together(work.calls)
        times += prober.lap()
    return seconds, first, times


def p99(times: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(times, n=100, method="inclusive")[98]


@contextmanager
def filled() -> Iterator[Store]:
    """A node in a separate process on a filled store, restarted after the store was filled."""
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as folder:
        node = NodeProcess(Path(folder) / "store")
        node.start()
        try:
            store = Store(node)
            store.fill()
            store.start_anew()
            yield store
        finally:
            node.stop()


def works(store: Store) -> dict[str, Work]:
    """Return the works, by their names in the rows."""
    with store.session() as session:
        snapshot = session.open(["bench.files"])
        table_id = snapshot.table("bench.files").descriptor.id
        write_ids = snapshot.write_ids_of("bench.files")
    tables = [new_table(f"table_{n}", "many") for n in range(TABLES)]
    altered = [
        store.thrift_call(
            "alter_partitions",
            db_name="bench",
            tbl_name="altered",
            new_parts=[store.partition("altered", n, written=written) for n in range(ALTERED)],
        )
        for written in ("2", "3")
    ]
    changes = cycle(altered)
    files = store.http_call("files", table_id=table_id, write_ids=write_ids, bounds=())
    with store.thrift() as client:
        head = client.call("get_current_notificationEventId")["eventId"]
    # The events of the tables created by the first work; each contains the table's definition.
    events = {"lastEvent": head, "maxEvents": EVENTS}
    named = {"db_name": "bench", "tbl_name": "parts", "max_parts": -1}
    columns = [*SD["cols"], {"name": "added", "type": "string"}]
    widened = {
        "dbname": "bench",
        "tbl_name": "parts",
        "new_tbl": store.table("parts", columns, partitioned=True),
    }
    dropped = DropSchema(name="many", cascade=True)
    return {
        f"{TABLES:,} tables in one batch": Work(
            [store.http_call("execute", commands=tables, timeout=TIMEOUT)],
            "tables",
            writes=True,
            once=True,
        ),
        f"alter_partitions of {ALTERED:,}": Work(
            [lambda: next(changes)()], "changes", limit=2.0, writes=True
        ),
        f"files of {FILES:,}": Work([files], "files", limit=1.0),
        f"files of {FILES:,}, {READERS} readers": Work([files] * READERS, "files"),
        "history": Work([store.http_call("history", start=1, end=None)], "history"),
        f"names of {PARTITIONS:,} partitions": Work(
            [store.thrift_call("get_partition_names", **named)], "partitions"
        ),
        f"{PARTITIONS:,} partitions": Work(
            [store.thrift_call("get_partitions", **named)], "partitions"
        ),
        f"one of {PARTITIONS:,} partitions, by a filter": Work(
            [store.thrift_call("get_partitions_by_filter", **named, filter="p = '000042'")],
            "a filter",
            limit=0.2,
        ),
        f"get_next_notification of {EVENTS:,}": Work(
            [store.thrift_call("get_next_notification", rqst=events)], "events", limit=0.5
        ),
        f"a column for {PARTITIONS:,} partitions": Work(
            [store.thrift_call("alter_table_with_cascade", **widened, cascade=True)],
            "columns",
            writes=True,
            once=True,
        ),
        f"drop of {TABLES:,} tables": Work(
            [store.http_call("execute", commands=[dropped], timeout=TIMEOUT)],
            "drop",
            writes=True,
            once=True,
        ),
    }


def some_of_each(asked: Mapping[str, Work], number: int) -> Iterator[tuple[str, Work]]:
    """Iterate over works that read: one of each `Work.of`, chosen by ``number``."""
    by_what: dict[str, list[str]] = defaultdict(list)
    for what, work in asked.items():
        if not work.writes:
            by_what[work.of].append(what)
    for whats in by_what.values():
        what = whats[number % len(whats)]
        yield what, asked[what]


@dataclass
class Results:
    """The results: times of the small client in milliseconds, and rows of the other benchmarks."""

    calm: list[float] = field(default_factory=list)
    first: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    repeated: dict[str, list[float]] = field(default_factory=dict)
    work: list[Measured] = field(default_factory=list)
    memory: list[Measured] = field(default_factory=list)
    idle: list[Measured] = field(default_factory=list)


@cache
def measured() -> Results:
    """Return the results of all benchmarks of this group, measured once on one store."""
    results = Results()
    with filled() as store:
        node = psutil.Process(store.node.pid)
        asked = works(store)
        before = node.cpu_times()
        time.sleep(IDLE_SECONDS)
        after = node.cpu_times()
        spent = after.user + after.system - before.user - before.system
        results.idle.append(Measured(100 * spent / IDLE_SECONDS))
        with probing(store) as prober:
            results.calm += prober.lap()
            seen: set[str] = set()
            for what, work in asked.items():
                memory = store.memory()
                seconds, first, results.repeated[what] = asked_again(work, prober)
                if work.of not in seen:
                    results.first[what] += first
                seen.add(work.of)
                results.work.append(Measured(seconds, label=what, target=work.limit))
                time.sleep(CALM_SECONDS)
                results.memory.append(
                    Measured(store.memory(), reference=memory, label=what, target=memory * MEMORY)
                )
        for number in range(1, STARTS + 1):
            store.start_anew()
            with probing(store) as prober:
                results.calm += prober.lap()
                for what, work in some_of_each(asked, number):
                    prober.lap()
                    together(work.calls)
                    results.first[what] += prober.lap()
                    time.sleep(CALM_SECONDS)
    return results


@contextmanager
def probing(store: Store) -> Iterator[Prober]:
    """The small client, after `CALM_SECONDS` with a calm node."""
    prober = Prober(store.port)
    try:
        time.sleep(CALM_SECONDS)
        yield prober
    finally:
        prober.close()


def others(of: Callable[[Sequence[float]], float], limit: float) -> list[Measured]:
    """Return the rows of the small client; ``of`` maps its times to the value of a row."""
    results = measured()
    calm = of(results.calm)
    rows = [Measured(calm, label="calm", target=None)]
    for what, repeated in results.repeated.items():
        for label, times in ((f"{what}, first request", results.first[what]), (what, repeated)):
            rows.append(Measured(of(times), reference=calm, label=label, target=limit))
    return rows


@benchmark(group="large", name="get_table of another client, p99", unit="ms", better="lower")
def others_p99() -> list[Measured]:
    """During each large request. The reference is the value of the calm node."""
    return others(p99, TIMES_CALM * p99(measured().calm))


@benchmark(group="large", name="get_table of another client, longest", unit="ms", better="lower")
def others_longest() -> list[Measured]:
    """During each large request. The reference is the value of the calm node."""
    return others(max, LONGEST_MS)


@benchmark(group="large", name="the large work itself", unit="s", better="lower")
def the_work() -> list[Measured]:
    """From the first byte of the request to the last byte of the answer."""
    return measured().work


@benchmark(group="large", name="memory of the node after it", unit="MiB", better="lower")
def memory_after() -> list[Measured]:
    """Resident, including child processes. The reference is the memory just before the request."""
    return measured().memory


@benchmark(
    group="large", name="an idle node", unit="% of a core", better="lower", target=IDLE_PERCENT
)
def idle() -> list[Measured]:
    """Processor time of a node without requests."""
    return measured().idle
