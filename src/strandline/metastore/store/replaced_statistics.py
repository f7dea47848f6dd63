"""Statistics of columns in whose place others were stored: how they go, when they are old.

A client stores statistics after each of its writes, and each time the rows before stay for readers
of the past. A reader of a time when they are gone is told that there are none, which is never
wrong. So, unlike files, they go without a note. Those of a dropped partition stay with its row, to
be brought back with it: only a write that drops adds nothing.
"""

from __future__ import annotations

from sqlalchemy import Connection

from strandline.clock import Timestamp
from strandline.metastore.store.rows import RowKind
from strandline.sql import run, value

_REPLACED = (
    " FROM store_removal AS removal JOIN txn_write_id AS writer"
    " ON writer.table_id = removal.table_id AND writer.write_id = removal.write_id"
    " JOIN store_row AS stored ON stored.row_id = removal.row_id"
    f" WHERE writer.commit_time <= ? AND stored.kind = {RowKind.STATISTICS.value}"
    " AND EXISTS (SELECT 1 FROM store_row AS added WHERE added.table_id = removal.table_id"
    " AND added.write_id = removal.write_id)"
)


def count_replaced(connection: Connection, limit: Timestamp) -> int:
    """How many rows of statistics were replaced by writes committed up to ``limit``."""
    return int(value(connection, f"SELECT count(*){_REPLACED}", (limit,)))


def replaced_rows(connection: Connection, limit: Timestamp, *, most: int) -> list[int]:
    """The ids of these rows, at most so many."""
    found = run(connection, f"SELECT removal.row_id{_REPLACED} LIMIT ?", (limit, most))
    return [row_id for (row_id,) in found]
