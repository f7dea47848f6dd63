"""Long computations on the event loop, a slice of half a millisecond at a time.

The problem: only the event loop sees the bytes of a message come, and to find the end of one with a
hundred thousand values takes a tenth of a second, for which every client would wait.

The model: the computation is a generator that yields wherever it may be interrupted, some ten
thousand times a second. In each turn of the loop one computation gets one slice, in the order in
which they came; between two turns the loop serves everything else that is ready. However many
computations there are, a small request waits for one slice, not for all.

What must stay true: a generator does not run longer than a part of a slice between two yields.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

SLICE_SECONDS = 0.0005

T = TypeVar("T")

Sliced = Generator[None, None, T]
"""A computation that yields where it may be interrupted, and returns its result."""


class Slicing(Generic[T]):
    """One computation under way. ``done`` is called with its result or its error, on the loop."""

    __slots__ = ("cancelled", "done", "work")

    def __init__(self, work: Sliced[T], done: Callable[[T | None, Exception | None], None]) -> None:
        self.work = work
        self.done = done
        self.cancelled = False

    def cancel(self) -> None:
        """Gives the computation up; ``done`` is not called."""
        self.cancelled = True


class Slices:
    """The computations of one event loop. Not for several threads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        seconds: float = SLICE_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._clock = clock
        # The results are of as many types as there are computations: hence Any.
        self._waiting: deque[Slicing[Any]] = deque()
        self._scheduled = False
        self.turns = 0

    def begin(
        self, work: Sliced[T], done: Callable[[T | None, Exception | None], None]
    ) -> Slicing[T]:
        """Computes ``work`` from the next turn of the loop on, and calls ``done`` at its end."""
        slicing = Slicing(work, done)
        self._waiting.append(slicing)
        self._schedule()
        return slicing

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """One slice of the computation that has waited longest."""
        self._scheduled = False
        self.turns += 1
        slicing = self._waiting.popleft()
        try:
            self._run(slicing)
        finally:
            self._schedule()

    def _run(self, slicing: Slicing[Any]) -> None:
        result, failure = None, None
        end = self._clock() + self._seconds
        try:
            while not slicing.cancelled:
                next(slicing.work)
                if self._clock() >= end:
                    self._waiting.append(slicing)
                    return
        except StopIteration as stop:
            result = stop.value
        except Exception as error:
            failure = error
        if slicing.cancelled:
            slicing.work.close()
        else:
            slicing.done(result, failure)
