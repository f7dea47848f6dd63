"""Which removed rows the cleaning takes, and what it records of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from strandline.clock import Timestamp
from strandline.errors import VersionNotFound
from strandline.metastore.store import partition_moves
from strandline.metastore.store.partition_moves import PartitionMove
from strandline.metastore.store.removed_rows import (
    RemovedRow,
    forget,
    named_for_good,
    removed_rows,
    tables_with_removed_rows,
)
from strandline.metastore.store.rows import RowKind
from tests.metastore.dml import CANCELLATIONS, FLIGHTS, Dml, data_file, stage


@pytest.fixture
def dml(tmp_path: Path) -> Iterator[Dml]:
    made = Dml(tmp_path / "strandline.db")
    with closing(made.database):
        yield made


def test_the_recorded_limit_of_a_table_never_falls(dml: Dml) -> None:
    with dml.database.write() as connection:
        for limit, row_id in ((200, 1), (100, 2)):
            rows = [RemovedRow(row_id, RowKind.DATA_FILE, "a")]
            forget(connection, FLIGHTS, Timestamp(limit), rows)
    assert dml.store.cleaned_tables() == {FLIGHTS: Timestamp(200)}


def test_a_row_is_cleaned_only_if_its_removal_is_committed_up_to_the_limit(dml: Dml) -> None:
    dml.append("a")
    for name in "ab":  # both numbers of writes are committed in another table
        dml.append(name, table_id=CANCELLATIONS)
    (row,) = dml.store.rows(FLIGHTS, RowKind.DATA_FILE, write_ids=None)
    txn_id = dml.begin()
    stage(dml.store, txn_id, FLIGHTS, remove=[row.row_id])

    def cleaned(limit: Timestamp) -> list[int]:
        with dml.database.read() as connection:
            removed = removed_rows(connection, FLIGHTS, limit, max_rows=None)
            assert tables_with_removed_rows(connection, limit) == ([FLIGHTS] if removed else [])
        return [row.row_id for row in removed]

    assert cleaned(dml.clock.now()) == []
    before = dml.clock.now()
    dml.transactions.commit(txn_id)
    commit_time = dml.transactions.get(txn_id).commit_time
    assert commit_time is not None
    assert (cleaned(before), cleaned(commit_time)) == ([], [row.row_id])


def test_a_reader_that_lacks_only_the_last_cleaned_commit_is_refused(dml: Dml) -> None:
    dml.append("a")
    earlier = dml.transactions.write_ids(FLIGHTS)
    (row,) = dml.store.rows(FLIGHTS, RowKind.DATA_FILE, write_ids=earlier)
    txn_id = dml.begin()
    stage(dml.store, txn_id, FLIGHTS, remove=[row.row_id])
    dml.append("b")
    during = dml.transactions.write_ids(FLIGHTS)
    dml.transactions.commit(txn_id)
    commit_time = dml.transactions.get(txn_id).commit_time
    assert commit_time is not None
    with dml.database.write() as connection:
        removed = removed_rows(connection, FLIGHTS, commit_time, max_rows=None)
        forget(connection, FLIGHTS, commit_time, removed)
    for seen in (earlier, during):
        with pytest.raises(VersionNotFound):
            dml.store.rows(FLIGHTS, RowKind.DATA_FILE, write_ids=seen)
        with pytest.raises(VersionNotFound):
            dml.store.partition_moves(FLIGHTS, seen=seen)


def test_a_file_stays_named_although_a_write_of_that_number_was_aborted_in_another_table(
    dml: Dml,
) -> None:
    dml.append("a")
    for table_id in (CANCELLATIONS, FLIGHTS):
        txn_id = dml.begin()
        stage(dml.store, txn_id, table_id, add=[data_file("b")])
        dml.transactions.abort(txn_id)
    with dml.database.read() as connection:
        assert named_for_good(connection, FLIGHTS) == {"a"}


def test_a_row_whose_folder_is_still_to_be_moved_is_not_cleaned(dml: Dml) -> None:
    dml.append("a", "b")
    rows = dml.store.rows(FLIGHTS, RowKind.DATA_FILE, write_ids=None)
    txn_id = dml.begin()
    stage(dml.store, txn_id, FLIGHTS, remove=[row.row_id for row in rows])
    dml.transactions.commit(txn_id)
    move = PartitionMove("p=a", rows[0].row_id, "aside")

    def cleaned() -> list[str]:
        with dml.database.read() as connection:
            removed = removed_rows(connection, FLIGHTS, dml.clock.now(), max_rows=None)
        return [row.name for row in removed]

    with dml.database.write() as connection:
        partition_moves.begin(connection, FLIGHTS, [move])
    assert cleaned() == [rows[1].name]
    with dml.database.write() as connection:
        partition_moves.finish(connection, FLIGHTS, [move])
    assert cleaned() == [row.name for row in rows]
