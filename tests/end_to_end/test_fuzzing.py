"""Random and damaged messages at both ports of a real node, beside clients that behave."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from strandline.cli.demo.node_process import NodeProcess
from strandline.metastore.session import HttpSession
from tests.end_to_end.mutations import http_message, thrift_message
from tests.servers.thrift_client import ThriftClient

MESSAGES, MANY_MESSAGES = 150, 10_000
"""Of each protocol."""
TURN = 10
"""Messages between two questions of the clients that behave."""
HALF_SENT = 30
"""Connections on which a message has begun and does not go on."""
MORE_MEMORY = 128 << 20
"""Bytes that a node may have grown by."""
CUT_OFF = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)
PATIENCE = 60.0
FEW_DESCRIPTORS = 256
"""What the node may open by default; it raises that itself."""
IDLE_CONNECTIONS = 900
"""With each port; a thousand are allowed."""
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
    """What is started meanwhile may open few files, as is usual, and then allow itself more."""
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


class BehavedClients:
    """Clients of both protocols on connections that stay, and what they are answered."""

    def __init__(self, node: NodeProcess, stack: ExitStack) -> None:
        self._hive = stack.enter_context(hive_client(node))
        self._session = stack.enter_context(HttpSession(node.http_uri, user="ann"))
        self._expected = self._answers()

    def ask(self) -> None:
        """They are answered, and what they are answered has not changed."""
        assert self._answers() == self._expected

    def _answers(self) -> list[object]:
        partition = {"db_name": "kept", "tbl_name": "t", "part_vals": ["a"]}
        return [
            self._hive.call("get_table", dbname="kept", tbl_name="t"),
            self._hive.call("get_partition", **partition),
            self._session.tables("kept"),
            self._session.table("kept.t").descriptor,
        ]


def throw(uri: str, message: bytes) -> None:
    """Send a message on a connection of its own, and read what comes until the node closes it."""
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
    """Throw messages at both ports. The node stays up, its memory bounded, the others unharmed."""
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
        assert httpx.get(f"{node.http_uri}/health/ready").status_code == 200
        statistics = httpx.get(f"{node.http_uri}/v1/statistics").json()
    print(f"grown by {grown >> 20} MiB", statistics["thrift"])
    assert statistics["thrift"]["failures"] == 0
    assert "Traceback" not in Path(node.log).read_text()
    assert grown < MORE_MEMORY


def test_damaged_messages_harm_no_other_client(node: NodeProcess) -> None:
    attack(node, Random(1), messages=MESSAGES)


def test_idle_connections_keep_no_other_client_out(node: NodeProcess) -> None:
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
            with hive_client(node) as client:
                client.call("create_database", database=new)
                client.call("drop_database", name=new["name"], deleteData=True, cascade=False)
            behaved.ask()
            assert psutil.Process(node.pid).memory_info().rss - before < MORE_MEMORY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.soak
def test_many_damaged_messages_harm_no_other_client(
    node: NodeProcess, request: pytest.FixtureRequest
) -> None:
    seed = int(request.config.getoption("--hypothesis-seed") or 0)  # of `make soak`
    attack(node, Random(seed), messages=MANY_MESSAGES)
