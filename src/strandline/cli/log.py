"""``strandline log``: the history of a catalog, version by version."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from strandline.catalog import VersionInfo
from strandline.catalog.action_words import describe
from strandline.cli.console import new_console
from strandline.cli.options import FOLDER, OUTPUT
from strandline.cli.stores import history_of_folder
from strandline.clock import format_timestamp
from strandline.logs import in_one_line


def as_json(info: VersionInfo) -> dict[str, object]:
    """One version as ``--output json`` prints it."""
    return {
        "version": info.version,
        "time": format_timestamp(info.time),
        "author": info.author,
        "member": info.member,
        "trimmed": info.trimmed,
        "actions": [{"verb": verb, **arguments} for verb, arguments in info.actions],
    }


def table_of(infos: list[VersionInfo]) -> Table:
    """The history as a table for people."""
    table = Table("version", "when (UTC)", "who", "what", box=None, pad_edge=False)
    for info in infos:
        what = "\n".join(describe(verb, arguments) for verb, arguments in info.actions)
        number = f"{info.version}{' (trimmed)' if info.trimmed else ''}"
        cells = number, format_timestamp(info.time), in_one_line(info.author), what
        table.add_row(*map(Text, cells))
    return table


@click.command()
@FOLDER
@OUTPUT
@click.option("-n", "--last", type=click.IntRange(min=1), help="Only the last N versions.")
def command(folder: Path, *, output: str, last: int | None) -> None:
    """Show who changed what and when in the store in FOLDER, version by version.

    Versions marked as trimmed can no longer be read.
    """
    infos = history_of_folder(folder)[-(last or 0) :]
    if output == "json":
        for info in infos:
            click.echo(json.dumps(as_json(info), ensure_ascii=False))
    else:
        new_console().print(table_of(infos))
