"""``strandline verify``: compare a store with its records, its checksums and its files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from strandline.cli.options import FOLDER, OUTPUT
from strandline.cli.stores import ensure_store
from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, durable_state
from strandline.errors import CorruptData, surface_of
from strandline.logs import in_one_line
from strandline.metastorage import SqliteMetastorage
from strandline.metastore.store.notifications import NotificationLog
from strandline.node.place import refuse_lost_database
from strandline.node.verification import Finding, Verification, Verified
from strandline.sql import open_sqlite


@contextmanager
def _opened(folder: Path, *, pages: bool) -> Iterator[Verification]:
    file = ensure_store(folder)
    database = open_sqlite(
        file, check_bytes=0, before_creation=lambda: refuse_lost_database(file.parent)
    )
    clock = HybridClock()
    try:
        log = MetastorageLog(SqliteMetastorage(database, clock))
        yield Verification(
            file.parent,
            database,
            durable_state(log).open_read_only,
            NotificationLog(database, clock),
            pages=pages,
        )
    finally:
        database.close()


def as_json(finding: Finding) -> dict[str, str | None]:
    """One finding as ``--output json`` prints it."""
    return {
        "finding": finding.kind.value,
        "place": finding.place,
        "table": finding.table,
        "message": finding.message,
    }


def _line(finding: Finding) -> str:
    of = "" if finding.table is None else f" of {finding.table}"
    return in_one_line(f"{finding.kind.value} {finding.place}{of}: {finding.message}")


def _summary(verified: Verified, *, pages: bool) -> str:
    counts = f"{verified.errors} errors, {verified.leftovers} leftovers"
    read = "every page was read" if pages else "only footers were read; --pages reads every page"
    return (
        f"{counts} in {verified.records} records, {verified.tables} tables and {verified.files}"
        f" files of {verified.bytes} bytes ({read})"
    )


@click.command()
@FOLDER
@click.option("--pages", is_flag=True, help="Read every page, and compare it with its checksum.")
@OUTPUT
def command(folder: Path, *, pages: bool, output: str) -> None:
    """Check that everything in the store in FOLDER is as it was written, and change nothing.

    The records of the catalog, the rows and the events decode with their checksums; the data files
    of transactional tables are there, with the size and the rows that were written. What is wrong
    is listed, and the exit status is 65. Files that no row names are listed as leftovers; they are
    no errors. A node may be running.
    """
    with _opened(folder, pages=pages) as verification:
        for finding in verification.findings():
            if output == "json":
                click.echo(json.dumps(as_json(finding), ensure_ascii=False))
            else:
                click.echo(_line(finding))
        verified = verification.verified
    if output == "json":
        click.echo(json.dumps({"finding": "summary", **asdict(verified)}))
    else:
        click.echo(_summary(verified, pages=pages))
    if verified.errors:
        sys.exit(surface_of(CorruptData("")).exit)
