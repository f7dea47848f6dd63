"""A node on each kind of catalog log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.config import Settings
from strandline.durable.persist.blob import FileBlob
from strandline.errors import CorruptData, InvalidInput, Unavailable
from strandline.metastore.store.rows import DataFile
from strandline.model.types import BIGINT
from strandline.node import DATABASE_FILE, Node, catalog_log
from strandline.node.address import StoreAddress
from strandline.node.backup import back_up, restore, taking
from strandline.node.backup.database_copy import copy_database
from strandline.node.catalog_log import DEFAULT, LOGS, LogPlace
from strandline.sql import change, open_database
from tests.servers import stores
from tests.servers.sqlite import sqlite_url
from tests.servers.stores import EmptyStore
from tests.strandline_command import strandline

OTHERS = sorted(name for name in LOGS if name != DEFAULT)


@pytest.fixture(params=OTHERS)
def log_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["folder", "postgresql"])
def store(request: pytest.FixtureRequest, log_name: str, tmp_path: Path) -> EmptyStore:
    settings = Settings(catalog_log=log_name)
    if request.param != "folder":
        settings = replace(settings, delay_ms=100, clock_skew_ms=20)
    return stores.new_store(request.param, tmp_path, settings=settings)


def fill(node: Node, *names: str, rows: int = 1) -> None:
    """Create tables, and commit a file of ``rows`` rows to each; no file if it is 0."""
    session = node.session(user="ann")
    for name in names:
        columns = (ColumnDefinition("k", BIGINT),)
        definition = TableDefinition(name=name, columns=columns, transactional=True)
        session.execute(CreateTable(schema="default", definition=definition))
        if not rows:
            continue
        table = session.table(f"default.{name}")
        (Path(table.location.removeprefix("file://")) / "data.parquet").write_bytes(b"x" * 10)
        txn_id = session.begin().txn_id
        added = DataFile(file_id=1, path="data.parquet", rows=rows, bytes=10)
        session.stage(txn_id, table.descriptor.id, add=[added])
        session.commit(txn_id)


def tables(node: Node) -> list[str]:
    return sorted(table.name for table in node.catalogs.latest_catalog().tables())


def test_a_node_keeps_its_catalog_in_the_configured_log(store: EmptyStore) -> None:
    with Node.open(store.address, settings=store.settings) as node:
        fill(node, "t")
        version = node.catalogs.latest_catalog().version
    unnamed = replace(store.settings, catalog_log="")
    with Node.open(store.address, settings=unnamed) as node:
        assert tables(node) == ["t"]
        assert node.catalogs.latest_catalog().version >= version
        fill(node, "u")
        assert node.session(user="ann").compact(version)
        assert tables(node) == ["t", "u"]
    with pytest.raises(InvalidInput, match=r"leave catalog_log out, or set it to"):
        Node.open(store.address, settings=replace(store.settings, catalog_log=DEFAULT))


@pytest.mark.parametrize("pair", ["stash+persist", "persist+metastorage"])
def test_any_two_logs_can_form_a_shadow(pair: str, tmp_path: Path) -> None:
    settings = Settings(catalog_log=f"shadow:{pair}")
    with Node.open(tmp_path / "s", settings=settings) as node:
        fill(node, "t")
    with Node.open(tmp_path / "s") as node:
        fill(node, "u")
        assert tables(node) == ["t", "u"]


@pytest.mark.parametrize("name", ["shadow:stash+stash", "shadow:stash", "shadow:shadow+stash"])
def test_an_invalid_shadow_setting_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="it must be one of metastorage, "):
        Node.open(tmp_path / "s", settings=Settings(catalog_log=name))


def test_a_setting_that_names_another_log_than_the_stores_is_refused(
    log_name: str, tmp_path: Path
) -> None:
    Node.open(tmp_path / "s").close()
    with pytest.raises(InvalidInput, match="is kept in the log metastorage; leave catalog_log out"):
        Node.open(tmp_path / "s", settings=Settings(catalog_log=log_name))
    with pytest.raises(InvalidInput, match="catalog_log is 'tape'; it must be one of metastorage,"):
        Node.open(tmp_path / "new", settings=Settings(catalog_log="tape"))
    assert not (tmp_path / "new").exists()


def test_a_setting_that_names_another_place_than_that_of_the_blobs_is_refused(
    tmp_path: Path,
) -> None:
    settings = Settings(catalog_log="persist", catalog_blobs=str(tmp_path / "blobs"))
    for same in (settings, settings, Settings()):
        Node.open(tmp_path / "s", settings=same).close()
    other = replace(settings, catalog_blobs=str(tmp_path / "other"))
    with pytest.raises(InvalidInput, match=f"the blobs of the catalog are in {tmp_path}/blobs"):
        Node.open(tmp_path / "s", settings=other)


def test_processes_that_die_while_they_try_the_place_of_the_blobs_leave_one_blob_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Unavailable("the process died")

    monkeypatch.setattr(FileBlob, "delete", die)
    settings = Settings(catalog_log="persist", catalog_blobs=str(tmp_path / "blobs"))
    for name in ("a", "b"):
        with pytest.raises(Unavailable):
            Node.open(tmp_path / name, settings=settings)
    assert len([path for path in (tmp_path / "blobs").iterdir() if path.is_file()]) == 1


def test_a_store_of_an_older_release_has_its_log_in_the_metastorage(
    log_name: str, tmp_path: Path
) -> None:
    Node.open(tmp_path / "s").close()
    database = open_database(sqlite_url(tmp_path / "s" / DATABASE_FILE))
    with database.write() as connection:
        change(connection, "DROP TABLE strandline_catalog_log")
        change(connection, "DELETE FROM strandline_schema WHERE part = 'catalog_log'")
    database.close()
    with pytest.raises(InvalidInput, match="kept in the log metastorage"):
        Node.open(tmp_path / "s", settings=Settings(catalog_log=log_name))
    Node.open(tmp_path / "s", settings=Settings(catalog_log=DEFAULT)).close()


def test_a_store_with_an_empty_log_can_be_opened_with_another_log(
    log_name: str, tmp_path: Path
) -> None:
    fail_to_start(tmp_path / "s", Settings(catalog_log=log_name))
    with Node.open(tmp_path / "s", settings=Settings(catalog_log=DEFAULT)) as node:
        fill(node, "t")
    Node.open(tmp_path / "s").close()


def test_a_log_that_gets_a_catalog_just_before_it_is_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Settings(catalog_log="stash")
    fail_to_start(tmp_path / "s", chosen)
    is_empty = catalog_log._is_empty

    def then_it_gets_a_catalog(place: LogPlace, name: str) -> bool:
        was_empty = is_empty(place, name)
        monkeypatch.undo()
        Node.open(tmp_path / "s", settings=chosen).close()
        return was_empty

    monkeypatch.setattr(catalog_log, "_is_empty", then_it_gets_a_catalog)
    with pytest.raises(InvalidInput, match="is kept in the log stash; leave catalog_log out"):
        Node.open(tmp_path / "s", settings=Settings(catalog_log=DEFAULT))
    Node.open(tmp_path / "s").close()


def test_a_store_with_an_empty_log_keeps_it_if_no_other_log_is_named(
    log_name: str, tmp_path: Path
) -> None:
    chosen = Settings(catalog_log=log_name)
    fail_to_start(tmp_path / "s", chosen)
    Node.open(tmp_path / "s").close()
    Node.open(tmp_path / "s", settings=chosen).close()


def fail_to_start(folder: Path, settings: Settings) -> None:
    """Open a new store, and fail after its log was chosen and before it has a catalog."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("power")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="power"):
        patch.setattr("strandline.node.node.join_or_create", fail)
        Node.open(folder, settings=settings)


