"""Which removed rows the cleaning takes, and what it records of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from strandline.clock import Timestamp
from strandline.metastore.store import partition_moves
from strandline.metastore.store.partition_moves import PartitionMove
from strandline.metastore.store.removed_rows import RemovedRow, forget, removed_rows
from strandline.metastore.store.rows import RowKind
from tests.metastore.dml import FLIGHTS, Dml, stage


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
