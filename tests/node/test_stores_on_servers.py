"""Stores on servers: addresses and settings, the warehouse, and servers that lose commits."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import psycopg
import pytest

from strandline.catalog.commands import CreateSchema, DropTable
from strandline.config import Settings
from strandline.durable import durable_state
from strandline.errors import (
    CorruptData,
    InvalidInput,
    StoreMoved,
    UnknownOutcome,
    UnsupportedOperation,
    WrongEnvironment,
)
from strandline.metastore.cache.log_applier import LogApplier
from strandline.metastore.store.warehouse_head import WarehouseHead
from strandline.node import Node
from strandline.node.sequences import SKIPPED_IDS
from strandline.node.warehouse_place import MARKER, WAREHOUSE_HEAD
from tests.node.test_every_store import DELAY, TIMEOUT, create_table
from tests.servers import stores
from tests.servers.stores import EmptyStore


@pytest.fixture
def on_servers(tmp_path: Path) -> EmptyStore:
    return stores.new_store("postgresql", tmp_path, settings=DELAY)


@pytest.mark.parametrize("catalog_log", ["metastorage", "stash", "persist", "shadow"])
def test_the_present_is_known_while_a_large_change_of_rows_is_written(
    on_servers: EmptyStore, catalog_log: str
) -> None:
    settings = replace(on_servers.settings, catalog_log=catalog_log)
    with Node.open(on_servers.address, settings=settings) as node:
        create_table(node)
        catalogs, before = node.metastore.catalogs, node.metastore.catalogs.look()
        with node.store.sql_store._database.write(), ThreadPoolExecutor(1) as threads:
            assert threads.submit(catalogs.look).result(TIMEOUT) > before


# -- the warehouse of a store on servers


def test_a_new_store_on_servers_needs_a_warehouse(on_servers: EmptyStore) -> None:
    settings = replace(on_servers.settings, warehouse="")
    with pytest.raises(InvalidInput, match="add --warehouse"):
        Node.open(on_servers.address, settings=settings)
    with pytest.raises(InvalidInput, match="absolute path"):
        Node.open(on_servers.address, settings=replace(settings, warehouse="lake"))


def test_a_warehouse_other_than_the_stores_is_refused(
    on_servers: EmptyStore, tmp_path: Path
) -> None:
    Node.open(on_servers.address, settings=on_servers.settings).close()
    settings = replace(on_servers.settings, warehouse=str(tmp_path / "other"))
    with pytest.raises(StoreMoved, match="are in"):
        Node.open(on_servers.address, settings=settings)
    assert not (tmp_path / "other").exists()


def test_a_link_to_where_the_tables_were_moved_is_refused_as_such(
    on_servers: EmptyStore, tmp_path: Path
) -> None:
    Node.open(on_servers.address, settings=on_servers.settings).close()
    (tmp_path / "warehouse").rename(tmp_path / "moved")
    (tmp_path / "warehouse").symlink_to(tmp_path / "moved")
    message = f"warehouse is {tmp_path}/warehouse, which leads to {tmp_path}/moved"
    with pytest.raises(StoreMoved, match=f"{message}.*a symbolic link is not enough"):
        Node.open(on_servers.address, settings=on_servers.settings)


def test_the_warehouse_of_another_store_is_refused_and_no_store_is_created(
    on_servers: EmptyStore, tmp_path: Path
) -> None:
    Node.open(on_servers.address, settings=on_servers.settings).close()
    other = stores.new_store("postgresql", tmp_path)
    for _ in range(2):
        with pytest.raises(WrongEnvironment, match="holds the tables of another store"):
            Node.open(other.address, settings=other.settings)


def test_a_first_start_whose_warehouse_cannot_be_created_creates_no_catalog(
    on_servers: EmptyStore, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    settings = replace(on_servers.settings, warehouse=str(tmp_path / "file" / "warehouse"))
    with pytest.raises(InvalidInput, match="cannot be created: Not a directory"):
        Node.open(on_servers.address, settings=settings)
    with Node.open(on_servers.address, settings=on_servers.settings) as node:
        default = node.catalogs.latest_catalog().schema("default")
    assert default is not None
    assert default.location == f"file://{tmp_path}/warehouse"


def test_an_unmounted_warehouse_is_refused_and_not_recreated(
    on_servers: EmptyStore, tmp_path: Path
) -> None:
    Node.open(on_servers.address, settings=on_servers.settings).close()
    (tmp_path / "warehouse").rename(tmp_path / "away")
    for is_mount_point in (False, True):
        if is_mount_point:
            (tmp_path / "warehouse").mkdir()
        with pytest.raises(CorruptData, match="mount it"):
            Node.open(on_servers.address, settings=on_servers.settings)
    (tmp_path / "warehouse").rmdir()
    (tmp_path / "away").rename(tmp_path / "warehouse")
    Node.open(on_servers.address, settings=on_servers.settings).close()


def test_a_node_that_cannot_reach_the_warehouse_takes_nothing_over(
    on_servers: EmptyStore, tmp_path: Path
) -> None:
    newer = replace(on_servers.settings, deploy_generation=2)
    elsewhere = replace(newer, warehouse=str(tmp_path / "other"))
    with Node.open(on_servers.address, settings=on_servers.settings) as node:
        (tmp_path / "warehouse").rename(tmp_path / "away")
        with pytest.raises(CorruptData, match="mount it"):
            Node.open(on_servers.address, settings=newer)
        (tmp_path / "away").rename(tmp_path / "warehouse")
        with pytest.raises(StoreMoved, match="are in"):
            Node.open(on_servers.address, settings=elsewhere)
        assert durable_state(node._opened_store.catalog_log.log).epoch() == 1
        node.session(user="ann").begin()


def test_the_next_node_finishes_an_interrupted_claim_of_a_warehouse(
    on_servers: EmptyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("strandline.node.warehouse_place.os.link", "strandline.node.store_place.put"):
        with monkeypatch.context() as patch:
            patch.setattr(step, cut)
            with pytest.raises(KeyboardInterrupt):
                Node.open(on_servers.address, settings=on_servers.settings)
    Node.open(on_servers.address, settings=on_servers.settings).close()
    names = [path.name for path in (tmp_path / "warehouse").glob(".strandline*")]
    assert sorted(names) == [MARKER, WAREHOUSE_HEAD]


@pytest.mark.parametrize(
    ("address", "settings", "complaint"),
    [
        ("/tmp/a-folder", Settings(objects="postgresql://h/d"), r"\(STRANDLINE_OBJECTS\)"),
        ("/tmp/a-folder", Settings(warehouse="/tmp/w"), "leave warehouse out of the options"),
        ("postgresql://h/d", Settings(objects="postgresql://h/other"), "leave objects out"),
        ("etcd://h:1/p", Settings(), "STRANDLINE_OBJECTS=postgresql"),
        ("etcd://h:1/p", Settings(objects="/tmp/folder"), "STRANDLINE_OBJECTS=postgresql"),
        (
            "etcd://h:1/p",
            Settings(objects="postgresql://h/d", delay_ms=0),
            "leave delay_ms out",
        ),
    ],
)
def test_settings_that_do_not_fit_the_store_are_refused(
    address: str, settings: Settings, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Node.open(address, settings=settings)


def test_unsupported_servers_are_refused_and_no_message_contains_a_password() -> None:
    with pytest.raises(UnsupportedOperation, match="is not the address of a store"):
        Node.open("mysql://ann:geheim@h/d")
    for address, objects in (("etcd://ann:geheim@h:1/p", ""), ("/a", "postgresql://u:geheim@h/d")):
        with pytest.raises(InvalidInput) as refused:
            Node.open(address, settings=Settings(objects=objects))
        assert "geheim" not in refused.value.message


def test_a_store_on_servers_has_no_folder(on_servers: EmptyStore) -> None:
    with (
        Node.open(on_servers.address, settings=on_servers.settings) as node,
        pytest.raises(UnsupportedOperation, match="is on servers"),
    ):
        node.folder.exists()


@contextmanager
def set_back(address: str) -> Iterator[None]:
    """At the end of the block, the database has again the rows that it had before."""
    with psycopg.connect(address, autocommit=True) as server:
        tables = server.execute(
            "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        for (table,) in tables:
            server.execute(f"CREATE TABLE pg_temp.{table} AS TABLE public.{table}".encode())
        yield
        for (table,) in tables:
            restore = f"INSERT INTO public.{table} TABLE pg_temp.{table}"
            server.execute(f"TRUNCATE public.{table}; {restore}".encode())
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_folders_and_events_that_the_database_has_lost_are_made_again(tmp_path: Path) -> None:
    """A standby without the last commits has taken over, and the catalog is in etcd."""
    store = stores.new_store("etcd", tmp_path, settings=DELAY)
    with Node.open(store.address, settings=store.settings) as node:
        create_table(node, "kept")
        with set_back(store.settings.objects):
            create_table(node, "lost")
        await_projection(node)
        assert node.session(user="ann").table("default.lost").location.endswith("/lost")


@pytest.mark.parametrize("purge", [False, True])
def test_a_drop_that_the_database_has_lost_leaves_the_new_table_its_files(
    tmp_path: Path, purge: bool
) -> None:
    store = stores.new_store("etcd", tmp_path, settings=DELAY)
    with Node.open(store.address, settings=store.settings) as node:
        create_table(node, "t")
        with set_back(store.settings.objects):
            session = node.session(user="ann")
            session.execute(DropTable(schema="default", table="t", purge=purge))
            create_table(node, "t")
            file = Path(session.table("default.t").location.removeprefix("file://")) / "new"
            file.touch()
        await_projection(node)
        assert session.table("default.t").location == f"file://{file.parent}"
        assert file.exists()


def test_a_node_records_the_folders_that_an_older_release_has_moved(tmp_path: Path) -> None:
    store = stores.new_store("etcd", tmp_path, settings=DELAY)
    with Node.open(store.address, settings=store.settings) as node:
        create_table(node, "t")
        path = node.folders.warehouse / WAREHOUSE_HEAD
        recorded = path.read_bytes()
    path.unlink()
    Node.open(store.address, settings=store.settings).close()
    assert path.read_bytes() == recorded


def test_folders_of_a_store_that_was_restored_without_its_warehouse_are_moved(
    tmp_path: Path,
) -> None:
    """The warehouse has the folders of a version that neither etcd nor the database has."""
    store = stores.new_store("etcd", tmp_path, settings=DELAY)
    with Node.open(store.address, settings=store.settings) as node:
        create_table(node, "t")
        (update,) = node.catalogs.updates(2, 3)
        head = WarehouseHead(node.folders.warehouse / WAREHOUSE_HEAD, mode=0o600)
        head.note(replace(update, version=1_000))
        node.session(user="ann").execute(DropTable(schema="default", table="t"))
        assert not (node.folders.warehouse / "t").exists()


def await_projection(node: Node) -> None:
    end = time.monotonic() + 60
    while node.projector.projected_version() < node.catalogs.latest_catalog().version:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_node_whose_log_lost_versions_refuses_every_call_until_it_is_started_again(
    on_servers: EmptyStore,
) -> None:
    """A standby that had not received the last commits has taken over."""
    with Node.open(on_servers.address, settings=on_servers.settings) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="kept"))
        with set_back(on_servers.address):
            session.execute(CreateSchema(name="lost"))
        lost = r"ends at version \d+: a standby .* start the node again"
        assert re.search(lost, node.catalogs.set_back.result(timeout=60))
        with pytest.raises(CorruptData, match=lost):
            session.execute(CreateSchema(name="later"))
        with pytest.raises(CorruptData, match=lost):
            session.begin()
        time.sleep(0.1)  # the delay: for so long, it may answer from memory
        with pytest.raises(CorruptData, match=lost):
            session.tables("kept")
        assert "catalog head" in [problem.check for problem in node.health.report()]
    with Node.open(on_servers.address, settings=on_servers.settings) as node:
        node.session(user="ann").execute(CreateSchema(name="later"))
        catalog = node.catalogs.present()
        assert [catalog.schema(name) is None for name in ("kept", "lost", "later")] == [
            False,
            True,
            False,
        ]


def test_a_node_that_starts_on_an_older_database_says_which_version_is_lost_and_skips_ids(
    on_servers: EmptyStore, caplog: pytest.LogCaptureFixture
) -> None:
    with Node.open(on_servers.address, settings=on_servers.settings) as node:
        lost_id = node.session(user="ann").begin().txn_id
        create_table(node, "kept")
    with (
        set_back(on_servers.address),
        Node.open(on_servers.address, settings=on_servers.settings) as node,
    ):
        create_table(node, "lost")
        version = node.catalogs.latest_catalog().version
    for losses in (1, 0):
        caplog.clear()
        with Node.open(on_servers.address, settings=on_servers.settings) as node:
            txn_id = node.session(user="ann").begin().txn_id
            create_table(node, f"new_{losses}")
        assert SKIPPED_IDS < txn_id - lost_id < 2 * SKIPPED_IDS
        said = f"the catalog has lost version {version}, of which"
        assert caplog.text.count(said) == losses


def test_a_node_notices_a_standby_that_took_over_between_two_looks(
    on_servers: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lost its connections, and got others before it looked at the log."""
    monkeypatch.setattr("strandline.catalog.set_back.AWAY_MS", 1_000_000)
    is_over = threading.Event()
    with Node.open(on_servers.address, settings=on_servers.settings) as node:
        session = node.session(user="ann")
        monkeypatch.setattr(node.catalogs.state.log, "listen", lambda *_, **__: is_over.wait(60))
        with set_back(on_servers.address):
            session.execute(CreateSchema(name="lost"))
        with Node.open(on_servers.address, settings=on_servers.settings) as other:
            other.session(user="bob").execute(CreateSchema(name="other"))
        with pytest.raises(CorruptData, match="has another version"):
            session.execute(CreateSchema(name="later"))
        is_over.set()


