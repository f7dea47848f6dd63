"""A backup is consistent while tables and partitions are written, renamed and dropped."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import EnvironmentContext, FieldSchema, Partition

from strandline.catalog.commands import CreateSchema, CreateTable, DropTable, RenameTable
from strandline.config import Settings
from strandline.errors import Conflict, HoldExpired
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.node import Node
from strandline.node.backup import back_up
from strandline.node.backup import taking as module
from strandline.node.backup.archive import ArchiveWriter
from strandline.node.backup.database_copy import copy_database
from tests.metastore.hive.hive_node import HiveNode, hive_node, storage, table
from tests.node.backups import PLAIN, append, files_of, place
from tests.node.conftest import before_the_next
from tests.strandline_command import strandline
from tests.times import exact_text


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


def test_files_of_a_table_that_takes_the_folder_of_a_renamed_one_as_it_is_copied_are_left_out(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(store) as node:
        bob = node.session(user="bob")

        def then_it_moves(*arguments: Any) -> None:
            copy_database(*arguments)
            bob.execute(RenameTable(schema="shop", table="plain", new_name="second"))

        def replace_it() -> None:
            bob.execute(RenameTable(schema="shop", table="second", new_name="third"))
            bob.execute(CreateTable(schema="shop", definition=replace(PLAIN, name="second")))
            for name in ("part-0", "part-1"):
                (place(bob, "shop.second") / name).write_text("another")

        monkeypatch.setattr(module, "copy_database", then_it_moves)
        before_the_next(monkeypatch, ArchiveWriter, "add_tree", replace_it)
        assert back_up(node, tmp_path / "b", user="ann").missing == []
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with Node.open(tmp_path / "new") as node:
        folder = place(node.session(user="ann"), "shop.plain")
        assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("part-0", "plain")]


@pytest.mark.parametrize("comes_back", [True, False])
def test_files_of_a_table_that_had_the_folder_of_a_renamed_one_for_a_while_are_left_out(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    with Node.open(store) as node:
        bob = node.session(user="bob")

        def then_it_is_replaced(*arguments: Any) -> None:
            copy_database(*arguments)
            bob.execute(RenameTable(schema="shop", table="plain", new_name="away"))
            bob.execute(CreateTable(schema="shop", definition=PLAIN))
            for name in ("part-0", "part-1"):
                (place(bob, "shop.plain") / name).write_text("another")

        def put_back() -> None:
            bob.execute(DropTable(schema="shop", table="plain"))
            if comes_back:
                bob.execute(RenameTable(schema="shop", table="away", new_name="plain"))

        monkeypatch.setattr(module, "copy_database", then_it_is_replaced)
        before_the_next(monkeypatch, module, "fetch_moved", put_back)
        assert back_up(node, tmp_path / "b", user="ann").missing == []
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with Node.open(tmp_path / "new") as node:
        folder = place(node.session(user="ann"), "shop.plain")
        assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("part-0", "plain")]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_table_that_is_dropped_and_undropped_while_files_are_copied_is_in_the_backup(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    add_folder = ArchiveWriter.add_folder
    with Node.open(store) as node:
        bob = node.session(user="bob")
        before = place(bob, "shop.plain")
        drop = DropTable(schema="shop", table="plain", purge=is_replaced)

        def drop_it() -> None:
            versions.append(bob.execute(replace(drop, purge=False)).version)
            if is_replaced:
                bob.execute(CreateTable(schema="shop", definition=PLAIN))
                (before / "part-0").write_text("another")

        def undrop_it() -> None:
            if is_replaced:
                bob.execute(drop)
            bob.undo(versions[0])

        def then_it_changes(writer: ArchiveWriter, source: Path, name: str) -> None:
            changes.pop(name, lambda: None)()
            add_folder(writer, source, name)

        versions: list[int] = []
        changes = {"warehouse/shop.db/plain": drop_it, "warehouse/shop.db/rows": undrop_it}
        monkeypatch.setattr(ArchiveWriter, "add_folder", then_it_changes)
        assert back_up(node, tmp_path / "b", user="ann").missing == []
        assert (changes, place(bob, "shop.plain")) == ({}, before)
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with Node.open(tmp_path / "new") as node:
        folder = place(node.session(user="ann"), "shop.plain")
        assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("part-0", "plain")]


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


@pytest.mark.parametrize("is_dropped", [False, True])
def test_files_of_a_table_created_during_a_backup_are_not_in_it(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dropped: bool
) -> None:
    later = replace(PLAIN, name="later")
    with Node.open(store) as node:
        bob = node.session(user="bob")

        def then_one_is_created(*arguments: Any) -> None:
            copy_database(*arguments)
            bob.execute(CreateTable(schema="shop", definition=later))
            (place(bob, "shop.later") / "k=1").mkdir()
            for name in ("part-0", "k=1/part-0"):
                (place(bob, "shop.later") / name).write_text("later")

        def drop() -> None:
            if is_dropped:
                bob.execute(DropTable(schema="shop", table="later"))

        monkeypatch.setattr(module, "copy_database", then_one_is_created)
        before_the_next(monkeypatch, module, "fetch_moved", drop)
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
def test_partitions_moved_during_a_backup_are_in_it_only_at_their_former_places(
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
    root = tmp_path / "new" / "warehouse" / "shop.db" / "p"
    assert sorted(path.name for path in root.iterdir()) == ["k=a", "k=b", "k=c"]
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
        with restored.stub() as stub:
            location = stub.get_partition("shop", "p", ["a"]).sd.location
            (Path(location.removeprefix("file:")) / "f").write_text("later")
            stub.drop_partition("shop", "p", ["a"], True)
        assert partitions(restored, before) == {**ALL, "a": "later"}


@pytest.mark.slow
def test_partitions_dropped_before_their_table_moves_during_a_backup_can_be_dropped_again(
    parted: HiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders of dropped partitions are in the folder of the schema at that time."""
    session = parted.node.session(user="ann")
    session.execute(CreateSchema(name="outlet"))
    before = moment(parted)

    def then_two_are_dropped(*arguments: Any) -> None:
        copy_database(*arguments)
        with parted.stub() as stub:
            for value in "ab":
                stub.drop_partition("shop", "p", [value], True)

    def bring_one_back_and_move_the_table() -> None:
        session.undrop_partitions("shop.p", partitions=["k=a"])
        session.execute(RenameTable(schema="shop", table="p", new_name="p", new_schema="outlet"))

    monkeypatch.setattr(module, "copy_database", then_two_are_dropped)
    before_the_next(monkeypatch, module, "fetch_moved", bring_one_back_and_move_the_table)
    assert back_up(parted.node, tmp_path / "b", user="ann").missing == []
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with hive_node(tmp_path / "new") as restored:
        assert partitions(restored) == partitions(restored, before) == ALL
        with restored.stub() as stub:
            for value in "ab":
                location = stub.get_partition("shop", "p", [value]).sd.location
                (Path(location.removeprefix("file:")) / "f").write_text("later")
                stub.drop_partition("shop", "p", [value], True)
        assert partitions(restored, before) == {**ALL, "a": "later", "b": "later"}


