"""The commands ``backup`` and ``restore``.

``backup`` copies a store while nodes run on it, and ``restore`` makes a store from the copy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from strandline.cli.changes import joining
from strandline.cli.options import FILE_TYPE, OUTPUT, STORE, USER, Store, counted
from strandline.cli.signals import ending_at_signals
from strandline.errors import CorruptData, surface_of
from strandline.logs import in_one_line
from strandline.node.address import shown_address, store_address
from strandline.node.backup import Manifest, back_up
from strandline.node.backup import restore as restore_backup
from strandline.node.settings import load

MAX_NAMED = 10
"""The number of missing files that are printed; the manifest lists all."""


@click.command()
@STORE
@click.argument("file", type=FILE_TYPE)
@USER
@OUTPUT
def backup(store: Store, *, file: Path, user: str, output: str) -> None:
    """Back up STORE to FILE, a tar file that does not exist.

    The backup shows the database and its files as of one moment, even if clients write meanwhile.
    Files outside of the store's folder, or its warehouse, are not copied. Nodes may be running.
    """
    try:
        # Otherwise the hold of the backup would stay and stop the cleaning on every node.
        with ending_at_signals(), joining(store) as node:
            manifest = back_up(node, file, user=user)
    except OSError as error:
        raise OSError(f"the backup to {file} failed: {error}") from error
    where = {"file": str(file.absolute())}
    _report(manifest, f"backed up to {file}", output=output, where=where)


@click.command()
@click.argument("file", type=FILE_TYPE)
@STORE
@click.option("--copy", is_flag=True, help="The original store stays in use.")
@click.option("--warehouse", help="An empty folder for the tables of a store on servers.")
@OUTPUT
def restore(file: Path, *, store: Store, copy: bool, warehouse: str | None, output: str) -> None:
    """Restore the backup FILE to STORE, an empty folder or database.

    Each file is compared with its size and checksum. With --copy, the restored store is a separate
    store beside the original. Without --warehouse, the tables of a store on servers are restored
    to their former folder.
    """
    settings = load(store, options={"warehouse": warehouse}).settings
    address = store_address(store, settings)
    try:
        with ending_at_signals():
            manifest = restore_backup(file, address, copy=copy, warehouse=settings.warehouse)
    except OSError as error:
        raise OSError(f"restoring to {address.name} failed: {error}") from error
    where = {"store": address.name}
    _report(manifest, f"restored to {shown_address(str(store))}", output=output, where=where)


def _report(manifest: Manifest, what: str, *, output: str, where: dict[str, str]) -> None:
    missing = len(manifest.missing)
    if output == "json":
        summary = {
            **where,
            "catalog_version": manifest.catalog_version,
            "time": manifest.time,
            "files": len(manifest.files),
            "bytes": manifest.total_bytes,
            "missing": manifest.missing,
        }
        click.echo(json.dumps(summary))  # in ASCII: names of files need not be valid Unicode
    else:
        click.echo(
            f"{what}: version {manifest.catalog_version} as of {in_one_line(manifest.time)}, "
            f"{counted(len(manifest.files), 'file')}, {counted(manifest.total_bytes, 'byte')}"
        )
    if missing:
        for name in manifest.missing[:MAX_NAMED]:
            click.echo(f"strandline: missing: {in_one_line(name)}", err=True)
        click.echo(
            f"strandline: missing when it was backed up: {counted(missing, 'file')} that the store "
            "names; the backup has all others",
            err=True,
        )
        sys.exit(surface_of(CorruptData("")).exit)
