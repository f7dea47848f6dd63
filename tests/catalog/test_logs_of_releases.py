"""A log that an earlier release wrote is read, migrated and continued on each kind of metastorage.

``tests/golden/log_*.json`` contain the keys and values that a node of the release left, in revision
order, and the objects of each version as that node showed them. Each log was trimmed; the later
versions are updates of many kinds. Up to 0.2.0 the time of an update was the time of its key. Later
releases store it inside the update, and ``times`` has the times that the node showed.
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
from strandline.catalog.rules import broken_rules
from strandline.catalog.undo.reading import visible_undo
from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, durable_state
from strandline.durable.collections import COLLECTIONS
from strandline.durable.metastorage_log import update_key
from strandline.durable.migrations import NeedsMigration
from strandline.durable.state import ReadOnlyState
from strandline.metastorage import Metastorage, Put
from strandline.node.verified_catalog import compare_history
from tests.metastorage.stores import STORES

FOLDER = Path(__file__).parents[1] / "golden"
NOW_MS = 1_800_000_000_000  # after all times of the golden log, whatever this machine's clock says

NewManager = Callable[[], CatalogManager]


class Golden:
    """The log that a release wrote."""

    def __init__(self, release: str) -> None:
        read = json.loads((FOLDER / f"log_{release.replace('.', '_')}.json").read_text())
        self.rows = read["rows"]
        self.objects = {int(version): names for version, names in read["objects"].items()}
        self.times = {int(version): time for version, time in read.get("times", {}).items()}
        self.has_own_times = release > "0.2.0"
        self.last = max(self.objects)
        self.migrated = self.last + 2
        """The last version is followed by those of the new epoch and of the migration."""

    @property
    def renaming(self) -> tuple[int, str]:
        """The version that renamed ``orders``, and the table as it was before."""
        (version,) = (
            version
            for version, names in self.objects.items()
            if " sales" in str(names) and " orders" in str(self.objects.get(version - 1))
        )
        (before,) = (name for name in self.objects[version - 1] if name.endswith(" orders"))
        return version, before


@pytest.fixture(params=["0.1.0", "0.2.0", "0.2.1", "0.3.0"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


@pytest.fixture(params=STORES)
def open_store(
    request: pytest.FixtureRequest, tmp_path: Path, golden: Golden
) -> Iterator[Callable[[], Any]]:
    """Opens the store that contains the golden log, as one more node."""
    kind = STORES[request.param]
    address = kind.create(tmp_path)
    with ExitStack() as opened:

        def open_one() -> tuple[Metastorage, HybridClock]:
            clock = HybridClock(lambda: NOW_MS)
            return opened.enter_context(kind.open(address, clock)), clock

        store, _ = open_one()
        for _, rows in groupby(golden.rows, key=lambda row: row[0]):
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


def test_each_version_has_the_objects_and_the_time_that_the_release_showed(
    new_manager: NewManager, open_store: Callable[[], Any], golden: Golden
) -> None:
    manager = new_manager()
    store, _ = open_store()
    assert manager.earliest_catalog().version == min(golden.objects)
    assert manager.latest_catalog().version == golden.migrated
    assert list(broken_rules(manager.latest_catalog().contents)) == []
    last = read_history(manager.state.log)[-1]
    assert last.actions == (("migrate", {"step": "note the default zone by its id"}),)
    made = {"config 0 format_version", "config 0 default_zone"}  # 0.1.0 knew the zone by its name
    assert set(names_of(manager.catalog(golden.migrated))) == {*golden.objects[golden.last], *made}
    for version, names in golden.objects.items():
        catalog = manager.catalog(version)
        assert names_of(catalog) == names, version
        if golden.has_own_times:
            assert catalog.time == golden.times[version]
        elif version > min(golden.objects):  # the snapshot has its time inside
            assert catalog.time == store.get(update_key(version)).time
    times = [manager.catalog(version).time for version in golden.objects]
    assert times == sorted(set(times))


def test_the_log_is_continued_undone_trimmed_and_read_again(
    new_manager: NewManager, golden: Golden
) -> None:
    manager, other = new_manager(), new_manager()
    latest, since = golden.migrated, min(golden.objects) + 4
    assert manager.execute(CreateSchema(name="new"), author="ann").version == latest + 1
    other.sync()
    assert [name for name in names_of(other.latest_catalog()) if name.endswith(" new")]
    renamed, before = golden.renaming
    assert before not in names_of(other.latest_catalog())
    other.execute(visible_undo(other, renamed, through=None, identity=None), author="ann")
    other.execute(DropSchema(name="new"), author="ann")
    manager.sync()
    assert before in names_of(manager.latest_catalog())
    assert manager.compact(since)
    expected = [names_of(manager.catalog(version)) for version in range(since, latest + 4)]
    again = new_manager()
    assert again.earliest_catalog().version == since
    assert [names_of(again.catalog(version)) for version in range(since, latest + 4)] == expected
    kept = range(since, golden.last + 1)
    assert expected[: len(kept)] == [golden.objects[version] for version in kept]


@pytest.mark.parametrize("golden", ["0.1.0", "0.2.0"], indirect=True)
def test_a_changed_time_of_a_record_is_found_by_its_copy_in_the_history(
    open_store: Callable[[], Any], golden: Golden
) -> None:
    store, _ = open_store()
    log = MetastorageLog(store)

    def wrong_versions() -> list[str]:
        findings = compare_history(ReadOnlyState(log), read_history(log))
        return [finding.place for finding in findings]

    assert wrong_versions() == []
    key = update_key(golden.last - 1)
    store.invoke([], [Put(key, store.get(key).value)])  # written again, it gets another time
    assert wrong_versions() == [f"version {golden.last - 1}"]
