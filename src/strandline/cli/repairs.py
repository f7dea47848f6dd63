"""The commands ``relocate``, ``accept-loss`` and ``repair-clock``.

With them, the operator confirms what a node refuses to assume: that a folder was moved or copied,
that commits are lost, and that a time far ahead of the clock is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from strandline.cli.options import STORE, Store
from strandline.cli.stores import (
    address_of,
    database_at,
    ensure_store,
    log_at,
    mark_of,
    refuse_moved,
)
from strandline.clock import HybridClock, Timestamp, format_timestamp, milliseconds
from strandline.errors import InvalidInput, NotFound
from strandline.node import relocation, store_database
from strandline.node.address import StoreAddress, store_address
from strandline.node.settings import load
from strandline.node.warehouse_place import accept_database
from strandline.sql import accept_time, accepted_time, highest_time

_DAY_MS = 24 * 60 * 60 * 1000


@click.command()
@STORE
@click.option("--copy", is_flag=True, help="The original folder stays in use.")
def relocate(store: Store, *, copy: bool) -> None:
    """Record where STORE is now.

    A store that was moved to another folder, or that has another database file, cannot be opened
    for writing until this command has run. With --copy, it becomes a separate store. First stop the
    nodes that run on the folder.

    The same holds for a store on servers whose PostgreSQL database was restored, cloned, or moved
    to another server. First make sure that no node uses the original database: both have the same
    warehouse.
    """
    address = address_of(store)
    if address.folder is None:
        _relocate_servers(address, copy=copy)
        return
    with database_at(address):  # there is a store
        pass
    environment = relocation.relocate(address.folder, copy=copy)
    path = address.folder.resolve()
    if copy:
        click.echo(f"{path} is a separate store now: environment {environment}")
    else:
        click.echo(f"the store is now in {path}")


def _relocate_servers(address: StoreAddress, *, copy: bool) -> None:
    if copy:
        raise InvalidInput(
            f"--copy is for a store in a folder; a copy of {address.name} would share the warehouse"
            " with the original. Make a separate store with `strandline backup` and `strandline"
            " restore --copy`"
        )
    with database_at(address, read_only=False) as database:
        warehouse = accept_database(database)
        if warehouse is None:
            raise NotFound(f"there is no store in {database.name}; `strandline serve` creates one")
        click.echo(f"the store is now in {database.name}; its tables are in {warehouse}")


@click.command()
@STORE
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def accept_loss(store: Store, *, yes: bool) -> None:
    """Reopen STORE although a part of the committed changes is missing.

    A node refuses a database that is older than the record outside of it: the file strandline.head
    in the folder of the store, or a key in etcd if the catalog is there. Then the write-ahead log
    was cut or removed, or only the database was restored from a backup. First look for a backup of
    the whole store. No node may be running. The command shows what is missing, and asks before it
    changes anything.
    """

    def confirm() -> None:
        if not yes:
            click.confirm(_QUESTION, abort=True)

    address = address_of(store)
    if address.folder is not None:
        _accept_loss_of_folder(ensure_store(address.folder).parent, confirm)
        click.echo(_CAN_BE_OPENED)
        return
    if address.is_one_database:
        raise InvalidInput(
            f"{address.name} is a PostgreSQL database; accept-loss is only for a store in a folder,"
            " or one whose catalog is in etcd, named by its address etcd://…: a store that is in "
            "PostgreSQL alone loses the catalog and the rows together"
        )
    clock = HybridClock()
    with (
        log_at(address, read_only=False) as (log, database),
        mark_of(address, clock) as mark,
    ):
        refuse_moved(database, address)

        def confirm_loss(time: Timestamp, marked_time: Timestamp) -> None:
            if time >= marked_time:
                click.echo(_NO_LOSS)
                return
            click.echo(f"lost: all changes between {format_timestamp(time)} and")
            click.echo(f"      {format_timestamp(marked_time)}")
            confirm()

        mark.accept_loss(database, clock, log, confirm=confirm_loss)
    click.echo(_CAN_BE_OPENED)


_NO_LOSS = "nothing is missing, so there was no loss to accept"
_CAN_BE_OPENED = "the store can be opened"
_QUESTION = "The lost changes cannot be recovered afterwards. Continue?"


def _accept_loss_of_folder(folder: Path, confirm: Callable[[], None]) -> None:
    def confirm_loss(before: dict[str, int], now: dict[str, int]) -> None:
        missing = {name: max(0, before.get(name, 0) - number) for name, number in now.items()}
        if not any(missing.values()):
            click.echo(_NO_LOSS)
        for name, number in now.items():
            click.echo(f"{name} {number}" + (f", {missing[name]} lost" if missing[name] else ""))
        if any(missing.values()):
            confirm()

    store_database.accept_loss(folder, confirm=confirm_loss)


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
    with database_at(store_address(store, settings), read_only=False) as database:
        clock = HybridClock(max_ahead_ms=settings.clock_ahead_limit_ms)
        with database.read() as connection:
            last, accepted = highest_time(connection), accepted_time(connection)
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
  - nothing gets old: cleaning keeps the files that are removed from now on
  - a time between now and then names the state before the clock jumped"""
