"""Moves of a catalog that died, or that another command overtook, and the ways to and from etcd."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strandline.clock import HybridClock
from strandline.config import Settings
from strandline.durable import StashLog
from strandline.errors import Conflict, Fenced, InvalidInput, StoreMoved
from strandline.node import Node, catalog_move
from strandline.node.address import StoreAddress
from strandline.node.catalog_log import LogPlace, remembered_log
from strandline.node.catalog_move import move_catalog
from strandline.node.relocation import relocate
from strandline.sql import FenceRow, SqliteDatabase, open_database
from tests.node.conftest import before_the_next
from tests.node.moved_catalogs import (
    Killed,
    commit,
    joined,
    joined_at,
    killed,
    killed_at_the_end,
    log_of,
    move,
    notes,
    place_of,
    trimmed,
)
from tests.node.test_catalog_log import fill, tables
from tests.servers import stores
from tests.strandline_command import strandline


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "s"
    folder.mkdir()
    with joined(folder):
        return folder


@pytest.mark.parametrize(
    ("rounds", "step"), [(10, "finish_move"), (0, "seal"), (0, "_Switch.switch")]
)
def test_a_running_node_is_fenced_if_the_move_dies_and_a_second_run_moves_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, step: str
) -> None:
    with Node.open(tmp_path / "s", settings=Settings(deploy_generation=2)) as node:
        token = node.catalogs.token
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(catalog_move, "ROUNDS", rounds)
            patch.setattr(f"{catalog_move.__name__}.{step}", killed_at_the_end)
            move(tmp_path / "s", "stash")
        with place_of(tmp_path / "s") as place, place.database.read() as connection:
            fence = FenceRow.read(connection)
            copied_token = StashLog(place.database, place.clock).token()
        assert fence is not None
        assert token < fence.token
        assert copied_token is None or copied_token.is_sealed  # no node writes to the copy
    move(tmp_path / "s", "stash")
    with Node.open(tmp_path / "s") as node:
        fill(node, "t")


def test_a_catalog_can_move_on_although_its_last_move_died_at_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(catalog_move, "finish_move", killed_at_the_end)
        move(folder, "stash")
    checked = strandline("upgrade-check", folder)
    assert "the catalog was moved from this log to another one" in checked.stderr
    move(folder, "persist")
    with joined(folder) as state:
        commit(state, "on")
    assert log_of(folder) == "persist"


def test_a_move_goes_on_after_another_command_sealed_the_log_and_died(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_next(monkeypatch, catalog_move._Move, "_seal", lambda: die_after_the_seal(folder))
    move(folder, "stash")
    with joined(folder) as state:
        commit(state, "on")
    assert log_of(folder) == "stash"


def die_after_the_seal(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(catalog_move, "ROUNDS", 0)
        patch.setattr(catalog_move._Switch, "switch", killed)
        move(folder, "stash")


@pytest.mark.parametrize(
    ("target", "step", "to"),
    [
        ("stash", "_copy_and_switch", "stash"),
        ("stash", "_copy_and_prove", "persist"),
        ("stash", "_copy_and_prove", "metastorage"),
        ("metastorage", "make", "stash"),
    ],
)
def test_a_command_whose_sealed_log_another_one_moved_or_unsealed_moves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, step: str, to: str
) -> None:
    def overtake() -> None:
        move(folder, to)
        with joined(folder) as state:
            commit(state, "on")

    die_after_the_seal(folder)
    of_move = partial(before_the_next, monkeypatch, catalog_move._Move)
    of_move(step, lambda: of_move(step, overtake) if step == "_copy_and_prove" else overtake())
    with pytest.raises(Conflict, match="another command has moved the catalog"):
        move(folder, target)
    with joined(folder) as state:
        assert notes(state) == {"on"}
    assert log_of(folder) == to


def killing(monkeypatch: pytest.MonkeyPatch, at: int) -> list[int]:
    """Kill the process after its write transaction number ``at``; returns the count of them."""
    write, count = SqliteDatabase._write, [0]

    @contextmanager
    def counted(*arguments: Any, **named: Any) -> Iterator[Any]:
        count[0] += 1
        if at and count[0] > at:
            raise Killed
        with write(*arguments, **named) as connection:
            yield connection
        if count[0] == at:
            raise Killed

    monkeypatch.setattr(SqliteDatabase, "_write", counted)
    return count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leaving", "to"),
    [("metastorage", "stash"), pytest.param("stash", "shadow", marks=pytest.mark.soak)],
)
def test_a_crash_after_each_write_leaves_one_working_log(
    folder: Path, tmp_path: Path, leaving: str, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if leaving != "metastorage":
        move(folder, leaving)
    trimmed(folder)
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    with monkeypatch.context() as patch:
        writes = killing(patch, 0)
        move(whole, to)
    assert writes[0] > 5
    named = set()
    for at in range(1, writes[0] + 1):
        copied = tmp_path / f"killed {at}"
        shutil.copytree(folder, copied)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killing(patch, at)
            move(copied, to)
        with joined(copied) as state:
            assert notes(state) == {"one"}
            commit(state, "two")
            named.add(log_of(copied))
        if log_of(copied) != to:
            move(copied, to)
        with joined(copied) as state:
            assert notes(state) == {"one", "two"}
            commit(state, "three")
    assert named == {leaving, to}


# -- etcd ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_catalog_moves_from_postgresql_to_etcd_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_etcd = stores.new_store("etcd", tmp_path)
    objects = in_etcd.settings.objects
    with closing(open_database(objects)) as database:
        at = LogPlace(database, StoreAddress(None, objects, objects), HybridClock())
        etcd = replace(at, address=StoreAddress(None, in_etcd.address, objects))
        with joined_at(at, delay_ms=1) as state:
            commit(state, "one")
        move_catalog(at, at, leaving="metastorage", to="stash")
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(catalog_move, "finish_move", killed_at_the_end)
            move_catalog(at, etcd, leaving="stash", to="")
        moved = move_catalog(at, etcd, leaving="stash", to="")
        assert str(moved.target).startswith("metastorage in etcd://")
        with pytest.raises(InvalidInput, match="name the store by that address"):
            remembered_log(at)
        with joined_at(etcd) as state:
            commit(state, "two")
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(catalog_move._Switch, "switch", killed)
            move_catalog(etcd, at, leaving="", to="metastorage")
        with pytest.raises(Fenced, match="run `strandline durable migrate` again"), joined_at(etcd):
            pass
        move_catalog(etcd, etcd, leaving="", to="")  # removes the seal
        with joined_at(etcd) as state:
            commit(state, "three")
        for _ in range(2):
            with monkeypatch.context() as patch, pytest.raises(Killed):
                patch.setattr(catalog_move._Switch, "switch", killed)
                move_catalog(etcd, at, leaving="", to="metastorage")
        move_catalog(etcd, at, leaving="", to="metastorage")
        with pytest.raises(InvalidInput, match="name the store by the address of that database"):
            remembered_log(etcd)
        with joined_at(at) as state:
            commit(state, "four")
            assert notes(state) == {"one", "two", "three", "four"}


@pytest.mark.slow
def test_a_catalog_that_was_made_in_etcd_moves_to_another_log_in_the_database(
    tmp_path: Path,
) -> None:
    store = stores.new_store("etcd", tmp_path)
    objects = store.settings.objects
    with Node.open(store.address, settings=store.settings) as node:
        fill(node, "t", rows=0)
    with closing(open_database(objects)) as database:
        etcd = LogPlace(database, StoreAddress(None, store.address, objects), HybridClock())
        at = replace(etcd, address=StoreAddress(None, objects, objects))
        move_catalog(etcd, at, leaving="", to="stash")
    with Node.open(objects, settings=replace(store.settings, objects="")) as node:
        fill(node, "u", rows=0)
        assert tables(node) == ["t", "u"]


def test_a_catalog_without_a_delay_does_not_move_to_etcd(folder: Path) -> None:
    with place_of(folder) as place:
        etcd = replace(place, address=StoreAddress(None, "etcd://nowhere/x", "postgresql://db"))
        with pytest.raises(InvalidInput, match="delay_ms above 0"):
            move_catalog(place, etcd, leaving="", to="")


def test_a_folder_that_was_copied_during_a_move_is_not_changed_before_it_is_relocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copied = tmp_path / "lake", tmp_path / "copied"
    Node.open(folder).close()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(catalog_move, "finish_move", killed_at_the_end)
        move(folder, "stash")
    shutil.copytree(folder, copied)
    with pytest.raises(StoreMoved):
        Node.open(copied)
    with place_of(copied) as place:
        present = remembered_log(place)
    assert present is not None
    assert present.former == "metastorage"
    relocate(copied, copy=True)
    for store in (copied, folder):
        Node.open(store).close()
