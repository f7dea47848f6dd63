"""Transactions that ended long ago go with their write ids, and no answer changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy import Connection

from strandline.catalog.commands import DropTable
from strandline.clock import system_wall_clock
from strandline.errors import Fenced, TransactionNotFound, VersionNotFound, WriteConflict
from strandline.metastore.store import dropped_tables
from strandline.metastore.store.old_transactions import OldTransactions
from strandline.metastore.store.rows import RowKind
from strandline.node import Node
from strandline.transactions import TransactionState
from tests.metastore.store.lake import LATER, SETTINGS, Lake

LONG = SETTINGS.notification_retention_ms + LATER


def count(lake: Lake, name: str) -> int:
    ((rows,),) = lake.node.database.rows(f"SELECT count(*) FROM {name}", ())
    return int(rows)


def clean(lake: Lake) -> int:
    """Clean, and return how many transactions went."""
    before = count(lake, "txn")
    lake.node.cleaner.clean()
    return before - count(lake, "txn")


def test_transactions_without_needed_writes_go_when_they_ended_long_ago(lake: Lake) -> None:
    table = lake.create()
    path = lake.write(table)
    for _ in range(5):
        kept = lake.write(table)
        lake.remove(table, path)
        path = kept
    aborted = lake.session.begin().txn_id
    lake.write(table, txn_id=aborted)
    lake.session.abort(aborted)
    lake.session.commit(lake.session.begin().txn_id)
    lake.wait()
    assert clean(lake) == 0  # events may still name them
    lake.wait(LONG)
    last = lake.session.begin().txn_id
    before = lake.write_ids(table)
    # The first and the last write stay, those of the present file, and the open transaction.
    assert (count(lake, "txn"), clean(lake)) == (14, 10)
    assert count(lake, "txn_write_id") == 3
    assert lake.paths(table) == lake.paths(table, before) == [kept]
    with pytest.raises(TransactionNotFound):
        lake.session.commit(aborted)
    lake.session.commit(last)
    assert lake.session.begin().txn_id == last + 1


def test_an_older_reader_is_still_refused_after_the_write_ids_went(lake: Lake) -> None:
    table = lake.create()
    path, lists = lake.write(table), []
    for _ in range(4):
        lists.append(lake.write_ids(table))
        lake.remove(table, path)
        path = lake.write(table)
    lake.wait(LONG)
    assert clean(lake) > 0
    for write_ids in lists:
        with pytest.raises(VersionNotFound, match="this snapshot is older"):
            lake.node.store.sql_store.rows(table, RowKind.DATA_FILE, write_ids=write_ids)
    assert lake.paths(table) == [path]


@pytest.mark.parametrize("is_exact", [False, True])
def test_the_last_commit_before_the_last_cleaning_stays_whatever_came_after_it(
    lake: Lake, *, is_exact: bool
) -> None:
    table = lake.create()
    removed, old = lake.write(table), lake.write_ids(table)
    lake.remove(table, removed)
    lake.wait(LONG)
    clean(lake)
    if is_exact:  # as after a hold at the time of that commit
        with lake.node.database.write() as connection:
            last = "(SELECT max(commit_time) FROM txn_write_id)"
            connection.exec_driver_sql(f"UPDATE cleaned_table SET up_to = {last}")
    for _ in range(3):  # writes without rows, which no cleaning of the table follows
        txn_id = lake.session.begin().txn_id
        lake.session.stage(txn_id, table)
        lake.session.commit(txn_id)
    lake.wait(LONG)
    assert clean(lake) == 2
    with pytest.raises(VersionNotFound, match="this snapshot is older"):
        lake.node.store.sql_store.rows(table, RowKind.DATA_FILE, write_ids=old)


def test_the_last_commit_before_the_last_cleaning_stays_whatever_other_tables_have(
    lake: Lake,
) -> None:
    other, table = lake.create("u"), lake.create()
    removed, old = lake.write(table), lake.write_ids(table)
    lake.remove(table, removed)
    for _ in range(2):
        path = lake.write(other, "u")
    lake.wait(LONG)
    clean(lake)
    lake.session.stage(later := lake.session.begin().txn_id, table)
    lake.session.commit(later)
    lake.remove(other, path)  # so that the other table is cleaned up to a later time
    lake.wait(LONG)
    clean(lake)
    with pytest.raises(VersionNotFound, match="this snapshot is older"):
        lake.node.store.sql_store.rows(table, RowKind.DATA_FILE, write_ids=old)


def test_old_write_ids_go_although_recent_ones_and_those_of_other_tables_removed_rows(
    lake: Lake,
) -> None:
    table, other = lake.create(), lake.create("u")
    for _ in range(3):
        lake.session.stage(txn_id := lake.session.begin().txn_id, table)
        lake.session.commit(txn_id)
    lake.wait(LONG)
    lake.remove(table, lake.write(table))
    lake.remove(other, lake.write(other, "u"))
    assert clean(lake) == 1  # the second; in the other table, this write id removed a row


def test_a_commit_that_a_cleaning_of_another_node_makes_the_last_one_stays(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, txn_ids = lake.create(), [lake.session.begin().txn_id for _ in range(4)]
    for txn_id in txn_ids:
        lake.session.stage(txn_id, table)
        lake.session.commit(txn_id)
    lake.wait(LONG)
    forget = OldTransactions._forget

    def clean_first(old: OldTransactions, *arguments: Any) -> None:
        monkeypatch.setattr(OldTransactions, "_forget", forget)
        with lake.node.database.write() as connection:
            connection.exec_driver_sql(
                "INSERT INTO cleaned_table SELECT table_id, commit_time FROM txn_write_id"
                f" WHERE txn_id = {txn_ids[2]}"
            )
        forget(old, *arguments)

    monkeypatch.setattr(OldTransactions, "_forget", clean_first)
    assert clean(lake) == 1
    assert lake.node.transactions.get(txn_ids[2])


def test_a_transaction_stays_while_an_open_one_may_conflict_with_it(lake: Lake) -> None:
    table = lake.create()
    path, begun = lake.write(table), lake.session.begin().txn_id
    lake.session.stage(touching := lake.session.begin().txn_id, table, touch=[path])
    lake.session.commit(touching)
    lake.write(table)
    lake.wait(LONG)
    lake.write(table)
    clean(lake)
    lake.session.stage(begun, table, remove=[path])
    with pytest.raises(WriteConflict, match=f"transaction {touching} of ann"):
        lake.session.commit(begun)


def test_a_fenced_node_removes_no_transaction(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        lake.session.commit(lake.session.begin().txn_id)

    def refuse(_: Connection) -> None:
        raise Fenced("a newer epoch")

    with monkeypatch.context() as patch:
        patch.setattr(lake.node.database, "guard", refuse)
        with pytest.raises(Fenced):
            OldTransactions(lake.node.database).clean(lake.node.catalogs.now())
    assert count(lake, "txn") == 2
    assert clean(lake) == 0  # they ended just now


def test_write_ids_stay_while_a_row_or_a_removal_names_them(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create()
    first, past = lake.write(table), lake.session.open(["default.t"]).time
    others = [lake.write(table) for _ in range(2)]
    lake.remove(table, others.pop())
    lake.write(table)
    lake.wait(LONG)

    def refuse(_: object) -> NoReturn:
        raise WriteConflict("another process changed the delete files")

    with monkeypatch.context() as patch:
        patch.setattr(lake.node.cleaner, "_remove_delete_files_of_none", refuse)
        assert clean(lake) == 0
    assert lake.paths(table, lake.node.transactions.write_ids(table, at=past)) == [first]
    (removed,) = lake.node.cleaner.clean(dry_run=True).parts
    assert (removed.what, removed.rows) == ("removed rows", 1)
    assert clean(lake) == 2  # that of the row, and that of its removal
    assert count(lake, "store_row") == 3


def test_the_age_of_a_transaction_is_that_of_its_end(lake: Lake) -> None:
    begin, end = lake.session.begin, lake.session.commit
    committed = begin().txn_id
    lake.wait(LONG)
    assert end(committed).state is TransactionState.COMMITTED
    lake.session.abort(begin().txn_id)
    end(begin().txn_id)
    assert clean(lake) == 0
    is_open = begin().txn_id
    end(begin().txn_id)
    lake.wait(LONG)
    assert clean(lake) == 3
    assert end(is_open).state is TransactionState.COMMITTED


def test_an_outcome_can_be_asked_for_a_day_whatever_the_retention(tmp_path: Path) -> None:
    ahead = [0]
    settings = replace(SETTINGS, history_retention_ms=0, notification_retention_ms=0)
    wall = lambda: system_wall_clock() + ahead[0]  # noqa: E731
    with Node.open(tmp_path / "lake", settings=settings, wall=wall) as node:
        lake = Lake(node, ahead)
        txn_id = lake.session.begin().txn_id
        lake.session.commit(txn_id)
        lake.session.commit(lake.session.begin().txn_id)
        lake.wait(23 * 3_600_000)
        assert clean(lake) == 0
        assert lake.session.commit(txn_id).state is TransactionState.COMMITTED
        lake.wait(2 * 3_600_000)
        (said,) = lake.node.cleaner.clean(dry_run=True).parts
        assert (said.what, said.rows, clean(lake)) == ("transactions", 1, 1)
        with pytest.raises(TransactionNotFound, match="ended longer ago than outcomes are kept"):
            lake.session.commit(txn_id)


def test_nothing_stays_of_the_writes_of_a_table_that_no_kept_version_has(lake: Lake) -> None:
    table = lake.create()
    lake.write(table)
    lake.session.execute(DropTable(schema="default", table="t"))
    kept = lake.create()
    lake.write(kept)
    version = lake.session.status().version
    lake.wait(LONG)
    clean(lake)
    assert count(lake, "next_write_id") == 2  # the dropped table can be read at its version
    lake.session.compact(version)
    clean(lake)
    rows = lake.node.database.rows("SELECT DISTINCT table_id FROM txn_write_id", ())
    assert rows == lake.node.database.rows("SELECT table_id FROM next_write_id", ()) == [(kept,)]


def test_write_ids_of_a_dropped_table_go_although_a_cleaning_died_after_its_rows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write(lake.create())
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create()
    lake.wait()
    lake.session.compact(lake.session.status().version)

    def die(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(dropped_tables, "in_lists", die)
        lake.node.cleaner.clean()
    lake.node.cleaner.clean()
    assert count(lake, "next_write_id") == 0
