"""``strandline config``: the settings of a node, and where each comes from."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from strandline.cli.console import new_console
from strandline.cli.options import FOLDER_TYPE, OUTPUT
from strandline.cli.settings import REGISTRY, Loaded, load, node_options
from strandline.logs import in_one_line


def as_json(loaded: Loaded, name: str) -> dict[str, object]:
    """One setting as ``--output json`` prints it."""
    setting = REGISTRY[name]
    return {
        "setting": name,
        "value": getattr(loaded.settings, name),
        "from": loaded.origins[name],
        "default": setting.default,
        "option": setting.option,
        "variable": setting.variable,
        "allowed": setting.allowed,
        "meaning": setting.meaning,
    }


def table_of(loaded: Loaded) -> Table:
    """The settings as a table for people."""
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for name in REGISTRY:
        value = getattr(loaded.settings, name)
        text = ", ".join(value) if isinstance(value, tuple) else str(value)
        cells = name, in_one_line(text) or "—", in_one_line(loaded.origins[name])
        table.add_row(*map(Text, cells))
    return table


@click.command()
@click.argument("folder", type=FOLDER_TYPE, required=False)
@node_options
@OUTPUT
def command(folder: Path | None, *, config: Path | None, output: str, **options: object) -> None:
    """Show each setting that a node on FOLDER would have, and where it comes from.

    Settings come from options, environment variables, the file that --config names, the file
    strandline.toml in FOLDER, and defaults; the first that has a value wins. Nothing is started.
    """
    loaded = load(folder, config=config, options=options)
    if output == "json":
        for name in REGISTRY:
            click.echo(json.dumps(as_json(loaded, name), ensure_ascii=False))
        return
    new_console().print(table_of(loaded))
    for variable in loaded.unknown_variables:
        click.echo(f"strandline: {variable} is set, and is no setting of a node", err=True)
