"""Rows that no reader can see any more are removed with their files; all others are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from click.testing import CliRunner

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    DropTable,
    TableDefinition,
)
from strandline.cli import main
from strandline.clock import system_wall_clock
from strandline.config import Settings
from strandline.errors import ObjectNotFound, VersionNotFound
from strandline.metastore.partition_places import PartitionPlaces, partition_places
from strandline.metastore.store import cleaning, removed_rows
from strandline.metastore.store.cleaning import Cleaned
from strandline.metastore.store.file_scans import data_path
from strandline.metastore.store.own_files import own_files
from strandline.metastore.store.rows import (
    FILE_NUMBER_BITS,
    DataFile,
    NewRow,
    PartitionRow,
    Row,
    RowKind,
    new_partition,
    new_statistics,
)
from strandline.model.descriptors import TableKind
from strandline.model.types import BIGINT
from strandline.node import Node
from strandline.node.address import StoreAddress
from strandline.transactions import ValidWriteIdList
from tests.servers import stores

RETENTION = 7 * 24 * 3_600_000
LATER = RETENTION + 60_000
SETTINGS = Settings(
    transaction_timeout_ms=1_000 * RETENTION,
    clean_interval_ms=0,
    notification_retention_ms=100 * RETENTION,
)
"""No transaction times out when a test moves the clock, and no thread cleans."""


class Lake:
    """A node whose clock a test moves, with a transactional table ``t``."""

    def __init__(self, node: Node, ahead: list[int]) -> None:
        self.node = node
        self.address: str | Path | StoreAddress = node.name
        self.session = node.session(user="ann")
        self._ahead = ahead

    def wait(self, milliseconds: int = LATER) -> None:
        """Move the clock forward."""
        self._ahead[0] += milliseconds
        with self.node.database.write() as connection:  # the store's time moves with its writers
            self.node.notifications.head_on(connection)

    def create(self, name: str = "t", **definition: object) -> int:
        columns = (ColumnDefinition("k", BIGINT),)
        table = TableDefinition(name=name, columns=columns, transactional=True, **definition)  # type: ignore[arg-type]  # fields of it
        self.session.execute(CreateTable(schema="default", definition=table))
        return self.session.table(f"default.{name}").descriptor.id

    def folder(self, name: str = "t") -> Path:
        return Path(urlsplit(self.session.table(f"default.{name}").location).path)

    def write(self, table_id: int, name: str = "t", *, txn_id: int | None = None) -> str:
        """Put a file into the folder and stage it; without ``txn_id``, commit it too."""
        own = self.session.begin().txn_id if txn_id is None else txn_id
        file_id = own << FILE_NUMBER_BITS
        path = data_path(file_id, uuid4().hex)
        self.put(name, path)
        file = DataFile(file_id=file_id, path=path, rows=1, bytes=4)
        self.session.stage(own, table_id, add=[file])
        if txn_id is None:
            self.session.commit(own)
        return path

    def put(self, name: str, path: str) -> Path:
        target = self.folder(name) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"rows")
        return target

    def remove(self, table_id: int, path: str) -> None:
        txn_id = self.session.begin().txn_id
        self.session.stage(txn_id, table_id, remove=[path])
        self.session.commit(txn_id)

    def write_ids(self, table_id: int) -> ValidWriteIdList:
        return self.session.open(["default.t"]).write_ids[table_id]

    def paths(self, table_id: int, write_ids: ValidWriteIdList | None = None) -> list[str]:
        files = self.session.files(table_id, write_ids or self.write_ids(table_id))
        return sorted(file.path for file in files.data_files)

    def on_disk(self, name: str = "t") -> set[str]:
        root = self.folder(name)
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    def clean(self) -> list[tuple[str, int, int]]:
        """Clean and return what was cleaned; a dry run before it must report the same."""
        said = self.node.cleaner.clean(dry_run=True)
        cleaned = self.node.cleaner.clean()
        assert _sorted(said) == _sorted(cleaned)
        assert self.node.cleaner.clean() == []
        return [(one.what, one.rows, one.files) for one in cleaned]


def _sorted(cleaned: list[Cleaned]) -> list[tuple[object, ...]]:
    return sorted(
        (one.what, one.table, one.rows, one.files, one.bytes, sorted(one.names)) for one in cleaned
    )


@pytest.fixture(params=["folder", "postgresql"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    ahead = [0]
    store = stores.new_store(request.param, tmp_path / "lake", settings=SETTINGS)
    with Node.open(
        store.address, settings=store.settings, wall=lambda: system_wall_clock() + ahead[0]
    ) as node:
        made = Lake(node, ahead)
        made.address = store.address
        yield made


@pytest.fixture
def in_folder(tmp_path: Path) -> Iterator[Lake]:
    ahead = [0]
    wall = lambda: system_wall_clock() + ahead[0]  # noqa: E731
    with Node.open(tmp_path / "lake", settings=SETTINGS, wall=wall) as node:
        yield Lake(node, ahead)


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
        return partition_places(metastore, self.table, location=metastore.location(self.table))

    def stage(self, *add: NewRow, remove: Sequence[int] = ()) -> tuple[int, ...]:
        with self.lake.node.store.change(self.table.id, author="ann") as change:
            return change.stage(add=add, remove=remove).row_ids

    def add(self, name: str) -> None:
        folder = self.lake.folder("p") / name
        folder.mkdir(parents=True)
        (folder / "f").write_text(name)
        statistics = new_statistics((), name=name)
        self.stage(self.partition(name), statistics)

    @staticmethod
    def partition(name: str, *, created: int = 0) -> NewRow:
        row = PartitionRow(values=(name[2:],), location=name, created=created)
        return new_partition(row, name=name)

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
            self.places.finish_moves(self.lake.node.store)
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
    parameters = lake.node.store.parameters(parted.table.id, write_ids=None)
    assert parameters == (("numRows", "1"),)
    with pytest.raises(ObjectNotFound, match="no dropped partition k=1 of p is kept"):
        lake.session.undrop_partitions("default.p", partitions=["k=1"])
    for store in (lake.node.store, lake.node.store._store):
        with pytest.raises(VersionNotFound, match="have been cleaned, and this snapshot is older"):
            store.rows(parted.table.id, RowKind.PARTITION, write_ids=before)


def test_replaced_statistics_are_cleaned_and_a_reader_of_the_past_gets_none(lake: Lake) -> None:
    parted = Parted(lake)
    (first,) = parted.stage(new_statistics((), name="k=1"))
    before = lake.node.transactions.write_ids(parted.table.id)
    parted.stage(new_statistics((), name="k=1"), remove=[first])
    lake.wait()
    assert lake.clean() == [("removed rows", 1, 0)]
    for store in (lake.node.store, lake.node.store._store):
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
    with pytest.raises(ObjectNotFound, match="no dropped partition k=1 of p is kept"):
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
    parted.places.finish_moves(lake.node.store)
    lake.wait()
    monkeypatch.setattr(cleaning, "MOST_ROWS", 1)
    lake.node.cleaner.clean_new(stopped=iter([False] * 3 + [True] * 9).__next__)
    assert 0 < len(lake.node.store.rows_by_id(row_ids)) < 3
    for partitions in ([], ["k=2"]):
        with pytest.raises(ObjectNotFound, match="no dropped partition"):
            lake.session.undrop_partitions("default.p", partitions=partitions)


def test_a_dropped_partition_whose_folder_was_not_moved_yet_is_kept(lake: Lake) -> None:
    parted = Parted(lake)
    parted.add("k=1")
    row_id = parted.drop("k=1", finish=False)  # the process was killed here
    lake.wait()
    assert ("dropped partitions", 0, 1) not in lake.clean()
    assert lake.on_disk("p") == {"k=1/f"}
    parted.places.finish_moves(lake.node.store)
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
        patch.setattr(cleaning, "delete_folder", _crash)
        with pytest.raises(KeyboardInterrupt):
            in_folder.node.cleaner.clean()
    assert parted.aside() == {str(row_id)}
    assert in_folder.clean() == [("dropped partitions", 0, 1)]
    assert parted.aside() == set()


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
    assert [one.what for one in in_folder.node.cleaner.clean()] == ["leftovers"]


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
    monkeypatch.setattr(cleaning, "MOST_ROWS", 2)
    (cleaned,) = in_folder.node.cleaner.clean()
    assert (cleaned.rows, read.call_count) == (10, 2)  # the second read finds none


def _crash(path: Path) -> None:
    raise KeyboardInterrupt


def test_removed_files_are_cleaned_when_their_history_is_no_longer_kept(lake: Lake) -> None:
    table = lake.create()
    gone, kept = lake.write(table), lake.write(table)
    before = lake.write_ids(table)
    lake.remove(table, gone)
    assert lake.clean() == []
    assert lake.paths(table, before) == sorted([gone, kept])
    lake.wait()
    assert lake.clean() == [("removed rows", 1, 1)]
    assert lake.on_disk() == {kept}
    assert lake.paths(table) == [kept]
    for store in (lake.node.store, lake.node.store._store):
        with pytest.raises(VersionNotFound, match="have been cleaned, and this snapshot is older"):
            store.rows(table, RowKind.DATA_FILE, write_ids=before)
    later = lake.write(table)
    assert lake.paths(table) == sorted([kept, later])


def test_files_removed_just_now_are_kept_even_if_their_history_is_trimmed(in_folder: Lake) -> None:
    lake = in_folder
    table = lake.create()
    path = lake.write(table)
    lake.remove(table, path)
    lake.create("u")
    lake.session.compact(lake.node.catalogs.latest_catalog().version)
    assert lake.clean() == []
    lake.wait(lake.node.settings.snapshot_hold_ms + 1_000)
    assert lake.clean() == [("removed rows", 1, 1)]


def test_a_hold_an_open_transaction_and_a_backup_keep_the_files_that_they_may_see(
    in_folder: Lake,
) -> None:
    lake = in_folder
    table = lake.create()
    path = lake.write(table)
    held = lake.session.open(["default.t"])
    reader = lake.session.begin()
    hold = lake.session.hold("reader", at=held.time, ttl_ms=10 * RETENTION)
    lake.remove(table, path)
    lake.wait()
    assert lake.clean() == []
    assert lake.paths(table, held.write_ids[table]) == [path]
    lake.session.release_hold(hold.hold_id)
    assert lake.clean() == []
    own = lake.session.open(["default.t"], txn_id=reader.txn_id).write_ids[table]
    assert lake.paths(table, own) == [path]
    lake.session.abort(reader.txn_id)
    backup = lake.session.hold("backup", at=lake.node.catalogs.complete_now())
    assert lake.clean() == []
    assert lake.on_disk() == {path}
    lake.session.release_hold(backup.hold_id)
    assert lake.clean() == [("removed rows", 1, 1)]
    assert lake.on_disk() == set()


def test_the_files_of_a_held_snapshot_are_kept_after_an_aborted_id_was_purged(
    in_folder: Lake,
) -> None:
    lake = in_folder
    table = lake.create()
    first = lake.write(table)
    gone = lake.write(table)
    lake.remove(table, gone)
    lake.session.abort(aborted := lake.session.begin().txn_id)
    stale = lake.session.begin().txn_id
    lake.write(table, txn_id=stale)
    last = lake.write(table)
    held = lake.session.open(["default.t"])
    lake.session.hold("reader", at=held.time, ttl_ms=10 * RETENTION)
    lake.session.abort(stale)
    assert held.write_ids[table].exceptions
    lake.wait()
    assert ("removed rows", 1, 1) in lake.clean()
    assert lake.node.transactions.get(aborted)
    for store in (lake.node.store, lake.node.store._store):
        rows = store.rows(table, RowKind.DATA_FILE, write_ids=held.write_ids[table])
        assert [row.name for row in rows] == sorted([first, last])


def test_leftovers_of_ended_transactions_are_cleaned_and_other_files_are_kept(lake: Lake) -> None:
    table = lake.create()
    kept = lake.write(table)
    ended, still_open = lake.session.begin().txn_id, lake.session.begin().txn_id
    for txn_id in (ended, still_open):
        file = data_path(txn_id << FILE_NUMBER_BITS, uuid4().hex)
        lake.put("t", file)
        lake.put("t", f"_deletes/{txn_id}-{uuid4().hex}.parquet")
        lake.put("t", f"_staging/{txn_id}-{uuid4().hex}/part-0.parquet")
    staged = lake.write(table, txn_id=still_open)
    by_hand = {"_files/mine.parquet", "_files/1-x.parquet", "readme", "_staging/note"}
    by_hand.add(data_path(7, uuid4().hex))  # its number belongs to no transaction
    for path in by_hand:
        lake.put("t", path)
    before = lake.on_disk()
    lake.session.abort(ended)
    assert lake.clean() == [("leftovers", 0, 3)]
    left = before - lake.on_disk()
    assert len(left) == 3
    assert all(f"{ended}-" in path or str(ended << FILE_NUMBER_BITS) in path for path in left)
    assert by_hand | {kept, staged} <= lake.on_disk()
    lake.session.commit(still_open)
    assert lake.clean() == [("leftovers", 0, 3)]
    assert lake.on_disk() == by_hand | {kept, staged}


def test_a_crash_before_the_files_are_deleted_leaves_leftovers(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = in_folder
    table = lake.create()
    path = lake.write(table)
    lake.remove(table, path)
    lake.wait()

    def die(root: int, name: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(cleaning, "delete_below", die)
        with pytest.raises(KeyboardInterrupt):
            lake.node.cleaner.clean()
    assert lake.on_disk() == {path}
    assert lake.clean() == [("leftovers", 0, 1)]
    assert lake.on_disk() == set()


def test_cleaning_does_not_follow_links_out_of_the_table_folder(
    in_folder: Lake, tmp_path: Path
) -> None:
    lake = in_folder
    table = lake.create()
    lake.remove(table, lake.write(table))
    ended = lake.session.begin().txn_id
    lake.session.abort(ended)
    outside = tmp_path / "outside"
    (lake.folder() / "_files").rename(outside)
    (outside / f"{ended << FILE_NUMBER_BITS}-{uuid4().hex}.parquet").touch()
    os.symlink(outside, lake.folder() / "_files")
    files = set(outside.iterdir())
    lake.wait()
    lake.node.cleaner.clean()
    assert set(outside.iterdir()) == files
    assert lake.node.cleaner.statistics().failures == 1


def test_files_of_external_tables_are_never_touched(in_folder: Lake, tmp_path: Path) -> None:
    lake = in_folder
    place = tmp_path / "mine"
    place.mkdir()
    table = lake.create("x", kind=TableKind.EXTERNAL, location=f"file://{place}")
    path = lake.write(table, "x")
    lake.remove(table, path)
    lake.put("x", data_path(1 << FILE_NUMBER_BITS, uuid4().hex))
    before = lake.on_disk("x")
    lake.wait()
    lake.node.cleaner.clean()
    assert lake.on_disk("x") == before


def test_a_dropped_table_is_cleaned_when_no_kept_version_has_it(lake: Lake) -> None:
    table, _ = lake.create(), lake.create("u")
    lake.write(table)
    place = lake.folder()
    lake.session.execute(DropTable(schema="default", table="t"))
    aside = place.parent / ".dropped" / str(table)
    assert lake.clean() == []
    lake.session.undrop("default.t")
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("v")
    latest = lake.node.catalogs.latest_catalog().version
    lake.wait()
    assert lake.session.compact(latest)
    assert aside.is_dir()
    assert lake.clean() == [("dropped table", 1, 1)]
    assert not aside.exists()
    assert lake.node.store.rows_by_id(range(1, 100)) == {}
    assert [lake.folder("u").is_dir(), lake.folder("v").is_dir()] == [True, True]


def test_folders_of_dropped_tables_left_by_a_killed_process_are_cleaned(in_folder: Lake) -> None:
    lake = in_folder
    table = lake.create()
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("u")
    warehouse = lake.folder("u").parent
    lake.wait()
    lake.session.compact(lake.node.catalogs.latest_catalog().version)
    lake.clean()
    for name in (str(table), f"{table}.partitions", "99.purged", "10000", "other"):
        (warehouse / ".dropped" / name).mkdir()
    lake.node.cleaner.clean()
    assert sorted(os.listdir(warehouse / ".dropped")) == ["10000", "other"]


def test_old_events_are_cleaned_and_a_cache_that_missed_them_still_answers_right(
    lake: Lake,
) -> None:
    table = lake.create()
    kept = lake.write(table)
    log, cache = lake.node.notifications, lake.node.store
    head = log.head()
    with Node.open(lake.address, settings=SETTINGS, background=False) as behind:
        behind.store.rows(table, RowKind.DATA_FILE, write_ids=None)
        lake.wait(101 * RETENTION)
        lake.clean()
        assert [event.event_id for event in log.read(0, limit=100)] == [head]
        later = lake.write(table)
        ids = [event.event_id for event in log.read(0, limit=100)]
        assert ids == list(range(head, log.head() + 1))
        for store in (cache, behind.store):
            store.catch_up()
            rows = store.rows(table, RowKind.DATA_FILE, write_ids=None)
            assert [row.name for row in rows] == sorted([kept, later])


def test_a_cache_that_lags_behind_loads_a_cleaned_table_again(in_folder: Lake) -> None:
    lake = in_folder
    table = lake.create()
    kept = lake.write(table)
    with Node.open(lake.node.folder, background=False) as behind:
        behind.store.catch_up()
        behind.store.rows(table, RowKind.DATA_FILE, write_ids=None)
        gone = lake.write(table)
        between = lake.write_ids(table)
        lake.remove(table, gone)
        lake.wait()
        lake.clean()
        behind.store.catch_up()
        with pytest.raises(VersionNotFound):
            behind.store.rows(table, RowKind.DATA_FILE, write_ids=between)
        rows = behind.store.rows(table, RowKind.DATA_FILE, write_ids=lake.write_ids(table))
        assert [row.name for row in rows] == [kept]


def test_the_thread_lists_a_folder_only_if_it_may_have_leftovers(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = in_folder
    lake.create("empty")
    table = lake.create()
    kept = lake.write(table)
    looked: list[int] = []

    def noted(root: int) -> Iterator[tuple[str, int]]:
        looked.append(root)
        return own_files(root)

    def looks() -> int:
        """Clean once more, and return how often folders were listed so far."""
        lake.node.cleaner.clean_new(stopped=bool)
        return len(looked)

    def abort(txn_id: int) -> None:
        lake.session.stage(txn_id, table)
        lake.session.abort(txn_id)

    monkeypatch.setattr(cleaning, "own_files", noted)
    assert (looks(), looks()) == (1, 1)
    abort(lake.session.begin().txn_id)
    assert looks() == 1  # the folder has not changed since
    writer = lake.session.begin().txn_id
    lake.write(table, txn_id=writer)
    abort(lake.session.begin().txn_id)
    assert looks() == 2
    abort(writer)  # a row named its file when the folder was listed, and no longer does
    assert looks() == 3
    assert lake.on_disk() == {kept}


def test_a_table_dropped_with_keep_data_keeps_its_files(in_folder: Lake) -> None:
    lake = in_folder
    table = lake.create()
    path = lake.put("t", lake.write(table))
    lake.session.execute(DropTable(schema="default", table="t", keep_data=True))
    lake.create("u")
    lake.wait()
    lake.session.compact(lake.node.catalogs.latest_catalog().version)
    assert lake.clean() == [("dropped table", 1, 0)]
    assert path.exists()


def test_the_clean_command_only_reports_unless_yes_is_given(tmp_path: Path) -> None:
    store = tmp_path / "lake"
    with Node.open(store, settings=SETTINGS) as node:
        lake = Lake(node, [0])
        lake.create()
        ended = lake.session.begin().txn_id
        leftover = lake.put("t", data_path(ended << FILE_NUMBER_BITS, uuid4().hex))
        lake.session.abort(ended)
    run = CliRunner().invoke
    said = run(main, ["clean", str(store)])
    assert said.exit_code == 0
    assert "leftovers" in said.output
    assert said.output.endswith("nothing was removed; --yes removes it\n")
    assert leftover.exists()
    done = run(main, ["clean", str(store), "--yes", "--output", "json"])
    (line,) = map(json.loads, done.output.splitlines())
    assert line == {
        "what": "leftovers",
        "table": "default.t",
        "rows": 0,
        "files": 1,
        "bytes": 4,
        "names": [f"_files/{leftover.name}"],
        "removed": True,
    }
    assert not leftover.exists()
    assert run(main, ["clean", str(store)]).output == "there is nothing to clean\n"
