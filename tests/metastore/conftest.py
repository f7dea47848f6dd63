"""A store in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.metastore.dml import Dml


@pytest.fixture
def dml(tmp_path: Path) -> Iterator[Dml]:
    made = Dml(tmp_path / "strandline.db")
    yield made
    made.database.close()
