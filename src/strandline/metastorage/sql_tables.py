"""The tables of the metastorage in a SQL database, and the leases among them.

A lease row stays when its lease ends, with no holder, so that its token goes on growing. A lease is
found expired only in a write transaction that leaves its time in the clock row. Against a time that
was merely looked at, another reader whose wall clock is behind could find the lease alive again;
against a stored one nothing can.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from strandline.sql.ground import Step, add_indexes, whole_row

# Keys are compared byte by byte, whatever language the server was set up for.
_KEY = String().with_variant(String(collation="C"), "postgresql")

METADATA = MetaData()
PART = "metastorage"
VERSION = 2

ENTRIES = Table(
    "metastorage",
    METADATA,
    Column("key", _KEY, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
    # Last, because SQLite reads a row from its start, through every page of a large value.
    Column("value", LargeBinary, nullable=False),
)
Index("metastorage_by_revision", ENTRIES.c.revision, ENTRIES.c.key)

HEAD = Table(
    "metastorage_head",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
    # Of deletions up to this revision nothing is known any more.
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


STEPS: Mapping[int, Step] = {2: _add_indexes}
"""How the tables of an older version become those of `VERSION`."""


def lease_row(connection: Connection, name: str) -> Lease | None:
    """The lease in the row of ``name``, expired or not; None where there is no holder."""
    row = first_row(
        connection,
        "SELECT holder, expires, token FROM metastorage_lease"
        " WHERE name = ? AND holder IS NOT NULL",
        (name,),
    )
    return None if row is None else Lease(name, row[0], Timestamp(row[1]), row[2])


def live_lease(connection: Connection, name: str, now: Timestamp) -> Lease | None:
    """The lease if it is held at ``now``, the time that this write transaction took."""
    lease = lease_row(connection, name)
    return lease if lease is not None and lease.expires > now else None


def grant_lease(
    connection: Connection, name: str, holder: str, now: Timestamp, ttl_ms: int
) -> Lease | None:
    """The lease for ``holder``: a new one with the next token, or its own; None if it is taken."""
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
    """Take the holder out of the row if it is still this lease."""
    run(
        connection,
        "UPDATE metastorage_lease SET holder = NULL WHERE name = ? AND token = ?",
        (lease.name, lease.token),
    )
