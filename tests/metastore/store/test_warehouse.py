"""Locations as texts, and creating, moving and removing folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from strandline.errors import InvalidInput, Unavailable, UnsupportedOperation
from strandline.files import sync_folder
from strandline.metastore.store import warehouse
from strandline.metastore.store.warehouse import (
    FolderMoves,
    FolderRefused,
    Moved,
    Unsynced,
    Warehouse,
    delete_or_leave,
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
        ("/w/" + "a" * 256, InvalidInput, "too long"),
        ("/w/" + "é" * 128, InvalidInput, "too long"),
        ("/w" * 2048, InvalidInput, "too long"),
        ("/w/\ud800", InvalidInput, "half a surrogate pair"),
    ],
)
def test_other_locations_are_refused_with_the_reason(
    location: str, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        FOLDERS.path(location)
    assert not FOLDERS.reaches(location)


@pytest.mark.parametrize("place", ["file:{}/a/b", "file:{}", "s3://bucket/a"])
def test_places_that_can_be_created_or_are_out_of_reach_are_not_refused(
    tmp_path: Path, place: str
) -> None:
    FOLDERS.refuse_unmakeable(place.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_place_at_or_below_a_file_is_refused_before_any_folder_is_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (f"{tmp_path}/file", f"file:{tmp_path}/file/a/b"):
        with pytest.raises(InvalidInput, match="file is not a folder"):
            FOLDERS.refuse_unmakeable(place)


def test_a_place_where_this_node_may_not_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda folder, _mode: folder != tmp_path)
    with pytest.raises(InvalidInput, match="may not make one in"):
        FOLDERS.refuse_unmakeable(f"{tmp_path}/a")
    FOLDERS.refuse_unmakeable(str(tmp_path))  # this folder exists


def test_creating_a_folder_can_be_repeated(tmp_path: Path) -> None:
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


def test_a_move_replaces_only_an_empty_folder(tmp_path: Path) -> None:
    for name in ("old", "empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "f").touch()
    (tmp_path / "file").touch()
    for taken in ("full", "file", "old/inside"):
        with pytest.raises(FolderRefused):
            FOLDERS.move(str(tmp_path / "old"), str(tmp_path / taken))
    assert FOLDERS.move(str(tmp_path / "old"), str(tmp_path / "empty")) is Moved.MOVED


def test_a_move_without_source_and_target_returns_missing(tmp_path: Path) -> None:
    assert FOLDERS.move(str(tmp_path / "a"), str(tmp_path / "b")) is Moved.MISSING


def test_a_move_is_synced_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    rename, sync = os.rename, sync_folder

    def noted_rename(source: Path, target: Path) -> None:
        rename(source, target)
        steps.append("rename")

    def noted_sync(folder: Path) -> None:
        steps.append(str(folder))
        sync(folder)

    monkeypatch.setattr(os, "rename", noted_rename)
    monkeypatch.setattr(warehouse, "sync_folder", noted_sync)
    (tmp_path / "db").mkdir()
    (tmp_path / "db/t").mkdir()
    FOLDERS.move(str(tmp_path / "db/t"), str(tmp_path / "db/.dropped/3"))
    assert steps[0] == "rename"
    assert set(steps[1:]) == {str(tmp_path / "db/.dropped"), str(tmp_path / "db")}


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file/below", Path("/proc/strandline/t")):
        with pytest.raises(FolderRefused, match="could not make the folder"):
            FOLDERS.make(str(place))


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        *((code, True) for code in ("EACCES", "EPERM", "EROFS", "ENOENT", "ENAMETOOLONG")),
        *((code, True) for code in ("ELOOP", "ENOTDIR", "EEXIST", "EXDEV", "EINVAL", "EBUSY")),
        *((code, False) for code in ("ENOSPC", "EDQUOT", "EIO", "EMFILE", "ENFILE", "ENOMEM")),
        *((code, False) for code in ("ESTALE", "ETIMEDOUT", "EINTR", "EAGAIN")),
    ],
)
def test_permanent_errors_are_refusals_and_temporary_errors_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, refused: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    (tmp_path / "t").mkdir()
    for call in ("mkdir", "rename", "rmdir"):
        monkeypatch.setattr(os, call, fail)
    place, other = f"{tmp_path}/t", f"{tmp_path}/u"
    attempts: list[Callable[[], object]] = [
        lambda: FOLDERS.make(other),
        lambda: FOLDERS.move(place, other),
    ]
    if code not in ("ENOENT", "EEXIST"):  # gone, or not empty
        attempts.append(lambda: FOLDERS.remove_empty(place))
    for attempt in attempts:
        with pytest.raises(Unavailable) as caught:
            attempt()
        assert isinstance(caught.value, FolderRefused) is refused


@pytest.mark.parametrize("call", ["mkdir", "rename", "rmdir", "fsync"])
def test_an_error_of_a_signal_handler_is_none_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def end(*_: object, **__: object) -> NoReturn:
        raise TimeoutError("the time limit of the caller")

    place = str(tmp_path / "a")
    monkeypatch.setattr(os, call, end)
    with pytest.raises(TimeoutError, match=r"^the time limit of the caller$"):
        if call in ("mkdir", "fsync"):
            FOLDERS.make(place)
        elif call == "rename":
            FOLDERS.move(place, f"{place}/b")
        else:
            FOLDERS.remove_empty(place)


@pytest.mark.parametrize("code", ["EACCES", "EINVAL", "EIO"])
def test_an_operation_that_could_not_be_synced_is_not_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def fail(_: int) -> None:
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    (tmp_path / "t").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        attempts: list[Callable[[], object]] = [
            lambda: FOLDERS.make(f"{tmp_path}/new"),
            lambda: FOLDERS.move(f"{tmp_path}/t", f"{tmp_path}/u"),
            lambda: FOLDERS.remove_empty(f"{tmp_path}/new"),
        ]
        for attempt in attempts:
            with pytest.raises(Unavailable, match="to disk") as caught:
                attempt()
            assert not isinstance(caught.value, FolderRefused)
    assert FOLDERS.move(f"{tmp_path}/t", f"{tmp_path}/u") is Moved.DONE_BEFORE


def test_a_folder_that_cannot_be_opened_is_synced_by_syncing_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entries can still be changed, so this is no reason to fail."""
    synced: list[str] = []
    open_folder = os.open

    def refuse(path: Path, flags: int) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_folder(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "sync", lambda: synced.append("all"))
    FOLDERS.make(f"{tmp_path}/t")
    assert (tmp_path / "t").is_dir()
    assert synced == ["all"]


