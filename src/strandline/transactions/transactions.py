"""Transactions: begin, write ids, commit, abort, and what each of them sees.

The problem: one job writes several tables, and several jobs run at once in several processes. A
reader must see all of a job's writes or none of them. It must see the same writes for as long as it
reads, now or as of a past time. And the tables' definitions change in the meantime.

The model. A transaction gets an id and a *begin time*. It sees what was committed by then, under
the catalog that was active then. It writes rows under its own *write id* for each table. At its
commit it gets a *commit time*, and from then on its write ids count as committed, all at once. Both
times come from the clock row of the database, inside the SQL transaction that makes them durable.
So commit order, time order and the order of events are one order, which includes DDL.

What must stay true:

* A time that was assigned is below every later commit time. So a snapshot as of T is settled once
  the store's time has reached T, to which `Transactions.ensure_past` advances it.
* An id that was assigned is never assigned to another transaction (`reserved_ids`).
* A state changes once, from open, by one conditional statement. Commit and abort give the same
  answer when they are repeated, and `Transactions.get` tells the outcome of a commit whose answer
  was lost.
* The first committer on a row wins. The other transaction is aborted in its own commit call.
* A commit is validated against the catalog that is active at its commit time. If the log is ahead
  of what this process has applied, nothing is written: the process catches up and takes a new time.
* Every write compares the fence first: if `Database.guard` raises, nothing has happened.
* Listeners write in the SQL transaction of the commit. So each event belongs to a commit that
  happened, and no commit lacks its event.

Begins, allocations of write ids and commits without a write may share one SQL transaction: see
`shared_writes`.

A transaction stays alive as long as heartbeats arrive. `Transactions.expire` aborts silent
transactions. The abort checks the heartbeat again, so one that arrives just before still wins.

Rejected: a begin that takes its snapshot as a list of ids (Hive's way: the list must be sent along,
and cannot answer for a past time); locks (others would have to wait for a writer that died).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Connection

from strandline.clock import Timestamp, milliseconds
from strandline.errors import (
    InvalidInput,
    LimitExceeded,
    ObjectNotFound,
    UnsupportedOperation,
    WriteConflict,
)
from strandline.sql import Query, Row, present_time, run, run_at_commit, take_time, take_time_query
from strandline.transactions import records
from strandline.transactions.holds import watermark_at
from strandline.transactions.list_records import list_of, min_open_txn, seen_by_query
from strandline.transactions.shared_writes import Round, SharedCall
from strandline.transactions.transaction import (
    Heartbeat,
    Step,
    Transaction,
    TransactionStatistics,
    refuse_long_texts,
    require_owner,
)
from strandline.transactions.transaction_ends import TransactionEnds
from strandline.transactions.transaction_reads import DEFAULT_TIMEOUT

MAX_BATCH = 1_000
"""The maximum number of transactions that one call begins, or allocates write ids for."""
MAX_OPEN = 100_000
"""The approximate maximum number of open transactions in a store."""


class Transactions(TransactionEnds):
    """The transactions of one store. Safe for threads, and for several processes on one store."""

    _uncounted = 0
    """How many begins are left until `_require_room` counts again."""
    _crowding_user: str | None = None
    """The user that had its share of `MAX_OPEN` at the last count: its begins are all counted."""

    # -- the life of a transaction

    def begin(
        self,
        *,
        user: str,
        host: str = "",
        agent: str = "",
        read_only: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Transaction:
        """Begin a transaction.

        Raises `DeadlineExceeded` after ``timeout`` seconds, and `LimitExceeded` if `MAX_OPEN`
        transactions are open.
        """
        call = self.beginning(
            1, user=user, host=host, agent=agent, read_only=read_only, timeout=timeout
        )
        (begun,) = call.run()
        return begun

    def beginning(
        self,
        count: int,
        *,
        user: str,
        host: str = "",
        agent: str = "",
        read_only: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> SharedCall[list[Transaction]]:
        """The call that begins ``count`` transactions at one time, all or none, by ascending ids.

        It raises what `begin` raises. This method raises at once `InvalidInput` if ``count`` is
        less than 1 or more than `MAX_BATCH`, and `LimitExceeded` if a text is longer than
        `MAX_CLIENT_TEXT`.
        """
        if not 1 <= count <= MAX_BATCH:
            raise InvalidInput(f"one call begins 1 to {MAX_BATCH} transactions, not {count}")
        refuse_long_texts(user, host, agent)

        def stage(shared: Round, rows: list[Row]) -> Callable[[], list[Transaction]]:
            begin_query = records.begin_query(
                count,
                begin_time=shared.time,
                catalog_version=shared.catalog_version,
                user=user,
                host=host,
                agent=agent,
                read_only=read_only,
                timeout_ms=self._timeout_ms,
                last_heartbeat=self.heartbeats.time(milliseconds(shared.time)),
            )
            begun = run_at_commit(shared.connection, *begin_query)

            def end() -> list[Transaction]:
                transactions = records.added(begun)
                self._count(*["begun"] * count)
                self._note_begun(transactions)
                return transactions

            return end

        return SharedCall(
            stage,
            shared=self._shared,
            timeout=timeout,
            begins=count,
            check=lambda: self._require_room(count, user=user),
        )

    def heartbeat(self, txn_ids: Iterable[int], *, owner: str | None = None) -> Heartbeat:
        """Note that the clients of these transactions are alive; return which are not open.

        It waits for no commit, and no commit waits for it: see `Heartbeats`. Raises
        `ForeignTransaction` if one of them does not belong to ``owner``.
        """
        requested_ids = frozenset(txn_ids)
        with self._database.read() as connection:
            self._database.guard(connection)
            now = milliseconds(present_time(connection, self._clock))
            heartbeat = records.heartbeat(connection, requested_ids, owner=owner)
        self.heartbeats.note(txns=heartbeat.open, at=self.heartbeats.time(now))
        return heartbeat

    def writing(
        self,
        txn_id: int,
        table_id: int,
        *,
        owner: str | None = None,
        first: Callable[[], Sequence[Query]] = tuple,
    ) -> AbstractContextManager[Step]:
        """An open transaction with its write id for a table, inside one SQL transaction.

        What the block stages on the step's connection is durable when the block ends, and undone
        if it raises. ``first`` gives the queries that it runs first, see `GuardedWrites.run`.

        The table must be a transactional table of the catalog under which the transaction began:
        rows under any other table id could never be committed.

        Raises `TransactionNotFound`, `ForeignTransaction` if the transaction does not belong to
        ``owner``, `TransactionFinished`, `ObjectNotFound`, and `UnsupportedOperation` for a table
        that is not transactional and for a read-only transaction.
        """
        return self._writes.opened(
            lambda connection: self._write_on(connection, txn_id, table_id, owner),
            timeout=DEFAULT_TIMEOUT,
            first=lambda: self._step_queries(txn_id, table_id, first()),
            notifies=False,
        )

    def allocate(
        self, txn_ids: Iterable[int], table_id: int, *, owner: str | None = None
    ) -> dict[int, int]:
        """Return the write ids of these transactions for a table, by transaction id; all or none.

        Transactions that have none yet get one, in the order of their ids. Raises what `writing`
        raises, and `InvalidInput` for no transactions or more than `MAX_BATCH`.
        """
        requested_ids = sorted(set(txn_ids))
        if not 1 <= len(requested_ids) <= MAX_BATCH:
            raise InvalidInput(
                f"one call allocates write ids for 1 to {MAX_BATCH} transactions, not for "
                f"{len(requested_ids)}"
            )
        if len(requested_ids) == 1:
            return self.allocating(requested_ids[0], table_id, owner=owner).run() or {}
        write_ids = self._writes.run(
            lambda connection: self._allocate_on(connection, requested_ids, table_id, owner),
            timeout=DEFAULT_TIMEOUT,
            notifies=False,
        )
        self._note_written(*requested_ids)
        return write_ids

    def allocating(
        self, txn_id: int, table_id: int, *, owner: str | None = None, under: int | None = None
    ) -> SharedCall[dict[int, int] | None]:
        """The call that does what `allocate` does, for one transaction.

        Its result is None, and it changes nothing, if the present version of the catalog is not
        ``under``.
        """

        def stage(shared: Round, rows: list[Row]) -> Callable[[], dict[int, int] | None]:
            if under is not None and under != shared.catalog_version:
                return lambda: None
            connection = shared.connection
            transaction, write_id = records.for_table(connection, txn_id, rows)
            require_owner(txn_id, transaction.user, owner=owner)
            self._require_writable(transaction, table_id)
            if write_id is not None:
                return lambda: {txn_id: write_id}
            _, given_rows = [
                run_at_commit(connection, *query)
                for query in records.allocate_one_queries(txn_id, table_id)
            ]

            def end() -> dict[int, int]:
                self._note_written(txn_id)
                ((given_id,),) = given_rows
                return {txn_id: int(given_id)}

            return end

        return SharedCall(
            stage,
            shared=self._shared,
            first_queries=records.find_for_table_queries(txn_id, table_id),
            txn_id=txn_id,
            timeout=DEFAULT_TIMEOUT,
            under_catalog=under is not None,
        )

    @contextmanager
    def autocommit(
        self,
        table_id: int,
        *,
        user: str,
        prepare: Callable[[Connection, int], object] = lambda *_: None,
    ) -> Iterator[Step]:
        """A transaction on one table that begins, writes and commits in one SQL transaction.

        The block stages rows on the step's connection, under the step's write id. When the block
        ends, all of it is committed; if it raises, nothing has happened. Raises what `commit`
        raises. ``prepare`` is called before it with the catalog version, and may raise `Behind`.

        The commit time is the begin time, and its catalog is known. No other time was assigned in
        between. And at the commit, when the block cannot be run again, this process may not know
        the catalog of any time: it may not have looked at the log while the block ran.
        """

        def start(connection: Connection) -> Step:
            now = take_time(connection, self._clock)
            version = self._catalogs.catalog_at(connection, now).version
            prepare(connection, version)
            begin_query = records.begin_query(
                begin_time=now,
                catalog_version=version,
                user=user,
                timeout_ms=self._timeout_ms,
                last_heartbeat=milliseconds(now),
            )
            (begun,) = records.added(run(connection, *begin_query))
            return self._step(connection, begun, table_id, None, now=begun.begin_time)

        with self._writes.opened(start, timeout=DEFAULT_TIMEOUT) as step:
            yield step
            ended = self._commit_open_on(
                step.connection,
                step.transaction,
                ((table_id, step.write_id),),
                at=step.transaction.begin_time,
            )
            if ended.conflict is not None:
                raise WriteConflict(ended.conflict)
        self._count("begun", "committed")

    def statistics(self) -> TransactionStatistics:
        """Counts of what this process did, and what is open in the store."""
        with self._database.read() as connection:
            count = records.open_count(connection)
            oldest = records.oldest_begin(connection)
            min_open = min_open_txn(connection)
            now = present_time(connection, self._clock)
            lowest = watermark_at(connection, now, retention_ms=self._retention_ms())
        with self._counting:
            counts = self._counts.copy()
        heartbeats, unstored = self.heartbeats.counts()
        shared_calls, rounds, waiting_calls = self._shared.counts()
        return TransactionStatistics(
            begun=counts["begun"],
            committed=counts["committed"],
            aborted=counts["aborted"],
            conflicts=counts["conflicts"],
            expired=counts["expired"],
            behind=counts["behind"],
            heartbeats=heartbeats,
            unstored_heartbeats=unstored,
            shared_calls=shared_calls,
            rounds=rounds,
            waiting_calls=waiting_calls,
            open=count,
            oldest_begin=oldest,
            min_open_txn=min_open,
            low_watermark=lowest,
        )

    # -- inside one SQL transaction

    def _require_room(self, count: int, *, user: str) -> None:
        """Raise `LimitExceeded` if ``count`` more transactions of ``user`` would be too many.

        At most `MAX_OPEN` may be open, and three quarters of these may be of one user. The cost of
        counting grows with the number of open transactions. So this process counts again only after
        it has begun a sixteenth of what the last count left: other processes begin transactions,
        too.
        """
        with self._counting:
            self._uncounted -= count
            if self._uncounted >= 0 and user != self._crowding_user:
                return
        share, of_user = MAX_OPEN * 3 // 4, 0
        with self._database.read() as connection:
            open_count = records.open_count(connection)
            if open_count + count > share:
                of_user = records.open_count(connection, users=(' AND "user" = ?', (user,)))
        is_crowding = of_user + count > share
        with self._counting:
            if is_crowding:
                self._crowding_user = user
            elif user == self._crowding_user:
                self._crowding_user = None
        if is_crowding or open_count + count > MAX_OPEN:
            limit = f"{share} of one user may be open" if is_crowding else f"{MAX_OPEN} may be open"
            raise LimitExceeded(
                f"{count} more transactions cannot begin: at most {limit}; commit or abort some, or"
                " wait for those that are silent to time out"
            )
        with self._counting:
            self._uncounted = (MAX_OPEN - open_count) // 16 - count

    def _step_queries(
        self, txn_id: int, table_id: int, following: Sequence[Query]
    ) -> tuple[Query, ...]:
        """The queries of `_write_on` and the ``following``; none if no row can have these ids."""
        find_queries = records.find_for_table_queries(txn_id, table_id)
        return find_queries and (
            *find_queries,
            take_time_query(self._clock),
            seen_by_query(table_id, txn_id),
            *records.allocate_one_queries(txn_id, table_id),
            *following,
        )

    def _write_on(
        self, connection: Connection, txn_id: int, table_id: int, owner: str | None
    ) -> Step:
        """See `writing`. Raises `Behind` if the catalog of the begin is not applied here."""
        find_queries = records.find_for_table_queries(txn_id, table_id)
        rows = [row for query in find_queries for row in run(connection, *query)]
        transaction, write_id = records.for_table(connection, txn_id, rows)
        require_owner(txn_id, transaction.user, owner=owner)
        now = take_time(connection, self._clock)
        if write_id is None:
            self._require_writable(transaction, table_id)
        return self._step(connection, transaction, table_id, write_id, now=now)

    def _step(
        self,
        connection: Connection,
        transaction: Transaction,
        table_id: int,
        write_id: int | None,
        *,
        now: Timestamp,
    ) -> Step:
        """The step of a transaction; allocates its write id for the table if it has none yet."""
        txn_id = transaction.txn_id
        seen = list_of(run(connection, *seen_by_query(table_id, txn_id)))
        is_first = write_id is None
        if write_id is None:
            write_id = records.allocate_one(connection, txn_id, table_id)
        self._note_written(txn_id)
        return Step(
            connection,
            transaction,
            table_id,
            write_id,
            seen.with_own_write(write_id),
            time=now,
            is_first=is_first,
        )

    def _allocate_on(
        self, connection: Connection, txn_ids: list[int], table_id: int, owner: str | None
    ) -> dict[int, int]:
        """`allocate`, for ids in ascending order."""
        writable = records.find_many_for_writing(connection, txn_ids)
        for transaction in writable:
            require_owner(transaction.txn_id, transaction.user, owner=owner)
        write_ids = records.own_write_ids(connection, txn_ids, table_id)
        for transaction in {t.catalog_version: t for t in writable}.values():
            self._require_writable(transaction, table_id)
        missing = [txn_id for txn_id in txn_ids if txn_id not in write_ids]
        if missing:
            write_ids |= records.allocate(connection, missing, table_id)
        return write_ids

    def _require_writable(self, transaction: Transaction, table_id: int) -> None:
        txn_id, version = transaction.txn_id, transaction.catalog_version
        table = self._catalogs.catalog(version).table_by_id(table_id)
        if table is None:
            raise ObjectNotFound(
                f"transaction {txn_id} cannot write table {table_id} (an id): version {version} of "
                "the catalog, which the transaction began under, has no such table; check the id, "
                "or begin another transaction if the table was created since"
            )
        if not table.transactional:
            raise UnsupportedOperation(
                f"transaction {txn_id} cannot write table {table_id}: {table.name} is not "
                "transactional; write it with plain Spark, or create a transactional table"
            )
