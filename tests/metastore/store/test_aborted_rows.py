"""The rows of aborted transactions are removed, and reads return the same as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from strandline.errors import Fenced
from strandline.metastore.store import aborted_rows
from strandline.metastore.store.aborted_rows import AbortedRows
from strandline.metastore.store.rows import RowKind
from strandline.transactions import TransactionState
from tests.metastore.dml import CANCELLATIONS, FLIGHTS, Dml, data_file, files, stage
from tests.sql.statements import recorded

ABORTS = 40


@pytest.fixture
def dml(tmp_path: Path) -> Iterator[Dml]:
    made = Dml(tmp_path / "strandline.db")
    with closing(made.database):
        yield made


@pytest.fixture
def cleaner(dml: Dml) -> AbortedRows:
    return AbortedRows(dml.database)


def abort(dml: Dml, *names: str, remove: tuple[int, ...] = ()) -> int:
    txn_id = dml.begin()
    stage(dml.store, txn_id, FLIGHTS, add=[data_file(name) for name in names], remove=remove)
    dml.transactions.abort(txn_id)
    return txn_id


def test_aborted_write_ids_and_their_rows_are_removed(dml: Dml, cleaner: AbortedRows) -> None:
    dml.append("a")
    first = dml.store.rows(FLIGHTS, RowKind.DATA_FILE, write_ids=None)[0]
    gone = [abort(dml, f"gone-{n}", remove=(first.row_id,)) for n in range(ABORTS)]
    dml.append("b")
    assert len(dml.transactions.write_ids(FLIGHTS).exceptions) == ABORTS
    assert cleaner.clean() == ABORTS
    assert dml.transactions.write_ids(FLIGHTS).exceptions == ()
    assert files(dml.store) == ["a", "b"]
    contents = dml.contents()
    assert len(contents["store_row"]) == 2
    assert contents["store_removal"] == []
    assert len(contents["txn_write_id"]) == 2
    # Their clients still see that they were aborted.
    assert dml.transactions.get(gone[0]).state is TransactionState.ABORTED
    assert cleaner.clean() == 0


def test_rows_of_a_table_stay_although_a_write_of_that_number_was_aborted_in_another_table(
    dml: Dml, cleaner: AbortedRows
) -> None:
    dml.append("a")
    abort(dml, "gone")
    txn_id = dml.begin()
    stage(dml.store, txn_id, CANCELLATIONS, add=[data_file("gone")])
    dml.transactions.abort(txn_id)
    assert cleaner.clean() == 2
    assert files(dml.store) == ["a"]
    assert len(dml.contents()["store_row"]) == 1


def test_a_list_from_before_the_cleaning_shows_the_same_rows(
    dml: Dml, cleaner: AbortedRows
) -> None:
    dml.append("a")
    abort(dml, "gone")
    dml.append("b")
    before = dml.transactions.write_ids(FLIGHTS)
    dml.append("c")
    cached = dml.cached()
    assert files(cached) == ["a", "b", "c"]
    cleaner.clean()
    for store in (dml.store, cached):
        assert files(store, write_ids=before) == ["a", "b"]
        assert files(store, write_ids=dml.transactions.write_ids(FLIGHTS)) == ["a", "b", "c"]


def test_a_cache_that_applied_the_aborts_still_answers(dml: Dml, cleaner: AbortedRows) -> None:
    cached = dml.cached()
    dml.append("a")
    assert files(cached) == ["a"]
    for n in range(3):
        abort(dml, f"gone-{n}")
    dml.append("b")
    cached.log_applier.catch_up()
    cleaner.clean()
    before = cached.statistics()
    assert files(cached, write_ids=dml.transactions.write_ids(FLIGHTS)) == ["a", "b"]
    after = cached.statistics()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 0)


def test_open_and_committed_transactions_are_left_alone(dml: Dml, cleaner: AbortedRows) -> None:
    dml.append("a")
    abort(dml, "gone")
    opened = dml.begin()
    stage(dml.store, opened, FLIGHTS, add=[data_file("mine")])
    stage(dml.store, opened, CANCELLATIONS, add=[data_file("other")])
    cleaner.clean()
    assert files(dml.store) == ["a"]
    dml.transactions.commit(opened)
    assert files(dml.store) == ["a", "mine"]
    assert files(dml.store, CANCELLATIONS) == ["other"]


def test_a_removed_write_id_is_never_reused(dml: Dml, cleaner: AbortedRows) -> None:
    abort(dml, "gone")
    cleaner.clean()
    txn_id = dml.begin()
    stage(dml.store, txn_id, FLIGHTS, add=[data_file("later")])
    assert dml.transactions.write_id_pairs(txn_id) == ((FLIGHTS, 2),)


def test_the_number_of_rows_that_one_sql_transaction_removes_is_limited(
    dml: Dml, cleaner: AbortedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aborted_rows, "MAX_ROWS", 10)
    abort(dml, *(f"gone-{n}" for n in range(25)))
    left = []
    while cleaner._step() is not None:
        left.append(len(dml.contents()["store_row"]))
        pairs = dml.contents()["txn_write_id"]
        assert bool(pairs) == bool(left[-1])
    assert left == [15, 5, 0]


def test_many_aborts_are_cleaned_with_few_statements(dml: Dml, cleaner: AbortedRows) -> None:
    for n in range(ABORTS):
        abort(dml, f"gone-{n}")
    with recorded() as statements:
        cleaner.clean()
    deletes = [text for text, _ in statements if text.startswith("DELETE")]
    assert len(deletes) == 3  # the rows, the removals, and the write ids


def test_a_fenced_process_cleans_nothing(dml: Dml, cleaner: AbortedRows) -> None:
    abort(dml, "gone")
    before = dml.contents()
    dml.fenced = True
    with pytest.raises(Fenced):
        cleaner.clean()
    assert dml.contents() == before


def test_cleaning_ends_early_if_it_is_stopped(dml: Dml, cleaner: AbortedRows) -> None:
    abort(dml, "gone")
    assert cleaner.clean(stopped=lambda: True) == 0
