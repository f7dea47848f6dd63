"""The statements on rows and removals. Each runs on the caller's connection.

SQL narrows by table, kind, name and high-water mark; the exceptions of the reader's list are taken
out here, since there are few of them and a statement's parameters are limited.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Result, Select, and_, func, insert, select

from strandline import work
from strandline.errors import CorruptData
from strandline.metastore.store.rows import NewRow, Removal, Row, RowKind, row_context
from strandline.metastore.store.tables import STORE_REMOVAL, STORE_ROW
from strandline.transactions import TransactionState, ValidWriteIdList
from strandline.transactions.tables import LAST_ID, TXN, TXN_WRITE_ID
from strandline.transactions.valid_ids import write_ids_at
from strandline.wire.registry import seal

T = TypeVar("T")
Statement = Select[Any]  # a column each for every attribute of a row
CHUNK = 500  # names or ids in one statement: databases limit the parameters of a statement

_ROW = STORE_ROW.c
_REMOVAL = STORE_REMOVAL.c
_COLUMNS = (
    _ROW.row_id,
    _ROW.table_id,
    _ROW.kind,
    _ROW.bucket,
    _ROW.name,
    _ROW.write_id,
    _ROW.body,
)
_KINDS = {kind.value: kind for kind in RowKind}


@dataclass(frozen=True, slots=True)
class TableContents:
    """All rows and removals of a table that are not aborted, and what is committed of them.

    ``event_id`` is the last event of the notification log that they reflect.
    """

    rows: tuple[Row, ...]
    removals: tuple[Removal, ...]
    committed: ValidWriteIdList
    event_id: int


def visible_rows(
    connection: Connection,
    table_id: int,
    kind: RowKind,
    *,
    write_ids: ValidWriteIdList,
    names: Collection[str] | None = None,
) -> dict[str, Row]:
    """The rows of a kind that ``write_ids`` shows, by name, in the order of names."""
    base = (
        select(*_COLUMNS, _REMOVAL.write_id)
        .select_from(
            STORE_ROW.outerjoin(
                STORE_REMOVAL,
                and_(_REMOVAL.row_id == _ROW.row_id, _REMOVAL.write_id <= write_ids.hwm),
            )
        )
        .where(_ROW.table_id == table_id, _ROW.kind == kind.value)
        # An expression, not the column: its index must not be preferred to the one by name.
        .where(_ROW.write_id + 0 <= write_ids.hwm)
    )
    found: dict[int, Row] = {}
    removed: set[int] = set()
    for statement in _narrowed(base, names):
        for *columns, remover in _fetched(connection.execute(statement)):
            row = _row(columns)
            if not write_ids.valid(row.write_id):
                continue
            if remover is not None and write_ids.valid(remover):
                removed.add(row.row_id)
            found[row.row_id] = row
    newest_last = sorted(row_id for row_id in found if row_id not in removed)
    by_name = {found[row_id].name: found[row_id] for row_id in newest_last}
    return dict(sorted(by_name.items()))


def _fetched(result: Result[Any]) -> Iterator[Sequence[Any]]:
    """The rows of a statement, fetched many at once. Raises `TooLong`."""
    for fetched in result.partitions(CHUNK):
        work.spend(len(fetched))
        yield from fetched


def _narrowed(base: Statement, names: Collection[str] | None) -> Iterator[Statement]:
    if names is None:
        yield base
        return
    for chunk in chunks(dict.fromkeys(names)):
        yield base.where(_ROW.name.in_(chunk))


def dropped_partitions(
    connection: Connection,
    table_id: int,
    *,
    write_ids: ValidWriteIdList,
    names: Collection[str] | None,
) -> list[tuple[Row, int]]:
    """Partitions that a visible write dropped, each with that write id; oldest drop first.

    A write that also added partitions altered or renamed them and dropped none.
    """
    added = select(_ROW.write_id).where(
        _ROW.table_id == table_id, _ROW.kind == RowKind.PARTITION.value
    )
    base = (
        select(*_COLUMNS, _REMOVAL.write_id)
        .select_from(STORE_REMOVAL.join(STORE_ROW, _ROW.row_id == _REMOVAL.row_id))
        .where(_REMOVAL.table_id == table_id, _ROW.kind == RowKind.PARTITION.value)
        .where(_REMOVAL.write_id.not_in(added))
    )
    removed_rows = [
        (_row(columns[:-1]), columns[-1])
        for statement in _narrowed(base, names)
        for columns in connection.execute(statement)
    ]
    dropped = (one for one in removed_rows if write_ids.valid(one[0].write_id))
    return sorted(
        ((row, remover) for row, remover in dropped if write_ids.valid(remover)),
        key=lambda one: (one[1], one[0].row_id),
    )


def rows_with_removers(
    connection: Connection, row_ids: Collection[int]
) -> dict[int, tuple[Row, list[int]]]:
    """The rows that exist among ``row_ids``, each with the write ids that removed it."""
    found: dict[int, tuple[Row, list[int]]] = {}
    for chunk in chunks(row_id for row_id in row_ids if 0 < row_id <= LAST_ID):
        statement = select(*_COLUMNS).where(_ROW.row_id.in_(chunk))
        found |= {row.row_id: (row, []) for row in map(_row, connection.execute(statement))}
        removers = select(_REMOVAL.row_id, _REMOVAL.write_id).where(_REMOVAL.row_id.in_(chunk))
        for row_id, write_id in connection.execute(removers):
            found[row_id][1].append(write_id)
    return found


def rows_by_id(connection: Connection, row_ids: Collection[int]) -> dict[int, Row]:
    """The rows that exist among ``row_ids``, visible or not."""
    rows: dict[int, Row] = {}
    for chunk in chunks(row_ids):
        statement = select(*_COLUMNS).where(_ROW.row_id.in_(chunk))
        rows |= {row.row_id: row for row in map(_row, connection.execute(statement))}
    return rows


def add_rows(connection: Connection, table_id: int, write_id: int, rows: Sequence[NewRow]) -> range:
    """Insert rows under a write id; their ids, which follow each other."""
    if not rows:
        return range(0)
    first = _take_row_ids(connection, len(rows))
    connection.execute(
        insert(STORE_ROW),
        [
            {
                "row_id": first + number,
                "table_id": table_id,
                "kind": row.kind.value,
                "bucket": row.bucket,
                "name": row.name,
                "write_id": write_id,
                "body": _sealed(first + number, table_id, write_id, row),
            }
            for number, row in enumerate(rows)
        ],
    )
    return range(first, first + len(rows))


def _sealed(row_id: int, table_id: int, write_id: int, row: NewRow) -> bytes:
    return seal(row.body, row_context(row_id, table_id, row.kind, row.bucket, row.name, write_id))


def add_removals(
    connection: Connection, table_id: int, write_id: int, row_ids: Iterable[int]
) -> None:
    """Note that ``write_id`` ends these rows."""
    added = [{"row_id": r, "table_id": table_id, "write_id": write_id} for r in row_ids]
    if added:
        connection.execute(insert(STORE_REMOVAL), added)


def rows_of_write(
    connection: Connection, table_id: int, write_id: int, *, ids: range | None = None
) -> list[Row]:
    """What a write id added to a table, in the order of staging; with ``ids``, of these."""
    statement = select(*_COLUMNS).where(_ROW.table_id == table_id, _ROW.write_id == write_id)
    if ids is not None:
        statement = statement.where(_ROW.row_id.between(ids.start, ids.stop - 1))
    return [_row(values) for values in connection.execute(statement.order_by(_ROW.row_id))]


def rows_of_kind(
    connection: Connection, table_id: int, kind: RowKind, *, write_id: int | None = None
) -> list[Row]:
    """All rows of a kind that are not aborted; with ``write_id``, those that it added."""
    of_kind = select(*_COLUMNS).where(_ROW.table_id == table_id, _ROW.kind == kind.value)
    if write_id is not None:
        of_kind = of_kind.where(_ROW.write_id == write_id)
    aborted = _aborted_write_ids(connection, table_id)
    rows = map(_row, connection.execute(of_kind))
    return [row for row in rows if row.write_id not in aborted]


def removals_of_write(connection: Connection, table_id: int, write_id: int) -> list[Removal]:
    """What a write id removed from a table, by row id."""
    statement = select(_REMOVAL.row_id).where(
        _REMOVAL.table_id == table_id, _REMOVAL.write_id == write_id
    )
    row_ids = connection.execute(statement.order_by(_REMOVAL.row_id)).scalars()
    return [Removal(row_id, table_id, write_id) for row_id in row_ids]


def name_change(connection: Connection, table_id: int, row_id: int, write_id: int) -> str | None:
    """What a write id did to a row, as users call both; None for a row that is not there."""
    row = rows_by_id(connection, [row_id]).get(row_id)
    if row is None:
        return None
    removed = connection.execute(
        select(_REMOVAL.row_id).where(
            _REMOVAL.row_id == row_id,
            _REMOVAL.table_id == table_id,
            _REMOVAL.write_id == write_id,
        )
    ).first()
    match row.kind:
        case RowKind.DATA_FILE:
            return f"{'removed' if removed else 'deleted rows of'} the data file {row.name}"
        case RowKind.PARTITION:
            return f"{'dropped' if removed else 'changed'} the partition {row.name}"
        case _:
            return f"changed {row.name or 'the parameters of the table'}"


def table_contents(
    connection: Connection, table_id: int, *, event_id: int, max_bytes: int, max_rows: int
) -> TableContents | None:
    """Everything of a table that a cache needs; None if that exceeds the limits."""
    of_table = _ROW.table_id == table_id
    weight = func.sum(func.length(_ROW.body) + func.length(_ROW.name))
    rows_and_weight = select(func.count(), weight).where(of_table)
    count, size = connection.execute(rows_and_weight).one()
    if count > max_rows or (size or 0) > max_bytes:
        return None
    committed = write_ids_at(connection, table_id, at=None)
    aborted = _aborted_write_ids(connection, table_id)
    rows = map(_row, _fetched(connection.execute(select(*_COLUMNS).where(of_table))))
    statement = select(_REMOVAL.row_id, _REMOVAL.write_id).where(_REMOVAL.table_id == table_id)
    removals = [Removal(r, table_id, w) for r, w in connection.execute(statement)]
    return TableContents(
        rows=tuple(row for row in rows if row.write_id not in aborted),
        removals=tuple(removal for removal in removals if removal.write_id not in aborted),
        committed=committed,
        event_id=event_id,
    )


def _aborted_write_ids(connection: Connection, table_id: int) -> frozenset[int]:
    """All of them: a list names only those below its high-water mark."""
    ids = TXN_WRITE_ID.c
    return frozenset(
        connection.execute(
            select(ids.write_id)
            .select_from(TXN_WRITE_ID.join(TXN, TXN.c.txn_id == ids.txn_id))
            .where(ids.table_id == table_id, ids.commit_time.is_(None))
            .where(TXN.c.state == TransactionState.ABORTED.value)
        ).scalars()
    )


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """``items`` in lists that fit a statement."""
    rest = iter(items)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def _take_row_ids(connection: Connection, count: int) -> int:
    """The first of ``count`` new row ids."""
    last = connection.exec_driver_sql(
        f"INSERT INTO store_sequence (id, row_id) VALUES (1, {count:d}) ON CONFLICT (id)"
        " DO UPDATE SET row_id = store_sequence.row_id + excluded.row_id RETURNING row_id"
    ).scalar_one()
    return int(last) - count + 1


def _row(values: Sequence[object]) -> Row:
    row_id, table_id, kind, bucket, name, write_id, body = values
    if kind not in _KINDS:
        raise CorruptData(
            f"row {row_id} of table {table_id} has kind {kind}, which is none; restore the store "
            "from a backup"
        )
    return Row(row_id, table_id, _KINDS[kind], bucket, name, write_id, body)  # type: ignore[arg-type]  # columns of `_COLUMNS`, whose types the table declares
