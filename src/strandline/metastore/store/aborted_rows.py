"""Removing the rows and write ids of aborted transactions.

Rows of an aborted transaction are never visible, and its write ids are exceptions in the list of
every reader of the table. Both cost each read a little, for ever. `AbortedRows` removes the rows,
and then the pairs of transaction and write id. From then on, the write id counts as committed in
every list, which changes no answer, because no row has it. Hive does the same.

What must stay true: an abort is final, so no row is added under the write id any more. A pair is
removed in the same SQL transaction as its last row, or later, and never before. One SQL transaction
removes at most `MAX_ROWS` rows, since all writers wait for it. The transaction itself stays for a
while (`old_transactions`), so that its client can learn that it was aborted. A cache dropped the
rows when it applied the abort; there, too, it makes no difference whether the id is valid for a
reader.

The files of the rows stay, since the client may have staged them again in its next transaction.
Otherwise they are leftovers (`cleaning`), like the files of a writer that died before it staged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from strandline.sql import Database, change, first_row, marks, run
from strandline.transactions import TransactionState

MAX_ROWS = 2_000
MAX_PAIRS = 200
"""The maximum numbers of rows, and of pairs of one table, that one SQL transaction removes."""


class AbortedRows:
    """See the module. Safe to use from several threads and processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def clean(self, *, stopped: Callable[[], bool] = lambda: False) -> int:
        """Remove all that can be removed, until ``stopped``; return the number of write ids."""
        count = 0
        while not stopped() and (removed := self._step()) is not None:
            count += removed
        return count

    def _step(self) -> int | None:
        """Run one SQL transaction; return the number of write ids, or None if there were none."""
        with self._database.read() as connection:
            aborted = _aborted(connection)
        if not aborted:
            return None
        table_id, write_ids = aborted
        with self._database.guarded_write() as connection:
            is_last = _remove_rows(connection, table_id, write_ids) < MAX_ROWS
            if is_last:
                pairs = f"table_id = ? AND write_id IN {marks(write_ids)} AND commit_time IS NULL"
                change(
                    connection, f"DELETE FROM txn_write_id WHERE {pairs}", (table_id, *write_ids)
                )
        return len(write_ids) if is_last else 0


# Starts from uncommitted write ids: aborted transactions stay for long, and become many.
_ABORTED = (
    "SELECT table_id, write_id FROM txn_write_id WHERE commit_time IS NULL"
    " AND (SELECT state FROM txn WHERE txn.txn_id = txn_write_id.txn_id) ="
    f" {TransactionState.ABORTED.value}"
)


def _aborted(connection: Connection) -> tuple[int, Sequence[int]] | None:
    """A table with some of its aborted write ids, or None if there are none."""
    first = first_row(connection, f"{_ABORTED} LIMIT 1")
    if first is None:
        return None
    table_id = first[0]
    rows = run(connection, f"{_ABORTED} AND table_id = ? LIMIT {MAX_PAIRS}", (table_id,))
    return table_id, [write_id for _, write_id in rows]


def _remove_rows(connection: Connection, table_id: int, write_ids: Sequence[int]) -> int:
    """Delete at most `MAX_ROWS` rows and removals of these write ids; return how many."""
    removed = 0
    of_writes = f"table_id = ? AND write_id IN {marks(write_ids)}"
    ids = (table_id, *write_ids)
    for name in ("store_row", "store_removal"):
        some_ids = f"SELECT row_id FROM {name} WHERE {of_writes} LIMIT ?"
        statement = f"DELETE FROM {name} WHERE {of_writes} AND row_id IN ({some_ids})"
        removed += change(connection, statement, (*ids, *ids, MAX_ROWS - removed))
    return removed
