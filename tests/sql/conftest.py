"""A database in a fresh folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.sql import Database, open_engine, sqlite_url
from tests.sql import work


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return work.file_named(tmp_path)


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    opened = open_engine(sqlite_url(path))
    opened.ensure_schema("counter", 1, work.METADATA)
    yield opened
    opened.close()
