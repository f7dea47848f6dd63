"""The sequences of a store's database: the last ids of transactions, holds and locks.

The problem: if a database was set back, clients remember ids that it has not assigned yet. If it
assigned such an id again, the client of a lost transaction would commit that of another client.

So an operator who accepts a database in place of the one that was lost also skips ids. Nothing
outside of it says how far they went, so it skips more than a store assigns in weeks. A standby that
takes over may lack commits too, and no operator accepts it. So a node skips ids when it connects to
a server that has started since it last connected, before it writes there.

Ids of events are not skipped, because clients notice the loss by them. Nor are write ids: the list
of a writer names each id between the last one and its own, and no client can write under one
without the id of its transaction.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, Table

from strandline.metastore.store import upgrades
from strandline.metastore.store.row_queries import ROW_IDS
from strandline.sql import Counter, change, first_row, schema_versions, value
from strandline.transactions import tables as transaction_tables

SKIPPED_IDS = 1 << 24  # times 2^20 files of a transaction, and far from 2^63
SKIPPED_AT_TAKEOVER = 1 << 13  # a standby lacks the commits of seconds, and each node skips these


def sequences(connection: Connection) -> Iterator[Table]:
    """The tables of the database whose keys come from a sequence."""
    if schema_versions.version_of(connection, transaction_tables.PART) is not None:
        yield from _tables()


def last_id(connection: Connection, table: Table) -> int:
    """The last id that the database has assigned for ``table``, or 0 if none was.

    On a server, the value is not part of the snapshot.
    """
    if connection.dialect.name == "sqlite":
        seq = value(connection, "SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,))
        return int(seq or 0)
    sequence = value(connection, "SELECT pg_get_serial_sequence(?, ?)", _key(table))
    row = first_row(connection, f"SELECT last_value, is_called FROM {sequence}")
    return int(row[0]) if row is not None and row[1] else 0


def continue_after(connection: Connection, table: Table, last: int) -> None:
    """Make ``last``, which is positive, the last id of ``table``."""
    if connection.dialect.name == "sqlite":
        change(connection, "DELETE FROM sqlite_sequence WHERE name = ?", (table.name,))
        insert = "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)"
        change(connection, insert, (table.name, last))
    else:
        sequence = "CAST(pg_get_serial_sequence(?, ?) AS regclass)"
        value(connection, f"SELECT setval({sequence}, ?)", (*_key(table), last))


def skip_ids(connection: Connection) -> None:
    """Skip the ids that clients may remember, in a database that is accepted after a loss."""
    for table in sequences(connection):
        continue_after(connection, table, last_id(connection, table) + SKIPPED_IDS)
    if schema_versions.version_of(connection, upgrades.PART) is not None:
        # The folders of dropped partitions are named by rows.
        Counter.take(connection, (ROW_IDS, SKIPPED_IDS))


def skip_statements() -> Iterator[str]:
    """The statements with which a node skips ids on a PostgreSQL server that has just started."""
    for table in _tables():
        name, key = _key(table)
        next_id = f"nextval(CAST(pg_get_serial_sequence('{name}', '{key}') AS regclass))"
        # Users who do not own the tables may not have the right to set a sequence.
        yield f"SELECT count({next_id}) FROM generate_series(1, {SKIPPED_AT_TAKEOVER})"


def _tables() -> Iterator[Table]:
    for table in transaction_tables.METADATA.sorted_tables:
        if table.dialect_options["sqlite"]["autoincrement"]:
            yield table


def _key(table: Table) -> tuple[str, str]:
    return table.name, next(iter(table.primary_key)).name
