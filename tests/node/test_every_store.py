"""What a node does on every kind of store: a folder, PostgreSQL, or etcd and PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    RenameTable,
    TableDefinition,
)
from strandline.clock import HybridClock, Timestamp, format_timestamp, system_wall_clock
from strandline.config import Settings
from strandline.durable import durable_state
from strandline.errors import ObjectNotFound, Unavailable, UnknownOutcome, WriteConflict
from strandline.fencing import FenceToken
from strandline.metastore.interface import PRESENT, AsOf
from strandline.metastore.off_loop import finish
from strandline.metastore.reader import Reader
from strandline.metastore.store.rows import DataFile, RowKind
from strandline.metastore.thrift import ThriftException
from strandline.model.types import BIGINT
from strandline.node import Node
from strandline.sql import FenceRow, StoreFull, take_time
from strandline.transactions.transaction_reads import TransactionReads
from tests.metastore.hive.hive_node import hive_node
from tests.metastore.snapshots import paths_of
from tests.servers import etcd, stores
from tests.servers.stores import EmptyStore

SERVERS = tuple(kind for kind in stores.KINDS if kind != "folder")
DELAY = Settings(delay_ms=100, clock_skew_ms=20)
TIMEOUT = 60.0


@pytest.fixture(params=stores.KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> EmptyStore:
    return stores.new_store(request.param, tmp_path, settings=_settings(request.param))


def _settings(kind: str) -> Settings:
    return Settings() if kind == "folder" else DELAY


@pytest.fixture
def open_node(store: EmptyStore) -> Iterator[Callable[[], Node]]:
    """Opens nodes on one store."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(Node.open(store.address, settings=store.settings))


def create(name: str) -> CreateTable:
    columns = (ColumnDefinition("k", BIGINT),)
    definition = TableDefinition(name=name, columns=columns, transactional=True)
    return CreateTable(schema="default", definition=definition)


def create_table(node: Node, name: str = "t") -> int:
    session = node.session(user="ann")
    session.execute(create(name))
    return session.table(f"default.{name}").descriptor.id


def data_file(path: str) -> DataFile:
    return DataFile(file_id=crc32(path.encode()) >> 12, path=path, rows=1, bytes=1)


def append(node: Node, table_id: int, *paths: str) -> None:
    session = node.session(user="ann")
    txn_id = session.begin().txn_id
    session.stage(txn_id, table_id, add=[data_file(path) for path in paths])
    session.commit(txn_id)


def paths(node: Node, at: AsOf = PRESENT) -> list[str]:
    return paths_of(node.session(user="ann"), "default.t", at=at)


VIEW = "VIRTUAL_VIEW"
"""The type that a client of the Hive protocol sees for a transactional table."""


def test_ddl_transactions_and_reads_work_over_thrift_and_sessions(store: EmptyStore) -> None:
    with hive_node(store.address, settings=store.settings) as hive, hive.client() as client:
        client.call("create_database", database={"name": "shop"})
        node = hive.node
        node.session(user="ann").execute(create("t"))
        assert client.call("get_table", dbname="default", tbl_name="t")["tableType"] == VIEW
        table = node.session(user="ann").table("default.t")
        assert table.location == f"{hive.node.metastore.warehouse}/t"
        assert Path(table.location.removeprefix("file://")).is_dir()
        append(node, table.descriptor.id, "a.parquet")
        assert paths(node) == ["a.parquet"]
        assert sorted(client.call("get_all_databases")) == ["default", "shop"]


def test_a_change_on_one_node_is_seen_by_another_as_soon_as_the_call_returns(
    open_node: Callable[[], Node],
) -> None:
    first, second = open_node(), open_node()
    table_id = create_table(first)
    for number in range(3):
        writer, reader = (first, second) if number % 2 else (second, first)
        append(writer, table_id, f"{number}.parquet")
        assert f"{number}.parquet" in paths(reader)
        writer.session(user="ann").execute(CreateSchema(name=f"s{number}"))
        assert f"s{number}" in [schema.name for schema in reader.catalogs.present().schemas()]


def test_every_node_finds_the_new_folder_of_a_renamed_table(
    open_node: Callable[[], Node],
) -> None:
    first, second = open_node(), open_node()
    create_table(first, "old")
    before = second.session(user="ann").table("default.old").location
    first.session(user="ann").execute(RenameTable(schema="default", table="old", new_name="fresh"))
    after = second.session(user="ann").table("default.fresh").location
    assert after == first.session(user="ann").table("default.fresh").location
    assert before != after
    assert Path(after.removeprefix("file://")).is_dir()


