"""``strandline status``: how the store in a folder stands."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import click
from rich.text import Text
from sqlalchemy import Connection, inspect, select

from strandline.cli.options import OUTPUT, STORE, Store, new_console, new_table, print_json
from strandline.cli.stores import address_of, catalogs_and_rows, database_of
from strandline.clock import Timestamp, format_timestamp
from strandline.logs import in_one_line
from strandline.sql import stored_time
from strandline.transactions import TransactionState
from strandline.transactions.tables import HOLD, TXN

MOST_SHOWN = 20
"""So many open transactions and holds are named; all are counted."""


@dataclass(frozen=True, slots=True)
class Status:
    """What ``--output json`` prints. Times are texts, sizes in bytes."""

    store: str
    environment: str
    version: int
    version_time: str
    earliest_version: int
    schemas: int
    tables: int
    views: int
    roles: int
    privileges_enforced: bool
    database_bytes: int
    open_transactions: int
    oldest_transactions: tuple[str, ...]
    holds: int
    oldest_holds: tuple[str, ...]


def status_of(store: Store) -> Status:
    """How the store stands, read without joining it. `NotFound`."""
    with database_of(store) as database:
        size = database.size()
    with catalogs_and_rows(store) as (history, state, connection):
        catalog = history.latest
        there = inspect(connection).has_table(TXN.name)
        transactions = _open_transactions(connection) if there else []
        holds = _holds(connection, stored_time(connection)) if there else []
        enforced = (catalog.configuration("enforce_privileges") or "").lower() in ("true", "on")
        return Status(
            store=address_of(store).name,
            environment=state.environment or "",
            version=catalog.version,
            version_time=format_timestamp(catalog.time),
            earliest_version=history.earliest.version,
            schemas=len(catalog.all_schemas()),
            tables=catalog.table_count(),
            views=catalog.contents.count("view"),
            roles=len(catalog.roles()),
            privileges_enforced=enforced,
            database_bytes=size,
            open_transactions=len(transactions),
            oldest_transactions=tuple(transactions[:MOST_SHOWN]),
            holds=len(holds),
            oldest_holds=tuple(holds[:MOST_SHOWN]),
        )


def _open_transactions(connection: Connection) -> list[str]:
    statement = (
        select(TXN.c.txn_id, TXN.c.user, TXN.c.host, TXN.c.begin_time, TXN.c.last_heartbeat)
        .where(TXN.c.state == TransactionState.OPEN.value)
        .order_by(TXN.c.begin_time)
    )
    now = int(time.time() * 1000)
    return [
        f"{txn_id} of {user}{f' at {host}' if host else ''}, begun "
        f"{format_timestamp(Timestamp(begin))}, heard of {max(0, now - beat) // 1000} s ago"
        for txn_id, user, host, begin, beat in connection.execute(statement)
    ]


def _holds(connection: Connection, now: Timestamp) -> list[str]:
    # Not all columns: a store of 0.2.0 that was not opened by this release has fewer.
    columns = HOLD.c.hold_id, HOLD.c.kind, HOLD.c.owner, HOLD.c.time
    statement = select(*columns).where(HOLD.c.expires > now).order_by(HOLD.c.time)
    return [
        f"{hold['hold_id']} ({hold['kind']}) of {hold['owner']}, keeps history from "
        f"{format_timestamp(Timestamp(hold['time']))} on"
        for hold in connection.execute(statement).mappings()
    ]


@click.command()
@STORE
@OUTPUT
def status(store: Store, *, output: str) -> None:
    """Show how STORE stands: versions, objects, open transactions and holds.

    It reads the store without joining it; a node may be running or not.
    """
    status = status_of(store)
    if output == "json":
        print_json(asdict(status))
        return
    table = new_table()
    for name, value in asdict(status).items():
        text = "\n".join(map(in_one_line, value)) if isinstance(value, tuple | list) else str(value)
        if text:
            table.add_row(Text(name.replace("_", " ")), Text(text))
    new_console().print(table)
