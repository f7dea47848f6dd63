"""Backup and restore of a folder: consistent under writers, verified, never over a store."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hive_metastore.ttypes import EnvironmentContext, FieldSchema, Partition

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    RenameTable,
    TableDefinition,
)
from strandline.cli import main
from strandline.cli.main import IO_ERROR
from strandline.config import Settings
from strandline.errors import Conflict, InvalidInput
from strandline.metastore.session import LocalSession
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.rows import DataFile
from strandline.model.types import INT
from strandline.node import Node
from strandline.node.backup import back_up
from strandline.node.backup import taking as module
from strandline.node.backup.archive import ArchiveWriter, Backup
from strandline.node.backup.database_copy import copy_database
from strandline.node.backup.manifest import MANIFEST
from tests.metastore.hive.hive_node import HiveNode, hive_node, storage, table
from tests.metastore.snapshots import paths_of
from tests.times import exact_text

COLUMNS = (ColumnDefinition("k", INT),)
PLAIN = TableDefinition(name="plain", columns=COLUMNS)


def strandline(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def unpack(backup: Path, folder: Path) -> Path:
    """Unpack a backup, into a folder like the backups of release 0.2.1."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "-xf", backup, "-C", folder], check=True)
    return folder


def place(session: LocalSession, name: str) -> Path:
    return Path("/" + session.table(name).location.removeprefix("file:").lstrip("/"))


def append(session: LocalSession, name: str, file: str, *, write: bool = True) -> None:
    """Add a data file of ten bytes to a transactional table."""
    table_id = session.table(name).descriptor.id
    path = place(session, name) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if write:
        path.write_bytes(b"0123456789")
    txn = session.begin().txn_id
    file_id = sum(map(ord, file))
    session.stage(txn, table_id, add=[DataFile(file_id=file_id, path=file, rows=1, bytes=10)])
    session.commit(txn)


