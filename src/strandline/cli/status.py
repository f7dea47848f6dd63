"""The commands ``status``, ``holders`` and ``storage-usage``: show the present state of a store.

They read the store without joining it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click
from sqlalchemy import Connection, inspect

from strandline.catalog import Catalog
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.configuration import HISTORY_RETENTION
from strandline.catalog.storage_usage import latest_storage_usage, storage_usage_of
from strandline.cli.options import (
    OUTPUT,
    STORE,
    YES,
    Store,
    cells,
    counted,
    print_json,
    print_table,
)
from strandline.cli.stores import address_of, catalogs_of, reading
from strandline.clock import HybridClock, Timestamp, format_timestamp, milliseconds
from strandline.errors import ObjectNotFound
from strandline.logs import in_one_line
from strandline.metastore import interface
from strandline.model.identifiers import QualifiedName
from strandline.node.catalog_log import LogPlace, log_name
from strandline.node.settings import load
from strandline.sql import present_time
from strandline.transactions import Holder, Holders, HolderType
from strandline.transactions.holders import MAX_HOLDERS, read_holders
from strandline.transactions.tables import LOCK_REQUEST, TXN

MAX_SHOWN = 20
"""The number of open transactions, and of holds, that are listed; all are counted."""


def status_of(store: Store) -> dict[str, object]:
    """Return what ``--output json`` prints, with times as texts. Raises `NotFound`."""
    address = address_of(store)
    with reading(store) as (state, database):
        catalog = catalogs_of(state).latest
        status = interface.status_of(
            state,
            catalog,
            earliest_version=state.log.frontier().since,
            catalog_log=log_name(LogPlace(database, address, HybridClock())),
            database_bytes=database.size(),
        )
        with database.read() as connection:
            holders, now = holders_on(connection, store, catalog)
        return {
            "store": address.name,
            **asdict(status),
            "epoch_time": format_timestamp(status.epoch_time),
            "version_time": format_timestamp(status.version_time),
            "open_transactions": holders.transactions,
            "oldest_transactions": _shown(holders, HolderType.TRANSACTION, now),
            "holds": holders.holds,
            "oldest_holds": _shown(holders, HolderType.HOLD, now),
        }


def _shown(holders: Holders, holder_type: HolderType, now: Timestamp) -> tuple[str, ...]:
    return tuple(_line(holder, now) for holder in holders.of_type(holder_type)[:MAX_SHOWN])


def _line(holder: Holder, now: Timestamp) -> str:
    since = "" if holder.since is None else format_timestamp(holder.since)
    if holder.type is HolderType.HOLD:
        return f"{holder.id} ({holder.kind}) of {holder.owner}, keeps history from {since} on"
    client = f" ({holder.client})" if holder.client else ""
    last_seen = age(holder.heard_of, now)
    return f"{holder.id} of {holder.owner}{client}, begun {since}, last seen {last_seen} ago"


@click.command()
@STORE
@OUTPUT
def status(store: Store, *, output: str) -> None:
    """Show the state of STORE: versions, objects, open transactions and holds.

    The command reads the store without joining it; a node may be running.
    """
    status = status_of(store)
    if output == "json":
        print_json(status)
        return
    rows = []
    for name, value in status.items():
        if isinstance(value, bool):
            value = YES[value]
        text = "\n".join(map(in_one_line, value)) if isinstance(value, tuple) else str(value)
        if text:
            rows.append((name.replace("_", " "), text))
    print_table((), rows)


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def holders_on(connection: Connection, store: Store, catalog: Catalog) -> tuple[Holders, Timestamp]:
    """Return the holders of the store, read on ``connection``, and the store's present time."""
    now = present_time(connection, HybridClock())
    tables = inspect(connection)
    if not tables.has_table(TXN.name):  # no node has finished opening it yet
        return Holders(now, None, transactions=0, holds=0, locks=0, holders=()), now
    retention_ms = HISTORY_RETENTION.value(catalog)
    if retention_ms is None:
        retention_ms = load(store).settings.history_retention_ms
    has_locks = tables.has_table(LOCK_REQUEST.name)
    return read_holders(connection, now=now, retention_ms=retention_ms, has_locks=has_locks), now


