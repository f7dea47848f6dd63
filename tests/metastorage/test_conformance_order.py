"""What every metastorage has to prove: one order and time over threads, nodes and processes.

``times`` is how many times each test does its short form; the long form is for `make soak`.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise

import pytest
from hypothesis import settings

from strandline.clock import MAX_AHEAD_MS, timestamp
from strandline.errors import WrongClock
from strandline.metastorage import Delete, DeleteRange, Head, Outcome, Put
from tests.conftest import ManualWall
from tests.metastorage.conftest import MEETING, Place, put
from tests.metastorage.model import AS_USUAL, compare_with_a_dictionary
from tests.metastorage.stores import StoreKind
from tests.metastorage.work import increment
from tests.sql.processes import Process

SHORT, LONG = 1, 10


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test that has ``times`` both forms."""
    if "times" in metafunc.fixturenames:
        forms = [SHORT, pytest.param(LONG, marks=pytest.mark.soak)]
        metafunc.parametrize("times", forms, ids=["short", "long"])


def test_time_increases_with_the_revision_whatever_the_wall_clocks_show(place: Place) -> None:
    walls = [ManualWall(1_000), ManualWall(900_000), ManualWall(50)]
    nodes = [place.node(wall) for wall in walls]
    dice = random.Random(7)
    seen = [Head(0, timestamp(1))]
    for _ in range(60):
        node = dice.randrange(3)
        walls[node].now = max(1, walls[node].now + dice.choice([-500_000, -1, 0, 0, 1, 10_000]))
        outcome = put(nodes[node], "a")
        assert outcome.time >= timestamp(walls[node].now)
        seen.append(Head(outcome.revision, outcome.time))
    for earlier, later in pairwise(seen):
        assert later.revision == earlier.revision + 1
        assert later.time > earlier.time


def test_every_write_after_a_check_has_a_later_time(place: Place) -> None:
    ahead, behind = ManualWall(1_000_000), ManualWall(10)
    fast, slow = place.node(ahead), place.node(behind)
    put(slow, "a")
    checked = fast.check()
    assert checked.revision == 1
    assert checked.time >= timestamp(1_000_000)
    ahead.now = 5
    assert slow.check().time > checked.time
    assert put(slow, "a").time > checked.time
    place.close()
    assert put(place.node(behind), "a").time > checked.time


def test_every_write_and_check_after_a_look_has_a_later_time(place: Place) -> None:
    ahead, behind = ManualWall(1_000_000), ManualWall(10)
    fast, slow = place.node(ahead), place.node(behind)
    written = put(fast, "a")
    ahead.now = 10
    looked = slow.look()
    assert looked.revision == 1
    assert looked.time > written.time
    ahead.now = 2_000_000
    looked = fast.look()
    assert looked.time >= timestamp(2_000_000)
    assert put(slow, "a").time > looked.time
    ahead.now = 3_000_000
    assert slow.check().time < fast.look().time < slow.check().time


def test_a_write_more_than_a_day_ahead_of_the_writers_clock_is_refused(place: Place) -> None:
    wrong, right = ManualWall(1_000 + MAX_AHEAD_MS + 1), ManualWall(1_000)
    put(place.node(right), "a")
    written = put(place.node(wrong), "a")
    node = place.node(right)
    for _ in range(2):
        with pytest.raises(WrongClock, match="nothing was written"):
            put(node, "a")
    assert node.check().time > written.time  # a check is allowed at any stored time
    assert node.look().time > written.time
    assert node.revision() == written.revision == 2
    entry = node.get("a")
    assert entry is not None
    assert entry.time == written.time
    right.now += 1
    assert put(node, "a").time > written.time


def test_a_write_by_a_clock_that_has_jumped_forward_is_refused(place: Place) -> None:
    wall = ManualWall(1_000)
    node = place.node(wall, elapsed=ManualWall(5))
    put(node, "a")
    wall.now += MAX_AHEAD_MS + 1
    with pytest.raises(WrongClock, match="it jumped forward"):
        put(node, "b")
    assert node.get("b") is None
    assert node.check().revision == node.look().revision == 1
    lease = node.acquire_lease("lease", "holder", ttl_ms=1_000)
    assert lease is not None
    assert node.renew_lease(lease, ttl_ms=2_000).token == lease.token
    wall.now = 1_001
    put(node, "b")


def test_checks_and_writes_of_many_threads_have_one_order(place: Place, times: int) -> None:
    """A write that a check did not see must have a time after that of the check."""
    walls = [ManualWall(1_000), ManualWall(5_000), ManualWall(100)]
    nodes = [place.node(wall) for wall in walls]
    heads: list[Head] = []
    outcomes: list[Outcome] = []

    def work(number: int) -> None:
        dice = random.Random(number)
        for _ in range(10 * times):
            walls[number % 3].now = dice.randrange(1, 10_000)
            if dice.random() < 0.5:
                node = nodes[number % 3]
                heads.append(node.check() if dice.random() < 0.5 else node.look())
            else:
                outcomes.append(put(nodes[number % 3], f"k{number}"))

    with ThreadPoolExecutor(9) as threads:
        list(threads.map(work, range(9)))
    assert sorted(outcome.revision for outcome in outcomes) == list(range(1, len(outcomes) + 1))
    for head in heads:
        for outcome in outcomes:
            assert (outcome.revision > head.revision) == (outcome.time > head.time)


