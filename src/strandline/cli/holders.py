"""``strandline holders``: show which transactions, holds and locks hold back others."""

from __future__ import annotations

from collections.abc import Iterator

import click
from sqlalchemy import Connection, inspect

from strandline.catalog import Catalog
from strandline.catalog.configuration import HISTORY_RETENTION
from strandline.cli.options import OUTPUT, STORE, Store, cells, new_console, new_table, print_json
from strandline.cli.stores import catalogs_and_rows
from strandline.clock import HybridClock, Timestamp, format_timestamp, milliseconds
from strandline.node.settings import load
from strandline.sql import present_time
from strandline.transactions import Holder, Holders
from strandline.transactions.holders import MOST_HOLDERS, read_holders
from strandline.transactions.tables import LOCK_REQUEST, TXN

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
    with catalogs_and_rows(store) as (history, _, connection):
        present, now = holders_on(connection, store, history.latest)
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
    table = new_table("holder", "id", "kind", "owner", "client", "age", "last seen", "keeps back")
    for holder in listed:
        heard = age(holder.heard_of, now)
        table.add_row(
            *cells(
                holder.type.value,
                str(holder.id),
                holder.kind,
                holder.owner,
                holder.client,
                age(holder.since, now),
                heard and f"{heard} ago",
                "; ".join(holder.keeps),
            )
        )
    new_console().print(table)


def _last_lines(present: Holders) -> Iterator[str]:
    counts = present.transactions, present.holds, present.locks
    yield "open transactions: {}, holds: {}, locks: {}".format(*counts)
    if max(counts) > MOST_HOLDERS:
        yield f"the oldest {MOST_HOLDERS} of each are listed"
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