def age(since: Timestamp | None, now: Timestamp) -> str:
    """Return the time from ``since`` to ``now`` in its two largest units, or "" for None."""
    if since is None:
        return ""
    seconds = max(0, milliseconds(now) - milliseconds(since)) // 1000
    parts: list[str] = []
    for size, unit in _UNITS:
        count, seconds = divmod(seconds, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


@click.command()
@STORE
@OUTPUT
def holders(store: Store, *, output: str) -> None:
    """Show what keeps history, write ids or locks of STORE, the oldest first.

    Holders are open transactions, holds and locks. The command reads the store without joining it;
    a node may be running.
    """
    with reading(store) as (state, database), database.read() as connection:
        present, now = holders_on(connection, store, catalogs_of(state).latest)
    if output == "json":
        for holder in present.holders:
            print_json(_record(holder, now))
        print_json(_summary(present))
        return
    _print_table(present.holders, now)
    for line in _last_lines(present):
        click.echo(line)


def _print_table(listed: tuple[Holder, ...], now: Timestamp) -> None:
    if not listed:
        return
    rows = []
    for holder in listed:
        last_seen = age(holder.heard_of, now)
        rows.append(
            cells(
                holder.type.value,
                str(holder.id),
                holder.kind,
                holder.owner,
                holder.client,
                age(holder.since, now),
                last_seen and f"{last_seen} ago",
                "" if holder.ends is None else age(now, holder.ends),
                "; ".join(holder.keeps),
            )
        )
    columns = "holder", "id", "kind", "owner", "client", "age", "last seen", "expires in"
    print_table((*columns, "keeps back"), rows)


def _last_lines(present: Holders) -> Iterator[str]:
    counts = present.transactions, present.holds, present.locks
    yield "open transactions: {}, holds: {}, locks: {}".format(*counts)
    if max(counts) > MAX_HOLDERS:
        yield f"the oldest {MAX_HOLDERS} of each are listed"
    yield f"history is needed from {format_timestamp(present.low_watermark)} on"


def _record(holder: Holder, now: Timestamp) -> dict[str, object]:
    since, heard_of, ends = (
        None if at is None else format_timestamp(at)
        for at in (holder.since, holder.heard_of, holder.ends)
    )
    age_ms = None if holder.since is None else milliseconds(now) - milliseconds(holder.since)
    return {
        "holder": holder.type.value,
        "id": holder.id,
        "kind": holder.kind,
        "owner": holder.owner,
        "client": holder.client,
        "since": since,
        "age_ms": age_ms,
        "heard_of": heard_of,
        "ends": ends,
        "keeps": list(holder.keeps),
    }


def _summary(present: Holders) -> dict[str, object]:
    return {
        "holder": "summary",
        "transactions": present.transactions,
        "holds": present.holds,
        "locks": present.locks,
        "low_watermark": format_timestamp(present.low_watermark),
        "min_open_txn": present.min_open_txn,
    }


@click.command("storage-usage")
@STORE
@click.argument("table", required=False)
@OUTPUT
def storage_usage(store: Store, table: str | None, *, output: str) -> None:
    """Show the last measured sizes of the tables of STORE, in bytes.

    With TABLE, like schema.table, shows all recorded sizes of that table, the oldest first. A node
    measures the folders of the store's own tables, once a day by default, and records the sizes
    that have changed. The command reads the store without joining it; a node may be running.
    """
    with reading(store) as (state, _):
        log, catalog = state.log, catalogs_of(state).latest
        if table is None:
            usage = sorted(latest_storage_usage(log, catalog), key=lambda row: -row.size_bytes)
        else:
            usage = storage_usage_of(log, catalog, _id_of(catalog, table))
    if output == "json":
        for row in usage:
            print_json(asdict(row) | {"time": format_timestamp(row.time)})
        return
    if not usage:
        click.echo(
            f"nothing is recorded {'yet' if table is None else f'of {table}'}; a node measures "
            "the store's own tables every storage_usage_interval_ms"
        )
        return
    print_table(
        ("table", "bytes", "recorded (UTC)"),
        (cells(row.table, f"{row.size_bytes:,}", format_timestamp(row.time)) for row in usage),
    )
    if table is None:
        total = sum(row.size_bytes for row in usage)
        click.echo(f"{counted(len(usage), 'table')}, {counted(total, 'byte')}")


def _id_of(catalog: Catalog, name: str) -> int:
    qualified = QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)
    table = catalog.table(qualified.schema, qualified.name)
    if table is None:
        raise ObjectNotFound(f"there is no table {qualified}; name it as SCHEMA.TABLE")
    return table.id
