"""Changes of partitions that fail, lose their answer, or meet another one or a process that died.

Each partition keeps its files: its folder is where its row says.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hive_metastore.ttypes import FieldSchema, InvalidOperationException, MetaException, Partition
from sqlalchemy import Connection

from strandline.errors import (
    DeadlineExceeded,
    IllegalChange,
    Unavailable,
    UnknownOutcome,
    WriteConflict,
)
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.partition_moves import PartitionMove
from strandline.metastore.store.rows import RowKind
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import FolderMoves, Moved, Unsynced
from strandline.metastore.unfinished_moves import UnfinishedMoves, finish_partition_moves
from strandline.sql import change_each
from strandline.transactions import records
from tests.metastore.hive.hive_node import HiveNode, fail_a_commit, refusal, storage, table
from tests.metastore.hive.parted import (
    CHANGES,
    FIRST,
    PURGE,
    add,
    capitals,
    files,
    folder,
    moment,
    parted,
    texts,
)
from tests.node.conftest import before_the_next

__all__ = ["parted"]

STORES = ("folder", "postgresql")


def replaced(hive: HiveNode, stub: Any) -> None:
    """Rename t1, and create another t1 with the same partitions."""
    renamed = stub.get_table("d1", "t1")
    renamed.tableName = "t2"
    stub.alter_table("d1", "t1", renamed)
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    for value in "abc":
        add(hive, stub, value, text="new")


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_partition_never_touches_a_table_that_got_its_folder_meanwhile(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    add(hive, stub, "u")
    stub.drop_partition("d1", "t1", ["u"], True)
    begin = CachedStore.change

    def later(store: CachedStore, *args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        with hive.stub() as other:
            replaced(hive, other)
        return begin(store, *args, **options)

    monkeypatch.setattr(CachedStore, "change", later)
    with pytest.raises(Exception, match="was renamed or dropped meanwhile"):
        CHANGES[change](hive, stub)
    assert files(hive, "t1") == {f"p={value}": f"new {value}" for value in "abc"}
    assert files(hive, "t2") == {f"p={value}": f"first {value}" for value in "abc"}
    assert {path.name for path in folder(hive).iterdir()} == {"p=a", "p=b", "p=c"}


@pytest.mark.parametrize("change", ["rename", "undrop"])
def test_a_lost_change_is_not_undone_in_a_table_that_got_the_folder_meanwhile(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    if change == "undrop":
        stub.drop_partition("d1", "t1", ["b"], True)
    fail_a_commit(hive, monkeypatch, UnknownOutcome("the line was cut"))
    lost, staged = SqlObjectStore.change, list[Staging]()

    def replace_it() -> None:
        with hive.stub() as other:
            replaced(hive, other)
            if change == "rename":
                add(hive, other, "z", text="new")
                other.drop_partition("d1", "t1", ["b"], True)

    @contextmanager
    def later(*arguments: Any, **named: Any) -> Iterator[Any]:
        try:
            with lost(*arguments, **named) as staging:
                yield staging
        finally:
            if staging.has_staged and not staged:
                staged.append(staging)
                replace_it()

    monkeypatch.setattr(SqlObjectStore, "change", later)
    with pytest.raises(Exception, match="the line was cut"):
        CHANGES[change](hive, stub)
    names = "abc" if change == "undrop" else "acz"
    assert files(hive, "t1") == {f"p={value}": f"new {value}" for value in names}
    names = "ac" if change == "undrop" else "abc"
    assert files(hive, "t2") == {f"p={value}": f"first {value}" for value in names}


def test_the_folder_of_a_dropped_partition_is_moved_from_where_its_table_is_by_then(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = SqlObjectStore.finish_moves

    def later(store: SqlObjectStore, *args: Any) -> None:
        monkeypatch.undo()
        with hive.stub() as other:
            replaced(hive, other)
        finish(store, *args)

    monkeypatch.setattr(SqlObjectStore, "finish_moves", later)
    stub.drop_partition("d1", "t1", ["b"], True)
    assert files(hive, "t1") == {f"p={value}": f"new {value}" for value in "abc"}
    assert files(hive, "t2") == {"p=a": "first a", "p=c": "first c"}
    assert hive.node.session(user="ann").undrop_partitions("d1.t2") == ["p=b"]
    assert files(hive, "t2")["p=b"] == "first b"


@pytest.mark.parametrize("committed", [False, True])
def test_a_renamed_partition_has_its_files_if_the_database_does_not_answer_the_commit(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    before = moment(hive)
    renamed = Partition(["z"], "d1", "t1", sd=storage())
    with monkeypatch.context() as patch:
        fail_a_commit(hive, patch, UnknownOutcome("the line was cut"), committed=committed)
        refusal(lambda: stub.rename_partition("d1", "t1", ["b"], renamed))
    assert texts(stub, before) == FIRST
    now = texts(stub, "d1")
    assert now == ({"a": "first a", "c": "first c", "z": "first b"} if committed else FIRST)


@pytest.mark.parametrize("committed", [False, True])
def test_a_restored_partition_keeps_its_files_if_the_database_does_not_answer_the_commit(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    before = moment(hive)
    stub.drop_partition("d1", "t1", ["b"], True)
    session = hive.node.session(user="ann")
    with monkeypatch.context() as patch:
        fail_a_commit(hive, patch, UnknownOutcome("the line was cut"), committed=committed)
        with pytest.raises(UnknownOutcome):
            session.undrop_partitions("d1.t1", partitions=["p=b"])
    assert texts(stub, before) == FIRST
    assert (folder(hive) / "p=b").exists() is committed  # else a new partition would have the files
    if not committed:
        assert session.undrop_partitions("d1.t1", partitions=["p=b"]) == ["p=b"]
    assert texts(stub, "d1") == FIRST


@pytest.mark.parametrize("change", ["rename", "undrop"])
def test_the_folder_of_a_change_whose_process_died_goes_back(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    if change == "undrop":
        stub.drop_partition("d1", "t1", ["b"], True)
    value = "z" if change == "rename" else "b"
    before, move = sorted(folder(hive).parent.rglob("*")), StoreFolders.move

    def move_and_die(folders: StoreFolders, *places: str, **named: Any) -> Moved:
        if not (folder(hive) / f"p={value}").exists():
            move(folders, *places, **named)
        raise Unavailable("the process died")

    with monkeypatch.context() as patch:
        patch.setattr(StoreFolders, "move", move_and_die)
        with pytest.raises((MetaException, Unavailable), match="the process died"):
            CHANGES[change](hive, stub)
    assert (folder(hive) / f"p={value}" / "f").read_text() == "first b"
    another = Partition([value], "d1", "t1", sd=storage())
    assert "are still in" in refusal(lambda: stub.add_partition(another))[1]
    with hive.another_node():  # finishes the moves when it starts
        assert sorted(folder(hive).parent.rglob("*")) == before
    CHANGES[change](hive, stub)
    assert texts(stub, "d1") == {"a": "first a", value: "first b", "c": "first c"}


@pytest.mark.parametrize("dropped_too", [False, True])
def test_a_new_partition_keeps_its_folder_if_the_dropped_one_had_none(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, *, dropped_too: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SqlObjectStore, "finish_moves", lambda *_: None)  # the process dies
        for value in "ab":
            shutil.rmtree(folder(hive) / f"p={value}")
            stub.drop_partition("d1", "t1", [value], True)
    add(hive, stub, "b", text="second")
    if dropped_too:
        stub.drop_partition("d1", "t1", ["b"], True)
        undrop = hive.node.session(user="ann").undrop_partitions
        assert undrop("d1.t1", partitions=["p=b"]) == ["p=b"]
    finish_partition_moves(hive.node.metastore)
    assert texts(stub, "d1") == {"b": "second b", "c": "first c"}
    assert hive.node.store.sql_store.unfinished_moves() == frozenset()


def test_a_new_partition_keeps_its_folder_also_if_the_key_has_capitals(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = capitals(hive, stub, "first")
    shutil.rmtree(place)
    with monkeypatch.context() as patch:
        patch.setattr(SqlObjectStore, "finish_moves", lambda *_: None)  # the process dies
        stub.drop_partition("d1", "t2", ["b"], True)
    capitals(hive, stub, "second")
    finish_partition_moves(hive.node.metastore)
    assert (place / "f").read_text() == "second"


def test_a_rename_whose_process_died_is_undone_also_if_the_key_has_capitals(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = capitals(hive, stub, "first")
    with monkeypatch.context() as patch:
        patch.setattr(SqlObjectStore, "finish_moves", lambda *_: None)
        patch.setattr(Staging, "record_moves", died)
        with pytest.raises(MetaException, match="the process died"):
            stub.rename_partition("d1", "t2", ["b"], Partition(["z"], "d1", "t2", sd=storage()))
    place.rename(place.with_name("p=z"))  # the last thing that the process did
    finish_partition_moves(hive.node.metastore)
    assert (place / "f").read_text() == "first"


def test_a_drop_is_finished_only_when_the_move_of_its_folder_is_on_disk(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Unsynced) -> None:
        raise Unavailable("the disk is full")

    unfinished = hive.node.store.sql_store.unfinished_moves
    with monkeypatch.context() as patch:
        patch.setattr(Unsynced, "sync", full)
        stub.drop_partition("d1", "t1", ["b"], True)
    assert [move.location for _, move in unfinished()] == ["p=b"]
    finish_partition_moves(hive.node.metastore)
    assert unfinished() == frozenset()


def test_a_drop_that_is_committed_does_not_fail_if_its_folder_can_be_moved_only_later(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise DeadlineExceeded("another process writes; nothing was changed, try again")

    with monkeypatch.context() as patch:
        patch.setattr(SqlObjectStore, "finish_moves", busy)
        assert stub.drop_partition("d1", "t1", ["b"], True)
    moves = UnfinishedMoves(hive.node.metastore)
    for _ in range(2):  # as a node that runs
        moves.finish()
    assert not (folder(hive) / "p=b").exists()


@pytest.mark.parametrize("is_used_at_once", [False, True])
def test_the_folder_of_a_rename_that_never_began_is_left_to_its_next_user(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, *, is_used_at_once: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SqlObjectStore, "finish_moves", lambda *_: None)
        patch.setattr(Staging, "record_moves", died)
        with pytest.raises(MetaException, match="the process died"):
            CHANGES["rename"](hive, stub)
    place = folder(hive) / "p=z"  # Spark writes the files before it adds the partition
    if is_used_at_once:
        place.mkdir()
    stub.drop_partition("d1", "t1", ["b"], True)
    place.mkdir(exist_ok=True)
    (place / "f").write_text("new")
    finish_partition_moves(hive.node.metastore)
    assert (place / "f").read_text() == "new"


CHANGES_OF_B: dict[str, Callable[[HiveNode, Any], object]] = {
    "drop": CHANGES["drop"],
    "rename": lambda hive, stub: stub.rename_partition(
        "d1", "t1", ["b"], Partition(["y"], "d1", "t1", sd=storage())
    ),
    "truncate": lambda hive, stub: stub.truncate_table("d1", "t1", ["p=b"]),
    "alter": lambda hive, stub: stub.alter_partition(
        "d1", "t1", Partition(["b"], "d1", "t1", sd=storage(location=f"{hive.warehouse}/else"))
    ),
}


@pytest.mark.parametrize("change", CHANGES_OF_B)
def test_a_change_of_a_partition_first_undoes_a_rename_whose_process_died(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    rename_and_die(hive, stub, monkeypatch)
    CHANGES_OF_B[change](hive, stub)
    if change == "drop":
        assert hive.node.session(user="ann").undrop_partitions("d1.t1") == ["p=b"]
    found = files(hive, "t1")
    found.update({"p=b": "first b"} if change == "truncate" else {})  # its file is deleted
    assert found == {
        "p=a": "first a",
        "p=y" if change == "rename" else "p=b": "first b",
        "p=c": "first c",
    }


def rename_and_die(hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what a process leaves that dies after it has moved the folder of p=b to p=z."""
    with monkeypatch.context() as patch:
        patch.setattr(SqlObjectStore, "finish_moves", lambda *_: None)
        patch.setattr(Staging, "record_moves", died)
        with pytest.raises(MetaException, match="the process died"):
            CHANGES["rename"](hive, stub)
    (folder(hive) / "p=b").rename(folder(hive) / "p=z")


