"""Slices: computations take turns on the event loop, with its other tasks between the slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from strandline.metastore.thrift.serving import Sliced, Slices


class Clock:
    """A clock that advances by ``step`` each time it is read."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def counting(steps: int, seen: list[str], name: str) -> Sliced[int]:
    for _ in range(steps):
        seen.append(name)
        yield
    return steps


async def compute(slices: Slices, work: Sliced[Any]) -> Any:
    """The result of ``work``. If the caller is cancelled, the work is given up."""
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: Any, error: Exception | None) -> None:
        if error is not None:
            ready.set_exception(error)
        else:
            ready.set_result(result)

    slicing = slices.begin(work, done)
    try:
        return await ready
    finally:
        slicing.cancel()


def run(body: Callable[[Slices], Any], *, step: float = 1.0) -> Any:
    async def main() -> Any:
        slices = Slices(asyncio.get_running_loop(), seconds=2.5, clock=Clock(step))
        return await body(slices)

    return asyncio.run(main())


def test_computations_take_turns() -> None:
    seen: list[str] = []

    async def body(slices: Slices) -> Any:
        return await asyncio.gather(
            compute(slices, counting(6, seen, "a")), compute(slices, counting(3, seen, "b"))
        )

    assert tuple(run(body)) == (6, 3)
    assert "".join(seen) == "aaabbbaaa"


def test_the_event_loop_runs_other_tasks_between_two_slices() -> None:
    seen: list[str] = []

    async def body(slices: Slices) -> None:
        computing = asyncio.ensure_future(compute(slices, counting(9, seen, "a")))
        while not computing.done():
            seen.append("-")
            await asyncio.sleep(0)

    run(body)
    assert "aaaa" not in "".join(seen)


def test_an_error_reaches_the_waiting_caller_and_the_next_computation_continues() -> None:
    def failing() -> Sliced[int]:
        yield
        raise KeyError("x")

    async def body(slices: Slices) -> Any:
        return await asyncio.gather(
            compute(slices, failing()),
            compute(slices, counting(2, [], "b")),
            return_exceptions=True,
        )

    failure, result = run(body)
    assert isinstance(failure, KeyError)
    assert result == 2


def test_a_cancelled_computation_is_closed_and_not_continued() -> None:
    seen: list[str] = []
    closed = []

    def work() -> Sliced[None]:
        try:
            yield from counting(1_000_000, seen, "a")
        finally:
            closed.append(True)

    async def body(slices: Slices) -> None:
        computing = asyncio.ensure_future(compute(slices, work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        computing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await computing
        await compute(slices, counting(3, [], "b"))

    run(body)
    assert 0 < len(seen) <= 6
    assert closed == [True]
