"""``strandline log``: the history of a catalog, version by version."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table

from strandline.catalog import VersionInfo, read_history
from strandline.cli.console import new_console
from strandline.clock import HybridClock, format_timestamp
from strandline.durable import Arguments, MetastorageLog, durable_state
from strandline.errors import NotFound
from strandline.metastorage import SqliteMetastorage
from strandline.node import DATABASE_FILE
from strandline.sql import open_engine, sqlite_url


def describe(verb: str, arguments: Arguments) -> str:
    """One action in words: the verb, what it was done to, and the rest of its arguments."""
    subjects = ("schema", "table", "view", "database")
    subject = next((str(arguments[name]) for name in subjects if name in arguments), "")
    rest = {
        name: value
        for name, value in arguments.items()
        if name not in (*subjects, "id", "location") and value not in ([], None)
    }
    shown = ", ".join(
        f"{name}: {', '.join(value) if isinstance(value, list) else value}"
        for name, value in sorted(rest.items())
    )
    return f"{verb.replace('_', ' ')} {subject}".strip() + (f" ({shown})" if shown else "")


def history_of_folder(folder: Path) -> list[VersionInfo]:
    """The history of the store in ``folder``, without joining it. `NotFound` if there is none."""
    file = folder / DATABASE_FILE
    if not file.exists():
        raise NotFound(f"there is no store in {folder}; `strandline serve {folder}` creates one")
    database = open_engine(sqlite_url(file.absolute()))
    try:
        log = MetastorageLog(SqliteMetastorage(database, HybridClock()))
        durable_state(log).open_read_only()
        return read_history(log)
    finally:
        database.close()


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
        table.add_row(number, format_timestamp(info.time), info.author, what)
    return table


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: one object a line.",
)
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
