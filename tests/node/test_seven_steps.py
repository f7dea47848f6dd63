"""The seven steps of the founding document: how a write on one node reaches the memory of another.

    1. The ValidWriteIdList of the cached table is initially [13:7,8,12].
    2. Metastore 1 gets a request that changes the table, under the list [14:7,8,12]. Its memory and
       the notification log get the change with it, and then the commit event.
    3. Memory on Metastore 2 still has [13:7,8,12]. A query with the list [14:7,8,12] is answered by
       the object store.
    4. Metastore 2 reads the event of the change: memory has it, marked as uncommitted.
    5. A read on Metastore 2 is still answered by the object store.
    6. Metastore 2 reads the commit event and marks the change as committed.
    7. The next read on Metastore 2 is answered from memory.

Where the document says ``alter_table``, the change here is one of rows: the definition of a table
has versions of its own. Memory on Metastore 2 follows the log by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.metastore.interface import Session
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile
from strandline.model.types import BIGINT
from strandline.transactions import ValidWriteIdList
from tests.servers import stores
from tests.servers.served_node import ServedNode, followed_by_hand

OPEN = (7, 8, 12)


@pytest.fixture(params=["folder", "postgresql"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ServedNode, ...]]:
    store = stores.new_store(request.param, tmp_path / "lake")
    with ExitStack() as opened:
        yield tuple(
            opened.enter_context(ServedNode(store, plants=plants))
            for plants in ((), (followed_by_hand,))
        )


def append(session: Session, txn_id: int, table_id: int) -> int:
    """Stage one file; the write id."""
    file_id = txn_id << FILE_NUMBER_BITS
    file = DataFile(file_id=file_id, path=f"{txn_id}.parquet", rows=1, bytes=1)
    return session.stage(txn_id, table_id, add=[file])


def hits_and_misses(node: ServedNode) -> tuple[int, int]:
    store = node.statistics()["store"]
    assert store["misses_by_cause"].keys() == {"behind", "not_held", "other_list"}
    return store["hits"], store["misses_by_cause"]["other_list"]


def test_a_write_reaches_the_memory_of_another_node_in_seven_steps(
    nodes: tuple[ServedNode, ServedNode],
) -> None:
    metastore_1, metastore_2 = nodes
    with metastore_1.session() as writer, metastore_2.session() as reader:
        columns = (ColumnDefinition("k", BIGINT),)
        definition = TableDefinition(name="t", columns=columns, transactional=True)
        writer.execute(CreateTable(schema="default", definition=definition))
        table_id = writer.table("default.t").descriptor.id

        def list_of_now() -> ValidWriteIdList:
            return writer.open(["default.t"]).write_ids_of("default.t")

        def read(write_ids: ValidWriteIdList) -> tuple[int, str]:
            """How many files Metastore 2 gives, and what answered: memory or the store."""
            before = hits_and_misses(metastore_2)
            files = reader.files(table_id, write_ids).data_files
            hits, misses = (
                after - start
                for after, start in zip(hits_and_misses(metastore_2), before, strict=True)
            )
            # Data files and delete files are read one after the other.
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
