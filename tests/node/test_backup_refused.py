"""A backup or restore that is refused or fails says why, and leaves nothing behind."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import resource
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from strandline.catalog.commands import CreateRole
from strandline.cli.main import IO_ERROR
from strandline.errors import CorruptData, InvalidInput
from strandline.node import Node
from strandline.node.backup import restoring
from strandline.node.backup import taking as module
from strandline.node.backup.archive import ArchiveWriter, Backup
from strandline.node.backup.database_copy import copy_database
from strandline.node.backup.manifest import MANIFEST
from tests.node.backups import append, files_of, place, unpack
from tests.strandline_command import strandline


def test_a_store_inside_the_folder_of_another_is_refused(store: Path, tmp_path: Path) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    inside = store / "warehouse" / "new"
    restored = strandline("restore", tmp_path / "b", inside, "--copy")
    assert restored.exit_code != 0
    assert f"{inside} is inside {store}, which is a folder of another store" in restored.output
    link = tmp_path / "link"
    link.symlink_to(store / "warehouse")
    with pytest.raises(InvalidInput, match=f"inside {store}, which is a folder of another store"):
        Node.open(link / "new")
    assert not inside.exists()


def test_a_lost_data_file_is_reported_and_the_rest_is_backed_up(
    store: Path, tmp_path: Path
) -> None:
    with Node.open(store) as node:
        append(node.session(user="ann"), "shop.rows", "lost.parquet", write=False)
    made = strandline("backup", store, tmp_path / "b")
    assert made.exit_code == 65
    assert "missing: warehouse/shop.db/rows/lost.parquet" in made.stderr
    assert "missing when it was backed up: 1 file that the store names;" in made.stderr
    again = strandline("restore", tmp_path / "b", tmp_path / "new", "--copy")
    assert again.exit_code == 65
    with Node.open(tmp_path / "new") as node, pytest.raises(FileNotFoundError):
        files_of(node.session(user="ann"), "shop.rows")


def refuse_to_list(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the system refuse to list ``folder``, also for root."""
    scandir = os.scandir

    def refused(path: Any = ".") -> Any:
        if str(path) == str(folder):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)


def test_a_folder_that_cannot_be_listed_fails_the_backup(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(store) as node:
        unreadable = place(node.session(user="ann"), "shop.plain")
    refuse_to_list(unreadable, monkeypatch)
    made = strandline("backup", store, tmp_path / "b")
    assert made.exit_code != 0
    assert f"Permission denied: '{unreadable}'" in made.output
    assert not (tmp_path / "b").exists()


def test_the_folder_of_fsck_at_the_root_of_a_file_system_does_not_fail_the_backup(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = store / "lost+found"
    unreadable.mkdir(mode=0o700)
    refuse_to_list(unreadable, monkeypatch)
    made = strandline("backup", store, tmp_path / "b")
    assert made.exit_code == 0, made.output


def test_wrong_sources_and_targets_of_backup_and_restore_are_refused(
    store: Path, tmp_path: Path
) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    unpacked = unpack(tmp_path / "b", tmp_path / "unpacked")
    (tmp_path / "file").write_text("x")
    cases = [
        (("backup", store, store), 73, "already exists"),
        (("backup", store, tmp_path / "b"), 73, "already exists"),
        (("backup", store, store / "inner"), 64, "is inside the other"),
        (("backup", store, tmp_path / "none" / "b"), 64, "does not exist"),
        (("backup", store, ""), 2, "it is empty; name the file"),
        (("backup", tmp_path / "none", tmp_path / "c"), 66, "there is no store"),
        (("restore", tmp_path / "b", store), 73, "is not empty"),
        (("restore", tmp_path / "b", tmp_path / "file"), 64, "is not a folder"),
        (("restore", tmp_path / "file", tmp_path / "c"), 66, "is not a backup"),
        (("restore", tmp_path / "b", "postgresql://h/d"), 64, "the backup of a store in a folder"),
        (("restore", store, tmp_path / "c"), 66, "is not a complete backup"),
        (("restore", tmp_path / "none", tmp_path / "c"), 66, "is not a backup"),
        (("restore", unpacked, unpacked / "c", "--copy"), 64, "unpacked/c is inside"),
        (("restore", tmp_path / "b", tmp_path / "c"), 75, "--copy"),
    ]
    for arguments, status, says in cases:
        result = strandline(*arguments)
        assert (result.exit_code, says in result.stderr) == (status, True), result.output
    assert not (tmp_path / "c").exists() or not any((tmp_path / "c").iterdir())
    assert not (store / "inner").exists()


@pytest.mark.parametrize("name", ["strandline.db", "warehouse/shop.db/rows/a.parquet"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(
    store: Path, tmp_path: Path, name: str, damage: str
) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    folder = unpack(tmp_path / "b", tmp_path / "unpacked")
    file = folder / name
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(content if damage == "flip" else content[:-1])
    result = strandline("restore", folder, tmp_path / "new", "--copy")
    assert result.exit_code == 65
    assert name in result.stderr
    reason = {"remove": "lacks the file", "flip": "has other content"}.get(
        damage, "bytes instead of"
    )
    assert reason in result.stderr
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"format": 3}, 78, "this release reads up to 2"),
        ({"files": {"../x": [1, "a"]}}, 65, "'../x' is not a file of a backup"),
        ({"files": {"/x": [1, "a"]}}, 65, "'/x' is not a file of a backup"),
        ({"files": {}}, 65, "does not name strandline.db"),
        ({"folders": ["warehouse", "../x"]}, 65, "'../x' is not a file of a backup"),
        ({"folders": 7}, 65, "is damaged"),
        ({"files": 7}, 65, "is damaged"),
        ({"nothing": 7}, 65, "is damaged"),
        ({"warehouse": 7}, 65, "is damaged"),
        ({"format": 3, "nothing": 7}, 78, "this release reads up to 2"),
        ({"mode": 1 << 20}, 65, "is damaged"),
        ([], 65, "is damaged"),
    ],
)
def test_an_invalid_manifest_is_refused(
    store: Path, tmp_path: Path, change: dict[str, Any] | list[Any], status: int, says: str
) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    manifest = unpack(tmp_path / "b", tmp_path / "unpacked") / MANIFEST
    written = json.loads(manifest.read_text())
    stated = {**written, **change} if isinstance(change, dict) else change
    manifest.write_text(json.dumps(stated))
    result = strandline("restore", manifest.parent, tmp_path / "new", "--copy")
    assert (result.exit_code, says in result.stderr) == (status, True), result.output


