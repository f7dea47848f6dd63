"""``strandline trim``: let go of old versions of a catalog."""

from __future__ import annotations

import json

import click

from strandline.cli.joining import joining
from strandline.cli.options import OUTPUT, STORE, USER, Store
from strandline.cli.stores import catalog_named, catalogs_of


@click.command()
@STORE
@click.argument("point")
@USER
@OUTPUT
def command(store: Store, *, point: str, user: str, output: str) -> None:
    """Trim the history of STORE up to POINT, a version or a time.

    Older versions can no longer be read or undone; who did what stays in the log. It is refused
    where an open transaction or a hold needs an older version. A node may be running.
    """
    catalog = catalog_named(catalogs_of(store), point)
    with joining(store) as node:
        trimmed = node.session(user=user).compact(catalog.version)
        earliest = node.catalogs.earliest_catalog().version
    if output == "json":
        click.echo(json.dumps({"trimmed": trimmed, "earliest_version": earliest}))
    elif trimmed:
        click.echo(f"trimmed; the earliest version is {earliest}")
    else:
        click.echo(f"nothing to trim; the earliest version is {earliest}")