def test_an_alter_after_a_rename_whose_process_died_never_touches_a_table_in_the_old_folder(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_and_die(hive, stub, monkeypatch)
    renamed = stub.get_table("d1", "t1")
    renamed.tableName = "t2"

    def replace() -> None:
        with hive.stub() as other:
            other.alter_table("d1", "t1", renamed)
            other.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
            add(hive, other, "z", text="new")

    before_the_next(monkeypatch, CachedStore, "change", replace)
    with pytest.raises(Exception, match="was renamed or dropped meanwhile"):
        CHANGES_OF_B["alter"](hive, stub)
    assert files(hive, "t1") == {"p=z": "new z"}


def test_a_running_node_undoes_a_rename_whose_process_died(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = UnfinishedMoves(hive.node.metastore)
    rename_and_die(hive, stub, monkeypatch)
    moves.finish()
    assert (folder(hive) / "p=z").exists()  # the process may still be at work
    store = hive.node.metastore.store.sql_store
    table_id = hive.node.session(user="ann").table("d1.t1").descriptor.id
    later = PartitionMove("p=y", 1, "p=c")  # of a rename that is still at work
    store.begin_moves(table_id, [later])
    moves.finish()
    assert texts(stub, "d1") == FIRST
    assert [move for of, move in store.unfinished_moves() if of == table_id] == [later]


def test_a_damaged_partition_keeps_no_node_from_starting_and_from_finishing_moves_of_others(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_and_die(hive, stub, monkeypatch)
    place = capitals(hive, stub, "first")
    with monkeypatch.context() as patch:
        patch.setattr(SqlObjectStore, "finish_moves", lambda *_: None)  # the process dies
        stub.drop_partition("d1", "t2", ["b"], True)
    with hive.node.database.write() as connection:
        damage = "UPDATE store_row SET bucket = -3 WHERE kind = ? AND name = 'p=b'"
        change_each(connection, damage, [(RowKind.PARTITION.value,)])
    with hive.another_node():
        assert not place.exists()


def test_a_running_node_tries_once_to_move_a_folder_that_the_system_refuses_to_move(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves, tried = UnfinishedMoves(hive.node.metastore), []
    rename_and_die(hive, stub, monkeypatch)

    def refused(_: StoreFolders, *places: str, **__: Any) -> Moved:
        tried.append(places)
        raise Unavailable("the folder is in use")

    monkeypatch.setattr(StoreFolders, "move", refused)
    for _ in range(5):
        moves.finish()
    assert len(tried) == 1


def test_a_running_node_undoes_a_rename_of_a_dropped_table_once_the_table_is_restored(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = UnfinishedMoves(hive.node.metastore)
    rename_and_die(hive, stub, monkeypatch)
    stub.drop_table("d1", "t1", True)
    for _ in range(3):
        moves.finish()
    hive.node.session(user="ann").undrop("d1.t1")
    for _ in range(2):
        moves.finish()
    assert texts(stub, "d1") == FIRST


@pytest.mark.parametrize("change", ["rename", "undrop"])
def test_a_change_that_waits_so_long_that_another_node_ends_its_mark_is_refused(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Without the mark, the folder would stay at its new place if the process died."""
    if change == "undrop":
        stub.drop_partition("d1", "t1", ["b"], True)
    before, begin = sorted(folder(hive).parent.rglob("*")), SqlObjectStore.begin_moves

    def begin_and_wait(store: SqlObjectStore, *arguments: Any) -> None:
        begin(store, *arguments)
        finish_partition_moves(hive.node.metastore)  # as another node does after a while

    with monkeypatch.context() as patch:
        patch.setattr(SqlObjectStore, "begin_moves", begin_and_wait)
        with pytest.raises((InvalidOperationException, WriteConflict), match="waited too long"):
            CHANGES[change](hive, stub)
    assert sorted(folder(hive).parent.rglob("*")) == before
    CHANGES[change](hive, stub)
    value = "z" if change == "rename" else "b"
    assert texts(stub, "d1") == {"a": "first a", value: "first b", "c": "first c"}


def died(*_: object) -> None:
    raise Unavailable("the process died")


@pytest.mark.parametrize("fails", ["commit", "sync"])
def test_folders_move_back_before_another_thread_can_take_their_place(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    stub.drop_partition("d1", "t1", ["a"], True)
    database, move = hive.node.database, StoreFolders.move
    in_turn: list[bool] = []

    def noted(folders: StoreFolders, source: str, target: str, **named: Any) -> Moved:
        in_turn.append(database._process_lock.held_by_this_thread())
        return move(folders, source, target, **named)

    def full(unsynced: Unsynced) -> None:
        monkeypatch.setattr(Unsynced, "sync", sync)  # only the first one fails
        raise Unavailable("the disk is full")

    monkeypatch.setattr(StoreFolders, "move", noted)
    sync = Unsynced.sync
    renamed = Partition(["z"], "d1", "t1", sd=storage())
    for change in (
        lambda: hive.node.session(user="ann").undrop_partitions("d1.t1", partitions=["p=a"]),
        lambda: stub.rename_partition("d1", "t1", ["b"], renamed),
        lambda: stub.truncate_table("d1", "t1", ["p=c"]),
    ):
        in_turn.clear()
        before = sorted(folder(hive).parent.rglob("*"))
        if fails == "sync":
            monkeypatch.setattr(Unsynced, "sync", full)
        else:
            fail_a_commit(hive, monkeypatch, Unavailable("the disk is full"))
        with pytest.raises((MetaException, Unavailable), match="the disk is full"):
            change()
        assert in_turn == [True, True]
        assert sorted(folder(hive).parent.rglob("*")) == before
    assert texts(stub, "d1") == {"b": "first b", "c": "first c"}


def test_folders_move_back_before_another_node_can_take_their_place(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the last statements of a change arrives at a server's commit."""
    before, move_back, mark = files(hive, "t1"), FolderMoves._move_back, records.mark_committed
    refused: list[type[Exception]] = []

    def with_an_error(connection: Connection, *arguments: Any, **named: Any) -> Any:
        change_each(connection, "INSERT INTO missing (id) VALUES (?)", [(1,)])
        return mark(connection, *arguments, **named)

    with hive.another_node() as other:

        def noted(moves: FolderMoves) -> None:
            if moves.moved:
                with pytest.raises(DeadlineExceeded) as late, other.database.write(deadline=0.0):
                    pass
                refused.append(late.type)
            move_back(moves)

        monkeypatch.setattr(FolderMoves, "_move_back", noted)
        monkeypatch.setattr(records, "mark_committed", with_an_error)
        assert refusal(lambda: CHANGES["rename"](hive, stub))
    assert refused == [DeadlineExceeded]
    assert files(hive, "t1") == before


def test_a_partition_that_is_dropped_while_a_restore_begins_is_restored_with_its_files(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.drop_partition("d1", "t1", ["a"], True)
    change, values = SqlObjectStore.change, ["b"]

    def change_later(store: Any, table_id: int, *, author: str) -> Any:
        if author == "ann" and values:
            stub.drop_partition("d1", "t1", [values.pop()], True)
        return change(store, table_id, author=author)

    monkeypatch.setattr(SqlObjectStore, "change", change_later)
    restored = hive.node.session(user="ann").undrop_partitions("d1.t1", partitions=["p=b"])
    assert restored == ["p=b"]
    assert texts(stub, "d1") == {"b": "first b", "c": "first c"}


def test_the_folders_of_a_refused_undrop_move_back_before_another_writer_can_take_their_place(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, move_back, places = SqlObjectStore.change, FolderMoves._move_back, []
    changes: list[Staging] = []

    @contextmanager
    def noted(store: SqlObjectStore, table_id: int, *, author: str) -> Iterator[Staging]:
        with begin(store, table_id, author=author) as change:
            changes.append(change)
            yield change

    def move_back_in_the_transaction(moves: FolderMoves) -> None:
        if moves.moved:
            places.append(changes[-1].place())  # raises if the transaction has ended
        move_back(moves)

    stub.drop_partition("d1", "t1", ["a"], True)
    stub.drop_partition("d1", "t1", ["b"], True)
    (folder(hive) / "p=b").mkdir()
    (folder(hive) / "p=b" / "other").write_text("")
    monkeypatch.setattr(SqlObjectStore, "change", noted)
    monkeypatch.setattr(FolderMoves, "_move_back", move_back_in_the_transaction)
    with pytest.raises(IllegalChange, match="p=b"):
        hive.node.session(user="ann").undrop_partitions("d1.t1", partitions=["p=a", "p=b"])
    assert len(places) == 1
    assert not (folder(hive) / "p=a").exists()


@pytest.mark.parametrize("purge", [False, True])
def test_a_crash_between_commit_and_move_is_repaired_before_the_name_is_used_again(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, purge: bool
) -> None:
    before = moment(hive)
    context = PURGE if purge else None
    with monkeypatch.context() as patch:
        patch.setattr(SqlObjectStore, "finish_moves", lambda *_: None)
        stub.drop_partition_with_environment_context("d1", "t1", ["b"], True, context)
    assert (folder(hive) / "p=b" / "f").exists()
    assert (
        "files of another partition are still in"
        in refusal(lambda: stub.add_partition(Partition(["b"], "d1", "t1", sd=storage())))[1]
    )
    add(hive, stub, "d")
    finish_partition_moves(hive.node.metastore)  # as a starting node does
    assert not (folder(hive) / "p=b").exists()
    add(hive, stub, "b", text="second")
    finish_partition_moves(hive.node.metastore)
    assert texts(stub, "d1")["b"] == "second b"
    assert (texts(stub, before)["b"] == "first b") is not purge


def test_files_written_after_a_purge_stay_if_a_power_cut_undoes_what_is_not_synced(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = hive.node.database.write

    @contextmanager
    def undone(*, is_synced: bool = True, **options: Any) -> Iterator[Connection]:
        with suppress(ZeroDivisionError), write(is_synced=is_synced, **options) as connection:
            yield connection
            if not is_synced:
                raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(hive.node.database, "write", undone)
        stub.drop_partition_with_environment_context("d1", "t1", ["b"], True, PURGE)
    file = folder(hive) / "p=b" / "f"
    file.parent.mkdir()
    file.write_text("new")  # as Spark does, before it creates the partition
    finish_partition_moves(hive.node.metastore)  # as a starting node does
    assert file.read_text() == "new"
