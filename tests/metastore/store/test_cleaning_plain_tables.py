"""Rows of plain tables, and dropped partitions, are removed when no reader can see them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.errors import ObjectNotFound, VersionNotFound
from strandline.metastore.partition_places import PartitionPlaces
from strandline.metastore.store import cleaned_files, cleaning, removed_rows
from strandline.metastore.store.file_scans import data_path
from strandline.metastore.store.rows import (
    FILE_NUMBER_BITS,
    NewRow,
    PartitionRow,
    Row,
    RowKind,
    new_statistics,
)
from strandline.metastore.unfinished_moves import finish_partition_moves
from strandline.model.types import BIGINT
from strandline.sql import change_each
from tests.metastore.dml import parameters
from tests.metastore.store.lake import RETENTION, Lake


class Parted:
    """A managed plain table with partitions, each with a folder that has a file."""

    def __init__(self, lake: Lake) -> None:
        columns = (ColumnDefinition("v", BIGINT), ColumnDefinition("k", BIGINT))
        table = TableDefinition(name="p", columns=columns, partition_columns=("k",))
        lake.session.execute(CreateTable(schema="default", definition=table))
        self.lake = lake
        self.table = lake.session.table("default.p").descriptor

    @property
    def places(self) -> PartitionPlaces:
        metastore = self.lake.node.metastore
        location = metastore.location(self.table)
        return PartitionPlaces(self.table, location=location, folders=metastore.folders)

    def stage(self, *add: NewRow, remove: Sequence[int] = ()) -> tuple[int, ...]:
        with self.lake.node.store.change(self.table.id, author="ann") as change:
            return change.stage(add=add, remove=remove)

    def add(self, name: str) -> None:
        folder = self.lake.folder("p") / name
        folder.mkdir(parents=True)
        (folder / "f").write_text(name)
        statistics = new_statistics((), name=name)
        self.stage(self.partition(name), statistics)

    @staticmethod
    def partition(name: str, *, created: int = 0) -> NewRow:
        row = PartitionRow(values=(name[2:],), location=name, created=created)
        return NewRow.of(row, name=name)

    def rows(self, name: str) -> list[Row]:
        store = self.lake.node.store
        return [
            row
            for kind in (RowKind.PARTITION, RowKind.STATISTICS)
            for row in store.rows(self.table.id, kind, write_ids=None, names=[name])
        ]

    def drop(self, name: str, *, finish: bool = True) -> int:
        """Drop a partition; return its row id."""
        with self.lake.node.store.change(self.table.id, author="ann") as change:
            partition, *statistics = self.rows(name)
            change.record_moves(*self.places.drop([partition], purge=False))
            change.stage(remove=[row.row_id for row in (partition, *statistics)])
        if finish:
            finish_partition_moves(self.lake.node.metastore)
        return partition.row_id

    def aside(self) -> set[str]:
        dropped = self.lake.folder("p").parent / f".dropped/{self.table.id}.partitions"
        return {path.name for path in dropped.glob("*")}


def test_replaced_rows_of_a_plain_table_are_cleaned(lake: Lake) -> None:
    parted = Parted(lake)
    parted.add("k=1")
    before = lake.node.transactions.write_ids(parted.table.id)
    for created in (1, 2):  # altered twice: a row of the first alteration is replaced by the second
        (partition, statistics) = parted.rows("k=1")
        parted.stage(parted.partition("k=1", created=created), remove=[partition.row_id])
        parted.stage(new_statistics((), name="k=1"), remove=[statistics.row_id])
        lake.node.store.set_parameters(parted.table.id, (("numRows", "1"),), author="ann")
    assert lake.clean() == []
    lake.wait()
    assert lake.clean() == [("removed rows", 5, 0)]
    assert [row.kind for row in parted.rows("k=1")] == [RowKind.PARTITION, RowKind.STATISTICS]
    assert parameters(lake.node.store, parted.table.id, write_ids=None) == (("numRows", "1"),)
    with pytest.raises(ObjectNotFound, match=r"no dropped partition k=1 of default\.p is kept"):
        lake.session.undrop_partitions("default.p", partitions=["k=1"])
    for store in (lake.node.store, lake.node.store.sql_store):
        with pytest.raises(VersionNotFound, match="have been cleaned, and this snapshot is older"):
            store.rows(parted.table.id, RowKind.PARTITION, write_ids=before)


def test_replaced_statistics_are_cleaned_and_a_reader_of_the_past_gets_none(lake: Lake) -> None:
    parted = Parted(lake)
    (first,) = parted.stage(new_statistics((), name="k=1"))
    before = lake.node.transactions.write_ids(parted.table.id)
    parted.stage(new_statistics((), name="k=1"), remove=[first])
    lake.wait()
    assert lake.clean() == [("removed rows", 1, 0)]
    for store in (lake.node.store, lake.node.store.sql_store):
        assert store.rows(parted.table.id, RowKind.STATISTICS, write_ids=before) == []


def test_a_dropped_partition_is_cleaned_with_its_folder_when_its_history_is_no_longer_kept(
    lake: Lake,
) -> None:
    parted = Parted(lake)
    for name in ("k=1", "k=2", "k=3"):
        parted.add(name)
    first = parted.drop("k=1")
    lake.wait(RETENTION // 2)
    second = parted.drop("k=2")
    lake.wait(RETENTION // 2)
    lake.wait(60_000)
    assert parted.aside() == {str(first), str(second)}
    assert sorted(lake.clean()) == [("dropped partitions", 0, 1), ("removed rows", 2, 0)]
    assert parted.aside() == {str(second)}
    assert lake.node.database.rows("SELECT up_to_row FROM partition_move", ()) == [(second,)]
    with pytest.raises(ObjectNotFound, match=r"no dropped partition k=1 of default\.p is kept"):
        lake.session.undrop_partitions("default.p", partitions=["k=1"])
    assert lake.session.undrop_partitions("default.p", partitions=["k=2"]) == ["k=2"]
    lake.wait()
    assert lake.clean() == [("removed rows", 2, 0)]
    assert lake.on_disk("p") == {"k=2/f", "k=3/f"}


def test_a_drop_that_is_partly_cleaned_is_not_undone_partly(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted = Parted(lake)
    for number in range(3):
        parted.add(f"k={number}")
    rows = lake.node.store.rows(parted.table.id, RowKind.PARTITION, write_ids=None)
    row_ids = [row.row_id for row in rows]
    with lake.node.store.change(parted.table.id, author="ann") as change:
        change.record_moves(*parted.places.drop(rows, purge=False))
        change.stage(remove=row_ids)
    finish_partition_moves(lake.node.metastore)
    lake.wait()
    monkeypatch.setattr(cleaning, "MAX_ROWS", 1)
    lake.node.cleaner.clean(stopped=iter([False] * 3 + [True] * 9).__next__)
    assert 0 < len(lake.node.store.sql_store.rows_by_id(row_ids)) < 3
    for partitions in ([], ["k=2"]):
        with pytest.raises(ObjectNotFound, match="no dropped partition"):
            lake.session.undrop_partitions("default.p", partitions=partitions)


def test_a_drop_after_a_cleaning_is_undone_whatever_was_cleaned_of_other_tables(
    lake: Lake,
) -> None:
    parted, other = Parted(lake), lake.create()
    for _ in range(2):  # write ids 1 to 4
        lake.remove(other, lake.write(other))
    parted.add("k=1")
    parted.drop("k=1")
    lake.wait()
    lake.clean()
    parted.add("k=2")
    parted.drop("k=2")  # has write id 4 too
    assert lake.session.undrop_partitions("default.p", partitions=["k=2"]) == ["k=2"]


def test_statistics_that_were_removed_before_a_drop_do_not_come_back_with_its_undo(
    lake: Lake,
) -> None:
    parted = Parted(lake)
    parted.add("k=1")
    _, statistics = parted.rows("k=1")
    parted.stage(remove=[statistics.row_id])
    parted.drop("k=1")
    assert lake.session.undrop_partitions("default.p", partitions=["k=1"]) == ["k=1"]
    assert [row.kind for row in parted.rows("k=1")] == [RowKind.PARTITION]


def test_a_dropped_partition_whose_folder_was_not_moved_yet_is_kept(lake: Lake) -> None:
    parted = Parted(lake)
    parted.add("k=1")
    row_id = parted.drop("k=1", finish=False)  # the process was killed here
    lake.wait()
    assert ("dropped partitions", 0, 1) not in lake.clean()
    assert lake.on_disk("p") == {"k=1/f"}
    finish_partition_moves(lake.node.metastore)
    assert parted.aside() == {str(row_id)}
    assert ("dropped partitions", 0, 1) in lake.clean()
    assert parted.aside() == set()


def test_a_crash_before_the_folder_of_a_dropped_partition_is_deleted_leaves_it_to_the_next_run(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    parted = Parted(in_folder)
    parted.add("k=1")
    row_id = parted.drop("k=1")
    in_folder.wait()
    with monkeypatch.context() as patch:
        patch.setattr(cleaned_files, "delete_folder", _crash)
        with pytest.raises(KeyboardInterrupt):
            in_folder.node.cleaner.clean()
    assert parted.aside() == {str(row_id)}
    assert in_folder.clean() == [("dropped partitions", 0, 1)]
    assert parted.aside() == set()


def test_files_of_a_plain_table_are_no_leftovers_whatever_their_names(in_folder: Lake) -> None:
    lake, _ = in_folder, Parted(in_folder)
    ended = lake.session.begin().txn_id
    lake.session.abort(ended)
    path = data_path(ended << FILE_NUMBER_BITS, uuid4().hex)
    lake.put("p", path)
    assert lake.clean() == []
    assert lake.on_disk("p") == {path}


def test_other_folders_beside_dropped_partitions_are_kept(in_folder: Lake) -> None:
    parted = Parted(in_folder)
    parted.add("k=1")
    parted.drop("k=1")
    dropped = in_folder.folder("p").parent / f".dropped/{parted.table.id}.partitions"
    for name in ("mine", "1" * 19, "-1"):
        (dropped / name).mkdir()
    (dropped / "777").symlink_to(in_folder.folder("p"))
    in_folder.wait()
    in_folder.clean()
    assert parted.aside() == {"mine", "1" * 19, "-1", "777"}


def test_a_link_in_place_of_the_folder_of_dropped_partitions_is_not_followed(
    in_folder: Lake, tmp_path: Path
) -> None:
    parted, outside = Parted(in_folder), tmp_path / "outside"
    (outside / "777").mkdir(parents=True)
    dropped = in_folder.folder("p").parent / ".dropped"
    dropped.mkdir(exist_ok=True)
    (dropped / f"{parted.table.id}.partitions").symlink_to(outside)
    assert in_folder.clean() == []
    assert (outside / "777").exists()


def test_a_folder_of_dropped_partitions_that_cannot_be_listed_does_not_end_the_cleaning(
    in_folder: Lake,
) -> None:
    parted, other = Parted(in_folder), in_folder.create()
    path = in_folder.write(other)
    in_folder.remove(other, path)
    dropped = in_folder.folder("p").parent / ".dropped"
    dropped.mkdir(exist_ok=True)
    (dropped / f"{parted.table.id}.partitions").write_text("in the way")
    in_folder.node.cleaner.clean()
    assert in_folder.node.cleaner.statistics().failures == 1
    in_folder.put("t", data_path(1 << FILE_NUMBER_BITS, uuid4().hex))
    assert [part.what for part in in_folder.node.cleaner.clean().parts] == ["leftovers"]


def test_a_damaged_row_of_a_dropped_partition_keeps_its_folder_and_does_not_end_the_cleaning(
    in_folder: Lake,
) -> None:
    parted = Parted(in_folder)
    in_folder.create()
    parted.add("k=1")
    row_id = parted.drop("k=1")
    with in_folder.node.database.write() as connection:
        change_each(connection, "UPDATE store_row SET kind = 99 WHERE row_id = ?", [(row_id,)])
    in_folder.put("t", data_path(1 << FILE_NUMBER_BITS, uuid4().hex))
    assert [part.what for part in in_folder.node.cleaner.clean().parts] == ["leftovers"]
    assert in_folder.node.cleaner.statistics().failures == 1
    assert parted.aside() == {str(row_id)}


def test_removed_rows_are_read_once_and_not_for_each_part_that_is_deleted(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read sorts all of them. All writers would wait for it."""
    parted = Parted(in_folder)
    row_ids = parted.stage(*(parted.partition(f"k={number}") for number in range(10)))
    parted.stage(remove=row_ids)
    in_folder.wait()
    read = Mock(wraps=removed_rows.removed_rows)
    monkeypatch.setattr(cleaning, "removed_rows", read)
    monkeypatch.setattr(cleaning, "MAX_ROWS", 2)
    (cleaned,) = in_folder.node.cleaner.clean().parts
    assert (cleaned.rows, read.call_count) == (10, 2)  # the second read finds none


def _crash(path: Path) -> None:
    raise KeyboardInterrupt
