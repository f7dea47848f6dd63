"""Worker threads for calls that wait: which call gets a thread, which waits, which is refused.

The problem: the event loop must not wait, so a call that reads the store or waits for other writers
runs in a thread. There are few threads, and there may be many calls. Without shares, the client
with the most calls would get all threads, and a read would wait behind DDL that waits for other
DDL.

The model: a request that memory can answer needs no thread (`Workers.begin`); one that has to wait
continues in a thread (`off_loop`). A request that is known to wait is submitted as a whole. A
request that waits for work that another thread does for many requests needs no thread either
(`Workers.drive`): it takes no slot here, and the part that it waits for must limit its waiters.

A node has one pool for all its protocols. A call takes a *slot* when it is submitted and a
*thread* when one is free. Both are shared by the same rule:

| calls | at most |
| --- | --- |
| all | the limit |
| of one user | three quarters of it |
| DDL | half |
| large calls | half |
| all except small reads: DDL, large calls and writes | three quarters |

The next call to start is one of the user with the fewest calls in threads, and of that user's calls
the oldest. A call that may not start yet does not delay other calls. So a small read finds a slot
and a thread unless several users fill the node with small reads. Reads continue while DDL waits for
other DDL, or writes wait for the database.

Few calls *compute* at a time. A call counts as computing for `COMPUTING_SECONDS`: most reads end
sooner, and compute all the time. After that, it counts while its thread uses the processor, but for
`MAX_COMPUTING_SECONDS` at most, because small calls wait for it; otherwise it waits for something
itself. Threads that compute concurrently finish no earlier than one after the other, and each
switch between them is another one that the event loop waits for: fifty reads of a tenth of a second
take five times as long together as one after the other. DDL and writes do not count: they wait for
the disk, and those that wait together share a sync.

A call that only reads may have to give way (`work.give_way`). It leaves its thread, keeps its
slot, and begins again later, but at most `MAX_AGAIN` times: what it waits for may fail each time.

What must stay true: a call that finds no slot is refused at once with `Overloaded`, and has no
effect. A call whose client leaves before it gets a thread never begins. A call that has begun runs
to its end and keeps its slot until then, even if its client has left: a thread cannot be stopped
between two steps of a transaction.

Rejected: a pool for each protocol (the threads of one would be idle while calls of the other wait),
and Python's executors, which have a queue without shares, and take several times as long to hand a
call over.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from strandline.config import DEFAULT_CALL_THREADS, DEFAULT_MAX_CALLS
from strandline.errors import Overloaded, StrandlineError, forget_frames
from strandline.metastore.off_loop import Waits, finish
from strandline.work import GIVES_WAY, NotYet
from strandline.work.time_slices import shorten_time_slices

logger = logging.getLogger(__name__)

USER_SHARE = 0.75
KIND_SHARE = 0.5
OTHERS_SHARE = 0.75
MAX_COMPUTING = 2
COMPUTING_SECONDS = 0.004
"""The maximum number of calls that compute at a time, and how long a call counts as computing.

With these limits, sixteen clients that read without pause get more than twice as many answers from
a node with two cores as with all of their calls in threads at once; 15 % more if each call waits
for a server.
"""
MAX_COMPUTING_SECONDS = 0.3
"""The longest time that a call counts as computing."""
COMPUTING_SHARE = 0.1
"""A thread computes if it uses a processor for this share of the time: others compute too."""
MAX_AGAIN = 3
"""How often a call may begin again. A read of a table's files waits for three things: the table in
memory, the answer for its data files, and the one for its delete files."""
UNWATCHED_SECONDS = 0.02
"""How long a call may take before its client is watched."""

T = TypeVar("T")


class CallKind(Enum):
    """The kind of a call, which decides its share; the value is its name in messages.

    Calls of the kinds READ and WRITE are small. Only DDL waits for other DDL.
    """

    READ = "read"
    WRITE = "write"
    LARGE = "large"
    DDL = "DDL"


_WAIT_FOR_OTHERS = frozenset({CallKind.WRITE, CallKind.DDL})
"""The kinds of calls that wait rather than compute; see the module."""


class ClientLeft(Exception):
    """The client has left; its call did not begin, or was stopped between two of its steps."""


@dataclass(frozen=True, slots=True)
class WorkersStatistics:
    """``calls`` is the number of calls that have a slot now, ``running`` of them a thread.

    Counts since the start: ``refused`` calls found no slot; the clients of ``given_up`` calls left
    before the call began, or between two of its steps.
    """

    calls: int
    running: int
    refused: int
    given_up: int


class _Shares:
    """The shares of slots or threads: how many there are, and how many users and kinds have."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of_user_limit = max(1, int(limit * USER_SHARE))
        self._of_kind_limit = max(1, int(limit * KIND_SHARE))
        self._others_limit = max(1, int(limit * OTHERS_SHARE))
        self.of_user: Counter[str] = Counter()
        self._of_kind = dict.fromkeys(CallKind, 0)
        self.taken = 0

    def shortage(self, user: str, kind: CallKind) -> str | None:
        """Describe the calls that have all of this call's share; None if one is free for it."""
        if self.taken >= self._limit:
            return f"{self.taken} calls"
        if self.of_user[user] >= self._of_user_limit:
            return f"{self.of_user[user]} calls of {user}"
        if kind is CallKind.READ:
            return None
        if kind is not CallKind.WRITE and self._of_kind[kind] >= self._of_kind_limit:
            return f"{self._of_kind[kind]} {kind.value} calls"
        others = self.taken - self._of_kind[CallKind.READ]
        return f"{others} large and writing calls" if others >= self._others_limit else None

    def take(self, user: str, kind: CallKind) -> None:
        self.taken += 1
        self.of_user[user] += 1
        self._of_kind[kind] += 1

    def give_back(self, user: str, kind: CallKind) -> None:
        self.taken -= 1
        self._of_kind[kind] -= 1
        self.of_user[user] -= 1
        if not self.of_user[user]:
            del self.of_user[user]


