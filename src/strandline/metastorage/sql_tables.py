"""The tables of the metastorage in a SQL database, and the leases among them.

The row of a lease stays when the lease ends, without a holder, so that its token keeps growing. A
lease is declared expired only in a write transaction that stores its time in the clock row. If the
time were only read, another reader with a slower wall clock could find the lease alive again; with
a stored time this is impossible.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

from strandline.clock import Timestamp, add_milliseconds
from strandline.metastorage.store import Lease
from strandline.sql import first_row, run
from strandline.sql.schema_versions import Part, add_indexes, whole_row

# Keys are compared byte by byte, whatever collation the server has.
_KEY = String().with_variant(String(collation="C"), "postgresql")

METADATA = MetaData()

ENTRIES = Table(
    "metastorage",
    METADATA,
    Column("key", _KEY, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
    # The last column, because SQLite reads a row from its start, through all pages of a value.
    Column("value", LargeBinary, nullable=False),
)
Index("metastorage_by_revision", ENTRIES.c.revision, ENTRIES.c.key)

HEAD = Table(
    "metastorage_head",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
    # The records of deletions up to this revision were removed.
    Column("forgotten", BigInteger, nullable=False),
)

DELETIONS = Table(
    "metastorage_deletion",
    METADATA,
    Column("revision", BigInteger, primary_key=True),
    Column("key", _KEY, primary_key=True),
    sqlite_with_rowid=False,
)

LEASES = Table(
    "metastorage_lease",
    METADATA,
    Column("name", _KEY, primary_key=True),
    Column("holder", String),
    Column("expires", BigInteger, nullable=False),
    Column("token", BigInteger, nullable=False),
)

for _table in (HEAD, LEASES):
    whole_row(_table)


def _add_indexes(connection: Connection) -> None:
    add_indexes(connection, HEAD, LEASES)


PART = Part("metastorage", 2, METADATA, {2: _add_indexes})


def lease_row(connection: Connection, name: str) -> Lease | None:
    """The lease in the row of ``name``, expired or not; None if it has no holder."""
    row = first_row(
        connection,
        "SELECT holder, expires, token FROM metastorage_lease"
        " WHERE name = ? AND holder IS NOT NULL",
        (name,),
    )
    return None if row is None else Lease(name, row[0], Timestamp(row[1]), row[2])


def live_lease(connection: Connection, name: str, now: Timestamp) -> Lease | None:
    """The lease if it is held at ``now``, the time that this write transaction took, else None."""
    lease = lease_row(connection, name)
    return lease if lease is not None and lease.expires > now else None


def grant_lease(
    connection: Connection, name: str, holder: str, now: Timestamp, ttl_ms: int
) -> Lease | None:
    """The lease for ``holder``: a new one with the next token, or its own extended.

    None if another holder has it.
    """
    expires = add_milliseconds(now, ttl_ms)
    present = live_lease(connection, name, now)
    if present is not None and present.holder != holder:
        return None
    if present is None:
        run(
            connection,
            "INSERT INTO metastorage_lease (name, holder, expires, token) VALUES (?, ?, ?, 1)"
            " ON CONFLICT (name) DO UPDATE SET holder = excluded.holder,"
            " expires = excluded.expires, token = metastorage_lease.token + 1",
            (name, holder, expires),
        )
    else:
        run(
            connection,
            "UPDATE metastorage_lease SET expires = ? WHERE name = ?",
            (expires, name),
        )
    return lease_row(connection, name)


def end_lease(connection: Connection, lease: Lease) -> None:
    """Remove the holder from the row if it still has this lease."""
    run(
        connection,
        "UPDATE metastorage_lease SET holder = NULL WHERE name = ? AND token = ?",
        (lease.name, lease.token),
    )
