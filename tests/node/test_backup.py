"""Backup and restore of a folder: what a restored store has, and who may read it."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Connection, select

from strandline import files
from strandline.catalog.commands import CreateTable, DropTable, TableDefinition
from strandline.config import Settings
from strandline.metastorage import sql_tables
from strandline.node import Node
from strandline.node.address import StoreAddress
from strandline.node.backup import back_up, database_copy, restore
from strandline.node.backup import taking as module
from strandline.node.backup.database_copy import copy_database
from strandline.node.backup.manifest import MANIFEST, UNFINISHED
from strandline.sql import open_sqlite
from tests.node.backups import COLUMNS, append, files_of, place, unpack
from tests.strandline_command import strandline


def test_a_backup_is_restored_with_catalog_rows_and_files(store: Path, tmp_path: Path) -> None:
    made = strandline("backup", store, tmp_path / "b", "--output", "json")
    assert made.exit_code == 0, made.output
    report = json.loads(made.stdout)
    assert (report["files"], report["missing"]) == (4, [])
    store.rename(tmp_path / "broken")
    restored = strandline("restore", tmp_path / "b", tmp_path / "new")
    assert restored.exit_code == 0, restored.output
    assert restored.stdout.startswith(f"restored to {tmp_path}/new: version ")
    assert (tmp_path / "new" / "strandline.toml").read_text() == "cache_bytes = 1000000\n"
    with Node.open(tmp_path / "new") as node:
        ann = node.session(user="ann")
        assert files_of(ann, "shop.rows") == ["a.parquet"]
        assert (place(ann, "shop.plain") / "part-0").read_text() == "plain"
        assert place(ann, "shop.rows").is_relative_to(tmp_path / "new")
        append(ann, "shop.rows", "b.parquet")
        assert node.transactions.holds.list() == ()


def test_large_rows_are_copied_few_at_a_time(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the database of a server, or into one."""
    copied: list[tuple[int, int]] = []  # rows and bytes

    class Noted:
        def execute(self, statement: object, rows: list[dict[str, object]]) -> None:
            sizes = [len(row["value"]) for row in rows if isinstance(row["value"], bytes)]
            copied.append((len(rows), sum(sizes[:-1])))

    with (
        closing(open_sqlite(store / "strandline.db", read_only=True)) as source,
        closing(open_sqlite(tmp_path / "copy.db")) as target,
        source.read() as connection,
    ):
        all_rows = connection.execute(select(sql_tables.ENTRIES)).all()
        for most in 300, 10 << 20:
            monkeypatch.setattr(database_copy, "_BYTES", most)
            copied.clear()
            database_copy._copy_table(
                sql_tables.ENTRIES, source, connection, target, cast(Connection, Noted())
            )
            assert sum(count for count, _ in copied) == len(all_rows)
            assert max(size for _, size in copied) <= most
            assert (len(copied) == 1) is (most > 300)


