"""Conflicts: when a transaction may not commit because another writer was first.

There are two reasons. *Rows*: another transaction that committed after this one began has removed
or changed a row that this one also removes or changes. The first committer wins. Appending touches
no existing row, so appends never conflict. *Tables*: a table was written under its definition at
the begin and would be read under that at the commit. Rows are bound to a table and its columns by
id, so added, dropped and renamed columns and a renamed table do no harm. A dropped table does, and
so does a change of kind, key, partitioning, type or nullability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlalchemy import Connection

from strandline.catalog import Catalog
from strandline.clock import Timestamp, format_timestamp
from strandline.model.descriptors import TableDescriptor
from strandline.sql import Query, first_row
from strandline.transactions import records
from strandline.transactions.tables import is_id
from strandline.transactions.transaction import Transaction

NameRow = Callable[[Connection, int, int, int], str | None]
"""Describes a row and its change in users' terms, given the table id, row id and write id."""


def clashing_rows_queries(txn_id: int) -> tuple[Query, ...]:
    """The query that `row_conflict` runs first; none if no transaction can have this id."""
    return ((_CLASHING, (txn_id, txn_id, txn_id)),) if is_id(txn_id) else ()


def row_conflict(
    connection: Connection,
    transaction: Transaction,
    *,
    catalog: Catalog,
    name_row: NameRow,
) -> str | None:
    """What another transaction did first to a row that this one changes, as a message; or None.

    ``catalog``, of the begin, has the name by which this transaction knows the table.
    """
    (clashing,) = clashing_rows_queries(transaction.txn_id)
    first = first_row(connection, *clashing)
    if first is None:
        return None
    table_id, row_id, txn_id, commit_time = first
    table = catalog.table_by_id(table_id)
    name = f"table {table_id}" if table is None else catalog.qualified_name(table)
    write_id = records.own_write_id(connection, txn_id, table_id)
    change_text = write_id and name_row(connection, table_id, row_id, write_id)
    user = records.find(connection, txn_id).user
    return (
        f"conflict on {name}: transaction {txn_id} of {user}, committed at"
        f" {format_timestamp(Timestamp(commit_time))},"
        f" {change_text or f'changed row {row_id}'}, which this transaction changes too"
    )


_CLASHING = (
    "SELECT other.table_id, other.row_id, other.txn_id, other.commit_time"
    " FROM txn_footprint AS own JOIN txn_footprint AS other ON own.row_id = other.row_id"
    " WHERE own.txn_id = ? AND other.txn_id <> ? AND other.commit_time >"
    " (SELECT begin_time FROM txn WHERE txn_id = ?) LIMIT 1"
)


def catalog_conflict(table_ids: Iterable[int], *, base: Catalog, now: Catalog) -> str | None:
    """What DDL did to one of the tables between the two catalogs, or None if nothing conflicts."""
    for table_id in table_ids:
        before, present = base.table_by_id(table_id), now.table_by_id(table_id)
        change = _change(before, present)
        if change:
            name = f"table {table_id}"
            # The user may not reach the schema into which it was moved.
            if before is not None:
                name = base.qualified_name(before)
            elif present is not None:
                name = now.qualified_name(present)
            return (
                f"conflict on {name}: the table {change} between catalog version {base.version}"
                f" and {now.version}"
            )
    return None


def _change(base: TableDescriptor | None, now: TableDescriptor | None) -> str | None:
    """Why ``now`` cannot hold what was written for ``base``, as a predicate, or None."""
    if now is None:  # perhaps already when the transaction of a plain change began
        return "was dropped"
    if base is None:
        return "did not exist when the transaction began; it may have been created"
    if base is now:  # at most commits; comparing a thousand columns holds up writers for 2 ms
        return None
    if (base.kind, base.transactional) != (now.kind, now.transactional):
        return "changed its kind"
    if base.primary_key != now.primary_key:
        return "changed its primary key"
    if base.partition_columns != now.partition_columns:
        return "changed its partitioning"
    present = {column.id: column for column in now.columns}
    for column in base.columns:
        present_column = present.get(column.id)
        if present_column is None:
            continue
        if present_column.type != column.type:
            return f"changed the type of column {present_column.name}"
        if present_column.nullable != column.nullable:
            return f"changed the nullability of column {present_column.name}"
    return None
