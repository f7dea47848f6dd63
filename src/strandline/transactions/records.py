"""The SQL statements on the rows of a transaction. Each runs on the caller's connection.

One conditional statement moves a transaction out of the open state, in whichever process it
runs, and however often. The same SQL transaction changes what depends on it (write ids, footprint).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from strandline.clock import Timestamp, format_timestamp
from strandline.errors import TransactionFinished, TransactionNotFound, UnsupportedOperation
from strandline.sql import Query, Row, change, change_each, first_row, marks, run, run_in, value
from strandline.transactions import lock_records
from strandline.transactions.tables import LAST_ID, is_id
from strandline.transactions.transaction import (
    Heartbeat,
    Transaction,
    TransactionState,
    require_owner,
)

Wanted = Callable[[str], bool]
"""Chooses users or owners by their names."""
EVERY: Query = "", ()
"""The condition that every row fulfils."""

_OPEN, _COMMITTED, _ABORTED = (state.value for state in TransactionState)
_COLUMNS = (
    "txn_id, state, begin_time, commit_time, catalog_version, last_heartbeat,"
    ' "user", host, agent, read_only, timeout_ms'
)

_ALL = f"SELECT {_COLUMNS} FROM txn"
_FIND = f"{_ALL} WHERE txn_id = ?"
_BEGIN = (
    "INSERT INTO txn (state, begin_time, catalog_version, last_heartbeat,"
    ' "user", host, agent, read_only, timeout_ms)'
)
_BEGIN_ONE = f"{_BEGIN} VALUES ({_OPEN}, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING {_COLUMNS}"
_BEGIN_MANY = (
    "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)"
    f" {_BEGIN} SELECT {_OPEN}, ?, ?, ?, ?, ?, ?, ?, ? FROM number RETURNING {_COLUMNS}"
)
_FIND_FOR_TABLE, _FIND_WITH_WRITES = (
    f"SELECT {', '.join(f'txn.{column}' for column in _COLUMNS.split(', '))},"
    f" own.table_id, own.write_id{column} FROM txn"
    f" LEFT JOIN txn_write_id AS own ON own.txn_id = txn.txn_id{condition} WHERE txn.txn_id = ?"
    for condition, column in (
        (" AND own.table_id = ?", ""),
        ("", ", EXISTS (SELECT 1 FROM lock_request WHERE lock_request.txn_id = txn.txn_id)"),
    )
)
_STATES = 'SELECT txn_id, state, "user" FROM txn WHERE txn_id IN'
_OWN_WRITE_IDS = "SELECT txn_id, write_id FROM txn_write_id WHERE table_id = ? AND txn_id IN"
_ALLOCATE = (
    "INSERT INTO next_write_id (table_id, next) VALUES (?, ?)"
    " ON CONFLICT (table_id) DO UPDATE SET next = next_write_id.next + ? RETURNING next"
)
_HAS_NONE = "WHERE NOT EXISTS (SELECT 1 FROM txn_write_id WHERE txn_id = ? AND table_id = ?)"
_ALLOCATE_ONE = (
    f"INSERT INTO next_write_id (table_id, next) SELECT CAST(? AS BIGINT), 2 {_HAS_NONE}"
    " ON CONFLICT (table_id) DO UPDATE SET next = next_write_id.next + 1 RETURNING next",
    "INSERT INTO txn_write_id (table_id, write_id, txn_id)"
    f" SELECT table_id, next - 1, CAST(? AS BIGINT) FROM next_write_id {_HAS_NONE}"
    " AND table_id = ? RETURNING write_id",
)
_OWN_WRITE_ID = "SELECT write_id FROM txn_write_id WHERE txn_id = ? AND table_id = ?"
_COMMIT = (
    f"UPDATE txn SET state = {_COMMITTED}, commit_time = ? WHERE txn_id = ? AND state = {_OPEN}"
)
_COMMIT_WRITES = (
    "UPDATE txn_write_id SET commit_time = ? WHERE txn_id = ?",
    "UPDATE txn_footprint SET commit_time = ? WHERE txn_id = ?",
)


def begin_query(
    count: int = 1,
    *,
    begin_time: Timestamp,
    catalog_version: int,
    user: str,
    host: str = "",
    agent: str = "",
    read_only: bool = False,
    timeout_ms: int,
    last_heartbeat: int,
) -> Query:
    """The query that inserts open transactions with these values of `TXN`; see `added`.

    ``catalog_version`` is that of the begin time.
    """
    values = begin_time, catalog_version, last_heartbeat, user, host, agent, read_only, timeout_ms
    return (_BEGIN_ONE, values) if count == 1 else (_BEGIN_MANY, (count, *values))


def added(rows: Iterable[Row]) -> list[Transaction]:
    """The transactions that `begin_query` inserted, by ascending ids."""
    return [_transaction(row) for row in sorted(rows)]


def find(connection: Connection, txn_id: int) -> Transaction:
    """The transaction. Raises `TransactionNotFound` if it does not exist."""
    row = first_row(connection, _FIND, (txn_id,)) if is_id(txn_id) else None
    if row is None:
        raise _not_found(txn_id)
    return _transaction(row)


def find_many(connection: Connection, txn_ids: Iterable[int]) -> dict[int, Transaction]:
    """The transactions that exist among ``txn_ids``, by id."""
    rows = run_in(connection, f"{_ALL} WHERE txn_id IN", sorted(filter(is_id, set(txn_ids))))
    return {row[0]: _transaction(row) for row in rows}


def find_many_for_writing(connection: Connection, txn_ids: Iterable[int]) -> list[Transaction]:
    """The transactions, in the order of ``txn_ids``; all must be open and not read-only.

    Raises `TransactionNotFound`, `TransactionFinished`, `UnsupportedOperation`.
    """
    requested_ids = list(txn_ids)
    transactions = find_many(connection, requested_ids)
    for txn_id in requested_ids:
        if txn_id not in transactions:
            raise _not_found(txn_id)
    return [_writable(transactions[txn_id]) for txn_id in requested_ids]


def open_ones(connection: Connection, *, limit: int, users: Query = EVERY) -> list[Transaction]:
    """The open transactions, or those of `open_users`, oldest first, at most ``limit``."""
    of_users, names = users
    oldest = f"{_ALL} WHERE state = {_OPEN}{of_users} ORDER BY begin_time, txn_id LIMIT ?"
    return [_transaction(row) for row in run(connection, oldest, (*names, limit))]


def open_users(connection: Connection, wanted: Wanted | None) -> Query:
    """The condition for the open transactions whose user is ``wanted``."""
    return among(connection, '"user"', (f"FROM txn WHERE state = {_OPEN}", ()), wanted)


def among(connection: Connection, column: str, rows: Query, wanted: Wanted | None) -> Query:
    """The condition that a name in ``column`` is ``wanted``, to add to that of ``rows``.

    Names are compared after normalization, which the database does not know.
    """
    if wanted is None:
        return EVERY
    source, parameters = rows
    names = run(connection, f"SELECT DISTINCT {column} {source}", parameters)
    chosen = tuple(name for (name,) in names if wanted(name))
    return f" AND {column} IN ({', '.join('?' * len(chosen)) or 'NULL'})", chosen


def with_writes(
    txn_id: int, rows: Sequence[Row]
) -> tuple[Transaction, tuple[tuple[int, int], ...], bool]:
    """A transaction, its (table id, write id) pairs, and whether it has requests for locks.

    ``rows`` are those of `find_with_writes_queries`. Raises `TransactionNotFound`.
    """
    if not rows:
        raise _not_found(txn_id)
    pairs = [(row[-3], row[-2]) for row in rows if row[-2] is not None]
    return _transaction(rows[0][:-3]), tuple(sorted(pairs)), bool(rows[0][-1])


def find_with_writes_queries(txn_id: int) -> tuple[Query, ...]:
    """The query for `with_writes`, one round trip; none if no transaction can have this id."""
    return ((_FIND_WITH_WRITES, (txn_id,)),) if is_id(txn_id) else ()


def for_table(
    connection: Connection, txn_id: int, rows: Sequence[Row]
) -> tuple[Transaction, int | None]:
    """The transaction, and its write id for a table, or None; raises as `find_many_for_writing`.

    ``rows`` are those of `find_for_table_queries`.
    """
    if not rows:  # there is no such transaction, or no table can have the id
        return _writable(find(connection, txn_id)), None
    (row,) = rows
    return _writable(_transaction(row[:-2])), row[-1]


def find_for_table_queries(txn_id: int, table_id: int) -> tuple[Query, ...]:
    """The query for `for_table`; none if no transaction or table can have these ids."""
    if not (is_id(txn_id) and is_id(table_id)):
        return ()
    return ((_FIND_FOR_TABLE, (table_id, txn_id)),)


def _not_found(txn_id: int) -> TransactionNotFound:
    return TransactionNotFound(
        f"there is no transaction {txn_id}; begin one, or check which store this is (it may have "
        "ended longer ago than outcomes are kept, and one that has written nothing is lost when "
        "the machine of the store loses power)"
    )


def _writable(transaction: Transaction) -> Transaction:
    txn_id = transaction.txn_id
    if transaction.state is not TransactionState.OPEN:
        raise TransactionFinished(
            f"transaction {txn_id} cannot write: it {ending(transaction)}; begin another"
        )
    if transaction.read_only:
        raise UnsupportedOperation(
            f"transaction {txn_id} cannot write: it was begun read-only; begin another"
        )
    return transaction


def find_for_reading(connection: Connection, txn_id: int) -> Transaction:
    """The transaction, which must not be aborted: the own writes of an aborted one may be gone.

    Raises `TransactionNotFound`, `TransactionFinished`.
    """
    transaction = find(connection, txn_id)
    if transaction.state is TransactionState.ABORTED:
        raise TransactionFinished(
            f"transaction {txn_id} cannot read: it {ending(transaction)}; begin another"
        )
    return transaction


def ending(transaction: Transaction) -> str:
    """How the transaction ended, as a predicate for messages."""
    if transaction.commit_time is not None:
        return f"was committed at {format_timestamp(transaction.commit_time)}"
    return "was aborted by its client, by a conflict or by its time-out"


# -- write ids


def allocate(connection: Connection, txn_ids: Sequence[int], table_id: int) -> dict[int, int]:
    """Allocate write ids for the table to these transactions, in order. They must have none yet."""
    count = len(txn_ids)
    following = value(connection, _ALLOCATE, (table_id, count + 1, count))
    write_ids = dict(zip(txn_ids, range(int(following) - count, int(following)), strict=True))
    change_each(
        connection,
        "INSERT INTO txn_write_id (table_id, write_id, txn_id) VALUES (?, ?, ?)",
        [(table_id, write_id, txn_id) for txn_id, write_id in write_ids.items()],
    )
    return write_ids


def allocate_one(connection: Connection, txn_id: int, table_id: int) -> int:
    """Allocate a write id for the table to a transaction, which must have none yet."""
    _, rows = (run(connection, *query) for query in allocate_one_queries(txn_id, table_id))
    if not rows:  # read ahead, the queries allocated it, and another statement lost their answers
        rows = run(connection, _OWN_WRITE_ID, (txn_id, table_id))
    ((write_id,),) = rows
    return int(write_id)


def allocate_one_queries(txn_id: int, table_id: int) -> tuple[Query, Query]:
    """The queries of `allocate_one`; they change nothing if the transaction has a write id."""
    ids = (txn_id, table_id)
    return (_ALLOCATE_ONE[0], (table_id, *ids)), (_ALLOCATE_ONE[1], (txn_id, *ids, table_id))


def own_write_ids(connection: Connection, txn_ids: Iterable[int], table_id: int) -> dict[int, int]:
    """The write ids of these transactions for the table, by transaction id."""
    return dict(run_in(connection, _OWN_WRITE_IDS, txn_ids, table_id))


def own_write_id(connection: Connection, txn_id: int, table_id: int) -> int | None:
    if not is_id(table_id):
        return None
    write_id: int | None = value(connection, _OWN_WRITE_ID, (txn_id, table_id))
    return write_id


def write_ids_of(
    connection: Connection, txn_ids: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """The (table id, write id) pairs of each transaction that has any, by ascending ids."""
    pairs: dict[int, list[tuple[int, int]]] = {}
    rows = run(
        connection,
        f"SELECT txn_id, table_id, write_id FROM txn_write_id WHERE txn_id IN {marks(txn_ids)}"
        " ORDER BY txn_id, table_id",
        tuple(txn_ids),
    )
    for txn_id, table_id, write_id in rows:
        pairs.setdefault(txn_id, []).append((table_id, write_id))
    return pairs


def forget_impossible_writes(connection: Connection, txn_ids: Sequence[int]) -> None:
    """Delete the write ids that the transactions have for table ids that no table can have."""
    change(
        connection,
        f"DELETE FROM txn_write_id WHERE txn_id IN {marks(txn_ids)} AND table_id < 1",
        tuple(txn_ids),
    )


# -- the end


def mark_committed(
    connection: Connection,
    transaction: Transaction,
    *,
    at: Timestamp,
    has_writes: bool,
    has_locks: bool,
) -> Transaction:
    """Commit a transaction and what depends on it. It must be read on this connection and open."""
    txn_id = transaction.txn_id
    for statement in (*(_COMMIT_WRITES if has_writes else ()), _COMMIT):
        change_each(connection, statement, [(at, txn_id)])
    if has_locks:
        lock_records.delete_of_txns(connection, (txn_id,))
    return replace(transaction, state=TransactionState.COMMITTED, commit_time=at)


def mark_aborted(
    connection: Connection, txn_ids: Sequence[int], *, silent_at: int | None
) -> list[Transaction]:
    """Abort those of a few transactions that are open; return these, in the order of ids.

    With ``silent_at`` (ms), abort only those whose time-out has passed by then without a heartbeat.
    """
    silence = "" if silent_at is None else " AND last_heartbeat + timeout_ms < ?"
    rows = run(
        connection,
        f"UPDATE txn SET state = {_ABORTED} WHERE txn_id IN {marks(txn_ids)} AND state = {_OPEN}"
        f"{silence} RETURNING {_COLUMNS}",
        tuple(txn_ids) if silent_at is None else (*txn_ids, silent_at),
    )
    if not rows:
        return []
    aborted = sorted(map(_transaction, rows), key=lambda transaction: transaction.txn_id)
    ended = tuple(transaction.txn_id for transaction in aborted)
    change(connection, f"DELETE FROM txn_footprint WHERE txn_id IN {marks(ended)}", ended)
    lock_records.delete_of_txns(connection, ended)
    return aborted


def silent(connection: Connection, *, at: int) -> list[int]:
    """The open transactions whose time-out has passed by ``at`` (ms) without a heartbeat."""
    statement = (
        f"SELECT txn_id FROM txn WHERE state = {_OPEN} AND last_heartbeat + timeout_ms < ?"
        " ORDER BY txn_id"
    )
    return [txn_id for (txn_id,) in run(connection, statement, (at,))]


def heartbeat(
    connection: Connection, txn_ids: frozenset[int], *, owner: str | None = None
) -> Heartbeat:
    """Which of ``txn_ids`` are open, aborted, committed or missing.

    Raises what `require_owner` raises.
    """
    states: dict[int, TransactionState] = {}
    for txn_id, state, user in run_in(connection, _STATES, sorted(filter(is_id, txn_ids))):
        require_owner(txn_id, user, owner=owner)
        states[txn_id] = TransactionState(state)
    opened, committed, aborted = (
        frozenset(txn_id for txn_id, state in states.items() if state is wanted)
        for wanted in TransactionState
    )
    return Heartbeat(opened, aborted, committed, missing=txn_ids - states.keys())


def open_count(connection: Connection, *, users: Query = EVERY) -> int:
    """The number of open transactions, or of those of `open_users`."""
    of_users, names = users
    return int(
        value(connection, f"SELECT count(*) FROM txn WHERE state = {_OPEN}{of_users}", names)
    )


def oldest_begin(connection: Connection) -> Timestamp | None:
    """The smallest begin time of the open transactions, or None if none is open."""
    oldest = value(connection, f"SELECT min(begin_time) FROM txn WHERE state = {_OPEN}")
    return None if oldest is None else Timestamp(oldest)


# -- footprints

_FORGOTTEN = 10_000
"""About how many rows of footprints one write deletes: other writers wait for it."""
_LAST_FORGOTTEN = (
    "SELECT commit_time FROM txn_footprint WHERE commit_time <= ?"
    " ORDER BY commit_time LIMIT 1 OFFSET ?"
)


def add_footprint(
    connection: Connection, txn_id: int, table_id: int, row_ids: frozenset[int]
) -> None:
    """Record that the transaction changes these rows. Skips rows that are recorded already."""
    change_each(
        connection,
        "INSERT INTO txn_footprint (row_id, txn_id, table_id) VALUES (?, ?, ?)"
        " ON CONFLICT (row_id, txn_id) DO NOTHING",
        [(row_id, txn_id, table_id) for row_id in sorted(row_ids)],
    )


def has_stale_footprint(connection: Connection) -> bool:
    """Whether `forget_footprints` would delete anything."""
    first = value(connection, "SELECT min(commit_time) FROM txn_footprint")
    oldest = oldest_begin(connection)
    return first is not None and (oldest is None or first <= oldest)


def forget_footprints(connection: Connection) -> bool:
    """Delete the oldest footprints that were committed before every open transaction began.

    Returns whether more of them may be left.
    """
    oldest = oldest_begin(connection)
    up_to = LAST_ID if oldest is None else oldest
    last = value(connection, _LAST_FORGOTTEN, (up_to, _FORGOTTEN))
    change(connection, "DELETE FROM txn_footprint WHERE commit_time <= ?", (last or up_to,))
    return last is not None


def _transaction(row: Row) -> Transaction:
    """The transaction in a row of `_COLUMNS`, which are in the order of the fields."""
    txn_id, state, begun, committed, version, last_seen, user, host, agent, read_only, timeout = row
    return Transaction(
        txn_id,
        TransactionState(state),
        begun,
        committed,
        version,
        last_seen,
        user,
        host,
        agent,
        bool(read_only),
        timeout,
    )
