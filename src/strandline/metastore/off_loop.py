"""How a request leaves the event loop, where it may not wait.

A request is a coroutine that begins on the event loop, and reads only memory there. Before it
waits, it awaits `off_loop` and continues in a worker thread. So it runs once. For work that another
thread does for many requests (`Waits`) it awaits `result_of`, and needs no thread of its own.
`strandline.metastore.workers` has the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, Protocol, TypeVar

from strandline import work

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Waits(Protocol[T_co]):
    """Work that a request waits for without a thread of its own; `run` does it in this thread."""

    def submit(self, ended: Callable[[], object], /) -> None:
        """Begin the work; ``ended`` is called in any thread when `result` is available."""

    def run(self) -> T_co:
        """Do the work in this thread; return its result or raise its error."""

    def result(self) -> T_co:
        """Return the result or raise the error. Only after the work has ended."""


@coroutine
def off_loop() -> Generator[None, None, None]:
    """Continue in a worker thread, where the request may wait; return if it is in one already."""
    yield


async def off_loop_for(units: int) -> None:
    """`off_loop` if the work is too many units (`strandline.work`) for the event loop."""
    if units > work.AT_ONCE:
        await off_loop()


async def charge(units: int) -> None:
    """`off_loop_for` the units, and charge them to the budget of the place. Raises `TooLong`."""
    await off_loop_for(units)
    work.spend(units)


@coroutine
def result_of(waits: Waits[T]) -> Generator[Waits[T], T, T]:
    """The result of ``waits``; stays on the loop or in the thread. For `Workers.drive`."""
    return (yield waits)


def finish(request: Coroutine[Any, Any, T]) -> T:
    """Run ``request`` to its end in this thread, which may wait; return its result."""
    resume: Callable[[], Waits[object] | None] = partial(request.send, None)
    while True:
        try:
            waits = resume()
        except StopIteration as end:
            result: T = end.value
            return result
        if waits is None:
            resume = partial(request.send, None)
            continue
        try:
            resume = partial(request.send, waits.run())
        except Exception as error:
            resume = partial(request.throw, error)