def test_a_backup_into_a_linked_warehouse_is_refused(store: Path, tmp_path: Path) -> None:
    (store / "warehouse").rename(tmp_path / "disk")
    (store / "warehouse").symlink_to(tmp_path / "disk")
    result = strandline("backup", store, tmp_path / "disk" / "b")
    assert result.exit_code == 64
    assert "is inside the other" in result.stderr
    assert not (tmp_path / "disk" / "b").exists()


def test_a_full_disk_has_the_exit_status_of_a_failed_write(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ArchiveWriter, "finish", full)
        result = strandline("backup", store, tmp_path / "b")
    assert result.exit_code == IO_ERROR
    assert re.search(r"the backup to .*/b failed: .*No space left", result.stderr)
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    monkeypatch.setattr(Backup, "copy_file", full)
    result = strandline("restore", tmp_path / "b", tmp_path / "new", "--copy")
    assert result.exit_code == IO_ERROR
    assert re.search(r"restoring to .*/new failed: .*No space left", result.stderr)


def test_no_store_is_made_in_the_folder_of_a_restore_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node that a service manager starts would serve an empty store there."""
    with Node.open(tmp_path / "store") as node:
        node.session(user="ann").execute(CreateRole(name="r"))  # there are no tables
    assert strandline("backup", tmp_path / "store", tmp_path / "b").exit_code == 0

    def killed(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        patch.setattr(restoring, "_empty", lambda _: None)
        assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code != 0
    with pytest.raises(CorruptData, match=r"has .*strandline\.db\.unfinished, but no database"):
        Node.open(tmp_path / "new")


def fail_at(step: int, below: Path, patch: pytest.MonkeyPatch) -> None:
    """Make the disk fail once, at the ``step``-th call that changes or syncs what is ``below``."""
    passed = 0

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(subject: Any, *arguments: Any, **named: Any) -> Any:
            nonlocal passed
            is_open = isinstance(subject, int)
            path = os.readlink(f"/proc/self/fd/{subject}") if is_open else os.fspath(subject)
            if path.startswith(str(below)):
                passed += 1
                if passed == step:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(subject, *arguments, **named)

        return counted

    for name in ("open", "mkdir", "chmod", "ftruncate", "fchmod", "fsync", "utime", "rename"):
        patch.setattr(os, name, failing(getattr(os, name)))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_backup_or_restore_whose_disk_fails_at_any_step_leaves_nothing(
    store: Path, tmp_path: Path, command: str
) -> None:
    target, arguments = tmp_path / "to", ["backup", store, tmp_path / "to" / "b"]
    target.mkdir()
    if command == "restore":
        assert strandline("backup", store, tmp_path / "b").exit_code == 0
        arguments = ["restore", tmp_path / "b", target, "--copy"]
    for step in itertools.count(1):
        with pytest.MonkeyPatch.context() as patch:
            fail_at(step, target, patch)
            result = strandline(*arguments)
        if result.exit_code == 0:
            break
        assert "Input/output error" in result.stderr, step
        assert list(target.iterdir()) == [], step
    assert step > len(["open", "chmod", "truncate", "sync", "rename", "sync of the folder"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_backup_or_restore_and_leaves_nothing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    temporary, target = tmp_path / "tmp", tmp_path / "new"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    former = signal.signal(number, signal.default_int_handler)  # for a test that fails

    def end(*_: object) -> None:
        signal.raise_signal(number)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(ArchiveWriter, "finish", end)
            assert strandline("backup", store, tmp_path / "b").exit_code == 128 + number
        assert not (tmp_path / "b.unfinished").exists()
        assert "holds: 0" in strandline("holders", store).output
        assert strandline("backup", store, tmp_path / "b").exit_code == 0
        monkeypatch.setattr(Backup, "copy_file", end)
        assert strandline("restore", tmp_path / "b", target, "--copy").exit_code == 128 + number
        assert [*target.iterdir(), *temporary.iterdir()] == []
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, former)


def test_a_full_temporary_folder_is_named_in_the_error(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(node_database: Any, file: Path) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        try:
            copy_database(node_database, file)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(module, "copy_database", limited)
    result = strandline("backup", store, tmp_path / "b")
    assert result.exit_code == 69, result.exception
    assert "strandline-backup-" in result.stderr
    assert not (tmp_path / "b.unfinished").exists()


def test_control_characters_in_a_manifest_are_not_printed_to_the_terminal(
    store: Path, tmp_path: Path
) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    manifest = unpack(tmp_path / "b", tmp_path / "unpacked") / MANIFEST
    stated = {**json.loads(manifest.read_text()), "time": "\x1b[2Jnow"}
    manifest.write_text(json.dumps(stated))
    result = strandline("restore", manifest.parent, tmp_path / "new", "--copy", color=True)
    assert result.exit_code == 0
    assert "\x1b" not in result.output


@pytest.mark.parametrize("kind", ["a pipe", "a link"])
def test_an_unpacked_backup_with_a_pipe_or_a_link_is_refused(
    store: Path, tmp_path: Path, kind: str
) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    folder = unpack(tmp_path / "b", tmp_path / "unpacked")
    file = folder / "warehouse" / "shop.db" / "plain" / "part-0"
    file.rename(tmp_path / "moved")
    if kind == "a pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / "moved")
    result = strandline("restore", folder, tmp_path / "new", "--copy")
    assert result.exit_code == 65
    assert "plain/part-0 is not a file" in result.stderr
    assert list((tmp_path / "new").iterdir()) == []


def test_a_restore_next_to_the_original_store_asks_for_the_copy_option(
    store: Path, tmp_path: Path
) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    refused = strandline("restore", tmp_path / "b", tmp_path / "new")
    assert refused.exit_code == 75
    assert f"still in {store}" in refused.stderr
    assert "add --copy" in refused.stderr
    assert "relocate" not in refused.stderr


def test_of_two_restores_to_one_folder_the_one_that_fails_leaves_the_files_of_the_other(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0

    def restore_first(folder: Path, *, mode: int) -> None:
        monkeypatch.undo()
        first = strandline("restore", tmp_path / "b", folder, "--copy")
        assert first.exit_code == 0, first.output

    monkeypatch.setattr(restoring, "_make_folder", restore_first)
    second = strandline("restore", tmp_path / "b", tmp_path / "new", "--copy")
    assert (second.exit_code, "File exists" in second.stderr) == (IO_ERROR, True)
    with Node.open(tmp_path / "new") as node:
        assert files_of(node.session(user="ann"), "shop.rows") == ["a.parquet"]
