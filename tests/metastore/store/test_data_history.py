"""The history of data costs what the commits cost that it returns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import pytest

from strandline import work
from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.metastore.store import data_history
from strandline.metastore.store.rows import NewRow, PartitionRow, new_statistics
from strandline.model.types import BIGINT
from strandline.node import Node
from tests.metastore.dml import data_file
from tests.servers import stores
from tests.sql.statements import recorded


@pytest.fixture(params=["folder", "postgresql"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    store = stores.new_store(request.param, tmp_path / "lake")
    with Node.open(store.address, settings=store.settings) as opened:
        yield opened


def create(node: Node, name: str, *, plain: bool = True) -> int:
    session = node.session(user="ann")
    columns = (ColumnDefinition("v", BIGINT), ColumnDefinition("k", BIGINT))
    keys = ("k",) if plain else ()
    definition = TableDefinition(
        name=name, columns=columns, partition_columns=keys, transactional=not plain
    )
    session.execute(CreateTable(schema="default", definition=definition))
    return session.table(f"default.{name}").descriptor.id


def add_partition(node: Node, table_id: int, name: str) -> int:
    row = PartitionRow(values=(name[2:],), location=name)
    with node.store.change(table_id, author="ann") as change:
        partition, _ = change.stage(add=[NewRow.of(row, name=name), new_statistics((), name=name)])
    return partition


@pytest.mark.parametrize("page", [1, data_history.PAGE])
def test_commits_that_changed_only_counts_or_other_tables_are_not_read(
    node: Node, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(data_history, "PAGE", page)
    table_id, other_id = create(node, "t"), create(node, "other")
    partition = add_partition(node, table_id, "k=1")
    for number in range(3):
        node.store.set_parameters(table_id, (("numRows", str(number)),), author="ann")
        add_partition(node, other_id, f"k={number}")
    with node.store.change(table_id, author="ann") as change:
        change.stage(remove=[partition])
    read = Mock(wraps=data_history._change)
    monkeypatch.setattr(data_history, "_change", read)
    commits = node.session(user="ann").data_history(table="default.t")
    changes = [change for commit in commits for change in commit.changes]
    assert [(change.partitions_added, change.partitions_removed) for change in changes] == [
        (1, 0),
        (0, 1),
    ]
    assert read.call_count == 2


def test_the_history_of_tables_is_read_in_the_order_of_the_index_of_their_commits(
    node: Node,
) -> None:
    table_ids = {create(node, "t"), create(node, "other")}
    with recorded(of_this_thread=True) as statements, node.database.read() as connection:
        assert list(data_history.data_commits(connection, table_ids=table_ids)) == []
    reads = [read for read in statements if "ORDER BY" in read[0]]
    assert len(reads) == 2
    explain = "EXPLAIN QUERY PLAN" if node.database.dialect == "sqlite" else "EXPLAIN"
    for statement, parameters in reads:
        with node.database.read() as connection:
            if node.database.dialect == "postgresql":  # a small table is read as a whole
                connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            plan = str(connection.exec_driver_sql(f"{explain} {statement}", parameters).all())
        assert "txn_write_id_by_commit_time" in plan
        assert "txn_by_commit_time" not in plan
        assert "TEMP B-TREE FOR ORDER BY" not in plan


def test_the_history_of_several_tables_has_each_commit_once_and_in_order(node: Node) -> None:
    session = node.session(user="ann")
    first_id, second_id = table_ids = [create(node, name, plain=False) for name in ("a", "b")]
    for changed_ids in ([second_id], [first_id], table_ids):
        txn_id = session.begin().txn_id
        for table_id in changed_ids:
            with node.store.sql_store.staging(txn_id, table_id) as staging:
                staging.stage(add=[data_file(f"{txn_id}.parquet")])
        session.commit(txn_id)
    with node.database.read() as connection:
        commits = list(data_history.data_commits(connection, table_ids=table_ids))
        reverse = data_history.data_commits(connection, table_ids=table_ids, newest_first=True)
        assert [*reverse] == commits[::-1]
    assert [[change.table_id for change in commit.changes] for commit in commits] == [
        [second_id],
        [first_id],
        [first_id, second_id],
    ]


@pytest.mark.parametrize("page", [1, 2, data_history.PAGE])
def test_the_newest_commits_are_read_without_the_older_ones(
    node: Node, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(data_history, "PAGE", page)
    table_id = create(node, "t")
    for number in range(5):
        add_partition(node, table_id, f"k={number}")
    for table_ids in (None, {table_id}):
        with node.database.read() as connection:
            commits = list(data_history.data_commits(connection, table_ids=table_ids))
            first, last = commits[1].time, commits[3].time
            within = data_history.data_commits(
                connection, since=first, until=last, table_ids=table_ids, newest_first=True
            )
            assert list(within) == commits[3:0:-1]
            read = Mock(wraps=data_history._change)
            monkeypatch.setattr(data_history, "_change", read)
            newest = data_history.data_commits(connection, table_ids=table_ids, newest_first=True)
            assert list(islice(newest, 2)) == commits[:2:-1]
        assert read.call_count == 2


@pytest.mark.slow
@pytest.mark.parametrize("of_one", [False, True])
def test_a_long_history_and_a_large_commit_are_too_long_for_a_thread(
    node: Node, *, of_one: bool
) -> None:
    table_id = create(node, "t")
    if of_one:
        names = [f"k={number}" for number in range(60)]
        rows = [PartitionRow(values=(name[2:],), location=name) for name in names]
        with node.store.change(table_id, author="ann") as change:
            change.stage(add=[NewRow.of(row, name=row.location) for row in rows])
    else:
        for number in range(60):
            add_partition(node, table_id, f"k={number}")
    session = node.session(user="ann")
    with work.budget(50), pytest.raises(work.TooLong):
        session.data_history(table="default.t")
    assert len(session.data_history(table="default.t")) == (1 if of_one else 60)
