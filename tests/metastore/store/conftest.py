"""The stores of the tests of cleaning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.clock import system_wall_clock
from strandline.node import Node
from tests.metastore.store.lake import SETTINGS, Lake
from tests.servers import stores


@pytest.fixture(params=["folder", "postgresql"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    ahead = [0]
    store = stores.new_store(request.param, tmp_path / "lake", settings=SETTINGS)
    with Node.open(
        store.address, settings=store.settings, wall=lambda: system_wall_clock() + ahead[0]
    ) as node:
        made = Lake(node, ahead)
        made.address = store.address
        yield made


@pytest.fixture
def in_folder(tmp_path: Path) -> Iterator[Lake]:
    ahead = [0]
    wall = lambda: system_wall_clock() + ahead[0]  # noqa: E731 - shorter than a function
    with Node.open(tmp_path / "lake", settings=SETTINGS, wall=wall) as node:
        yield Lake(node, ahead)
