"""A store in SQLite, and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import postgresql
from tests.transactions.stores import Store


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(
        tmp_path / "strandline.db"
        if request.param == "sqlite"
        else postgresql.running().emptied_database()
    )
    yield made
    made.database.close()