def test_the_revision_is_never_older_than_a_write_that_returned(place: Place, times: int) -> None:
    nodes = [place.node(), place.node()]
    written = 0
    lock = threading.Lock()
    begun, finished = threading.Barrier(8), threading.Event()

    def write(number: int) -> None:
        nonlocal written
        begun.wait(MEETING)
        for _ in range(15 * times):
            revision = put(nodes[number % 2], f"k{number}").revision
            with lock:
                written = max(written, revision)

    def read(number: int) -> None:
        begun.wait(MEETING)
        is_last = False
        while not is_last:
            is_last = finished.is_set()
            floor = written
            assert nodes[number % 2].revision() >= floor

    with ThreadPoolExecutor(8) as threads:
        readers = [threads.submit(read, number) for number in range(4)]
        try:
            list(threads.map(write, range(4)))
        finally:
            finished.set()
        for reader in readers:
            reader.result()
    assert [node.revision() for node in nodes] == [60 * times] * 2


def test_no_increment_of_many_threads_is_lost(place: Place, times: int) -> None:
    nodes = [place.node(), place.node()]

    def increments(number: int) -> None:
        for _ in range(5 * times):
            increment(nodes[number % 2], "number")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(increments, range(8)))
    entry = nodes[0].get("number")
    assert entry is not None
    assert (int(entry.value), entry.revision) == (40 * times, 40 * times)


# Random calls


def test_random_calls_on_two_nodes_give_what_a_dictionary_gives(
    kind: StoreKind, times: int
) -> None:
    compare_with_a_dictionary(kind, settings(AS_USUAL, max_examples=4 * times))


# Several processes


def test_no_increment_of_many_processes_is_lost(place: Place, times: int) -> None:
    store = place.node()
    with ExitStack() as stack:
        others = [
            stack.enter_context(
                Process("tests.metastorage.work:increments", place.kind, place.address, 15 * times)
            )
            for _ in range(2)
        ]
        for other in others:
            assert other.hear() == "ready"
        for other in others:
            other.say("go")
        for _ in range(15 * times):
            increment(store, "number")
        for other in others:
            assert other.hear() == "done"
            assert other.finish() == 0
    entry = store.get("number")
    assert entry is not None
    assert (int(entry.value), entry.revision, store.revision()) == (45 * times,) * 3


def test_a_waiter_in_another_process_is_woken_by_puts_and_deletes(place: Place) -> None:
    store = place.node()
    with Process(
        "tests.metastorage.work:wait_for_changes", place.kind, place.address, "p."
    ) as other:
        assert other.hear() == []
        put(store, "q")
        put(store, "p.1", b"x")
        assert other.hear() == [["p.1", "x"]]
        store.invoke([], [Delete("p.1")])
        assert other.hear() == []
        other.stop()
        store.invoke([], [Put("p.1", b"y"), Put("p.2", b"z")])
        store.invoke([], [DeleteRange("p.", "p.2")])
        other.go_on()
        assert other.hear() == [["p.2", "z"]]
        put(store, "p.end")
        assert other.hear() == [["p.2", "z"], ["p.end", ""]]
        assert other.finish() == 0


def test_the_revision_read_in_another_process_is_never_stale(place: Place, times: int) -> None:
    store = place.node()
    with Process("tests.metastorage.work:answer_revisions", place.kind, place.address) as other:
        assert other.hear() == "ready"
        for _ in range(40 * times):
            mine = put(store, "mine").revision
            other.say("look")
            seen, theirs = other.hear()
            assert seen == mine
            assert store.revision() == theirs == mine + 1
        other.say(None)
        assert other.finish() == 0


def test_a_killed_writer_loses_no_acknowledged_write_and_leaves_none_half_done(
    place: Place,
) -> None:
    store = place.node()
    number = 0
    for rounds in (1, 40):
        with Process(
            "tests.metastorage.work:write_pairs", place.kind, place.address, number
        ) as other:
            for _ in range(rounds):
                number = other.hear()
            other.kill()
            acknowledged = [number, *other.everything()]
        store.check()  # the server may have a request that it has not begun; it begins none later
        left, right = store.get("left"), store.get("right")
        assert left is not None
        assert right is not None
        assert (left.value, left.revision) == (right.value, right.revision)
        assert int(left.value) - acknowledged[-1] in (0, 1)
        number = int(left.value)
        assert put(store, "mine").revision == left.revision + 1
