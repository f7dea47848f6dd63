"""A store for tests of transactions: a real database, a manual clock and a manual fence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection

from strandline.catalog import Catalog
from strandline.clock import HybridClock, Timestamp
from strandline.errors import Fenced
from strandline.sql import Query, open_database, stored_time
from strandline.transactions import Transaction, Transactions, records
from strandline.transactions.transaction import TransactionListener
from strandline.transactions.transaction_ends import DEFAULT_HISTORY_RETENTION_MS
from strandline.transactions.write_ids import ValidTxnList
from tests.servers.sqlite import sqlite_url
from tests.sql.statements import contents_of
from tests.transactions.catalogs import Catalogs, new_table

START_MS = 1_700_000_000_000
FLIGHTS, CANCELLATIONS = 1, 2


class Store:
    """The parts that a node would hold. ``wall_ms`` is the wall clock, ``fenced`` the fence.

    ``leapt_ms`` is how much of the clock's move was a leap, in which the process did not run.
    """

    def __init__(self, address: Path | str) -> None:
        self.wall_ms = START_MS
        self.leapt_ms = 0
        self.fenced = False
        self.retention_ms = DEFAULT_HISTORY_RETENTION_MS
        self.address = address if isinstance(address, str) else sqlite_url(address)
        self.database = open_database(self.address)
        self.database.guard = self.guard
        self.clock = HybridClock(lambda: self.wall_ms, max_ahead_ms=1 << 40)
        self.catalogs = Catalogs()
        self.catalogs.publish(
            new_table(FLIGHTS, "flights"), new_table(CANCELLATIONS, "cancellations")
        )
        self.transactions = self.heard_by()

    def guard(self, connection: Connection) -> None:
        if self.fenced:
            raise Fenced("a newer holder has opened the store; nothing was written")

    def heard_by(self, *listeners: TransactionListener) -> Transactions:
        """Return the transactions of this store, with these listeners."""
        return Transactions(
            self.database,
            self.clock,
            catalogs=self.catalogs,
            listeners=listeners,
            history_retention_ms=lambda: self.retention_ms,
            monotonic=lambda: (self.wall_ms - self.leapt_ms) / 1000,
        )

    def leap(self, milliseconds: int) -> None:
        """Move the wall clock while the process does not run, or runs for no time."""
        self.wall_ms += milliseconds
        self.leapt_ms += milliseconds

    def begin(self, *, writing: Iterable[int] = (), read_only: bool = False) -> int:
        """Begin a transaction with write ids of these tables."""
        txn_id = self.transactions.begin(user="ann", read_only=read_only).txn_id
        for table_id in writing:
            self.allocate(txn_id, table_id)
        return txn_id

    def allocate(self, txn_id: int, table_id: int) -> int:
        """Return the transaction's write id of a table, allocated as staging allocates it."""
        with self.transactions.writing(txn_id, table_id) as step:
            return step.write_id

    def change_rows(self, txn_id: int, *row_ids: int, table_id: int = FLIGHTS) -> None:
        """Add rows to the footprint of a transaction."""
        with self.database.write() as connection:
            records.find_many_for_writing(connection, [txn_id])
            records.add_footprint(connection, txn_id, table_id, frozenset(row_ids))

    def txns_seen_by(self, txn_id: int = 0) -> ValidTxnList:
        """Return the list of a transaction, or of a reader outside of any, as Hive's clients do."""
        unfinished = self.transactions.unfinished()
        return ValidTxnList.derive(
            unfinished.hwm,
            unfinished=unfinished.txn_ids,
            aborted=unfinished.aborted,
            current=txn_id,
        )

    def contents(self) -> dict[str, list[tuple[object, ...]]]:
        """Return every row of every table of the database."""
        return contents_of(self.database)


@dataclass
class Recorder:
    """A listener that records its calls in a table of the same database, and fails on demand."""

    fail: bool = False
    heard: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def first_queries(self) -> Sequence[Query]:
        return ()

    def committing(
        self,
        connection: Connection,
        transaction: Transaction,
        *,
        time: Timestamp,
        writes: Sequence[tuple[int, int]],
        catalog: Catalog,
    ) -> None:
        assert stored_time(connection) == time
        self._note(connection, "commit", transaction.txn_id, writes)

    def aborting(
        self, connection: Connection, writes: Mapping[int, Sequence[tuple[int, int]]]
    ) -> None:
        for txn_id, pairs in writes.items():
            self._note(connection, "abort", txn_id, pairs)

    def _note(
        self,
        connection: Connection,
        verb: str,
        txn_id: int,
        writes: Sequence[tuple[int, int]],
    ) -> None:
        self.heard.append((verb, txn_id, tuple(writes)))
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS note (txn_id INTEGER)")
        connection.exec_driver_sql(f"INSERT INTO note VALUES ({txn_id})")
        if self.fail:
            raise RuntimeError("the listener failed")
