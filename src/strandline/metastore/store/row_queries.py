"""The SQL statements on rows and removals. Each runs on the caller's connection.

SQL filters by table, kind, name and high-water mark. The exceptions of the reader's list are
filtered here, since they are few and the parameters of a statement are limited.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import chain
from typing import Any

from sqlalchemy import Connection

from strandline import work
from strandline.clock import Timestamp, format_timestamp
from strandline.errors import CorruptData, VersionNotFound
from strandline.metastore.store.rows import PARAMETERS_NAME, NewRow, Row, RowKind, row_context
from strandline.sql import (
    CHUNK,
    Counter,
    Parameter,
    Query,
    change,
    change_each,
    in_lists,
    run,
    run_in,
    run_in_parts,
    value,
)
from strandline.transactions import TransactionState, ValidWriteIdList
from strandline.transactions.tables import LAST_ID, is_id
from strandline.wire.registry import seal

ROW_COLUMNS = ", ".join(
    f"store_row.{name}"
    for name in ("row_id", "table_id", "kind", "bucket", "name", "write_id", "body")
)
"""The columns that `row_from` reads."""
_OF_WRITE = f"SELECT {ROW_COLUMNS} FROM store_row WHERE table_id = ? AND write_id = ?"
_OF_KIND = f"SELECT {ROW_COLUMNS} FROM store_row WHERE table_id = ? AND kind = ?"
_SOME_OF_KIND = "SELECT 1 FROM store_row WHERE table_id = ? AND kind = ?"
_LIKE = " AND store_row.name LIKE ? ESCAPE '!'"
_VISIBLE = (
    f"SELECT {ROW_COLUMNS}, removal.write_id FROM store_row LEFT JOIN store_removal AS removal"
    " ON removal.row_id = store_row.row_id AND removal.write_id <= ?"
    " WHERE store_row.table_id = ? AND store_row.kind = ?"
    # An expression instead of the column, so that the planner uses the index by name.
    " AND store_row.write_id + 0 <= ?"
)
_NEWEST = (
    f"SELECT {ROW_COLUMNS}, removal.write_id FROM (SELECT * FROM store_row WHERE table_id = ?"
    " AND kind = ? AND name = ? AND row_id < ? ORDER BY row_id DESC LIMIT ?) AS store_row"
    " LEFT JOIN store_removal AS removal ON removal.row_id = store_row.row_id"
)
_NEXT_NAMES = (
    "SELECT DISTINCT name FROM store_row WHERE table_id = ? AND kind = ? AND name > ?"
    " ORDER BY name LIMIT ?"
)
_FEWEST = 8
"""How many rows of a name are read first: the newest is almost always visible."""
_FEW_NAMES = 16
"""Up to this many names are looked up newest row first."""
_FILES = (RowKind.DATA_FILE, RowKind.DELETE_FILE)
"""The kinds of rows of which each has a name of its own."""
_DROPPED = (
    f"SELECT {ROW_COLUMNS}, removal.write_id FROM store_removal AS removal"
    " JOIN store_row ON store_row.row_id = removal.row_id"
    " WHERE removal.table_id = ? AND store_row.kind = ? AND removal.write_id NOT IN"
    " (SELECT added.write_id FROM store_row AS added WHERE added.table_id = ? AND added.kind = ?)"
    " AND NOT EXISTS (SELECT 1 FROM cleaned_table AS cleaned JOIN txn_write_id AS writer"
    " ON writer.table_id = cleaned.table_id AND writer.commit_time <= cleaned.up_to"
    " WHERE cleaned.table_id = removal.table_id AND writer.write_id = removal.write_id)"
)
_ABORTED = (
    "SELECT own.write_id FROM txn_write_id AS own JOIN txn ON txn.txn_id = own.txn_id"
    " WHERE own.table_id = ? AND own.commit_time IS NULL"
    f" AND txn.state = {TransactionState.ABORTED.value}"
)
_ID, _NAME, _WRITE_ID, _REMOVER = 0, 4, 5, 7
"""The indexes of columns in a row of `_VISIBLE`."""
ROW_IDS = Counter("store_sequence", "row_id")
_KINDS = {kind.value: kind for kind in RowKind}
_SURROGATE = re.compile("[\ud800-\udfff]")


def visible_rows(
    connection: Connection,
    table_id: int,
    kind: RowKind,
    *,
    write_ids: ValidWriteIdList,
    names: Collection[str] | None = None,
    like: str | None = None,
    limit: int | None = None,
) -> dict[str, Row]:
    """The rows of a kind that are visible to ``write_ids``, by name, in the order of names.

    ``like`` and ``limit`` are as in `ObjectStore.rows`.
    """
    if kind is RowKind.TABLE_PARAMETERS:
        names = [PARAMETERS_NAME]
    if names is None and like is None and limit is not None:
        return _first_rows(connection, table_id, kind, limit, write_ids=write_ids)
    if names is not None and len(names) <= _FEW_NAMES and kind not in _FILES:
        newest_rows = _newest_rows(connection, table_id, kind, names, write_ids=write_ids)
        return {row.name: row for row in sorted(newest_rows, key=lambda row: row.name)}
    if names is None:
        work.require(lambda limit: _count_rows(connection, table_id, kind, limit, like=like))
    # Many rows share few write ids; a cache for a few rows takes longer than they do.
    is_small = names is not None and len(names) <= _FEW_NAMES
    valid = write_ids.valid if is_small else cache(write_ids.valid)
    stored: list[Sequence[Any]] = []
    removed: set[int] = set()
    for statement, parameters in visible_queries(
        table_id, kind, names, hwm=write_ids.hwm, like=like
    ):
        reading: AbstractContextManager[Iterable[Sequence[Any]]]
        if names is None:
            reading = fetched(connection, statement, parameters)
        else:
            reading = nullcontext(work.spending(run(connection, statement, parameters)))
        with reading as rows:
            for columns in rows:
                if valid(columns[_WRITE_ID]):
                    stored.append(columns)
                    if columns[_REMOVER] is not None and valid(columns[_REMOVER]):
                        removed.add(columns[_ID])
    newest: dict[str, Sequence[Any]] = {}
    for columns in stored:
        other = newest.get(columns[_NAME])
        if columns[_ID] not in removed and (other is None or other[_ID] < columns[_ID]):
            newest[columns[_NAME]] = columns
    return {name: row_from(newest[name][:_REMOVER]) for name in sorted(newest)}


def _first_rows(
    connection: Connection, table_id: int, kind: RowKind, limit: int, *, write_ids: ValidWriteIdList
) -> dict[str, Row]:
    """The visible rows of the first names, until there are ``limit``. No name is empty."""
    first: dict[str, Row] = {}
    last_name, page = "", max(limit, CHUNK)
    while len(first) < limit:
        # The first names may be those of dropped partitions.
        next_names = (table_id, kind.value, last_name, page)
        names = [name for (name,) in run(connection, _NEXT_NAMES, next_names)]
        if len(names) < page and not last_name:  # all are wanted: one query reads them
            return visible_rows(connection, table_id, kind, write_ids=write_ids)
        if not names:
            break
        first |= visible_rows(connection, table_id, kind, write_ids=write_ids, names=names)
        last_name = names[-1]
    return {name: first[name] for name in sorted(first)}


def _newest_rows(
    connection: Connection,
    table_id: int,
    kind: RowKind,
    names: Iterable[str],
    *,
    write_ids: ValidWriteIdList,
) -> Iterator[Row]:
    """The newest visible row of each name: each change adds one, and old ones stay for long."""
    below, limit = dict.fromkeys(_storable(names), LAST_ID), _FEWEST
    while below:
        statement = " UNION ALL ".join([_NEWEST] * len(below))
        of_names = [(table_id, kind.value, name, row_id, limit) for name, row_id in below.items()]
        of_rows: dict[int, list[Sequence[Any]]] = {}
        for columns in work.spending(run(connection, statement, tuple(chain(*of_names)))):
            of_rows.setdefault(columns[_ID], []).append(columns)
        rest: dict[str, int] = {}
        visible: set[str] = set()
        for row_id in sorted(of_rows, reverse=True):
            (*first, _) = of_rows[row_id][0]
            name = first[_NAME]
            if name in visible:
                continue
            removers = [columns[_REMOVER] for columns in of_rows[row_id]]
            if write_ids.valid(first[_WRITE_ID]) and not any(
                remover is not None and write_ids.valid(remover) for remover in removers
            ):
                visible.add(name)
                rest.pop(name, None)
                yield row_from(first)
            else:
                rest[name] = row_id
        below, limit = rest, min(4 * limit, CHUNK)


def visible_queries(
    table_id: int,
    kind: RowKind,
    names: Collection[str] | None,
    *,
    hwm: int = LAST_ID,
    like: str | None = None,
) -> Iterator[Query]:
    """The queries of `visible_rows`; without ``hwm``, to be asked before the list is read."""
    parameters: tuple[Parameter, ...] = (hwm, table_id, kind.value, hwm)
    if names is None and like is not None:
        return iter([(_VISIBLE + _LIKE, (*parameters, like))])
    return _narrowed(_VISIBLE, parameters, names)


def _count_rows(
    connection: Connection, table_id: int, kind: RowKind, limit: int, *, like: str | None
) -> int:
    """Count the rows of a kind, visible or not, up to ``limit``."""
    pattern = () if like is None else (like,)
    counted = f"{_SOME_OF_KIND}{_LIKE if pattern else ''} LIMIT ?"
    statement = f"SELECT count(*) FROM ({counted}) AS counted"
    return int(value(connection, statement, (table_id, kind.value, *pattern, limit)))


_KEPT = (
    "SELECT (SELECT up_to FROM cleaned_table WHERE table_id = ?),"
    " EXISTS (SELECT 1 FROM next_write_id WHERE table_id = ?)"
)


def kept_query(table_id: int) -> Query:
    """The first query of `require_kept`."""
    return _KEPT, (table_id, table_id)


def require_kept(connection: Connection, table_id: int, write_ids: ValidWriteIdList) -> None:
    """Raise `VersionNotFound` if rows that are visible to ``write_ids`` may have been cleaned.

    A list with every commit up to the limit of the cleaning misses nothing, unless the whole table
    is cleaned: then the number of its next write goes first.
    """
    ((up_to, is_known),) = run(connection, *kept_query(table_id))
    if write_ids.hwm and not is_known:
        raise VersionNotFound(
            f"no version that is kept has the table with the id {table_id}, so its files have been"
            " cleaned; hold the history that you go on reading"
        )
    if up_to is None:
        return
    unseen = "SELECT 1 FROM txn_write_id WHERE table_id = ? AND commit_time <= ? AND write_id "
    of_table: tuple[Parameter, ...] = (table_id, up_to)
    above = value(connection, f"{unseen} > ? LIMIT 1", (*of_table, write_ids.hwm))
    within = (
        value(connection, f"{unseen} IN {in_list} LIMIT 1", (*of_table, *exceptions))
        for in_list, exceptions in in_lists(write_ids.exceptions)
    )
    if above is not None or any(hidden is not None for hidden in within):
        raise VersionNotFound(
            f"files that were removed up to {format_timestamp(up_to)} have been cleaned, and this"
            " snapshot is older; read at a later time, and hold the history that you go on reading"
        )


def cleaned_up_to(connection: Connection, table_id: int) -> Timestamp | None:
    """The commit time up to which removed rows of a table may be cleaned, or None if none are."""
    up_to = value(connection, "SELECT up_to FROM cleaned_table WHERE table_id = ?", (table_id,))
    return None if up_to is None else Timestamp(up_to)


def cleaned_tables(connection: Connection) -> dict[int, Timestamp]:
    """`cleaned_up_to` of each table that has one."""
    rows = run(connection, "SELECT table_id, up_to FROM cleaned_table", ())
    return {table_id: Timestamp(up_to) for table_id, up_to in rows}


@contextmanager
def fetched(
    connection: Connection, statement: str, parameters: tuple[Parameter, ...]
) -> Iterator[Iterable[Sequence[Any]]]:
    """The rows of a statement, fetched in chunks. Raises `TooLong`."""
    with run_in_parts(connection, statement, parameters, rows=CHUNK) as parts:
        yield work.spending(chain.from_iterable(parts))


def _narrowed(
    statement: str, parameters: tuple[Parameter, ...], names: Collection[str] | None
) -> Iterator[tuple[str, tuple[Parameter, ...]]]:
    """The statement for all rows, or one statement for each chunk of names."""
    if names is None:
        yield statement, parameters
        return
    for in_list, some_names in in_lists(dict.fromkeys(_storable(names))):
        yield f"{statement} AND store_row.name IN {in_list}", (*parameters, *some_names)


def _storable(names: Iterable[str]) -> Iterator[str]:
    """The names that a row may have: databases refuse a question about any other text."""
    return (
        name
        for name in names
        if "\0" not in name and (name.isascii() or not _SURROGATE.search(name))
    )


def rows_of_dropped_partitions(
    connection: Connection,
    table_id: int,
    kind: RowKind,
    *,
    write_ids: ValidWriteIdList,
    names: Collection[str] | None,
) -> list[tuple[Row, int]]:
    """Rows of partitions that a visible write dropped, each with that write id; oldest drop first.

    A write that also added partitions altered or renamed partitions, and dropped none. Drops up to
    the last cleaning are left out: some of their rows may be gone. ``kind`` is that of partitions
    or of their statistics. Some statistics may only have been replaced.
    """
    of_table: tuple[Parameter, ...] = (table_id, kind.value, table_id, RowKind.PARTITION.value)
    removed_rows = [
        (row_from(columns[:-1]), columns[-1])
        for statement, parameters in _narrowed(_DROPPED, of_table, names)
        for columns in run(connection, statement, parameters)
    ]
    dropped = (removed for removed in removed_rows if write_ids.valid(removed[0].write_id))
    return sorted(
        ((row, remover) for row, remover in dropped if write_ids.valid(remover)),
        key=lambda removed: (removed[1], removed[0].row_id),
    )


def commit_times(
    connection: Connection, table_id: int, write_ids: Iterable[int]
) -> dict[int, Timestamp]:
    """The commit times of those of these write ids of a table that have one."""
    statement = (
        "SELECT write_id, commit_time FROM txn_write_id"
        " WHERE table_id = ? AND commit_time IS NOT NULL AND write_id IN"
    )
    return dict(run_in(connection, statement, write_ids, table_id))


def rows_with_removers(
    connection: Connection, row_ids: Collection[int]
) -> dict[int, tuple[Row, list[int]]]:
    """The rows that exist among ``row_ids``, each with the write ids that removed it."""
    rows = {row.row_id: (row, list[int]()) for row in rows_by_id(connection, row_ids).values()}
    removers = "SELECT row_id, write_id FROM store_removal WHERE row_id IN"
    for row_id, write_id in run_in(connection, removers, rows):
        rows[row_id][1].append(write_id)
    return rows


def rows_by_id(connection: Connection, row_ids: Collection[int]) -> dict[int, Row]:
    """The rows that exist among ``row_ids``, visible or not."""
    statement = f"SELECT {ROW_COLUMNS} FROM store_row WHERE row_id IN"
    possible_ids = [row_id for row_id in row_ids if is_id(row_id)]
    rows = map(row_from, run_in(connection, statement, possible_ids))
    return {row.row_id: row for row in rows}


def add_rows(
    connection: Connection, table_id: int, write_id: int, rows: Sequence[NewRow], *, first: int
) -> None:
    """Insert rows under a write id, with consecutive row ids from ``first`` on."""
    change_each(
        connection,
        "INSERT INTO store_row (row_id, table_id, kind, bucket, name, write_id, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                row_id,
                table_id,
                row.kind.value,
                row.bucket,
                row.name,
                write_id,
                _sealed(row_id, table_id, write_id, row),
            )
            for row_id, row in enumerate(rows, first)
        ],
    )


def _sealed(row_id: int, table_id: int, write_id: int, row: NewRow) -> bytes:
    return seal(row.body, row_context(row_id, table_id, row.kind, row.bucket, row.name, write_id))


def add_removals(
    connection: Connection, table_id: int, write_id: int, row_ids: Iterable[int]
) -> None:
    change_each(
        connection,
        "INSERT INTO store_removal (row_id, write_id, table_id) VALUES (?, ?, ?)",
        [(row_id, write_id, table_id) for row_id in row_ids],
    )


def delete_rows(connection: Connection, row_ids: Collection[int]) -> None:
    for in_list, ids in in_lists(row_ids):
        for name in ("store_removal", "store_row"):
            change(connection, f"DELETE FROM {name} WHERE row_id IN {in_list}", ids)


def count_of_write(connection: Connection, table_id: int, write_id: int, limit: int) -> int:
    """Count the rows and removals of a write id in a table, up to ``limit``."""
    of_write = " FROM {} WHERE table_id = ? AND write_id = ?"
    rows_and_removals = " UNION ALL ".join(
        f"SELECT 1{of_write.format(name)}" for name in ("store_row", "store_removal")
    )
    count = f"SELECT count(*) FROM ({rows_and_removals} LIMIT ?) AS counted"
    return int(value(connection, count, (*(table_id, write_id) * 2, limit)))


def rows_of_write(connection: Connection, table_id: int, write_id: int) -> list[Row]:
    """The rows that a write id added to a table, in the order of staging."""
    rows = run(connection, f"{_OF_WRITE} ORDER BY row_id", (table_id, write_id))
    return list(map(row_from, rows))


def staged_query(table_id: int, write_id: int, ids: range) -> Query:
    """The query for the rows of ``ids`` that a write id added to a table; see `row_from`."""
    parameters = (table_id, write_id, ids.start, ids.stop - 1)
    return f"{_OF_WRITE} AND row_id BETWEEN ? AND ? ORDER BY row_id", parameters


def rows_of_kind(
    connection: Connection, table_id: int, kind: RowKind, *, write_id: int | None
) -> list[Row]:
    """All rows of a kind that are not aborted; with ``write_id``, only those that it added."""
    if write_id is not None:
        of_write = f"{_OF_KIND} AND write_id = ?"
        return list(map(row_from, run(connection, of_write, (table_id, kind.value, write_id))))
    aborted = aborted_write_ids(connection, table_id)
    rows = map(row_from, run(connection, _OF_KIND, (table_id, kind.value)))
    return [row for row in rows if row.write_id not in aborted]


def removed_by_write(connection: Connection, table_id: int, write_id: int) -> list[int]:
    """The ids of the rows of a table that a write id removed, in order."""
    removed = "SELECT row_id FROM store_removal WHERE table_id = ? AND write_id = ? ORDER BY row_id"
    return [row_id for (row_id,) in run(connection, removed, (table_id, write_id))]


def name_change(connection: Connection, table_id: int, row_id: int, write_id: int) -> str | None:
    """Describe for users what a write id did to a row; None if there is no such row."""
    row = rows_by_id(connection, [row_id]).get(row_id)
    if row is None:
        return None
    removed = value(
        connection,
        "SELECT 1 FROM store_removal WHERE row_id = ? AND table_id = ? AND write_id = ?",
        (row_id, table_id, write_id),
    )
    match row.kind:
        case RowKind.DATA_FILE:
            return f"{'removed' if removed else 'deleted rows of'} the data file {row.name}"
        case RowKind.PARTITION:
            return f"{'dropped' if removed else 'changed'} the partition {row.name}"
        case _:
            return f"changed {row.name or 'the parameters of the table'}"


def aborted_write_ids(connection: Connection, table_id: int) -> frozenset[int]:
    """All aborted write ids: a list contains only those below its high-water mark."""
    return frozenset(write_id for (write_id,) in run(connection, _ABORTED, (table_id,)))


def row_from(values: Sequence[object]) -> Row:
    """The row with these values of `ROW_COLUMNS`. Raises `CorruptData` if its kind is unknown."""
    row_id, table_id, kind, bucket, name, write_id, body = values
    if kind not in _KINDS:
        raise unknown_kind(row_id, table_id, kind)
    return Row(row_id, table_id, _KINDS[kind], bucket, name, write_id, body)  # type: ignore[arg-type]  # columns whose types the table declares


def unknown_kind(row_id: object, table_id: object, kind: object) -> CorruptData:
    return CorruptData(
        f"row {row_id} of table {table_id} has the unknown kind {kind}; restore the store from a "
        "backup"
    )
