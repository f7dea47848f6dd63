"""The SQL statements on the rows of lock requests. Each runs on the caller's connection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    RowMapping,
    Select,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from strandline.sql import marks, run
from strandline.transactions.tables import LOCK_COMPONENT, LOCK_REQUEST, is_id

_REQUEST = LOCK_REQUEST.c
_COMPONENT = LOCK_COMPONENT.c
_FEW = 100  # names in one statement: databases limit the parameters of a statement
_SILENT_AFTER = _REQUEST.last_heartbeat + _REQUEST.timeout_ms


def add(connection: Connection, components: Iterable[dict[str, object]], **values: object) -> int:
    """Insert a waiting request with these values of `LOCK_REQUEST`; return its id."""
    added = insert(LOCK_REQUEST).values(**values).returning(_REQUEST.lock_id)
    lock_id: int = connection.execute(added).scalar_one()
    rows = [
        {"lock_id": lock_id, "number": number, **component}
        for number, component in enumerate(components)
    ]
    connection.execute(insert(LOCK_COMPONENT), rows)
    return lock_id


def find(connection: Connection, lock_id: int) -> list[RowMapping]:
    """The components of a request with its values, in their order; empty if it does not exist."""
    return shown(connection, lock_ids=[lock_id]) if is_id(lock_id) else []


def is_stored(connection: Connection, lock_id: int) -> bool:
    statement = select(_REQUEST.lock_id).where(_REQUEST.lock_id == lock_id)
    return connection.execute(statement).first() is not None


def earlier_components(
    connection: Connection,
    lock_id: int,
    *,
    schemas: Collection[str],
    tables: Collection[str | None],
    modes: Collection[int],
    txn_id: int | None,
) -> list[RowMapping]:
    """The different components of earlier requests that may overlap one on these schemas, tables.

    Only those with one of the ``modes``. Each is returned once, with the first request that has it.
    Requests of ``txn_id`` are skipped. None in ``tables`` means every table.
    """
    parts = _COMPONENT.schema, _COMPONENT.table, _COMPONENT.partition, _COMPONENT.mode
    statement = (
        select(*parts, func.min(_COMPONENT.lock_id).label("lock_id"))
        .join(LOCK_REQUEST, _REQUEST.lock_id == _COMPONENT.lock_id)
        .where(_COMPONENT.lock_id < lock_id, _COMPONENT.mode.in_(modes))
        .group_by(*parts)
    )
    if txn_id is not None:
        statement = statement.where(or_(_REQUEST.txn_id.is_(None), _REQUEST.txn_id != txn_id))
    if len(schemas) <= _FEW:
        statement = statement.where(_COMPONENT.schema.in_(schemas))
    if len(tables) <= _FEW and None not in tables:
        statement = statement.where(or_(_COMPONENT.table.is_(None), _COMPONENT.table.in_(tables)))
    return list(connection.execute(statement).mappings())


def component_count(connection: Connection, *, owner: str | None = None) -> int:
    """The number of components of all requests, or of those of ``owner``."""
    statement = select(func.count()).select_from(LOCK_COMPONENT)
    if owner is not None:
        of_owner = _REQUEST.lock_id == _COMPONENT.lock_id
        statement = statement.join(LOCK_REQUEST, of_owner).where(_REQUEST.owner == owner)
    return connection.execute(statement).scalar_one()


def set_state(connection: Connection, lock_id: int, **values: object) -> None:
    connection.execute(update(LOCK_REQUEST).where(_REQUEST.lock_id == lock_id).values(**values))


def remove(connection: Connection, lock_id: int) -> None:
    connection.execute(delete(LOCK_COMPONENT).where(_COMPONENT.lock_id == lock_id))
    connection.execute(delete(LOCK_REQUEST).where(_REQUEST.lock_id == lock_id))


def delete_of_txns(connection: Connection, txn_ids: Sequence[int]) -> None:
    """Delete the requests that belong to these transactions, which must be few."""
    for (lock_id,) in run(
        connection,
        f"SELECT lock_id FROM lock_request WHERE txn_id IN {marks(txn_ids)}",
        tuple(txn_ids),
    ):
        remove(connection, lock_id)


def delete_silent(connection: Connection, *, at: int) -> list[int]:
    """Delete requests without a transaction that are silent at ``at`` (ms); return their ids."""
    of_silent = _COMPONENT.lock_id.in_(_silent(at))
    connection.execute(delete(LOCK_COMPONENT).where(of_silent))
    deleted = delete(LOCK_REQUEST).where(_REQUEST.lock_id.in_(_silent(at)))
    return list(connection.execute(deleted.returning(_REQUEST.lock_id)).scalars())


def has_silent(connection: Connection, *, at: int) -> bool:
    """Whether `delete_silent` would delete anything."""
    return connection.execute(select(exists(_silent(at)))).scalar_one()


def shown(
    connection: Connection,
    *,
    schema: str | None = None,
    table: str | None = None,
    partition: str | None = None,
    txn_id: int | None = None,
    lock_ids: Collection[int] | None = None,
    limit: int | None = None,
) -> list[RowMapping]:
    """Components with the values of their requests, in the order of the queue."""
    filters = {
        _COMPONENT.schema: schema,
        _COMPONENT.table: table,
        _COMPONENT.partition: partition,
        _REQUEST.txn_id: txn_id,
    }
    columns: list[Any] = [column for column in _COMPONENT if column.name != "lock_id"]
    statement = (
        select(LOCK_REQUEST, *columns)
        .join(LOCK_COMPONENT, _REQUEST.lock_id == _COMPONENT.lock_id)
        .where(*(column == value for column, value in filters.items() if value is not None))
        .order_by(_REQUEST.lock_id, _COMPONENT.number)
        .limit(limit)
    )
    if lock_ids is not None:
        statement = statement.where(_REQUEST.lock_id.in_(lock_ids))
    return list(connection.execute(statement).mappings())


def _silent(at: int) -> Select[tuple[int]]:
    # A request of a transaction lives as long as the transaction.
    return select(_REQUEST.lock_id).where(_REQUEST.txn_id.is_(None), at > _SILENT_AFTER)
