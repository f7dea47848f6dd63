"""The commands ``undo``, ``undrop``, ``trim`` and ``clean``.

The first three change the history; ``clean`` removes what no snapshot can see any more.

To change a store, a command joins it as one more node (`joining`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import wraps
from typing import Any

import click

from strandline.catalog import Command
from strandline.catalog.undo.reading import restorable
from strandline.catalog.verbs import describe
from strandline.cli.history import version_as_json
from strandline.cli.options import (
    OUTPUT,
    STORE,
    USER,
    Store,
    allow_group,
    cells,
    print_json,
    print_table,
)
from strandline.cli.stores import catalog_named, history_of, log_at
from strandline.clock import format_timestamp
from strandline.durable import durable_state
from strandline.errors import InvalidInput
from strandline.metastore.interface import Executed, Session
from strandline.model.identifiers import version_number
from strandline.node.address import store_address
from strandline.node.node import Node
from strandline.node.settings import load
from strandline.node.store_database import refuse_older_parts

PARTITIONS = "partitions"
_KINDS = (*restorable(), PARTITIONS)


@contextmanager
def joining(store: Store, *, may_upgrade: bool = True) -> Iterator[Node]:
    """Open a node in this process on an existing store; others may run. Raises `NotFound`.

    It joins the generation that holds the store: only a node that serves takes a store over. It
    does not clean or measure the store in the background: a command does only what it was asked.
    Raises `IncompatibleFormat` if it would upgrade the store, and not ``may_upgrade``.
    """
    settings = load(store).settings
    address = store_address(store, settings)
    with log_at(address) as (log, database):
        if not may_upgrade:
            refuse_older_parts(
                database,
                todo="start a node of this release once (`strandline serve`), which upgrades it",
            )
            durable_state(log).open_read_only(latest_only=True)
    settings = replace(
        settings,
        deploy_generation=None,
        clean_interval_ms=0,
        storage_usage_interval_ms=0,
    )
    allow_group(settings)
    with Node.open(address, settings=settings) as node:
        yield node


def report(
    session: Session,
    executed: Executed,
    *,
    output: str,
    nothing: str = "nothing to undo: everything is as it was before",
) -> None:
    """Print the version that was made, or the text ``nothing`` if none was.

    As JSON, print one line as ``log`` does, or no line if nothing was done.
    """
    infos = (
        session.history(start=executed.version, end=executed.version + 1)
        if any(executed.applied)
        else []
    )
    if output == "json":
        for info in infos:
            print_json(version_as_json(info))
    elif not infos:
        click.echo(nothing)
    for info in infos if output == "text" else ():
        click.echo(f"version {info.version}")
        for verb, arguments in info.actions:
            click.echo(f"  {describe(verb, arguments)}")


def executes(nothing: str) -> Callable[[Callable[..., Command]], Callable[..., None]]:
    """Make a function that returns a command execute it on an existing store, and `report` it.

    The function gets its arguments and options without the store, the user and the output.
    """

    def decorate(requested: Callable[..., Command]) -> Callable[..., None]:
        @wraps(requested)
        def execute(store: Store, *, user: str, output: str, **given: Any) -> None:
            command = requested(**given)
            with joining(store) as node:
                session = node.session(user=user)
                report(session, session.execute(command), output=output, nothing=nothing)

        return USER(OUTPUT(execute))

    return decorate


class _Versions(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A version of the catalog, or a range of versions such as ``3..5``."""

    name = "version"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int | None]:
        if isinstance(value, tuple):  # click may convert twice
            return value
        first, dots, last = str(value).partition("..")
        start, end = version_number(first), version_number(last)
        if not start or (dots and not end):
            text = str(value)[:80]
            self.fail(f"{text!r} is not a version or a range of versions like 3..5", param, ctx)
        return start, end


@click.command()
@STORE
@click.argument("version", type=_Versions())
@USER
@OUTPUT
def undo(store: Store, *, version: tuple[int, int | None], user: str, output: str) -> None:
    """Undo the changes of VERSION in STORE, in a new version.

    Altered objects are as before, dropped objects exist again, and created objects are dropped. The
    command is refused, with the reason, if what VERSION changed was changed again. A node may be
    running. A VERSION like 3..5 undoes the changes of all of these versions, as one change.
    """
    first, last = version
    with joining(store) as node:
        session = node.session(user=user)
        report(session, session.undo(first, through=last), output=output)