def files_of(session: LocalSession, name: str) -> list[str]:
    """The paths of the data files of a table that are on disk where the store says."""
    paths = paths_of(session, name)
    return [path for path in paths if (place(session, name) / path).read_bytes() == b"0123456789"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a transactional table and a plain one, with a file each, and a settings file."""
    folder = tmp_path / "lake"
    with Node.open(folder) as node:
        ann = node.session(user="ann")
        ann.execute(CreateSchema(name="shop"))
        rows = TableDefinition(
            name="rows", columns=COLUMNS, transactional=True, provider="strandline"
        )
        ann.execute(CreateTable(schema="shop", definition=rows))
        ann.execute(CreateTable(schema="shop", definition=PLAIN))
        append(ann, "shop.rows", "a.parquet")
        (place(ann, "shop.plain") / "part-0").write_text("plain")
    (folder / "strandline.toml").write_text("cache_bytes = 1000000\n")
    return folder


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


def test_a_backup_is_consistent_under_concurrent_writes_renames_and_drops(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them happen between the copy of the database and the copy of the files."""
    with Node.open(store) as node, Node.open(store) as other:
        bob = other.session(user="bob")

        def then_others_write(*arguments: Any) -> None:
            copy_database(*arguments)
            append(bob, "shop.rows", "later.parquet")
            bob.execute(RenameTable(schema="shop", table="rows", new_name="renamed"))
            bob.execute(DropTable(schema="shop", table="plain"))

        monkeypatch.setattr(module, "copy_database", then_others_write)
        assert back_up(node, tmp_path / "b", user="ann").missing == []
    result = strandline("restore", tmp_path / "b", tmp_path / "new", "--copy")
    assert result.exit_code == 0, result.output
    with Node.open(tmp_path / "new") as node:
        ann = node.session(user="ann")
        assert files_of(ann, "shop.rows") == ["a.parquet"]
        assert (place(ann, "shop.plain") / "part-0").read_text() == "plain"
        # The copy that the backup made of the dropped table does not prevent a drop here.
        ann.execute(DropTable(schema="shop", table="plain"))
        ann.undrop("shop.plain")
        assert (place(ann, "shop.plain") / "part-0").read_text() == "plain"
    with Node.open(store) as node:
        assert files_of(node.session(user="ann"), "shop.renamed") == ["a.parquet", "later.parquet"]


def test_files_of_a_table_that_replaces_a_dropped_one_during_a_backup_are_left_out(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(store) as node:
        bob = node.session(user="bob")
        before = place(bob, "shop.plain")

        def then_it_is_replaced(*arguments: Any) -> None:
            copy_database(*arguments)
            bob.execute(DropTable(schema="shop", table="plain"))
            bob.execute(CreateTable(schema="shop", definition=PLAIN))
            assert place(bob, "shop.plain") == before
            (before / "part-0").write_text("another")
            (before / "part-1").write_text("another")

        monkeypatch.setattr(module, "copy_database", then_it_is_replaced)
        assert back_up(node, tmp_path / "b", user="ann").missing == []
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with Node.open(tmp_path / "new") as node:
        folder = place(node.session(user="ann"), "shop.plain")
        assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("part-0", "plain")]


def test_a_table_renamed_repeatedly_during_a_backup_is_in_it(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tree = ArchiveWriter.add_tree
    names = ["plain", "second", "third"]
    with Node.open(store) as node:
        bob = node.session(user="bob")

        def rename() -> None:
            if len(names) > 1:
                bob.execute(RenameTable(schema="shop", table=names.pop(0), new_name=names[0]))

        def then_it_moves(*arguments: Any) -> None:
            copy_database(*arguments)
            rename()

        def it_moves_first(*arguments: Any) -> None:
            rename()
            add_tree(*arguments)

        monkeypatch.setattr(module, "copy_database", then_it_moves)
        monkeypatch.setattr(ArchiveWriter, "add_tree", it_moves_first)
        assert back_up(node, tmp_path / "b", user="ann").missing == []
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with Node.open(tmp_path / "new") as node:
        folder = place(node.session(user="ann"), "shop.plain")
        assert [file.name for file in folder.iterdir()] == ["part-0"]


def test_a_table_renamed_while_one_of_its_files_is_copied_is_in_the_backup(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ArchiveWriter._add
    copied: list[str] = []
    with Node.open(store) as node:
        bob = node.session(user="bob")

        def then_it_moves(
            writer: ArchiveWriter, info: tarfile.TarInfo, content: Any = None
        ) -> None:
            if info.name.endswith("part-0") and not copied:
                copied.append(info.name)
                bob.execute(RenameTable(schema="shop", table="plain", new_name="other"))
            add(writer, info, content)

        monkeypatch.setattr(ArchiveWriter, "_add", then_it_moves)
        manifest = back_up(node, tmp_path / "b", user="ann")
        assert copied
    monkeypatch.undo()
    assert [name for name in manifest.files if "part-0" in name] == [
        "warehouse/shop.db/plain/part-0"
    ]
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with Node.open(tmp_path / "new") as node:
        assert (place(node.session(user="ann"), "shop.plain") / "part-0").read_text() == "plain"


def test_files_of_a_table_created_during_a_backup_are_not_in_it(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = replace(PLAIN, name="later")
    with Node.open(store) as node:
        bob = node.session(user="bob")

        def then_one_is_created(*arguments: Any) -> None:
            copy_database(*arguments)
            bob.execute(CreateTable(schema="shop", definition=later))
            (place(bob, "shop.later") / "part-0").write_text("later")

        monkeypatch.setattr(module, "copy_database", then_one_is_created)
        assert back_up(node, tmp_path / "b", user="ann").missing == []
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with Node.open(tmp_path / "new") as node:
        ann = node.session(user="ann")
        ann.execute(CreateTable(schema="shop", definition=later))
        assert list(place(ann, "shop.later").iterdir()) == []


def partitions(hive: HiveNode, schema: str = "shop") -> dict[str, str]:
    """The contents of the file in each partition of the table ``p``, by partition value."""
    with hive.stub() as stub:
        return {
            partition.values[0]: (Path(partition.sd.location[len("file:") :]) / "f").read_text()
            for partition in stub.get_partitions(schema, "p", -1)
        }


def add_partition(hive: HiveNode, value: str, text: str) -> None:
    with hive.stub() as stub:
        stub.add_partition(Partition([value], "shop", "p", sd=storage()))
        location = stub.get_partition("shop", "p", [value]).sd.location
    (Path(location.removeprefix("file:")) / "f").write_text(text)


def moment(hive: HiveNode) -> str:
    """The name of the schema as of now."""
    return f"shop@{exact_text(hive.node.metastore.catalogs.complete_now())}"


@pytest.fixture
def parted(store: Path) -> Iterator[HiveNode]:
    """The store with a partitioned table; it has four partitions with a file each."""
    with hive_node(store) as hive:
        with hive.stub() as stub:
            keys = [FieldSchema("k", "string", None)]
            stub.create_table(table("p", schema="shop", partitionKeys=keys))
        for value in "abcd":
            add_partition(hive, value, value)
        yield hive


ALL = {value: value for value in "abcd"}


@pytest.mark.slow
def test_a_backup_contains_dropped_partitions_and_holds(
    parted: HiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = moment(parted)
    session = parted.node.session(user="ann")
    at = parted.node.catalogs.complete_now()
    hold = session.hold("stream", "reader", at=at, ttl_ms=10_000_000)
    with parted.stub() as stub:
        stub.drop_partition("shop", "p", ["a"], True)
        stub.rename_partition("shop", "p", ["b"], Partition(["z"], "shop", "p", sd=storage()))
        with monkeypatch.context() as patch:  # as if the process was killed
            patch.setattr(SqlObjectStore, "finish_moves", lambda *_: None)
            stub.drop_partition("shop", "p", ["c"], True)
    back_up(parted.node, tmp_path / "b", user="ann")
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with hive_node(tmp_path / "new") as restored:
        assert partitions(restored) == {"d": "d", "z": "b"}
        assert partitions(restored, before) == ALL
        streams = [
            stream for stream in restored.node.transactions.holds.list() if stream.kind == "stream"
        ]
        assert [(stream.hold_id, stream.owner, stream.at) for stream in streams] == [
            (hold.hold_id, "reader", at)
        ]
        with pytest.raises(Conflict, match="hold"):
            restored.node.session(user="ann").compact(restored.node.catalogs.present().version)
        add_partition(restored, "c", "another c")
        assert restored.node.session(user="ann").undrop_partitions("shop.p", partitions=["k=a"])
        assert partitions(restored) == {"a": "a", "c": "another c", "d": "d", "z": "b"}
        assert partitions(restored, before) == ALL
    assert partitions(parted, before) == ALL


@pytest.mark.slow
def test_partitions_moved_during_a_backup_are_in_it_at_their_former_places(
    parted: HiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped, dropped and recreated, renamed, and undropped, after the database was copied."""
    session = parted.node.session(user="ann")
    before = moment(parted)
    with parted.stub() as stub:
        stub.drop_partition("shop", "p", ["d"], True)

    def then_others_move(*arguments: Any) -> None:
        copy_database(*arguments)
        with parted.stub() as stub:
            for value in "ab":
                stub.drop_partition("shop", "p", [value], True)
            stub.rename_partition("shop", "p", ["c"], Partition(["z"], "shop", "p", sd=storage()))
        add_partition(parted, "b", "another b")
        session.undrop_partitions("shop.p", partitions=["k=d"])

    monkeypatch.setattr(module, "copy_database", then_others_move)
    assert back_up(parted.node, tmp_path / "b", user="ann").missing == []
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with hive_node(tmp_path / "new") as restored:
        assert partitions(restored) == {value: value for value in "abc"}
        assert partitions(restored, before) == ALL
        with restored.stub() as stub:
            for value in "abc":
                stub.drop_partition("shop", "p", [value], True)
        for value in "abcd":
            add_partition(restored, value, f"another {value}")
        assert partitions(restored, before) == ALL
    assert partitions(parted) == {"b": "another b", "d": "d", "z": "c"}
    assert partitions(parted, before) == ALL


@pytest.mark.slow
def test_partitions_replaced_twice_during_a_backup_are_in_it_as_they_were_before(
    parted: HiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = moment(parted)

    def then_each_is_replaced(*arguments: Any) -> None:
        copy_database(*arguments)
        for text in ("second", "third"):
            with parted.stub() as stub:
                for value in "abcd":
                    stub.drop_partition("shop", "p", [value], True)
            for value in "abcd":
                add_partition(parted, value, text)

    monkeypatch.setattr(module, "copy_database", then_each_is_replaced)
    assert back_up(parted.node, tmp_path / "b", user="ann").missing == []
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with hive_node(tmp_path / "new") as restored:
        assert partitions(restored) == partitions(restored, before) == ALL


def test_a_partition_purged_during_a_backup_is_reported_as_missing(
    parted: HiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def then_one_is_purged(*arguments: Any) -> None:
        copy_database(*arguments)
        purge = EnvironmentContext({"ifPurge": "TRUE"})
        with parted.stub() as stub:
            stub.drop_partition_with_environment_context("shop", "p", ["a"], True, purge)

    monkeypatch.setattr(module, "copy_database", then_one_is_purged)
    manifest = back_up(parted.node, tmp_path / "b", user="ann")
    assert manifest.missing == ["warehouse/shop.db/p/k=a"]


def test_a_backup_holds_the_history_while_it_runs(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds: list[str] = []
    with Node.open(store) as node:

        def look(*arguments: Any) -> None:
            holds.extend(f"{hold.kind} of {hold.owner}" for hold in node.transactions.holds.list())
            copy_database(*arguments)

        monkeypatch.setattr(module, "copy_database", look)
        back_up(node, tmp_path / "b", user="ann")
        assert holds == ["backup of ann"]
        assert node.transactions.holds.list() == ()


def test_a_store_that_keeps_no_history_is_backed_up(store: Path, tmp_path: Path) -> None:
    with Node.open(store, settings=Settings(history_retention_ms=0)) as node:
        assert back_up(node, tmp_path / "b", user="ann").missing == []


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
    ],
)
def test_an_invalid_manifest_is_refused(
    store: Path, tmp_path: Path, change: dict[str, Any], status: int, says: str
) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    manifest = unpack(tmp_path / "b", tmp_path / "unpacked") / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    result = strandline("restore", manifest.parent, tmp_path / "new", "--copy")
    assert (result.exit_code, says in result.stderr) == (status, True), result.output


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


def test_file_names_that_are_not_utf_8_are_restored(store: Path, tmp_path: Path) -> None:
    folder = os.fsencode(store / "warehouse" / "shop.db" / "plain") + b"/\xff\xfe"
    os.mkdir(folder)
    Path(os.fsdecode(folder + b"/\xfd")).write_text("x")
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    result = strandline("restore", tmp_path / "b", tmp_path / "new", "--copy")
    assert result.exit_code == 0, result.output
    copied = os.fsencode(tmp_path / "new" / "warehouse" / "shop.db" / "plain") + b"/\xff\xfe/\xfd"
    assert Path(os.fsdecode(copied)).read_text() == "x"


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
    result = CliRunner().invoke(
        main,
        ["restore", str(manifest.parent), str(tmp_path / "new"), "--copy"],
        color=True,  # otherwise click removes terminal codes
    )
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


def test_a_restore_next_to_the_original_store_asks_for_the_copy_option(
    store: Path, tmp_path: Path
) -> None:
    assert strandline("backup", store, tmp_path / "b").exit_code == 0
    refused = strandline("restore", tmp_path / "b", tmp_path / "new")
    assert refused.exit_code == 75
    assert f"still in {store}" in refused.stderr
    assert "add --copy" in refused.stderr
    assert "relocate" not in refused.stderr
