"""Input that no client should send, at both ports of a real node, beside well-behaved clients.

A wrong call gets a short typed error, and changes nothing.
"""

from __future__ import annotations

import errno
import inspect
import json
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from strandline.cli.demo.node_process import NodeProcess
from strandline.metastore.hive.locks import NOT_ACQUIRED
from strandline.metastore.hive.registry import METHODS
from strandline.metastore.interface import Session
from strandline.metastore.session import HttpSession
from strandline.metastore.session.calls import CALLS, JSON_TYPE
from strandline.metastore.thrift import HIVE_CODEC, ApplicationException, ThriftException
from strandline.metastore.thrift.field_table import BOOL, DOUBLE, LIST, MAP, SET, STRING, STRUCT
from tests.end_to_end.mutations import http_message, thrift_message
from tests.servers.thrift_client import ThriftClient

MESSAGES, MANY_MESSAGES = 150, 10_000
"""Messages of each protocol."""
TURN = 10
"""Messages between two checks of the well-behaved clients."""
HALF_SENT = 30
"""Connections on which a message was begun and not completed."""
MORE_MEMORY = 128 << 20
"""Bytes by which the memory of a node may grow."""
CUT_OFF = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)
PATIENCE = 60.0
FULL = "this node has 1000 open connections"
FEW_DESCRIPTORS = 256
"""The default limit of open files; the node raises it itself."""
IDLE_CONNECTIONS = 1_200
"""Connections to each port, on which nothing is sent; a thousand are allowed."""
PARTITION = {
    "values": ["a"],
    "dbName": "kept",
    "tableName": "t",
    "sd": {"cols": [{"name": "a", "type": "int"}], "serdeInfo": {"parameters": {}}},
    "parameters": {},
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("fuzzed") / "lake")
    with few_descriptors():
        process.start()
    table = {
        "dbName": "kept",
        "tableName": "t",
        "sd": PARTITION["sd"],
        "partitionKeys": [{"name": "p", "type": "string"}],
    }
    try:
        with hive_client(process) as client:
            for name in ("kept", "fuzzed"):
                client.call("create_database", database={"name": name})
                client.call("create_table", tbl={**table, "dbName": name})
            client.call("add_partitions", new_parts=[PARTITION])
        yield process
    finally:
        process.stop()


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Let processes started in the block open only a few files at first; they may raise that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hive_client(node: NodeProcess) -> ThriftClient:
    return ThriftClient(*address(node.thrift_uri), timeout=PATIENCE)


def address(uri: str) -> tuple[str, int]:
    parts = urlsplit(uri)
    return str(parts.hostname), int(parts.port or 0)


def page(node: NodeProcess, path: str) -> httpx.Response:
    """A page of the node, which also fails for a moment if the machine is too busy to make it."""
    end = time.monotonic() + PATIENCE
    while True:
        answer = httpx.get(f"{node.http_uri}{path}", timeout=PATIENCE)
        if answer.status_code != 503 or time.monotonic() > end:
            return answer


class BehavedClients:
    """Clients of both protocols on permanent connections, and their expected answers."""

    def __init__(self, node: NodeProcess, stack: ExitStack) -> None:
        self._hive = stack.enter_context(hive_client(node))
        self._session = stack.enter_context(HttpSession(node.http_uri, user="ann"))
        self._expected = self._answers()

    def ask(self) -> None:
        """Assert that the clients are answered, and that the answers have not changed."""
        assert self._answers() == self._expected

    def _answers(self) -> list[object]:
        partition = {"db_name": "kept", "tbl_name": "t", "part_vals": ["a"]}
        return [
            self._hive.call("get_table", dbname="kept", tbl_name="t"),
            self._hive.call("get_partition", **partition),
            self._session.tables("kept"),
            self._session.table("kept.t").descriptor,
        ]


LONG = "n" * 100_000
TEN_MEGABYTES = "n" * 10_000_000
LONGEST_ANSWER = 5_000
"""Characters of an error: it must not repeat everything that a client sent."""
KEPT = {"db_name": "kept", "tbl_name": "t"}


def new_table(*, sd: dict[str, Any] | None = None, **fields: str) -> dict[str, Any]:
    """The arguments of a call that creates a table. Any: as the protocol has it."""
    storage = {"cols": [{"name": "a", "type": "int"}], "serdeInfo": {}}
    table = {"tableName": "new", "dbName": "kept", "partitionKeys": [], **fields}
    return {"tbl": {**table, "sd": {**storage, **(sd or {})}}}


def new_lock(**fields: str) -> dict[str, Any]:
    """The arguments of a call that takes a lock. Any: as the protocol has it."""
    component = {"type": 1, "level": 1, "dbname": fields.pop("dbname", "kept")}
    return {"rqst": {"component": [component], "user": "ann", "hostname": "h", **fields}}