def test_an_append_without_an_answer_is_not_repeated_on_a_standby_that_lacks_its_base(
    on_servers: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was validated against a version that is lost."""
    monkeypatch.setattr("strandline.catalog.set_back.AWAY_MS", 1_000_000)
    is_over = threading.Event()
    with (
        ExitStack() as primary,
        Node.open(on_servers.address, settings=on_servers.settings) as node,
    ):
        session, log = node.session(user="ann"), node.catalogs.state.log
        monkeypatch.setattr(log, "listen", lambda *_, **__: is_over.wait(60))
        primary.enter_context(set_back(on_servers.address))
        session.execute(CreateSchema(name="lost"))

        def take_over(*_: object, **__: object) -> None:
            appending.undo()
            primary.close()
            with Node.open(on_servers.address, settings=on_servers.settings) as other:
                other.session(user="bob").execute(CreateSchema(name="other"))
            node._opened_store.database.rows("SELECT 1")  # which finds the connection lost
            raise UnknownOutcome("the server went away")

        with monkeypatch.context() as appending:
            appending.setattr(log, "append", take_over)
            with pytest.raises(UnknownOutcome):
                session.execute(CreateSchema(name="later"))
        is_over.set()
    with Node.open(on_servers.address, settings=on_servers.settings) as node:
        catalog = node.catalogs.present()
        assert catalog.schema("other") is not None
        assert catalog.schema("later") is None


def test_memory_is_asked_only_after_a_look_once_a_connection_was_lost(
    on_servers: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified: SimpleQueue[LogApplier] = SimpleQueue()
    monkeypatch.setattr(LogApplier, "connection_lost", lambda self: notified.put(self))
    with Node.open(on_servers.address, settings=on_servers.settings) as node:
        assert notified.empty()
        with set_back(on_servers.address):
            pass
        assert notified.get(timeout=60) is node.store.log_applier  # its threads look
