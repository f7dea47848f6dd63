"""``strandline durable``: the log that keeps a catalog."""

from __future__ import annotations

from dataclasses import replace

import click

from strandline.cli.options import STORE_TYPE, Store
from strandline.cli.stores import database_at, refuse_moved
from strandline.clock import HybridClock
from strandline.errors import InvalidInput
from strandline.node.address import StoreAddress, store_address
from strandline.node.catalog_log import PERSIST, LogPlace, parts_of, refuse_unknown
from strandline.node.catalog_move import move_catalog
from strandline.node.settings import load
from strandline.node.store_database import refuse_older_parts
from strandline.node.store_place import recorded_place


@click.group()
def durable() -> None:
    """Move the catalog of a store to another log."""


@durable.command(short_help="Move a catalog to another log.")
@click.option("--from", "source", required=True, metavar="STORE[#LOG]", help="The present log.")
@click.option("--to", "target", required=True, metavar="STORE[#LOG]", help="The new log.")
@click.option(
    "--catalog-blobs", metavar="PLACE", help="The place for the blobs of the log persist."
)
@click.option("--objects", metavar="ADDRESS", help="The SQL database beside a catalog in etcd.")
def migrate(source: str, target: str, *, catalog_blobs: str | None, objects: str | None) -> None:
    """Move the catalog of a store to another log, with its whole history.

    STORE is the folder or the address of the store, LOG one of metastorage, stash, persist, shadow
    and shadow:FIRST+SECOND. For example:

    \b
        strandline durable migrate --from ./lake --to ./lake#stash
        strandline durable migrate --from postgresql://db/lake --to etcd://etcd/lake

    A folder whose name has a # is written with one more at its end: ./a#b#.

    Nodes may be running. They stop when the catalog has moved; start them again. If the command is
    interrupted, run it again. Only the catalog moves: transactions and rows stay in the SQL
    database of the store.
    """  # noqa: D301 - the mark that keeps lines as they are
    (from_store, leaving), (to_store, log) = _parsed(source), _parsed(target)
    refuse_unknown(leaving, option="the log of --from")
    refuse_unknown(log, option="the log of --to")
    if catalog_blobs and log and PERSIST not in parts_of(log):
        raise InvalidInput(
            f"--catalog-blobs is only for the log persist, and {log} has no blobs; leave the "
            "option out"
        )
    sql_address = objects or (str(to_store) if _scheme(to_store) == "postgresql" else "")
    address = _address(from_store, sql_address)
    new_address = _address(to_store, address.objects)
    if (new_address.folder, new_address.objects) != (address.folder, address.objects):
        raise InvalidInput(
            f"{address.name} and {new_address.name} keep their rows in different databases, and "
            "this command moves only the catalog; name another log of the same store, like "
            f"{address.name}#stash. To move a folder, move it and run `strandline relocate`"
        )
    settings = load(to_store).settings
    with database_at(address, read_only=False) as database:
        refuse_older_parts(database, todo="start a node of this release on the store first")
        refuse_moved(database, address)
        clock = HybridClock()
        recorded = None if address.folder else recorded_place(database)
        warehouse = recorded.path if recorded else ""
        moved = move_catalog(
            LogPlace(database, address, clock),
            LogPlace(
                database,
                new_address,
                clock,
                blobs=catalog_blobs or settings.catalog_blobs,
                warehouse=warehouse,
                folder_mode=settings.folder_mode,
            ),
            leaving=leaving,
            to=log,
        )
    if moved.frontier is not None:
        first, last = moved.frontier.since, moved.frontier.upper - 1
        click.echo(f"versions {first} to {last} are the same in both logs")
    click.echo(f"the catalog is now in the log {moved.target}; start the nodes again")


def _parsed(text: str) -> tuple[Store, str]:
    """Return the store and the log in ``STORE#LOG``; the log is empty if it is not named."""
    store, mark, log = text.rpartition("#")
    if not mark:
        store, log = text, ""
    converted: Store = STORE_TYPE.convert(store, None, None)
    return converted, log


def _scheme(store: Store) -> str:
    return str(store).partition("://")[0].lower() if isinstance(store, str) else ""


def _address(store: Store, objects: str) -> StoreAddress:
    """Return the address of ``store``; with etcd, ``objects`` overrides that setting."""
    settings = load(store).settings
    if _scheme(store) == "etcd":
        settings = replace(settings, objects=objects or settings.objects)
    return store_address(store, settings)