LONG_NAMES: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "schema": lambda name: ("get_table", {"dbname": name, "tbl_name": "t"}),
    "table": lambda name: ("get_table", {"dbname": "kept", "tbl_name": name}),
    "new schema": lambda name: ("create_database", {"database": {"name": name}}),
    "new table": lambda name: ("create_table", new_table(tableName=name)),
    "new owner": lambda name: ("create_table", new_table(owner=name)),
    "owner of a schema": lambda name: (
        "create_database",
        {"database": {"name": "new", "ownerName": name}},
    ),
    "next owner of a schema": lambda name: (
        "alter_database",
        {"dbname": "fuzzed", "db": {"name": "fuzzed", "ownerName": name}},
    ),
    "next owner": lambda name: (
        "alter_table",
        {
            "dbname": "fuzzed",
            "tbl_name": "t",
            "new_tbl": {**new_table(owner=name)["tbl"], "dbName": "fuzzed", "tableName": "t"},
        },
    ),
    "new column": lambda name: (
        "create_table",
        new_table(sd={"cols": [{"name": name, "type": "int"}]}),
    ),
    "new type": lambda name: (
        "create_table",
        new_table(sd={"cols": [{"name": "a", "type": name}]}),
    ),
    "location": lambda name: ("create_table", new_table(sd={"location": f"/{name}"})),
    "partition": lambda name: ("get_partition_by_name", {**KEPT, "part_name": f"p={name}"}),
    "value": lambda name: ("get_partition", {**KEPT, "part_vals": [name]}),
    "new value": lambda name: ("add_partitions", {"new_parts": [{**PARTITION, "values": [name]}]}),
    "filter": lambda name: (
        "get_partitions_by_filter",
        {**KEPT, "filter": name, "max_parts": -1},
    ),
    "pattern": lambda name: ("get_tables", {"db_name": "kept", "pattern": f"{name}("}),
    "function": lambda name: ("get_function", {"dbName": "kept", "funcName": name}),
    "host": lambda name: ("open_txns", {"rqst": {"num_txns": 1, "user": "ann", "hostname": name}}),
    "list": lambda name: (
        "get_valid_write_ids",
        {"rqst": {"fullTableNames": ["kept.t"], "validTxnList": name}},
    ),
    "user": lambda name: ("set_ugi", {"user_name": name, "group_names": []}),
    "method": lambda name: (name[:1_000], {}),
}


@pytest.mark.parametrize(
    ("what", "name"),
    [
        *((what, LONG) for what in LONG_NAMES),
        *((what, TEN_MEGABYTES) for what in ("schema", "new value", "host")),
    ],
    ids=lambda value: value if value in LONG_NAMES else len(value),
)
def test_a_very_long_name_is_refused_with_a_short_error(
    node: NodeProcess, what: str, name: str
) -> None:
    method, arguments = LONG_NAMES[what](name)
    with ExitStack() as stack:
        behaved = BehavedClients(node, stack)
        client = stack.enter_context(hive_client(node))
        with pytest.raises((ThriftException, ApplicationException)) as refusal:
            client.call(method, **arguments)
        assert len(str(refusal.value)) < LONGEST_ANSWER
        behaved.ask()


@pytest.mark.parametrize("field", ["user", "hostname", "dbname", "agentInfo"])
def test_a_lock_request_with_a_long_text_is_not_granted(node: NodeProcess, field: str) -> None:
    with hive_client(node) as client:
        answer = client.call("lock", **new_lock(**{field: LONG}))
        assert (answer["lockid"], answer["state"]) == (0, NOT_ACQUIRED)
        assert len(answer["errorMessage"]) < LONGEST_ANSWER


def test_every_method_without_arguments_is_answered_or_refused(node: NodeProcess) -> None:
    with ExitStack() as stack:
        behaved = BehavedClients(node, stack)
        client = stack.enter_context(hive_client(node))
        for method in sorted(METHODS):
            for arguments in ({}, emptiest(f"{method}_args")):
                with suppress(ThriftException, ApplicationException):
                    client.call(method, **arguments)
        behaved.ask()
        statistics = page(node, "/v1/statistics").json()
    assert statistics["thrift"]["failures"] == 0


# Values of the protocol have many types: hence Any.
def emptiest(struct: str) -> dict[str, Any]:
    """Arguments, or a struct with its required fields, each as empty as possible."""
    return {
        field.name: emptiest(field.type.name)
        if field.type.wire == STRUCT
        else EMPTY.get(field.type.wire, 0)
        for field in HIVE_CODEC.table.structs[struct].fields
        if field.sent and (field.required or struct.endswith("_args"))
    }


