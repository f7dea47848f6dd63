"""Reserved transaction ids: transactions that begin without waiting for the disk.

The problem: a transaction that has written nothing may be lost if its machine crashes. Nothing
depends on it, and its client gets an error that it does not exist. So its begin need not wait for
the disk. But the client has its id, also in the names of files that it has written. So the id must
never be assigned to another transaction.

The model. Ids are reserved in blocks. A begin whose id is reserved does not wait for the disk. A
begin whose id is not reserved waits, and reserves the next block in the same SQL transaction. A
node that starts continues after the block, because any id in it may have been assigned. A node that
ends releases the block, in a write that makes all begins before it durable. So ids have gaps only
after a crash or a kill, or if several nodes share a folder.

What must stay true: **each id that was assigned, and whose begin may be lost, is at most the
reserved id, which is durable.** What a power cut may leave of the writes of a transaction:

* its begin: it is there, or it is not, and then its id is skipped;
* a staging: it waits for the disk, with everything that the log of the database has before it. So
  the begin is there, and all that was staged. If a staging could be lost while its begin is there,
  the commit would succeed without the rows;
* its end: as a staging.

A crash of a database server leaves nodes running that have seen the time of a begin, and have given
it to later reads. There every begin waits (`Database.may_lose_provisional`), and no id is reserved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from strandline.sql import Database, Query, change, change_each, value
from strandline.transactions.catalog_view import GuardedWrites
from strandline.transactions.transaction import TransactionState
from strandline.transactions.transaction_reads import DEFAULT_TIMEOUT

RESERVED_IDS = 256
"""How many transactions begin without waiting for the disk until one waits."""

_RESERVED = "SELECT txn_id FROM txn_reserved"
_PLACEHOLDER = (
    "INSERT INTO txn (txn_id, state, begin_time, catalog_version, last_heartbeat,"
    ' "user", host, agent, read_only, timeout_ms)'
    f" VALUES (?, {TransactionState.ABORTED.value}, 0, 0, 0, '', '', '', ?, 0)"
)

_LAST = "SELECT max(txn_id) FROM txn"
_IS_BEYOND = f"SELECT coalesce(({_LAST}) > ({_RESERVED}), 1)"
"""Whether the last id is not reserved."""


class _NotReserved(Exception):
    """The id could be assigned again if its begin were lost."""


class ReservedIds:
    """See the module docstring. Safe for threads, and for several processes on one store."""

    def __init__(self, database: Database, writes: GuardedWrites) -> None:
        self._database = database
        self._writes = writes

    def begin(
        self,
        begin: Callable[[Connection], None],
        *,
        first: Callable[[], Sequence[Query]],
        timeout: float,
    ) -> None:
        """Run ``begin``, which only begins, in a write that waits for the disk only if needed."""

        def within(connection: Connection) -> None:
            begin(connection)
            if self._database.may_lose_provisional and value(connection, _IS_BEYOND):
                raise _NotReserved

        def reserving(connection: Connection) -> None:
            begin(connection)
            _release(connection)
            up_to = int(value(connection, _LAST) or 0) + RESERVED_IDS
            change_each(
                connection, "INSERT INTO txn_reserved (id, txn_id) VALUES (1, ?)", [(up_to,)]
            )

        try:
            self._writes.run(
                within, timeout=timeout, first=first, notifies=False, is_provisional=True
            )
        except _NotReserved:
            self._writes.run(reserving, timeout=timeout, first=first, notifies=False)

    def skip_lost(self) -> None:
        """Skip all ids that a crash may have lost. For a node that has not begun a transaction."""
        if self._database.rows(_RESERVED):
            self._writes.run(_skip, timeout=DEFAULT_TIMEOUT)

    def release(self) -> None:
        """Make all begins durable, so that the next node continues after the last id."""
        if self._database.rows(_RESERVED):
            self._writes.run(_release, timeout=DEFAULT_TIMEOUT, notifies=False)


def _release(connection: Connection) -> None:
    change(connection, "DELETE FROM txn_reserved")


def _skip(connection: Connection) -> None:
    up_to = int(value(connection, _RESERVED) or 0)
    if value(connection, "SELECT 1 FROM txn WHERE txn_id >= ?", (up_to,)) is None:
        # The database assigns no id that is below one that it has had.
        change(connection, _PLACEHOLDER, (up_to, True))
        change(connection, "DELETE FROM txn WHERE txn_id = ?", (up_to,))
    _release(connection)
