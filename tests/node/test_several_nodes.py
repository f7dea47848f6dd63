"""Three nodes on one store: how a write on one of them reaches the others.

The tests make the caches of the nodes follow the notification log step by step, and nodes on a
server hear no news of commits. So the results do not depend on how fast a node follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    SetConfiguration,
    TableDefinition,
)
from strandline.metastore.interface import Session
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile
from strandline.model.types import BIGINT
from strandline.transactions import ValidWriteIdList
from tests.consistency.checker import check
from tests.consistency.client import Client
from tests.consistency.history import History
from tests.servers import stores
from tests.servers.served_node import ServedNode, deaf_to_news, followed_by_hand

OPEN = (7, 8, 12)


@pytest.fixture(scope="module", params=["folder", "postgresql"])
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[ServedNode]]:
    store = stores.new_store(request.param, tmp_path_factory.mktemp("nodes") / "lake")
    with ExitStack() as started:
        yield [
            started.enter_context(
                closing(ServedNode(store, plants=[followed_by_hand, deaf_to_news]))
            )
            for _ in range(3)
        ]


def append(session: Session, txn_id: int, table_id: int) -> int:
    """Stage one file; returns the write id."""
    file_id = txn_id << FILE_NUMBER_BITS
    file = DataFile(file_id=file_id, path=f"{txn_id}.parquet", rows=1, bytes=1)
    return session.stage(txn_id, table_id, add=[file])


def hits_and_misses(node: ServedNode) -> tuple[int, int]:
    store = node.statistics()["store"]
    assert store["misses_by_cause"].keys() == {"behind", "not_held", "other_list"}
    return store["hits"], store["misses_by_cause"]["other_list"]


def test_a_write_reaches_the_cache_of_another_node_in_seven_steps(
    nodes: list[ServedNode],
) -> None:
    """The founding document's flow, step by step.

    1. The ValidWriteIdList of the cached table is initially [13:7,8,12].
    2. Metastore 1 gets a request that changes the table, under the list [14:7,8,12]. Its memory
       and the notification log get the change with it, and then the commit event.
    3. Memory on Metastore 2 still has [13:7,8,12]. A query with the list [14:7,8,12] is answered
       by the object store.
    4. Metastore 2 reads the event of the change: memory has it, marked as uncommitted.
    5. A read on Metastore 2 is still answered by the object store.
    6. Metastore 2 reads the commit event and marks the change as committed.
    7. The next read on Metastore 2 is answered from memory.

    Where the document says ``alter_table``, the change here is one of rows: the definition of a
    table has versions of its own.
    """
    metastore_1, metastore_2, _ = nodes
    with metastore_1.session() as writer, metastore_2.session() as reader:
        columns = (ColumnDefinition("k", BIGINT),)
        definition = TableDefinition(name="t", columns=columns, transactional=True)
        writer.execute(CreateTable(schema="default", definition=definition))
        table_id = writer.table("default.t").descriptor.id

        def list_of_now() -> ValidWriteIdList:
            return writer.open(["default.t"]).write_ids_of("default.t")

        def read(write_ids: ValidWriteIdList) -> tuple[int, str]:
            """How many files Metastore 2 returns, and what answered: memory or the store."""
            before = hits_and_misses(metastore_2)
            files = reader.files(table_id, write_ids).data_files
            hits, misses = (
                after - start
                for after, start in zip(hits_and_misses(metastore_2), before, strict=True)
            )
            # Data files and delete files are two separate reads.
            return len(files), {(2, 0): "memory", (0, 2): "store"}[hits, misses]

        # 1.
        txn_ids = [writer.begin().txn_id for _ in range(13)]
        assert [append(writer, txn_id, table_id) for txn_id in txn_ids] == [*range(1, 14)]
        for number, txn_id in enumerate(txn_ids, start=1):
            if number not in OPEN:
                writer.commit(txn_id)
        metastore_2.tell("catch_up")
        old = list_of_now()
        assert (old.hwm, old.exceptions) == (13, OPEN)
        reader.files(table_id, old)  # loads the table into memory
        assert metastore_2.tell("list_in_memory", table_id) == "null:13:7:7,8,12:"
        assert read(old) == (10, "memory")

        # 2.
        txn_id = writer.begin().txn_id
        assert append(writer, txn_id, table_id) == 14
        writer.commit(txn_id)
        new = list_of_now()
        assert (new.hwm, new.exceptions) == (14, OPEN)
        writer.files(table_id, new)
        metastore_1.tell("catch_up")
        assert metastore_1.tell("list_in_memory", table_id) == "null:14:7:7,8,12:"

        # 3.
        assert metastore_2.tell("list_in_memory", table_id) == "null:13:7:7,8,12:"
        assert read(new) == (11, "store")

        # 4.
        assert metastore_2.tell("apply", 1) == 1
        assert metastore_2.tell("list_in_memory", table_id) == "null:14:7:7,8,12,14:"

        # 5.
        assert read(new) == (11, "store")
        assert read(old) == (10, "memory")

        # 6.
        assert metastore_2.tell("apply", 1) == 1
        assert metastore_2.tell("list_in_memory", table_id) == "null:14:7:7,8,12:"

        # 7.
        assert read(new) == (11, "memory")
        assert read(old) == (10, "memory")


def test_a_read_with_the_writers_write_id_list_sees_the_write_on_every_node(
    nodes: list[ServedNode],
) -> None:
    history = History()
    with ExitStack() as opened:
        clients = [
            opened.enter_context(closing(Client(history, node, name=f"{number}")))
            for number, node in enumerate(nodes)
        ]
        orders, parts = clients[0].create("orders"), clients[0].create("parts")
        expected: list[str] = []
        for number, writer in enumerate(clients):
            removed = expected[: number % 2]
            txn_id = writer.begin()
            for table in (orders, parts):
                writer.stage(txn_id, table, add=[1], remove=removed)
            writer.commit(txn_id)
            taken = writer.snapshot(orders, parts)
            for reader in clients:
                for table in (orders, parts):
                    files = reader.files(table, taken.write_ids[table.table_id], at=taken.time)
                    assert len(files) == 1 + len(expected) - len(removed)
                assert reader.read(orders, parts) == {"orders": files, "parts": files}
                assert sorted(reader.view(orders)) == files
            expected = files
        clients[0].events()
    assert check(history.operations) == []


def test_a_read_without_a_write_id_list_is_no_staler_than_the_setting_allows(
    nodes: list[ServedNode],
) -> None:
    writer, reader, *_ = nodes
    table = {
        "dbName": "default",
        "tableName": "plain",
        "sd": {"cols": [{"name": "a", "type": "int"}], "serdeInfo": {}},
        "partitionKeys": [{"name": "p", "type": "string"}],
    }
    partition = {"dbName": "default", "tableName": "plain", "sd": {"serdeInfo": {}}}
    with ExitStack() as opened:
        session = opened.enter_context(writer.session())
        writing, reading = (opened.enter_context(node.thrift()) for node in (writer, reader))

        def add(value: str) -> None:
            writing.call("add_partition", new_part={**partition, "values": [value]})

        def partitions() -> list[str]:
            names: list[str] = reading.call(
                "get_partition_names", db_name="default", tbl_name="plain", max_parts=-1
            )
            return names

        def stand_clock(seconds: float) -> None:
            reader.tell("set_monotonic", seconds)

        session.execute(SetConfiguration(name="metadata_staleness", value="2s"))
        writing.call("create_table", tbl=table)
        add("0")
        stand_clock(1e9)
        assert partitions() == ["p=0"]
        add("1")
        stand_clock(1e9 + 1.999)
        # In a folder, a check of the file shows that there was a commit; on a server, nothing shows
        # it here.
        assert partitions() == (["p=0"] if reader.is_on_servers else ["p=0", "p=1"])
        stand_clock(1e9 + 2)
        assert partitions() == ["p=0", "p=1"]
        session.execute(SetConfiguration(name="metadata_staleness", value="0"))
        stand_clock(1e9 + 2.002)
        assert partitions() == ["p=0", "p=1"]
        add("2")
        stand_clock(1e9 + 2.003)
        assert partitions() == ["p=0", "p=1", "p=2"]
