"""Ids that clients of a lost database may remember are not assigned again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile
from strandline.model.types import BIGINT
from strandline.node import Node
from strandline.transactions.locks import Component, LockMode
from tests.servers import postgresql, stores
from tests.servers.stores import EmptyStore
from tests.strandline_command import strandline


class Ids(NamedTuple):
    """The next ids of each kind."""

    transaction: int
    hold: int
    lock: int
    row: int


def take_ids(store: EmptyStore) -> Ids:
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        if not session.tables("default"):
            columns = (ColumnDefinition("k", BIGINT),)
            definition = TableDefinition(name="t", columns=columns, transactional=True)
            session.execute(CreateTable(schema="default", definition=definition))
        table_id = session.table("default.t").descriptor.id
        transaction = session.begin().txn_id
        file_id = transaction << FILE_NUMBER_BITS
        file = DataFile(file_id=file_id, path=f"{transaction}.parquet", rows=1, bytes=1)
        session.stage(transaction, table_id, add=[file])
        ((row,),) = node.database.rows("SELECT max(row_id) FROM store_row")
        session.abort(transaction)
        hold = node.transactions.holds.acquire("pin", "ann", at=None, ttl_ms=60_000).hold_id
        component = Component(LockMode.SHARED_READ, "default")
        lock = node.transactions.locks.acquire([component], owner="ann").lock_id
        return Ids(transaction, hold, lock, row)


def lost_ids(store: EmptyStore) -> Ids:
    """The ids of clients whose database is lost: the last of each kind."""
    take_ids(store)
    return take_ids(store)


def require_success(*words: str) -> None:
    result = strandline(*words)
    assert result.exit_code == 0, result.output


def copied_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EmptyStore, Ids]:
    store = stores.new_store("folder", tmp_path / "lake")
    take_ids(store)
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    lost = lost_ids(store)
    shutil.rmtree(tmp_path / "lake")
    require_success("relocate", str(tmp_path / "copy"))
    return store._replace(address=str(tmp_path / "copy")), lost


def older_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EmptyStore, Ids]:
    store, database = stores.new_store("folder", tmp_path), tmp_path / "strandline.db"
    take_ids(store)
    shutil.copy(database, tmp_path / "older.db")
    lost = lost_ids(store)
    shutil.copy(tmp_path / "older.db", database)
    require_success("accept-loss", store.address, "--yes")
    return store, lost


def restored_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EmptyStore, Ids]:
    store = stores.new_store("folder", tmp_path / "lake")
    take_ids(store)
    require_success("backup", store.address, str(tmp_path / "b.tar"))
    lost = lost_ids(store)
    shutil.rmtree(tmp_path / "lake")
    require_success("restore", str(tmp_path / "b.tar"), store.address)
    return store, lost


def restored_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EmptyStore, Ids]:
    store = stores.new_store("postgresql", tmp_path)
    take_ids(store)
    require_success("backup", store.address, str(tmp_path / "b.tar"))
    lost = lost_ids(store)
    shutil.rmtree(tmp_path / "warehouse")
    address = postgresql.running().new_database()
    require_success("restore", str(tmp_path / "b.tar"), address)
    return store._replace(address=address), lost


def older_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EmptyStore, Ids]:
    store = stores.new_store("postgresql", tmp_path)
    take_ids(store)
    address = postgresql.running().copy_of_database(store.address)
    lost = lost_ids(store)
    require_success("relocate", address)
    return store._replace(address=address), lost


def beside_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EmptyStore, Ids]:
    store = stores.new_store("etcd", tmp_path)
    take_ids(store)
    objects = postgresql.running().copy_of_database(store.settings.objects)
    lost = lost_ids(store)
    monkeypatch.setenv("STRANDLINE_OBJECTS", objects)
    require_success("relocate", store.address)
    require_success("accept-loss", store.address, "--yes")
    return store._replace(settings=replace(store.settings, objects=objects)), lost


Setback = Callable[[Path, pytest.MonkeyPatch], tuple[EmptyStore, Ids]]


@pytest.mark.parametrize(
    "lose",
    [
        copied_folder,
        older_database,
        restored_folder,
        *(
            pytest.param(lose, marks=pytest.mark.slow)
            for lose in (restored_servers, older_copy, beside_etcd)
        ),
    ],
)
def test_no_id_of_a_client_of_the_lost_database_is_assigned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Setback
) -> None:
    store, lost = lose(tmp_path, monkeypatch)
    for number, lost_number in zip(take_ids(store), lost, strict=True):
        assert number > lost_number


def test_a_copy_beside_its_original_continues_with_the_next_ids(tmp_path: Path) -> None:
    """Clients of the original know only its address."""
    store = stores.new_store("folder", tmp_path / "lake")
    last = take_ids(store)
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    require_success("relocate", str(tmp_path / "copy"), "--copy")
    next_ids = take_ids(store._replace(address=str(tmp_path / "copy")))
    assert next_ids == Ids(*(number + 1 for number in last))


@pytest.mark.slow
def test_no_id_that_a_standby_does_not_know_is_assigned_again_when_it_takes_over(
    tmp_path: Path,
) -> None:
    server = postgresql.PostgresServer()
    try:
        store = stores.new_store("postgresql", tmp_path)._replace(address=server.new_database())
        with Node.open(store.address, settings=store.settings) as node:
            session = node.session(user="ann")
            lost = session.begin().txn_id + 5_000
            server.restart()
            assert session.begin().txn_id > lost
    finally:
        server.remove()
