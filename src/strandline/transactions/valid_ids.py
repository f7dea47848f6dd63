"""Reading lists of valid write ids from the tables.

A list is built from what is *not* in it: ids that are open or aborted (no commit time), and ids
that were committed after the moment asked for. Both are ranges of an index on the commit time, so
a list costs by the ids that are hidden, not by the ids ever given.

As of a time T a list sees what was committed at or before T. Commit times are given in commit
order, and never at or below a time that was given before; so once the store's time has reached T,
no later commit changes the answer. Only the split of hidden ids into open and aborted follows the
present.
"""

from __future__ import annotations

from sqlalchemy import Connection

from strandline.clock import Timestamp
from strandline.sql import run
from strandline.transactions.transaction import TransactionState
from strandline.transactions.write_ids import ValidWriteIdList

_OPEN = TransactionState.OPEN.value
_ABORTED = TransactionState.ABORTED.value
_IS_NEXT = -1
_NEXT_AND_HIDDEN = (
    f"SELECT next, {_IS_NEXT} FROM next_write_id WHERE table_id = ?"
    " UNION ALL SELECT own.write_id, txn.state FROM txn_write_id AS own"
    " JOIN txn ON txn.txn_id = own.txn_id WHERE own.table_id = ? AND own.commit_time IS NULL"
)
_LATER = f"SELECT write_id, {_OPEN} FROM txn_write_id WHERE table_id = ? AND commit_time > ?"


def write_ids_at(
    connection: Connection, table_id: int, *, at: Timestamp | None
) -> ValidWriteIdList:
    """The writes of a table that were committed at or before ``at``; None: by now.

    Its high-water mark is itself committed, or 0.
    """
    if at is None:
        rows = run(connection, _NEXT_AND_HIDDEN, (table_id, table_id))
    else:
        parameters = (table_id, table_id, table_id, at)
        rows = run(connection, f"{_NEXT_AND_HIDDEN} UNION ALL {_LATER}", parameters)
    following = next((number for number, state in rows if state == _IS_NEXT), None)
    if following is None:
        return ValidWriteIdList(hwm=0)
    return ValidWriteIdList.of(
        following - 1,
        open_ids=[w for w, state in rows if state not in (_ABORTED, _IS_NEXT)],
        aborted=[w for w, state in rows if state == _ABORTED],
    ).canonical()
