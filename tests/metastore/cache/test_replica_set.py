"""The set of replicas: changes that fail, tables that are too large, and packed replicas."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace

import pytest

from strandline import work
from strandline.errors import CorruptData
from strandline.metastore.cache import replica_set
from strandline.metastore.cache.replica_set import Change, ReplicaSet
from strandline.metastore.cache.replicas import Replica
from strandline.transactions import ValidWriteIdList

TABLE, OTHER = 1, 2


def loaded(table_id: int = TABLE, *, event_id: int = 5, size: int = 100) -> Replica:
    return Replica(table_id, event_id, ValidWriteIdList.of(0), rows=1, size=size)


def fail(_: Replica) -> Replica:
    raise CorruptData("no such row")


def at_event(event_id: int) -> Change:
    return lambda replica: replace(replica, event_id=event_id)


@dataclass(frozen=True)
class Packed:
    replica: Replica
    readable: bool = True
    table_id: int = TABLE
    rows: int = 1
    size: int = 100

    def unpacked(self) -> Replica:
        return self.replica if self.readable else fail(self.replica)


@pytest.fixture
def replicas() -> ReplicaSet:
    return ReplicaSet(applied_event=5, memory_bytes=1_000)


def held(replicas: ReplicaSet) -> list[int]:
    return [replica.table_id for replica in replicas.snapshot()[1]]


def load(replicas: ReplicaSet, replica: Replica) -> None:
    announced = replicas.begin_load(replica.table_id)
    assert announced is not None
    replicas.finish_load(announced, replica)


def test_a_change_that_fails_evicts_its_table_alone(replicas: ReplicaSet) -> None:
    for table_id in (TABLE, OTHER):
        load(replicas, loaded(table_id))
    replicas.apply(6, [(TABLE, fail), (OTHER, at_event(6))])
    assert held(replicas) == [OTHER]
    other = replicas.get(OTHER)
    assert other is not None
    assert other.event_id == replicas.applied_event == 6
    assert replicas.statistics().poisoned == 1


def test_a_load_applies_the_changes_that_arrived_later_than_its_rows(replicas: ReplicaSet) -> None:
    announced = replicas.begin_load(TABLE)
    assert announced is not None
    replicas.apply(6, [(TABLE, fail)])
    replicas.apply(7, [(TABLE, at_event(7))])
    replicas.finish_load(announced, loaded(event_id=6))
    replica = replicas.get(TABLE)
    assert replica is not None
    assert replica.event_id == 7
    assert replicas.statistics().poisoned == 0


def test_a_load_whose_changes_fail_is_dropped_and_can_be_repeated(replicas: ReplicaSet) -> None:
    announced = replicas.begin_load(TABLE)
    assert announced is not None
    replicas.apply(6, [(TABLE, fail)])
    replicas.finish_load(announced, loaded())
    assert held(replicas) == []
    assert replicas.statistics().poisoned == 1
    load(replicas, loaded(event_id=6))
    assert held(replicas) == [TABLE]


def test_a_load_that_too_many_changes_interrupted_is_dropped(
    replicas: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_set, "MAX_CHANGES_WHILE_LOADING", 1)
    announced = replicas.begin_load(TABLE)
    assert announced is not None
    for event_id in (6, 7):
        replicas.apply(event_id, [(TABLE, at_event(event_id))])
    replicas.finish_load(announced, loaded())
    assert held(replicas) == []


@pytest.mark.parametrize(
    "lose",
    [
        lambda replicas: replicas.evict(TABLE),
        lambda replicas: replicas.restart(3),
        lambda replicas: replicas.skip(6, poisoned=[TABLE]),
        lambda replicas: replicas.skip(6, poisoned=None),
    ],
    ids=["evicted", "set back", "its event skipped", "an event of unknown tables skipped"],
)
def test_a_load_of_a_table_that_was_evicted_meanwhile_is_dropped(
    replicas: ReplicaSet, lose: Callable[[ReplicaSet], None]
) -> None:
    """Its rows may be cleaned, or lost."""
    announced = replicas.begin_load(TABLE)
    assert announced is not None
    lose(replicas)
    replicas.finish_load(announced, loaded())
    assert held(replicas) == []


def test_a_table_larger_than_memory_is_not_loaded_again_until_it_is_evicted(
    replicas: ReplicaSet,
) -> None:
    load(replicas, loaded(size=1_001))
    assert held(replicas) == []
    assert replicas.begin_load(TABLE) is None
    replicas.evict(TABLE)
    assert replicas.begin_load(TABLE) is not None


def test_the_tables_known_to_be_too_large_are_bounded(
    replicas: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_set, "MAX_OVERSIZED", 1)
    for table_id in (TABLE, OTHER):
        load(replicas, loaded(table_id, size=1_001))
    assert replicas.begin_load(TABLE) is not None  # forgotten
    assert replicas.begin_load(OTHER) is None


def test_a_packed_replica_is_unpacked_by_a_read_or_an_event(replicas: ReplicaSet) -> None:
    replicas.restore(5, [Packed(loaded())])
    assert replicas.get(TABLE, max_rows=0) is None
    assert replicas.get(TABLE) == loaded()
    assert isinstance(replicas.snapshot()[1][0], Replica)
    replicas.restore(5, [Packed(loaded())])
    replicas.apply(6, [(TABLE, at_event(6))])
    assert replicas.get(TABLE) == loaded(event_id=6)


def test_a_packed_replica_that_cannot_be_read_is_evicted(replicas: ReplicaSet) -> None:
    replicas.restore(5, [Packed(loaded(), readable=False)])
    assert replicas.get(TABLE) is None
    assert held(replicas) == []
    assert replicas.statistics().poisoned == 1


def test_a_packed_replica_that_was_evicted_while_it_was_unpacked_stays_evicted(
    replicas: ReplicaSet,
) -> None:
    class Evicting(Packed):
        def unpacked(self) -> Replica:
            replicas.evict(TABLE)
            return super().unpacked()

    for readable in (True, False):
        replicas.restore(5, [Evicting(loaded(), readable=readable)])
        assert replicas.get(TABLE) is None
        assert held(replicas) == []
    assert replicas.statistics().poisoned == 0


def test_readers_that_need_a_large_packed_replica_at_once_unpack_it_once(
    replicas: ReplicaSet,
) -> None:
    looked, go_on = threading.Semaphore(0), threading.Event()
    unpacked: list[Replica] = []

    class Slow:
        table_id, size = TABLE, 100

        @property
        def rows(self) -> int:
            looked.release()
            return work.AT_ONCE + 1

        def unpacked(self) -> Replica:
            assert go_on.wait(60)
            unpacked.append(loaded())
            return unpacked[-1]

    replicas.restore(5, [Slow()])
    while looked.acquire(blocking=False):
        pass
    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(replicas.get, TABLE) for _ in range(3)]
        for _ in readers:
            assert looked.acquire(timeout=60)
        go_on.set()
    assert all(reader.result() is unpacked[0] for reader in readers)
    assert len(unpacked) == 1


def test_a_call_gives_way_to_a_thread_that_unpacks_its_table_unless_it_applies_an_event(
    replicas: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas.restore(5, [Packed(loaded(), rows=work.AT_ONCE + 1)])
    unpacking, came = replicas._unpacking, threading.Event()
    first = unpacking._first

    def come(key: int, made: Future[None]) -> Future[None]:
        other = first(key, made)
        came.set()
        return other

    def apply() -> None:
        work.GIVES_WAY.set(True)
        replicas.apply(6, [(TABLE, at_event(6))])

    def read() -> None:
        work.GIVES_WAY.set(True)
        with pytest.raises(work.NotYet):
            replicas.get(TABLE)

    with ThreadPoolExecutor(1) as pool:
        with unpacking.hold(TABLE):
            pool.submit(copy_context().run, read).result(60)
            monkeypatch.setattr(unpacking, "_first", come)
            applying = pool.submit(copy_context().run, apply)
            assert came.wait(60)
        applying.result(60)
    assert replicas.get(TABLE) == loaded(event_id=6)


def test_an_event_for_a_replica_that_was_restored_packed_meanwhile_evicts_it(
    replicas: ReplicaSet,
) -> None:
    class Replaced(Packed):
        def unpacked(self) -> Replica:
            replicas.restore(5, [Packed(loaded())])
            return super().unpacked()

    replicas.restore(5, [Replaced(loaded())])
    replicas.apply(6, [(TABLE, at_event(6))])
    assert held(replicas) == []
    assert replicas.statistics().poisoned == 1
