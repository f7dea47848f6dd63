"""Long calls to a served node: a child process gives the same answers as the node itself."""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.catalog.commands import ColumnDefinition, CreateSchema, CreateTable, TableDefinition
from strandline.cli.demo.node_process import NodeProcess
from strandline.errors import AlreadyExists, InvalidInput, StoreMoved
from strandline.metastore.session import HttpSession
from strandline.metastore.store.rows import DataFile
from strandline.metastore.thrift import HIVE_CODEC, ThriftException
from strandline.metastore.thrift.messages import CALL, EXCEPTION, encode_message
from strandline.model.descriptors import properties
from strandline.model.types import BIGINT
from strandline.node import Node
from strandline.work import IN_THREAD
from tests.servers.served_node import ServedNode, waits_long_for_children
from tests.servers.stores import new_store
from tests.servers.thrift_client import ThriftClient

MANY = IN_THREAD + 500
COLUMNS = [{"name": f"c{number}", "type": "string"} for number in range(4)]
SD: dict[str, Any] = {"cols": COLUMNS, "serdeInfo": {"parameters": {}}, "parameters": {}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("delegated") / "store")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def session(node: NodeProcess) -> Iterator[HttpSession]:
    with HttpSession(node.http_uri, user="ann") as session:
        yield session


@pytest.fixture
def client(node: NodeProcess) -> Iterator[ThriftClient]:
    port = int(node.thrift_uri.rpartition(":")[2])
    with ThriftClient("127.0.0.1", port, timeout=60) as client:
        client.call("set_ugi", user_name="ann", group_names=[])
        yield client


def statistics(node: NodeProcess) -> Any:
    while (answer := httpx.get(f"{node.http_uri}/v1/statistics")).status_code == 503:
        pass  # the machine was too busy to count within the deadline of the node
    return answer.json()


def tasks(node: NodeProcess) -> int:
    """The number of tasks given to child processes."""
    counted: int = statistics(node)["children"]["tasks"]
    return counted


def partition(number: int, table: str = "parts", **parameters: str) -> dict[str, Any]:
    place = f"s3a://elsewhere/p={number:05d}"
    return {
        "values": [f"{number:05d}"],
        "dbName": "shop",
        "tableName": table,
        "sd": {**SD, "location": place},
        "parameters": {"written": "1", **parameters},
    }


@pytest.fixture(scope="module")
def parts(node: NodeProcess) -> list[dict[str, Any]]:
    """The partitions of the table ``shop.parts``, which one long call adds."""
    partitions = [partition(number) for number in range(MANY)]
    with HttpSession(node.http_uri, user="ann") as session:
        session.execute(CreateSchema(name="shop"))
    port = int(node.thrift_uri.rpartition(":")[2])
    with ThriftClient("127.0.0.1", port, timeout=60) as client:
        keys = [{"name": "p", "type": "string"}]
        table = {"tableName": "parts", "dbName": "shop", "sd": SD, "partitionKeys": keys}
        client.call("create_table", tbl=table)
        before = tasks(node)
        assert client.call("add_partitions", new_parts=partitions) == MANY
        assert tasks(node) == before + 1
    return partitions


@pytest.mark.slow
def test_a_long_answer_equals_short_ones(
    node: NodeProcess, client: ThriftClient, parts: list[dict[str, Any]]
) -> None:
    before = tasks(node)
    named = {"db_name": "shop", "tbl_name": "parts", "max_parts": -1}
    listed = client.call("get_partitions", **named)
    names = client.call("get_partition_names", **named)
    assert tasks(node) == before + 2
    assert [part["values"] for part in listed] == [part["values"] for part in parts]
    assert names == [f"p={part['values'][0]}" for part in parts]
    some = client.call("get_partitions_by_names", db_name="shop", tbl_name="parts", names=names[:9])
    assert some == listed[:9]
    assert tasks(node) == before + 2


def test_a_long_answer_is_cached_until_the_next_commit(
    node: NodeProcess, client: ThriftClient, session: HttpSession, parts: list[dict[str, Any]]
) -> None:
    named = {"db_name": "shop", "tbl_name": "parts", "max_parts": -1}
    before = tasks(node)
    names = client.call("get_partition_names", **named)
    asked = tasks(node)
    assert asked <= before + 1
    assert client.call("get_partition_names", **named) == names
    assert tasks(node) == asked
    session.execute(CreateSchema(name="another"))
    assert client.call("get_partition_names", **named) == names
    assert tasks(node) == asked + 1


def test_a_long_change_is_seen_by_the_next_short_read(
    node: NodeProcess, client: ThriftClient, parts: list[dict[str, Any]]
) -> None:
    short = {"db_name": "shop", "tbl_name": "parts", "part_vals": ["00007"]}
    assert client.call("get_partition", **short)["parameters"]["written"] == "1"
    before = tasks(node)
    changed = [partition(number, written="2") for number in range(MANY)]
    client.call("alter_partitions", db_name="shop", tbl_name="parts", new_parts=changed)
    assert tasks(node) == before + 1
    assert client.call("get_partition", **short)["parameters"]["written"] == "2"


def test_a_refused_long_call_raises_the_error_of_a_short_one(
    node: NodeProcess, client: ThriftClient, session: HttpSession
) -> None:
    refusals = []
    for count in (1, MANY):
        changed = [partition(number, "none") for number in range(count)]
        with pytest.raises(ThriftException) as refusal:
            client.call("alter_partitions", db_name="shop", tbl_name="none", new_parts=changed)
        refusals.append(str(refusal.value))
    assert refusals[0] == refusals[1]
    before = tasks(node)
    for count in (1, 400):
        names = [f"{'n' * 200}{number}" for number in range(count - 1)]
        with pytest.raises(AlreadyExists, match="already exists"):
            session.execute([CreateSchema(name=name) for name in [*names, "shop"]])
    assert tasks(node) == before + 1
    assert session.tables("shop") == ["parts"]


