"""Removing transactions that ended long ago, with their write ids.

Each transaction leaves a row, and each of its writes a pair of a table and a write id. If they
stayed, there would be as many as statements that ever ran. A transaction goes when it ended before
a limit and none of its pairs is needed. A pair is needed while a row or a removal names it, and for
the reasons below; those of tables that no kept version of the catalog has are not.

From then on, the write id counts as committed in every list. This changes no answer, because no row
has it; `aborted_rows` does the same. A client that asks for the outcome of the transaction learns
that there is none of this id. So the limit is at least `OUTCOME_KEPT_MS` ago.

What must stay true:

* The last pair of a table up to the limit stays. A reader whose list lacks any of the removed pairs
  lacks this one too. So it is still refused if rows that it would see have been cleaned
  (`row_queries.require_kept`). Because the refusal looks at the pairs up to the last cleaning of
  the table, the last one of these stays as well.
* The first pair of a table stays: only before it was the table empty.
* The transaction with the largest id stays: new ids continue after it.
* The SQL transaction that deletes tests all of this again: meanwhile, another node may have cleaned
  rows of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from strandline.clock import Timestamp, milliseconds
from strandline.sql import Database, change, in_lists, marks, run
from strandline.transactions import TransactionState

OUTCOME_KEPT_MS = 24 * 60 * 60 * 1000
"""How long a client can ask for the outcome of its transaction, at the least."""
MAX_READ = 10_000
"""The maximum number of transactions that one statement reads. It deletes fewer: `in_lists`."""

_IS_UNNEEDED = (
    "NOT EXISTS (SELECT 1 FROM store_row AS stored"
    " WHERE stored.table_id = own.table_id AND stored.write_id = own.write_id)"
    " AND NOT EXISTS (SELECT 1 FROM store_removal AS removal"
    " WHERE removal.table_id = own.table_id AND removal.write_id = own.write_id)"
    " AND (NOT EXISTS (SELECT 1 FROM next_write_id AS known WHERE known.table_id = own.table_id)"
    " OR own.commit_time >"
    " (SELECT min(first.commit_time) FROM txn_write_id AS first"
    " WHERE first.table_id = own.table_id)"
    " AND EXISTS (SELECT 1 FROM txn_write_id AS later"
    " WHERE later.table_id = own.table_id AND later.commit_time > own.commit_time"
    " AND later.commit_time <= coalesce((SELECT up_to FROM cleaned_table AS cleaned"
    " WHERE cleaned.table_id = own.table_id AND cleaned.up_to >= own.commit_time), ?)))"
)
"""Whether a pair ``own`` is unneeded, if it was committed up to the limit, which is a parameter."""
_OLD = (
    f"SELECT txn_id FROM txn WHERE state <> {TransactionState.OPEN.value}"
    " AND coalesce(commit_time, 0) <= ? AND last_heartbeat <= ?"
    " AND txn_id < (SELECT max(txn_id) FROM txn) AND NOT EXISTS (SELECT 1 FROM txn_write_id AS own"
    f" WHERE own.txn_id = txn.txn_id AND ({_IS_UNNEEDED}) IS NOT TRUE)"
)


class OldTransactions:
    """See the module. Safe for threads, and for several processes on one store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def clean(
        self,
        limit: Timestamp,
        *,
        dry_run: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> int:
        """Remove the transactions that ended up to ``limit``, until ``stopped``; return how many.

        A ``dry_run`` counts them, except those that wrote only tables that are in no kept version.
        """
        count = 0
        for txn_ids in self._old(limit):
            if stopped():
                break
            count += len(txn_ids)
            if not dry_run:
                self._forget(txn_ids, limit)
        return count

    def _old(self, limit: Timestamp) -> Iterator[list[int]]:
        """The transactions that can be removed, in parts."""
        txn_ids = [0]
        while txn_ids:
            query = f"{_OLD} AND txn_id > ? ORDER BY txn_id LIMIT {MAX_READ}"
            with self._database.read() as connection:  # it may take long: no writer waits for it
                rows = run(connection, query, (*_parameters(limit), txn_ids[-1]))
            txn_ids = [txn_id for (txn_id,) in rows]
            yield txn_ids

    def _forget(self, txn_ids: Sequence[int], limit: Timestamp) -> None:
        for in_list, some_ids in in_lists(txn_ids):
            with self._database.guarded_write() as connection:
                rows = run(
                    connection,
                    f"{_OLD} AND txn_id IN {in_list}",
                    (*_parameters(limit), *some_ids),
                )
                old = tuple(txn_id for (txn_id,) in rows)
                if old:
                    for name in ("txn_write_id", "txn"):
                        change(connection, f"DELETE FROM {name} WHERE txn_id IN {marks(old)}", old)


def _parameters(limit: Timestamp) -> tuple[int, ...]:
    """The parameters of `_OLD`."""
    return limit, milliseconds(limit), limit
