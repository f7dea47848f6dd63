"""Holders: open transactions, holds and locks that keep something from others, in one list.

While a transaction, hold or lock needs it, history is kept, write ids stay hidden, or requests for
locks wait. A `Holder` says whose it is, since when, what it keeps back, and when it ends by itself.
It is read from the rows, so it is the same on every node, and for a store on which no node runs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter

from sqlalchemy import Connection

from strandline.clock import Timestamp, format_timestamp, timestamp
from strandline.sql import Query, expiry_time, run, run_in, value
from strandline.transactions import records
from strandline.transactions.holds import LIVE, Hold, live_holds, watermark_at
from strandline.transactions.list_records import min_open_txn
from strandline.transactions.locks import LockMode
from strandline.transactions.records import Wanted
from strandline.transactions.transaction import Transaction

MAX_HOLDERS = 1_000
"""The maximum number of holders of each type that are listed; all are counted."""


class HolderType(Enum):
    TRANSACTION = "transaction"
    HOLD = "hold"
    LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Holder:
    """One transaction, hold or lock.

    ``kind`` is ``read-write`` or ``read-only`` for a transaction, the hold's own kind, ``granted``
    or ``waiting`` for a lock. ``client`` is the host and the program, as far as they are known.
    ``since`` is the begin time of a transaction, the time from which a hold keeps history, or the
    time at which a lock was granted. The holder ends by itself at ``ends`` unless its client sends
    a heartbeat before; a lock of a transaction ends with the transaction. ``keeps`` says what
    others have to wait for.
    """

    type: HolderType
    id: int
    kind: str
    owner: str
    client: str
    since: Timestamp | None
    heard_of: Timestamp | None
    ends: Timestamp | None
    keeps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holders:
    """All holders: how many there are, and the oldest of each type.

    History below ``low_watermark`` may be removed. ``min_open_txn`` is the smallest id of an open
    transaction, or None.
    """

    low_watermark: Timestamp
    min_open_txn: int | None
    transactions: int
    holds: int
    locks: int
    holders: tuple[Holder, ...]

    def of_type(self, holder_type: HolderType) -> list[Holder]:
        """The holders of one type, oldest first."""
        return [holder for holder in self.holders if holder.type is holder_type]


def read_holders(
    connection: Connection,
    *,
    now: Timestamp,
    retention_ms: int,
    has_locks: bool = True,
    wanted: Wanted | None = None,
) -> Holders:
    """The holders at ``now``, or those of ``wanted`` owners as if there were no others.

    ``has_locks`` False says that the lock tables do not exist yet.
    """
    lowest = watermark_at(connection, now, retention_ms=retention_ms)
    users = records.open_users(connection, wanted)
    live: Query = LIVE, (expiry_time(connection, now), lowest)
    live = _with(live, records.among(connection, "owner", live, wanted))
    requests: Query = _REQUESTS, ()
    if has_locks:
        requests = _with(requests, records.among(connection, "owner", requests, wanted))
    return Holders(
        low_watermark=lowest,
        min_open_txn=min_open_txn(connection),
        transactions=records.open_count(connection, users=users),
        holds=_count(connection, live),
        locks=_count(connection, requests) if has_locks else 0,
        holders=(
            *_transactions(connection, users),
            *map(_of_hold, live_holds(connection, live, limit=MAX_HOLDERS)),
            *(_locks(connection, requests) if has_locks else ()),
        ),
    )


def _with(rows: Query, condition: Query) -> Query:
    return rows[0] + condition[0], (*rows[1], *condition[1])


def _count(connection: Connection, rows: Query) -> int:
    return int(value(connection, f"SELECT count(*) {rows[0]}", rows[1]))


def _transactions(connection: Connection, users: Query) -> list[Holder]:
    writes: dict[int, int] = dict(run(connection, _WRITES))
    return [
        _of_transaction(transaction, writes.get(transaction.txn_id, 0))
        for transaction in records.open_ones(connection, limit=MAX_HOLDERS, users=users)
    ]


_WRITES = "SELECT txn_id, count(*) FROM txn_write_id WHERE commit_time IS NULL GROUP BY txn_id"


def _of_transaction(transaction: Transaction, writes: int) -> Holder:
    since, version = format_timestamp(transaction.begin_time), transaction.catalog_version
    keeps = [f"history from {since} on, with version {version} of the catalog"]
    if writes:
        keeps.append(f"write ids in {writes} table{'s' if writes > 1 else ''}")
    return Holder(
        HolderType.TRANSACTION,
        transaction.txn_id,
        "read-only" if transaction.read_only else "read-write",
        transaction.user,
        _client(transaction.host, transaction.agent),
        since=transaction.begin_time,
        heard_of=timestamp(transaction.last_heartbeat),
        ends=timestamp(transaction.last_heartbeat + transaction.timeout_ms),
        keeps=tuple(keeps),
    )


def _of_hold(hold: Hold) -> Holder:
    return Holder(
        HolderType.HOLD,
        hold.hold_id,
        hold.kind,
        hold.owner,
        client="",
        since=hold.at,
        heard_of=None,
        ends=hold.expires,
        keeps=(f"history from {format_timestamp(hold.at)} on",),
    )


_REQUESTS = "FROM lock_request WHERE 1 = 1"
_REQUEST_COLUMNS = (
    "lock_id, txn_id, owner, host, agent, last_heartbeat, timeout_ms, acquired_at, blocked_by"
)
_COMPONENTS = (
    'SELECT lock_id, number, mode, "schema", "table", "partition" FROM lock_component'
    " WHERE lock_id IN"
)
_WAITING = (
    "SELECT blocked_by, count(*) FROM lock_request WHERE blocked_by IS NOT NULL GROUP BY blocked_by"
)


def _locks(connection: Connection, of_requests: Query) -> list[Holder]:
    source, parameters = of_requests
    oldest = f"SELECT {_REQUEST_COLUMNS} {source} ORDER BY lock_id LIMIT ?"
    requests = run(connection, oldest, (*parameters, MAX_HOLDERS))
    objects: defaultdict[int, list[str]] = defaultdict(list)
    components = run_in(connection, _COMPONENTS, [lock_id for lock_id, *_ in requests])
    for lock_id, _, mode, *names in sorted(components, key=itemgetter(0, 1)):
        objects[lock_id].append(f"{LockMode(mode).name} on {'.'.join(filter(None, names))}")
    waiting: dict[int, int] = dict(run(connection, _WAITING))
    locks = []
    for lock_id, txn_id, owner, host, agent, heartbeat, timeout, acquired, blocked_by in requests:
        keeps = objects[lock_id]
        if lock_id in waiting:
            count = waiting[lock_id]
            keeps.append(f"{count} other request{'s' if count > 1 else ''}")
        if blocked_by is not None:
            keeps.append(f"waits for lock {blocked_by}")
        if txn_id is not None:
            keeps.append(f"ends with transaction {txn_id}")
        locks.append(
            Holder(
                HolderType.LOCK,
                lock_id,
                "waiting" if acquired is None else "granted",
                owner,
                _client(host, agent),
                since=None if acquired is None else timestamp(acquired),
                heard_of=timestamp(heartbeat),
                ends=None if txn_id is not None else timestamp(heartbeat + timeout),
                keeps=tuple(keeps),
            )
        )
    return locks


def _client(host: str, agent: str) -> str:
    return f"{host} ({agent})" if host and agent else host or agent
