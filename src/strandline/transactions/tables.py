"""The SQL tables of transactions and holds.

``commit_time`` is stored in the transaction, and again in its write ids and its footprint. The code
that commits writes all three together. Without the copies, "which writes of this table were not yet
committed at T" and "who committed a change of this row since T" would have to visit every
transaction ever; with them, each is a range of one index. Null means open or aborted; the row of
the transaction says which.

Locks of Hive's clients are requests with one or more components. They belong to no catalog version:
a component has names, in lower case, as the client sent them.

The row of an aborted transaction stays in `TXN`, for clients that ask for its state. Its write ids
stay hidden as long as a row may carry them, and are deleted with the last of these rows. Footprints
are deleted at the abort, or when no open transaction is old enough to conflict.
"""

from __future__ import annotations

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

from strandline.sql.schema_versions import (
    NEVER_ASSIGNED_AGAIN,
    ROW_NUMBER,
    Part,
    add_indexes,
    whole_row,
)

LAST_ID = (1 << 63) - 1
"""The largest number that a column can store: no id is larger."""


def is_id(number: int) -> bool:
    """Whether a row may have this id. For a larger number, a database raises an error."""
    return 0 < number <= LAST_ID


METADATA = MetaData()

TXN = Table(
    "txn",
    METADATA,
    Column("txn_id", ROW_NUMBER, primary_key=True),
    Column("state", Integer, nullable=False),
    Column("begin_time", BigInteger, nullable=False),
    Column("commit_time", BigInteger),
    Column("catalog_version", BigInteger, nullable=False),
    Column("last_heartbeat", BigInteger, nullable=False),
    Column("user", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("read_only", Boolean, nullable=False),
    Column("timeout_ms", BigInteger, nullable=False),
    Index("txn_by_state", "state", "begin_time"),
    Index("txn_by_commit_time", "commit_time"),
    **NEVER_ASSIGNED_AGAIN,
)

# A begin that a crash of the machine undoes may have given clients ids up to this one.
TXN_RESERVED = Table(
    "txn_reserved",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("txn_id", BigInteger, nullable=False),
)

# The write ids of open and aborted transactions: few among all that were ever assigned. An `Index`
# with a condition for PostgreSQL would import all of its drivers, also for a store in a folder.
_PENDING = DDL(  # type: ignore[no-untyped-call]  # SQLAlchemy's
    "CREATE INDEX IF NOT EXISTS txn_write_id_pending ON txn_write_id (txn_id)"
    " WHERE commit_time IS NULL"
)
TXN_WRITE_ID = Table(
    "txn_write_id",
    METADATA,
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("write_id", BigInteger, primary_key=True, autoincrement=False),
    Column("txn_id", BigInteger, nullable=False),
    Column("commit_time", BigInteger),
    Index("txn_write_id_by_txn", "txn_id", "table_id", unique=True),
    Index("txn_write_id_by_commit_time", "table_id", "commit_time"),
    listeners=[("after_create", _PENDING)],
)

NEXT_WRITE_ID = Table(
    "next_write_id",
    METADATA,
    Column("table_id", ROW_NUMBER, primary_key=True, autoincrement=False),
    Column("next", BigInteger, nullable=False),
)

TXN_FOOTPRINT = Table(
    "txn_footprint",
    METADATA,
    Column("row_id", BigInteger, primary_key=True, autoincrement=False),
    Column("txn_id", BigInteger, primary_key=True, autoincrement=False),
    Column("table_id", BigInteger, nullable=False),
    Column("commit_time", BigInteger),
    # Includes the table, so that the integrity check finds a flipped byte in it.
    Index("txn_footprint_by_txn_and_table", "txn_id", "table_id"),
    Index("txn_footprint_by_commit_time", "commit_time"),
)

HOLD = Table(
    "hold",
    METADATA,
    Column("hold_id", ROW_NUMBER, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("user", Text),
    Index("hold_by_expiry", "expires"),
    Index("hold_by_time", "time"),
    Index("hold_by_kind", "kind", "expires"),
    **NEVER_ASSIGNED_AGAIN,
)

HOLD_WATERMARK = Table(
    "hold_watermark",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("time", BigInteger, nullable=False),
)

LOCK_REQUEST = Table(
    "lock_request",
    METADATA,
    Column("lock_id", ROW_NUMBER, primary_key=True),
    Column("txn_id", BigInteger),
    Column("owner", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("last_heartbeat", BigInteger, nullable=False),
    Column("timeout_ms", BigInteger, nullable=False),
    Column("acquired_at", BigInteger),
    Column("blocked_by", BigInteger),
    Index("lock_request_by_txn", "txn_id"),
    Index("lock_request_by_heartbeat", "last_heartbeat"),
    **NEVER_ASSIGNED_AGAIN,  # the order of the ids is the order of the queue
)

LOCK_COMPONENT = Table(
    "lock_component",
    METADATA,
    Column("lock_id", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("schema", Text, nullable=False),
    Column("table", Text),
    Column("partition", Text),
    Column("mode", Integer, nullable=False),
    Index("lock_component_by_schema", "schema", "table"),
)


_WHOLE = (TXN, NEXT_WRITE_ID, HOLD, HOLD_WATERMARK)
_LOCKS = (LOCK_REQUEST, LOCK_COMPONENT)
for _table in (TXN_RESERVED, *_WHOLE, *_LOCKS):
    whole_row(_table)


def _add_locks_and_users(connection: Connection) -> None:
    METADATA.create_all(connection, tables=_LOCKS)
    # The users that took the existing holds are unknown; the holds count as their owners'.
    connection.exec_driver_sql('ALTER TABLE hold ADD COLUMN "user" TEXT')
    add_indexes(connection, *_WHOLE)


def _index_locks_and_footprints(connection: Connection) -> None:
    connection.exec_driver_sql("DROP INDEX IF EXISTS txn_footprint_by_txn")
    add_indexes(connection, TXN_FOOTPRINT, *_LOCKS)


def _index_pending_and_reserve(connection: Connection) -> None:
    connection.execute(_PENDING)
    METADATA.create_all(connection, tables=[TXN_RESERVED])


PART = Part(
    "transactions",
    5,
    METADATA,
    {
        2: _add_locks_and_users,
        3: _index_locks_and_footprints,
        4: _index_pending_and_reserve,
        5: lambda connection: add_indexes(connection, HOLD),
    },
)
"""Version 2 (release 0.2.1) added locks, users of holds, and indexes that detect flipped bytes.

Version 3 (release 0.3.0) added such indexes for locks and footprints. Version 4 (release 0.4.0)
added an index of the write ids that are not committed, and ``txn_reserved``. Version 5 (release
0.11.0) added indexes of the holds by time and by kind.
"""