def test_a_backup_and_a_restored_database_get_their_names_when_they_are_on_disk(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Path | None]] = []
    fsync, rename = os.fsync, os.rename

    sizes: dict[Path, int] = {}

    def syncing(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        calls.append(("fsync", path))
        sizes[path] = os.fstat(descriptor).st_size
        fsync(descriptor)

    def syncing_all(descriptor: int) -> int:
        calls.append(("syncfs", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        return 0

    def renaming(source: Path, target: Path, **options: Any) -> None:
        calls.append(("rename", Path(target)))
        rename(source, target, **options)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(files, "_SYNC_FILE_SYSTEM", syncing_all)
    monkeypatch.setattr(os, "rename", renaming)
    backup, database = tmp_path / "b", tmp_path / "new" / "strandline.db"
    with Node.open(store) as node:
        back_up(node, backup, user="ann")
    unfinished = tmp_path / f"b{UNFINISHED}"
    assert [call for call in calls if call[1] in (unfinished, backup, tmp_path)] == [
        ("fsync", unfinished),
        ("rename", backup),
        ("fsync", tmp_path),
    ]
    assert sizes[unfinished] == backup.stat().st_size
    restore(backup, StoreAddress(tmp_path / "new"), copy=True)
    named = calls.index(("rename", database))
    assert calls[named - 1] == ("syncfs", database.parent)
    assert calls[named + 1] == ("fsync", database.parent)


def test_a_restore_whose_files_the_disk_refuses_later_fails_and_leaves_nothing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0

    def failing(_: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(files, "_SYNC_FILE_SYSTEM", failing)
    refused = strandline("restore", tmp_path / "b", tmp_path / "new", "--copy")
    assert refused.exit_code == os.EX_IOERR
    assert "Input/output error" in refused.output
    assert not list((tmp_path / "new").iterdir())


def test_a_backup_folder_of_release_0_2_1_is_restored(store: Path, tmp_path: Path) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    folder = unpack(tmp_path / "b", tmp_path / "unpacked")
    manifest = json.loads((folder / MANIFEST).read_text())
    former = {key: manifest[key] for key in manifest if key not in ("warehouse", "mode")}
    (folder / MANIFEST).write_text(json.dumps({**former, "format": 1}))
    folder.chmod(0o750)
    assert strandline("restore", folder, tmp_path / "new", "--copy").exit_code == 0
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o750
    with Node.open(tmp_path / "new") as node:
        assert files_of(node.session(user="ann"), "shop.rows") == ["a.parquet"]


def test_a_symbolic_link_is_followed_only_for_the_warehouse(store: Path, tmp_path: Path) -> None:
    (store / "warehouse").rename(tmp_path / "disk")
    (store / "warehouse").symlink_to(tmp_path / "disk")
    (tmp_path / "secret").write_text("x")
    (store / "link").symlink_to(tmp_path / "secret")
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    with tarfile.open(tmp_path / "b") as tar:
        copied = tar.getnames()
    assert "warehouse/shop.db/rows/a.parquet" in copied
    assert "link" not in copied


def test_file_names_that_are_not_utf_8_are_restored(store: Path, tmp_path: Path) -> None:
    folder = os.fsencode(store / "warehouse" / "shop.db" / "plain") + b"/\xff\xfe"
    os.mkdir(folder)
    Path(os.fsdecode(folder + b"/\xfd")).write_text("x")
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    result = strandline("restore", tmp_path / "b", tmp_path / "new", "--copy")
    assert result.exit_code == 0, result.output
    copied = os.fsencode(tmp_path / "new" / "warehouse" / "shop.db" / "plain") + b"/\xff\xfe/\xfd"
    assert Path(os.fsdecode(copied)).read_text() == "x"


def test_a_restored_store_has_the_folders_of_empty_tables(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(store) as node:
        ann = node.session(user="ann")
        for name in ("empty", "emptied"):
            definition = TableDefinition(name=name, columns=COLUMNS, provider="parquet")
            ann.execute(CreateTable(schema="shop", definition=definition))

        def then_one_is_dropped(*arguments: Any) -> None:
            copy_database(*arguments)
            ann.execute(DropTable(schema="shop", table="emptied"))

        monkeypatch.setattr(module, "copy_database", then_one_is_dropped)
        back_up(node, tmp_path / "b", user="ann")
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    verified = strandline("verify", tmp_path / "new")
    assert " is missing" not in verified.output


def test_a_backup_and_a_restored_store_are_readable_by_their_owner_only(
    store: Path, tmp_path: Path
) -> None:
    before = os.umask(0o022)
    try:
        assert strandline("backup", store, tmp_path / "b").exit_code == 0
        assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    finally:
        os.umask(before)
    folder = tmp_path / "new"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "warehouse" / "shop.db").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "strandline.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o700, 0o750])
def test_a_backup_has_the_permissions_of_the_folder_whatever_access_new_files_get(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    temporary: list[int] = []

    def look(node_database: Any, file: Path) -> None:
        temporary.append(stat.S_IMODE(file.parent.stat().st_mode))
        copy_database(node_database, file)

    monkeypatch.setattr(module, "copy_database", look)
    store.chmod(mode)
    with Node.open(store, settings=Settings(file_access="umask")) as node:
        back_up(node, tmp_path / "b", user="ann")
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == mode & 0o666
    assert temporary == [0o700]
