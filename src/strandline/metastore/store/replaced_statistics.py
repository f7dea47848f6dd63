"""Cleaning of column statistics that were replaced by newer ones.

A client stores statistics after each of its writes, and each time the old rows stay for readers of
the past. After they are deleted, a reader of the past gets no statistics, which is never wrong. So,
unlike for files, the deletion is not recorded. Statistics of a dropped partition stay with its row,
so that they can be brought back with it: a write that adds no row is a drop.
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
    """Count the rows of statistics that writes committed up to ``limit`` replaced."""
    return int(value(connection, f"SELECT count(*){_REPLACED}", (limit,)))


def replaced_rows(connection: Connection, limit: Timestamp, *, most: int) -> list[int]:
    """The ids of the rows that `count_replaced` counts, at most ``most``."""
    rows = run(connection, f"SELECT removal.row_id{_REPLACED} LIMIT ?", (limit, most))
    return [row_id for (row_id,) in rows]
