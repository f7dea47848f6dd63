"""A catalog without a node: written, read, and moved to another log by a command that may die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from strandline.clock import HybridClock
from strandline.durable import DurableCatalogState, UpdateLog
from strandline.model.descriptors import Setting
from strandline.node.address import StoreAddress
from strandline.node.catalog_log import LogPlace, RememberedLog, open_catalog_log, remembered_log
from strandline.node.catalog_move import MovedCatalog, move_catalog
from strandline.node.membership import join_or_create
from strandline.node.store_database import open_store_database


def move(folder: Path, to: str, *, leaving: str = "") -> MovedCatalog:
    with place_of(folder) as place:
        return move_catalog(place, place, leaving=leaving, to=to)


@contextmanager
def place_of(folder: Path) -> Iterator[LogPlace]:
    with closing(open_store_database(folder)) as database:
        yield LogPlace(database, StoreAddress(folder), HybridClock())


@contextmanager
def joined(folder: Path) -> Iterator[DurableCatalogState]:
    with place_of(folder) as place, joined_at(place) as state:
        yield state


@contextmanager
def joined_at(place: LogPlace, *, delay_ms: int = 0) -> Iterator[DurableCatalogState]:
    """Open the catalog as a node joins or creates it, without the rest of a node."""
    with ExitStack() as opened:
        yield joined_in(open_catalog_log(place, opened, wanted="").log, place, delay_ms=delay_ms)


def joined_in(log: UpdateLog, place: LogPlace, *, delay_ms: int = 0) -> DurableCatalogState:
    return join_or_create(
        log,
        place.database,
        place.clock,
        member="m",
        delay_ms=delay_ms,
        skew_ms=0,
        default_location="file:/warehouse/default",
    )


def commit(state: DurableCatalogState, name: str) -> None:
    transaction = state.transaction(state.recovered[-1], author="ann")
    with transaction.entry("configure", {"name": name}):
        transaction.put(Setting(name, "here"))
    state.recovered.append(state.commit_transaction(transaction))


def notes(state: DurableCatalogState) -> set[str]:
    settings = state.recovered[-1].contents.objects("setting")
    return {note.name for note in settings if note.value.value == "here"}


class Killed(BaseException):
    """The process is killed here: no later statement has an effect."""


def trimmed(folder: Path) -> Path:
    with joined(folder) as state:
        commit(state, "one")
        state.compact(state.recovered[-1].version - 1)
    return folder


def log_of(folder: Path) -> str:
    with place_of(folder) as place:
        kept = remembered_log(place)
        assert kept is not None
        return kept.name


def killed(*_: object) -> None:
    raise Killed


def killed_at_the_end(_: object, present: object = None, *__: object, **___: object) -> object:
    """Stands for a step of the move; `finish_move` is also called before the move."""
    if isinstance(present, RememberedLog) and not present.former:
        return present
    raise Killed
