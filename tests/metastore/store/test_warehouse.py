"""Locations as text, and folders made and moved."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strandline.errors import InvalidInput, Unavailable, UnsupportedOperation
from strandline.metastore.store import warehouse
from strandline.metastore.store.warehouse import (
    Moved,
    Warehouse,
    relative_location,
    resolve_location,
)

FOLDERS = Warehouse()


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/w/a", "/w/a"),
        ("file:/w/a", "/w/a"),
        ("file:///w/a b%20c", "/w/a b%20c"),
        ("FILE:/w/a/", "/w/a"),
        ("file://localhost/w/a", "/w/a"),
        ("/w/x/../a", "/w/a"),
    ],
)
def test_local_locations_name_folders(location: str, path: str) -> None:
    assert FOLDERS.path(location) == Path(path)
    assert FOLDERS.reaches(location)


@pytest.mark.parametrize(
    ("location", "error", "named"),
    [
        ("s3://bucket/w", UnsupportedOperation, "'s3'"),
        ("hdfs://nn:8020/w", UnsupportedOperation, "'hdfs'"),
        ("file://other/w", UnsupportedOperation, "'other'"),
        ("w/a", InvalidInput, "w/a"),
        ("file:w", InvalidInput, "file:w"),
        ("", InvalidInput, "''"),
    ],
)
def test_other_locations_are_refused_by_name(
    location: str, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        FOLDERS.path(location)
    assert not FOLDERS.reaches(location)


def test_a_folder_is_made_once_and_again(tmp_path: Path) -> None:
    place = f"file:{tmp_path}/a/b"
    assert not FOLDERS.exists(place)
    FOLDERS.make(place)
    FOLDERS.make(place)
    assert FOLDERS.exists(place)


def test_a_move_takes_the_files_along_and_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "f").write_text("x")
    source, target = f"file:{tmp_path}/old", f"{tmp_path}/db/.dropped/7"
    assert FOLDERS.move(source, target) is Moved.MOVED
    assert (tmp_path / "db/.dropped/7/f").read_text() == "x"
    assert FOLDERS.move(source, target) is Moved.DONE_BEFORE
    assert not (tmp_path / "old").exists()


def test_a_move_replaces_an_empty_folder_and_no_other(tmp_path: Path) -> None:
    for name in ("old", "empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "f").touch()
    (tmp_path / "file").touch()
    for taken in ("full", "file", "old/inside"):
        found = FOLDERS.move(str(tmp_path / "old"), str(tmp_path / taken))
        assert found is Moved.OCCUPIED, taken
    assert FOLDERS.move(str(tmp_path / "old"), str(tmp_path / "empty")) is Moved.MOVED


def test_a_move_of_nothing_to_nothing_is_told(tmp_path: Path) -> None:
    assert FOLDERS.move(str(tmp_path / "a"), str(tmp_path / "b")) is Moved.MISSING


def test_a_move_is_synced_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    rename, sync = os.rename, warehouse._sync_folder

    def noted_rename(source: Path, target: Path) -> None:
        done.append("rename")
        rename(source, target)

    def noted_sync(folder: Path) -> None:
        done.append(str(folder))
        sync(folder)

    monkeypatch.setattr(os, "rename", noted_rename)
    monkeypatch.setattr(warehouse, "_sync_folder", noted_sync)
    (tmp_path / "db").mkdir()
    (tmp_path / "db/t").mkdir()
    FOLDERS.move(str(tmp_path / "db/t"), str(tmp_path / "db/.dropped/3"))
    assert done[0] == "rename"
    assert set(done[1:]) == {str(tmp_path / "db/.dropped"), str(tmp_path / "db")}


def test_what_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="could not make the folder"):
        FOLDERS.make(str(tmp_path / "file" / "below"))


def test_only_an_empty_folder_is_removed(tmp_path: Path) -> None:
    (tmp_path / "db" / ".dropped").mkdir(parents=True)
    assert not FOLDERS.remove_empty(str(tmp_path / "db"))
    assert FOLDERS.remove_empty(str(tmp_path / "db" / ".dropped"))
    assert FOLDERS.remove_empty(str(tmp_path / "db"))
    assert FOLDERS.remove_empty(str(tmp_path / "db"))


def test_a_dropped_folder_goes_beside_its_tables() -> None:
    assert FOLDERS.dropped_place("file:/w/nyc.db/t/", 9) == "file:/w/nyc.db/.dropped/9"


@pytest.mark.parametrize(
    ("base", "location", "relative"),
    [
        ("file:/w/t", "file:/w/t/m=1", "m=1"),
        ("file:/w/t", "/w/t/m=1/d=2", "m=1/d=2"),
        ("/w/t/", "file:///w/t/m=1", "m=1"),
        ("file:/w/t", "file:/w/t", ""),
        ("file:/w/t", "file:/w/tt/m=1", "file:/w/tt/m=1"),
        ("file:/w/t", "s3://b/m=1", "s3://b/m=1"),
        ("file:/w/t", "file:/w/t/a:b", "file:/w/t/a:b"),
    ],
)
def test_what_lies_below_a_table_moves_with_it(base: str, location: str, relative: str) -> None:
    assert relative_location(base, location) == relative
    there = resolve_location(base, relative)
    assert there.removeprefix("file:").lstrip("/") == location.removeprefix("file:").lstrip("/")


def test_a_move_is_on_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename first, then the folders that it changed: a power cut can not undo it."""
    done: list[tuple[str, str]] = []
    rename, fsync = os.rename, os.fsync

    def renaming(old: Path, new: Path) -> None:
        rename(old, new)
        done.append(("rename", str(new)))

    def syncing(descriptor: int) -> None:
        fsync(descriptor)
        done.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))

    (tmp_path / "a" / "t").mkdir(parents=True)
    monkeypatch.setattr(os, "rename", renaming)
    monkeypatch.setattr(os, "fsync", syncing)
    assert FOLDERS.move(f"{tmp_path}/a/t", f"{tmp_path}/b/c/t") is Moved.MOVED
    assert done[0] == ("rename", f"{tmp_path}/b/c/t")
    assert {what for verb, what in done[1:] if verb == "sync"} == {
        f"{tmp_path}/b/c",
        f"{tmp_path}/b",
        f"{tmp_path}/a",
    }
