"""Backup and restore of a store on PostgreSQL, with each catalog log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from strandline.catalog.commands import DropTable, RenameTable
from strandline.clock import HybridClock
from strandline.config import Settings
from strandline.durable.log_copy import LogCopy
from strandline.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    DeadlineExceeded,
    InvalidInput,
    UnknownOutcome,
    WrongEnvironment,
)
from strandline.metastore.session import LocalSession
from strandline.node import Node
from strandline.node.address import store_address
from strandline.node.backup import back_up, database_copy, restore, restoring, taking
from strandline.node.backup.database_copy import copy_database, copy_rows
from strandline.node.membership import open_newer_epoch
from strandline.sql import Database, open_database
from tests.metastore.snapshots import paths_of
from tests.node.backups import append, place
from tests.node.test_catalog_log import fill, tables
from tests.servers import postgresql, stores
from tests.servers.loopback import Cut, Proxy
from tests.servers.stores import EmptyStore
from tests.strandline_command import strandline


def new_store(tmp_path: Path, *, log: str = "metastorage", kind: str = "postgresql") -> EmptyStore:
    settings = Settings(catalog_log=log)
    if kind != "folder":
        settings = replace(settings, delay_ms=100, clock_skew_ms=20)
    return stores.new_store(kind, tmp_path / "old", settings=settings)


def restored_to(backup: Path, folder: Path, *, copy: bool = True, address: str = "") -> EmptyStore:
    address = address or postgresql.running().new_database()
    settings = Settings(warehouse=str(folder))
    target = store_address(address, settings)
    restore(backup, target, copy=copy, warehouse=settings.warehouse)
    return EmptyStore(address, settings)


def present_files(session: LocalSession, name: str) -> list[str]:
    """The data files of a table that are on disk where the store says."""
    return [path for path in paths_of(session, name) if (place(session, name) / path).is_file()]


@pytest.fixture(
    params=["stash", pytest.param("shadow:metastorage+persist", marks=pytest.mark.slow)]
)
def log_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_store_on_a_server_is_restored_with_history_rows_and_files(
    log_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of the copy of its rows; a table is renamed and one is dropped after that."""
    store = new_store(tmp_path, log=log_name)
    with Node.open(store.address, settings=store.settings) as node:
        fill(node, "t", "u")
        session = node.session(user="ann")
        assert session.compact(node.catalogs.latest_catalog().version - 1)
        before = session.history()
        environment = node.catalogs.state.environment
        last_txn = session.begin().txn_id
        version = node.catalogs.latest_catalog().version

        def then_others_move(*arguments: Any) -> None:
            copy_database(*arguments)
            session.execute(RenameTable(schema="default", table="t", new_name="moved"))
            session.execute(DropTable(schema="default", table="u"))

        monkeypatch.setattr(taking, "copy_database", then_others_move)
        manifest = back_up(node, tmp_path / "b", user="ann")
        assert manifest.missing == []
        assert manifest.catalog_version == version
    copy = restored_to(tmp_path / "b", tmp_path / "new")
    with Node.open(copy.address, settings=copy.settings) as node:
        assert node.catalogs.state.environment != environment
        session = node.session(user="bob")
        assert tables(node) == ["t", "u"]
        assert session.history()[: len(before)] == before
        assert place(session, "default.t").is_relative_to(tmp_path / "new")
        for name in ("default.t", "default.u"):
            assert present_files(session, name) == ["data.parquet"]
        assert node.transactions.holds.list() == ()
        assert session.begin().txn_id > last_txn
        append(session, "default.t", "b.parquet")
        fill(node, "v")
    with Node.open(store.address, settings=store.settings) as node:
        assert node.catalogs.state.environment == environment
        assert tables(node) == ["moved"]
        assert present_files(node.session(user="ann"), "default.moved") == ["data.parquet"]
    verified = strandline("verify", copy.address)
    assert " is missing" not in verified.output
    assert " 0 leftovers in " in verified.output


@pytest.fixture
def backed_up(tmp_path: Path) -> EmptyStore:
    """A store with one table whose catalog has no blobs, and its backup ``b``."""
    store = new_store(tmp_path, log="persist")
    with Node.open(store.address, settings=store.settings) as node:
        fill(node, "t")
    made = strandline("backup", store.address, tmp_path / "b")
    assert made.exit_code == 0, made.output
    return store


