"""The history of the data of tables, commit by commit: the history of the second clock.

A commit is described by what it added to each table and removed from it, counted from the rows of
its write ids. Aborted and open transactions are not part of the history. Deleted rows are the rows
of removed data files plus the growth of delete files: a commit that only rewrites delete files
deletes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy import Row as SqlRow

from strandline import work
from strandline.clock import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from strandline.metastore.store.row_queries import (
    count_of_write,
    removed_by_write,
    rows_by_id,
    rows_of_write,
)
from strandline.metastore.store.rows import DataFile, DeleteFile, Row, RowKind
from strandline.metastore.store.tables import STORE_REMOVAL, STORE_ROW
from strandline.model.identifiers import normalize
from strandline.transactions.tables import LAST_ID, TXN, TXN_WRITE_ID

PAGE = 1_000
_DATA = RowKind.DATA_FILE, RowKind.DELETE_FILE, RowKind.PARTITION
"""The kinds of rows that a `TableChange` counts."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What one commit did to one table; appended and deleted rows are those in its files."""

    table_id: int
    appended_rows: int = 0
    deleted_rows: int = 0
    data_files_added: int = 0
    data_files_removed: int = 0
    delete_files_added: int = 0
    delete_files_removed: int = 0
    partitions_added: int = 0
    partitions_removed: int = 0


@dataclass(frozen=True, slots=True)
class DataCommit:
    """A committed transaction. A read as of ``time`` sees it, and no later commit."""

    txn_id: int
    time: Timestamp
    user: str
    changes: tuple[TableChange, ...]


def data_commits(
    connection: Connection,
    *,
    since: Timestamp = MIN_TIMESTAMP,
    until: Timestamp = MAX_TIMESTAMP,
    table_ids: Collection[int] | None = None,
    user: str | None = None,
    newest_first: bool = False,
) -> Iterator[DataCommit]:
    """The commits from ``since`` to ``until`` that changed data, oldest or ``newest_first``.

    With ``table_ids``, only their changes of these tables; with ``user``, only commits of that
    user. Reads `PAGE` transactions at a time, and the rows of each when it is yielded. Charges them
    to the budget.

    Raises `TooLong`.
    """
    tables = [None] if table_ids is None else sorted(table_ids)
    of_each = (
        _committed(
            connection, table_id, since=since, until=until, user=user, newest_first=newest_first
        )
        for table_id in tables
    )
    # A transaction may have changed several of the tables.
    committed = (row for row, _ in groupby(merge(*of_each, reverse=newest_first)))
    yield from _changing(connection, committed, table_ids)  # callers may stop early


def _committed(
    connection: Connection,
    table_id: int | None,
    *,
    since: Timestamp,
    until: Timestamp,
    user: str | None,
    newest_first: bool,
) -> Iterator[SqlRow[Any, Any, Any]]:
    """Time, id and user of each transaction that changed data of the table, or of any table."""
    # An index has the commit times of each table. It has no order for those of several tables.
    commit_time = (TXN if table_id is None else TXN_WRITE_ID).c.commit_time
    order = [commit_time, TXN.c.txn_id]
    columns = select(commit_time, TXN.c.txn_id, TXN.c.user).order_by(
        *(column.desc() if newest_first else column for column in order)
    )
    of_txn = TXN_WRITE_ID.c.txn_id == TXN.c.txn_id
    if table_id is None:
        writes = select(TXN_WRITE_ID.c.txn_id).where(of_txn, _changed_data())
        committed = columns.where(writes.exists())
    else:
        committed = columns.where(of_txn, TXN_WRITE_ID.c.table_id == table_id, _changed_data())
    if user is not None:
        # A database may convert only ASCII letters, so a name that is written the same counts too.
        in_lower_case = func.lower(TXN.c.user) == normalize(user)
        committed = committed.where((TXN.c.user == user) | in_lower_case)
    # One bound for each end of the index: with two, a database may use the one of the first page.
    last_id = LAST_ID if newest_first else 0
    while page := connection.execute(
        committed.limit(PAGE).where(
            commit_time.between(since, until),
            (commit_time < until) | (TXN.c.txn_id < last_id)
            if newest_first
            else (commit_time > since) | (TXN.c.txn_id > last_id),
        )
    ).all():
        yield from page
        last_time, last_id, _ = page[-1]
        since, until = (since, last_time) if newest_first else (last_time, until)


def _changed_data() -> ColumnElement[bool]:
    """Whether a transaction changed the data of a table: it may have changed only counts."""
    of_data = STORE_ROW.c.kind.in_([kind.value for kind in _DATA])
    added = select(STORE_ROW.c.row_id).where(
        STORE_ROW.c.table_id == TXN_WRITE_ID.c.table_id,
        STORE_ROW.c.write_id == TXN_WRITE_ID.c.write_id,
        of_data,
    )
    removed = select(STORE_REMOVAL.c.row_id).where(
        STORE_REMOVAL.c.table_id == TXN_WRITE_ID.c.table_id,
        STORE_REMOVAL.c.write_id == TXN_WRITE_ID.c.write_id,
        STORE_REMOVAL.c.row_id == STORE_ROW.c.row_id,
        of_data,
    )
    return added.exists() | removed.exists()


def _changing(
    connection: Connection,
    committed: Iterable[SqlRow[Any, Any, Any]],
    table_ids: Collection[int] | None,
) -> Iterator[DataCommit]:
    """Those of these transactions that changed data."""
    for commit_time, txn_id, user in work.spending(committed):
        writes = select(TXN_WRITE_ID.c.table_id, TXN_WRITE_ID.c.write_id).where(
            TXN_WRITE_ID.c.txn_id == txn_id
        )
        changes = tuple(
            change
            for table_id, write_id in connection.execute(writes.order_by(TXN_WRITE_ID.c.table_id))
            if table_ids is None or table_id in table_ids
            for change in [_change(connection, table_id, write_id)]
            if change != TableChange(table_id)
        )
        if changes:
            yield DataCommit(txn_id, Timestamp(commit_time), user, changes)


def _change(connection: Connection, table_id: int, write_id: int) -> TableChange:
    work.require(lambda limit: count_of_write(connection, table_id, write_id, limit))
    added = rows_of_write(connection, table_id, write_id)
    removed_ids = removed_by_write(connection, table_id, write_id)
    work.spend(len(added) + len(removed_ids))
    removed = list(rows_by_id(connection, removed_ids).values())
    return TableChange(
        table_id,
        appended_rows=_rows_of_data_files(added),
        deleted_rows=max(
            0,
            _rows_of_data_files(removed) + _deleted_positions(added) - _deleted_positions(removed),
        ),
        data_files_added=_count(added, RowKind.DATA_FILE),
        data_files_removed=_count(removed, RowKind.DATA_FILE),
        delete_files_added=_count(added, RowKind.DELETE_FILE),
        delete_files_removed=_count(removed, RowKind.DELETE_FILE),
        partitions_added=_count(added, RowKind.PARTITION),
        partitions_removed=_count(removed, RowKind.PARTITION),
    )


def _count(rows: list[Row], kind: RowKind) -> int:
    return sum(row.kind is kind for row in rows)


def _rows_of_data_files(rows: list[Row]) -> int:
    return sum(row.as_(DataFile).rows for row in rows if row.kind is RowKind.DATA_FILE)


def _deleted_positions(rows: list[Row]) -> int:
    return sum(sum(row.as_(DeleteFile).counts) for row in rows if row.kind is RowKind.DELETE_FILE)
