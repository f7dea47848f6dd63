"""``strandline clean``: remove rows, files and tables that nobody can see any more."""

from __future__ import annotations

from dataclasses import asdict

import click

from strandline.cli.changes import joining
from strandline.cli.options import OUTPUT, STORE, Store, cells, new_console, new_table, print_json


@click.command()
@STORE
@click.option("--yes", is_flag=True, help="Remove it.")
@OUTPUT
def clean(store: Store, *, yes: bool, output: str) -> None:
    """Remove rows and files of STORE that no reader can see any more. A node may be running.

    These are files that a commit removed before the history that is kept, files of writers that
    were killed, tables that no kept version has, and old notifications. Without --yes, it shows
    what it would remove, and changes nothing. Nodes do the same regularly (--clean-interval-ms).
    """
    with joining(store) as node:
        removed = node.cleaner.clean(dry_run=not yes)
        failures = node.cleaner.statistics().failures
    if output == "json":
        for cleaned in removed:
            print_json({**asdict(cleaned), "removed": yes})
    elif not removed:
        click.echo("there is nothing to clean")
    else:
        table = new_table("table", "what", "rows", "files", "bytes")
        for cleaned in removed:
            numbers = (cleaned.rows, cleaned.files, cleaned.bytes)
            table.add_row(*cells(cleaned.table, cleaned.what, *(f"{n:,}" for n in numbers)))
        new_console().print(table)
        click.echo("removed" if yes else "nothing was removed; --yes removes it")
    if failures:
        click.echo(
            f"strandline: {failures} could not be deleted; see the log for the reasons", err=True
        )
        raise SystemExit(1)
