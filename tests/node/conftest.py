"""What the tests of nodes share: processes, ended by their ids, and changes to a store."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.model.types import INT
from strandline.node import DATABASE_FILE, Node
from tests.node.backups import small_store
from tests.node.kept_store import KeptStore
from tests.sql.processes import Process


class MemberProcess:
    """A second process on the store; see `member_process`."""

    def __init__(self, folder: Path, *, stale: bool = False) -> None:
        self._process = Process("tests.node.member_process:serve", str(folder), stale)
        assert self.answer() == "ready"

    def say(self, *words: object) -> None:
        self._process.say(words)

    def answer(self) -> Any:  # Any: what the word gives
        return self._process.hear()

    def ask(self, *words: object) -> Any:  # Any: what the word gives
        self.say(*words)
        return self.answer()

    def send(self, number: signal.Signals) -> None:
        self._process.signal(number)

    def close(self) -> None:
        self._process.close()


@pytest.fixture
def new_process(tmp_path: Path) -> Iterator[Callable[..., MemberProcess]]:
    """Starts processes on the store in ``tmp_path / "store"``."""
    started: list[MemberProcess] = []

    def start(*, stale: bool = False) -> MemberProcess:
        started.append(MemberProcess(tmp_path / "store", stale=stale))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that this program syncs from now on, in order, without those that SQLite syncs."""
    paths: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        fsync(descriptor)
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", recording)
    return paths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def sql(folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / DATABASE_FILE)) as connection, connection:
        connection.execute(statement, values)


def before_the_next(
    patch: pytest.MonkeyPatch, owner: object, name: str, act: Callable[[], object]
) -> None:
    """Call ``act`` once, just before the next call of ``owner.name``."""
    real = getattr(owner, name)

    def call(*arguments: object, **named: object) -> object:
        patch.setattr(owner, name, real)
        act()
        return real(*arguments, **named)

    patch.setattr(owner, name, call)


def create_table(node: Node, name: str = "t") -> int:
    session = node.session(user="ann")
    definition = TableDefinition(
        name=name, columns=(ColumnDefinition("a", INT),), transactional=True
    )
    session.execute(CreateTable(schema="default", definition=definition))
    return session.table(f"default.`{name}`").descriptor.id


@pytest.fixture(scope="module")
def kept_store(tmp_path_factory: pytest.TempPathFactory) -> KeptStore:
    return KeptStore(tmp_path_factory.mktemp("lake"), small_store)


@pytest.fixture
def store(kept_store: KeptStore) -> Path:
    """The `small_store` that tests back up."""
    return kept_store.renewed()
