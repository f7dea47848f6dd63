"""Which requests over HTTP run, which wait, and which are turned away.

The problem: threads are few and requests may be many. The client that sends most would get all, and
a client that asks for little would wait behind others that ask for much.

The model: a request counts from when its body has come whole, so that half ones take no place. At
most so many run or wait, and of these *large* ones may be half, those of one user three quarters.
The same shares hold for the threads, in which they run: a large request waits until one of the
threads for large ones is free, and holds up no small one meanwhile. So a new caller with a small
request finds a place and a thread, unless several users fill the node together.

What must stay true: what is turned away is told at once, with nothing done. A request whose client
has left is given up if it has not begun; what has begun runs on and keeps its place until its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

from anyio import CapacityLimiter, create_task_group, to_thread

from strandline.errors import Overloaded

THREADS = 32
MAX_REQUESTS = 512
"""Requests that run or wait; a client keeps one connection for each of its threads."""
LARGE_SHARE = 0.5
USER_SHARE = 0.75

T = TypeVar("T")


class ClientLeft(Exception):
    """The client hung up; its request was not begun, or is given up."""


class Admission:
    """The places and threads of one application. Its methods are for the event loop."""

    def __init__(self, *, threads: int = THREADS, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._user_places = int(max_requests * USER_SHARE)
        self._large_places = int(max_requests * LARGE_SHARE)
        self._thread_count = threads
        self._threads_of: dict[str, CapacityLimiter] = {}
        self._of_users: Counter[str] = Counter()
        self._large = 0
        self.running = 0
        self.turned_away = 0
        self.given_up = 0

    # Made in the event loop, since they belong to one.
    @cached_property
    def _threads(self) -> CapacityLimiter:
        return CapacityLimiter(self._thread_count)

    @cached_property
    def _large_threads(self) -> CapacityLimiter:
        return CapacityLimiter(max(1, int(self._thread_count * LARGE_SHARE)))

    def require_room(self) -> None:
        """`Overloaded` where the node is full for every user."""
        if self.running >= self._max_requests:
            self._turn_away(f"this node already answers {self.running} requests")

    @contextmanager
    def admitted(self, user: str, *, large: bool) -> Iterator[None]:
        """A place for a request while the block runs. `Overloaded` where there is none."""
        self.require_room()
        if self._of_users[user] >= self._user_places:
            self._turn_away(f"this node already answers {self._of_users[user]} requests of {user}")
        if large and self._large >= self._large_places:
            self._turn_away(f"this node already answers {self._large} large requests")
        self.running += 1
        self._of_users[user] += 1
        self._large += large
        try:
            yield
        finally:
            self.running -= 1
            self._large -= large
            self._of_users[user] -= 1
            if not self._of_users[user]:
                del self._of_users[user]
                self._threads_of.pop(user, None)

    async def run(
        self,
        work: Callable[[Callable[[], None]], T],
        *,
        user: str,
        large: bool,
        until_left: Callable[[], Awaitable[None]],
    ) -> T:
        """What ``work`` gives, run in a thread. It gets a function to call between its steps.

        ``until_left`` ends when the client has left; then `ClientLeft` is raised: at once where the
        work still waits for a thread, else by that function.
        """
        left = False
        results: list[T] = []
        failures: list[Exception] = []

        def check() -> None:
            if left:
                raise ClientLeft

        def guarded() -> None:
            try:
                check()
                results.append(work(check))
            except Exception as error:
                failures.append(error)

        async with create_task_group() as group:

            async def watch() -> None:
                nonlocal left
                await until_left()
                left = True
                group.cancel_scope.cancel()

            group.start_soon(watch)
            async with self._of_user(user):
                if large:
                    async with self._large_threads:
                        await to_thread.run_sync(guarded, limiter=self._threads)
                else:
                    await to_thread.run_sync(guarded, limiter=self._threads)
            group.cancel_scope.cancel()
        if failures:
            self.given_up += isinstance(failures[0], ClientLeft)
            raise failures[0]
        if not results:
            self.given_up += 1
            raise ClientLeft
        return results[0]

    def _of_user(self, user: str) -> CapacityLimiter:
        limiter = self._threads_of.get(user)
        if limiter is None:
            limiter = CapacityLimiter(max(1, int(self._thread_count * USER_SHARE)))
            self._threads_of[user] = limiter
        return limiter

    def _turn_away(self, why: str) -> None:
        self.turned_away += 1
        raise Overloaded(f"{why}, which is the most allowed; nothing was done, try again")