def _refuse_old_form(_: click.Context, argument: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            f"the kind is an option: strandline undrop STORE NAME --kind {'|'.join(_KINDS)}"
        )


@click.command()
@STORE
@click.argument("name")
@click.argument("rest", required=False, metavar="", expose_value=False, callback=_refuse_old_form)
@click.option(
    "--kind",
    type=click.Choice(_KINDS),
    default="table",
    show_default=True,
    help="The kind of the dropped object; with partitions, NAME is their table.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="NAME",
    help="With partitions: a partition to bring back, like year=2013/month=1. Repeatable.",
)
@USER
@OUTPUT
def undrop(
    store: Store, *, name: str, kind: str, partitions: tuple[str, ...], user: str, output: str
) -> None:
    """Bring back the table NAME (schema.table) that was dropped last in STORE.

    The table has its rows or files, its partitions, and the indexes that were dropped with it. With
    --kind view or function, bring back a view or function; with schema, the schema NAME and all
    that was dropped with it; with partitions, partitions of the plain table NAME: those that
    --partition names, or else those that were dropped last. A node may be running.
    """
    if partitions and kind != PARTITIONS:
        raise InvalidInput(
            f"--partition is for --kind {PARTITIONS}, not for a {kind}; leave it out"
        )
    with joining(store) as node:
        session = node.session(user=user)
        if kind == PARTITIONS:
            _report_partitions(
                session.undrop_partitions(name, partitions=partitions), output=output
            )
            return
        report(session, session.undrop(name, kind=kind), output=output)


def _report_partitions(names: list[str], *, output: str) -> None:
    for name in names:
        if output == "json":
            print_json({"partition": name})
        else:
            click.echo(name)


@click.command()
@STORE
@click.argument("point")
@USER
@OUTPUT
def trim(store: Store, *, point: str, user: str, output: str) -> None:
    """Trim the history of STORE up to POINT, a version or a time.

    Older versions can no longer be read or undone; `strandline log` still shows their authors and
    changes. The command is refused if an open transaction or a hold needs an older version. A node
    may be running.
    """
    version = version_number(point) or catalog_named(history_of(store), point).version
    with joining(store) as node:
        trimmed = node.session(user=user).compact(version)
        earliest = node.catalogs.earliest_catalog().version
    if output == "json":
        print_json({"trimmed": trimmed, "earliest_version": earliest})
    elif trimmed:
        click.echo(f"trimmed; the earliest version is {earliest}")
    else:
        click.echo(f"nothing to trim; the earliest version is {earliest}")


@click.command()
@STORE
@click.option("--yes", is_flag=True, help="Remove it.")
@OUTPUT
def clean(store: Store, *, yes: bool, output: str) -> None:
    """Remove rows and files of STORE that no reader can see any more. A node may be running.

    These are files that a commit removed before the history that is kept, files of writers that
    were killed, tables that no kept version has, old notifications, and the records of
    transactions that ended long ago. Without --yes, it shows what it would remove, and changes
    nothing. Nodes do the same regularly (--clean-interval-ms).
    """
    with joining(store, may_upgrade=yes) as node:
        cleaned = node.cleaner.clean(dry_run=not yes)
        failures = node.cleaner.statistics().failures
    if output == "json":
        for part in cleaned.parts:
            print_json({**asdict(part), "removed": yes})
    elif not cleaned.parts:
        click.echo("there is nothing to clean")
    else:
        print_table(
            ("table", "what", "rows", "files", "bytes"),
            [
                cells(part.table, part.what, f"{part.rows:,}", f"{part.files:,}", f"{part.bytes:,}")
                for part in cleaned.parts
            ],
        )
        click.echo("removed" if yes else "nothing was removed; --yes removes it")
    if output == "text":
        click.echo(
            "nothing is cleaned while a backup copies files"
            if cleaned.limit is None
            else f"data that was removed after {format_timestamp(cleaned.limit)} is kept"
        )
    if failures:
        click.echo(
            f"strandline: {failures} could not be deleted; see the log for the reasons", err=True
        )
        raise SystemExit(1)
