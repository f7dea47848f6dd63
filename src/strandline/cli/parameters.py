"""The command ``parameter``: the configuration parameters of a catalog, for all its nodes."""

from __future__ import annotations

import click

from strandline.catalog.commands import SetConfiguration
from strandline.catalog.configuration import parameter_values
from strandline.cli.changes import execute
from strandline.cli.options import (
    OUTPUT,
    STORE,
    USER,
    Store,
    cells,
    new_console,
    new_table,
    print_json,
)
from strandline.cli.stores import latest_of

_NOTHING = "it already has this value"


@click.group()
def parameter() -> None:
    """Show and set the parameters of STORE, which apply to every node.

    The settings of one node are options of `strandline serve`, and `strandline config` shows them.
    """


@parameter.command("list")
@STORE
@OUTPUT
def show(store: Store, *, output: str) -> None:
    """Show each parameter, its value, and what it means."""
    catalog = latest_of(store)
    table = new_table("parameter", "value", "is")
    for known in parameter_values(catalog):
        if output == "json":
            print_json({"name": known.name, "value": known.value, "default": known.default})
            continue
        shown = known.default or "unset" if known.value is None else f"{known.value} (set)"
        table.add_row(*cells(known.name, shown, known.doc))
    if output == "text":
        new_console().print(table)


@parameter.command("set", context_settings={"ignore_unknown_options": True})  # a value like -5
@STORE
@click.argument("name")
@click.argument("value")
@USER
@OUTPUT
def set_value(store: Store, *, name: str, value: str, user: str, output: str) -> None:
    """Give the parameter NAME a VALUE, on every node and at once."""
    command = SetConfiguration(name=name, value=value)
    execute(store, command, user=user, output=output, nothing=_NOTHING)


@parameter.command()
@STORE
@click.argument("name")
@USER
@OUTPUT
def reset(store: Store, *, name: str, user: str, output: str) -> None:
    """Give the parameter NAME its default again."""
    command = SetConfiguration(name=name, value=None)
    execute(store, command, user=user, output=output, nothing=_NOTHING)
