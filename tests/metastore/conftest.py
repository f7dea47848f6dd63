"""A store in SQLite, and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.metastore.dml import Dml
from tests.servers import postgresql


@pytest.fixture(params=["sqlite", "postgresql"])
def dml(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Dml]:
    made = Dml(
        tmp_path / "strandline.db"
        if request.param == "sqlite"
        else postgresql.running().emptied_database()
    )
    yield made
    made.database.close()
