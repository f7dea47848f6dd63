"""A log that 0.2.0 wrote is read and continued on each kind of metastorage.

``tests/golden/log_0_2_0.json`` has the keys and values that a node of 0.2.0 left, in the order of
their revisions, and the objects of each version as that node showed them. It was trimmed up to
version 8; the later versions are updates of all kinds, without a time inside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog import Catalog, CatalogManager, read_history
from strandline.catalog.commands import CreateSchema, DropSchema
from strandline.catalog.undo.reading import visible_undo
from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, durable_state
from strandline.durable.collections import COLLECTIONS
from strandline.durable.metastorage_log import update_key
from strandline.durable.migrations import NeedsMigration
from strandline.durable.state import ReadOnlyState
from strandline.metastorage import Metastorage, Put
from strandline.node.verification import compare_times
from tests.metastorage.stores import STORES

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "log_0_2_0.json").read_text())
OBJECTS = {int(version): names for version, names in GOLDEN["objects"].items()}
MIGRATED = max(OBJECTS) + 2
"""Behind the last version come that of the new epoch and that of the migration."""
NOW_MS = 1_800_000_000_000  # after all times of the golden log, whatever this machine's clock says

NewManager = Callable[[], CatalogManager]


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Opens one store, on which the golden log stands, as one more node."""
    kind = STORES[request.param]
    address = kind.create(tmp_path)
    with ExitStack() as opened:

        def open_one() -> tuple[Metastorage, HybridClock]:
            clock = HybridClock(lambda: NOW_MS)
            return opened.enter_context(kind.open(address, clock)), clock

        store, _ = open_one()
        for _, rows in groupby(GOLDEN["rows"], key=lambda row: row[0]):
            store.invoke([], [Put(key, bytes.fromhex(value)) for _, key, value in rows])
        yield open_one


@pytest.fixture
def new_manager(open_store: Callable[[], Any]) -> Iterator[NewManager]:
    running: list[CatalogManager] = []

    def make() -> CatalogManager:
        store, clock = open_store()
        openable, member = durable_state(MetastorageLog(store)), f"m{len(running)}"
        try:
            state = openable.join(member=member)
        except NeedsMigration:
            state = openable.open(
                member=member, initialize=lambda _: None, raise_fence=lambda *_: None
            )
        running.append(CatalogManager(state, clock))
        running[-1].start()
        return running[-1]

    yield make
    for manager in running:
        manager.stop()


def names_of(catalog: Catalog) -> list[str]:
    return sorted(
        f"{kind} {stored.id} {stored.name}"
        for kind in COLLECTIONS
        if not kind.startswith("system_")
        for stored in catalog.contents.objects(kind)
    )


def test_each_version_has_the_objects_that_0_2_0_showed_at_the_time_of_its_key(
    new_manager: NewManager, open_store: Callable[[], Any]
) -> None:
    manager = new_manager()
    store, _ = open_store()
    assert manager.earliest_catalog().version == min(OBJECTS)
    assert manager.latest_catalog().version == MIGRATED
    last = read_history(manager.state.log)[-1]
    assert last.actions == (("migrate", {"step": "note the default zone by its id"}),)
    assert names_of(manager.catalog(MIGRATED)) == sorted(
        [*OBJECTS[max(OBJECTS)], "config 0 format_version"]
    )
    for version, names in OBJECTS.items():
        catalog = manager.catalog(version)
        assert names_of(catalog) == names, version
        if version > min(OBJECTS):  # the snapshot has its time inside
            assert catalog.time == store.get(update_key(version)).time
    times = [manager.catalog(version).time for version in OBJECTS]
    assert times == sorted(set(times))


def test_it_is_continued_undone_trimmed_and_read_again(new_manager: NewManager) -> None:
    manager, other = new_manager(), new_manager()
    latest = MIGRATED
    assert manager.execute(CreateSchema(name="new"), author="ann").version == latest + 1
    other.sync()
    assert "schema 36 new" in names_of(other.latest_catalog())
    other.execute(
        visible_undo(other, 17, through=None, identity=None), author="ann"
    )  # the name of the table
    other.execute(DropSchema(name="new"), author="ann")
    manager.sync()
    assert "table 27 orders" in names_of(manager.latest_catalog())
    assert manager.compact(12)
    expected = [names_of(manager.catalog(version)) for version in range(12, latest + 4)]
    again = new_manager()
    assert again.earliest_catalog().version == 12
    assert [names_of(again.catalog(version)) for version in range(12, latest + 4)] == expected
    kept = range(12, max(OBJECTS) + 1)
    assert expected[: len(kept)] == [OBJECTS[version] for version in kept]


def test_a_time_that_changed_beside_a_record_is_found_by_its_copy_in_the_history(
    open_store: Callable[[], Any],
) -> None:
    store, _ = open_store()
    log = MetastorageLog(store)

    def wrong_versions() -> list[str]:
        findings = compare_times(ReadOnlyState(log), read_history(log))
        return [finding.place for finding in findings]

    assert wrong_versions() == []
    key = update_key(max(OBJECTS) - 1)
    store.invoke([], [Put(key, store.get(key).value)])  # it gets another time
    assert wrong_versions() == [f"version {max(OBJECTS) - 1}"]
