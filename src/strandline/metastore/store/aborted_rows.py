"""Removing what aborted transactions left behind.

Rows of an aborted transaction are never shown, and its write ids stand as exceptions in the
list of every reader of the table. Both cost each read a little, for ever. `AbortedRows` removes the
rows, and then the pairs of transaction and write id. From then on the write id counts as committed
in every list, and shows nothing, because nothing carries it: as Hive has it.

What must stay true: an abort is final, so no row comes under the write id any more. The pair goes
in the same SQL transaction as the last of its rows, or later; never before. One SQL transaction
removes at most `MOST_ROWS` rows, since all writers wait for it. The transaction itself stays, so
that its client can be told that it is aborted. A cache has dropped the rows already, when it heard
of the abort; whether the id is valid for a reader makes no difference there either.

The files that the rows named stay: the client may have named them again in its next transaction.
They are files that no row names, like those of a writer that died before it staged any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from strandline.metastore.store.tables import STORE_REMOVAL, STORE_ROW
from strandline.sql import Database, chunks, first_row, run
from strandline.transactions import TransactionState
from strandline.transactions.tables import TXN_WRITE_ID

MOST_ROWS = 2_000
MOST_PAIRS = 200
"""What one SQL transaction removes at most."""


@dataclass(frozen=True, slots=True)
class AbortedRowsStatistics:
    """Counts since the start: write ids that were cleaned, and rows that were removed for it."""

    write_ids: int
    rows: int
    steps: int


class AbortedRows:
    """See the module. Safe to use from several threads and processes.

    ``guard`` is called inside every write transaction and raises if this process may no longer
    write.
    """

    def __init__(self, database: Database, *, guard: Callable[[Connection], None]) -> None:
        self._database = database
        self._guard = guard
        self._write_ids = self._rows = self._steps = 0

    def clean(self, *, stopped: Callable[[], bool] = lambda: False) -> int:
        """Remove all that is there to remove, in steps, until ``stopped``; the write ids."""
        before = self._write_ids
        while not stopped() and self._step():
            pass
        return self._write_ids - before

    def statistics(self) -> AbortedRowsStatistics:
        """What this process removed."""
        return AbortedRowsStatistics(self._write_ids, self._rows, self._steps)

    def _step(self) -> bool:
        """Remove some; False if there was nothing."""
        with self._database.read() as connection:
            aborted = _aborted(connection)
        if not aborted:
            return False
        table_id, write_ids = aborted
        with self._database.write() as connection:
            self._guard(connection)
            rows = _remove_rows(connection, table_id, write_ids, most=MOST_ROWS)
            is_last = rows < MOST_ROWS
            if is_last:
                pairs = TXN_WRITE_ID.c
                connection.execute(
                    delete(TXN_WRITE_ID).where(
                        pairs.table_id == table_id,
                        pairs.write_id.in_(write_ids),
                        pairs.commit_time.is_(None),
                    )
                )
        self._steps += 1
        self._rows += rows
        self._write_ids += len(write_ids) if is_last else 0
        return True


# Begins at the write ids that are not committed: aborted transactions stay, and become many.
_ABORTED = (
    "SELECT table_id, write_id FROM txn_write_id WHERE commit_time IS NULL"
    " AND (SELECT state FROM txn WHERE txn.txn_id = txn_write_id.txn_id) ="
    f" {TransactionState.ABORTED.value}"
)


def _aborted(connection: Connection) -> tuple[int, Sequence[int]] | None:
    """A table, and some of its write ids that were aborted; None if there are none."""
    first = first_row(connection, f"{_ABORTED} LIMIT 1")
    if first is None:
        return None
    table_id = first[0]
    rows = run(connection, f"{_ABORTED} AND table_id = ? LIMIT {MOST_PAIRS}", (table_id,))
    return table_id, [write_id for _, write_id in rows]


def _remove_rows(
    connection: Connection, table_id: int, write_ids: Sequence[int], *, most: int
) -> int:
    """Delete rows and removals of these write ids, at most ``most`` in all; how many."""
    removed = 0
    for table in (STORE_ROW, STORE_REMOVAL):
        of_writes = table.c.table_id == table_id, table.c.write_id.in_(write_ids)
        statement = select(table.c.row_id).where(*of_writes).limit(most - removed)
        row_ids = connection.execute(statement).scalars().all()
        for chunk in chunks(dict.fromkeys(row_ids)):
            connection.execute(delete(table).where(*of_writes, table.c.row_id.in_(chunk)))
        removed += len(row_ids)
    return removed
