"""A node that serves the Hive protocol on a free loopback port, and clients of several kinds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import uvloop
from hive_metastore import ThriftHiveMetastore
from hive_metastore.ttypes import FieldSchema, SerDeInfo, StorageDescriptor, Table
from sqlalchemy import Connection
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.clock import WallClock, system_wall_clock
from strandline.config import Settings
from strandline.errors import StrandlineError
from strandline.metastore.call_log import CallLog
from strandline.metastore.hive import HiveMetastoreService
from strandline.metastore.hive.hive_reader import HiveReader
from strandline.metastore.hive.registry import METHODS, Call
from strandline.metastore.off_loop import finish
from strandline.metastore.reader import present_catalog
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.staging import Staging
from strandline.metastore.thrift import ThriftException, ThriftServer
from strandline.model.descriptors import TableDescriptor
from strandline.model.type_parser import parse_type
from strandline.node import Node
from strandline.sql import Database
from tests.log_lines import NEVER_SLOW_MS
from tests.metastore.session.served import listening_socket
from tests.servers.thrift_client import ThriftClient

WAIT = 60.0


@dataclass
class HiveNode:
    """A running service on a ``store``; `another_node` opens the same store."""

    store: str | Path
    node: Node
    service: HiveMetastoreService
    host: str
    port: int
    loop: asyncio.AbstractEventLoop

    @property
    def uri(self) -> str:
        return f"thrift://{self.host}:{self.port}"

    @property
    def folder(self) -> Path:
        """The folder that contains the warehouse, whatever kind of store it is."""
        return Path(unquote(urlsplit(self.node.metastore.warehouse).path)).parent

    @property
    def warehouse(self) -> str:
        """The URI of the warehouse, as Hadoop prints it."""
        return f"file:{self.folder}/warehouse"

    def another_node(self) -> Node:
        """Another node on the store; a context manager, like `Node.open`."""
        return Node.open(self.store, settings=self.node.settings)

    def call(self, method: str, **args: Any) -> Call:
        """A request of a client, as its handler gets it in a thread."""
        metastore = self.node.metastore
        reader = HiveReader(metastore, finish(present_catalog(metastore)), user="ann")
        return Call(METHODS[method], args, "ann", metastore, reader)

    def client(self) -> ThriftClient:
        return ThriftClient(self.host, self.port, timeout=WAIT)

    @contextmanager
    def stub(self) -> Iterator[Any]:
        """The client that Apache Thrift generates for Hive 4, as PyIceberg ships it."""
        transport = TBufferedTransport(TSocket(self.host, self.port))
        transport.open()
        try:
            yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
        finally:
            transport.close()

    def create_transactional(
        self,
        schema: str,
        name: str,
        *,
        partitioned_by: Sequence[str] = (),
        primary_key: Sequence[str] = (),
        **columns: str,
    ) -> TableDescriptor:
        """A transactional table, created through a session."""
        definition = TableDefinition(
            name=name,
            columns=tuple(
                ColumnDefinition(name, parse_type(text), name not in primary_key)
                for name, text in columns.items()
            ),
            transactional=True,
            provider="strandline",
            partitioned_by=tuple(partitioned_by),
            primary_key=tuple(primary_key),
        )
        session = self.node.session(user="ann")
        session.execute(CreateTable(schema=schema, definition=definition))
        return session.table(f"{schema}.{name}").descriptor


def fail_a_commit(
    hive: HiveNode, patch: pytest.MonkeyPatch, error: StrandlineError, *, committed: bool = False
) -> None:
    """Let the commit of the next change of a table end with ``error``."""
    change, kind = SqlObjectStore.change, type(hive.node.database)
    commit = kind._commit  # type: ignore[attr-defined]  # of both kinds
    changing: list[int] = []

    @contextmanager
    def noted(store: SqlObjectStore, table_id: int, *, author: str) -> Iterator[Staging]:
        with change(store, table_id, author=author) as staging:
            yield staging
            if staging.has_staged and not changing:
                changing.append(threading.get_ident())

    def fail(database: Database, connection: Connection, **named: bool) -> None:
        if changing != [threading.get_ident()]:
            commit(database, connection, **named)
            return
        changing.append(0)  # the next commits succeed
        if committed:
            commit(database, connection, **named)
        raise error

    patch.setattr(SqlObjectStore, "change", noted)
    patch.setattr(kind, "_commit", fail)


@contextmanager
def hive_node(
    store: str | Path, *, settings: Settings | None = None, wall: WallClock = system_wall_clock
) -> Iterator[HiveNode]:
    """Open the ``store`` and serve it while the block runs; ``wall`` is the clock of the node."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="hive service")
    thread.start()
    try:
        with Node.open(store, settings=settings, wall=wall) as node:
            service = HiveMetastoreService(node.metastore)
            calls = CallLog(NEVER_SLOW_MS)
            server = ThriftServer(service.dispatcher, calls=calls)
            listening = listening_socket()
            asyncio.run_coroutine_threadsafe(server.start(listening), loop).result(WAIT)
            host, port = listening.getsockname()
            try:
                yield HiveNode(store, node, service, host, port, loop)
            finally:
                asyncio.run_coroutine_threadsafe(server.stop(), loop).result(WAIT)
                stopped = loop.shutdown_default_executor()
                asyncio.run_coroutine_threadsafe(stopped, loop).result(WAIT)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT)
        loop.close()


def storage(*, columns: Any = None, location: str | None = None) -> Any:
    """A storage descriptor as a Hive client writes it; by default of ``A int, b string``."""
    if columns is None:
        columns = [FieldSchema("A", "int", "c1"), FieldSchema("b", "string", None)]
    return StorageDescriptor(
        cols=columns,
        location=location,
        inputFormat="in",
        outputFormat="out",
        serdeInfo=SerDeInfo(serializationLib="serde", parameters={"serialization.format": "1"}),
        numBuckets=-1,
        parameters={},
    )


def table(name: str, *, schema: str = "d1", sd: Any = None, **fields: Any) -> Any:
    """A table as a Hive client writes it."""
    return Table(tableName=name, dbName=schema, sd=sd or storage(), **fields)


def outcome(call: Any) -> object:
    """The result of a call, or the name and message of its exception."""
    try:
        return call()
    except ThriftException as error:
        return error.name, error.value.get("message")
    except Exception as error:
        return type(error).__name__, getattr(error, "message", str(error))


def refusal(call: Any) -> tuple[str, str]:
    """The name and the message of the exception that a call must raise."""
    refused = outcome(call)
    assert isinstance(refused, tuple), f"it was not refused, it gave {refused!r}"
    kind, text = refused
    return str(kind), str(text)


def plain(value: Any) -> Any:
    """A value of Apache Thrift as dicts and lists; absent fields are left out."""
    if hasattr(value, "__dict__"):
        return {name: plain(field) for name, field in vars(value).items() if field is not None}
    if isinstance(value, list | set | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value