def test_long_calls_over_http_are_executed_by_a_child(
    node: NodeProcess, session: HttpSession
) -> None:
    before = tasks(node)
    session.execute(CreateSchema(name="lake"))
    columns = (ColumnDefinition("a", BIGINT),)
    definition = TableDefinition(name="t", columns=columns, transactional=True)
    session.execute(CreateTable(schema="lake", definition=definition))
    table_id = session.table("lake.t").descriptor.id
    files = [
        DataFile(file_id=number + 1, path=f"data/{number:05d}" + "-" * 200, rows=1, bytes=1)
        for number in range(MANY)
    ]
    transaction = session.begin()
    session.stage(transaction.txn_id, table_id, add=files)
    session.commit(transaction.txn_id)
    assert tasks(node) == before + 1
    listed = session.files(table_id, session.open(["lake.t"]).write_ids_of("lake.t"))
    assert list(listed.data_files) == files
    assert tasks(node) == before + 2


def test_reads_of_the_whole_store_are_executed_by_a_child(
    node: NodeProcess, session: HttpSession
) -> None:
    before = tasks(node)
    session.dump(stats_only=True)
    assert session.verify().summary.records
    session.clean()
    assert tasks(node) == before + 3
    settings = {setting.setting: setting for setting in session.config()}
    assert (settings["http_port"].value, settings["http_port"].origin) == (
        0,
        "option --http-port",
    )
    assert tasks(node) == before + 3
    with pytest.raises(InvalidInput, match="'tables' is not a kind of object"):
        session.dump(ignore=["tables"])


@pytest.mark.slow
def test_a_client_that_leaves_in_the_middle_of_a_dump_holds_up_nobody(
    node: NodeProcess, session: HttpSession
) -> None:
    long = properties({"p": "v" * 100_000})
    session.execute([CreateSchema(name=f"large{number}", properties=long) for number in range(100)])
    dump = session.dump()
    assert len(dump) > 100 * 100_000
    host, port = node.http_uri.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as leaving:
        head = "POST /v1/dump HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        leaving.sendall(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
        assert leaving.recv(100).startswith(b"HTTP/1.1 200 ")
        assert 0 < statistics(node)["http"]["answer_memory"] <= len(dump)
        assert session.dump() == dump  # the answer that is half sent holds up no other call
    while statistics(node)["http"]["answer_memory"]:
        pass
    assert session.dump() == dump
    command = [sys.executable, "-m", "strandline", "debug", "dump", node.store]
    assert subprocess.run(command, capture_output=True, check=True).stdout == dump


@pytest.mark.slow
def test_a_long_message_that_cannot_be_decoded_fails_without_affecting_the_next(
    node: NodeProcess,
) -> None:
    count = 50_000
    names = b"\x0f\x00\x03\x0b" + struct.pack(">I", count) + b"\x00\x00\x00\x01x" * count
    message = encode_message(
        CALL, "get_partitions_by_names_req", 1, b"\x0c\x00\x01" + names + b"\x00\x00"
    )
    small = encode_message(CALL, "getName", 2, HIVE_CODEC.encode_args("getName", {}))
    port = int(node.thrift_uri.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stream:
        stream.sendall(message + small)
        received = b""
        while b"getName" not in received:
            received += stream.recv(1 << 16)
    assert received[3] == EXCEPTION
    assert b"GetPartitionsByNamesRequest lacks its required field db_name" in received


@pytest.mark.slow
def test_a_long_batch_of_commands_is_carried_out_while_others_change_the_catalog(
    node: NodeProcess, session: HttpSession
) -> None:
    ended = threading.Event()

    def change() -> None:
        with HttpSession(node.http_uri, user="bob") as other:
            for number in itertools.count():
                other.execute(CreateSchema(name=f"other{number}"))
                if ended.is_set():
                    return

    changing = threading.Thread(target=change)
    changing.start()
    try:
        before = tasks(node)
        batch = [CreateSchema(name=f"many{number}", comment="c" * 50) for number in range(1000)]
        assert all(session.execute(batch, timeout=60.0).applied)
        assert tasks(node) == before + 1
    finally:
        ended.set()
        changing.join()


@pytest.mark.slow
def test_commands_wait_for_a_long_batch_and_are_carried_out_after_it(tmp_path: Path) -> None:
    with (
        closing(ServedNode(new_store("folder", tmp_path), plants=[waits_long_for_children])) as own,
        own.session() as session,
    ):
        batch = [CreateSchema(name=f"many{number}", comment="c" * 50) for number in range(1000)]
        session.execute(batch)
        assert own.tell("grants") == 1
        session.execute(CreateSchema(name="one"))


def test_a_child_process_does_not_answer_from_a_store_that_replaced_that_of_its_node(
    tmp_path: Path,
) -> None:
    store = new_store("folder", tmp_path / "lake")
    with closing(ServedNode(store)) as own, own.session() as session:
        session.execute(CreateSchema(name="shop"))
        (tmp_path / "lake").rename(tmp_path / "moved")
        with pytest.raises(StoreMoved, match=r"does not have the store that this node serves"):
            session.dump()
        assert not (tmp_path / "lake").exists()
        Node.open(tmp_path / "lake").close()
        with pytest.raises(StoreMoved, match=r"does not have the store that this node serves"):
            session.dump()
