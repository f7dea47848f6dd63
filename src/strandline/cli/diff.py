"""``strandline diff``: what differs between two versions of a catalog."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.table import Table
from rich.text import Text

from strandline.catalog.differences import Difference, Shown, differences
from strandline.catalog.kinds import spoken
from strandline.cli.console import new_console
from strandline.cli.options import OUTPUT, STORE, Store
from strandline.cli.stores import catalog_named, catalogs_of
from strandline.logs import in_one_line

_NOTHING = "—"


def as_json(one: Difference) -> dict[str, object]:
    """One difference as ``--output json`` prints it."""
    return {
        "change": one.change.value,
        "kind": one.kind,
        "id": one.id,
        "name": one.name,
        "old_name": one.old_name,
        "fields": [asdict(field) for field in one.fields],
    }


def table_of(found: Sequence[Difference]) -> Table:
    """The differences as a table for people: a line for each field that differs."""
    table = Table("change", "what", "field", "before", "after", box=None, pad_edge=False)
    for one in found:
        what = f"{spoken(one.kind)} {one.name}"
        if one.old_name is not None:
            what += f" (was {one.old_name})"
        fields = [field for field in one.fields if not (one.old_name and field.field == "name")]
        for number, field in enumerate(fields or [None]):
            head = (one.change.value, what) if number == 0 else ("", "")
            rest = (field.field, _text(field.old), _text(field.new)) if field else ("", "", "")
            table.add_row(*(Text(in_one_line(cell)) for cell in (*head, *rest)))
    return table


def _text(value: Shown) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _NOTHING if value is None else str(value)


@click.command()
@STORE
@click.argument("old")
@click.argument("new", required=False)
@OUTPUT
def command(store: Store, *, old: str, new: str | None, output: str) -> None:
    """Show what differs between OLD and NEW in STORE, by object and by field.

    OLD and NEW are versions or times (2026-11-20T10:00:00Z); without NEW, the newest version.
    """
    history = catalogs_of(store)
    older = catalog_named(history, old)
    found = differences(older, history.latest if new is None else catalog_named(history, new))
    if output == "json":
        for one in found:
            click.echo(json.dumps(as_json(one), ensure_ascii=False))
    elif found:
        new_console().print(table_of(found))
    else:
        click.echo("no difference")
