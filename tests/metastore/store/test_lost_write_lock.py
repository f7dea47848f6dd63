"""A process whose write PostgreSQL ends, because one folder takes long to move, moves no more.

Another process makes the same moves meanwhile, and then others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hive_metastore.ttypes import DropPartitionsRequest, FieldSchema, Partition, RequestPartsSpec

from strandline.catalog.commands import ColumnDefinition, CreateTable, DropTable, TableDefinition
from strandline.errors import Unavailable
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.unfinished_moves import finish_partition_moves
from strandline.model.types import INT
from strandline.node import Node
from strandline.sql import postgres_database
from tests.metastore.hive.hive_node import hive_node, storage, table
from tests.metastore.hive.parted import PURGE
from tests.node.conftest import before_the_next
from tests.servers import stores


def create(name: str) -> CreateTable:
    definition = TableDefinition(name=name, columns=(ColumnDefinition("a", INT),))
    return CreateTable(schema="default", definition=definition)


def purge(name: str) -> DropTable:
    return DropTable(schema="default", table=name, purge=True)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> stores.EmptyStore:
    monkeypatch.setattr(postgres_database, "_SILENT_SECONDS", 0)  # as if each move took long
    return stores.new_store("postgresql", tmp_path)


@pytest.fixture
def other(store: stores.EmptyStore) -> Iterator[Node]:
    with Node.open(store.address, settings=store.settings) as node:
        yield node


def end_idle_writes(address: str) -> None:
    """Do what the server does after `IDLE_MS`."""
    with psycopg.connect(address, autocommit=True) as server:
        server.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND state = 'idle in transaction'"
        )


def test_the_folder_of_a_table_made_after_another_process_purged_the_old_one_is_not_moved(
    store: stores.EmptyStore, other: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "warehouse" / "t" / "file"

    def replace() -> None:
        end_idle_writes(store.address)
        other.session(user="ann").execute(create("t"))
        file.write_text("new")

    with Node.open(store.address, settings=store.settings) as slow:
        session = slow.session(user="ann")
        session.execute([create("s"), create("t")])
        before_the_next(monkeypatch, StoreFolders, "move", replace)
        with pytest.raises(Unavailable):
            session.execute([purge("s"), purge("t")])
        slow.cleaner.clean()
    assert file.read_text() == "new"


def test_the_folder_of_a_partition_added_after_another_process_purged_the_old_one_is_not_moved(
    store: stores.EmptyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        hive_node(store.address, settings=store.settings) as slow,
        hive_node(store.address, settings=store.settings) as other,
        slow.stub() as stub,
        other.stub() as other_stub,
    ):
        stub.create_table(
            table("t", schema="default", partitionKeys=[FieldSchema("p", "string", None)])
        )
        first, last = (Partition([p], "default", "t", sd=storage()) for p in ("a", "b"))
        stub.add_partitions([first, last])
        file = tmp_path / "warehouse" / "t" / "p=a" / "file"

        def replace() -> None:
            end_idle_writes(store.address)
            finish_partition_moves(other.node.metastore)
            other_stub.add_partition(first)
            file.write_text("new")

        before_the_next(monkeypatch, StoreFolders, "move", replace)
        stub.drop_partitions_req(
            DropPartitionsRequest(
                dbName="default",
                tblName="t",
                parts=RequestPartsSpec(names=["p=a", "p=b"]),
                deleteData=True,
                environmentContext=PURGE,
            )
        )
        slow.node.cleaner.clean()
    assert file.read_text() == "new"
