"""A condition variable and signal handlers that raise."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from strandline.condition import Condition


def is_free(condition: threading.Condition) -> bool:
    """Whether another thread can take the lock."""
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(condition.acquire(blocking=False)))
    thread.start()
    thread.join()
    return taken == [True]


def interrupt(condition: threading.Condition, step: int) -> bool:
    """Enter and leave it, with an interrupt where Python runs the handlers of signals.

    That is at the begin of a function, and after a call into C. Returns False if there is no such
    place number ``step``.
    """
    steps = iter(range(step + 1))

    def raise_at_step(_: FrameType, event: str, __: Any) -> None:  # Any: as `sys.setprofile`
        if event in ("call", "c_return") and next(steps) == step:
            sys.setprofile(None)
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        sys.setprofile(raise_at_step)
        with condition:
            pass
        sys.setprofile(None)
        return False
    return True


@pytest.mark.parametrize("kind", [Condition, threading.Condition])
def test_an_interrupt_leaves_only_the_lock_of_the_standard_library_taken(
    kind: type[threading.Condition],
) -> None:
    step, was_taken = 0, False
    while interrupt(condition := kind(), step):
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