def test_a_store_with_an_unknown_log_name_is_refused(tmp_path: Path) -> None:
    Node.open(tmp_path / "s").close()
    database = open_database(sqlite_url(tmp_path / "s" / DATABASE_FILE))
    with database.write() as connection:
        change(connection, "UPDATE strandline_catalog_log SET name = 'tape'")
    database.close()
    with pytest.raises(CorruptData, match="the log 'tape', which this program does not know"):
        Node.open(tmp_path / "s")


def test_commands_find_the_log_without_a_setting(log_name: str, tmp_path: Path) -> None:
    folder, target, again = tmp_path / "s", tmp_path / "b", tmp_path / "r"
    with Node.open(folder, settings=Settings(catalog_log=log_name)) as node:
        fill(node, "t", rows=0)
        manifest = back_up(node, target, user="ann")
        assert manifest.catalog_version == node.catalogs.latest_catalog().version
    restore(target, StoreAddress(again), copy=True)
    for place in (folder, again):
        for command in ("log", "verify"):
            result = strandline(command, place)
            assert result.exit_code == 0, result.output + result.stderr
    with Node.open(again) as node:
        assert tables(node) == ["t"]


def test_a_sweep_during_a_backup_does_not_damage_the_backed_up_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, target, again = tmp_path / "s", tmp_path / "b", tmp_path / "r"
    with Node.open(folder, settings=Settings(catalog_log="persist")) as node:
        session = node.session(user="ann")
        to_trim = []
        for name in ("t", "u"):
            fill(node, name, rows=0)
            to_trim.append(node.catalogs.latest_catalog().version)

        def then_a_part_is_replaced(*arguments: Any) -> None:
            copy_database(*arguments)
            if to_trim:
                assert session.compact(to_trim.pop())

        assert session.compact(to_trim.pop(0))
        monkeypatch.setattr(taking, "copy_database", then_a_part_is_replaced)
        manifest = back_up(node, target, user="ann")
        assert manifest.missing == []
        assert manifest.catalog_version == node.catalogs.latest_catalog().version
    restore(target, StoreAddress(again), copy=True)
    with Node.open(again) as node:
        assert tables(node) == ["t", "u"]


