"""The values that describe transactions, and the interface of their listeners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from sqlalchemy import Connection

from strandline.catalog import Catalog
from strandline.clock import Timestamp
from strandline.errors import LimitExceeded, PermissionDenied
from strandline.model.identifiers import normalize
from strandline.sql import Query
from strandline.transactions.write_ids import ValidWriteIdList

MAX_CLIENT_TEXT = 1_000
"""The maximum length, in characters, of each name that a client gives: its user, host, agent."""


class TransactionState(Enum):
    """The state of a transaction. The numbers are stored in the database."""

    OPEN = 0
    COMMITTED = 1
    ABORTED = 2


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction as it was when it was read.

    It sees what was committed up to ``begin_time``, under ``catalog_version``. ``last_heartbeat``
    is in milliseconds since 1970. If no heartbeat arrives for ``timeout_ms``, the transaction may
    be aborted. ``commit_time`` is set exactly when the transaction is committed.
    """

    txn_id: int
    state: TransactionState
    begin_time: Timestamp
    commit_time: Timestamp | None
    catalog_version: int
    last_heartbeat: int
    user: str
    host: str
    agent: str
    read_only: bool
    timeout_ms: int


def refuse_long_texts(*texts: str) -> None:
    """Raise `LimitExceeded` if one of the texts is longer than `MAX_CLIENT_TEXT`.

    One request may begin a thousand transactions, and each of them stores these texts.
    """
    longest = max(map(len, texts))
    if longest > MAX_CLIENT_TEXT:
        raise LimitExceeded(
            "the names of a client's user, host and agent have at most"
            f" {MAX_CLIENT_TEXT} characters; one of these has {longest}"
        )


class ForeignTransaction(PermissionDenied):
    """The transaction does not belong to the user who is given as its owner."""


def require_owner(txn_id: int, user: str, *, owner: str | None) -> None:
    """Raise `ForeignTransaction` unless ``user``, whose transaction this is, is ``owner``.

    ``owner`` None allows any user. The owner of an id that is still free is unknown. So the check
    reads the row that is changed, inside the SQL transaction that changes it, never before.
    """
    if owner is not None and normalize(user) != normalize(owner):
        raise ForeignTransaction(
            f"transaction {txn_id} belongs to another user, and user {owner} is not a superuser; "
            "begin your own transaction"
        )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The transactions of a heartbeat: those that are open, and the others by the reason."""

    open: frozenset[int]
    aborted: frozenset[int]
    committed: frozenset[int]
    missing: frozenset[int]


@dataclass(frozen=True, slots=True)
class Step:
    """An open transaction with its write id for a table, inside the SQL transaction that read it.

    The caller stages rows on ``connection``. Its write lock keeps the transaction open until then.
    ``seen`` lists the writes of the table that the transaction sees, its own included. ``time`` is
    the time of the step. ``is_first`` says that this step allocated the write id, so nothing was
    staged under it before.
    """

    connection: Connection
    transaction: Transaction
    table_id: int
    write_id: int
    seen: ValidWriteIdList
    time: Timestamp
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """Counts of what this process did since it started, and what is open in the store now.

    ``behind`` counts how often a begin or commit had to wait for the catalog to catch up.
    ``heartbeats`` counts those of transactions and locks. ``unstored_heartbeats`` are still only in
    memory. History below ``low_watermark`` may be removed. ``min_open_txn`` is the smallest id of
    an open transaction. ``shared_calls`` were written in ``rounds`` SQL transactions, and
    ``waiting_calls`` wait for one (`strandline.transactions.shared_writes`).
    """

    begun: int
    committed: int
    aborted: int
    conflicts: int
    expired: int
    behind: int
    heartbeats: int
    unstored_heartbeats: int
    shared_calls: int
    rounds: int
    waiting_calls: int
    open: int
    oldest_begin: Timestamp | None
    min_open_txn: int | None
    low_watermark: Timestamp


class TransactionListener(Protocol):
    """Takes part in the end of transactions that wrote.

    Both methods are called inside the SQL transaction that ends the transaction, before it is
    durable. What they do on ``connection`` takes effect with the end or not at all, and an
    exception undoes everything. ``writes`` holds the (table id, write id) pairs of a transaction,
    at least one. `aborting` gets the pairs of all transactions that are aborted together, by
    transaction id, in ascending order.
    """

    @property
    def first_queries(self) -> Sequence[Query]:
        """The queries that `committing` runs on its connection."""

    def committing(
        self,
        connection: Connection,
        transaction: Transaction,
        *,
        time: Timestamp,
        writes: Sequence[tuple[int, int]],
        catalog: Catalog,
    ) -> None: ...

    def aborting(
        self, connection: Connection, writes: Mapping[int, Sequence[tuple[int, int]]]
    ) -> None: ...
