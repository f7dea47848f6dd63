"""The lists of valid ids, built from the rows of transactions and write ids.

A list is built from the ids that are *not* visible: ids that are open or aborted (no commit time),
and ids committed after the requested time. Both are ranges of an index, so the cost of a list grows
with the number of hidden ids, not with the number of ids ever given.

As of a time T, a list sees what was committed at or before T. Commit times are assigned in commit
order, and never at or below a time that was assigned before. So once the store's time has reached
T, no later commit changes the result. Only the split of hidden ids into open and aborted follows
the present.

Hive's clients name no time. They read once which transactions are `unfinished`, make a
`ValidTxnList` from that, and with this list read the writes of each table: `write_ids_by`. An
aborted transaction whose rows are gone is in no list: it counts as committed and has no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from strandline.clock import Timestamp
from strandline.sql import Query, Row, run, run_in, value
from strandline.transactions.transaction import TransactionState
from strandline.transactions.write_ids import ValidTxnList, ValidWriteIdList

_OPEN, _ABORTED = TransactionState.OPEN.value, TransactionState.ABORTED.value
_IS_NEXT = -1
_NEXT_AND_HIDDEN = (
    f"SELECT next, {_IS_NEXT} FROM next_write_id WHERE table_id = ?"
    " UNION ALL SELECT own.write_id, txn.state FROM txn_write_id AS own"
    " JOIN txn ON txn.txn_id = own.txn_id WHERE own.table_id = ? AND own.commit_time IS NULL"
)
_LATER = f"SELECT write_id, {_OPEN} FROM txn_write_id WHERE table_id = ? AND commit_time > ?"
_SEEN_BY = (
    f"{_NEXT_AND_HIDDEN} UNION ALL {_LATER.removesuffix('?')}"
    "(SELECT begin_time FROM txn WHERE txn_id = ?)"
)
_LAST_COMMIT = "SELECT max(commit_time) FROM txn_write_id WHERE table_id = ?"


def write_ids_at(
    connection: Connection, table_id: int, *, at: Timestamp | None
) -> ValidWriteIdList:
    """The writes of a table that were committed at or before ``at``, or by now if ``at`` is None.

    The list's high-water mark is itself committed, or 0.
    """
    return list_of(run(connection, *write_ids_query(table_id, at=at)))


def write_ids_query(table_id: int, *, at: Timestamp | None) -> Query:
    if at is None:
        return _NEXT_AND_HIDDEN, (table_id, table_id)
    return f"{_NEXT_AND_HIDDEN} UNION ALL {_LATER}", (table_id, table_id, table_id, at)


def seen_by_query(table_id: int, txn_id: int) -> Query:
    """The query for the writes of a table that a transaction sees, without its own; `list_of`."""
    return _SEEN_BY, (table_id, table_id, table_id, txn_id)


def list_of(rows: Sequence[Row]) -> ValidWriteIdList:
    """The list in the answer to `write_ids_query` or `seen_by_query`."""
    following = next((number for number, state in rows if state == _IS_NEXT), None)
    if following is None:
        return ValidWriteIdList(hwm=0)
    return ValidWriteIdList.of(
        following - 1,
        open_ids=[w for w, state in rows if state not in (_ABORTED, _IS_NEXT)],
        aborted=[w for w, state in rows if state == _ABORTED],
    ).canonical()


def last_commit_query(table_id: int, *, at: Timestamp | None) -> Query:
    """The query for the time of the last commit that wrote a table by ``at`` (None: by now)."""
    if at is None:
        return _LAST_COMMIT, (table_id,)
    return f"{_LAST_COMMIT} AND commit_time <= ?", (table_id, at)


# -- by Hive's lists

_LAST_TXN = "SELECT coalesce(max(txn_id), 0) FROM txn"
_OLDEST_OPEN = f"SELECT txn_id FROM txn WHERE state = {_OPEN} ORDER BY begin_time, txn_id LIMIT 1"
# The plus keeps SQLite from using an index that finds more rows: all aborted, all of a table.
_UNFINISHED = (
    f"SELECT txn_id, state FROM txn WHERE state = {_OPEN} AND NOT read_only"
    f" UNION SELECT txn_id, state FROM txn WHERE +state = {_ABORTED}"
    " AND txn_id IN (SELECT txn_id FROM txn_write_id WHERE commit_time IS NULL)"
    " ORDER BY txn_id"
)
_FOLLOWING = "SELECT next FROM next_write_id WHERE table_id = ?"
_OF_LATER_TXNS = (
    "SELECT txn_id, write_id FROM txn_write_id WHERE txn_id > ? AND +table_id = ? AND +write_id < ?"
)
_OF_TXNS = "SELECT txn_id, write_id FROM txn_write_id WHERE table_id = ? AND txn_id IN"
_LOWEST = "SELECT txn_id, write_id FROM txn_write_id WHERE table_id = ? ORDER BY write_id LIMIT 1"
_DOWNWARDS = (
    "SELECT txn_id, write_id FROM txn_write_id WHERE table_id = ? AND write_id < ?"
    " ORDER BY write_id DESC LIMIT ?"
)
_MIN_PAIRS, _MAX_PAIRS = 100, 10_000
"""How many pairs a step downwards reads: few at first, because the first is often visible."""


@dataclass(frozen=True, slots=True)
class UnfinishedTxns:
    """The transactions up to ``hwm`` that are open, or aborted with rows that still exist.

    ``txn_ids`` ascend and exclude read-only transactions; ``min_open`` includes them.
    """

    hwm: int
    txn_ids: tuple[int, ...]
    aborted: frozenset[int]
    min_open: int | None


UNFINISHED_QUERIES: Sequence[Query] = ((_UNFINISHED, ()), (_LAST_TXN, ()), (_OLDEST_OPEN, ()))
"""The queries of `unfinished`, in order."""


def min_open_txn(connection: Connection) -> int | None:
    """The smallest id of an open transaction, or None: ids are assigned in order of begin times."""
    txn_id: int | None = value(connection, _OLDEST_OPEN)
    return txn_id


def unfinished(connection: Connection) -> UnfinishedTxns:
    """The transactions that are unfinished now."""
    rows = run(connection, _UNFINISHED)
    return UnfinishedTxns(
        hwm=value(connection, _LAST_TXN),
        txn_ids=tuple(txn_id for txn_id, _ in rows),
        aborted=frozenset(txn_id for txn_id, state in rows if state == _ABORTED),
        min_open=min_open_txn(connection),
    )


def write_ids_by(connection: Connection, table_id: int, txns: ValidTxnList) -> ValidWriteIdList:
    """The writes of a table that a reader of ``txns`` sees.

    The cost grows with the writes since the list was made, and with the list's exceptions.
    """
    following = value(connection, _FOLLOWING, (table_id,))
    if following is None:
        return ValidWriteIdList(hwm=0)
    upper = _down_to_first_visible(connection, table_id, txns, below=following)
    if not upper:  # every write is of a later transaction: the first of them ends the list
        lowest = run(connection, _LOWEST, (table_id,))
        return ValidWriteIdList.derive(None, txns=txns, writes=lowest, next_write_id=following)
    hwm = upper[0][1]
    writes = {*upper, *run(connection, _OF_LATER_TXNS, (txns.hwm, table_id, hwm))}
    writes.update(run_in(connection, _OF_TXNS, txns.exceptions, table_id))
    return ValidWriteIdList.derive(None, txns=txns, writes=writes, next_write_id=following)


def _down_to_first_visible(
    connection: Connection, table_id: int, txns: ValidTxnList, *, below: int
) -> list[tuple[int, int]]:
    """The (transaction, write id) pairs in descending order, from the last that ``txns`` covers.

    They end with the first pair that ``txns`` sees, if any.
    """
    upper: list[tuple[int, int]] = []
    limit = _MIN_PAIRS
    while rows := run(connection, _DOWNWARDS, (table_id, below, limit)):
        for txn_id, write_id in rows:
            if not upper and txn_id > txns.hwm:
                continue
            upper.append((txn_id, write_id))
            if txns.valid(txn_id):
                return upper
        below, limit = rows[-1][1], min(4 * limit, _MAX_PAIRS)
    return upper
