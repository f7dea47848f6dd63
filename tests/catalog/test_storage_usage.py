"""Storage usage is written down beside the catalog, and disturbs nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from strandline.catalog import AppliedVersion, CatalogManager
from strandline.catalog.commands import CreateSchema
from strandline.catalog.storage_usage import EVENTS_OF_A_VERSION
from strandline.errors import InvalidInput
from strandline.model.bookkeeping import StorageUsageEvent


def event(table_id: int, size: int = 5) -> StorageUsageEvent:
    return StorageUsageEvent(table_id, size, 1_000_000)


def read(manager: CatalogManager) -> list[tuple[int, int]]:
    return [(one.version, one.event.table_id) for one in manager.storage_usage()]


def test_usage_is_read_as_it_was_recorded(manager: CatalogManager) -> None:
    told: list[AppliedVersion] = []
    manager.subscribe(told.append)
    assert manager.record_storage_usage([event(7), event(8, 0)], author="job") == 3
    assert [one.event for one in manager.storage_usage()] == [event(7), event(8, 0)]
    assert manager.latest_catalog().version == 3
    assert manager.history(3) == []
    assert [one.events() for one in told] == [[]]


def test_no_usage_is_no_version(manager: CatalogManager) -> None:
    assert manager.record_storage_usage([], author="job") == 0
    assert manager.latest_catalog().version == 2


def test_much_usage_is_written_in_several_versions_in_order(manager: CatalogManager) -> None:
    count = 2 * EVENTS_OF_A_VERSION + 1
    assert manager.record_storage_usage([event(n) for n in range(count)], author="job") == 5
    assert [table_id for _, table_id in read(manager)] == list(range(count))
    assert [version for version, _ in read(manager)][::EVENTS_OF_A_VERSION] == [3, 4, 5]


def test_usage_outlives_the_history(manager: CatalogManager) -> None:
    manager.record_storage_usage([event(7)], author="job")
    manager.execute(CreateSchema(name="s"), author="ann")
    manager.compact(4)
    assert read(manager) == [(3, 7)]


def test_a_number_below_0_is_refused(manager: CatalogManager) -> None:
    with pytest.raises(InvalidInput, match="below 0"):
        manager.record_storage_usage([event(1), event(7, -1)], author="job")
    assert read(manager) == []


def test_usage_and_commands_of_several_nodes_stand_beside_each_other(
    new_manager: Callable[..., CatalogManager],
) -> None:
    managers = [new_manager() for _ in range(2)]

    def measure(one: CatalogManager) -> None:
        for number in range(10):
            one.record_storage_usage([event(number)], author="job")

    def change(one: CatalogManager, prefix: str) -> None:
        for number in range(10):
            one.execute(CreateSchema(name=f"{prefix}{number}"), author="ann")

    threads = [
        threading.Thread(target=measure, args=(managers[0],)),
        threading.Thread(target=change, args=(managers[0], "a")),
        threading.Thread(target=change, args=(managers[1], "b")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(table_id for _, table_id in read(managers[1])) == list(range(10))
    for one in managers:
        assert one.present().version == 32
        assert len(one.present().schema_names()) == 22
