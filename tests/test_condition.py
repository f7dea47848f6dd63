"""Locks and signal handlers that raise."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from strandline.condition import Condition, LockTaken, TimedLock
from tests.interrupts import is_interrupted


def is_free(lock: threading.Condition | threading.RLock) -> bool:
    """Whether another thread can take the lock."""
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    return taken == [True]


def enter_and_leave(condition: threading.Condition) -> None:
    with condition:
        pass


@pytest.mark.parametrize("kind", [Condition, threading.Condition])
def test_an_interrupt_leaves_only_the_lock_of_the_standard_library_taken(
    kind: type[threading.Condition],
) -> None:
    step, was_taken = 0, False
    while is_interrupted(partial(enter_and_leave, condition := kind()), at_step=step):
        was_taken |= not is_free(condition)
        step += 1
    assert was_taken == (kind is threading.Condition)


def wait_briefly(condition: threading.Condition) -> None:
    with condition:
        condition.wait(0)


@pytest.mark.parametrize("kind", [Condition, threading.Condition])
def test_an_interrupt_of_a_wait_is_replaced_only_by_the_standard_library(
    kind: type[threading.Condition],
) -> None:
    step, was_replaced, is_over = 0, False, False
    while not is_over:
        try:
            is_over = not is_interrupted(partial(wait_briefly, condition := kind()), at_step=step)
        except RuntimeError:
            was_replaced = True
        assert kind is threading.Condition or is_free(condition)
        step += 1
    assert was_replaced == (kind is threading.Condition)


def take_and_release(lock: threading.RLock, timeout: float) -> None:
    with TimedLock(lock, timeout=timeout):
        pass


def test_an_interrupt_leaves_the_lock_of_a_timed_lock_free() -> None:
    step = 0
    while is_interrupted(partial(take_and_release, lock := threading.RLock(), 60.0), at_step=step):
        assert is_free(lock)
        step += 1
    assert step


def test_a_timed_lock_waits_for_another_thread_no_longer_than_its_timeout() -> None:
    lock = threading.RLock()
    with ThreadPoolExecutor(1) as other_thread:
        with lock:
            late = other_thread.submit(take_and_release, lock, 0.0).exception()
        assert isinstance(late, LockTaken)
        other_thread.submit(take_and_release, lock, 0.0).result()


def test_it_wakes_waiting_threads_and_can_be_entered_again_by_its_thread() -> None:
    condition, is_set = Condition(), False

    def wake() -> None:
        nonlocal is_set
        with condition, condition:
            is_set = True
            condition.notify_all()

    thread = threading.Thread(target=wake)
    with condition:
        thread.start()
        assert condition.wait_for(lambda: is_set, timeout=60.0)
    thread.join()
    with pytest.raises(RuntimeError):
        condition.notify_all()
