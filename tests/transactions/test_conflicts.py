"""Conflicts at commit: rows that another transaction changed first, tables that DDL changed."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from strandline.errors import (
    DeadlineExceeded,
    ObjectNotFound,
    TransactionFinished,
    UnsupportedOperation,
    WriteConflict,
)
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.transactions import TransactionState, ValidWriteIdList, catalog_view, records
from tests.transactions.catalogs import new_column, new_table
from tests.transactions.stores import FLIGHTS, Store

OPEN, COMMITTED, ABORTED = TransactionState


# -- first committer wins


def test_the_second_transaction_to_commit_a_row_is_aborted_and_the_error_names_the_first(
    store: Store,
) -> None:
    first, second = store.begin(writing=[FLIGHTS]), store.begin(writing=[FLIGHTS])
    store.change_rows(first, 10, 11)
    store.change_rows(second, 11, 12)
    store.transactions.commit(second)
    with pytest.raises(WriteConflict) as refused:
        store.transactions.commit(first)
    for named in (f"transaction {first}", f"transaction {second}", "row 11"):
        assert named in refused.value.message
    assert store.transactions.get(first).state is ABORTED
    with pytest.raises(TransactionFinished):
        store.transactions.commit(first)
    assert store.transactions.statistics().conflicts == 1


def test_sequential_changes_of_a_row_do_not_conflict(store: Store) -> None:
    for _ in range(2):
        txn_id = store.begin(writing=[FLIGHTS])
        store.change_rows(txn_id, 10)
        store.change_rows(txn_id, 10, 11)
        store.transactions.commit(txn_id)
    assert store.transactions.write_ids(FLIGHTS) == ValidWriteIdList(hwm=2)


def test_appends_and_different_rows_do_not_conflict(store: Store) -> None:
    open_together = [store.begin(writing=[FLIGHTS]) for _ in range(4)]
    store.change_rows(open_together[0], 10)
    store.change_rows(open_together[1], 11)
    for txn_id in open_together:
        assert store.transactions.commit(txn_id).state is COMMITTED


def test_changes_of_aborted_or_open_transactions_do_not_conflict(store: Store) -> None:
    aborted, still_open, other = (store.begin(writing=[FLIGHTS]) for _ in range(3))
    for txn_id in (aborted, still_open, other):
        store.change_rows(txn_id, 10)
    store.transactions.abort(aborted)
    assert store.transactions.commit(other).state is COMMITTED
    with pytest.raises(WriteConflict):
        store.transactions.commit(still_open)


def test_a_conflict_names_the_table_as_its_transaction_knew_it(store: Store) -> None:
    store.catalogs.publish(new_table(FLIGHTS, "flights"))
    first, second = store.begin(writing=[FLIGHTS]), store.begin(writing=[FLIGHTS])
    store.change_rows(first, 1)
    store.change_rows(second, 1)
    store.transactions.commit(first)
    store.catalogs.publish(new_table(FLIGHTS, "hidden"))
    with pytest.raises(WriteConflict, match=r"conflict on db\.flights: transaction"):
        store.transactions.commit(second)


def test_a_footprint_larger_than_one_statement_is_compared_completely(store: Store) -> None:
    first, second = store.begin(writing=[FLIGHTS]), store.begin(writing=[FLIGHTS])
    store.change_rows(first, *range(1, 1300))
    store.change_rows(second, 1299)
    store.transactions.commit(first)
    with pytest.raises(WriteConflict, match="row 1299"):
        store.transactions.commit(second)


def test_footprints_are_kept_as_long_as_they_can_conflict(store: Store) -> None:
    def footprints() -> int:
        return len(store.contents()["txn_footprint"])

    past = store.begin(writing=[FLIGHTS])
    store.change_rows(past, 10)
    store.transactions.commit(past)
    old = store.begin(writing=[FLIGHTS])
    store.change_rows(old, 10)
    winner = store.begin(writing=[FLIGHTS])
    store.change_rows(winner, 10)
    store.transactions.commit(winner)
    assert footprints() == 3
    store.transactions.expire()
    assert footprints() == 2
    with pytest.raises(WriteConflict):
        store.transactions.commit(old)
    assert footprints() == 1
    store.transactions.expire()
    assert footprints() == 0


def test_many_old_footprints_are_deleted_by_several_short_writes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_FORGOTTEN", 2)
    for first in range(1, 11, 2):
        past = store.begin(writing=[FLIGHTS])
        store.change_rows(past, first, first + 1)
        store.transactions.commit(past)
    before = store.database.statistics().writes
    store.transactions.expire()
    assert store.contents()["txn_footprint"] == []
    assert store.database.statistics().writes == before + 3


# -- the catalog at begin and at commit


BEFORE = new_table(FLIGHTS, "flights", primary_key=(1,))


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (None, "was dropped"),
        (new_table(FLIGHTS, "flights", primary_key=(1,), kind=TableKind.EXTERNAL), "kind"),
        (new_table(FLIGHTS, "flights", primary_key=(1,), transactional=False), "kind"),
        (new_table(FLIGHTS, "flights", primary_key=(2,)), "primary key"),
        (new_table(FLIGHTS, "flights", primary_key=(1,), partition_columns=(2,)), "partitioning"),
        (
            new_table(
                FLIGHTS,
                "flights",
                (new_column(1, "k", "int"), new_column(2, "v", "string")),
                primary_key=(1,),
            ),
            "type of column k",
        ),
        (
            new_table(
                FLIGHTS,
                "flights",
                (new_column(1, "k"), new_column(2, "v", "string", nullable=False)),
                primary_key=(1,),
            ),
            "nullability of column v",
        ),
        (  # it was renamed, too
            new_table(FLIGHTS, "old", (new_column(1, "k"), new_column(2, "v")), primary_key=(1,)),
            "type of column v",
        ),
        (  # k was dropped, too
            new_table(FLIGHTS, "flights", (new_column(2, "v", "int"),), primary_key=(1,)),
            "type of column v",
        ),
    ],
)
def test_ddl_that_invalidates_the_written_rows_is_a_conflict(
    store: Store, after: TableDescriptor | None, named: str
) -> None:
    store.catalogs.publish(BEFORE)
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish(*([after] if after else []))
    with pytest.raises(WriteConflict, match=named) as refused:
        store.transactions.commit(txn_id)
    assert "aborted at its commit: conflict on db.flights: the table " in refused.value.message
    assert refused.value.message.endswith("version 2 and 3; begin again")
    assert store.transactions.get(txn_id).state is ABORTED


@pytest.mark.parametrize(
    "after",
    [
        new_table(FLIGHTS, "flights_2013", primary_key=(1,)),
        new_table(
            FLIGHTS,
            "flights",
            (new_column(1, "key"), new_column(2, "w", "string")),
            primary_key=(1,),
        ),
        new_table(FLIGHTS, "flights", (new_column(1, "k"),), primary_key=(1,)),
        new_table(
            FLIGHTS,
            "flights",
            (*BEFORE.columns, new_column(3, "x", nullable=False)),
            primary_key=(1,),
        ),
        new_table(
            FLIGHTS, "flights", (new_column(1, "k"), new_column(3, "v", "int")), primary_key=(1,)
        ),
    ],
    ids=["rename table", "rename columns", "drop column", "add column", "drop and add again"],
)
def test_ddl_that_keeps_the_written_rows_valid_is_not_a_conflict(
    store: Store, after: TableDescriptor
) -> None:
    store.catalogs.publish(BEFORE)
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish(after)
    assert store.transactions.commit(txn_id).state is COMMITTED


def test_a_table_created_after_the_begin_cannot_be_written(store: Store) -> None:
    txn_id = store.begin()
    with pytest.raises(ObjectNotFound, match="transaction 1 cannot write table 77"):
        store.allocate(txn_id, 77)
    # Release 0.2.0 allowed this; transactions that it began may still be open.
    with store.database.write() as connection:
        records.allocate(connection, [txn_id], 77)
    store.catalogs.publish(new_table(77, "later"))
    with pytest.raises(WriteConflict, match=r"on db\.later: the table did not exist when the tr"):
        store.transactions.commit(txn_id)


def test_a_change_that_began_after_the_drop_of_its_table_says_that_it_was_dropped(
    store: Store,
) -> None:
    txn_id = store.begin()
    with store.database.write() as connection:
        records.allocate(connection, [txn_id], 77)
    with pytest.raises(WriteConflict, match="on table 77: the table was dropped"):
        store.transactions.commit(txn_id)


def test_a_table_that_is_not_transactional_gets_no_write_id(store: Store) -> None:
    store.catalogs.publish(new_table(5, "plain", transactional=False))
    txn_id = store.begin()
    with pytest.raises(UnsupportedOperation, match="plain is not transactional"):
        store.allocate(txn_id, 5)
    assert store.transactions.write_id_pairs(txn_id) == ()


def test_ddl_on_tables_that_were_not_written_is_not_a_conflict(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish(new_table(FLIGHTS, "flights"))
    assert store.transactions.commit(txn_id).state is COMMITTED


def test_a_commit_succeeds_after_a_catalog_that_was_behind_catches_up(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish(new_table(FLIGHTS, "renamed"), applied=False)
    assert store.transactions.commit(txn_id).state is COMMITTED
    assert store.catalogs.syncs == 1
    assert store.transactions.statistics().behind == 1


def test_a_begin_waits_for_the_catalog_of_its_begin_time(store: Store) -> None:
    store.catalogs.publish(new_table(FLIGHTS, "renamed"), applied=False)
    assert store.transactions.begin(user="ann").catalog_version == 2
    with store.transactions.autocommit(FLIGHTS, user="ann") as step:
        assert step.transaction.catalog_version == 2


def test_calls_under_a_catalog_that_stays_behind_time_out_and_change_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish(new_table(FLIGHTS, "renamed"), applied=False)
    hours: list[int] = []  # that pass while a call waits for the catalog
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * len(hours))
    monkeypatch.setattr(catalog_view, "time", clock)
    store.catalogs.on_sync = lambda: hours.append(1)
    before = store.contents()
    with pytest.raises(DeadlineExceeded, match="version 2 is not applied"):
        store.transactions.commit(txn_id)
    with pytest.raises(DeadlineExceeded, match=r"within 30\.0 s \(version 2 is not applied"):
        store.transactions.begin(user="ann")
    assert store.contents() == before
    assert store.catalogs.syncs > 0


def test_a_transaction_that_wrote_nothing_commits_without_the_catalog(store: Store) -> None:
    txn_id = store.begin()
    store.catalogs.publish(applied=False)
    assert store.transactions.commit(txn_id).state is COMMITTED
    assert store.catalogs.syncs == 0
