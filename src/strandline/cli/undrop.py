"""``strandline undrop``: bring back what was dropped last under a name."""

from __future__ import annotations

import json

import click

from strandline.catalog.undo.reading import restorable
from strandline.cli.joining import joining
from strandline.cli.options import OUTPUT, STORE, USER, Store
from strandline.cli.undo import report
from strandline.errors import InvalidInput

PARTITIONS = "partitions"
_KINDS = (*restorable(), PARTITIONS)


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
    help="What was dropped; partitions: those of the table NAME.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="NAME",
    help="With partitions: one to bring back, like year=2013/month=1. May be repeated.",
)
@USER
@OUTPUT
def command(
    store: Store, *, name: str, kind: str, partitions: tuple[str, ...], user: str, output: str
) -> None:
    """Bring back the table NAME (schema.table) that was dropped last in STORE.

    It has its rows or files, its partitions, and the indexes that were dropped with it. Also for a
    view or a function. With `schema`, bring back the schema NAME with what was dropped with it.
    With `partitions`, bring back partitions of the plain table NAME: those that --partition names,
    else those that were dropped last. A node may be running.
    """
    if partitions and kind != PARTITIONS:
        raise InvalidInput(f"--partition is for {PARTITIONS}, not for a {kind}")
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
        click.echo(json.dumps({"partition": name}) if output == "json" else name)
