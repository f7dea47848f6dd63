"""``strandline verify``: compare a store with its records, its checksums and its files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from strandline.cli.options import OUTPUT, STORE, Store
from strandline.cli.stores import address_of, ensure_store
from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, durable_state
from strandline.errors import CorruptData, surface_of
from strandline.logs import in_one_line
from strandline.metastorage import SqlMetastorage, open_metastorage
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.store_folders import StoreFolders
from strandline.node.address import StoreAddress
from strandline.node.place import refuse_lost_database
from strandline.node.store_database import compare_head, refuse_older_parts
from strandline.node.verification import Finding, Verification, Verified
from strandline.node.warehouse_place import recorded_warehouse
from strandline.sql import Database, SqliteDatabase, open_engine, open_sqlite

_OLDER = (
    "verify it with the release that wrote it, or start a node of this release once"
    " (`strandline serve`), which upgrades it"
)


@contextmanager
def _opened(store: Store, *, pages: bool) -> Iterator[Verification]:
    """The store as it is, however damaged it may be."""
    address = address_of(store)
    with closing(_database(address)) as database:
        refuse_older_parts(database, todo=_OLDER)
        clock = HybridClock()
        with closing(
            SqlMetastorage(database, clock)
            if address.catalog == address.objects
            else open_metastorage(address.catalog, clock)
        ) as metastorage:
            yield Verification(
                database,
                durable_state(MetastorageLog(metastorage)).open_read_only,
                NotificationLog(database, clock),
                folders=_folders(address, database),
                compare_head=partial(compare_head, address.folder, database)
                if address.folder is not None and isinstance(database, SqliteDatabase)
                else None,
                pages=pages,
            )


def _database(address: StoreAddress) -> Database:
    if address.folder is None:
        return open_engine(address.objects, read_only=True)
    file = ensure_store(address.folder)
    refuse_lost = partial(refuse_lost_database, file.parent)
    return open_sqlite(file, check_bytes=0, before_creation=refuse_lost, read_only=True)


def _folders(address: StoreAddress, database: Database) -> StoreFolders:
    if address.folder is not None:
        return StoreFolders(address.folder)
    warehouse = Path(recorded_warehouse(database) or "/")
    return StoreFolders(warehouse, warehouse=warehouse)


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
@STORE
@click.option("--pages", is_flag=True, help="Read every page, and compare it with its checksum.")
@OUTPUT
def command(store: Store, *, pages: bool, output: str) -> None:
    """Check that everything in STORE is as it was written, and change nothing.

    The records of the catalog, the rows and the events decode with their checksums; the data files
    of transactional tables are there, with the size and the rows that were written. What is wrong
    is listed, and the exit status is 65. Files that no row names are listed as leftovers; they are
    no errors. A node may be running.
    """
    with _opened(store, pages=pages) as verification:
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