def test_a_missing_folder_needs_no_sync(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unsynced = Unsynced()
    unsynced.add([tmp_path / "gone", tmp_path / "file"])
    unsynced.sync()


def test_folders_of_several_changes_are_synced_once_and_by_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(warehouse, "sync_folder", lambda folder: synced.append(folder.name))
    unsynced, base = Unsynced(), tmp_path / "base"
    for name in ("a", "b"):
        FOLDERS.make(f"{base}/{name}", unsynced=unsynced)
        FOLDERS.move(f"{base}/{name}", f"{base}/aside/{name}", unsynced=unsynced)
    assert synced == []
    unsynced.sync()
    assert sorted(synced) == sorted([tmp_path.name, "base", "aside"])
    unsynced.sync()
    assert len(synced) == 3


@pytest.mark.parametrize("what", ["make", "move"])
def test_the_effects_of_an_earlier_attempt_are_synced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """That attempt may have ended before it synced anything."""
    synced: set[str] = set()
    monkeypatch.setattr(warehouse, "sync_folder", lambda folder: synced.add(str(folder)))
    (tmp_path / "new/t").mkdir(parents=True)
    unsynced = Unsynced()
    if what == "make":
        FOLDERS.make(f"{tmp_path}/new/t", unsynced=unsynced)
    else:
        FOLDERS.move(f"{tmp_path}/old/t", f"{tmp_path}/new/t", unsynced=unsynced)
    unsynced.sync()
    assert {str(tmp_path), str(tmp_path / "new")} <= synced


def test_a_folder_that_cannot_be_inspected_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that exists but cannot be inspected must not count as one that was never made."""
    assert FOLDERS.move(f"{tmp_path}/t", f"{tmp_path}/u") is Moved.MISSING

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(FolderRefused):
        FOLDERS.move(f"{tmp_path}/t", f"{tmp_path}/u")


def test_only_an_empty_folder_is_removed(tmp_path: Path) -> None:
    (tmp_path / "db" / ".dropped").mkdir(parents=True)
    assert not FOLDERS.remove_empty(str(tmp_path / "db"))
    assert FOLDERS.remove_empty(str(tmp_path / "db" / ".dropped"))
    assert FOLDERS.remove_empty(str(tmp_path / "db"))
    assert FOLDERS.remove_empty(str(tmp_path / "db"))


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
def test_a_location_below_a_table_is_relative_to_it(
    base: str, location: str, relative: str
) -> None:
    assert relative_location(base, location) == relative
    there = resolve_location(base, relative)
    assert there.removeprefix("file:").lstrip("/") == location.removeprefix("file:").lstrip("/")


def test_a_move_is_on_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders that the rename changed are synced after it: a power cut cannot undo it."""
    steps: list[tuple[str, str]] = []
    rename, fsync = os.rename, os.fsync

    def renaming(old: Path, new: Path) -> None:
        rename(old, new)
        steps.append(("rename", str(new)))

    def syncing(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))

    (tmp_path / "a" / "t").mkdir(parents=True)
    monkeypatch.setattr(os, "rename", renaming)
    monkeypatch.setattr(os, "fsync", syncing)
    assert FOLDERS.move(f"{tmp_path}/a/t", f"{tmp_path}/b/c/t") is Moved.MOVED
    assert steps[0] == ("rename", f"{tmp_path}/b/c/t")
    assert {what for verb, what in steps[1:] if verb == "sync"} == {
        f"{tmp_path}/b/c",
        f"{tmp_path}/b",
        f"{tmp_path}/a",
        f"{tmp_path}",
    }


def test_a_folder_that_cannot_be_deleted_is_logged_in_one_line_with_what_happens_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    delete_or_leave(file)
    assert file.exists()
    assert caplog.text.count("\n") == 1
    assert f"{file} is not deleted yet: [Errno 20] Not a directory" in caplog.text
    assert caplog.messages[0].endswith("; cleaning tries again")


@pytest.mark.parametrize("has_new_table", [False, True])
def test_files_do_not_go_back_to_a_folder_that_another_process_has_moved_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_new_table: bool
) -> None:
    """The connection to the database was lost, and the table renamed before this was noticed."""
    undos: list[Callable[[], object]] = []
    moves, table, aside = FolderMoves(FOLDERS, undos.append), tmp_path / "t", tmp_path / "aside"
    table.mkdir()
    (table / "a").touch()
    moves.move(str(table), str(aside))
    moves.make(str(table))
    table.rename(tmp_path / "renamed")
    if has_new_table:
        table.mkdir()
    undos[0]()
    assert "could not be moved back; move it to" in caplog.text
    assert (aside / "a").exists()
    assert table.exists() == has_new_table
