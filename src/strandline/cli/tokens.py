"""``strandline token``: make a token that authenticates a user to a node over HTTP."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("users_file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("user")
def token(users_file: Path, user: str) -> None:
    """Add a new token for USER to the USERS_FILE, and print it.

    The file has only the hash of the token, which is not shown again. If the file does not exist,
    it is created with mode 0600. Nodes that run with --users-file accept the token at once; to
    revoke it, delete the user's line.
    """
    from strandline.node.users import new_token

    click.echo(new_token(users_file, user))
