"""A condition variable and signal handlers that raise."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from strandline.condition import Condition
from tests.interrupts import is_interrupted


def is_free(condition: threading.Condition) -> bool:
    """Whether another thread can take the lock."""
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(condition.acquire(blocking=False)))
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
