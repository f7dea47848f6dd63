"""The marker and the record of a warehouse that several nodes claim concurrently."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from strandline.errors import CorruptData, InvalidInput, StoreMoved, Unavailable, WrongEnvironment
from strandline.node.store_place import recorded_place
from strandline.node.warehouse_place import MARKER, WarehousePlace
from strandline.sql import Database
from strandline.sql.sqlite_database import open_url
from tests.node.conftest import before_the_next

ENVIRONMENT = "e1"
MODE = 0o700


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_url(f"sqlite:///{tmp_path}/server.db", timeout=10)
    yield database
    database.close()


def test_two_claims_of_one_process_can_mark_a_folder_concurrently(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = WarehousePlace(tmp_path / "tables", database)
    before_the_next(monkeypatch, os, "link", lambda: place.claim(ENVIRONMENT, mode=MODE))
    place.claim(ENVIRONMENT, mode=MODE)
    place.check(ENVIRONMENT)
    assert [path.name for path in place.folder.iterdir()] == [MARKER]


def test_a_new_warehouse_is_on_disk_before_its_marker(
    tmp_path: Path, database: Database, synced: list[str]
) -> None:
    WarehousePlace(tmp_path / "a" / "tables", database).claim(ENVIRONMENT, mode=MODE)
    assert {str(tmp_path), f"{tmp_path}/a"} == {*synced[:2]}
    assert synced[-1] == f"{tmp_path}/a/tables"


def test_a_claim_syncs_the_marker_of_a_node_that_ended_before_it_did(
    tmp_path: Path, database: Database, synced: list[str]
) -> None:
    place = WarehousePlace(tmp_path, database)
    place.mark(ENVIRONMENT, mode=MODE)
    synced.clear()
    place.claim(ENVIRONMENT, mode=MODE)
    assert str(tmp_path) in synced


@pytest.mark.parametrize("call", ["open", "fsync", "link"])
def test_a_marker_that_cannot_be_written_is_an_error_with_the_folder_and_leaves_nothing(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    place = WarehousePlace(tmp_path / "tables", database)
    place.make(mode=MODE)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(Unavailable, match=r"/tables cannot be marked .*: Input/output error"):
            place.mark(ENVIRONMENT, mode=MODE)
    assert list(place.folder.iterdir()) == []
    place.claim(ENVIRONMENT, mode=MODE)


def test_only_one_of_two_concurrent_claims_of_different_folders_succeeds(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (WarehousePlace(tmp_path / name, database) for name in ("a", "b"))
    before_the_next(
        monkeypatch, WarehousePlace, "check", lambda: first.claim(ENVIRONMENT, mode=MODE)
    )
    with pytest.raises(StoreMoved, match=r"the tables of the store in .* are in .*/a,"):
        second.claim(ENVIRONMENT, mode=MODE)
    recorded = recorded_place(database)
    assert recorded is not None
    assert recorded.path == os.path.realpath(first.folder)


def test_a_warehouse_claimed_by_a_concurrent_creation_of_the_store_is_not_foreign(
    tmp_path: Path, database: Database
) -> None:
    place = WarehousePlace(tmp_path / "tables", database)
    has_catalog = False

    def made_meanwhile() -> bool:
        nonlocal has_catalog
        was_new = not has_catalog
        has_catalog = True
        place.claim(ENVIRONMENT, mode=MODE)
        return was_new

    place.refuse_foreign(is_new=made_meanwhile)
    made_meanwhile()
    place.refuse_foreign(is_new=lambda: not has_catalog)
    with pytest.raises(WrongEnvironment, match="holds the tables of another store"):
        place.refuse_foreign(is_new=lambda: True)


def test_a_new_warehouse_inside_another_is_refused(tmp_path: Path, database: Database) -> None:
    outer = tmp_path / "tables"
    WarehousePlace(outer, database).claim(ENVIRONMENT, mode=MODE)
    inner = WarehousePlace(outer / "sales.db" / "orders", database)
    with pytest.raises(InvalidInput, match=rf"inside {outer}, which is a folder of another store"):
        inner.refuse_foreign(is_new=lambda: True)
    inner.refuse_foreign(is_new=lambda: False)


def test_a_folder_that_got_the_tables_of_another_store_is_refused(
    tmp_path: Path, database: Database
) -> None:
    place = WarehousePlace(tmp_path, database)
    place.claim(ENVIRONMENT, mode=MODE)
    (tmp_path / MARKER).unlink()
    with pytest.raises(CorruptData, match="is not the one of the store"):
        place.check(ENVIRONMENT)
    place.mark("another", mode=MODE)
    for refused in (place.check, partial(place.claim, mode=MODE)):
        with pytest.raises(WrongEnvironment, match="belongs to the store 'another'"):
            refused(ENVIRONMENT)