def test_a_reopened_store_has_its_tables_rows_and_warehouse(store: EmptyStore) -> None:
    with Node.open(store.address, settings=store.settings) as node:
        table_id = create_table(node)
        append(node, table_id, "a.parquet")
        location = node.session(user="ann").table("default.t").location
    # The warehouse is recorded in the store.
    settings = replace(store.settings, warehouse="")
    with Node.open(store.address, settings=settings) as node:
        assert paths(node) == ["a.parquet"]
        assert node.session(user="ann").table("default.t").location == location


def test_transactions_of_two_nodes_that_remove_the_same_file_conflict(
    open_node: Callable[[], Node],
) -> None:
    first, second = open_node(), open_node()
    table_id = create_table(first)
    append(first, table_id, "a.parquet")
    sessions = [node.session(user="ann") for node in (first, second)]
    txn_ids = [session.begin().txn_id for session in sessions]
    for session, txn_id in zip(sessions, txn_ids, strict=True):
        session.stage(txn_id, table_id, remove=["a.parquet"])
    sessions[1].commit(txn_ids[1])
    with pytest.raises(WriteConflict, match=r"default\.t"):
        sessions[0].commit(txn_ids[0])


def test_a_commit_to_a_table_dropped_on_another_node_conflicts(
    open_node: Callable[[], Node],
) -> None:
    first, second = open_node(), open_node()
    table_id = create_table(first)
    session = second.session(user="ann")
    txn_id = session.begin().txn_id
    session.stage(txn_id, table_id, add=[data_file("a.parquet")])
    first.session(user="ann").execute(DropTable(schema="default", table="t"))
    with pytest.raises(
        WriteConflict, match=r"conflict on default\.t: the table was dropped between"
    ):
        session.commit(txn_id)


def test_the_past_can_be_read_by_version_and_by_time(open_node: Callable[[], Node]) -> None:
    node = open_node()
    table_id = create_table(node)
    append(node, table_id, "a.parquet")
    version = node.catalogs.present().version
    time = node.session(user="ann").open([]).time
    node.session(user="ann").execute(CreateSchema(name="later"))
    append(node, table_id, "b.parquet")
    assert paths(node, AsOf(version=version)) == ["a.parquet"]
    assert paths(node, AsOf(time=time)) == ["a.parquet"]
    assert paths(node) == ["a.parquet", "b.parquet"]


@contextmanager
def two_clocks(store: EmptyStore) -> Iterator[tuple[Node, Node]]:
    """Two nodes; the clock of the first is ahead, almost as far as it may be."""
    settings = store.settings
    if settings.delay_ms is not None:  # so long that the second need not hear the time of the first
        settings = replace(settings, delay_ms=500, clock_skew_ms=200)

    def ahead() -> int:
        return system_wall_clock() + 190

    with (
        Node.open(store.address, settings=settings, wall=ahead) as first,
        Node.open(store.address, settings=settings) as second,
    ):
        yield first, second


def test_a_transaction_sees_the_change_before_it_although_the_clocks_were_set_back(
    store: EmptyStore,
) -> None:
    """Then no clock passes the activation of a version for an hour."""
    ahead_ms = 3_600_000

    def wall() -> int:
        return system_wall_clock() + ahead_ms

    with (
        Node.open(store.address, settings=store.settings, wall=wall) as node,
        Node.open(store.address, settings=store.settings, wall=wall) as other,
    ):
        create_table(node, "t0")
        ahead_ms = 0
        for number in (1, 2):
            create_table(node, f"t{number}")
            session = other.session(user="ann")
            transaction = session.begin()
            session.open([f"default.t{number}"], txn_id=transaction.txn_id)
            append_to = node.session(user="ann").table(f"default.t{number}").descriptor.id
            session.stage(transaction.txn_id, append_to, add=[data_file("a.parquet")])
            node.session(user="ann").execute(DropTable(schema="default", table=f"t{number}"))
            with pytest.raises(WriteConflict, match="was dropped"):
                session.commit(transaction.txn_id)


def test_a_read_of_the_present_version_sees_the_commits_of_a_node_whose_clock_is_ahead(
    store: EmptyStore,
) -> None:
    with two_clocks(store) as (writer, node):
        table_id = create_table(writer)
        present = AsOf(version=node.session(user="ann").table("default.t").catalog_version)
        for number in range(10):
            append(writer, table_id, f"{number}.parquet")
            assert len(paths(node, present)) == number + 1


