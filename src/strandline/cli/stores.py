"""How the commands reach the store in a folder: to read its history, or to change it as a node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.catalog import Catalog, VersionInfo, read_history
from strandline.catalog.follower import DELAY
from strandline.catalog.history import History
from strandline.cli.settings import load
from strandline.clock import (
    HybridClock,
    add_milliseconds,
    format_timestamp,
    milliseconds,
    parse_timestamp,
)
from strandline.durable import MetastorageLog, durable_state
from strandline.durable.state import ReadOnlyState
from strandline.errors import InvalidInput, NotFound, VersionNotFound
from strandline.metastorage import SqliteMetastorage
from strandline.node import DATABASE_FILE, Node
from strandline.sql import open_sqlite


def ensure_store(folder: Path) -> Path:
    """The database of the store in ``folder``; `NotFound` if there is none."""
    file = folder / DATABASE_FILE
    if folder.is_file():
        raise NotFound(f"{folder} is a file; name the folder of a store, which holds {file.name}")
    if not file.exists():
        raise NotFound(f"there is no store in {folder}; `strandline serve {folder}` creates one")
    return file.absolute()


@contextmanager
def reading(folder: Path) -> Iterator[ReadOnlyState]:
    """The catalog of the store in ``folder``, without joining it. `NotFound`."""
    with _log_of(folder) as log:
        yield durable_state(log).open_read_only()


@contextmanager
def _log_of(folder: Path) -> Iterator[MetastorageLog]:
    database = open_sqlite(ensure_store(folder))
    try:
        yield MetastorageLog(SqliteMetastorage(database, HybridClock()))
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
    try:
        at = parse_timestamp(text)
    except InvalidInput:
        raise InvalidInput(
            f"{text!r} is neither a version nor a time; write a time like 2026-11-20T10:00:00Z"
        ) from None
    earliest, now = history.earliest, max(HybridClock().current(), history.latest.time)
    if milliseconds(at) > milliseconds(now):
        raise VersionNotFound(
            f"{text} is in the future, it is {format_timestamp(now)}; name a time that has passed"
        )
    if at < earliest.time:
        raise VersionNotFound(
            f"{text} is before the earliest version that is kept: {earliest.version}, active from "
            f"{format_timestamp(earliest.time)}"
        )
    return history.at_time(at)


@contextmanager
def joining(folder: Path) -> Iterator[Node]:
    """A node of this process on the store in ``folder``, beside those that run. `NotFound`."""
    with _log_of(folder) as log:
        if log.token() is None:
            raise NotFound(f"there is no catalog in {folder} yet; `strandline serve` creates one")
    with Node.open(folder, settings=load(folder).settings) as node:
        yield node
