"""PyIceberg's Hive catalog on this metastore: namespaces, tables, and commits under its locks.

PyIceberg's own integration suite is run by hand before a release; its findings are tested here.
Most of PyIceberg is imported inside functions: each process of a run imports this module, and one
of them needs PyIceberg.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)

from strandline.metastore.hive.alter_relation import AlterRelation
from strandline.transactions import locks as locks_of_transactions
from tests.metastore.hive.hive_node import HiveNode

WRITERS, FEW_WRITERS = 12, 4
ROWS = 3
IMPATIENT = {
    "lock-check-min-wait-time": "0.01",
    "lock-check-max-wait-time": "0.05",
    "lock-check-retries": "1000",
}
RETRIES = {
    "commit.retry.num-retries": "100",
    "commit.retry.min-wait-ms": "20",
    "commit.retry.max-wait-ms": "300",
    "commit.retry.total-timeout-ms": "120000",
}


def new_schema() -> Any:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    return Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType())
    )


def connect(hive: HiveNode) -> Any:
    from pyiceberg.catalog.hive import HiveCatalog

    return HiveCatalog("hive", uri=hive.uri, warehouse=f"{hive.warehouse}/iceberg", **IMPATIENT)


@pytest.fixture
def catalog(hive: HiveNode) -> Iterator[Any]:
    made = connect(hive)
    yield made
    made.close()


def rows(first: int, count: int = ROWS) -> pa.Table:
    ids = range(first, first + count)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    return pa.table({"id": list(ids), "name": [str(number) for number in ids]}, schema=schema)


def test_a_namespace_is_created_found_changed_and_dropped(catalog: Any) -> None:
    catalog.create_namespace("lake", {"comment": "all of it", "k": "v"})
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("lake")
    assert ("lake",) in catalog.list_namespaces()
    assert catalog.load_namespace_properties("lake")["k"] == "v"
    catalog.update_namespace_properties("lake", removals={"k"}, updates={"l": "w"})
    properties = catalog.load_namespace_properties("lake")
    assert ("k" in properties, properties["l"]) == (False, "w")
    catalog.drop_namespace("lake")
    with pytest.raises(NoSuchNamespaceError):
        catalog.load_namespace_properties("lake")
    with pytest.raises(NoSuchNamespaceError):
        catalog.drop_namespace("lake")
    assert catalog.list_tables("lake") == []


def test_a_table_is_created_found_renamed_and_dropped(hive: HiveNode, catalog: Any) -> None:
    made = catalog.create_table("d1.orders", new_schema(), properties={"owner": "ann"})
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("d1.orders", new_schema())
    assert catalog.list_tables("d1") == [("d1", "orders")]
    orders = catalog.load_table("d1.orders")
    assert orders.schema().fields == new_schema().fields
    assert orders.metadata_location == made.metadata_location
    properties = dict(hive.node.session(user="ann").table("d1.orders").descriptor.properties)
    assert properties["metadata_location"] == made.metadata_location
    catalog.rename_table("d1.orders", "d1.sales")
    assert catalog.load_table("d1.sales").metadata_location == made.metadata_location
    with pytest.raises(NoSuchTableError):
        catalog.load_table("d1.orders")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("d1")
    catalog.drop_table("d1.sales")
    assert catalog.list_tables("d1") == []


def test_a_table_as_of_a_version_keeps_its_rows_after_appends_a_rename_and_a_drop(
    hive: HiveNode, catalog: Any
) -> None:
    def ids(name: str) -> list[int]:
        return sorted(catalog.load_table(name).scan().to_arrow()["id"].to_pylist())

    catalog.create_namespace("lake")
    catalog.create_table("lake.orders", new_schema()).append(rows(1))
    first = f"lake@{hive.node.metastore.catalogs.present().version}"
    catalog.load_table("lake.orders").append(rows(10))
    second = f"lake@{hive.node.metastore.catalogs.present().version}"
    catalog.rename_table("lake.orders", "lake.sales")
    renamed = f"lake@{hive.node.metastore.catalogs.present().version}"
    catalog.drop_table("lake.sales")
    assert ids(f"{first}.orders") == [1, 2, 3]
    assert ids(f"{second}.orders") == ids(f"{renamed}.sales") == [1, 2, 3, 10, 11, 12]
    assert catalog.list_tables(renamed) == [(renamed, "sales")]
    with pytest.raises(NoSuchTableError):
        catalog.load_table(f"{renamed}.orders")
    with pytest.raises(Exception, match="read"):
        catalog.load_table(f"{first}.orders").append(rows(20))
    with pytest.raises(Exception, match="read"):
        catalog.drop_table(f"{first}.orders")
    assert ids(f"{first}.orders") == [1, 2, 3]
    catalog.drop_namespace("lake")


def test_a_table_is_moved_to_another_namespace_dropped_and_registered_again(catalog: Any) -> None:
    made = catalog.create_table("d1.orders", new_schema())
    made.append(rows(1))
    location = catalog.load_table("d1.orders").metadata_location
    assert (catalog.table_exists("d1.orders"), catalog.table_exists("d1.nosuch")) == (True, False)
    catalog.create_namespace("lake")
    catalog.rename_table("d1.orders", "lake.orders")
    assert (catalog.list_tables("d1"), catalog.list_tables("lake")) == ([], [("lake", "orders")])
    catalog.drop_table("lake.orders")
    catalog.register_table("d1.again", location)
    assert len(catalog.load_table("d1.again").scan().to_arrow()) == ROWS
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table("d1.again", location)
    with pytest.raises(NoSuchTableError):
        catalog.rename_table("d1.orders", "d1.sales")
    catalog.drop_table("d1.again")
    catalog.drop_namespace("lake")


def test_a_commit_to_a_table_that_was_renamed_or_dropped_meanwhile_changes_nothing(
    catalog: Any,
) -> None:
    early = catalog.create_table("d1.orders", new_schema())
    catalog.rename_table("d1.orders", "d1.sales")
    with pytest.raises(Exception, match="orders"):
        early.append(rows(1))
    assert catalog.load_table("d1.sales").current_snapshot() is None
    early = catalog.load_table("d1.sales")
    catalog.drop_table("d1.sales")
    with pytest.raises(Exception, match="sales"):
        early.append(rows(1))
    assert catalog.list_tables("d1") == []


def test_the_comment_of_a_namespace_can_be_changed(catalog: Any) -> None:
    catalog.create_namespace("lake", {"comment": "before"})
    catalog.update_namespace_properties("lake", updates={"comment": "after"})
    assert catalog.load_namespace_properties("lake")["comment"] == "after"
    catalog.drop_namespace("lake")


# -- commits -------------------------------------------------------------------------------------


def test_rows_are_appended_deleted_and_read(hive: HiveNode, catalog: Any) -> None:
    table = catalog.create_table("d1.orders", new_schema())
    table.append(rows(1))
    before = hive.node.metastore.catalogs.present().version
    table.append(rows(10))
    table.delete("id = 2")
    assert sorted(catalog.load_table("d1.orders").scan().to_arrow()["id"].to_pylist()) == [
        *(1, 3),
        *(10, 11, 12),
    ]
    past_rows = catalog.load_table(f"d1@{before}.orders").scan().to_arrow()
    assert sorted(past_rows["id"].to_pylist()) == [1, 2, 3]
    assert hive.node.transactions.locks.list() == []


def test_the_schema_and_the_partitioning_of_a_table_can_be_changed(catalog: Any) -> None:
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import StringType

    table = catalog.create_table("d1.orders", new_schema())
    with table.update_schema() as schema:
        schema.add_column("note", StringType())
        schema.rename_column("name", "label")
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "id_bucket")
    orders = catalog.load_table("d1.orders")
    assert orders.schema().column_names == ["id", "label", "note"]
    assert [field.name for field in orders.spec().fields] == ["id_bucket"]


def test_a_transaction_creates_a_table_with_rows_and_properties(catalog: Any) -> None:
    with catalog.create_table_transaction("d1.orders", new_schema()) as transaction:
        transaction.set_properties(k="v")
        transaction.append(rows(1))
    orders = catalog.load_table("d1.orders")
    assert (orders.properties["k"], len(orders.scan().to_arrow())) == ("v", ROWS)


def test_a_change_that_is_based_on_an_outdated_schema_fails(catalog: Any) -> None:
    from pyiceberg.types import StringType

    first = catalog.create_table("d1.orders", new_schema())
    second = catalog.load_table("d1.orders")
    with first.update_schema() as schema:
        schema.add_column("note", StringType())
    late = second.update_schema().add_column("remark", StringType())
    with pytest.raises(CommitFailedException, match="current schema"):
        late.commit()
    assert catalog.load_table("d1.orders").schema().column_names == ["id", "name", "note"]


def append_one(hive: HiveNode, start: Barrier, first: int) -> None:
    catalog = connect(hive)
    try:
        table = catalog.load_table("d1.orders")
        start.wait(120)
        table.append(rows(first))
    finally:
        catalog.close()


def append_concurrently(hive: HiveNode, catalog: Any, *, writers: int) -> list[int]:
    """The ids in the table after ``writers`` concurrent appends."""
    catalog.create_table("d1.orders", new_schema(), properties=RETRIES)
    start = Barrier(writers)
    with ThreadPoolExecutor(writers) as pool:
        firsts = range(0, writers * ROWS, ROWS)
        for ended in [pool.submit(append_one, hive, start, first) for first in firsts]:
            ended.result()
    return sorted(catalog.load_table("d1.orders").scan().to_arrow()["id"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("writers", [FEW_WRITERS, pytest.param(WRITERS, marks=pytest.mark.soak)])
def test_concurrent_appends_lose_no_row(hive: HiveNode, catalog: Any, writers: int) -> None:
    assert append_concurrently(hive, catalog, writers=writers) == list(range(writers * ROWS))


def test_a_commit_whose_lock_has_timed_out_does_not_undo_another_commit(
    hive: HiveNode, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.create_table("d1.orders", new_schema())
    other = connect(hive)
    stage = catalog._update_and_stage_table

    def slow(*arguments: Any) -> Any:
        monkeypatch.undo()
        (lock,) = hive.node.transactions.locks.list()
        hive.node.transactions.locks.release(lock.lock_id)
        other.load_table("d1.orders").append(rows(1))
        return stage(*arguments)

    monkeypatch.setattr(catalog, "_update_and_stage_table", slow)
    with pytest.raises(Exception, match="The table has been modified"):
        table.append(rows(10))
    assert sorted(catalog.load_table("d1.orders").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
    other.close()


@pytest.mark.teeth
def test_locks_that_are_always_granted_lose_rows(
    hive: HiveNode, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two writers wait until both have loaded the table that they change."""
    from pyiceberg.catalog.hive import HiveCatalog

    stage, numbers, both = HiveCatalog._update_and_stage_table, count(), Barrier(2)

    def stage_together(*arguments: Any) -> Any:
        if next(numbers) < 2:
            both.wait(120)
        return stage(*arguments)

    monkeypatch.setattr(HiveCatalog, "_update_and_stage_table", stage_together)
    monkeypatch.setattr(locks_of_transactions, "_first_conflict", lambda *_: None)
    monkeypatch.setattr(AlterRelation, "_check_iceberg_base", lambda *_: None)
    assert len(append_concurrently(hive, catalog, writers=FEW_WRITERS)) < FEW_WRITERS * ROWS
