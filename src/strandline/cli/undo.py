"""``strandline undo``: take back what one version of a catalog did."""

from __future__ import annotations

import json
from typing import Any

import click

from strandline.catalog.verbs import describe
from strandline.cli.joining import joining
from strandline.cli.log import as_json
from strandline.cli.options import OUTPUT, STORE, USER, Store
from strandline.metastore.interface import Executed, Session


def report(
    session: Session,
    done: Executed,
    *,
    output: str,
    nothing: str = "nothing to undo: everything is as it was before",
) -> None:
    """Print the version that was made, as ``log`` does or in words; else ``nothing``.

    In JSON there is one line, or none where nothing was to be done.
    """
    infos = session.history(start=done.version, end=done.version + 1) if any(done.applied) else []
    if output == "json":
        for info in infos:
            click.echo(json.dumps(as_json(info), ensure_ascii=False))
    elif not infos:
        click.echo(nothing)
    for info in infos if output == "text" else ():
        click.echo(f"version {info.version}")
        for verb, arguments in info.actions:
            click.echo(f"  {describe(verb, arguments)}")


class _Versions(click.ParamType[tuple[int, int | None]]):
    """A version of the catalog, or several: ``3..5``."""

    name = "version"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int | None]:
        if isinstance(value, tuple):  # click may convert twice
            return value
        first, dots, last = str(value).partition("..")
        numbers = [first, last] if dots else [first]
        if not all(one.isascii() and one.isdecimal() and int(one) > 0 for one in numbers):
            self.fail(f"{value!r} is not a version, nor several like 3..5", param, ctx)
        return int(first), int(last) if dots else None


@click.command()
@STORE
@click.argument("version", type=_Versions())
@USER
@OUTPUT
def command(store: Store, *, version: tuple[int, int | None], user: str, output: str) -> None:
    """Take back what VERSION did in STORE, in a new version.

    What was altered is as before, what was dropped is there again, what was created is dropped. It
    is refused, with the reason, where somebody changed the same objects since. A node may be
    running. A VERSION like 3..5 takes back what all of these did, as one change.
    """
    first, last = version
    with joining(store) as node:
        session = node.session(user=user)
        report(session, session.undo(first, through=last), output=output)