def test_a_snapshot_of_the_present_takes_one_time_of_etcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a write to a majority of its members."""
    store = stores.new_store("etcd", tmp_path)
    with Node.open(store.address, settings=store.settings) as node:
        create_table(node)
        monkeypatch.setattr(TransactionReads, "settled", lambda *_, **__: None)
        looks: list[Timestamp] = []
        wait = CatalogManager.wait_for_completeness

        def counted(self: CatalogManager, at: Timestamp, **options: float) -> None:
            looks.append(at)
            wait(self, at, **options)

        monkeypatch.setattr(CatalogManager, "wait_for_completeness", counted)
        snapshot = node.session(user="ann").open(["default.t"])
        assert looks == []
        assert node.transactions.latest_time() >= snapshot.time


def test_a_snapshot_of_the_present_waits_for_no_long_write_of_another_process(
    store: EmptyStore,
) -> None:
    passed_ms = 0

    def wall() -> int:
        return system_wall_clock() + passed_ms

    with (
        Node.open(store.address, settings=store.settings, wall=wall) as node,
        Node.open(store.address, settings=store.settings, wall=wall) as writer,
    ):
        table_id = create_table(writer)
        append(writer, table_id, "a.parquet")
        with writer.database.write() as connection, ThreadPoolExecutor(1) as threads:
            passed_ms = 3_600_000
            opening = threads.submit(node.session(user="ann").open, ["default.t"])
            snapshot = opening.result(timeout=TIMEOUT)
            assert take_time(connection, HybridClock(wall)) > snapshot.time
        assert node.store.rows(table_id, RowKind.DATA_FILE, write_ids=snapshot.write_ids[table_id])


def test_no_commit_gets_a_time_before_a_snapshot_of_the_present(store: EmptyStore) -> None:
    with two_clocks(store) as (node, writer):
        table_id = create_table(writer)
        session = node.session(user="ann")
        present = AsOf(version=session.table("default.t").catalog_version)
        for number in range(4):
            append(writer, table_id, f"{2 * number}.parquet")
            snapshot = session.open(["default.t"], at=present if number % 2 else PRESENT)
            append(writer, table_id, f"{2 * number + 1}.parquet")
            assert len(paths(node, AsOf(time=snapshot.time))) == 2 * number + 1


def test_a_past_version_can_be_read_while_another_process_holds_the_write_lock(
    open_node: Callable[[], Node],
) -> None:
    node, other = open_node(), open_node()
    table_id = create_table(node)
    version = node.catalogs.present().version
    node.session(user="ann").execute(CreateSchema(name="later"))
    append(node, table_id, "b.parquet")
    with other.database.write(), ThreadPoolExecutor(1) as threads:
        point = AsOf(version=version)
        reader = Reader(node.metastore, node.catalogs.latest_catalog(), user=None)
        reading = threads.submit(finish, reader.open(["default.t"], at=point))
        write_ids = reading.result(timeout=60).write_ids[table_id]
        assert node.store.rows(table_id, RowKind.DATA_FILE, write_ids=write_ids) == []


def test_nodes_that_create_a_store_concurrently_share_it(store: EmptyStore) -> None:
    begin = threading.Barrier(2, timeout=120)

    def open_it() -> str:
        begin.wait()
        with Node.open(store.address, settings=store.settings) as node:
            create_table(node, f"t{threading.get_ident()}")
            begin.wait()
            return node.catalogs.state.environment or ""

    with ThreadPoolExecutor(2) as threads:
        opened = [threads.submit(open_it) for _ in range(2)]
        first, second = as_completed(opened)  # the first failure, not a timeout after it
        assert first.result() == second.result()
    with Node.open(store.address, settings=store.settings) as node:
        assert len(node.session(user="ann").tables("default")) == 2


def test_a_node_can_write_rows_after_it_has_joined_a_new_epoch(
    open_node: Callable[[], Node],
) -> None:
    node = open_node()
    table_id = create_table(node)

    def raise_fence(token: FenceToken, environment: str | None) -> None:
        assert environment is not None
        with node.database.write() as connection:
            FenceRow.initialize(connection, environment, token)

    durable_state(node._opened_store.catalog_log.log).open(
        member="new", initialize=lambda _: None, raise_fence=raise_fence, deploy_generation=0
    )
    node.catalogs.sync()
    append(node, table_id, "a.parquet")
    assert paths(node) == ["a.parquet"]


def test_a_node_is_unhealthy_once_its_database_or_warehouse_is_moved_away(
    open_node: Callable[[], Node], tmp_path: Path
) -> None:
    node = open_node()
    assert node.health.report() == []
    taken = next(p for p in (tmp_path / "strandline.db", tmp_path / "warehouse") if p.exists())
    taken.rename(tmp_path / "away")
    assert [problem.check for problem in node.health.report()][:1] in (
        ["database in its place"],
        ["warehouse in its place"],
    )


# -- on the event loop


def test_the_present_is_answered_from_memory_while_fresh(
    open_node: Callable[[], Node],
) -> None:
    node = open_node()
    create_table(node)
    end = time.monotonic() + 60
    while True:
        node.catalogs.present()
        before = node.database.statistics()
        catalog = node.catalogs.known_present()
        after = node.database.statistics()
        is_unasked = (after.reads, after.writes) == (before.reads, before.writes)
        if (catalog is not None and is_unasked) or time.monotonic() > end:
            break  # else a busy machine took longer than the catalog stays fresh, or a thread read
    assert catalog is not None
    assert catalog.version == node.catalogs.latest_catalog().version
    assert is_unasked


def test_a_node_with_a_full_etcd_answers_reads_and_refuses_writes(tmp_path: Path) -> None:
    store = stores.new_store("etcd", tmp_path)
    with (
        hive_node(store.address, settings=store.settings) as hive,
        hive.another_node() as other,
        hive.client() as client,
    ):
        session = hive.node.session(user="ann")
        session.execute(CreateSchema(name="s"))
        version = hive.node.catalogs.present().version
        create_table(other)
        past = f"default@{format_timestamp(other.catalogs.present().time)}"
        hive.node.catalogs.present()
        with etcd.running().full():
            while hive.node.catalogs.known_present() is not None:
                time.sleep(0.005)  # until the last look before has expired
            assert client.call("get_all_tables", db_name="default") == ["t"]
            assert client.call("get_all_tables", db_name=past) == ["t"]
            assert client.call("get_all_tables", db_name=f"default@{version}") == []
            assert sorted(client.call("get_all_databases")) == ["default", "s"]
            with Node.open(store.address, settings=store.settings) as started:
                assert started.session(user="ann").table("default.t").descriptor.name == "t"
            for write in (
                lambda: session.execute(DropTable(schema="default", table="t")),
                lambda: create_table(other, "u"),
                session.begin,
            ):
                began = time.monotonic()
                with pytest.raises(StoreFull, match=r"is full.* disarm its alarm"):
                    write()
                assert time.monotonic() - began < 10
        create_table(other, "u")
        assert client.call("get_all_tables", db_name="default") == ["t", "u"]


def test_no_folder_and_no_rows_are_changed_while_the_warehouse_of_a_running_node_is_unmounted(
    store: EmptyStore, tmp_path: Path
) -> None:
    warehouse, mounted = tmp_path / "warehouse", tmp_path / "mounted"
    if store.settings.warehouse == "":  # in a folder, a link may lead to another file system
        mounted.mkdir()
        warehouse.symlink_to(mounted)
        away = tmp_path / "away"
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        for name in ("t", "u"):
            session.execute(create(name))
            (warehouse / name / "rows").write_text("kept")
        table_id = create_table(node, "transactional")
        if warehouse.is_symlink():
            mounted.rename(away)
        else:
            warehouse.rename(mounted)
            warehouse.mkdir()
        with pytest.raises(Unavailable, match=r"not in its place; mount .* nothing was changed"):
            session.execute(RenameTable(schema="default", table="t", new_name="v"))
        assert session.table("default.t")
        with pytest.raises(Unavailable, match="not in its place"):
            append(node, table_id, "written-below-the-mount.parquet")
        # The warehouse may go away after that check.
        renamed = node.catalogs.execute(
            RenameTable(schema="default", table="u", new_name="w"), author="ann"
        )
        with pytest.raises(Unavailable, match="not in its place"):
            node.projector.project_up_to(renamed.version)
        assert not [*warehouse.glob("*")]
        if warehouse.is_symlink():
            away.rename(mounted)
        else:
            warehouse.rmdir()
            mounted.rename(warehouse)
        node.projector.project_up_to(renamed.version)
        for name in ("t", "w"):
            folder = session.table(f"default.{name}").location.removeprefix("file://")
            assert Path(folder, "rows").read_text() == "kept"


def test_reading_a_table_that_does_not_exist_raises_object_not_found(
    open_node: Callable[[], Node],
) -> None:
    with pytest.raises(ObjectNotFound):
        open_node().session(user="ann").table("default.nothing")


def test_a_change_that_is_in_the_log_is_not_reported_as_refused(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Unavailable("the server cannot be reached; nothing was changed, try again")

    def fail(*_: object, **__: object) -> None:
        raise away

    in_log = (
        r"in the log as version (\d+), and .*; do not repeat it \(the server cannot be reached\)$"
    )
    with hive_node(store.address, settings=store.settings) as hive, hive.client() as client:
        node = hive.node
        with monkeypatch.context() as patch:
            patch.setattr(node.projector, "project_up_to", fail)
            with pytest.raises(UnknownOutcome, match=in_log):
                node.session(user="ann").execute(CreateSchema(name="shop"))
        assert "shop" in client.call("get_all_databases")
        columns = [{"name": "k", "type": "int"}]
        table = {"dbName": "shop", "tableName": "t", "parameters": {"numRows": "1"}}
        table["sd"] = {"cols": columns, "serdeInfo": {"name": "t"}}
        with monkeypatch.context() as patch:
            patch.setattr(node.store, "set_parameters", fail)
            with pytest.raises(ThriftException, match=in_log):
                client.call("create_table", tbl=table)
        assert client.call("get_all_tables", db_name="shop") == ["t"]
