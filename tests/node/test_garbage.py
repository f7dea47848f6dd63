"""A node frees what a request took when the request ends.

A node makes no full garbage collections, which would stop all requests for long. So objects that
refer to each other stay until `strandline.work.collect_garbage`, and with them all that they refer
to.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from bench.ddl import new_table
from bench.large import SD, data_file
from strandline.catalog.commands import CreateSchema, DropSchema
from strandline.errors import StrandlineError
from strandline.metastore.interface import AsOf
from strandline.metastore.session import HttpSession
from strandline.metastore.session.calls import JSON_TYPE
from strandline.metastore.thrift import ThriftException
from tests.metastore.thrift.test_limits import reset
from tests.metastore.thrift.test_server import request
from tests.servers.served_node import LONG, ServedNode, often_collecting
from tests.servers.stores import new_store
from tests.servers.thrift_client import ThriftClient


def _hive_calls(client: ThriftClient, schema: str) -> None:
    table = {
        "dbName": schema,
        "tableName": "t",
        "sd": SD,
        "partitionKeys": [{"name": "p", "type": "string"}],
        "parameters": {},
    }
    names = {"dbname": schema, "tbl_name": "t"}
    client.call("create_database", database={"name": schema})
    client.call("create_table", tbl=table)
    parts = [{"dbName": schema, "tableName": "t", "values": [f"v{n}"], "sd": SD} for n in range(5)]
    client.call("add_partitions", new_parts=parts)
    client.call("get_partitions", db_name=schema, tbl_name="t", max_parts=-1)
    client.call(
        "get_partitions_by_filter", db_name=schema, tbl_name="t", filter="p > 'v1'", max_parts=-1
    )
    shown = client.call("get_table", **names)
    renamed = {**shown, "parameters": {**shown["parameters"], "a": "1"}}
    client.call("alter_table", **names, new_tbl=renamed)
    client.call("get_tables", db_name=schema, pattern="*")
    client.call("get_next_notification", rqst={"lastEvent": 0, "maxEvents": 100})
    client.call("drop_database", name=schema, deleteData=True, cascade=True)


def _session_calls(session: HttpSession, schema: str) -> None:
    session.execute(CreateSchema(name=schema))
    session.execute(new_table("t", schema))
    table_id = session.table(f"{schema}.t").descriptor.id
    for end in (session.commit, session.abort):
        txn_id = session.begin().txn_id
        session.stage(txn_id, table_id, add=[data_file(txn_id << 20)])
        end(txn_id)
    snapshot = session.open([f"{schema}.t"])
    session.files(table_id, write_ids=snapshot.write_ids_of(f"{schema}.t"))
    last = session.history()[-1].version
    session.differences(AsOf(version=2))
    session.undo(last)
    session.status()
    session.execute(DropSchema(name=schema, cascade=True))


def _refused_calls(client: ThriftClient, session: HttpSession, schema: str) -> None:
    names = {"dbname": schema, "tbl_name": "t"}
    for method, arguments in (
        ("get_table", names),
        ("drop_table", {"dbname": schema, "name": "t", "deleteData": True}),
        ("get_partitions_by_filter", {"db_name": schema, "tbl_name": "t", "filter": "p ="}),
        ("commit_txn", {"rqst": {"txnid": 1_000_000}}),
    ):
        with pytest.raises(ThriftException):
            client.call(method, **arguments)
    refused: tuple[Callable[[], object], ...] = (
        lambda: session.table(f"{schema}.t"),
        lambda: session.execute([CreateSchema(name=schema), DropSchema(name=f"{schema}_none")]),
        lambda: session.undo(1_000_000),
        lambda: session.heartbeat(1_000_000),
        lambda: session.stage(1_000_000, 1_000_000, add=[data_file(1)]),
        lambda: session.dump(ignore=["none"]),  # in a child process
    )
    for call in refused:
        with pytest.raises(StrandlineError):
            call()


def _left_connections(node: ServedNode) -> None:
    """Connections that their clients reset: idle, and during a call of a child process."""
    http = urlsplit(node.url).netloc
    head = f"HTTP/1.1\r\nHost: {http}\r\nContent-Type: {JSON_TYPE}\r\nContent-Length: 2\r\n\r\n{{}}"
    tasks = node.statistics()["children"]["tasks"]
    for address, message, is_answered in (
        (node.thrift_address, request("get_all_databases"), True),
        (http, f"POST /v1/status {head}".encode(), True),
        (http, f"POST /v1/dump {head}".encode(), False),
    ):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=LONG) as stream:
            stream.sendall(message)
            if is_answered:
                stream.recv(10)
            else:
                while node.statistics()["children"]["tasks"] == tasks:
                    pass
            reset(stream)
    while True:
        counts = node.statistics()
        if counts["thrift"]["connections"] == 1 and not counts["children"]["running"]:
            return


@pytest.mark.slow
def test_requests_leave_no_objects_that_refer_to_each_other(tmp_path: Path) -> None:
    with (
        closing(ServedNode(new_store("folder", tmp_path / "store"))) as node,
        node.thrift() as client,
        node.session() as session,
    ):
        for schema in ("first", "second"):  # what is made once may stay
            _hive_calls(client, f"hive_{schema}")
            _session_calls(session, schema)
            _refused_calls(client, session, f"no_{schema}")
            _left_connections(node)
            garbage = node.tell("garbage")
        assert garbage == {}


def test_a_node_frees_objects_that_refer_to_each_other(tmp_path: Path) -> None:
    store = new_store("folder", tmp_path / "store")
    with closing(ServedNode(store, plants=[often_collecting])) as node:
        assert node.tell("is_cycle_freed")


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_that_outlives_a_collection_of_garbage_is_freed(
    tmp_path: Path, *, tls: bool
) -> None:
    certificate, context = "", None
    if tls:
        authority, certificate = trustme.CA(), str(tmp_path / "node.pem")
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(context)

    def answered(address: str, message: bytes) -> socket.socket:
        """A connection on which the node has answered a request."""
        host, _, port = address.rpartition(":")
        stream = socket.create_connection((host, int(port)), timeout=LONG)
        if context is not None:
            stream = context.wrap_socket(stream, server_hostname=host)
        stream.sendall(message)
        assert stream.recv(10)
        return stream

    store = new_store("folder", tmp_path / "store")
    with closing(ServedNode(store, tls_certificate=certificate)) as node:
        thrift = (node.thrift_address, request("getName"))
        http = urlsplit(node.url).netloc
        health = f"GET /health/live HTTP/1.1\r\nHost: {http}\r\n\r\n".encode()
        node.tell("unseen_garbage")  # of the start
        for stream in [answered(*thrift), answered(http, health)]:
            node.tell("collect_garbage")
            stream.shutdown(socket.SHUT_WR)
            with stream:
                while stream.recv(1 << 16):
                    pass
        with answered(*thrift):  # so the event loop has done with the others
            garbage = node.tell("unseen_garbage")
        assert [name for name in garbage if "Transport" in name] == []