@pytest.mark.slow
def test_partitions_that_are_moved_and_brought_back_while_files_are_copied_are_in_the_backup(
    parted: HiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_folder = ArchiveWriter.add_folder

    def rename(value: str, new_value: str) -> None:
        new = Partition([new_value], "shop", "p", sd=storage())
        with parted.stub() as stub:
            stub.rename_partition("shop", "p", [value], new)

    def drop() -> None:
        with parted.stub() as stub:
            stub.drop_partition("shop", "p", ["a"], True)

    def bring_back() -> None:
        parted.node.session(user="ann").undrop_partitions("shop.p", partitions=["k=a"])
        rename("z", "b")

    changes = {"k=a": drop, "k=b": lambda: rename("b", "z"), "k=c": bring_back}

    def then_it_changes(writer: ArchiveWriter, source: Path, name: str) -> None:
        changes.pop(source.name, lambda: None)()
        add_folder(writer, source, name)

    monkeypatch.setattr(ArchiveWriter, "add_folder", then_it_changes)
    assert back_up(parted.node, tmp_path / "b", user="ann").missing == []
    assert changes == {}
    assert strandline("restore", tmp_path / "b", tmp_path / "new", "--copy").exit_code == 0
    with hive_node(tmp_path / "new") as restored:
        assert partitions(restored) == ALL


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


def test_the_hold_of_a_backup_is_renewed_however_long_a_copy_takes(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = threading.Event()
    with Node.open(store) as node:
        holds = node.transactions.holds
        renew = holds.renew

        def noting(hold_id: int, *, ttl_ms: int) -> None:
            renew(hold_id, ttl_ms=ttl_ms)
            renewed.set()

        def slowly(*arguments: Any) -> None:
            assert renewed.wait(60)
            copy_database(*arguments)

        monkeypatch.setattr(module, "RENEWAL_SECONDS", 0.01)
        monkeypatch.setattr(holds, "renew", noting)
        monkeypatch.setattr(module, "copy_database", slowly)
        assert back_up(node, tmp_path / "b", user="ann").missing == []


def test_a_backup_whose_hold_did_not_last_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(store) as node:
        holds = node.transactions.holds

        def look_away(*arguments: Any) -> None:
            for hold in holds.list():
                holds.release(hold.hold_id)
            copy_database(*arguments)

        monkeypatch.setattr(module, "copy_database", look_away)
        with pytest.raises(HoldExpired):
            back_up(node, tmp_path / "b", user="ann")
    assert not (tmp_path / "b").exists()


def test_a_store_that_keeps_no_history_is_backed_up(store: Path, tmp_path: Path) -> None:
    with Node.open(store, settings=Settings(history_retention_ms=0)) as node:
        assert back_up(node, tmp_path / "b", user="ann").missing == []
