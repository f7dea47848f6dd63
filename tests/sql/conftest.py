"""Databases for the tests: one of each dialect, or a SQLite file in a fresh folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.sql import Database, SqliteDatabase, open_database, open_sqlite, postgres_database
from strandline.sql.schema_versions import Part
from tests.servers import postgresql
from tests.servers.sqlite import sqlite_url
from tests.sql import work


@pytest.fixture(autouse=True)
def _waits_for_a_busy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes past their deadline and upgrades wait longer for the server than in a node."""
    monkeypatch.setattr(postgres_database, "_ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(postgres_database, "UPGRADE_LOCK_SECONDS", 60.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return work.file_named(tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    """An empty database of each dialect."""
    return sqlite_url(path) if request.param == "sqlite" else postgresql.running().new_schema()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url)
    opened.ensure_schema(Part("counter", 1, work.METADATA))
    yield opened
    opened.close()


@pytest.fixture
def sqlite(path: Path) -> Iterator[SqliteDatabase]:
    opened = open_sqlite(path)
    opened.ensure_schema(Part("counter", 1, work.METADATA))
    yield opened
    opened.close()
