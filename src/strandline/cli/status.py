"""``strandline status``: show the present state of a store."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import click
from rich.text import Text

from strandline.cli.holders import age, holders_on
from strandline.cli.options import OUTPUT, STORE, Store, new_console, new_table, print_json
from strandline.cli.stores import address_of, catalogs_and_rows, database_of
from strandline.clock import HybridClock, Timestamp, format_timestamp
from strandline.logs import in_one_line
from strandline.metastore import interface
from strandline.node.catalog_log import LogPlace, log_name
from strandline.transactions import Holder, Holders, HolderType

MOST_SHOWN = 20
"""The number of open transactions, and of holds, that are listed; all are counted."""


@dataclass(frozen=True, slots=True)
class Status:
    """The record that ``--output json`` prints. Times are texts, sizes are in bytes."""

    store: str
    environment: str
    catalog_log: str
    deploy_generation: int
    epoch: int
    epoch_time: str
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
    """Read the status of the store without joining it. Raises `NotFound`."""
    address = address_of(store)
    with database_of(store) as database:
        size = database.size()
        catalog_log = log_name(LogPlace(database, address, HybridClock()))
    with catalogs_and_rows(store) as (history, state, connection):
        catalog = history.latest
        status = interface.status_of(
            state,
            catalog,
            earliest_version=history.earliest.version,
            catalog_log=catalog_log,
            database_bytes=size,
        )
        holders, now = holders_on(connection, store, catalog)
        return Status(
            store=address.name,
            **{
                **asdict(status),
                "epoch_time": format_timestamp(status.epoch_time),
                "version_time": format_timestamp(status.version_time),
            },
            open_transactions=holders.transactions,
            oldest_transactions=_shown(holders, HolderType.TRANSACTION, now),
            holds=holders.holds,
            oldest_holds=_shown(holders, HolderType.HOLD, now),
        )


def _shown(holders: Holders, holder_type: HolderType, now: Timestamp) -> tuple[str, ...]:
    return tuple(_line(holder, now) for holder in holders.of_type(holder_type)[:MOST_SHOWN])


def _line(holder: Holder, now: Timestamp) -> str:
    since = "" if holder.since is None else format_timestamp(holder.since)
    if holder.type is HolderType.HOLD:
        return f"{holder.id} ({holder.kind}) of {holder.owner}, keeps history from {since} on"
    client = f" ({holder.client})" if holder.client else ""
    heard = age(holder.heard_of, now)
    return f"{holder.id} of {holder.owner}{client}, begun {since}, last seen {heard} ago"


@click.command()
@STORE
@OUTPUT
def status(store: Store, *, output: str) -> None:
    """Show the state of STORE: versions, objects, open transactions and holds.

    The command reads the store without joining it; a node may be running.
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
