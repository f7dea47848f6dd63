"""The SQL statements on rows that commits removed, and on the names of files in rows.

A row goes when its removal is committed up to a limit and no folder is to be moved for it any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from strandline.clock import Timestamp
from strandline.errors import CorruptData
from strandline.metastore.store import partition_moves
from strandline.metastore.store.file_scans import STAGING_FOLDER
from strandline.metastore.store.notifications import COMMIT, STAGED
from strandline.metastore.store.row_queries import (
    ROW_COLUMNS,
    delete_rows,
    fetched,
    row_from,
    unknown_kind,
    visible_rows,
)
from strandline.metastore.store.rows import DeleteFile, RowKind
from strandline.sql import change, in_lists, run, run_in
from strandline.transactions import TransactionState
from strandline.transactions.list_records import write_ids_at

_FILES = RowKind.DATA_FILE, RowKind.DELETE_FILE
_RECORDED = (*_FILES, RowKind.PARTITION)
"""The kinds of rows without which an answer would be wrong."""

_REMOVED = (
    " FROM store_removal AS removal JOIN txn_write_id AS writer"
    " ON writer.table_id = removal.table_id AND writer.write_id = removal.write_id"
    " JOIN store_row AS stored ON stored.row_id = removal.row_id WHERE writer.commit_time <= ?"
    " AND NOT EXISTS (SELECT 1 FROM unfinished_move AS move"
    " WHERE move.table_id = removal.table_id AND move.up_to_row = removal.row_id)"
)
_NOTE = (
    "INSERT INTO cleaned_table (table_id, up_to) VALUES (?, ?) ON CONFLICT (table_id)"
    " DO UPDATE SET up_to = excluded.up_to WHERE excluded.up_to > cleaned_table.up_to"
)
_ABORTED_ROW = (
    "EXISTS (SELECT 1 FROM txn_write_id AS writer JOIN txn ON txn.txn_id = writer.txn_id"
    " WHERE writer.table_id = stored.table_id AND writer.write_id = stored.write_id"
    f" AND txn.state = {TransactionState.ABORTED.value})"
)
_NAMES = "SELECT stored.name FROM store_row AS stored WHERE stored.table_id = ?"
_KINDS = ", ".join(str(kind.value) for kind in _FILES)
_NAMED = f"{_NAMES} AND stored.kind IN ({_KINDS}) AND stored.name IN"
# Rows of all kinds: if the kind of a row is damaged, its file must not be lost too.
_NAMED_FOR_GOOD = f"{_NAMES} AND NOT {_ABORTED_ROW}"
_STAGED_BY = (
    f"SELECT {ROW_COLUMNS} FROM store_row JOIN txn_write_id AS writer"
    " ON writer.table_id = store_row.table_id AND writer.write_id = store_row.write_id"
    " WHERE writer.table_id = ? AND writer.txn_id IN"
)


# What a write added or removed leaves a row or a removal, until the removal of its rows is cleaned.
_LOST = (
    "SELECT own.txn_id FROM txn_write_id AS own WHERE own.table_id = ? AND own.commit_time >"
    " coalesce((SELECT up_to FROM cleaned_table AS cleaned"
    " WHERE cleaned.table_id = own.table_id), 0)"
    " AND NOT EXISTS (SELECT 1 FROM store_row AS stored"
    " WHERE stored.table_id = own.table_id AND stored.write_id = own.write_id)"
    " AND NOT EXISTS (SELECT 1 FROM store_removal AS removal"
    " WHERE removal.table_id = own.table_id AND removal.write_id = own.write_id)"
    " AND own.txn_id IN"
)
# A transaction may commit without having staged anything. The log shows this if it keeps all events
# of the transaction: its commit, so that no restore left them out, and an older commit, since the
# oldest events are cleaned first. No subquery refers to ``own``: the log, which has no index for
# this, is read once for each.
_STAGED_NOTHING = (
    "SELECT own.txn_id FROM txn AS own WHERE own.begin_time >"
    f" (SELECT min(time) FROM notification_log WHERE verb = '{COMMIT}')"
    " AND own.txn_id NOT IN (SELECT event.txn_id FROM notification_log AS event"
    f" WHERE event.table_id = ? AND event.verb IN {STAGED})"
    f" AND own.txn_id IN (SELECT txn_id FROM notification_log WHERE verb = '{COMMIT}')"
    " AND own.txn_id IN"
)


def tables_with_removed_rows(connection: Connection, limit: Timestamp) -> list[int]:
    """The tables from which commits up to ``limit`` removed rows that are still there."""
    rows = run(connection, f"SELECT DISTINCT removal.table_id{_REMOVED}", (limit,))
    return [table_id for (table_id,) in rows]


class RemovedRow(NamedTuple):
    """A row that a commit removed."""

    row_id: int
    kind: RowKind
    name: str


def removed_rows(
    connection: Connection, table_id: int, limit: Timestamp, *, max_rows: int | None
) -> list[RemovedRow]:
    """The rows that commits removed up to ``limit``, by ids; at most ``max_rows``.

    Raises `CorruptData` if the kind of one is unknown.
    """
    statement = (
        f"SELECT DISTINCT stored.row_id, stored.kind, stored.name{_REMOVED}"
        " AND removal.table_id = ? ORDER BY stored.row_id"
    )
    if max_rows is not None:
        statement += f" LIMIT {max_rows}"
    removed = []
    for row_id, kind, name in run(connection, statement, (limit, table_id)):
        try:
            removed.append(RemovedRow(row_id, RowKind(kind), name))
        except ValueError:
            raise unknown_kind(row_id, table_id, kind) from None
    return removed


def is_recorded(rows: Iterable[RemovedRow]) -> bool:
    return any(row.kind in _RECORDED for row in rows)


def forget(
    connection: Connection, table_id: int, limit: Timestamp, rows: Collection[RemovedRow]
) -> None:
    """Delete rows that were removed up to ``limit``, and record the limit if need be."""
    if is_recorded(rows):
        change(connection, _NOTE, (table_id, limit))
    row_ids = [row.row_id for row in rows]
    delete_rows(connection, row_ids)
    partition_moves.forget_rows(connection, table_id, row_ids)


def delete_files_of_none(connection: Connection, table_id: int) -> list[int]:
    """The row ids of the present delete files whose data files are all removed."""
    present = partial(
        visible_rows, connection, table_id, write_ids=write_ids_at(connection, table_id, at=None)
    )
    delete_files = present(RowKind.DELETE_FILE).values()
    if not delete_files:
        return []
    # Imports pyarrow, which a program that embeds a node may not need.
    from strandline.metastore.store.file_columns import StoredDataFiles

    columns = StoredDataFiles(list(present(RowKind.DATA_FILE).values())).columns()
    file_ids = {file_id for part in columns for file_id in part.file_ids.to_pylist()}
    return [row.row_id for row in delete_files if file_ids.isdisjoint(row.as_(DeleteFile).file_ids)]


def named_for_good(connection: Connection, table_id: int) -> set[str]:
    """The names in the rows of a table, of files and others, except in aborted rows."""
    return {name for (name,) in run(connection, _NAMED_FOR_GOOD, (table_id,))}


def without_rows(connection: Connection, table_id: int, owners: Mapping[str, int]) -> set[int]:
    """The transactions whose committed rows of the table are missing, and were not cleaned.

    ``owners`` are the transactions of files. What a job left in its own folder says nothing: it may
    have committed without any rows.
    """
    lost = {txn_id for name, txn_id in owners.items() if not name.startswith(f"{STAGING_FOLDER}/")}
    lost = _selected(connection, _LOST, table_id, lost)
    return lost - _selected(connection, _STAGED_NOTHING, table_id, lost)


def _selected(
    connection: Connection, query: str, table_id: int, txn_ids: Collection[int]
) -> set[int]:
    return {txn_id for (txn_id,) in run_in(connection, query, txn_ids, table_id)}


def compare_rows(connection: Connection, table_id: int, owners: Mapping[str, int]) -> None:
    """Raise `CorruptData` if a row that the transaction of a file added is missing or damaged.

    ``owners`` are the transactions of the files, as in `without_rows`.
    """
    if lost := without_rows(connection, table_id, owners):
        raise CorruptData(
            f"the rows of transaction {min(lost)} in table {table_id} are missing; `strandline "
            "verify` finds what else is missing; restore the store from a backup"
        )
    for in_list, some_ids in in_lists(set(owners.values())):
        with fetched(connection, f"{_STAGED_BY} {in_list}", (table_id, *some_ids)) as rows:
            for row in map(row_from, rows):
                row.compare()


def names_of_files(rows: Iterable[RemovedRow]) -> list[str]:
    return [row.name for row in rows if row.kind in _FILES]


def unnamed(
    connection: Connection,
    table_id: int,
    names: Collection[str],
    *,
    are_stored: bool = False,
) -> list[str]:
    """Return those of ``names`` that no row has, apart from rows to be deleted.

    ``are_stored`` says that these still exist: one for each time that a name is in ``names``.
    """
    others = Counter(dict.fromkeys(names, 0))
    if are_stored:
        others.subtract(names)
    others.update(name for (name,) in run_in(connection, _NAMED, list(others), table_id))
    return [name for name, count in others.items() if count == 0]