@pytest.mark.slow
def test_a_restore_over_existing_data_is_refused(backed_up: EmptyStore, tmp_path: Path) -> None:
    with pytest.raises(AlreadyExists, match="it contains a store"):
        restored_to(tmp_path / "b", tmp_path / "new", address=backed_up.address)
    with pytest.raises(AlreadyExists, match=r"old/warehouse is not empty; .*, with --warehouse"):
        restored_to(tmp_path / "b", Path(backed_up.settings.warehouse))
    with pytest.raises(InvalidInput, match=r"is inside .*/old/warehouse, which is a folder of"):
        restored_to(tmp_path / "b", Path(backed_up.settings.warehouse) / "inner")
    with pytest.raises(Conflict, match=r"still in .*/old/warehouse.*--copy"):
        restored_to(tmp_path / "b", tmp_path / "new", copy=False)
    with pytest.raises(InvalidInput, match="is the backup of a store on servers"):
        restore(tmp_path / "b", store_address(tmp_path / "new", Settings()), copy=True)
    assert not (tmp_path / "new").exists()
    with Node.open(backed_up.address, settings=backed_up.settings) as node:
        assert tables(node) == ["t"]


@pytest.mark.slow
def test_a_lost_store_is_restored_to_its_original_warehouse_without_the_copy_option(
    backed_up: EmptyStore, tmp_path: Path
) -> None:
    warehouse = Path(backed_up.settings.warehouse)
    warehouse.rename(tmp_path / "broken")
    address = postgresql.running().new_database()
    result = strandline("restore", tmp_path / "b", address)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("restored to postgresql://")
    with Node.open(address, settings=backed_up.settings) as node:
        assert present_files(node.session(user="ann"), "default.t") == ["data.parquet"]


def refuse(*_: object, **__: object) -> None:
    raise CorruptData("another catalog")


def end_after_the_commit(*databases: Database) -> None:
    copy_rows(*databases)
    raise SystemExit  # as SIGTERM does


