"""What can be read about the transactions of a store: states, lists of valid ids, and times.

`TransactionReads` is the part of `Transactions` that changes nothing except the store's time. A
snapshot as of a time is settled once the store's time has reached it, and a reader may have to
advance the store's time to there (`TransactionReads.ensure_past`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.clock import HybridClock, Timestamp, format_timestamp, milliseconds, require_time
from strandline.errors import InvalidInput, TransactionNotFound, VersionNotFound
from strandline.sql import STORED_TIME_QUERY, Database, look_in_order, present_time, stored_time
from strandline.transactions import records
from strandline.transactions.catalog_view import Behind, CatalogView
from strandline.transactions.holders import Holders, read_holders
from strandline.transactions.list_records import (
    UNFINISHED_QUERIES,
    UnfinishedTxns,
    last_commit_query,
    list_of,
    unfinished,
    write_ids_at,
    write_ids_by,
    write_ids_query,
)
from strandline.transactions.records import Wanted
from strandline.transactions.tables import is_id
from strandline.transactions.transaction import Transaction, require_owner
from strandline.transactions.write_ids import ValidTxnList, ValidWriteIdList

DEFAULT_TIMEOUT = 30.0
"""Seconds that a call waits for the database and the catalog unless it names another time-out."""
SETTLED_MS = 1_000
"""The maximum age of a time that counts as the present, in a store that keeps no history."""
_NEXT_COMMIT = "SELECT min(commit_time) FROM txn_write_id WHERE table_id = ? AND commit_time > ?"
_NEXT_AND_USERS = (
    "SELECT next, NULL, NULL FROM next_write_id WHERE table_id = ?"
    ' UNION ALL SELECT own.write_id, own.txn_id, txn."user" FROM txn_write_id AS own'
    " JOIN txn ON txn.txn_id = own.txn_id WHERE own.table_id = ? AND own.commit_time IS NULL"
)
_TXN_OF_WRITE = "SELECT txn_id FROM txn_write_id WHERE table_id = ? AND write_id = ?"


class TransactionReads:
    """See the module docstring."""

    def __init__(
        self,
        database: Database,
        clock: HybridClock,
        *,
        catalogs: CatalogView,
        retention_ms: Callable[[], int],
    ) -> None:
        self._database = database
        self._clock = clock
        self._catalogs = catalogs
        self._retention_ms = retention_ms

    def get(self, txn_id: int) -> Transaction:
        """The transaction as it is now. Raises `TransactionNotFound` if it does not exist."""
        with self._database.read() as connection:
            return records.find(connection, txn_id)

    def write_ids(
        self, table_id: int, *, at: Timestamp | None = None, txn_id: int | None = None
    ) -> ValidWriteIdList:
        """The writes of a table that are visible now, as of ``at``, or to a transaction.

        A transaction sees what was committed by its begin, and its own writes. What is visible as
        of a time never changes. The list carries no table name. Raises `VersionNotFound` if the
        time is in the future, `TransactionNotFound`, `TransactionFinished` if the transaction is
        aborted, and `InvalidInput` if both a time and a transaction are given.
        """
        if txn_id is not None and at is not None:
            raise InvalidInput("name a time or a transaction to read by, not both")
        if at is not None:
            self.ensure_past(at)
        if txn_id is None:
            return list_of(self._database.rows(*write_ids_query(table_id, at=at)))
        with self._database.read() as connection:
            reader = records.find_for_reading(connection, txn_id)
            seen = write_ids_at(connection, table_id, at=reader.begin_time)
            own_write_id = records.own_write_id(connection, txn_id, table_id)
        return seen if own_write_id is None else seen.with_own_write(own_write_id)

    def own_or_committed(
        self, table_id: int, write_ids: ValidWriteIdList, *, owner: str
    ) -> ValidWriteIdList:
        """A list that a client sent, without ids that no transaction has yet.

        Raises `ForeignTransaction` if it sees a write that is not committed, and not of ``owner``:
        no list that was read does.
        """
        hidden = self._database.rows(_NEXT_AND_USERS, (table_id, table_id))
        last_id = 0
        for write_id, txn_id, user in hidden:
            if txn_id is None:
                last_id = write_id - 1
            elif write_ids.valid(write_id):
                require_owner(txn_id, user, owner=owner)
        return write_ids.up_to(last_id)

    def write_ids_as_of(
        self, table_ids: Iterable[int], at: Timestamp
    ) -> dict[int, ValidWriteIdList]:
        """`write_ids` of several tables as of a past time (see `ensure_past`)."""
        requested_ids = list(table_ids)
        answers = self._database.answers(
            [write_ids_query(table_id, at=at) for table_id in requested_ids]
        )
        return dict(zip(requested_ids, map(list_of, answers), strict=True))

    def last_commit(self, table_id: int, *, at: Timestamp | None = None) -> Timestamp | None:
        """The time of the last commit that wrote a table, now or as of ``at``, or None.

        A read as of that time sees exactly the same of the table. ``at`` must be past (see
        `ensure_past`).
        """
        ((time,),) = self._database.rows(*last_commit_query(table_id, at=at))
        return None if time is None else Timestamp(time)

    def next_commit(self, table_id: int, *, after: Timestamp) -> Timestamp | None:
        """The time of the first commit that wrote a table after ``after``, or None by now."""
        rows = self._database.rows(_NEXT_COMMIT, (table_id, after))
        return None if rows[0][0] is None else Timestamp(rows[0][0])

    def refuse_in_a_fork(self) -> None:
        """See `Database.refuse_in_a_fork`."""
        self._database.refuse_in_a_fork()

    def ensure_past(self, at: Timestamp) -> None:
        """Return once no commit, of rows or of DDL, can still get a time at or below ``at``.

        Raises `VersionNotFound` if the clock has not reached the millisecond of ``at``, and
        `InvalidInput` if ``at`` is not a time.
        """
        require_time(at)
        if self.is_past(at):
            return
        present = self._clock.current()
        if milliseconds(at) > milliseconds(present):
            raise VersionNotFound(
                f"{format_timestamp(at)} is in the future: it is now {format_timestamp(present)}; "
                "name a time in the past"
            )
        # A time that names no counter means the end of its millisecond, which may be this one.
        self.settle(at)

    def settle(self, at: Timestamp) -> None:
        """Let the store's time reach ``at``, which a store has given, whatever the clock says."""
        self._clock.update(at)
        look_in_order(self._database, self._clock, self._database.guard, first=())

    def pass_activation(self, at: Timestamp) -> None:
        """Give every later begin and commit a time above ``at``, when a version became active.

        The clocks do so once they have passed ``at``. If the store's time is far ahead of them,
        they have not, and the looks that moved the time of the log leave that of rows as it is.
        """
        if self._clock.ahead_of_wall(at) > 0 and not self.is_past(at):
            self.settle(at)

    def settled(self, *, since: Timestamp) -> Timestamp | None:
        """The store's last time if it may serve as the present, else None.

        No commit that has returned has a later time, and no future commit, of rows or of DDL, gets
        a time at or below it: a write in progress takes its time above it. So its age matters only
        to a reader that holds it later: it may be half the retention, so that the low watermark
        stays below it for the other half. And it may serve only if it is not below ``since``, and
        this process has applied the catalog's log up to it. The call writes nothing and waits for
        no writer. ``since`` is at least the time of the present catalog: if that is in another
        database, or becomes active later than it is appended, this one need not have given a time
        since.
        """
        with self._database.read(
            first=(STORED_TIME_QUERY, *self._catalogs.first_queries)
        ) as connection:
            moment = stored_time(connection)
            age = milliseconds(self._clock.current()) - milliseconds(moment)
            if moment < since or age > max(SETTLED_MS, self._retention_ms() // 2):
                return None
            try:
                self._catalogs.catalog_at(connection, moment)
            except Behind:
                return None
        self._clock.update(moment)
        return moment

    def latest_time(self) -> Timestamp:
        """The last time that this database assigned: no commit that returned has a later one."""
        rows = self._database.rows(*STORED_TIME_QUERY)
        return Timestamp(rows[0][0] if rows else 0)

    def is_past(self, at: Timestamp) -> bool:
        """Whether the store's time has reached ``at``. Waits for no writer."""
        return self.latest_time() >= at

    def write_id_pairs(self, txn_id: int) -> tuple[tuple[int, int], ...]:
        """The (table id, write id) pairs of a transaction. Raises `TransactionNotFound`."""
        answers = self._database.answers(records.find_with_writes_queries(txn_id))
        _, pairs, _ = records.with_writes(txn_id, [row for rows in answers for row in rows])
        return pairs

    # -- queries of Hive's clients

    def unfinished(self) -> UnfinishedTxns:
        """The transactions that are open, or aborted and not yet cleaned up."""
        with self._database.read(first=UNFINISHED_QUERIES) as connection:
            return unfinished(connection)

    def write_ids_by(self, table_id: int, txns: ValidTxnList) -> ValidWriteIdList:
        """The writes of a table that a reader of ``txns`` sees."""
        with self._database.read() as connection:
            return write_ids_by(connection, table_id, txns)

    def txn_with_write_id(self, table_id: int, write_id: int) -> int:
        """The transaction that has this write id of a table. Raises `TransactionNotFound`."""
        query = _TXN_OF_WRITE, (table_id, write_id)
        rows = self._database.rows(*query) if is_id(write_id) else []
        if not rows:
            raise TransactionNotFound(
                f"no transaction has write id {write_id} of table {table_id} (an id), or it was"
                " aborted and cleaned up; name the write id that the transaction got"
            )
        return int(rows[0][0])

    def find_many(self, txn_ids: Iterable[int]) -> dict[int, Transaction]:
        """The transactions that exist among ``txn_ids``, by id."""
        with self._database.read() as connection:
            return records.find_many(connection, txn_ids)

    def holders(self, wanted: Wanted | None = None) -> Holders:
        """The holders that keep history, write ids or locks from others; see `read_holders`."""
        with self._database.read() as connection:
            return read_holders(
                connection,
                now=present_time(connection, self._clock),
                retention_ms=self._retention_ms(),
                wanted=wanted,
            )

    def open_transactions(self, *, limit: int, wanted: Wanted | None = None) -> list[Transaction]:
        """The open transactions, or those of ``wanted`` users, oldest first, at most ``limit``."""
        with self._database.read() as connection:
            users = records.open_users(connection, wanted)
            return records.open_ones(connection, limit=limit, users=users)
