"""Threads that need the same thing make it one after the other, and calls give way to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context

import pytest

from strandline.work import GIVES_WAY, NotYet
from strandline.work.keyed_lock import KeyedLock

WAIT = 60.0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_one_thread_at_a_time_holds_a_key_and_the_others_wait_without_asking_again(
    threads: ThreadPoolExecutor,
) -> None:
    lock = KeyedLock[str]()
    order: list[str] = []
    asked: list[str] = []

    def first(key: str, made: Future[None]) -> Future[None]:
        asked.append(key)
        return KeyedLock._first(lock, key, made)

    lock._first = first  # type: ignore[method-assign]  # to count the calls

    def take(key: str) -> None:
        with lock.hold(key):
            order.append(key)

    with lock.hold("a"):
        waiting = threads.submit(take, "a")
        threads.submit(take, "b").result(WAIT)
        order.append("first")
    waiting.result(WAIT)
    assert order == ["b", "first", "a"]
    assert 2 <= asked.count("a") <= 3


def test_a_call_that_can_begin_again_gives_way_until_the_key_is_free_also_after_an_error(
    threads: ThreadPoolExecutor,
) -> None:
    lock = KeyedLock[str]()
    begun, go_on = threading.Event(), threading.Event()

    def take() -> None:
        with lock.hold("a"):
            begun.set()
            assert go_on.wait(WAIT)
            raise ZeroDivisionError

    def come() -> NotYet:
        GIVES_WAY.set(True)
        with pytest.raises(NotYet) as given_up, lock.hold("a"):
            pass
        return given_up.value

    taking = threads.submit(take)
    assert begun.wait(WAIT)
    given_up = copy_context().run(come)
    assert not given_up.made.done()
    staying = threads.submit(copy_context().run, stay, lock)
    go_on.set()
    assert given_up.made.result(WAIT) is None
    assert staying.result(WAIT)
    assert isinstance(taking.exception(WAIT), ZeroDivisionError)


def stay(lock: KeyedLock[str]) -> bool:
    """Wait for the key in this thread, although the call could begin again."""
    GIVES_WAY.set(True)
    with lock.hold("a", gives_way=False):
        return True
