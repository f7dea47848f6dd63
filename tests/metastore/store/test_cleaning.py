"""Rows that no reader can see any more are removed with their files; all others are kept."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner
from sqlalchemy import Connection

from strandline.catalog import Command
from strandline.catalog.commands import DropTable, RenameTable
from strandline.catalog.undo.command import ReadAgain
from strandline.cli import main
from strandline.clock import system_wall_clock
from strandline.config import Settings
from strandline.errors import CorruptData, Fenced, VersionNotFound
from strandline.metastore.interface import AsOf
from strandline.metastore.store import cleaned_files, cleaning, removed_rows
from strandline.metastore.store.cleaning import Cleanable
from strandline.metastore.store.file_scans import data_path
from strandline.metastore.store.own_files import own_files
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile, DeleteFile, RowKind
from strandline.model.descriptors import TableKind
from strandline.node import DATABASE_FILE, Node
from strandline.sql import change_each
from strandline.transactions.holds import BACKUP
from tests.metastore.store.lake import RETENTION, SETTINGS, Lake
from tests.node.conftest import before_the_next


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
    for store in (lake.node.store, lake.node.store.sql_store):
        with pytest.raises(VersionNotFound, match="have been cleaned, and this snapshot is older"):
            store.rows(table, RowKind.DATA_FILE, write_ids=before)
    later = lake.write(table)
    assert lake.paths(table) == sorted([kept, later])


def test_a_delete_file_goes_before_a_client_may_use_the_ids_of_its_data_files_again(
    lake: Lake,
) -> None:
    table = lake.create()

    def commit(*add: DataFile | DeleteFile, remove: tuple[str, ...] = ()) -> None:
        for file in add:
            lake.put("t", file.path)
        txn_id = lake.session.begin().txn_id
        lake.session.stage(txn_id, table, add=add, remove=remove)
        lake.session.commit(txn_id)

    numbered = [DataFile(file_id=n, path=f"{n}.parquet", rows=9, bytes=4) for n in range(1, 4)]
    commit(*numbered)
    commit(DeleteFile(path="of-1-and-2.parquet", file_ids=(1, 2), counts=(5, 5)))
    commit(DeleteFile(path="of-3.parquet", file_ids=(3,), counts=(5,)))
    commit(remove=("1.parquet",))
    before = lake.write_ids(table)
    commit(remove=("2.parquet",))
    hold = lake.session.hold("reader", at=None, ttl_ms=2 * RETENTION)
    lake.wait()
    assert lake.clean() == [("removed rows", 2, 2)]
    commit(DataFile(file_id=2, path="again.parquet", rows=9, bytes=4))
    now = lake.session.files(table, lake.write_ids(table))
    assert [file.path for file in now.data_files] == ["3.parquet", "again.parquet"]
    assert [file.path for file in now.delete_files] == ["of-3.parquet"]
    with pytest.raises(VersionNotFound):
        lake.session.files(table, before)
    assert "of-1-and-2.parquet" in lake.on_disk()  # a reader with the hold may have listed it
    lake.session.release_hold(hold.hold_id)
    lake.wait()
    assert lake.clean() == [("removed rows", 1, 1)]
    assert lake.on_disk() == {"3.parquet", "again.parquet", "of-3.parquet"}


def test_a_delete_file_stays_while_one_of_its_data_files_is_present(lake: Lake) -> None:
    table = lake.create()
    data = [DataFile(file_id=n, path=f"{n}.parquet", rows=9, bytes=4) for n in (1, 2)]
    deleted = DeleteFile(path="deleted.parquet", file_ids=(1, 2), counts=(5, 5))
    for add in (data, [deleted]):
        for file in add:
            lake.put("t", file.path)
        txn_id = lake.session.begin().txn_id
        lake.session.stage(txn_id, table, add=add)
        lake.session.commit(txn_id)
    lake.remove(table, "1.parquet")
    lake.wait()
    assert lake.clean() == [("removed rows", 1, 1)]
    present = lake.session.files(table, lake.write_ids(table))
    assert [file.path for file in present.data_files] == ["2.parquet"]
    assert [file.path for file in present.delete_files] == ["deleted.parquet"]


def test_two_processes_that_clean_one_table_at_once_warn_of_nothing(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake = in_folder
    table = lake.create()
    data = DataFile(file_id=1, path="1.parquet", rows=9, bytes=4)
    for add in (data, DeleteFile(path="of-1.parquet", file_ids=(1,), counts=(5,))):
        lake.put("t", add.path)
        txn_id = lake.session.begin().txn_id
        lake.session.stage(txn_id, table, add=[add])
        lake.session.commit(txn_id)
    lake.remove(table, data.path)
    lake.wait()
    real = removed_rows.delete_files_of_none
    other: list[Cleanable] = []

    def read_and_let_another_clean(connection: Connection, table_id: int) -> list[int]:
        row_ids = real(connection, table_id)
        monkeypatch.setattr(cleaning, "delete_files_of_none", real)
        other.append(lake.node.cleaner.clean())
        return row_ids

    monkeypatch.setattr(cleaning, "delete_files_of_none", read_and_let_another_clean)
    caplog.set_level(logging.INFO)
    assert lake.node.cleaner.clean().parts == ()
    assert [part.what for part in other[0].parts] == ["removed rows"]
    logged = [each for each in caplog.records if "stay until the next pass" in each.message]
    assert [each.levelname for each in logged] == ["INFO"]
    assert "default.t" in logged[0].message
    lake.wait()
    assert lake.clean() == [("removed rows", 1, 1)]  # the delete file
    assert lake.on_disk() == set()


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


def test_a_node_that_starts_with_a_clock_far_ahead_cleans_nothing_that_is_kept(
    tmp_path: Path,
) -> None:
    ahead = [0]
    settings = replace(
        SETTINGS,
        notification_retention_ms=RETENTION,
        clock_ahead_limit_ms=Settings().clock_ahead_limit_ms,
    )
    open_node = partial(
        Node.open, tmp_path / "lake", settings=settings, wall=lambda: system_wall_clock() + ahead[0]
    )
    with open_node() as node:
        lake = Lake(node, ahead)
        table = lake.create()
        path = lake.write(table)
        assert lake.clean() == []
        lake.remove(table, path)
    ahead[0] = 6 * RETENTION
    with open_node() as node:
        lake = Lake(node, ahead)
        assert lake.clean() == []
        assert lake.on_disk() == {path}
        hour = 3_600_000
        lake.wait(48 * hour)  # a leap, too
        for _ in range(7):
            assert lake.clean() == []
            lake.wait(23 * hour)
        assert lake.clean() == []
        lake.wait(7 * hour)
        assert {what for what, _, _ in lake.clean()} == {"removed rows", "events"}
        assert lake.on_disk() == set()


def test_a_hold_an_open_transaction_and_a_backup_keep_the_files_that_they_may_see(
    in_folder: Lake,
) -> None:
    lake = in_folder
    table = lake.create()
    path = lake.write(table)
    opened = lake.session.open(["default.t"])
    reader = lake.session.begin()
    hold = lake.session.hold("reader", at=opened.time, ttl_ms=10 * RETENTION)
    lake.remove(table, path)
    lake.wait()
    assert lake.clean() == []
    assert lake.paths(table, opened.write_ids[table]) == [path]
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
    opened = lake.session.open(["default.t"])
    lake.session.hold("reader", at=opened.time, ttl_ms=10 * RETENTION)
    lake.session.abort(stale)
    assert opened.write_ids[table].exceptions
    lake.wait()
    assert ("removed rows", 1, 1) in lake.clean()
    assert lake.node.transactions.get(aborted)
    for store in (lake.node.store, lake.node.store.sql_store):
        rows = store.rows(table, RowKind.DATA_FILE, write_ids=opened.write_ids[table])
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
    by_hand.add(f"{data_path(ended << FILE_NUMBER_BITS, uuid4().hex)}.copy")
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


def test_a_file_of_a_transaction_that_begins_while_files_are_listed_is_no_leftover(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create()
    paths = {lake.write(table)}

    def begin_first(root: int) -> Iterator[tuple[str, int]]:
        writer = lake.session.begin().txn_id
        path = data_path(writer << FILE_NUMBER_BITS, uuid4().hex)
        lake.put("t", path)
        paths.add(path)
        return own_files(root)

    monkeypatch.setattr(cleaning, "own_files", begin_first)
    lake.node.cleaner.clean()
    assert lake.on_disk() == paths


LEAVE: dict[str, Command] = {
    "drop": DropTable(schema="default", table="t"),
    "rename": RenameTable(schema="default", table="t", new_name="u"),
}


@pytest.mark.parametrize("leave", LEAVE)
def test_files_of_a_table_that_gets_the_folder_of_another_meanwhile_are_no_leftovers(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, leave: str
) -> None:
    lake.write(lake.create())
    paths = set()

    def replace() -> None:
        lake.session.execute(LEAVE[leave])
        paths.add(lake.write(lake.create()))

    before_the_next(monkeypatch, cleaned_files.CleanedFiles, "own_folder", replace)
    lake.node.cleaner.clean()
    assert lake.on_disk() == paths


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
        broken.setattr(cleaned_files, "delete_below", die)
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


def test_a_table_at_a_place_out_of_reach_does_not_keep_the_others_from_being_cleaned(
    in_folder: Lake,
) -> None:
    elsewhere, _ = in_folder.create("u"), in_folder.create()
    in_folder.put("t", data_path(1 << FILE_NUMBER_BITS, uuid4().hex))
    with in_folder.node.database.write() as connection:
        move = "UPDATE table_location SET location = 'hdfs://there/u' WHERE table_id = ?"
        change_each(connection, move, [(elsewhere,)])
    assert in_folder.clean() == [("leftovers", 0, 1)]


def test_a_row_of_an_unknown_kind_keeps_its_file_and_its_own_table_from_being_cleaned(
    lake: Lake,
) -> None:
    damaged, other = lake.create(), lake.create("u")
    lake.remove(damaged, path := lake.write(damaged))
    lake.remove(other, lake.write(other, "u"))
    with lake.node.database.write() as connection:
        change_each(connection, "UPDATE store_row SET kind = 99 WHERE table_id = ?", [(damaged,)])
    lake.wait()
    assert lake.clean() == [("removed rows", 1, 1)]
    assert lake.on_disk() == {path}
    assert lake.on_disk("u") == set()


def test_the_file_of_a_row_whose_name_is_damaged_is_no_leftover(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    table = lake.create()
    path = lake.write(table)
    with lake.node.database.write() as connection:
        change_each(connection, "UPDATE store_row SET name = 'x' WHERE table_id = ?", [(table,)])
    assert lake.clean() == []
    assert lake.on_disk() == {path}
    assert "the leftovers of default.t stay: a record of" in caplog.text


def test_leftovers_are_cleaned_beside_the_damaged_row_of_an_open_transaction(lake: Lake) -> None:
    """A node does not compare the many rows of a transaction that still writes files."""
    table = lake.create()
    ended, still_open = lake.session.begin().txn_id, lake.session.begin().txn_id
    leftovers = [
        data_path(txn_id << FILE_NUMBER_BITS, uuid4().hex) for txn_id in (ended, still_open)
    ]
    for path in leftovers:
        lake.put("t", path)
    staged = lake.write(table, txn_id=still_open)
    lake.session.abort(ended)
    with lake.node.database.write() as connection:
        change_each(connection, "UPDATE store_row SET name = 'x' WHERE table_id = ?", [(table,)])
    assert lake.clean() == [("leftovers", 0, 1)]
    assert lake.on_disk() == {leftovers[1], staged}


def test_a_table_with_a_damaged_row_is_not_cleaned_and_the_others_are(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake = in_folder
    damaged, other = lake.create(), lake.create("u")
    lake.remove(damaged, path := lake.write(damaged))
    lake.remove(other, lake.write(other, "u"))
    lake.wait()
    real = removed_rows.delete_files_of_none

    def read(connection: Connection, table_id: int) -> list[int]:
        if table_id == damaged:
            raise CorruptData("row 1 is damaged")
        return real(connection, table_id)

    monkeypatch.setattr(cleaning, "delete_files_of_none", read)
    parts = lake.node.cleaner.clean().parts
    assert [(part.what, part.table) for part in parts] == [("removed rows", "default.u")]
    assert lake.on_disk() == {path}
    assert "the removed rows of default.t stay until the next pass" in caplog.text


def test_a_removed_file_that_was_added_again_is_kept(lake: Lake) -> None:
    table = lake.create()
    path = lake.write(table)
    lake.remove(table, path)
    again = lake.session.begin().txn_id
    file = DataFile(file_id=again << FILE_NUMBER_BITS, path=path, rows=1, bytes=4)
    lake.session.stage(again, table, add=[file])
    lake.session.commit(again)
    lake.wait()
    assert lake.clean() == [("removed rows", 1, 0)]
    assert lake.on_disk() == {path} == set(lake.paths(table))


def files_of(lake: Lake) -> set[str]:
    return {str(path) for path in lake.folder().parent.rglob("*")}


def leave_garbage(lake: Lake) -> Callable[[], object]:
    """Leave what each step of the cleaner removes; returns a function that reads all of it."""
    table, dropped = lake.create(), lake.create("u")
    lake.write(dropped, "u")
    lake.session.execute(DropTable(schema="default", table="u"))
    lake.remove(table, lake.write(table))
    aborted = lake.session.begin().txn_id
    lake.write(table, txn_id=aborted)
    lake.session.abort(aborted)
    lake.create("v")
    lake.wait(101 * RETENTION)
    lake.session.compact(lake.node.catalogs.latest_catalog().version)
    (lake.folder().parent / ".dropped" / "99.purged").mkdir()

    def stored() -> object:
        with closing(sqlite3.connect(lake.node.folder / DATABASE_FILE)) as database:
            return list(database.iterdump()), files_of(lake)

    return stored


def test_a_dry_run_changes_nothing(in_folder: Lake) -> None:
    stored, cleaner = leave_garbage(in_folder), in_folder.node.cleaner
    before = stored(), cleaner.statistics()
    assert {part.what for part in cleaner.clean(dry_run=True).parts} == {
        "removed rows",
        "events",
        "leftovers",
        "dropped table",
    }
    assert (stored(), cleaner.statistics()) == before


def test_a_fenced_node_cleans_nothing(in_folder: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, cleaner = leave_garbage(in_folder), in_folder.node.cleaner
    limit, before = cleaner.clean(dry_run=True).limit, stored()
    assert limit is not None

    def refuse(_: Connection) -> None:
        raise Fenced("a newer epoch")

    monkeypatch.setattr(in_folder.node.database, "guard", refuse)
    monkeypatch.setattr(ReadAgain, "plan", lambda *_: None)  # the log would refuse it, too
    this_pass = cleaned_files.Pass(dry_run=False, stopped=lambda: False)
    for step in (
        cleaner._removed_rows(limit, this_pass),
        cleaner._old_events(this_pass),
        cleaner._dropped_tables.clean(this_pass),
    ):
        with pytest.raises(Fenced):
            list(step)
    assert stored() == before


def test_a_backup_that_begins_during_a_pass_keeps_all_files(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = in_folder
    leave_garbage(lake)
    before = files_of(lake)

    def begin() -> None:
        lake.session.hold(BACKUP, at=lake.node.catalogs.complete_now())

    before_the_next(monkeypatch, cleaning.Cleaner, "_forget", begin)
    lake.node.cleaner.clean()
    assert files_of(lake) == before
    assert lake.node.cleaner.clean().limit is None


def test_old_events_are_cleaned_and_a_cache_that_missed_them_still_answers_right(
    lake: Lake,
) -> None:
    table = lake.create()
    kept = lake.write(table)
    log, cache = lake.node.notifications, lake.node.store
    head = log.head()
    with Node.open(lake.address, settings=SETTINGS) as behind:
        behind.store.follower.stop()
        behind.store.rows(table, RowKind.DATA_FILE, write_ids=None)
        assert behind.store.cached_tables() == [table]
        lake.wait(101 * RETENTION)
        lake.clean()
        assert [event.event_id for event in log.read(0, limit=100)] == [head]
        later = lake.write(table)
        ids = [event.event_id for event in log.read(0, limit=100)]
        assert ids == list(range(head, log.head() + 1))
        for store in (cache, behind.store):
            store.log_applier.catch_up()
            rows = store.rows(table, RowKind.DATA_FILE, write_ids=None)
            assert [row.name for row in rows] == sorted([kept, later])


def test_a_cache_that_lags_behind_loads_a_cleaned_table_again(in_folder: Lake) -> None:
    lake = in_folder
    table = lake.create()
    kept = lake.write(table)
    with Node.open(lake.node.folder, settings=SETTINGS) as behind:
        behind.store.follower.stop()
        behind.store.log_applier.catch_up()
        behind.store.rows(table, RowKind.DATA_FILE, write_ids=None)
        assert behind.store.cached_tables() == [table]
        gone = lake.write(table)
        between = lake.write_ids(table)
        lake.remove(table, gone)
        lake.wait()
        lake.clean()
        behind.store.log_applier.catch_up()
        with pytest.raises(VersionNotFound):
            behind.store.rows(table, RowKind.DATA_FILE, write_ids=between)
        rows = behind.store.rows(table, RowKind.DATA_FILE, write_ids=lake.write_ids(table))
        assert [row.name for row in rows] == [kept]


def test_a_snapshot_of_which_another_process_cleaned_files_is_refused_though_memory_has_them(
    lake: Lake,
) -> None:
    table = lake.create()
    gone = lake.write(table)
    before = lake.session.open(["default.t"])
    lake.remove(table, gone)
    after = lake.session.open(["default.t"])
    with Node.open(lake.address, settings=SETTINGS) as other:
        session = other.session(user="bob")
        session.files(table, after.write_ids[table])
        assert other.store.cached_tables() == [table]
        lake.wait()
        lake.clean()
        with pytest.raises(VersionNotFound, match="have been cleaned, and this snapshot is older"):
            session.open(["default.t"], at=AsOf(time=before.time))
        assert session.open(["default.t"], at=AsOf(time=after.time)).write_ids == after.write_ids


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
        lake.node.cleaner.clean()
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


def test_the_clean_command_only_reports_unless_yes_is_given(tmp_path: Path) -> None:
    store = tmp_path / "lake"
    with Node.open(store, settings=SETTINGS) as node:
        lake = Lake(node, [0])
        lake.create()
        ended = lake.session.begin().txn_id
        leftover = lake.put("t", data_path(ended << FILE_NUMBER_BITS, uuid4().hex))
        staged = lake.put("t", f"_staging/{ended}-{uuid4().hex}/_temporary/0/part-0.parquet")
        job = staged.parents[2]
        lake.session.abort(ended)
    run = CliRunner().invoke
    said = run(main, ["clean", str(store)])
    assert said.exit_code == 0
    assert "leftovers" in said.output
    assert "\nnothing was removed; --yes removes it\n" in said.output
    assert leftover.exists()
    result = run(main, ["clean", str(store), "--yes", "--output", "json"])
    (line,) = map(json.loads, result.output.splitlines())
    assert line == {
        "what": "leftovers",
        "table": "default.t",
        "rows": 0,
        "files": 2,
        "bytes": 8,  # also those in the folder of the job
        "names": [f"_files/{leftover.name}", f"_staging/{job.name}"],
        "removed": True,
    }
    assert not leftover.exists()
    assert not job.exists()
    with Node.open(store, settings=SETTINGS) as node:
        session = node.session(user="ann")
        hold = session.hold(BACKUP, at=node.catalogs.complete_now())
        backed_up = run(main, ["clean", str(store)]).output
        session.release_hold(hold.hold_id)
    assert backed_up.endswith("nothing is cleaned while a backup copies files\n")
    nothing = run(main, ["clean", str(store)]).output
    assert re.fullmatch(
        r"there is nothing to clean\ndata that was removed after \S+Z(\+\d+)? is kept\n", nothing
    )


def test_the_clean_command_fails_if_a_file_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(tmp_path / "lake", settings=SETTINGS) as node:
        lake = Lake(node, [0])
        lake.create()
        ended = lake.session.begin().txn_id
        leftover = lake.put("t", data_path(ended << FILE_NUMBER_BITS, uuid4().hex))
        lake.session.abort(ended)

    def refuse(root: int, name: str) -> None:
        raise PermissionError(name)

    monkeypatch.setattr(cleaned_files, "delete_below", refuse)
    result = CliRunner().invoke(main, ["clean", str(tmp_path / "lake"), "--yes"])
    assert (result.exit_code, "1 could not be deleted" in result.stderr) == (1, True)
    assert leftover.exists()