def _clock_of_this_thread() -> Callable[[], float]:
    """Return a function that returns, in any thread, the processor time of this one in seconds."""
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


@dataclass(eq=False, slots=True)
class PooledCall:
    """A call that has a slot. ``result`` is done when the call has ended or was withdrawn.

    ``again`` does the work of a call that begins again, as it still may ``begins_left`` times. A
    call without it does not give way.
    """

    number: int
    user: str
    kind: CallKind
    work: Callable[[], Any]  # Any: the result of the caller's work
    context: Context
    result: asyncio.Future[Any]
    workers: Workers = field(repr=False)
    again: Callable[[], Any] | None = None
    begins_left: int = MAX_AGAIN
    started: float = 0.0  # in the time of the event loop
    thread_clock: Callable[[], float] | None = None  # None until a thread begins it
    computed: float = 0.0  # what `thread_clock` returned last

    def still_computes(self, now: float) -> bool:
        """Whether it counts as computing for `COMPUTING_SECONDS` more."""
        if now - self.started >= MAX_COMPUTING_SECONDS:
            return False
        if self.thread_clock is None:
            return True
        before, self.computed = self.computed, self.thread_clock()
        return self.computed - before >= COMPUTING_SHARE * COMPUTING_SECONDS

    def withdraw(self) -> bool:
        """Withdraw the call; return False, and do nothing, if it has begun."""
        return self.workers._withdraw(self)


