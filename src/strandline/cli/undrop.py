"""``strandline undrop``: bring back what was dropped last under a name."""

from __future__ import annotations

from pathlib import Path

import click

from strandline.catalog.undo.reading import RESTORABLE
from strandline.cli.options import FOLDER, OUTPUT, USER
from strandline.cli.stores import joining
from strandline.cli.undo import report


@click.command()
@click.argument("kind", type=click.Choice(RESTORABLE))
@FOLDER
@click.argument("name")
@USER
@OUTPUT
def command(kind: str, folder: Path, *, name: str, user: str, output: str) -> None:
    """Bring back the table NAME (schema.table) that was dropped last in the store in FOLDER.

    It has its rows or files, its partitions, and the indexes that were dropped with it. Also for a
    view or a function. A node may be running.
    """
    with joining(folder) as node:
        session = node.session(user=user)
        report(session, session.undrop(name, kind=kind), output=output)
