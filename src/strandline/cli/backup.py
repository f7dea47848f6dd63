"""``strandline backup`` and ``strandline restore``: a folder, while nodes run on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from strandline.cli.joining import joining
from strandline.cli.options import FOLDER, FOLDER_TYPE, OUTPUT, USER
from strandline.errors import CorruptData, InvalidInput, surface_of
from strandline.logs import in_one_line
from strandline.node.backup import Manifest, back_up
from strandline.node.backup import restore as restore_backup

MOST_NAMED = 10
"""So many missing files are named; all stand in the manifest."""


@click.command()
@FOLDER
@click.argument("target", type=FOLDER_TYPE)
@USER
@OUTPUT
def backup(folder: Path, *, target: Path, user: str, output: str) -> None:
    """Back up the store in FOLDER to TARGET, a folder that is empty or does not exist.

    The database and the files that it names are as of one moment, whatever clients write
    meanwhile. Files outside of FOLDER are not copied. Nodes may be running.
    """
    try:
        with joining(folder) as node:
            manifest = back_up(node, target, user=user)
    except OSError as error:
        raise InvalidInput(f"the backup to {target} failed: {error}") from error
    _report(manifest, f"backed up to {target}", output=output, folder=target)


@click.command()
@click.argument("backup_folder", type=FOLDER_TYPE, metavar="BACKUP")
@FOLDER
@click.option("--copy", is_flag=True, help="The store that was backed up lives on.")
@OUTPUT
def restore(backup_folder: Path, *, folder: Path, copy: bool, output: str) -> None:
    """Restore the store in BACKUP to FOLDER, a folder that is empty or does not exist.

    Each file is compared with what was written. With --copy the restored store is one of its own,
    beside the one that was backed up.
    """
    try:
        manifest, _ = restore_backup(backup_folder, folder, copy=copy)
    except OSError as error:
        raise InvalidInput(f"restoring to {folder} failed: {error}") from error
    _report(manifest, f"restored to {folder}", output=output, folder=folder)


def _report(manifest: Manifest, what: str, *, output: str, folder: Path) -> None:
    missing = len(manifest.missing)
    if output == "json":
        summary = {
            "folder": str(folder.absolute()),
            "catalog_version": manifest.catalog_version,
            "time": manifest.time,
            "files": len(manifest.files),
            "bytes": manifest.total_bytes,
            "missing": manifest.missing,
        }
        click.echo(json.dumps(summary))
    else:
        click.echo(
            f"{what}: version {manifest.catalog_version} as of {manifest.time}, "
            f"{len(manifest.files):,} files, {manifest.total_bytes:,} bytes"
        )
    if missing:
        for name in manifest.missing[:MOST_NAMED]:
            click.echo(f"strandline: missing: {in_one_line(name)}", err=True)
        click.echo(
            f"strandline: {missing} files that the store names were not there when it was backed "
            "up; all else is complete",
            err=True,
        )
        sys.exit(surface_of(CorruptData("")).exit)
