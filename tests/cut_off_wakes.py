"""A signal handler that raises while a thread wakes another one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest


class CutOffWakes(deque[Any]):  # Any: the locks of a condition's waiters
    """The waiters of a condition. The first that is woken stays in the list, as after Ctrl-C."""

    is_cut_off = False

    def remove(self, waiter: Any, /) -> None:  # Any: see the class
        if not self.is_cut_off:
            self.is_cut_off = True
            raise KeyboardInterrupt
        super().remove(waiter)


def cut_off_a_wake(news: threading.Condition, call: Callable[[], object]) -> None:
    """Interrupt ``call`` while it wakes the thread that waits for ``news``.

    Returns when that thread waits again.
    """
    deadline = time.monotonic() + 60.0

    def wait_for(waiters: int) -> None:
        while len(vars(news)["_waiters"]) != waiters:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    wait_for(1)
    with news:
        vars(news)["_waiters"] = CutOffWakes(vars(news)["_waiters"])
    with pytest.raises(KeyboardInterrupt):
        call()
    wait_for(2)
