"""The commands that check a store and change nothing: ``verify`` and ``upgrade-check``.

``verify`` checks the records of a store, their checksums and its files, even if the store is
damaged. ``upgrade-check`` opens a catalog on trial.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strandline import __version__
from strandline.catalog import Catalog
from strandline.catalog.system_views.synchronization import declared_views, differing_views
from strandline.cli.options import OUTPUT, STORE, Store, counted, print_json
from strandline.cli.stores import address_of, ensure_store, log_at, mark_of, refuse_empty
from strandline.clock import HybridClock
from strandline.durable import ReadOnlyState, durable_state
from strandline.durable.collections import COLLECTIONS
from strandline.durable.contents import Contents
from strandline.durable.migrations import MIGRATIONS, format_of
from strandline.errors import CorruptData, InvalidInput, surface_of
from strandline.logs import in_one_line
from strandline.metastore.inspection import Finding, Verified
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.store_folders import StoreFolders
from strandline.node.address import StoreAddress
from strandline.node.catalog_log import LogPlace, reading_catalog_log
from strandline.node.inspection import head_comparison
from strandline.node.membership import refuse_other_half
from strandline.node.store_database import older_parts, refuse_newer_parts, refuse_older_parts
from strandline.node.store_place import recorded_place, refuse_lost_database
from strandline.sql import Database, open_database, open_sqlite

if TYPE_CHECKING:  # it imports pyarrow
    from strandline.node.verification import Verification

_OLDER = (
    "verify it with the release that wrote it, or start a node of this release once"
    " (`strandline serve`), which upgrades it"
)


@contextmanager
def _opened(store: Store, *, pages: bool) -> Iterator[Verification]:
    """Open a store for verification, even if it is damaged."""
    from strandline.node.verification import Verification

    address = address_of(store)
    clock = HybridClock()
    with ExitStack() as stack, closing(_database(address)) as database:
        refuse_empty(database, address)
        refuse_newer_parts(database)
        refuse_older_parts(database, todo=_OLDER)
        with reading_catalog_log(LogPlace(database, address, clock)) as log:
            has_mark = address.folder is None and not address.is_one_database
            mark = stack.enter_context(mark_of(address, clock)) if has_mark else None
            yield Verification(
                database,
                durable_state(log).open_read_only,
                NotificationLog(database, clock),
                folders=_folders(address, database),
                compare_head=head_comparison(address, database, mark),
                pages=pages,
            )


def _database(address: StoreAddress) -> Database:
    if address.folder is None:
        return open_database(address.objects, read_only=True)
    file = ensure_store(address.folder)
    refuse_lost = partial(refuse_lost_database, file.parent)
    return open_sqlite(file, check_bytes=0, before_creation=refuse_lost, read_only=True)


def _folders(address: StoreAddress, database: Database) -> StoreFolders:
    recorded = recorded_place(database)
    names = recorded.names if recorded else ()
    if address.folder is not None:
        return StoreFolders(address.folder, names=names)
    warehouse = Path(recorded.path if recorded else "/")
    return StoreFolders(warehouse, warehouse=warehouse, names=names)


def finding_as_json(finding: Finding) -> dict[str, str | None]:
    """Return one finding as ``--output json`` prints it."""
    return {
        "finding": finding.kind.value,
        "place": finding.place,
        "table": finding.table,
        "message": finding.message,
    }


def _line(finding: Finding) -> str:
    of_table = "" if finding.table is None else f" of {finding.table}"
    return in_one_line(f"{finding.kind.value} {finding.place}{of_table}: {finding.message}")


def _summary(verified: Verified, *, pages: bool) -> str:
    counts = f"{counted(verified.errors, 'error')}, {counted(verified.leftovers, 'leftover')}"
    read = "every page was read" if pages else "only footers were read; --pages reads every page"
    return (
        f"{counts} in {counted(verified.records, 'record')}, {counted(verified.tables, 'table')}"
        f" and {counted(verified.files, 'file')} of {verified.bytes} bytes ({read})"
    )


@click.command()
@STORE
@click.option("--pages", is_flag=True, help="Read every page, and compare it with its checksum.")
@OUTPUT
def verify(store: Store, *, pages: bool, output: str) -> None:
    """Check that everything in STORE is as it was written, and change nothing.

    It checks that the records of the catalog, the rows and the events decode with their checksums,
    and that the data files of transactional tables have the size and the rows that were written.
    If it finds damage, it lists it, and the exit status is 65. Files that no row names are listed
    as leftovers; they are not errors. A node may be running.
    """
    with _opened(store, pages=pages) as verification:
        for finding in verification.findings():
            if output == "json":
                print_json(finding_as_json(finding))
            else:
                click.echo(_line(finding))
        verified = verification.verified
    if output == "json":
        print_json({"finding": "summary", **asdict(verified)})
    else:
        click.echo(_summary(verified, pages=pages))
    if verified.errors:
        sys.exit(surface_of(CorruptData("")).exit)


@click.command()
@STORE
@click.option(
    "--cluster-replica-sizes",
    "sizes",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A JSON object; each cluster and replica must have a size that is a member of it.",
)
def upgrade_check(store: Store, *, sizes: Path | None) -> None:
    """Check whether this release could open the catalog of STORE, and change nothing.

    It opens the catalog on trial: migrations are made in memory, and every object is read. Running
    nodes are not affected. The exit status is 0 if the catalog could be opened.
    """
    known = None if sizes is None else _known_sizes(sizes)
    with log_at(address_of(store)) as (log, database):
        state = ReadOnlyState(log, latest_only=True)
        refuse_other_half(database, state)
        latest = state.recovered[-1]
        old_tables = list(older_parts(database))
        began = time.monotonic()
        contents = durable_state(log).check_open()
        objects = sum(_decoded(contents, kind) for kind in COLLECTIONS)
        seconds = time.monotonic() - began
    catalog = Catalog(latest.version, latest.time, contents)
    if known is not None:
        _compare_sizes(catalog, known)
    views = differing_views(catalog, declared_views())
    click.echo(
        f"release {__version__} can open this catalog: {objects:,} objects were read in"
        f" {seconds:.1f} s"
    )
    for part, present, version in old_tables:
        click.echo(
            f"a node would upgrade the tables of {part!r} from version {present} to {version}"
        )
    for migration in MIGRATIONS[format_of(latest.contents) :]:
        click.echo(f"a node would migrate it: {migration.name}")
    if views:
        click.echo(f"a node would update {counted(len(views), 'system view')}")


def _decoded(contents: Contents, kind: str) -> int:
    """Decode every object of ``kind`` and return their number. Raises `CorruptData`."""
    return sum(1 for stored in contents.objects(kind) if stored.value is not None)


def _known_sizes(file: Path) -> set[str]:
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidInput(
            f"{file} does not contain a JSON object whose members are sizes; write it as "
            '{"SIZE": …}'
        )
    return set(parsed)


def _compare_sizes(catalog: Catalog, known: set[str]) -> None:
    """Raise `InvalidInput` if the size of a cluster or replica is not in ``known``."""
    unknown = [
        f"{kind.replace('_', ' ')} {stored.value.name}: {stored.value.size}"
        for kind in ("cluster", "cluster_replica")
        for stored in catalog.contents.objects(kind)
        if stored.value.size is not None and stored.value.size not in known
    ]
    if unknown:
        raise InvalidInput(f"the sizes of these are not listed: {'; '.join(sorted(unknown))}")
