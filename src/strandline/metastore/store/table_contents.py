"""All of a table that a cache keeps in memory, read in one snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from strandline.clock import MIN_TIMESTAMP, Timestamp, milliseconds_before
from strandline.metastore.store.row_queries import (
    ROW_COLUMNS,
    aborted_write_ids,
    cleaned_up_to,
    fetched,
    row_from,
)
from strandline.metastore.store.rows import Row, RowKind
from strandline.sql import Query, run, value
from strandline.transactions import ValidWriteIdList
from strandline.transactions.list_records import last_commit_query, write_ids_at

_IN_MEMORY = ", ".join(str(kind.value) for kind in RowKind if kind is not RowKind.STATISTICS)
_FOR_MEMORY = f"FROM store_row WHERE table_id = ? AND kind IN ({_IN_MEMORY})"
_STILL_NEEDED = (
    "row_id NOT IN (SELECT removal.row_id FROM store_removal AS removal JOIN txn_write_id AS writer"
    " ON writer.table_id = removal.table_id AND writer.write_id = removal.write_id"
    " WHERE removal.table_id = ? AND writer.commit_time <= ?)"
)
RECENT_MS = 600_000
"""How long before a table's last commit memory keeps the rows that were removed, at the least."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of a table that were removed up to a commit time have been cleaned, or were not loaded.

    The rows are complete only for a reader that sees at least ``write_ids``, the writes committed
    up to ``up_to``.
    """

    up_to: Timestamp
    write_ids: ValidWriteIdList


@dataclass(frozen=True, slots=True)
class TableContents:
    """All rows and removals of a table that are not aborted, and the list of its commits.

    Rows of statistics are left out: there are as many as partitions, they are larger, and they are
    seldom read. ``removals`` are pairs: the id of a row, and a write id that removed it.
    ``event_id`` is the last event of the notification log that the contents reflect. ``left_out``
    is None if they are complete.
    """

    rows: tuple[Row, ...]
    removals: tuple[tuple[int, int], ...]
    committed: ValidWriteIdList
    event_id: int
    left_out: LeftOut | None = None


def table_contents(
    connection: Connection, table_id: int, *, event_id: int, max_bytes: int, max_rows: int
) -> TableContents | None:
    """All of a table that a cache needs, or None if it exceeds the limits.

    If all rows exceed them, rows that were removed more than `RECENT_MS` before the last commit are
    left out. The others must leave room for new rows, or a cache would soon load them again.
    """
    source: Query = _FOR_MEMORY, (table_id,)
    up_to = cleaned_up_to(connection, table_id)
    if not _fits(connection, source, max_rows, max_bytes):
        last = value(connection, *last_commit_query(table_id, at=None))
        recent = None if last is None else milliseconds_before(Timestamp(last), RECENT_MS)
        if recent is None or recent <= (up_to or MIN_TIMESTAMP):
            return None
        source = f"{_FOR_MEMORY} AND {_STILL_NEEDED}", (table_id, table_id, recent)
        if not _fits(connection, source, max_rows * 3 // 4, max_bytes * 3 // 4):
            return None
        up_to = recent
    committed = write_ids_at(connection, table_id, at=None)
    left_out = (
        None if up_to is None else LeftOut(up_to, write_ids_at(connection, table_id, at=up_to))
    )
    aborted = aborted_write_ids(connection, table_id)
    needed, parameters = source
    with fetched(connection, f"SELECT {ROW_COLUMNS} {needed}", parameters) as fetched_rows:
        rows = tuple(row for row in map(row_from, fetched_rows) if row.write_id not in aborted)
    removed = run(
        connection, "SELECT row_id, write_id FROM store_removal WHERE table_id = ?", (table_id,)
    )
    row_ids = {row.row_id for row in rows}
    return TableContents(
        rows=rows,
        removals=tuple(
            (row_id, write_id)
            for row_id, write_id in removed
            if row_id in row_ids and write_id not in aborted
        ),
        committed=committed,
        event_id=event_id,
        left_out=left_out,
    )


def _fits(connection: Connection, source: Query, max_rows: int, max_bytes: int) -> bool:
    """Whether the rows of ``source``, which begins with FROM, are within the limits."""
    needed, parameters = source
    count = f"SELECT count(*) FROM (SELECT 1 {needed} LIMIT ?) AS counted"
    size = f"SELECT sum(length(body) + length(name)) {needed}"
    return (
        value(connection, count, (*parameters, max_rows + 1)) <= max_rows
        and (value(connection, size, parameters) or 0) <= max_bytes
    )
