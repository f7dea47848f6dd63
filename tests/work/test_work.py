"""Budgets: limits on how much a request may compute."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import pytest

from strandline import work
from strandline.work import (
    AT_ONCE,
    TooLong,
    budget,
    collect_garbage,
    free_slowly,
    keeping_garbage,
    require,
    spend,
    spending,
)


def test_without_a_budget_nothing_is_limited() -> None:
    spend(1_000_000)
    assert len(list(spending(range(10_000)))) == 10_000


def test_spending_more_than_the_budget_raises_too_long() -> None:
    with budget(100):
        spend(100)
        with pytest.raises(TooLong):
            spend(1)


def test_all_spending_in_a_block_counts_towards_its_budget() -> None:
    with budget(100):
        spend(60)
        with pytest.raises(TooLong):
            spend(60)


def test_require_checks_a_count_against_the_budget_without_spending_it() -> None:
    limits: list[int] = []

    def count(limit: int, *, rows: int) -> int:
        limits.append(limit)
        return min(rows, limit)

    require(partial(count, rows=1_000_000))
    with budget(100):
        spend(40)
        require(partial(count, rows=60))
        with pytest.raises(TooLong):
            require(partial(count, rows=61))
        spend(60)
    assert limits == [61, 61]


@pytest.mark.parametrize("count", [0, 1, 49, 50, 99, 100])
def test_items_within_the_budget_are_yielded_unchanged(count: int) -> None:
    with budget(100):
        assert list(spending(range(count))) == list(range(count))
    with budget(100):
        assert list(spending(iter(range(count)))) == list(range(count))


def test_no_item_is_yielded_if_their_number_is_known_to_exceed_the_budget() -> None:
    with budget(100):
        items = spending(range(101))
        with pytest.raises(TooLong):
            next(items)


@pytest.mark.parametrize("count", [101, 150, 100_000])
def test_iteration_stops_soon_after_the_budget_is_spent(count: int) -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(count):
            taken.append(number)
            yield number

    with budget(100), pytest.raises(TooLong):
        list(spending(items()))
    assert len(taken) <= 150


async def test_a_budget_ends_with_its_block_and_belongs_to_its_thread() -> None:
    with budget(1):
        with pytest.raises(TooLong):
            await asyncio.to_thread(spend, 2)
        with budget(None):
            spend(2)
        with pytest.raises(TooLong):
            spend(2)
    spend(2)


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_off_until_the_outer_block_ends_and_then_restored(
    enabled: bool,
) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with keeping_garbage:
            with keeping_garbage:
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        with pytest.raises(KeyError), keeping_garbage:
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


class _Node:
    def __init__(self) -> None:
        self.other: _Node | None = None


def _pair() -> _Node:
    """Two objects that refer to each other."""
    one, other = _Node(), _Node()
    one.other, other.other = other, one
    return one


@pytest.mark.parametrize(
    ("freezes", "count", "visited"),
    [
        (True, 2 * work.MAX_KEPT_OBJECTS, False),
        (True, 100, True),
        (False, 2 * work.MAX_KEPT_OBJECTS, True),
    ],
)
def test_the_objects_of_a_large_block_are_not_visited_if_it_freezes_them(
    freezes: bool, count: int, visited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A visit to the million objects of a large change would stop all threads for 200 ms."""
    monkeypatch.setattr(keeping_garbage, "freezes", freezes)
    try:
        with keeping_garbage:
            kept, dropped = [[number] for number in range(count)], weakref.ref(_pair())
        gc.collect()
        assert (dropped() is None) is visited, len(kept)
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as at the start of the tests


def test_collecting_garbage_frees_new_objects_that_refer_to_each_other() -> None:
    before = gc.get_freeze_count()
    kept, dropped = _pair(), weakref.ref(_pair())
    collect_garbage()
    assert dropped() is None
    assert kept.other is not None
    assert gc.get_freeze_count() > before  # the next call does not visit what is alive now


def test_collecting_garbage_takes_no_reference_to_a_tuple_that_another_thread_makes() -> None:
    """Otherwise ``tuple(generator)`` fails in that thread."""
    is_making, listed = threading.Event(), threading.Event()

    def numbers() -> Iterator[int]:
        is_making.set()
        listed.wait()
        yield from range(20)

    def let_others_run(_: object, event: str, function: object) -> None:
        """After each step of Python in which a list of all objects was made."""
        if (event, function) == ("c_return", gc.get_objects):
            listed.set()
            wait([made])

    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(lambda: tuple(numbers()))
        is_making.wait()
        sys.setprofile(let_others_run)
        try:
            collect_garbage()
        finally:
            sys.setprofile(None)
            listed.set()
        assert made.result() == tuple(range(20))


@pytest.mark.slow
@pytest.mark.parametrize("generation", [0, 2])
def test_collecting_garbage_visits_no_more_objects_than_allowed(
    generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are in the youngest generation if `keeping_garbage` has paused the collector."""
    monkeypatch.setattr(work, "MAX_NEW_OBJECTS", 0)
    with keeping_garbage:
        pair = _pair()
        dropped = weakref.ref(pair)
        if generation:
            gc.collect(1)  # moves it to the oldest generation
        del pair
        try:
            collect_garbage()
            assert dropped() is not None
        finally:
            gc.unfreeze()
    gc.collect()
    gc.freeze()  # as at the start of the tests
    assert dropped() is None


def test_the_objects_of_a_long_list_are_freed_by_a_thread_of_its_own() -> None:
    freed_by: list[str] = []

    class Freed:
        def __del__(self) -> None:
            freed_by.append(threading.current_thread().name)

    free_slowly([Freed() for _ in range(AT_ONCE + 1)])
    for thread in threading.enumerate():
        if thread.name == "list-freeing":
            thread.join()
    assert freed_by == ["list-freeing"] * (AT_ONCE + 1)
