"""``strandline storage-usage``: show how many bytes the tables take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import click

from strandline.catalog import Catalog
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.storage_usage import StorageUsage, latest_storage_usage, storage_usage_of
from strandline.cli.options import OUTPUT, STORE, Store, cells, new_console, new_table, print_json
from strandline.cli.stores import catalogs_and_rows
from strandline.clock import format_timestamp
from strandline.errors import ObjectNotFound
from strandline.model.identifiers import QualifiedName


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
    with catalogs_and_rows(store) as (history, state, _):
        log, catalog = state.log, history.latest
        if table is None:
            usage = sorted(latest_storage_usage(log, catalog), key=lambda row: -row.size_bytes)
        else:
            usage = storage_usage_of(log, catalog, _id_of(catalog, table))
    if output == "json":
        for row in usage:
            print_json(asdict(row) | {"time": format_timestamp(row.time)})
        return
    _print_table(usage)
    if not usage:
        click.echo(
            f"nothing is recorded {'yet' if table is None else f'of {table}'}; a node measures "
            "the store's own tables every storage_usage_interval_ms"
        )
    elif table is None:
        click.echo(f"{len(usage):,} tables, {sum(row.size_bytes for row in usage):,} bytes")


def _id_of(catalog: Catalog, name: str) -> int:
    qualified = QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)
    table = catalog.table(qualified.schema, qualified.name)
    if table is None:
        raise ObjectNotFound(f"there is no table {name}; name it like schema.table")
    return table.id


def _print_table(usage: Iterable[StorageUsage]) -> None:
    table = new_table("table", "bytes", "recorded (UTC)")
    for row in usage:
        table.add_row(*cells(row.table, f"{row.size_bytes:,}", format_timestamp(row.time)))
    if table.row_count:
        new_console().print(table)
