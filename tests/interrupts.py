"""Interrupts at a chosen step of a function, and threads that end for lack of memory."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn


def is_interrupted(function: Callable[[], object], *, at_step: int) -> bool:
    """Call ``function`` with an interrupt at one place where Python runs the handlers of signals.

    That is at the beginning of a function, and after a call into C. Returns False if there is no
    such place of that number.
    """
    return interrupt_of(function, at_step=at_step) is not None


def interrupt_of(function: Callable[[], object], *, at_step: int) -> KeyboardInterrupt | None:
    """The interrupt of `is_interrupted`, with its traceback."""
    steps = iter(range(at_step + 1))

    def raise_at_step(frame: FrameType, event: str, __: Any) -> None:  # Any: as `sys.setprofile`
        # A generator that continues would end without its `finally`, unlike by a signal.
        is_place = event == "c_return" or (
            event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        )
        if is_place and next(steps) == at_step:
            sys.setprofile(None)
            raise KeyboardInterrupt

    gc.disable()  # an interrupt in a callback of the garbage collector would be lost
    try:
        sys.setprofile(raise_at_step)
        function()
        sys.setprofile(None)
    except KeyboardInterrupt as interrupt:
        return interrupt
    finally:
        gc.enable()
    return None


class LackOfMemory:
    """Takes the place of methods whose thread has no memory, and ends at the last of ``calls``."""

    def __init__(self, *, calls: int = 1) -> None:
        self._calls = calls
        self._threads: list[threading.Thread] = []
        self._ends = threading.Event()

    def __call__(self, *_: object) -> NoReturn:
        self._threads.append(threading.current_thread())
        if len(self._threads) == self._calls:
            self._ends.set()
        raise MemoryError("planted")

    def join(self) -> None:
        """Wait until the thread has ended, so that it warns in this test, not in a later one."""
        assert self._ends.wait(60)
        self._threads[0].join()
