"""The commands for an operator of a store.

``backup`` copies a store while nodes run on it, and ``restore`` makes a store from the copy.
``verify`` checks the records of a store, their checksums and its files. With ``relocate``,
``accept-loss`` and ``repair-clock``, the operator confirms what a node refuses to assume: that a
folder was moved or copied, that commits are lost, and that a time far ahead of the clock is kept.
``clean`` removes what nobody can see any more. ``upgrade-check`` opens a catalog on trial.
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
from strandline.cli.changes import joining
from strandline.cli.options import (
    FILE_TYPE,
    FOLDER,
    OUTPUT,
    STORE,
    USER,
    Store,
    cells,
    new_console,
    new_table,
    print_json,
)
from strandline.cli.stores import address_of, database_at, database_of, ensure_store, log_of
from strandline.clock import HybridClock, Timestamp, format_timestamp, milliseconds
from strandline.durable import ReadOnlyState, durable_state
from strandline.durable.collections import COLLECTIONS
from strandline.durable.contents import Contents
from strandline.durable.migrations import MIGRATIONS, format_of
from strandline.errors import CorruptData, InvalidInput, surface_of
from strandline.logs import in_one_line
from strandline.metastorage import open_metastorage
from strandline.metastore.inspection import Finding, Verified
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.store_folders import StoreFolders
from strandline.node import relocation, store_database
from strandline.node.address import StoreAddress, shown_address, store_address
from strandline.node.backup import Manifest, back_up
from strandline.node.backup import restore as restore_backup
from strandline.node.catalog_log import LogPlace, reading_catalog_log
from strandline.node.database_mark import DatabaseMark
from strandline.node.inspection import head_comparison
from strandline.node.membership import new_member_id, refuse_other_half
from strandline.node.place import refuse_lost_database
from strandline.node.settings import load
from strandline.node.store_database import refuse_older_parts
from strandline.node.warehouse_place import recorded_warehouse
from strandline.sql import (
    Database,
    accept_time,
    accepted_time,
    open_engine,
    open_sqlite,
    stored_time,
)

if TYPE_CHECKING:  # it imports pyarrow
    from strandline.node.verification import Verification

_DAY_MS = 24 * 60 * 60 * 1000
MOST_NAMED = 10
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
        with joining(store) as node:
            manifest = back_up(node, file, user=user)
    except OSError as error:
        raise InvalidInput(f"the backup to {file} failed: {error}") from error
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
        manifest, _ = restore_backup(file, address, copy=copy, warehouse=settings.warehouse)
    except OSError as error:
        raise InvalidInput(f"restoring to {address.name} failed: {error}") from error
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
            f"{len(manifest.files):,} files, {manifest.total_bytes:,} bytes"
        )
    if missing:
        for name in manifest.missing[:MOST_NAMED]:
            click.echo(f"strandline: missing: {in_one_line(name)}", err=True)
        click.echo(
            f"strandline: {missing} files that the store names were missing when it was backed "
            "up; everything else is complete",
            err=True,
        )
        sys.exit(surface_of(CorruptData("")).exit)


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
    with ExitStack() as opened, closing(_database(address)) as database:
        refuse_older_parts(database, todo=_OLDER)
        with reading_catalog_log(LogPlace(database, address, clock)) as log:
            has_mark = address.folder is None and not address.is_one_database
            mark = opened.enter_context(_mark_of(address, clock)) if has_mark else None
            yield Verification(
                database,
                durable_state(log).open_read_only,
                NotificationLog(database, clock),
                folders=_folders(address, database),
                compare_head=head_comparison(address, database, mark),
                pages=pages,
            )


@contextmanager
def _mark_of(address: StoreAddress, clock: HybridClock) -> Iterator[DatabaseMark]:
    with closing(open_metastorage(address.catalog, clock)) as metastorage:
        yield DatabaseMark(metastorage, address.name)


def _database(address: StoreAddress) -> Database:
    if address.folder is None:
        return open_engine(address.objects, read_only=True)
    file = ensure_store(address.folder)
    refuse_lost = partial(refuse_lost_database, file.parent)
    return open_sqlite(file, check_bytes=0, before_creation=refuse_lost, read_only=True)


def _folders(address: StoreAddress, database: Database) -> StoreFolders:
    if address.folder is not None:
        return StoreFolders(address.folder)
    recorded = recorded_warehouse(database)
    warehouse = Path(recorded.path if recorded else "/")
    return StoreFolders(warehouse, warehouse=warehouse, names=recorded.names if recorded else ())


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
    counts = f"{_number(verified.errors, 'error')}, {_number(verified.leftovers, 'leftover')}"
    read = "every page was read" if pages else "only footers were read; --pages reads every page"
    return (
        f"{counts} in {_number(verified.records, 'record')}, {_number(verified.tables, 'table')}"
        f" and {_number(verified.files, 'file')} of {verified.bytes} bytes ({read})"
    )


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
@FOLDER
@click.option("--copy", is_flag=True, help="The original folder stays in use.")
def relocate(folder: Path, *, copy: bool) -> None:
    """Record FOLDER as the folder of the store in it.

    If a store was moved to another folder, or has another database file, it cannot be opened for
    writing before this command was run. With --copy, it becomes a separate store. First stop the
    nodes that run on FOLDER.
    """
    relocated = relocation.relocate(folder, copy=copy)
    if copy:
        click.echo(f"{relocated.path} is a separate store now: environment {relocated.environment}")
    else:
        click.echo(f"the store is now in {relocated.path}")


@click.command()
@STORE
@click.confirmation_option(prompt="The lost changes cannot be recovered afterwards. Continue?")
def accept_loss(store: Store) -> None:
    """Reopen STORE although a part of the committed changes is missing.

    A node refuses a database that is older than the record outside of it: the file strandline.head
    in the folder of the store, or a key in etcd if the catalog is there. Then the write-ahead log
    was cut or removed, or only the database was restored from a backup. First look for a backup of
    the whole store. No node may be running.
    """
    address = address_of(store)
    if address.folder is not None:
        _accept_loss_of_folder(ensure_store(address.folder).parent)
        return
    if address.is_one_database:
        raise InvalidInput(
            f"{address.name} keeps the catalog and the rows in one database, and both are "
            "restored together; accept-loss is only for a store in a folder, or one whose "
            "catalog is in etcd"
        )
    clock = HybridClock()
    with (
        database_at(address, read_only=False) as database,
        _mark_of(address, clock) as mark,
    ):
        time, marked_time = mark.accept_loss(database, clock)
    if time < marked_time:
        click.echo(f"lost: all changes between {format_timestamp(time)} and")
        click.echo(f"      {format_timestamp(marked_time)}; the store can be opened")
    else:
        click.echo(_NO_LOSS)


_NO_LOSS = "nothing is missing, so there was no loss to accept"


def _accept_loss_of_folder(folder: Path) -> None:
    before, now = store_database.accept_loss(folder)
    if all(now.get(name, 0) >= number for name, number in before.items()):
        click.echo(_NO_LOSS)
    for name, number in now.items():
        lost = max(0, before.get(name, 0) - number)
        click.echo(f"{name} {number}" + (f", {lost} lost" if lost else ""))


@click.command()
@STORE
@click.option(
    "--yes", is_flag=True, help="Make the change. Without this, only show what would be done."
)
def repair_clock(store: Store, *, yes: bool) -> None:
    """Repair STORE if its time is far ahead of this machine's clock.

    If the clock was years ahead for a moment, the store keeps that time. Times never go back, so
    writes are refused from then on. This command accepts the store's time: new writes get times
    directly after it, until the machine's clock has caught up. It changes nothing that was written.
    A node may be running.
    """
    settings = load(store).settings
    with database_of(store, read_only=False) as database:
        clock = HybridClock(max_ahead_ms=settings.clock_ahead_limit_ms)
        last, accepted = _times(database)
        ahead = clock.ahead_of_wall(last)
        click.echo(f"the store's time     {format_timestamp(last)}")
        click.echo(f"this machine's clock {format_timestamp(clock.current())}")
        if not clock.is_too_far_ahead(last):
            click.echo("nothing to repair: the store's time is not too far ahead")
        elif milliseconds(last) <= milliseconds(accepted) + clock.max_ahead_ms:
            click.echo("nothing to repair: this time was accepted before")
        else:
            click.echo(_PLAN.format(days=f"{ahead / _DAY_MS:,.1f}"))
            if yes:
                with database.write() as connection:
                    accept_time(connection)
                click.echo("accepted: the store can be written again")
            else:
                click.echo("nothing was changed; if this machine's clock is right, add --yes")


_PLAN = """\
the store is {days} days ahead. If its time is accepted, until this machine's clock has caught up
  - every version and commit gets a time directly after the previous one
  - transactions and holds do not time out by themselves
  - a time between now and then names the state before the clock jumped"""


def _times(database: Database) -> tuple[Timestamp, Timestamp]:
    with database.read() as connection:
        return stored_time(connection), accepted_time(connection)


@click.command()
@STORE
@click.option("--yes", is_flag=True, help="Remove it.")
@OUTPUT
def clean(store: Store, *, yes: bool, output: str) -> None:
    """Remove rows and files of STORE that no reader can see any more. A node may be running.

    These are files that a commit removed before the history that is kept, files of writers that
    were killed, tables that no kept version has, and old notifications. Without --yes, it shows
    what it would remove, and changes nothing. Nodes do the same regularly (--clean-interval-ms).
    """
    with joining(store) as node:
        removed = node.cleaner.clean(dry_run=not yes)
        failures = node.cleaner.statistics().failures
    if output == "json":
        for cleaned in removed:
            print_json({**asdict(cleaned), "removed": yes})
    elif not removed:
        click.echo("there is nothing to clean")
    else:
        table = new_table("table", "what", "rows", "files", "bytes")
        for cleaned in removed:
            numbers = (cleaned.rows, cleaned.files, cleaned.bytes)
            table.add_row(*cells(cleaned.table, cleaned.what, *(f"{n:,}" for n in numbers)))
        new_console().print(table)
        click.echo("removed" if yes else "nothing was removed; --yes removes it")
    if failures:
        click.echo(
            f"strandline: {failures} could not be deleted; see the log for the reasons", err=True
        )
        raise SystemExit(1)


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
    with database_of(store) as database, log_of(store, database) as log:
        state = ReadOnlyState(log)
        refuse_other_half(database, state)
        applied_steps = format_of(state.recovered[-1].contents)
        began = time.monotonic()
        latest = durable_state(log).check_open(member=new_member_id()).recovered[-1]
        objects = sum(_decoded(latest.contents, kind) for kind in COLLECTIONS)
        seconds = time.monotonic() - began
    catalog = Catalog(latest.version, latest.time, latest.contents)
    if known is not None:
        _compare_sizes(catalog, known)
    views = differing_views(catalog, declared_views())
    click.echo(
        f"release {__version__} can open this catalog: {objects:,} objects were read in"
        f" {seconds:.1f} s"
    )
    for migration in MIGRATIONS[applied_steps:]:
        click.echo(f"a node would migrate it: {migration.name}")
    if views:
        click.echo(f"a node would add {len(views)} system views")


def _decoded(contents: Contents, kind: str) -> int:
    """Decode every object of ``kind`` and return their number. Raises `CorruptData`."""
    return sum(1 for stored in contents.objects(kind) if stored.value is not None)


def _known_sizes(file: Path) -> set[str]:
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidInput(f"{file} does not contain a JSON object whose members are sizes")
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
