"""``strandline accept-loss``: go on with a database that is older than it was."""

from __future__ import annotations

from pathlib import Path

import click

from strandline.cli.options import FOLDER
from strandline.cli.stores import ensure_store
from strandline.node.store_database import accept_loss


@click.command()
@FOLDER
@click.confirmation_option(prompt="What the store has lost will be gone for good. Go on?")
def command(folder: Path) -> None:
    """Go on with the store in FOLDER although a part of what was committed is missing.

    A node refuses a database that is older than the file strandline.head beside it says: its
    write-ahead log was cut or removed, or the database alone was put back from an older day. First
    look for a backup of the whole folder. This command writes strandline.head anew. No node may be
    running.
    """
    before, now = accept_loss(ensure_store(folder).parent)
    for name, number in now.items():
        lost = max(0, before.get(name, 0) - number)
        click.echo(f"{name} {number}" + (f", {lost} lost" if lost else ""))