@pytest.mark.slow
@pytest.mark.usefixtures("backed_up")
@pytest.mark.parametrize(
    ("step", "fails", "error"),
    [
        ("_verify", refuse, CorruptData),
        ("copy_rows", refuse, CorruptData),
        ("copy_rows", end_after_the_commit, SystemExit),
    ],
)
def test_a_failed_restore_leaves_a_database_that_the_next_one_can_use(
    step: str,
    fails: Callable[..., None],
    error: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = postgresql.running().new_database()
    with monkeypatch.context() as broken:
        broken.setattr(restoring, step, fails)
        with pytest.raises(error):
            restored_to(tmp_path / "b", tmp_path / "new", address=address)
    assert list((tmp_path / "new").iterdir()) == []
    restored = restored_to(tmp_path / "b", tmp_path / "new", address=address)
    with Node.open(restored.address, settings=restored.settings) as node:
        assert tables(node) == ["t"]


@pytest.mark.slow
@pytest.mark.usefixtures("backed_up")
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_restore_whose_server_is_away_after_the_commit_leaves_the_whole_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    server, is_away = postgresql.running(), threading.Event()
    address = server.new_database()

    def then_go_away(*databases: Database) -> None:
        copy_rows(*databases)
        is_away.set()
        if is_interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(restoring, "copy_rows", then_go_away)
    with Proxy(server.port, lambda data: Cut.REQUEST if is_away.is_set() else None) as line:
        through = address.replace(f":{server.port}/", f":{line.port}/")
        with pytest.raises(UnknownOutcome, match="start a node on it"):
            restored_to(tmp_path / "b", tmp_path / "new", address=through)
    with Node.open(address, settings=Settings(warehouse=str(tmp_path / "new"))) as node:
        assert present_files(node.session(user="ann"), "default.t") == ["data.parquet"]


@pytest.mark.slow
@pytest.mark.usefixtures("backed_up")
def test_ctrl_c_while_a_restore_removes_its_temporary_files_leaves_the_whole_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgresql.running().new_database()
    clean_up = TemporaryDirectory.cleanup

    def then_interrupt(folder: TemporaryDirectory[str]) -> None:
        clean_up(folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(TemporaryDirectory, "cleanup", then_interrupt)
        with pytest.raises(KeyboardInterrupt):
            restored_to(tmp_path / "b", tmp_path / "new", address=address)
    with Node.open(address, settings=Settings(warehouse=str(tmp_path / "new"))) as node:
        assert present_files(node.session(user="ann"), "default.t") == ["data.parquet"]


@pytest.mark.slow
@pytest.mark.usefixtures("backed_up")
def test_a_store_created_during_a_restore_is_left_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgresql.running().new_database()
    settings = Settings(warehouse=str(tmp_path / "another"))

    def copy_late(*databases: Database) -> None:
        with Node.open(address, settings=settings) as node:
            fill(node, "u")
        copy_rows(*databases)

    monkeypatch.setattr(restoring, "copy_rows", copy_late)
    with pytest.raises(AlreadyExists, match="is not empty"):
        restored_to(tmp_path / "b", tmp_path / "new", address=address)
    assert list((tmp_path / "new").iterdir()) == []
    with Node.open(address, settings=settings) as node:
        assert tables(node) == ["u"]


@pytest.mark.slow
@pytest.mark.usefixtures("backed_up")
def test_a_write_that_waits_for_a_restore_holds_the_write_lock_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgresql.running().new_database()
    copy_sequences = database_copy._copy_sequences
    other = open_database(address)
    has_lock, is_tried = threading.Event(), threading.Event()

    def write() -> None:
        with other.write():
            has_lock.set()
            assert is_tried.wait(120)

    def then_another_writer_waits(*arguments: Any) -> None:
        copy_sequences(*arguments)
        writer.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        while not other.rows(waiting)[0][0]:
            assert writer.is_alive()

    writer = threading.Thread(target=write)
    monkeypatch.setattr(database_copy, "_copy_sequences", then_another_writer_waits)
    with closing(other):
        restored_to(tmp_path / "b", tmp_path / "new", address=address)
        assert has_lock.wait(120)
        with (
            closing(open_database(address)) as database,
            pytest.raises(DeadlineExceeded),
            database.write(deadline=time.monotonic() + 0.1),
        ):
            pass
        is_tried.set()
        writer.join()


@pytest.mark.slow
@pytest.mark.usefixtures("backed_up")
def test_a_restore_killed_before_its_rows_are_loaded_leaves_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgresql.running().new_database()

    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(restoring, "copy_rows", kill)
    monkeypatch.setattr(restoring, "_empty", kill)
    with pytest.raises(Killed):
        restored_to(tmp_path / "b", tmp_path / "new", address=address)
    monkeypatch.setattr(restoring, "copy_rows", copy_rows)
    with pytest.raises(WrongEnvironment, match="does not contain a store yet"):
        Node.open(address, settings=Settings(warehouse=str(tmp_path / "new")))
    restored = restored_to(tmp_path / "b", tmp_path / "another", address=address)
    with Node.open(restored.address, settings=restored.settings) as node:
        assert tables(node) == ["t"]


@pytest.mark.slow
def test_a_backup_in_which_the_catalog_of_etcd_has_a_newer_epoch_than_the_rows_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path, kind="etcd")
    with Node.open(store.address, settings=store.settings) as node:

        def then_an_epoch_begins(*arguments: Any) -> None:
            copy_database(*arguments)
            open_newer_epoch(
                node.catalogs.state.log, node.database, HybridClock(), 0, member="another"
            )
            node.catalogs.sync()

        monkeypatch.setattr(taking, "copy_database", then_an_epoch_begins)
        back_up(node, tmp_path / "b", user="ann")
    (tmp_path / "old").rename(tmp_path / "gone")
    restored = restored_to(tmp_path / "b", tmp_path / "new", copy=False)
    with Node.open(restored.address, settings=restored.settings) as node:
        fill(node, "t", rows=0)


@pytest.mark.slow
@pytest.mark.parametrize("log", ["metastorage", pytest.param("persist", marks=pytest.mark.soak)])
def test_a_store_with_its_catalog_in_etcd_is_restored_to_postgresql(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a table created after the rows were copied; the history is trimmed after that."""
    store = new_store(tmp_path, log=log, kind="etcd")
    with Node.open(store.address, settings=store.settings) as node:
        fill(node, "t")
        session = node.session(user="ann")
        assert session.compact(node.catalogs.latest_catalog().version)
        fill(node, "u")

        def then_one_is_created(*arguments: Any) -> None:
            copy_database(*arguments)
            fill(node, "later", rows=0)

        prove, to_trim = LogCopy.prove, [node.catalogs.latest_catalog().version]

        def behind_a_trim(*arguments: Any) -> None:
            if to_trim:
                assert session.compact(to_trim.pop())
            prove(*arguments)

        monkeypatch.setattr(taking, "copy_database", then_one_is_created)
        monkeypatch.setattr(LogCopy, "prove", behind_a_trim)
        manifest = back_up(node, tmp_path / "b", user="ann")
        assert not to_trim
        assert manifest.catalog_version == node.catalogs.latest_catalog().version
        before = session.history()
    with pytest.raises(InvalidInput, match="restore it to postgresql://"):
        address = store_address(store.address, store.settings)
        restore(tmp_path / "b", address, copy=True, warehouse=str(tmp_path / "new"))
    restored = restored_to(tmp_path / "b", tmp_path / "new")
    with Node.open(restored.address, settings=restored.settings) as node:
        session = node.session(user="bob")
        assert tables(node) == ["later", "t", "u"]
        assert session.history()[: len(before)] == before
        assert present_files(session, "default.u") == ["data.parquet"]
        assert place(session, "default.later").is_dir()
        append(session, "default.later", "a.parquet")
