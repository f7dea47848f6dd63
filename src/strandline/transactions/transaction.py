"""The values that transactions are spoken about in, and their listeners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from sqlalchemy import Connection

from strandline.clock import Timestamp
from strandline.errors import LimitExceeded, PermissionDenied
from strandline.model.identifiers import normalize
from strandline.sql import Query
from strandline.transactions.catalog_view import CatalogVersion
from strandline.transactions.write_ids import ValidWriteIdList

MAX_CLIENT_TEXT = 1_000
"""The characters of a name that a client gives of itself, at most: its host, its agent."""


class TransactionState(Enum):
    """The numbers are what is stored."""

    OPEN = 0
    COMMITTED = 1
    ABORTED = 2


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction as it stood when it was read.

    It sees what was committed up to ``begin_time``, under ``catalog_version``. ``last_heartbeat``
    is in milliseconds since 1970; without another for ``timeout_ms`` it may be aborted.
    ``commit_time`` is there exactly when it is committed.
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
    """Raise `LimitExceeded` for a longer text of a client than `MAX_CLIENT_TEXT`.

    One request may begin a thousand transactions, each of which keeps the text.
    """
    longest = max(map(len, texts))
    if longest > MAX_CLIENT_TEXT:
        raise LimitExceeded(
            "the names of a client's user, host and agent have at most"
            f" {MAX_CLIENT_TEXT} characters, this one has {longest}"
        )


class ForeignTransaction(PermissionDenied):
    """The transaction is not that of the user who was said to own it."""


def require_owner(txn_id: int, user: str, *, owner: str | None) -> None:
    """Raise `ForeignTransaction` unless the transaction, which is ``user``'s, is of that owner.

    Of an id that is free yet nobody can tell whose it will be. So this is asked of the row that is
    changed, inside the SQL transaction that changes it, and never before.
    """
    if owner is not None and normalize(user) != normalize(owner):
        raise ForeignTransaction(
            f"transaction {txn_id} is of another user, and user {owner} is no superuser: begin one"
            " of your own"
        )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Which of the transactions that were beaten for are no longer open."""

    aborted: frozenset[int]
    committed: frozenset[int]
    missing: frozenset[int]


@dataclass(frozen=True, slots=True)
class Step:
    """An open transaction with its write id of a table, inside the SQL transaction that read it.

    Rows are staged on ``connection``, whose write lock keeps the transaction open meanwhile.
    ``seen`` is what the transaction sees of the table, its own writes included, ``time`` that of
    the step. ``is_first`` says that the write id was given here, so that nothing was staged under
    it before.
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

    ``behind`` counts how often a begin or commit had to wait for the catalog to catch up,
    ``heartbeats`` those of transactions and locks. ``unstored_heartbeats`` are only in memory yet.
    """

    begun: int
    committed: int
    aborted: int
    conflicts: int
    expired: int
    behind: int
    heartbeats: int
    unstored_heartbeats: int
    open: int
    oldest_begin: Timestamp | None


class TransactionListener(Protocol):
    """Who takes part in the end of transactions that wrote.

    Both are called inside the one SQL transaction, before it is known whether it will be durable:
    what they do on ``connection`` happens with the commit or not at all, and an exception undoes
    everything. ``writes`` are the (table id, write id) pairs of a transaction, never none; those of
    several that are aborted together stand by their ids, in order.
    """

    @property
    def ahead(self) -> Sequence[Query]:
        """What `committing` asks on its connection."""

    def committing(
        self,
        connection: Connection,
        transaction: Transaction,
        *,
        time: Timestamp,
        writes: Sequence[tuple[int, int]],
        catalog: CatalogVersion,
    ) -> None: ...

    def aborting(
        self, connection: Connection, writes: Mapping[int, Sequence[tuple[int, int]]]
    ) -> None: ...
