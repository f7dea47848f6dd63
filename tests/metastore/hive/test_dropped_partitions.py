"""Dropped partitions: they can still be read in the past, and a drop can be undone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import (
    Database,
    EnvironmentContext,
    FieldSchema,
    InvalidOperationException,
    MetaException,
    Partition,
)

from strandline.config import Settings
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    ObjectNotFound,
    Unavailable,
    UnknownOutcome,
    WriteConflict,
)
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.interface import AsOf
from strandline.metastore.partition_places import (
    FolderMoves,
    UnfinishedMoves,
    finish_partition_moves,
)
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.partition_moves import PartitionMove
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import Moved, Unsynced
from tests.metastore.hive.hive_node import (
    HiveNode,
    fail_a_commit,
    hive_node,
    refusal,
    storage,
    table,
)
from tests.times import exact_text

STORES = ("folder", "postgresql")

PURGE = EnvironmentContext({"ifPurge": "TRUE"})


@pytest.fixture(autouse=True)
def parted(stub: Any, hive: HiveNode) -> None:
    """The table d1.t1 with the partitions p=a, p=b and p=c, a file in each."""
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    for value in "abc":
        add(hive, stub, value)


def add(hive: HiveNode, stub: Any, value: str, *, text: str = "first") -> None:
    stub.add_partition(Partition([value], "d1", "t1", sd=storage()))
    (folder(hive) / f"p={value}" / "f").write_text(f"{text} {value}")


def folder(hive: HiveNode) -> Path:
    return hive.folder / "warehouse" / "d1.db" / "t1"


def moment(hive: HiveNode) -> str:
    """The name of the schema as of now."""
    return f"d1@{exact_text(hive.node.metastore.catalogs.complete_now())}"


def texts(stub: Any, schema: str) -> dict[str, str]:
    """The contents of the partitions of ``schema``, by value."""
    contents = {}
    for partition in stub.get_partitions(schema, "t1", -1):
        place = Path(partition.sd.location.removeprefix("file:"))
        contents[partition.values[0]] = (
            (place / "f").read_text() if place.is_dir() else partition.sd.location
        )
    return contents


FIRST = {value: f"first {value}" for value in "abc"}


def test_a_dropped_partition_is_read_in_the_past_from_the_folder_it_was_moved_to(
    hive: HiveNode, stub: Any
) -> None:
    before = moment(hive)
    stub.drop_partition("d1", "t1", ["b"], True)
    assert not (folder(hive) / "p=b").exists()
    assert texts(stub, before) == FIRST
    assert set(texts(stub, "d1")) == {"a", "c"}
    dropped = stub.get_partition(before, "t1", ["b"])
    assert "/.dropped/" in dropped.sd.location


def replaced(hive: HiveNode, stub: Any) -> None:
    """Rename t1, and create another t1 with the same partitions."""
    renamed = stub.get_table("d1", "t1")
    renamed.tableName = "t2"
    stub.alter_table("d1", "t1", renamed)
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    for value in "abc":
        add(hive, stub, value, text="new")


def files(hive: HiveNode, name: str) -> dict[str, str]:
    """The contents of the folders of partitions in the folder of a table, by name."""
    return {path.parent.name: path.read_text() for path in (folder(hive).parent / name).glob("*/f")}


CHANGES: dict[str, Callable[[HiveNode, Any], object]] = {
    "drop": lambda hive, stub: stub.drop_partition("d1", "t1", ["b"], True),
    "rename": lambda hive, stub: stub.rename_partition(
        "d1", "t1", ["b"], Partition(["z"], "d1", "t1", sd=storage())
    ),
    "add": lambda hive, stub: stub.add_partition(Partition(["d"], "d1", "t1", sd=storage())),
    "undrop": lambda hive, stub: hive.node.session(user="ann").undrop_partitions("d1.t1"),
}


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


def test_each_past_time_shows_its_own_partition_of_the_same_name(hive: HiveNode, stub: Any) -> None:
    moments = []
    for number in range(3):
        moments.append((moment(hive), texts(stub, "d1")["b"]))
        stub.drop_partition("d1", "t1", ["b"], True)
        add(hive, stub, "b", text=f"again {number}")
    assert len({text for _, text in moments}) == 3
    for schema, text in moments:
        assert texts(stub, schema)["b"] == text
    assert texts(stub, "d1")["b"] == "again 2 b"


def test_a_partition_that_was_altered_and_then_dropped_is_read_in_the_past(
    hive: HiveNode, stub: Any
) -> None:
    before = moment(hive)
    altered = stub.get_partition("d1", "t1", ["b"])
    altered.parameters["numRows"] = "1"
    stub.alter_partition("d1", "t1", altered)
    stub.drop_partition("d1", "t1", ["b"], True)
    assert texts(stub, before) == FIRST


def test_a_renamed_partition_is_read_in_the_past(hive: HiveNode, stub: Any) -> None:
    before = moment(hive)
    stub.rename_partition("d1", "t1", ["b"], Partition(["z"], "d1", "t1", sd=storage()))
    between = moment(hive)
    assert texts(stub, before) == FIRST
    stub.drop_partition("d1", "t1", ["z"], True)
    assert texts(stub, before) == FIRST
    assert texts(stub, between) == {"a": "first a", "c": "first c", "z": "first b"}


def test_a_dropped_partition_is_read_in_the_past_after_its_table_was_renamed(
    hive: HiveNode, stub: Any
) -> None:
    before = moment(hive)
    stub.drop_partition("d1", "t1", ["b"], True)
    new = stub.get_table("d1", "t1")
    new.tableName = "t2"
    stub.alter_table("d1", "t1", new)
    assert texts(stub, before) == FIRST


def test_the_folder_of_a_dropped_partition_is_held_for_a_reader_of_the_past(
    hive: HiveNode, stub: Any
) -> None:
    holds = hive.node.transactions.holds
    before = moment(hive)
    stub.drop_partition("d1", "t1", ["b"], True)
    after = moment(hive)
    known = holds.list()
    assert set(texts(stub, after)) == {"a", "c"}  # no folder of these was moved
    assert holds.list() == known
    assert texts(stub, before) == FIRST
    assert [hold.kind for hold in holds.list()] == ["snapshot"]


@pytest.mark.parametrize("exists_again", [False, True])
def test_a_cleaned_partition_is_not_shown_to_the_past_by_the_cache_of_another_node(
    tmp_path: Path, *, exists_again: bool
) -> None:
    """Its old location may be missing, which Spark takes for empty, or have another partition."""
    settings = Settings(history_retention_ms=1, snapshot_hold_ms=0, clean_interval_ms=0)
    with hive_node(tmp_path / "store", settings=settings) as node, node.stub() as client:
        client.create_database(Database("d1"))
        client.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
        for value in "abc":
            add(node, client, value)
        before = moment(node)
        client.drop_partition("d1", "t1", ["b"], True)
        assert texts(client, before) == FIRST  # and memory has the rows
        if exists_again:
            add(node, client, "b", text="second")
        with node.another_node() as other:
            cleaned = {cleaned_part.what for cleaned_part in other.cleaner.clean().parts}
            assert cleaned == {"removed rows", "dropped partitions"}
        kind, message = refusal(lambda: client.get_partitions(before, "t1", -1))
        assert (kind, "have been cleaned" in message) == ("NoSuchObjectException", True)


def test_drops_of_partitions_can_be_undone(hive: HiveNode, stub: Any) -> None:
    before = moment(hive)
    session = hive.node.session(user="ann")
    stub.drop_partition("d1", "t1", ["a"], True)
    stub.drop_partition("d1", "t1", ["b"], True)
    dropped = moment(hive)
    assert session.undrop_partitions("d1.t1", partitions=["p=b"]) == ["p=b"]
    assert texts(stub, "d1") == {"b": "first b", "c": "first c"}
    assert session.undrop_partitions("d1.t1") == ["p=a"]  # the rest of the last drop
    assert texts(stub, "d1") == texts(stub, before) == FIRST
    with pytest.raises(AlreadyExists, match="p=a"):
        session.undrop_partitions("d1.t1")
    stub.drop_partition("d1", "t1", ["a"], True)  # as one statement of Spark does
    stub.drop_partition("d1", "t1", ["c"], True)
    assert session.undrop_partitions("d1.t1") == ["p=a", "p=c"]
    assert texts(stub, "d1") == FIRST
    assert set(texts(stub, dropped)) == {"c"}
    # A restored partition can be dropped again like any other.
    stub.drop_partition("d1", "t1", ["b"], True)
    assert texts(stub, before) == FIRST
    assert session.undrop_partitions("d1.t1") == ["p=b"]


@pytest.mark.parametrize("kept", [False, True])
def test_a_partition_that_exists_again_and_was_renamed_is_not_restored(
    hive: HiveNode, stub: Any, *, kept: bool
) -> None:
    """Its files went with the name; a second partition would have an empty folder."""
    session = hive.node.session(user="ann")
    stub.add_partition(Partition(["m"], "d1", "t1", sd=storage()))
    if kept:
        stub.drop_partition("d1", "t1", ["m"], False)
        stub.add_partition(Partition(["m"], "d1", "t1", sd=storage()))
    else:
        stub.drop_partition("d1", "t1", ["m"], True)
        assert session.undrop_partitions("d1.t1") == ["p=m"]
    renamed = stub.get_partition("d1", "t1", ["m"])
    renamed.values = ["z"]
    stub.rename_partition("d1", "t1", ["m"], renamed)
    with pytest.raises(ObjectNotFound, match=r"no dropped partition of d1\.t1 is kept"):
        session.undrop_partitions("d1.t1")
    with pytest.raises(ObjectNotFound, match="no dropped partition p=m"):
        session.undrop_partitions("d1.t1", partitions=["p=m"])
    stub.drop_partition("d1", "t1", ["z"], True)
    assert session.undrop_partitions("d1.t1") == ["p=z"]


@pytest.mark.parametrize("external", [False, True])
def test_a_partition_at_a_location_that_another_partition_has_is_not_restored(
    hive: HiveNode, stub: Any, tmp_path: Path, *, external: bool
) -> None:
    """A rename keeps the location that a user named; its rows would be read twice."""
    (tmp_path / "f").write_text("mine")
    keys = [FieldSchema("p", "string", None)]
    outside = storage(location=f"file:{tmp_path}/t2")
    stub.create_table(table("t2", sd=outside, partitionKeys=keys, tableType="EXTERNAL_TABLE"))
    name = "t2" if external else "t1"
    sd = storage(location=None if external else f"file:{tmp_path}")
    stub.add_partition(Partition(["m"], "d1", name, sd=sd))
    session = hive.node.session(user="ann")
    stub.drop_partition("d1", name, ["m"], True)
    assert session.undrop_partitions(f"d1.{name}") == ["p=m"]
    renamed = stub.get_partition("d1", name, ["m"])
    renamed.values = ["z"]
    stub.rename_partition("d1", name, ["m"], renamed)
    known = stub.get_partition_names("d1", name, -1)
    with pytest.raises(IllegalChange, match="partition p=z has its location"):
        session.undrop_partitions(f"d1.{name}")
    assert stub.get_partition_names("d1", name, -1) == known
    stub.drop_partition("d1", name, ["z"], True)
    assert session.undrop_partitions(f"d1.{name}") == ["p=z"]


def test_a_restored_partition_is_read_in_the_past_whatever_happens_to_its_name_later(
    hive: HiveNode, stub: Any
) -> None:
    first = moment(hive)
    stub.drop_partition("d1", "t1", ["b"], True)
    add(hive, stub, "b", text="second")
    second = moment(hive)
    stub.rename_partition("d1", "t1", ["b"], Partition(["z"], "d1", "t1", sd=storage()))
    session = hive.node.session(user="ann")
    assert session.undrop_partitions("d1.t1", partitions=["p=b"]) == ["p=b"]
    assert texts(stub, first) == FIRST
    assert texts(stub, second) == FIRST | {"b": "second b"}
    assert texts(stub, "d1") == FIRST | {"z": "second b"}
    stub.rename_partition("d1", "t1", ["b"], Partition(["y"], "d1", "t1", sd=storage()))
    stub.drop_partition("d1", "t1", ["z"], True)
    assert texts(stub, first) == FIRST
    assert texts(stub, second) == FIRST | {"b": "second b"}


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
    (folder(hive) / "p=b" / "f").unlink()
    (folder(hive) / "p=b").rmdir()
    with monkeypatch.context() as patch:
        patch.setattr(SqlObjectStore, "finish_moves", lambda *_: None)  # the process dies
        stub.drop_partition("d1", "t1", ["b"], True)
    add(hive, stub, "b", text="second")
    if dropped_too:
        stub.drop_partition("d1", "t1", ["b"], True)
        assert hive.node.session(user="ann").undrop_partitions("d1.t1") == ["p=b"]
    finish_partition_moves(hive.node.metastore)
    assert texts(stub, "d1") == FIRST | {"b": "second b"}


def capitals(hive: HiveNode, stub: Any, text: str) -> Path:
    """The folder of the partition p=b of a table t2 as Spark makes it for a column P."""
    if "t2" not in stub.get_all_tables("d1"):
        stub.create_table(table("t2", partitionKeys=[FieldSchema("P", "string", None)]))
    place = folder(hive).parent / "t2" / "P=b"
    stub.add_partition(Partition(["b"], "d1", "t2", sd=storage(location=f"file:{place}")))
    (place / "f").write_text(text)
    return place


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


def test_a_renamed_partition_is_read_in_the_past_from_where_spark_moves_its_folder(
    hive: HiveNode, stub: Any
) -> None:
    place = capitals(hive, stub, "first")
    before = moment(hive)
    stub.rename_partition("d1", "t2", ["b"], Partition(["z"], "d1", "t2", sd=storage()))
    between = moment(hive)
    renamed = stub.get_partition("d1", "t2", ["z"])
    place.with_name("p=z").rename(place.with_name("P=z"))
    renamed.sd.location = f"file:{place.with_name('P=z')}"
    stub.alter_partition("d1", "t2", renamed)
    after = moment(hive)
    for is_dropped in (False, True):
        if is_dropped:
            stub.drop_partition("d1", "t2", ["z"], True)
        for past in (before, between, after):
            (partition,) = stub.get_partitions(past, "t2", -1)
            location = partition.sd.location.removeprefix("file:")
            assert Path(location, "f").read_text() == "first"


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


def test_an_undrop_that_is_refused_changes_nothing(hive: HiveNode, stub: Any) -> None:
    undrop = hive.node.session(user="ann").undrop_partitions
    with pytest.raises(ObjectNotFound, match=r"no dropped partition of d1\.t1"):
        undrop("d1.t1")
    stub.drop_partition("d1", "t1", ["b"], True)
    with pytest.raises(ObjectNotFound, match="partition p=x"):
        undrop("d1.t1", partitions=["p=b", "p=x"])
    (folder(hive) / "p=b").mkdir()
    (folder(hive) / "p=b" / "other").write_text("")
    with pytest.raises(IllegalChange, match="p=b"):
        undrop("d1.t1", partitions=["p=b"])
    (folder(hive) / "p=b" / "other").unlink()
    add(hive, stub, "b", text="second")
    with pytest.raises(AlreadyExists, match="p=b"):
        undrop("d1.t1", partitions=["p=b"])
    assert texts(stub, "d1") == FIRST | {"b": "second b"}
    stub.create_table(table("t2"))
    with pytest.raises(InvalidInput, match="no partitions"):
        undrop("d1.t2")


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


def test_a_purged_partition_is_deleted_and_its_location_in_the_past_says_so(
    hive: HiveNode, stub: Any
) -> None:
    before = moment(hive)
    stub.drop_partition_with_environment_context("d1", "t1", ["b"], True, PURGE)
    assert not (folder(hive) / "p=b").exists()
    table_id = hive.node.session(user="ann").table("d1.t1").descriptor.id
    assert not (folder(hive).parent / ".dropped" / f"{table_id}.partitions").exists()
    place = texts(stub, before)["b"]
    assert place.startswith("the-files-of-this-partition-were-deleted:/")
    with pytest.raises(ObjectNotFound, match="PURGE"):
        hive.node.session(user="ann").undrop_partitions("d1.t1")


@pytest.mark.parametrize("external", [True, False])
def test_files_at_the_location_of_a_user_are_never_moved_even_through_a_link(
    hive: HiveNode, stub: Any, tmp_path: Path, *, external: bool
) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "f").write_text("mine")
    values = ["m"]
    own = f"{hive.warehouse}/d1.db/t1/p=m"
    location = f"file:{place}" if external else own
    stub.add_partition(Partition(values, "d1", "t1", sd=storage(location=location)))
    if not external:  # a user replaces the folder by a link
        (folder(hive) / "p=m").rmdir()
        (folder(hive) / "p=m").symlink_to(place)
    before = moment(hive)
    stub.drop_partition_with_environment_context("d1", "t1", values, True, PURGE)
    assert (place / "f").read_text() == "mine"
    assert texts(stub, before)["m"] == "mine"
    assert hive.node.session(user="ann").undrop_partitions("d1.t1") == ["p=m"]
    assert texts(stub, "d1")["m"] == "mine"


def test_a_partition_whose_folder_could_not_be_moved_is_read_where_the_folder_is(
    hive: HiveNode, stub: Any
) -> None:
    before = moment(hive)
    aside = hive.folder / "warehouse" / "d1.db" / ".dropped"
    aside.mkdir(exist_ok=True)
    table_id = hive.node.session(user="ann").table("d1.t1").descriptor.id
    (aside / f"{table_id}.partitions").write_text("in the way")
    stub.drop_partition("d1", "t1", ["b"], True)
    assert texts(stub, before) == FIRST
    assert hive.node.session(user="ann").undrop_partitions("d1.t1") == ["p=b"]
    assert texts(stub, "d1") == FIRST


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
    finish_partition_moves(hive.node.metastore)  # as a starting node does
    assert not (folder(hive) / "p=b").exists()
    add(hive, stub, "b", text="second")
    finish_partition_moves(hive.node.metastore)
    assert texts(stub, "d1")["b"] == "second b"
    assert (texts(stub, before)["b"] == "first b") is not purge


def test_a_purged_table_is_deleted_together_with_its_dropped_partitions(
    hive: HiveNode, stub: Any
) -> None:
    session = hive.node.session(user="ann")
    table_id = session.table("d1.t1").descriptor.id
    before = moment(hive)
    stub.drop_partition("d1", "t1", ["b"], True)
    stub.drop_table_with_environment_context("d1", "t1", True, PURGE)
    assert not folder(hive).exists()
    assert not list(folder(hive).parent.glob(f".dropped/{table_id}*"))
    with pytest.raises(ObjectNotFound, match="PURGE"):
        session.undrop("d1.t1")
    with pytest.raises(ObjectNotFound):
        session.table("d1.t1", at=AsOf(version=hive.node.metastore.catalogs.present().version - 1))
    assert refusal(lambda: stub.get_table(before, "t1"))[0] == "NoSuchObjectException"
    # The name and the location are free again.
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    assert stub.get_table("d1", "t1").sd.location == f"{hive.warehouse}/d1.db/t1"


def test_purging_a_table_keeps_files_at_a_location_that_a_user_named(
    hive: HiveNode, stub: Any, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("mine")
    outside = storage(location=f"file:{tmp_path}")
    stub.create_table(table("t2", sd=outside, tableType="EXTERNAL_TABLE"))
    stub.drop_table_with_environment_context("d1", "t2", True, PURGE)
    assert (tmp_path / "f").read_text() == "mine"


def test_partitions_that_0_2_0_dropped_or_renamed_are_read_in_the_past_and_undropped(
    tmp_path: Path,
) -> None:
    """0.2.0 moved the folders to the same places, but did not record the moves."""
    with hive_node(tmp_path / "store") as old, old.client() as client:
        client.call("create_database", database={"name": "d1"})
        with old.stub() as stub:
            stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
            for value in "abc":
                add(old, stub, value)
            before = moment(old)
            altered = stub.get_partition("d1", "t1", ["b"])
            altered.parameters["numRows"] = "1"
            stub.alter_partition("d1", "t1", altered)
            stub.rename_partition("d1", "t1", ["c"], Partition(["z"], "d1", "t1", sd=storage()))
            between = moment(old)
            stub.drop_partition("d1", "t1", ["b"], True)
            stub.drop_partition("d1", "t1", ["z"], True)
        with old.node.database.write() as connection:
            connection.exec_driver_sql("DROP TABLE partition_move")
            connection.exec_driver_sql(
                "UPDATE strandline_schema SET version = 1 WHERE part = 'metastore'"
            )
    with hive_node(tmp_path / "store") as new, new.stub() as stub:
        assert texts(stub, before) == FIRST
        assert texts(stub, between) == {"a": "first a", "b": "first b", "z": "first c"}
        session = new.node.session(user="ann")
        assert session.undrop_partitions("d1.t1", partitions=["p=b", "p=z"]) == ["p=b", "p=z"]
        assert texts(stub, "d1") == {"a": "first a", "b": "first b", "z": "first c"}
