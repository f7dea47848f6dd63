"""Who gets a place and a thread, and what becomes of requests whose clients have left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from strandline.errors import Overloaded
from strandline.metastore.session.admission import Admission, ClientLeft

WAIT = 20.0


async def forever() -> None:
    await asyncio.Event().wait()


class Work:
    """Work that says when it has begun, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.end = threading.Event()

    def __call__(self, still_wanted: Callable[[], None]) -> str:
        self.begun.set()
        assert self.end.wait(WAIT)
        still_wanted()
        return "done"


async def settle(turns: int = 20) -> None:
    """Lets everything run that is ready."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not fact():
            await asyncio.sleep(0)


def start(admission: Admission, work: Work, user: str, *, large: bool) -> asyncio.Task[str]:
    return asyncio.ensure_future(admission.run(work, user=user, large=large, until_left=forever))


def test_large_requests_leave_threads_for_small_ones() -> None:
    async def main() -> None:
        admission = Admission(threads=4)
        large = [Work() for _ in range(3)]
        small = Work()
        tasks = [start(admission, work, f"u{n}", large=True) for n, work in enumerate(large)]
        await until(lambda: large[0].begun.is_set() and large[1].begun.is_set())
        tasks.append(start(admission, small, "ann", large=False))
        await until(small.begun.is_set)
        assert not large[2].begun.is_set()
        for work in (*large, small):
            work.end.set()
        assert await asyncio.gather(*tasks) == ["done"] * 4

    asyncio.run(main())


def test_one_user_leaves_threads_for_others() -> None:
    async def main() -> None:
        admission = Admission(threads=4)
        works = [Work() for _ in range(10)]
        other = Work()
        tasks = [start(admission, work, "ann", large=False) for work in works]
        await until(lambda: sum(work.begun.is_set() for work in works) == 3)
        tasks.append(start(admission, other, "bob", large=False))
        await until(other.begun.is_set)
        assert sum(work.begun.is_set() for work in works) == 3
        for work in (*works, other):
            work.end.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_places_are_shared_and_the_full_node_says_so() -> None:
    admission = Admission(max_requests=8)
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(admission.admitted("ann", large=True))
        with pytest.raises(Overloaded, match=r"4 large requests.*nothing was done"):
            held.enter_context(admission.admitted("bob", large=True))
        for _ in range(2):
            held.enter_context(admission.admitted("ann", large=False))
        with pytest.raises(Overloaded, match="6 requests of ann"):
            held.enter_context(admission.admitted("ann", large=False))
        for _ in range(2):
            held.enter_context(admission.admitted("bob", large=False))
        with pytest.raises(Overloaded, match="already answers 8 requests,"):
            admission.require_room()
    assert (admission.running, admission.turned_away) == (0, 3)
    with admission.admitted("ann", large=True):
        pass


def test_a_request_that_waits_is_given_up_when_its_client_leaves() -> None:
    async def main() -> None:
        admission = Admission(threads=1)
        running, waiting = Work(), Work()
        first = start(admission, running, "ann", large=False)
        await until(running.begun.is_set)
        left = asyncio.Event()

        async def until_left() -> None:
            await left.wait()

        second = asyncio.ensure_future(
            admission.run(waiting, user="bob", large=False, until_left=until_left)
        )
        await settle()
        left.set()
        with pytest.raises(ClientLeft):
            await second
        assert not waiting.begun.is_set()
        assert admission.given_up == 1
        running.end.set()
        assert await first == "done"

    asyncio.run(main())


def test_a_request_in_work_learns_between_its_steps_that_its_client_has_left() -> None:
    async def main() -> None:
        admission = Admission(threads=1)
        work = Work()
        left = asyncio.Event()

        async def until_left() -> None:
            await left.wait()

        task = asyncio.ensure_future(
            admission.run(work, user="ann", large=False, until_left=until_left)
        )
        await until(work.begun.is_set)
        left.set()
        await settle()
        assert not task.done()  # what has begun keeps its thread
        work.end.set()
        with pytest.raises(ClientLeft):
            await task
        assert admission.given_up == 1

    asyncio.run(main())


def test_an_error_is_raised_as_it_is() -> None:
    def work(still_wanted: Callable[[], None]) -> str:
        raise KeyError("x")

    async def main() -> None:
        await Admission().run(work, user="ann", large=False, until_left=forever)

    with pytest.raises(KeyError):
        asyncio.run(main())
