"""How transactions end: committed, aborted by a client, or aborted because they were silent.

Each end is one conditional statement, from open, in a write transaction with all that belongs to
it: times, events, footprints, locks. `strandline.transactions.transactions` states what must stay
true.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from strandline import faults
from strandline.clock import HybridClock, Timestamp, format_timestamp, milliseconds
from strandline.errors import Fenced, Stopping, TransactionFinished, Unavailable, WriteConflict
from strandline.logs import fields
from strandline.sql import Database, Row, present_time, run, take_time, take_time_query
from strandline.transactions import records
from strandline.transactions.catalog_view import CatalogView, GuardedWrites
from strandline.transactions.conflicts import (
    NameRow,
    catalog_conflict,
    clashing_rows_queries,
    row_conflict,
)
from strandline.transactions.heartbeats import Heartbeats
from strandline.transactions.holds import Holds
from strandline.transactions.locks import Locks
from strandline.transactions.reserved_ids import ReservedIds
from strandline.transactions.shared_writes import Round, SharedCall, SharedWrites
from strandline.transactions.tables import PART
from strandline.transactions.transaction import (
    Transaction,
    TransactionListener,
    TransactionState,
    require_owner,
)
from strandline.transactions.transaction_reads import DEFAULT_TIMEOUT, TransactionReads

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 300_000
DEFAULT_HISTORY_RETENTION_MS = 7 * 24 * 60 * 60 * 1000
_ABORTED_TOGETHER = 50
"""How many transactions one write aborts: other writers wait for it."""
_MAX_UNWRITTEN = 10_000


@dataclass(frozen=True, slots=True)
class End:
    """The result of a commit or abort: the transaction, whether it changed, and any conflict.

    With a conflict, ``transaction`` is as it was before it was aborted.
    """

    transaction: Transaction
    changed: bool
    conflict: str | None = None


class TransactionEnds(TransactionReads):
    """See the module. ``listeners`` take part in the end of each transaction that wrote.

    ``timeout_ms`` is how long a transaction lives without a heartbeat. ``holds`` and ``locks`` are
    those of the same store. ``has_own_times`` says that the catalog is in another database, which
    assigns the times of its versions.
    """

    def __init__(
        self,
        database: Database,
        clock: HybridClock,
        *,
        catalogs: CatalogView,
        listeners: Iterable[TransactionListener] = (),
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        monotonic: Callable[[], float] = time.monotonic,
        history_retention_ms: Callable[[], int] = lambda: DEFAULT_HISTORY_RETENTION_MS,
        name_row: NameRow = lambda *_: None,
        has_own_times: bool = False,
    ) -> None:
        database.ensure_schema(PART)
        super().__init__(database, clock, catalogs=catalogs, retention_ms=history_retention_ms)
        self.has_own_times = has_own_times
        self.holds = Holds(
            database,
            clock,
            history_retention_ms=history_retention_ms,
            monotonic=monotonic,
        )
        self._writes = GuardedWrites(
            database, catalogs=catalogs, on_behind=lambda: self._count("behind")
        )
        self.reserved_ids = ReservedIds(database, self._writes)
        self._shared = SharedWrites(
            clock, writes=self._writes, catalogs=catalogs, reserved_ids=self.reserved_ids
        )
        self.heartbeats = Heartbeats(database, timeout_ms=timeout_ms, monotonic=monotonic)
        self.locks = Locks(database, clock, heartbeats=self.heartbeats, timeout_ms=timeout_ms)
        self._timeout_ms = timeout_ms
        self._listeners = tuple(listeners)
        self._first_of_listeners = [query for of in self._listeners for query in of.first_queries]
        self._name_row = name_row
        self._unwritten: dict[int, None] = {}
        """See `is_unwritten`; in the order of insertion."""
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()

    def commit(
        self, txn_id: int, *, owner: str | None = None, timeout: float = DEFAULT_TIMEOUT
    ) -> Transaction:
        """Commit a transaction. Repeated on a committed one, it gives the same answer.

        Raises `TransactionNotFound`; `ForeignTransaction` if the transaction does not belong to
        ``owner``; `TransactionFinished` if it is aborted; `WriteConflict`, after which it is
        aborted; `DeadlineExceeded` or whatever a listener raised, after which it is still open.
        """
        end = time.monotonic() + timeout
        if not self.is_unwritten(txn_id):
            faults.reached("commit-sent")
        elif committed := self.committing(txn_id, owner=owner, timeout=timeout).run():
            return committed
        ended = self._writes.run(
            lambda connection: self._commit_on(connection, txn_id, owner),
            timeout=max(end - time.monotonic(), 0.0),
            first=lambda: (
                take_time_query(self._clock),
                *records.find_with_writes_queries(txn_id),
                *self._catalogs.first_queries,
                *clashing_rows_queries(txn_id),
                *self._first_of_listeners,
            ),
        )
        if ended.conflict is not None:
            self._count("conflicts", "aborted")
            raise WriteConflict(ended.conflict)
        faults.reached("commit-durable")
        if ended.changed:
            self._count("committed")
        return ended.transaction

    def committing(
        self,
        txn_id: int,
        *,
        owner: str | None = None,
        under: int | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> SharedCall[Transaction | None]:
        """The call that does what `commit` does, for a transaction without write ids.

        Its result is None, and it changes nothing, if the transaction has write ids, or if the
        present version of the catalog is not ``under``.
        """
        faults.reached("commit-sent")

        def stage(shared: Round, rows: list[Row]) -> Callable[[], Transaction | None]:
            if under is not None and under != shared.catalog_version:
                return lambda: None
            transaction, writes, has_locks = records.with_writes(txn_id, rows)
            require_owner(txn_id, transaction.user, owner=owner)
            if _is_committed(transaction):
                return lambda: transaction
            if writes:
                return lambda: None
            committed = records.mark_committed(
                shared.connection,
                transaction,
                at=shared.time,
                has_writes=False,
                has_locks=has_locks,
            )

            def end() -> Transaction | None:
                faults.reached("commit-durable")
                self._count("committed")
                self._note_written(txn_id)
                return committed

            return end

        return SharedCall(
            stage,
            shared=self._shared,
            first_queries=records.find_with_writes_queries(txn_id),
            txn_id=txn_id,
            timeout=timeout,
            under_catalog=under is not None,
        )

    def is_unwritten(self, txn_id: int) -> bool:
        """Whether this process remembers that it began the transaction and assigned it no write id.

        Another process may have given it one.
        """
        with self._counting:
            return txn_id in self._unwritten

    def _note_begun(self, transactions: Iterable[Transaction]) -> None:
        with self._counting:
            self._unwritten |= dict.fromkeys(transaction.txn_id for transaction in transactions)
            while len(self._unwritten) > _MAX_UNWRITTEN:
                del self._unwritten[next(iter(self._unwritten))]

    def _note_written(self, *txn_ids: int) -> None:
        """Note that the transactions have a write id, or have ended."""
        with self._counting:
            for txn_id in txn_ids:
                self._unwritten.pop(txn_id, None)

    def abort(self, txn_id: int, *, owner: str | None = None) -> Transaction:
        """Abort a transaction. Repeated on an aborted one, it gives the same answer.

        Raises `TransactionNotFound`, `ForeignTransaction` if the transaction does not belong to
        ``owner``, or `TransactionFinished` if it is committed.
        """

        def end(connection: Connection) -> End:
            present = records.find(connection, txn_id)
            require_owner(txn_id, present.user, owner=owner)
            aborted = self._abort_on(connection, [txn_id])
            return End(aborted[0] if aborted else present, changed=bool(aborted))

        ended = self._writes.run(end, timeout=DEFAULT_TIMEOUT)
        transaction = ended.transaction
        if transaction.state is TransactionState.COMMITTED:
            raise TransactionFinished(
                f"transaction {txn_id} cannot be aborted: it {records.ending(transaction)}"
            )
        if ended.changed:
            self._count("aborted")
        self._note_written(txn_id)
        return transaction

    def abort_all(self, txn_ids: Iterable[int], *, owner: str | None = None) -> list[int]:
        """Abort those of the transactions that are open; return their ids. Ignores the others.

        Raises `ForeignTransaction`, and aborts none, if one of them does not belong to ``owner``.
        """
        requested_ids = frozenset(txn_ids)
        with self._database.read() as connection:
            heartbeat = records.heartbeat(connection, requested_ids, owner=owner)
        aborted: list[int] = []
        for chunk in _in_parts(sorted(heartbeat.open)):

            def end(connection: Connection, chunk: Sequence[int] = chunk) -> list[int]:
                return [ended.txn_id for ended in self._abort_on(connection, chunk)]

            ended = self._writes.run(end, timeout=DEFAULT_TIMEOUT)
            self._count(*["aborted"] * len(ended))
            self._note_written(*ended)
            aborted += ended
        return aborted

    def expire(self) -> list[int]:
        """Abort transactions that were silent for longer than their time-out; return their ids.

        A transaction that cannot be aborted is logged; the next call tries it again. Also deletes
        silent locks, and footprints that can no longer conflict with any open transaction.
        """
        self.holds.outlast_leap()
        self.heartbeats.store()
        self.locks.expire()
        with self._database.read() as connection:
            present = milliseconds(present_time(connection, self._clock))
            heard_until = self.heartbeats.heard_until(present)
            candidates = records.silent(connection, at=heard_until)
        expired: list[int] = []
        for chunk in _in_parts(candidates):
            expired += self._expire_together(chunk, silent_at=heard_until)
        with self._database.read() as connection:
            stale = records.has_stale_footprint(connection)
        while stale:
            stale = self._writes.run(records.forget_footprints, timeout=DEFAULT_TIMEOUT)
        return expired

    @property
    def aborts(self) -> int:
        """How many transactions this process aborted; read from memory."""
        with self._counting:
            return self._counts["aborted"]

    def _commit_on(self, connection: Connection, txn_id: int, owner: str | None) -> End:
        """Commit a transaction, or abort it and return the conflict that was the reason."""
        commit_time = take_time(connection, self._clock)
        find_queries = records.find_with_writes_queries(txn_id)
        rows = [row for query in find_queries for row in run(connection, *query)]
        transaction, writes, has_locks = records.with_writes(txn_id, rows)
        require_owner(txn_id, transaction.user, owner=owner)
        if _is_committed(transaction):
            return End(transaction, changed=False)
        return self._commit_open_on(
            connection, transaction, writes, at=commit_time, has_locks=has_locks
        )

    def _commit_open_on(
        self,
        connection: Connection,
        transaction: Transaction,
        writes: Sequence[tuple[int, int]],
        *,
        at: Timestamp,
        has_locks: bool = False,
    ) -> End:
        """`_commit_on` for a transaction that was read on this connection and is open."""
        txn_id = transaction.txn_id
        conflict = None
        if writes:
            base = now = self._catalogs.catalog(transaction.catalog_version)
            if at != transaction.begin_time:  # which it is in `autocommit`
                now = self._catalogs.catalog_at(connection, at)
            tables = [table_id for table_id, _ in writes]
            conflict = catalog_conflict(tables, base=base, now=now) or row_conflict(
                connection, transaction, catalog=base, name_row=self._name_row
            )
        if conflict is None:
            for listener in self._listeners if writes else ():
                listener.committing(connection, transaction, time=at, writes=writes, catalog=now)
            committed = records.mark_committed(
                connection, transaction, at=at, has_writes=bool(writes), has_locks=has_locks
            )
            return End(committed, changed=True)
        self._abort_on(connection, [txn_id])
        reason = (
            f"transaction {txn_id}, which began at {format_timestamp(transaction.begin_time)}, was"
            f" aborted at its commit: {conflict}; begin again"
        )
        return End(transaction, changed=True, conflict=reason)

    def _abort_on(
        self, connection: Connection, txn_ids: Sequence[int], *, silent_at: int | None = None
    ) -> list[Transaction]:
        """Abort those that are open (and, with ``silent_at``, silent); return these, by id."""
        aborted = records.mark_aborted(connection, txn_ids, silent_at=silent_at)
        if aborted:
            ended = [transaction.txn_id for transaction in aborted]
            # Release 0.2.0 assigned write ids for table ids that no table can have.
            records.forget_impossible_writes(connection, ended)
            writes = records.write_ids_of(connection, ended)
            for listener in self._listeners if writes else ():
                listener.aborting(connection, writes)
        return aborted

    def _expire_together(self, txn_ids: Sequence[int], *, silent_at: int) -> list[int]:
        """Abort, in one write, those transactions that are still silent; return their ids.

        If one of them cannot be aborted, each is tried by itself, and that one is logged.
        """

        def end(connection: Connection) -> list[int]:
            self.heartbeats.write_txns(connection, txn_ids)
            aborted = self._abort_on(connection, txn_ids, silent_at=silent_at)
            return [transaction.txn_id for transaction in aborted]

        try:
            expired = self._writes.run(end, timeout=DEFAULT_TIMEOUT)
        except (Fenced, Stopping, Unavailable):
            raise  # the other transactions would fail as well
        except Exception:
            if len(txn_ids) > 1:
                return [
                    expired
                    for txn_id in txn_ids
                    for expired in self._expire_together([txn_id], silent_at=silent_at)
                ]
            logger.exception(
                "transaction %d has timed out, but cannot be aborted; next attempt soon",
                txn_ids[0],
            )
            return []
        if expired:
            logger.info(
                "aborted transactions whose clients sent no heartbeat for their time-out: %s",
                ", ".join(map(str, expired)),
                extra=fields(count=len(expired)),  # the line of thousands is cut
            )
        self._count(*["expired", "aborted"] * len(expired))
        self._note_written(*expired)
        return expired

    def _count(self, *events: str) -> None:
        with self._counting:
            self._counts.update(events)


def _is_committed(transaction: Transaction) -> bool:
    """Whether the transaction is committed. Raises `TransactionFinished` if it is aborted."""
    if transaction.state is TransactionState.ABORTED:
        raise TransactionFinished(
            f"transaction {transaction.txn_id} cannot be committed: it"
            f" {records.ending(transaction)}; begin another"
        )
    return transaction.state is TransactionState.COMMITTED


def _in_parts(txn_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(txn_ids), _ABORTED_TOGETHER):
        yield txn_ids[start : start + _ABORTED_TOGETHER]