class Workers:
    """See the module. Its methods are for the event loop.

    ``threads`` limits the calls that run, ``max_calls`` those that run or wait for a thread.
    """

    def __init__(
        self, *, threads: int = DEFAULT_CALL_THREADS, max_calls: int = DEFAULT_MAX_CALLS
    ) -> None:
        self._started: list[threading.Thread] = []
        self._calls: SimpleQueue[PooledCall | None] = SimpleQueue()  # each has a thread free
        self._slots = _Shares(max_calls)
        self._threads = _Shares(max(1, threads))
        self._waiting: dict[tuple[str, CallKind], deque[PooledCall]] = {}
        self._gave_way: set[PooledCall] = set()  # until they wait for a thread again
        self._computing: dict[PooledCall, float] = {}  # the end of each, in order
        self._next_start: asyncio.TimerHandle | None = None
        self._ended_waits: deque[asyncio.Future[None]] = deque()
        self._loop_is_woken = False  # to handle `_ended_waits`
        self._number = self._refused = self._given_up = 0

    def require_slot(self) -> None:
        """Raise `Overloaded` if the node has no slot for any call."""
        self._require(self._slots.shortage("", CallKind.READ))

    def submit(
        self,
        work: Callable[[], Any],
        *,
        user: str,
        kind: CallKind = CallKind.READ,
        again: Callable[[], Any] | None = None,
    ) -> PooledCall:
        """Run ``work`` in a thread as soon as one is free, and ``again`` if the call gives way.

        Raises `Overloaded`.
        """
        self._require(self._slots.shortage(user, kind))
        self._slots.take(user, kind)
        self._number += 1
        result = asyncio.get_running_loop().create_future()
        call = PooledCall(self._number, user, kind, work, copy_context(), result, self, again)
        call.context.run(GIVES_WAY.set, again is not None)
        result.add_done_callback(lambda future: future.cancelled() and call.withdraw())
        self._enter_queue(call)
        return call

    def begin(
        self,
        request: Coroutine[Any, Any, T],
        *,
        user: str,
        go_on: Callable[[Coroutine[Any, Any, T]], Any] = finish,  # Any: the result of the call
        again: Callable[[], Any] | None = None,
    ) -> T | PooledCall:
        """Run ``request`` here up to its first `off_loop`; ``go_on`` runs the rest in a thread.

        ``again`` runs all of it in a thread, if the call gives way. Returns the result of the
        request, or a call with the result of ``go_on``. Raises `Overloaded`.
        """
        try:
            request.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            return self.submit(lambda: go_on(request), user=user, again=again)
        except Overloaded:
            request.close()
            raise

    async def drive(
        self,
        request: Coroutine[Any, Any, T],
        *,
        user: str,
        on_call: Callable[[PooledCall], object],
    ) -> T:
        """Run ``request`` on the event loop, in a thread after its first `off_loop`.

        Returns the result of the request. On the loop, it waits for each `result_of` without a
        thread. ``on_call`` is called with the call that runs in a thread. Raises `Overloaded`.
        """
        loop = asyncio.get_running_loop()
        resume: Callable[[], Waits[object] | None] = partial(request.send, None)
        while True:
            try:
                waits = resume()
            except StopIteration as end:
                result: T = end.value
                return result
            if waits is None:
                try:
                    call = self.submit(lambda: finish(request), user=user, kind=CallKind.WRITE)
                except Overloaded:
                    request.close()
                    raise
                on_call(call)
                return cast(T, await call.result)
            ended = loop.create_future()
            try:
                waits.submit(partial(self._complete, loop, ended))
                await ended
                resume = partial(request.send, waits.result())
            except Exception as error:
                resume = partial(request.throw, error)

    async def run(
        self,
        work: Callable[[Callable[[], None]], T],
        *,
        user: str,
        kind: CallKind,
        until_left: Callable[[], Awaitable[None]],
        gives_way: bool = False,
    ) -> T:
        """Run ``work`` in a thread and return its result; it gets a function to call between steps.

        If the call ``gives_way``, ``work`` may be called several times.

        ``until_left`` must end when the client has left. Then `ClientLeft` is raised: at once if
        the call still waits for a thread, else by that function. Raises `Overloaded`.
        """
        client_left = withdrawn = False
        leaving: asyncio.Future[None] | None = None

        def still_wanted() -> None:
            if client_left:
                raise ClientLeft

        def watch() -> None:
            nonlocal leaving
            leaving = asyncio.ensure_future(until_left())
            leaving.add_done_callback(leave)

        def leave(leaving: asyncio.Future[None]) -> None:
            nonlocal client_left, withdrawn
            if not leaving.cancelled():
                client_left = True
                withdrawn = call.withdraw()

        run = partial(work, still_wanted)
        call = self.submit(run, user=user, kind=kind, again=run if gives_way else None)
        # Most calls end before their client could leave.
        watching = asyncio.get_running_loop().call_later(UNWATCHED_SECONDS, watch)
        try:
            return cast(T, await call.result)
        except ClientLeft:
            self._given_up += 1
            raise
        except asyncio.CancelledError:
            if withdrawn:
                raise ClientLeft from None
            raise
        finally:
            watching.cancel()
            if leaving is not None:
                leaving.cancel()

    def _complete(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        """Complete ``ended`` from another thread, if the loop is still open.

        Several that end at about the same time wake the loop once.
        """
        self._ended_waits.append(ended)
        if not self._loop_is_woken:
            self._loop_is_woken = True
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._complete_all)

    def _complete_all(self) -> None:
        self._loop_is_woken = False  # before reading the queue: a later end wakes the loop again
        while self._ended_waits:
            ended = self._ended_waits.popleft()
            if not ended.cancelled():
                ended.set_result(None)

    def close(self) -> None:
        """Wait for the calls that run. No call may be submitted any more."""
        for _ in self._started:
            self._calls.put(None)
        for thread in self._started:
            thread.join()

    def statistics(self) -> WorkersStatistics:
        return WorkersStatistics(
            self._slots.taken, self._threads.taken, self._refused, self._given_up
        )

    def _require(self, shortage: str | None) -> None:
        if shortage is not None:
            self._refused += 1
            raise Overloaded(
                f"this node already answers {shortage}, which is the maximum; nothing was done, "
                "try again"
            )

    def _start(self, call: PooledCall) -> None:
        self._threads.take(call.user, call.kind)
        if call.kind not in _WAIT_FOR_OTHERS:
            call.started, call.thread_clock = asyncio.get_running_loop().time(), None
            self._computing[call] = call.started + COMPUTING_SECONDS
        if len(self._started) < self._threads.taken:
            name = f"call_{len(self._started)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                if not self._started:
                    refused = Overloaded(
                        f"this node lacks memory or threads ({error}); nothing was done, try again"
                    )
                    asyncio.get_running_loop().call_soon(self._ended, call, None, refused)
                    return
                # Otherwise the call waits for a thread that runs.
            else:
                self._started.append(thread)
        self._calls.put(call)

    def _start_waiting(self) -> None:
        """Start the calls that may start now; schedule the next attempt when more may compute."""
        while self._waiting:
            full_until = self._computing_until()
            ready = [
                calls[0]
                for (user, kind), calls in self._waiting.items()
                if (full_until is None or kind in _WAIT_FOR_OTHERS)
                and self._threads.shortage(user, kind) is None
            ]
            if not ready:
                if full_until is not None and self._next_start is None:
                    loop = asyncio.get_running_loop()
                    self._next_start = loop.call_at(full_until, self._start_more)
                return
            first = min(ready, key=lambda call: (self._threads.of_user[call.user], call.number))
            self._leave_queue(first)
            self._start(first)

    def _start_more(self) -> None:
        self._next_start = None
        self._start_waiting()

    def _computing_until(self) -> float | None:
        """The time until which no other call may begin to compute; None if one may now."""
        now = asyncio.get_running_loop().time()
        while self._computing:
            first = next(iter(self._computing))
            until = self._computing[first]
            if until > now:
                return until if len(self._computing) >= MAX_COMPUTING else None
            del self._computing[first]
            if first.still_computes(now):
                self._computing[first] = now + COMPUTING_SECONDS
        return None

    def _enter_queue(self, call: PooledCall) -> None:
        self._waiting.setdefault((call.user, call.kind), deque()).append(call)
        self._start_waiting()

    def _leave_queue(self, call: PooledCall) -> None:
        calls = self._waiting[call.user, call.kind]
        calls.remove(call)
        if not calls:
            del self._waiting[call.user, call.kind]

    def _withdraw(self, call: PooledCall) -> bool:
        if call in self._gave_way:
            self._gave_way.remove(call)
        elif call in self._waiting.get((call.user, call.kind), ()):
            self._leave_queue(call)
        else:
            return False
        self._slots.give_back(call.user, call.kind)
        self._given_up += 1
        call.result.cancel()
        return True

    def _work(self) -> None:
        shorten_time_slices()
        clock = _clock_of_this_thread()
        while (call := self._calls.get()) is not None:
            call.computed, call.thread_clock = clock(), clock
            self._run(call)
            del call  # else it is kept in memory until the next call

    def _run(self, call: PooledCall) -> None:
        value: object = None
        error: BaseException | None = None
        try:
            value = call.context.run(call.work)
        except StopIteration as stop:  # a future cannot carry it
            error = RuntimeError(f"the call raised {stop!r}")
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # if the loop is closed, nothing waits for the result
            call.result.get_loop().call_soon_threadsafe(self._ended, call, value, error)

    def _ended(self, call: PooledCall, value: object, error: BaseException | None) -> None:
        self._threads.give_back(call.user, call.kind)
        self._computing.pop(call, None)
        if isinstance(error, NotYet) and call.again is not None and not call.result.done():
            self._begin_again(call, call.again, error.made)
            forget_frames(error)
            self._start_waiting()
            return
        self._slots.give_back(call.user, call.kind)
        self._start_waiting()
        if call.result.done():
            if error is not None and not isinstance(error, StrandlineError | ClientLeft | NotYet):
                logger.error("a call failed after its client had left", exc_info=error)
            if error is not None:
                forget_frames(error)
        elif error is not None:
            call.result.set_exception(error)
        else:
            call.result.set_result(value)

    def _begin_again(self, call: PooledCall, again: Callable[[], Any], made: Future[None]) -> None:
        """Let a call wait for a thread again once ``made`` is done."""
        call.work = again
        call.begins_left -= 1
        call.context.run(GIVES_WAY.set, call.begins_left > 0)
        self._gave_way.add(call)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def enter_queue(_: object) -> None:
            if call in self._gave_way:
                self._gave_way.remove(call)
                self._enter_queue(call)

        ended.add_done_callback(enter_queue)
        made.add_done_callback(lambda _: self._complete(loop, ended))
