"""Two first starts of one empty store at once, with different settings.

One start is stopped before each of its transactions on the store's database, and the other runs
there from its begin to its end. Whatever they answer, the store has one catalog afterwards.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.config import Settings
from strandline.errors import Conflict, InvalidInput
from strandline.node import DATABASE_FILE, Node, catalog_log, opened_store
from strandline.sql.sqlite_database import SqliteDatabase
from tests.servers import stores

FIRST, OTHER = Settings(catalog_log="metastorage"), Settings(catalog_log="stash")


class Stop:
    """Calls ``act`` once, before the transaction ``number`` that begins on the database."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self._left = number
        self._act = act

    def count(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._act()


@contextmanager
def stopping(stop: Stop) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("read", "_write", "_schema_change"):
            real = getattr(SqliteDatabase, name)

            def call(*arguments: Any, _real: Any = real, **named: Any) -> Any:
                stop.count()
                return _real(*arguments, **named)

            patch.setattr(SqliteDatabase, name, call)
        yield


def environment_of(folder: Path, settings: Settings | None = None) -> str:
    with Node.open(folder, settings=settings, background=False) as node:
        return node.catalogs.state.environment or ""


def has_fence(folder: Path) -> bool:
    if not (folder / DATABASE_FILE).exists():
        return False
    with closing(sqlite3.connect(folder / DATABASE_FILE)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
        return ("strandline_fence",) in tables and bool(
            connection.execute("SELECT * FROM strandline_fence").fetchall()
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stopped", "whole", "is_begun"),
    [(FIRST, OTHER, False), pytest.param(OTHER, FIRST, True, marks=pytest.mark.slow)],
)
def test_two_first_starts_with_different_logs_make_one_catalog(
    stopped: Settings, whole: Settings, is_begun: bool, tmp_path: Path
) -> None:
    """If ``is_begun``, an earlier start with the log of ``whole`` ended before the creation."""
    is_settled = False
    for number in range(100):
        folder = tmp_path / str(number)
        if is_begun:
            fail_first_start(folder, whole)
        created: list[str] = []

        def start_whole(folder: Path = folder, created: list[str] = created) -> None:
            nonlocal is_settled
            is_settled = has_fence(folder)
            with suppress(InvalidInput, Conflict):
                created.append(environment_of(folder, whole))

        with stopping(Stop(number, start_whole)), suppress(InvalidInput, Conflict):
            created.append(environment_of(folder, stopped))
        assert created == [environment_of(folder)], number
        if is_settled:
            return
    raise AssertionError("no start was stopped behind the creation of the catalog")


def fail_first_start(folder: Path, settings: Settings) -> None:
    """Choose the log of a new store, and end before the catalog is created."""

    def fail(*_: object) -> None:
        raise OSError("power")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="power"):
        patch.setattr(opened_store, "claim_place", fail)
        Node.open(folder, settings=settings)


def test_two_first_starts_with_and_without_etcd_make_one_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.new_store("etcd", tmp_path)
    without_etcd = replace(store.settings, objects="")
    remember = catalog_log.remember

    def start_whole(*arguments: Any, **named: Any) -> catalog_log.RememberedLog:
        monkeypatch.setattr(catalog_log, "remember", remember)
        Node.open(store.settings.objects, settings=without_etcd, background=False).close()
        return remember(*arguments, **named)

    monkeypatch.setattr(catalog_log, "remember", start_whole)
    with pytest.raises(InvalidInput, match="name the store by the address of that database"):
        Node.open(store.address, settings=store.settings, background=False)
    Node.open(store.settings.objects, settings=without_etcd, background=False).close()
