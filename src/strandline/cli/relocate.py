"""``strandline relocate``: say that the folder of a store was moved, or is a copy."""

from __future__ import annotations

from pathlib import Path

import click

from strandline.cli.options import FOLDER


@click.command()
@FOLDER
@click.option("--copy", is_flag=True, help="The folder that it was copied from lives on.")
def command(folder: Path, *, copy: bool) -> None:
    """Make FOLDER the place of the store in it.

    A store that finds itself in another folder than before, or on another database file, is not
    opened for writing until this is said. With --copy it becomes a store of its own. Stop the nodes
    that run on FOLDER first.
    """
    from strandline.node.relocation import relocate

    relocated = relocate(folder, copy=copy)
    if copy:
        click.echo(f"{relocated.path} is a store of its own: environment {relocated.environment}")
    else:
        click.echo(f"the store is in {relocated.path} now")
