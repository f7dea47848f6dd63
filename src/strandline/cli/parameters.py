"""The command ``parameter``: the configuration parameters of a catalog, for all its nodes."""

from __future__ import annotations

import click

from strandline.catalog import Command
from strandline.catalog.commands import SetConfiguration
from strandline.catalog.configuration import parameter_values
from strandline.cli.changes import executes
from strandline.cli.options import OUTPUT, STORE, Store, cells, print_json, print_table
from strandline.cli.stores import latest_of

_changes = executes("it already has this value")


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
    rows = []
    for known in parameter_values(catalog):
        if output == "json":
            print_json({"name": known.name, "value": known.value, "default": known.default})
            continue
        shown = known.default or "unset" if known.value is None else f"{known.value} (set)"
        rows.append(cells(known.name, shown, known.doc))
    if output == "text":
        print_table(("parameter", "value", "meaning"), rows)


@parameter.command("set", context_settings={"ignore_unknown_options": True})  # a value like -5
@STORE
@click.argument("name")
@click.argument("value")
@_changes
def set_value(name: str, value: str) -> Command:
    """Give the parameter NAME a VALUE, on every node and at once."""
    return SetConfiguration(name=name, value=value)


@parameter.command()
@STORE
@click.argument("name")
@_changes
def reset(name: str) -> Command:
    """Give the parameter NAME its default again."""
    return SetConfiguration(name=name, value=None)
