"""How the commands reach the store in a folder: to read its history, or to change it as a node."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from strandline.catalog import Catalog, VersionInfo, read_history
from strandline.catalog.follower import DELAY
from strandline.catalog.history import History
from strandline.clock import HybridClock, add_milliseconds, parse_timestamp
from strandline.durable import MetastorageLog, durable_state
from strandline.durable.state import ReadOnlyState
from strandline.errors import NotFound
from strandline.metastorage import SqliteMetastorage
from strandline.node import DATABASE_FILE, Node
from strandline.sql import open_sqlite


def ensure_store(folder: Path) -> Path:
    """The database of the store in ``folder``; `NotFound` if there is none."""
    file = folder / DATABASE_FILE
    if not file.exists():
        raise NotFound(f"there is no store in {folder}; `strandline serve {folder}` creates one")
    return file.absolute()


@contextmanager
def reading(folder: Path) -> Iterator[ReadOnlyState]:
    """The catalog of the store in ``folder``, without joining it. `NotFound`."""
    database = open_sqlite(ensure_store(folder))
    try:
        log = MetastorageLog(SqliteMetastorage(database, HybridClock()))
        yield durable_state(log).open_read_only()
    finally:
        database.close()


def history_of_folder(folder: Path) -> list[VersionInfo]:
    """What people did in the store in ``folder``, version by version. `NotFound`."""
    with reading(folder) as state:
        return read_history(state.log)


def catalogs_of_folder(folder: Path) -> History:
    """Every catalog that the store in ``folder`` still keeps. `NotFound`."""
    with reading(folder) as state:
        delay = int(state.config(DELAY) or 0)
        catalogs = [
            Catalog(
                one.update.version,
                add_milliseconds(one.update.time, delay) if one.update.version else one.update.time,
                one.contents,
            )
            for one in (state.base, *state.backlog)
        ]
        return History(*catalogs)


def catalog_named(history: History, text: str) -> Catalog:
    """The catalog that ``text`` names: a version, or a time. `InvalidInput`, `VersionNotFound`."""
    if text.isascii() and text.isdecimal():
        return history.at_version(int(text))
    return history.at_time(parse_timestamp(text))


@contextmanager
def joining(folder: Path) -> Iterator[Node]:
    """A node of this process on the store in ``folder``, beside those that run. `NotFound`."""
    ensure_store(folder)
    with Node.open(folder) as node:
        yield node


def operating_user() -> str:
    """The name of the user who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id that the system has no name for
        return "unknown"


FOLDER = click.argument("folder", type=click.Path(path_type=Path))
OUTPUT = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: one object a line.",
)
USER = click.option(
    "--user",
    default=operating_user,
    show_default="the user of the system",
    help="Who does it, as the history will say.",
)