@pytest.mark.parametrize("name", ["persist", "shadow:stash+persist"])
def test_a_backup_reports_a_lost_blob(name: str, tmp_path: Path) -> None:
    with Node.open(tmp_path / "s", settings=Settings(catalog_log=name)) as node:
        fill(node, "t", rows=0)
        assert node.session(user="ann").compact(node.catalogs.latest_catalog().version)
        blobs = [path for path in (tmp_path / "s" / "catalog").iterdir() if path.is_file()]
        for blob in blobs:
            blob.unlink()
        (missing,) = back_up(node, tmp_path / "b", user="ann").missing
    assert quote(missing, safe="") in [blob.name for blob in blobs]


def test_a_database_without_its_last_versions_is_refused(log_name: str, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with Node.open(folder, settings=Settings(catalog_log=log_name)) as node:
        version = node.catalogs.latest_catalog().version
    short = (folder / DATABASE_FILE).read_bytes()
    with Node.open(folder) as node:
        fill(node, "t")
    (folder / DATABASE_FILE).write_bytes(short)
    with pytest.raises(CorruptData, match=f"missing are catalog versions? {version + 1}"):
        Node.open(folder)


def test_a_log_in_sql_is_refused_if_the_address_names_etcd(tmp_path: Path) -> None:
    settings = Settings(delay_ms=100, catalog_log="stash")
    store = stores.new_store("etcd", tmp_path, settings=settings)
    with pytest.raises(InvalidInput, match="name the store by the address of that database"):
        Node.open(store.address, settings=store.settings)
    beside = replace(store.settings, catalog_log="shadow")
    with Node.open(store.address, settings=beside) as node:
        fill(node, "t")
        assert tables(node) == ["t"]