EMPTY: dict[int, Any] = {STRING: "", LIST: [], SET: set(), MAP: {}, BOOL: False, DOUBLE: 0.0}
WRONG_JSON: tuple[object, ...] = (None, "", [], -1, 2**63, 0.5, [None], LONG)


def test_every_http_call_with_meaningless_arguments_is_refused_or_answered(
    node: NodeProcess,
) -> None:
    with ExitStack() as stack:
        behaved = BehavedClients(node, stack)
        client = stack.enter_context(httpx.Client(base_url=node.http_uri, timeout=PATIENCE))
        for call in CALLS.values():
            names = inspect.signature(getattr(Session, call.name)).parameters
            for value in WRONG_JSON:
                body = json.dumps({name: value for name in names if name != "self"})
                headers = {"Content-Type": call.request_type}
                answer = client.post(call.path, content=body, headers=headers)
                assert answer.status_code < 500, (call.name, value, answer.text)
                assert answer.status_code == 200 or len(answer.text) < LONGEST_ANSWER
        answer = client.post(
            "/v1/table",
            content=json.dumps({"name": TEN_MEGABYTES}),
            headers={"Content-Type": JSON_TYPE},
        )
        assert (answer.status_code, len(answer.text) < LONGEST_ANSWER) == (400, True)
        behaved.ask()


def throw(uri: str, message: bytes) -> None:
    """Send a message on a new connection, and read until the node closes it."""
    with socket.create_connection(address(uri), timeout=PATIENCE) as stream:
        try:
            stream.sendall(message)
            stream.shutdown(socket.SHUT_WR)
            while stream.recv(1 << 16):
                pass
        except OSError as error:
            if error.errno not in CUT_OFF:
                raise


def attack(node: NodeProcess, random: Random, *, messages: int) -> None:
    """Send messages to both ports. The node stays up, its memory bounded, others unaffected."""
    process = psutil.Process(node.pid)
    ports: tuple[tuple[str, Callable[[Random], bytes]], ...] = (
        (node.thrift_uri, thrift_message),
        (node.http_uri, http_message),
    )
    with ExitStack() as stack:
        behaved = BehavedClients(node, stack)
        for uri, message in ports:
            for _ in range(HALF_SENT):
                stream = stack.enter_context(socket.create_connection(address(uri)))
                stream.sendall(message(random)[:-1])
        before = process.memory_info().rss
        for number in range(messages):
            for uri, message in ports:
                throw(uri, message(random))
            if number % TURN == 0:
                behaved.ask()
        behaved.ask()
        grown = process.memory_info().rss - before
        assert page(node, "/health/ready").status_code == 200
        statistics = page(node, "/v1/statistics").json()
    print(f"grown by {grown >> 20} MiB", statistics["thrift"])
    assert statistics["thrift"]["failures"] == 0
    assert "Traceback" not in Path(node.log).read_text()
    assert grown < MORE_MEMORY


def test_damaged_messages_do_not_affect_other_clients(node: NodeProcess) -> None:
    attack(node, Random(1), messages=MESSAGES)


def admitted(node: NodeProcess, database: dict[str, str]) -> ThriftClient | None:
    """A new client that has created a database; None if the node has told it that it is full."""
    client = hive_client(node)
    try:
        client.call("create_database", database=database)
    except ThriftException as error:
        client.close()
        if error.name == "MetaException" and FULL in error.value["message"]:
            return None
        raise
    return client


@pytest.mark.slow
def test_idle_connections_do_not_keep_other_clients_out(node: NodeProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = psutil.Process(node.pid).memory_info().rss
    try:
        with ExitStack() as stack:
            behaved = BehavedClients(node, stack)
            for uri in (node.thrift_uri, node.http_uri) * IDLE_CONNECTIONS:
                stack.enter_context(socket.create_connection(address(uri), timeout=PATIENCE))
            behaved.ask()
            new = {"name": "beside_idle_ones"}
            refused = 0
            while (client := admitted(node, new)) is None:
                refused += 1  # until the oldest idle connection is a second old
            with client:
                client.call("drop_database", name=new["name"], deleteData=True, cascade=False)
            while httpx.get(f"{node.http_uri}/health/live", timeout=PATIENCE).status_code == 503:
                refused += 1
            behaved.ask()
            print(f"{refused} new clients were refused")
            assert psutil.Process(node.pid).memory_info().rss - before < MORE_MEMORY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.soak
def test_many_damaged_messages_do_not_affect_other_clients(
    node: NodeProcess, request: pytest.FixtureRequest
) -> None:
    seed = int(request.config.getoption("--hypothesis-seed") or 0)  # of `make soak`
    attack(node, Random(seed), messages=MANY_MESSAGES)
