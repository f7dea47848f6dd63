"""Requests begin on the event loop, and leave it when they have to wait."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from strandline.errors import Overloaded
from strandline.metastore.off_loop import finish, off_loop, result_of
from strandline.metastore.workers import PooledCall, Workers
from tests.metastore.test_workers import WAIT, settle


async def threads_of(waits: int) -> list[int]:
    """Return the threads in which a request runs that leaves the loop ``waits`` times."""
    threads = [threading.get_ident()]
    for _ in range(waits):
        await off_loop()
        threads.append(threading.get_ident())
    return threads


async def test_a_request_that_does_not_wait_is_answered_on_the_event_loop() -> None:
    workers = Workers()
    assert workers.begin(threads_of(0), user="ann") == [threading.get_ident()]
    assert workers.statistics().calls == 0


async def test_a_request_continues_in_one_thread_after_its_first_wait() -> None:
    call = Workers().begin(threads_of(2), user="ann")
    assert isinstance(call, PooledCall)
    first, *others = await call.result
    assert first == threading.get_ident()
    assert first not in others
    assert len(set(others)) == 1


def test_a_request_that_waits_is_refused_by_a_full_node_and_does_not_continue() -> None:
    went_on = False

    async def request() -> None:
        nonlocal went_on
        await off_loop()
        went_on = True

    async def main() -> None:
        with pytest.raises(Overloaded):
            Workers(max_calls=0).begin(request(), user="ann")

    asyncio.run(main())
    assert not went_on


async def test_a_request_that_fails_raises_its_error_wherever_it_runs() -> None:
    async def request(waits: int) -> None:
        await threads_of(waits)
        raise KeyError("x")

    workers = Workers()
    with pytest.raises(KeyError):
        workers.begin(request(0), user="ann")
    call = workers.begin(request(1), user="ann")
    assert isinstance(call, PooledCall)
    with pytest.raises(KeyError):
        await call.result
    with pytest.raises(KeyError):
        finish(request(1))


def test_a_caller_that_may_wait_runs_a_request_in_its_own_thread() -> None:
    assert finish(threads_of(3)) == [threading.get_ident()] * 4


class Shared:
    """Something that a request waits for without a thread, until ``end`` is called."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self._error = error
        self.end: Callable[[], object] | None = None
        self.ran_in: int | None = None

    def submit(self, ended: Callable[[], object]) -> None:
        self.end = ended

    def run(self) -> str:
        self.ran_in = threading.get_ident()
        return self.result()

    def result(self) -> str:
        if self._error is not None:
            raise self._error
        return "done"


async def request(*waits: Shared, leaves: bool = False) -> list[str]:
    """Return the result of each wait, or its error."""
    results = []
    for shared in waits:
        if leaves:
            await off_loop()
        try:
            results.append(await result_of(shared))
        except ValueError as error:
            results.append(repr(error))
    return results


def test_requests_wait_on_the_loop_without_a_thread_and_another_thread_wakes_them() -> None:
    async def drive() -> None:
        workers = Workers()
        waits = [Shared(), Shared(), Shared(error=ValueError("planted"))]
        calls: list[PooledCall] = []
        tasks = [
            asyncio.ensure_future(workers.drive(request(shared), user="ann", on_call=calls.append))
            for shared in waits
        ]
        await settle()
        ends = [shared.end for shared in waits]
        tasks[0].cancel()
        other = threading.Thread(target=lambda: [end() for end in ends if end])
        other.start()
        async with asyncio.timeout(WAIT):
            assert await tasks[1] == ["done"]
            assert await tasks[2] == ["ValueError('planted')"]
        other.join()
        assert not calls
        assert workers.statistics().running == 0
        workers.close()

    asyncio.run(drive(), debug=True)  # which checks what other threads call


class Interleaved(deque[Any]):  # Any: futures
    """Runs ``between`` after the first item is appended, before the appender continues."""

    def __init__(self, between: Callable[[], object]) -> None:
        super().__init__()
        self._between = [between]

    def append(self, item: object, /) -> None:
        super().append(item)
        while self._between:
            self._between.pop()()


async def test_two_waits_that_end_in_two_threads_at_once_both_wake_the_loop() -> None:
    workers = Workers()
    waits = [Shared(), Shared()]
    tasks = [
        asyncio.ensure_future(workers.drive(request(shared), user="ann", on_call=print))
        for shared in waits
    ]
    await settle()
    first, second = (shared.end for shared in waits)
    assert first
    assert second
    workers._ended_waits = Interleaved(second)
    other = threading.Thread(target=first)
    other.start()
    other.join()
    finished, _ = await asyncio.wait(tasks, timeout=WAIT)
    assert [task.result() for task in finished] == [["done"], ["done"]]
    workers.close()


async def test_a_request_that_has_left_the_loop_runs_what_it_waits_for_in_its_thread() -> None:
    workers = Workers()
    shared, failing = Shared(), Shared(error=ValueError("planted"))
    calls: list[PooledCall] = []
    driven = workers.drive(request(shared, failing, leaves=True), user="ann", on_call=calls.append)
    async with asyncio.timeout(WAIT):
        assert await driven == ["done", "ValueError('planted')"]
    assert len(calls) == 1
    assert shared.ran_in not in (None, threading.get_ident())
    workers.close()
