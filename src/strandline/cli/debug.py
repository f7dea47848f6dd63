"""``strandline debug``: show the stored catalog, and repair it object by object."""

from __future__ import annotations

import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from strandline.catalog import editing
from strandline.catalog.rules import Key
from strandline.cli.options import STORE, USER, Store
from strandline.cli.stores import address_of, log_at, reading, refuse_moved
from strandline.clock import HybridClock
from strandline.durable import CatalogTransaction, durable_state
from strandline.durable.collections import Collection
from strandline.durable.opening import Fill
from strandline.durable.state import opening_with
from strandline.errors import InvalidInput
from strandline.metastore.session.wire_json import read_json, write_json
from strandline.node.catalog_dump import dump_pieces
from strandline.node.membership import new_member_id, raises_fence_of

_KIND = click.argument("kind")
_KEY = click.argument("key")
_KEY_SHOWN = 200
"""The number of characters of a refused key that the error shows."""


@click.group()
def debug() -> None:
    """Inspect and repair the stored catalog.

    `edit` and `delete` are for a catalog that no other command can repair. They take a new epoch:
    running nodes drop what they have in memory, and join the store again.
    """


@debug.command(short_help="Write the catalog of STORE as JSON.")
@STORE
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--ignore", multiple=True, metavar="KIND", help="Leave out a kind; repeatable.")
@click.option("--stats-only", is_flag=True, help="Print only the number of objects of each kind.")
def dump(store: Store, *, target: Path | None, ignore: tuple[str, ...], stats_only: bool) -> None:
    """Write the catalog of STORE as JSON to TARGET, or to standard output.

    Keys and values are as `edit` and `delete` take them. Running nodes are not disturbed.
    """
    with reading(store) as (state, _), _written(target) as file:
        file.writelines(dump_pieces(state, ignored=ignore, only_counts=stats_only))


@contextmanager
def _written(target: Path | None) -> Iterator[TextIO]:
    """Open ``target`` for writing, or standard output if it is None.

    A regular file gets its name when it is complete. Anything else (a pipe) is written directly.
    """
    if target is None:
        yield sys.stdout
        return
    if not target.resolve().parent.is_dir():
        raise InvalidInput(f"{target} cannot be written: its folder does not exist")
    try:
        if target.exists() and not target.is_file():
            with target.open("w", encoding="utf-8") as file:
                yield file
        else:
            with _replaced(target.resolve()) as file:
                yield file
    except OSError as error:
        raise OSError(f"{target} cannot be written: {error.strerror}") from error


@contextmanager
def _replaced(target: Path) -> Iterator[TextIO]:
    """Write a new file that replaces ``target`` at the end, with the permissions of ``target``."""
    # Not the process id: processes in two containers may have the same.
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with part.open("x", encoding="utf-8") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@debug.command(short_help="Show the epoch and the deploy generation.")
@STORE
def epoch(store: Store) -> None:
    """Show the epoch and the deploy generation of the catalog of STORE."""
    with log_at(address_of(store)) as (log, _):
        token = log.token()
        assert token is not None  # without one there is no catalog, and `log_at` has raised
        opening = opening_with(log, token)
        shown = f"epoch {token.epoch}, deploy generation {token.deploy_generation}"
        click.echo(shown if opening is None else f"{shown}, which {opening}")


_TAKES_NUMBERS = {"ignore_unknown_options": True}
"""So that a key like -5 is refused as a key and not parsed as an option."""


@debug.command(short_help="Put VALUE at KEY.", context_settings=_TAKES_NUMBERS)
@STORE
@_KIND
@_KEY
@click.argument("value")
@USER
def edit(store: Store, *, kind: str, key: str, value: str, user: str) -> None:
    """Put VALUE at KEY, and show the previous value.

    KEY and VALUE are JSON, as `dump` writes them. For example:

    \b
        strandline debug edit ./lake setting '"note"' '{"name": "note", "value": "seen"}'
    """  # noqa: D301 - the mark that keeps lines as they are
    collection, parsed_key = editing.editable(kind), _parsed_key(key)
    try:
        new = read_json(value.encode(errors="surrogateescape"), collection.of)
    except InvalidInput as error:
        raise InvalidInput(error.message.replace("the body", "the value", 1)) from None

    def change(transaction: CatalogTransaction) -> None:
        editing.edit(transaction, collection, parsed_key, new)

    _apply(store, collection, parsed_key, change, user=user)


@debug.command(short_help="Remove the object at KEY.", context_settings=_TAKES_NUMBERS)
@STORE
@_KIND
@_KEY
@USER
def delete(store: Store, *, kind: str, key: str, user: str) -> None:
    """Remove the object at KEY, which is JSON as `dump` writes it, and show it."""
    collection, parsed_key = editing.editable(kind), _parsed_key(key)

    def change(transaction: CatalogTransaction) -> None:
        editing.delete(transaction, collection, parsed_key)

    _apply(store, collection, parsed_key, change, user=user)


def _parsed_key(text: str) -> Key:
    shown = text[:_KEY_SHOWN]
    try:
        parsed = json.loads(text)
        str(parsed).encode()  # fails for half of a surrogate pair
    except (ValueError, RecursionError):
        raise InvalidInput(
            f"the key {shown!r} is not JSON; write a name in quotes: '{json.dumps(shown)}'"
        ) from None
    if not isinstance(parsed, (int, str)):
        raise InvalidInput(
            f"the key {shown!r} is neither a number nor a string; write one of these"
        )
    return parsed


def _apply(store: Store, kind: Collection, key: Key, change: Fill, *, user: str) -> None:
    before: list[Any] = []

    def noting(transaction: CatalogTransaction) -> None:
        before[:] = [editing.current(transaction, kind, key)]
        change(transaction)

    address = address_of(store)
    with log_at(address, read_only=False) as (log, database):
        refuse_moved(database, address)
        state = durable_state(log).edit(
            noting,
            member=new_member_id(),
            raise_fence=raises_fence_of(database, HybridClock()),
            author=user,
        )
    (previous,) = before
    shown = "null" if previous is None else write_json(previous, kind.of).decode()
    click.echo(f"previous value: {shown}")
    if state is None:
        click.echo("nothing was changed: the key already has this value")
    else:
        click.echo(f"epoch {state.token.epoch}, version {state.recovered[-1].version}")
