"""Transactions over tables: they are atomic, and the first of two that conflict wins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event, current_thread, main_thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from strandline.catalog.commands import AddColumns, ColumnDefinition, DropTable, RenameTable
from strandline.errors import (
    Conflict,
    InvalidInput,
    StrandlineError,
    TransactionFinished,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
    WriteConflict,
)
from strandline.model.types import STRING
from strandline.spark import Counts, Tables, TablesTransaction
from strandline.spark import transaction as transaction_module
from strandline.spark.positions import bitmaps_of_rows
from strandline.spark.writing import write_data_files
from strandline.transactions import Transaction, TransactionState
from tests.spark.data import files, folder, frame, ids, numbers, suffixes

pytestmark = pytest.mark.spark


def test_changes_of_two_tables_become_visible_together(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.create("shop.gone", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2, 3))
    with tables.transaction() as transaction:
        moved = transaction.read("shop.t").filter("id > 1")
        assert transaction.append("shop.gone", moved).rows == 2
        assert transaction.delete("shop.t", "id > 1").rows == 2
        with tables.snapshot("shop.t", "shop.gone") as before:
            assert ids(tables.read("shop.t", snapshot=before)) == [1, 2, 3]
            assert ids(tables.read("shop.gone", snapshot=before)) == []
    with tables.snapshot("shop.t", "shop.gone") as after:
        assert ids(tables.read("shop.t", snapshot=after)) == [1]
        assert ids(tables.read("shop.gone", snapshot=after)) == [2, 3]
    with tables.transaction() as empty:
        pass
    assert tables.session.transaction(empty.txn_id).state is TransactionState.COMMITTED


def test_a_transaction_sees_its_own_writes_and_not_those_of_others(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2))
    with tables.transaction() as transaction:
        tables.append("shop.t", numbers(tables, 100))
        transaction.append("shop.t", numbers(tables, 3, 4))
        assert ids(tables.read("shop.t", transaction=transaction)) == [1, 2, 3, 4]
        assert ids(tables.read("shop.t", transaction=transaction, where="id > 3")) == [4]
        assert transaction.delete("shop.t", "id IN (2, 3, 100)").rows == 2
        assert transaction.delete("shop.t", "id IN (2, 3, 4)").rows == 1
        assert ids(transaction.read("shop.t")) == [1]
        assert ids(tables.read("shop.t")) == [1, 2, 100]
    assert ids(tables.read("shop.t")) == [1, 100]


def test_a_transaction_finds_a_table_by_each_spelling_of_its_name(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    with tables.transaction() as transaction:
        transaction.append("shop.t", numbers(tables, 1))
        transaction.append("SHOP.`T`", numbers(tables, 2))
    assert ids(tables.read("shop.t")) == [1, 2]


def test_an_aborted_transaction_leaves_nothing(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2, 3))
    before = files(folder(tables, "shop.t"))
    with pytest.raises(ZeroDivisionError), tables.transaction() as transaction:
        transaction.append("shop.t", numbers(tables, 4))
        transaction.delete("shop.t", "id = 1 OR id = 4")
        assert len(files(folder(tables, "shop.t"))) > len(before)
        raise ZeroDivisionError
    assert files(folder(tables, "shop.t")) == before
    assert ids(tables.read("shop.t")) == [1, 2, 3]
    assert tables.session.transaction(transaction.txn_id).state is TransactionState.ABORTED


def test_a_failed_statement_does_not_affect_the_others_of_its_transaction(tables: Tables) -> None:
    tables.create("shop.t", "id INT")
    with tables.transaction() as transaction:
        transaction.append("shop.t", tables.spark.sql("SELECT 1 AS id"))
        with pytest.raises(InvalidInput):
            transaction.append("shop.t", tables.spark.sql("SELECT 2 AS other"))
        with pytest.raises(PySparkException):
            transaction.append("shop.t", tables.spark.sql("SELECT 3000000000 AS id FROM range(1)"))
        with pytest.raises(PySparkException):
            transaction.delete("shop.t", "id / (id - 1) > 0")
        transaction.append("shop.t", tables.spark.sql("SELECT 4 AS id"))
    assert ids(tables.read("shop.t")) == [1, 4]
    assert suffixes(files(folder(tables, "shop.t"))) == {"_files": 2}


@contextmanager
def meanwhile(
    patch: pytest.MonkeyPatch,
    transaction: TablesTransaction,
    statement: Callable[[], Counts],
    *,
    step: str,
) -> Iterator[Future[Counts]]:
    """Run ``statement`` in another thread before a ``step`` of this thread, if it need not wait."""
    is_before_step, waits_or_has_ended = Event(), Event()
    call = getattr(transaction_module, step)

    def paused(*arguments: Any, **options: Any) -> Any:
        if current_thread() is main_thread():
            is_before_step.set()
            assert waits_or_has_ended.wait(60)
        return call(*arguments, **options)

    def run() -> Counts:
        assert is_before_step.wait(60)
        if transaction._statement.acquire(blocking=False):
            transaction._statement.release()
        else:
            waits_or_has_ended.set()
        try:
            return statement()
        finally:
            waits_or_has_ended.set()

    patch.setattr(transaction_module, step, paused)
    with ThreadPoolExecutor() as threads:
        yield threads.submit(run)


def test_a_statement_that_fails_keeps_the_files_that_another_thread_appends_meanwhile(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create("shop.t", "id BIGINT NOT NULL")
    step = write_data_files.__name__
    with tables.transaction() as transaction:
        append = partial(transaction.append, "shop.t", numbers(tables, 1))
        with meanwhile(monkeypatch, transaction, append, step=step) as other:
            with pytest.raises(InvalidInput, match="NOT NULL"):
                transaction.append("shop.t", frame(tables, id=pa.array([None], pa.int64())))
            assert other.result() == Counts(rows=1, files=1)
    assert ids(tables.read("shop.t")) == [1]


def test_rows_that_two_threads_delete_are_counted_once(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, *range(10)).coalesce(1))
    step = bitmaps_of_rows.__name__
    with tables.transaction() as transaction:
        delete = partial(transaction.delete, "shop.t", "id < 3")
        with meanwhile(monkeypatch, transaction, delete, step=step) as other:
            assert {delete().rows, other.result().rows} == {3, 0}
    tables.delete("shop.t", "id > 5")  # as many rows as are left if the others count twice
    assert ids(tables.read("shop.t")) == [3, 4, 5]


def test_the_first_to_commit_of_two_deletes_from_one_file_wins(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2, 3, 4).coalesce(1))
    tables.append("shop.t", numbers(tables, 11, 12).coalesce(1))
    with pytest.raises(WriteConflict), tables.transaction() as second:  # noqa: SIM117 - the order matters
        with tables.transaction() as third:
            second.append("shop.t", numbers(tables, 99))
            assert second.delete("shop.t", "id = 1").rows == 1
            assert third.delete("shop.t", "id = 11").rows == 1
            assert tables.delete("shop.t", "id = 2").rows == 1
    assert ids(tables.read("shop.t")) == [1, 3, 4, 12]
    kinds = suffixes(files(folder(tables, "shop.t")))
    assert kinds == {"_files": 2, "_deletes": 2}
    assert tables.delete("shop.t", "id = 1").rows == 1


def test_removing_a_whole_file_conflicts_with_deleting_from_it(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2).coalesce(1))
    with pytest.raises(WriteConflict), tables.transaction() as second:
        second.delete("shop.t", "id = 1")
        assert tables.delete("shop.t", "true") == Counts(2, 1)
    assert ids(tables.read("shop.t")) == []


@pytest.mark.slow
def test_appends_never_conflict(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2).coalesce(1))
    with tables.transaction() as second:
        second.append("shop.t", numbers(tables, 3))
        tables.append("shop.t", numbers(tables, 4))
        tables.delete("shop.t", "id = 1")
    assert ids(tables.read("shop.t")) == [2, 3, 4]


@pytest.mark.slow
def test_a_file_without_rows_left_is_removed(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, *range(6)).coalesce(1))
    tables.append("shop.t", numbers(tables, 6, 7).coalesce(1))
    assert tables.delete("shop.t", "id IN (0, 2)") == Counts(2, 1)
    assert tables.delete("shop.t", "id < 7 AND id > -1") == Counts(5, 2)
    with tables.snapshot("shop.t") as snapshot:
        table_id = snapshot.table("shop.t").descriptor.id
        answer = tables.session.files(table_id, snapshot.write_ids("shop.t"))
    assert [file.rows for file in answer.data_files] == [2]
    assert [file.counts for file in answer.delete_files] == [(2,), (1,)]
    assert ids(tables.read("shop.t")) == [7]


def test_a_transaction_cannot_be_used_after_its_block(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    with tables.transaction() as transaction:
        transaction.append("shop.t", numbers(tables, 1))
    for use in (
        lambda: transaction.read("shop.t"),
        lambda: transaction.append("shop.t", numbers(tables, 2)),
        lambda: transaction.delete("shop.t", "true"),
    ):
        with pytest.raises(TransactionFinished, match="ended with its block"):
            use()
    assert ids(tables.read("shop.t")) == [1]


def test_a_transaction_that_was_aborted_from_outside_writes_nothing(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    with pytest.raises(TransactionFinished), tables.transaction() as transaction:
        transaction.append("shop.t", numbers(tables, 1))
        tables.session.abort(transaction.txn_id)
        with pytest.raises(Conflict):
            transaction.append("shop.t", numbers(tables, 2))
    assert files(folder(tables, "shop.t")) == []
    assert ids(tables.read("shop.t")) == []


def test_a_write_whose_files_were_cleaned_after_the_timeout_raises_why_its_transaction_ended(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create("shop.t", "id BIGINT")

    def cleaned(*_: object, **__: object) -> None:
        tables.session.abort(transaction.txn_id)
        keep_alive = transaction._open._keep_alive
        keep_alive._beat(keep_alive._watched[transaction.txn_id])
        raise FileNotFoundError("_staging/…/_temporary")

    monkeypatch.setattr(transaction_module, "write_data_files", cleaned)
    with (
        pytest.raises(TransactionFinished, match=r"is aborted: .* it timed out; begin again"),
        tables.transaction() as transaction,
    ):
        transaction.append("shop.t", numbers(tables, 1))


def test_a_transaction_sees_the_columns_as_of_its_begin(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    with tables.transaction() as transaction:
        added = (ColumnDefinition("note", STRING),)
        tables.session.execute(AddColumns(schema="shop", table="t", columns=added))
        transaction.append("shop.t", numbers(tables, 1))
        assert transaction.read("shop.t").columns == ["id"]
    assert tables.read("shop.t").columns == ["id", "note"]
    assert ids(tables.read("shop.t")) == [1]


def test_a_table_renamed_during_a_transaction_keeps_the_rows_written_before(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    old = folder(tables, "shop.t")
    with tables.transaction() as transaction:
        transaction.append("shop.t", numbers(tables, 1, 2))
        tables.session.execute(RenameTable(schema="shop", table="t", new_name="u"))
        with pytest.raises(WriteConflict, match="renamed or dropped"):
            transaction.append("shop.t", numbers(tables, 3))
    assert not old.exists()
    assert ids(tables.read("shop.u")) == [1, 2]


@pytest.mark.slow
def test_writes_follow_a_renamed_table_and_not_its_name(tables: Tables) -> None:
    """Another table may have got the name, and the folder that the table had at first."""
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2))
    with tables.transaction() as transaction:
        assert ids(transaction.read("shop.t")) == [1, 2]
        tables.session.execute(RenameTable(schema="shop", table="t", new_name="u"))
        tables.create("shop.t", "id BIGINT")
        transaction.append("shop.t", numbers(tables, 3))
        transaction.delete("shop.t", "id = 1")
    assert ids(tables.read("shop.u")) == [2, 3]
    assert ids(tables.read("shop.t")) == []


def test_a_table_dropped_during_a_transaction_is_a_conflict(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    with pytest.raises(WriteConflict), tables.transaction() as transaction:
        transaction.append("shop.t", numbers(tables, 1))
        tables.session.execute(DropTable(schema="shop", table="t"))


def test_a_new_table_keeps_its_folder_when_a_write_to_a_dropped_one_of_its_name_fails(
    tables: Tables,
) -> None:
    tables.create("shop.t", "id BIGINT")
    with pytest.raises(WriteConflict), tables.transaction() as transaction:
        transaction.append("shop.t", numbers(tables, 1))
        tables.drop("shop.t")
        tables.create("shop.t", "id BIGINT")
        transaction.append("shop.t", numbers(tables, 2))
    tables.append("shop.t", numbers(tables, 3))
    assert ids(tables.read("shop.t")) == [3]


@pytest.mark.parametrize("committed", [True, False])
def test_files_are_kept_if_the_outcome_of_the_commit_is_unknown(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    tables.create("shop.t", "id BIGINT")
    session = tables.session
    commit = session.commit

    def unanswered(txn_id: int) -> Transaction:
        if committed:
            commit(txn_id)
        raise UnknownOutcome("the answer was lost")

    monkeypatch.setattr(session, "commit", unanswered)
    with pytest.raises(UnknownOutcome), tables.transaction() as transaction:
        transaction.append("shop.t", numbers(tables, 1, 2))
    monkeypatch.undo()
    if not committed:
        commit(transaction.txn_id)
    assert ids(tables.read("shop.t")) == [1, 2]


def test_the_files_of_a_refused_statement_are_removed_and_the_others_are_committed(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create("shop.t", "id BIGINT")
    with tables.transaction() as transaction:
        transaction.append("shop.t", numbers(tables, 1))
        written = files(folder(tables, "shop.t"))
        with monkeypatch.context() as patched, pytest.raises(WriteConflict):
            patched.setattr(tables.session, "stage", failing(WriteConflict("refused")))
            transaction.append("shop.t", numbers(tables, 2, 3))
        assert files(folder(tables, "shop.t")) == written
    assert ids(tables.read("shop.t")) == [1]


@pytest.mark.parametrize(
    "error", [UnknownOutcome("no answer"), StrandlineError("unexpected"), KeyboardInterrupt()]
)
def test_a_transaction_with_a_statement_that_may_have_happened_cannot_be_committed(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    tables.create("shop.t", "id BIGINT")
    stage = tables.session.stage
    with (
        pytest.raises(Unavailable, match="can only be aborted"),
        tables.transaction() as transaction,
    ):
        with monkeypatch.context() as patched, pytest.raises(type(error)):
            patched.setattr(tables.session, "stage", failing(error, after=stage))
            transaction.append("shop.t", numbers(tables, 1, 2))
        assert files(folder(tables, "shop.t"))  # the rows of the statement may refer to them
        for use in (
            lambda: transaction.append("shop.t", numbers(tables, 1, 2)),
            lambda: transaction.read("shop.t"),
        ):
            with pytest.raises(Unavailable, match="begin another transaction"):
                use()
    assert ids(tables.read("shop.t")) == []
    assert files(folder(tables, "shop.t")) == []


def failing(error: BaseException, *, after: Callable[..., int] | None = None) -> Callable[..., int]:
    """A call that raises ``error``, after it has called ``after``."""

    def call(*arguments: object, **options: object) -> int:
        if after is not None:
            after(*arguments, **options)
        raise error

    return call


def test_files_are_synced_before_they_are_staged(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2).coalesce(1))
    synced: set[int] = set()
    fsync, stage = os.fsync, tables.session.stage
    root = folder(tables, "shop.t")
    missing: list[str] = []

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def checked(*arguments: object, **options: object) -> int:
        paths = [root, *(root / file.path for file in options["add"])]  # type: ignore[attr-defined]  # a list of files
        paths += [path.parent for path in paths[1:]]
        missing.extend(str(path) for path in paths if path.stat().st_ino not in synced)
        return stage(*arguments, **options)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(tables.session, "stage", checked)
    with tables.transaction() as transaction:
        transaction.append("shop.t", numbers(tables, 3, 4))
        synced.discard(root.stat().st_ino)
        assert transaction.delete("shop.t", "id = 2").rows == 1
    assert missing == []


def test_an_append_to_a_missing_folder_raises_unavailable(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    root = folder(tables, "shop.t")
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(Unavailable, match=r"shop\.t"):
        tables.append("shop.t", numbers(tables, 1))


def test_the_number_of_files_of_one_transaction_is_limited(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_module, "MAX_FILES", 1)
    tables.create("shop.t", "id BIGINT")
    with pytest.raises(UnsupportedOperation, match="coalesce"):
        tables.append("shop.t", numbers(tables, *range(20)).repartition(2))
    assert files(folder(tables, "shop.t")) == []
