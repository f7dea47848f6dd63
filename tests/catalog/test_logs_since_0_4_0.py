"""A log that a release since 0.4.0 wrote is read and continued, for each kind of log.

``tests/golden/log_0_4_0_*.json`` and so on contain the statements that recreate the SQLite database
of the log, its blobs, and the objects and time of each version as that release showed them. Each
log was trimmed. Those since 0.5.0 were continued by a second epoch.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.commands import CreateSchema
from strandline.catalog.rules import broken_rules
from strandline.clock import HybridClock
from strandline.durable import durable_state
from tests.catalog.test_logs_of_releases import FOLDER, NOW_MS, names_of
from tests.durable.logs import LOGS

NewManager = Callable[[], CatalogManager]


KINDS = {
    "metastorage": "metastorage on sqlite",
    "stash": "stash on sqlite",
    "persist": "persist on sqlite",
    "shadow": "shadow in sqlite",
}
OF_0_4_0 = ("0_4_0_stash", "0_4_0_persist")
SINCE_0_5_0 = [f"0_{minor}_0_{kind}" for minor in range(5, 22) for kind in KINDS]


class Golden:
    def __init__(self, name: str, folder: Path) -> None:
        read = json.loads((FOLDER / f"log_{name}.json").read_text())
        self.objects = {int(version): names for version, names in read["objects"].items()}
        self.times = {int(version): time for version, time in read["times"].items()}
        self.token = tuple(read.get("token", (0, 1)))
        self.kind = LOGS[KINDS[name.rpartition("_")[2]]]
        self.address = self.kind.create(folder)
        with closing(sqlite3.connect(folder / read["database"])) as database:
            database.executescript("\n".join(read["sql"]))
        for name, data in read["blobs"].items():
            blob = folder / "blobs" / name
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(bytes.fromhex(data))


@pytest.fixture(params=[*OF_0_4_0, *SINCE_0_5_0])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return Golden(request.param, tmp_path)


@pytest.fixture
def new_manager(golden: Golden) -> Iterator[NewManager]:
    with ExitStack() as opened:

        def make() -> CatalogManager:
            clock: Any = HybridClock(lambda: NOW_MS)
            log = opened.enter_context(golden.kind.open(golden.address, clock))
            manager = CatalogManager(durable_state(log).join(member="m"), clock)
            manager.start()
            opened.callback(manager.stop)
            return manager

        yield make


def test_each_version_has_the_objects_and_the_time_that_the_release_showed(
    new_manager: NewManager, golden: Golden
) -> None:
    manager = new_manager()
    assert manager.token.rank == golden.token
    assert manager.earliest_catalog().version == min(golden.objects)
    assert manager.latest_catalog().version == max(golden.objects)
    assert list(broken_rules(manager.latest_catalog().contents)) == []
    for version, names in golden.objects.items():
        catalog = manager.catalog(version)
        assert names_of(catalog) == names
        assert catalog.time == golden.times[version]


def test_the_log_is_continued_trimmed_and_read_again(
    new_manager: NewManager, golden: Golden
) -> None:
    manager, last = new_manager(), max(golden.objects)
    assert manager.execute(CreateSchema(name="new"), author="ann").version == last + 1
    assert manager.compact(min(golden.objects) + 2)
    again = new_manager()
    assert again.earliest_catalog().version == min(golden.objects) + 2
    assert names_of(again.catalog(last)) == golden.objects[last]
    assert [name for name in names_of(again.latest_catalog()) if name.endswith(" new")]
