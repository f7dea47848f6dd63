"""Dropped partitions: they can still be read in the past, and a drop can be undone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import (
    Database,
    DropPartitionsRequest,
    FieldSchema,
    Partition,
    RequestPartsSpec,
)

from strandline.config import Settings
from strandline.errors import AlreadyExists, IllegalChange, InvalidInput, ObjectNotFound
from strandline.metastore.interface import AsOf
from strandline.metastore.partition_places import GONE
from strandline.metastore.store.folder_effects import PARTITIONS_SUFFIX
from strandline.metastore.store.partition_moves import PartitionMove
from strandline.metastore.unfinished_moves import finish_partition_moves
from strandline.node import verification
from tests.metastore.hive.hive_node import HiveNode, hive_node, refusal, storage, table
from tests.metastore.hive.parted import FIRST, PURGE, add, capitals, folder, moment, parted, texts

__all__ = ["parted"]

STORES = ("folder", "postgresql")


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


def test_verify_finds_the_missing_folder_of_a_dropped_partition_of_a_kept_version(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "SETTLING_SECONDS", 0.0)
    session = hive.node.session(user="ann")
    stub.drop_partition("d1", "t1", ["b"], True)
    assert session.verify().findings == ()
    table_id = session.table("d1.t1").descriptor.id
    (aside,) = folder(hive).parent.glob(f".dropped/{table_id}{PARTITIONS_SUFFIX}/*")
    shutil.rmtree(aside)
    (finding,) = session.verify().findings
    assert "partition p=b is missing" in finding.message


@pytest.mark.parametrize("change", ["add", "alter"])
def test_the_folder_of_a_dropped_partition_is_no_location_for_another(
    hive: HiveNode, stub: Any, change: str
) -> None:
    """Cleaning would delete its files."""
    before = moment(hive)
    stub.drop_partition("d1", "t1", ["b"], True)
    location = stub.get_partition(before, "t1", ["b"]).sd.location
    if change == "add":
        partition = Partition(["d"], "d1", "t1", sd=storage(location=location))
        _, message = refusal(lambda: stub.add_partition(partition))
    else:
        partition = stub.get_partition("d1", "t1", ["a"])
        partition.sd.location = location
        _, message = refusal(lambda: stub.alter_partition("d1", "t1", partition))
    assert "has the files of a dropped table or partition" in message
    assert texts(stub, "d1") == {value: FIRST[value] for value in "ac"}


def test_folders_above_a_dropped_partition_that_are_empty_go_and_come_back_with_it(
    hive: HiveNode, stub: Any
) -> None:
    keys = [FieldSchema(name, "string", None) for name in ("p", "q")]
    stub.create_table(table("t2", partitionKeys=keys))
    above = folder(hive).parent / "t2" / "p=a"
    for value in "xy":
        stub.add_partition(Partition(["a", value], "d1", "t2", sd=storage()))
        (above / f"q={value}" / "f").write_text(value)
    stub.drop_partition("d1", "t2", ["a", "x"], True)
    assert above.is_dir()
    stub.drop_partition("d1", "t2", ["a", "y"], True)
    assert not above.exists()
    assert above.parent.is_dir()
    session = hive.node.session(user="ann")
    assert session.undrop_partitions("d1.t2") == ["p=a/q=x", "p=a/q=y"]
    assert [(above / f"q={value}" / "f").read_text() for value in "xy"] == ["x", "y"]


def test_a_partition_of_a_restored_table_whose_folder_stayed_aside_can_be_dropped_and_added(
    hive: HiveNode, stub: Any
) -> None:
    stub.drop_table("d1", "t1", True)
    folder(hive).mkdir()
    (folder(hive) / "in the way").touch()
    hive.node.session(user="ann").undrop("d1.t1")
    assert "/.dropped/" in stub.get_table("d1", "t1").sd.location
    before = moment(hive)
    stub.drop_partition("d1", "t1", ["b"], True)
    assert hive.node.store.sql_store.unfinished_moves() == frozenset()
    place = stub.add_partition(Partition(["b"], "d1", "t1", sd=storage())).sd.location
    (Path(place.removeprefix("file:")) / "f").write_text("new")
    assert texts(stub, "d1") == {**FIRST, "b": "new"}
    assert texts(stub, before) == FIRST


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


def test_a_dropped_table_is_not_managed_again_while_partitions_would_not_follow_its_folder(
    hive: HiveNode, stub: Any, tmp_path: Path
) -> None:
    stub.create_table(table("moved", partitionKeys=[FieldSchema("p", "string", None)]))
    place = stub.add_partition(Partition(["a"], "d1", "moved", sd=storage())).sd.location
    moved = stub.get_table("d1", "moved")
    moved.sd.location = f"file:{tmp_path}"
    stub.alter_table("d1", "moved", moved)
    stub.drop_table("d1", "moved", True)
    session = hive.node.session(user="ann")
    dropped = session.status().version
    with pytest.raises(IllegalChange, match=r"partition p=a of moved.*undo only the drop, then "):
        session.undo(dropped - 1, through=dropped)
    session.undo(dropped)
    assert session.table("d1.moved").location == f"file:{tmp_path}"
    assert stub.get_partition("d1", "moved", ["a"]).sd.location == place


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


def test_a_partition_is_read_in_the_past_from_its_former_folder_if_that_is_still_there(
    hive: HiveNode, stub: Any
) -> None:
    place = capitals(hive, stub, "first")
    before = moment(hive)
    other = place.with_name("p=b")
    other.mkdir()
    (other / "f").write_text("second")
    altered = stub.get_partition("d1", "t2", ["b"])
    altered.sd.location = f"file:{other}"
    stub.alter_partition("d1", "t2", altered)
    for schema, text in ((before, "first"), ("d1", "second")):
        (partition,) = stub.get_partitions(schema, "t2", -1)
        assert Path(partition.sd.location.removeprefix("file:"), "f").read_text() == text


def test_a_partition_that_got_a_place_elsewhere_is_not_read_there_in_the_past(
    hive: HiveNode, stub: Any, tmp_path: Path
) -> None:
    shutil.rmtree(capitals(hive, stub, "first"))
    before = moment(hive)
    altered = stub.get_partition("d1", "t2", ["b"])
    altered.sd.location = f"file:{tmp_path}"
    stub.alter_partition("d1", "t2", altered)
    (partition,) = stub.get_partitions(before, "t2", -1)
    assert partition.sd.location != altered.sd.location


def test_a_partition_whose_files_another_program_deleted_is_not_shown_or_restored_as_empty(
    hive: HiveNode, stub: Any
) -> None:
    before, undrop = moment(hive), hive.node.session(user="ann").undrop_partitions
    shutil.rmtree(folder(hive) / "p=a")  # as INSERT OVERWRITE does, which then drops the partition
    stub.drop_partition("d1", "t1", ["a"], False)
    stub.drop_partition("d1", "t1", ["b"], True)
    shutil.rmtree(folder(hive).parent / ".dropped")
    for value in "ab":
        with pytest.raises(ObjectNotFound, match=f"partition p={value} .* were deleted"):
            undrop("d1.t1", partitions=[f"p={value}"])
    assert set(texts(stub, "d1")) == {"c"}
    assert texts(stub, before)["b"].startswith(GONE)


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
    stub.drop_partition("d1", "t1", ["a"], True)
    for names in (["p=b"], ["p=a", "p=b"]):
        with pytest.raises(AlreadyExists, match="p=b"):
            undrop("d1.t1", partitions=names)
    assert texts(stub, "d1") == {"b": "second b", "c": "first c"}
    stub.create_table(table("t2"))
    with pytest.raises(InvalidInput, match="no partitions"):
        undrop("d1.t2")


@pytest.mark.parametrize("in_a_request", [False, True])
def test_a_purged_partition_is_deleted_and_its_location_in_the_past_says_so(
    hive: HiveNode, stub: Any, *, in_a_request: bool
) -> None:
    before = moment(hive)
    if in_a_request:
        parts = RequestPartsSpec(names=["p=b"])
        request = DropPartitionsRequest("d1", "t1", parts, True, environmentContext=PURGE)
        stub.drop_partitions_req(request)
    else:
        stub.drop_partition_with_environment_context("d1", "t1", ["b"], True, PURGE)
    assert not (folder(hive) / "p=b").exists()
    table_id = hive.node.session(user="ann").table("d1.t1").descriptor.id
    assert list(folder(hive).parent.glob(f".dropped/{table_id}.*")) == []
    place = texts(stub, before)["b"]
    assert place.startswith("the-files-of-this-partition-were-deleted:/")
    with pytest.raises(ObjectNotFound, match="PURGE"):
        hive.node.session(user="ann").undrop_partitions("d1.t1")


def test_the_folder_of_two_dropped_partitions_belongs_to_the_last_of_them(
    hive: HiveNode, stub: Any
) -> None:
    """The processes that dropped them died before they moved it."""
    stub.drop_partition("d1", "t1", ["b"], False)
    metastore, dropped_from = hive.node.metastore, hive.node.session(user="ann").table("d1.t1")
    table_id, folders = dropped_from.descriptor.id, metastore.folders
    beside = f"{folders.place(dropped_from.location).aside(table_id).text}{PARTITIONS_SUFFIX}"
    moves = [PartitionMove("p=b", row_id, f"{beside}/{row_id}") for row_id in (10**6, 10**6 + 1)]
    metastore.store.sql_store.begin_moves(table_id, moves)
    finish_partition_moves(metastore)
    first, second = (folders.exists(folders.shown(move.target)) for move in moves)
    assert (first, second) == (False, True)


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
