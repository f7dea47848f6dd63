"""A client process that measures one call of the Hive Metastore protocol, or of the database.

Requests are prepared as bytes, and the client only checks the length and the first field of an
answer. So it measures the server. The process reads one line of JSON for each step
(``["prepare"]``, ``["run", SECONDS]`` or ``["clean"]``) and answers with one line: null, or the
number of calls and their seconds. Only ``run`` is timed.

Objects have HMSBench's shape: a table of one column ``name`` with the partition key ``date``. The
table ``t`` has twenty columns.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from itertools import count
from typing import Any

import psycopg

from bench.peers import apache_client
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.messages import CALL, REPLY, decode_head, encode_message
from strandline.metastore.thrift.scanner import Scanner
from tests.servers.thrift_client import decode_result

SCHEMA = "bench"
PARTITIONS = 1_000
MANY_PARTITIONS = 10_000
TABLES = 1_000
MOST_OPENED = 1_000
"""The maximum of transactions that one request opens."""
TRANSACTIONAL = "transactional"
"""A transactional table in the schema ``default``, created before the node starts."""
PATIENCE_SECONDS = 600


def prepared(method: str, **arguments: object) -> bytes:
    """Return the bytes of a call, with the sequence id 0."""
    return encode_message(CALL, method, 0, HIVE_CODEC.encode_args(method, arguments))


class Connection:
    """Sends prepared requests and waits for their answers.

    A call takes two system calls, because the client shares the machine with the server and should
    use little of it. (A timeout of Python's socket would add one to each of these.)
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        patience = struct.pack("ll", PATIENCE_SECONDS, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self._buffer = bytearray(1 << 18)
        self._lengths: dict[bytes, int] = {}

    def call(self, method: str, **arguments: object) -> Any:
        """Call ``method`` and return its result. Raises the exception in the answer."""
        return decoded(method, self.answer(prepared(method, **arguments)))

    def ask(self, request: bytes) -> memoryview:
        """Send a request and wait for its answer. All answers to a method must have one length.

        Returns a short answer, valid until the next one. The parts of a long one overwrite each
        other.

        Raises the exception in the first answer to a method, and RuntimeError if a later one fails.
        """
        name = request[8 : 8 + int.from_bytes(request[4:8], "big")]
        length = self._lengths.get(name)
        if length is None:
            answer = self.answer(request)
            decoded(name.decode(), answer)
            self._lengths[name] = len(answer)
            return memoryview(answer)
        self._socket.sendall(request)
        buffer, received = self._buffer, self._receive()
        body = 12 + len(name)
        while received < min(length, body + 3):
            received += self._receive(at=received)
        is_reply = buffer[3] == REPLY
        if not is_reply or not (buffer[body] == 0 or buffer[body + 1 : body + 3] == b"\0\0"):
            raise RuntimeError(f"{name.decode()} failed: {bytes(buffer[:received])!r}")
        while received < length:
            received += self._receive()
        return memoryview(buffer)[:length]

    def answer(self, request: bytes) -> bytes:
        """Send a request and return the message that answers it."""
        self._socket.sendall(request)
        scanner = Scanner(max_values=sys.maxsize)
        while (answer := scanner.next_message()) is None:
            scanner.feed(bytes(self._buffer[: self._receive()]))
        return answer

    def _receive(self, *, at: int = 0) -> int:
        """Receive bytes into the buffer at ``at``, and return their number."""
        try:
            received = self._socket.recv_into(memoryview(self._buffer)[at:])
        except BlockingIOError:
            raise TimeoutError(f"no answer came for {PATIENCE_SECONDS} s") from None
        if not received:
            raise ConnectionError("the server closed the connection")
        return received


def decoded(method: str, answer: bytes) -> Any:
    """Return the result in an answer."""
    return decode_result(method, answer, at=decode_head(answer).body)


def table(
    name: str, *, schema: str = SCHEMA, columns: int = 1, external: bool = False
) -> dict[str, Any]:
    """Return a table with the partition key ``date`` and no partitions yet."""
    serde = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
    return {
        "tableName": name,
        "dbName": schema,
        "owner": "bench",
        "sd": {
            "cols": [
                {"name": f"name{number or ''}", "type": "string"} for number in range(columns)
            ],
            "inputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
            "outputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
            "serdeInfo": {"serializationLib": serde, "parameters": {}},
            "numBuckets": -1,
            "bucketCols": [],
            "sortCols": [],
            "parameters": {},
        },
        "partitionKeys": [{"name": "date", "type": "string"}],
        "parameters": {"EXTERNAL": "TRUE"} if external else {},
        "tableType": "EXTERNAL_TABLE" if external else "MANAGED_TABLE",
    }


def partitions(of: dict[str, Any], first: int, last: int) -> list[dict[str, Any]]:
    """Return partitions ``d00000`` and so on of a table, at locations that the server chooses."""
    return [
        {
            "values": [f"d{number:05}"],
            "dbName": of["dbName"],
            "tableName": of["tableName"],
            "sd": of["sd"],
            "parameters": {},
        }
        for number in range(first, last)
    ]


def make_schema(connection: Connection, name: str) -> None:
    """Create a schema at the location that the server chooses."""
    connection.call("create_database", database={"name": name, "parameters": {}})


def make_partitioned(connection: Connection, made: dict[str, Any], size: int) -> None:
    """Create a table with ``size`` partitions."""
    connection.call("create_table", tbl=made)
    for first in range(0, size, PARTITIONS):
        connection.call("add_partitions", new_parts=partitions(made, first, first + PARTITIONS))


class Operation(ABC):
    """A measured call, made by client ``number``. ``place`` is the port of the server."""

    def __init__(self, place: str, number: int) -> None:
        self.connection = Connection(int(place))
        self.number = number
        self._names = count()

    def new_name(self) -> str:
        """Return a name that no other client and no earlier call uses."""
        return f"{type(self).__name__.lower()}_{self.number}_{next(self._names)}"

    def prepare(self, calls: int) -> None:  # noqa: B027  # most operations need none
        """Prepare a window in which ``calls`` calls are expected."""

    @abstractmethod
    def call(self) -> bool:
        """Make the call. Return False, without a call, if no prepared object is left."""

    def clean(self) -> None:  # noqa: B027  # most operations need none
        """Clean up after a window."""


class Read(Operation):
    """A call that always sends the same request."""

    request: bytes

    def call(self) -> bool:
        self.connection.ask(self.request)
        return True


class GetTable(Read):
    request = prepared("get_table", dbname=SCHEMA, tbl_name="t")


class GetTableThroughApache(Operation):
    """The same call through the Apache Thrift client."""

    def __init__(self, place: str, number: int) -> None:
        super().__init__(place, number)
        self.stack = ExitStack()
        self.client = self.stack.enter_context(apache_client.connect(int(place)))

    def call(self) -> bool:
        self.client.get_table(SCHEMA, "t")
        return True


class GetPartitions(Read):
    request = prepared("get_partitions", db_name=SCHEMA, tbl_name="p1000", max_parts=-1)


class GetPartitionNames(Read):
    request = prepared("get_partition_names", db_name=SCHEMA, tbl_name="p1000", max_parts=-1)


class GetPartitionsByFilter(Read):
    """A hundred of ten thousand partitions."""

    request = prepared(
        "get_partitions_by_filter",
        db_name=SCHEMA,
        tbl_name="p10000",
        filter='date >= "d04200" and date < "d04300"',
        max_parts=-1,
    )


class Prepared(Operation):
    """A call that needs a new object each time."""

    requests: list[bytes]

    def call(self) -> bool:
        if not self.requests:
            return False
        self.connection.ask(self.requests.pop())
        return True


class CreateTable(Prepared):
    def prepare(self, calls: int) -> None:
        self.made = [self.new_name() for _ in range(calls)]
        self.requests = [prepared("create_table", tbl=table(name)) for name in self.made]

    def clean(self) -> None:
        for name in self.made[len(self.requests) :]:  # `call` takes requests from the end
            self.connection.call("drop_table", dbname=SCHEMA, name=name, deleteData=True)


class AddPartitions(Prepared):
    """Adds a thousand partitions to a table without partitions."""

    def prepare(self, calls: int) -> None:
        self.made = [table(self.new_name()) for _ in range(calls)]
        for made in self.made:
            self.connection.call("create_table", tbl=made)
        self.requests = [
            prepared("add_partitions", new_parts=partitions(made, 0, PARTITIONS))
            for made in self.made
        ]

    def clean(self) -> None:
        for made in self.made:
            name = made["tableName"]
            self.connection.call("drop_table", dbname=SCHEMA, name=name, deleteData=True)


class DropDatabase(Prepared):
    """Drops a schema with a thousand tables; one per window, regardless of the expected calls."""

    def prepare(self, calls: int) -> None:
        name = self.new_name()
        make_schema(self.connection, name)
        for number in range(TABLES):
            self.connection.call("create_table", tbl=table(f"t{number}", schema=name))
        self.requests = [prepared("drop_database", name=name, deleteData=True, cascade=True)]


class RenameManaged(Operation):
    """Renames a table with a thousand partitions and their folders to another name or back."""

    external = False

    def __init__(self, place: str, number: int) -> None:
        super().__init__(place, number)
        first, second = self.new_name(), self.new_name()
        make_partitioned(self.connection, table(first, external=self.external), PARTITIONS)
        self.to_second = self._rename(first, second)
        self.to_first = self._rename(second, first)

    def _rename(self, name: str, new_name: str) -> bytes:
        """Rename a table, otherwise unchanged, and return the request."""
        existing = self.connection.call("get_table", dbname=SCHEMA, tbl_name=name)
        new_table = {**existing, "tableName": new_name}
        request = prepared("alter_table", dbname=SCHEMA, tbl_name=name, new_tbl=new_table)
        self.connection.ask(request)
        return request

    def call(self) -> bool:
        self.connection.ask(self.to_second)
        self.to_second, self.to_first = self.to_first, self.to_second
        return True


class RenameExternal(RenameManaged):
    external = True


class OpenAndCommit(Operation):
    """Opens and commits an empty transaction. Its id is the last field of answer and request."""

    opening = prepared("open_txns", rqst={"num_txns": 1, "user": "bench", "hostname": "localhost"})
    committing = prepared("commit_txn", rqst={"txnid": 0})

    def call(self) -> bool:
        txn_id = self.connection.ask(self.opening)[-10:-2]
        self.connection.ask(b"".join((self.committing[:-10], txn_id, self.committing[-2:])))
        return True


class AllocateWriteId(Prepared):
    """Allocates a write id of one table for an open transaction."""

    def prepare(self, calls: int) -> None:
        self.txn_ids = [
            txn_id
            for first in range(0, calls, MOST_OPENED)
            for txn_id in opened(self.connection, min(MOST_OPENED, calls - first))
        ]
        place = {"dbName": "default", "tableName": TRANSACTIONAL}
        self.requests = [
            prepared("allocate_table_write_ids", rqst={**place, "txnIds": [txn_id]})
            for txn_id in self.txn_ids
        ]

    def clean(self) -> None:
        self.connection.call("abort_txns", rqst={"txn_ids": self.txn_ids})


class Insert(Operation):
    """Inserts a row in one transaction. ``place`` is the address of the database."""

    def __init__(self, place: str, number: int) -> None:
        self.number = number
        self.database = psycopg.connect(place, autocommit=True)
        # A table for each client: in PostgreSQL, concurrent CREATE TABLE IF NOT EXISTS may fail.
        self.database.execute(f"CREATE TABLE IF NOT EXISTS inserted_{number} (a bigint, b bigint)")
        self.insert = f"INSERT INTO inserted_{number} VALUES (%s, %s)"

    def call(self) -> bool:
        self.database.execute(self.insert, (self.number, 1))
        return True


def opened(connection: Connection, number: int) -> list[int]:
    """Open ``number`` transactions and return their ids."""
    request = {"num_txns": number, "user": "bench", "hostname": "localhost"}
    txn_ids: list[int] = connection.call("open_txns", rqst=request)["txn_ids"]
    return txn_ids


OPERATIONS = {
    operation.__name__: operation
    for operation in (
        GetTable,
        GetTableThroughApache,
        GetPartitions,
        GetPartitionNames,
        GetPartitionsByFilter,
        CreateTable,
        AddPartitions,
        DropDatabase,
        RenameManaged,
        RenameExternal,
        OpenAndCommit,
        AllocateWriteId,
        Insert,
    )
}


def run(operation: Operation, seconds: float) -> tuple[int, float]:
    """Call until the time is over or no prepared object is left. Return the calls and seconds."""
    calls, began, spent = 0, time.perf_counter(), 0.0
    while spent < seconds and operation.call():
        calls += 1
        spent = time.perf_counter() - began
    return calls, spent


def main(name: str, place: str, number: int) -> None:
    """Run each step that comes on standard input."""
    operation = OPERATIONS[name](place, number)
    print("null", flush=True)
    expected = 10
    for line in sys.stdin:
        step, *arguments = json.loads(line)
        answer = None
        if step == "prepare":
            operation.prepare(expected)
        elif step == "run":
            (seconds,) = arguments
            answer = calls, spent = run(operation, seconds)
            expected = 1 + int(1.3 * calls * seconds / spent)
        else:
            operation.clean()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
