"""Threads that run one step at a time, in each order that has few preemptions.

A race shows only in some orders of the steps of its threads, and chance runs few of them. `explore`
runs a scenario in each order, a *schedule*. A thread runs on until it waits or ends, but a schedule
*preempts* it at one or two of its steps. Most races need no more (this is the method of CHESS, by
Musuvathi and Qadeer), so there are hundreds of schedules, not millions.

A step is a line of the functions under test. The locks, conditions, events and threads that the
scenario makes obey the schedule, and so does the monotonic clock: time passes only while all
threads wait. What runs between the steps, such as SQL, is real. So are locks that were made outside
of `scheduled`: no thread may wait for them.
"""

from __future__ import annotations

import _thread
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest

Race = Callable[..., list[Any]]  # Any: what the calls return
"""Runs each of its arguments in a thread, and returns their results or errors."""
Scenario = Callable[[Race], None]
_monotonic, _real_current = time.monotonic, threading.current_thread


class _Abandoned(BaseException):
    """Ends the threads of a schedule that has failed."""


class Thread:
    """In place of `threading.Thread`."""

    name = "scheduled"

    def __init__(self, *, target: Callable[[], object], **_: object) -> None:
        self.target = target
        self.turn = _thread.allocate_lock()
        self.turn.acquire()
        self.is_ready: Callable[[], bool] = lambda: True
        self.deadline = math.inf
        self.has_ended = False

    def start(self) -> None:
        _running().start(self)

    def is_alive(self) -> bool:
        return not self.has_ended

    def join(self) -> None:
        _running().wait(lambda: self.has_ended)


class Lock:
    """In place of `threading.Lock`. A `threading.Condition` calls the last three methods."""

    is_reentrant = False

    def __init__(self) -> None:
        self.owner: int | None = None
        self.count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not (self.is_reentrant and self._is_owned()):
            if blocking and (schedule := _own_schedule()) is not None:
                schedule.wait(lambda: self.owner is None, timeout if timeout >= 0 else math.inf)
            if self.owner is not None:
                return False
        self.owner = _thread.get_ident()
        self.count += 1
        return True

    def release(self) -> None:
        assert self.count, "no thread has this lock"
        self.count -= 1
        self.owner = self.owner if self.count else None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self.owner == _thread.get_ident()

    def _release_save(self) -> int:
        count, self.count, self.owner = self.count, 0, None
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self.count = count


class RLock(Lock):
    is_reentrant = True


class _Schedule:
    """One run of a scenario, which is thread 0. The other threads are numbered in their order.

    ``switches`` has the thread that runs on from a step, by the number of the step, where it is not
    the usual one. ``choices`` has, for each step, the threads that could run on, the usual one, and
    whether the others preempt it.
    """

    def __init__(self, switches: Mapping[int, int], codes: frozenset[CodeType]) -> None:
        self.switches, self.codes = switches, codes
        self.choices: list[tuple[list[int], int, bool]] = []
        self.threads: list[Thread] = []
        self.idents: set[int] = set()
        self.now, self.current, self.is_racing = _monotonic(), 0, False
        self.failure: BaseException | None = None
        self.ended = _thread.allocate_lock()
        self.ended.acquire()

    def race(self, *calls: Callable[[], object]) -> list[Any]:  # Any: what the calls return
        outcomes: list[object] = [None] * len(calls)

        def run(number: int) -> None:
            try:
                outcomes[number] = calls[number]()
            except Exception as error:
                outcomes[number] = error

        threads = [Thread(target=lambda n=number: run(n)) for number in range(len(calls))]  # type: ignore[misc]  # mypy: no default in a lambda
        for thread in threads:
            thread.start()
        self.is_racing = True
        self.wait(lambda: all(thread.has_ended for thread in threads))
        self.is_racing = False
        return outcomes

    def start(self, thread: Thread) -> None:
        self.threads.append(thread)
        _thread.start_new_thread(self._run, (thread,))

    def _run(self, thread: Thread) -> None:
        thread.turn.acquire()
        self.idents.add(_thread.get_ident())
        sys.settrace(self._trace)
        try:
            if self.failure is None:
                thread.target()
        except BaseException as error:
            self.failure = self.failure or error
        sys.settrace(None)
        self.idents.discard(_thread.get_ident())
        thread.has_ended = True
        self._go_on()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:  # Any: as `sys.settrace`
        if event == "line":
            self.step()
        return self._trace if frame.f_code in self.codes else None

    def step(self) -> None:
        if self.is_racing:
            self._switch()

    def wait(self, is_ready: Callable[[], bool], timeout: float = math.inf) -> None:
        if not is_ready():
            me = self.threads[self.current]
            me.is_ready, me.deadline = is_ready, self.now + timeout
            self._switch()
            me.is_ready, me.deadline = (lambda: True), math.inf

    def _switch(self) -> None:
        me = self.threads[self.current]
        self._go_on()
        me.turn.acquire()
        if self.failure is not None:
            raise _Abandoned

    def _go_on(self) -> None:
        """Let the next thread run on."""
        alive = [number for number, thread in enumerate(self.threads) if not thread.has_ended]
        if not alive:
            self.ended.release()
            return
        ready = self._ready(alive)
        goes_on = self.current in ready
        if not ready:
            self.now = min(self.threads[number].deadline for number in alive)
            if self.now == math.inf:
                self.failure = self.failure or AssertionError("all threads wait for each other")
            ready = self._ready(alive)
        usual = self.current if goes_on else ready[0]
        if self.is_racing:
            self.choices.append((ready, usual, goes_on))
            usual = self.switches.get(len(self.choices) - 1, usual)
        self.current = usual
        self.threads[usual].turn.release()

    def _ready(self, alive: Iterable[int]) -> list[int]:
        threads = self.threads
        return [n for n in alive if threads[n].is_ready() or threads[n].deadline <= self.now]


_schedule: _Schedule | None = None


def _own_schedule() -> _Schedule | None:
    """The schedule of the calling thread; None in a thread that obeys none."""
    is_own = _schedule is not None and _thread.get_ident() in _schedule.idents
    return _schedule if is_own else None


def _running() -> _Schedule:
    schedule = _own_schedule()
    assert schedule is not None, "threads obey a schedule only in a scenario"
    return schedule


def _current_thread() -> Thread | threading.Thread:
    schedule = _own_schedule()
    return _real_current() if schedule is None else schedule.threads[schedule.current]


def _now() -> float:
    schedule = _own_schedule()
    return _monotonic() if schedule is None else schedule.now


@contextmanager
def scheduled() -> Iterator[None]:
    """In the block, `threading` makes locks and threads that obey a schedule."""
    with pytest.MonkeyPatch.context() as patch:
        for name, made in (("Lock", Lock), ("_allocate_lock", Lock), ("RLock", RLock)):
            patch.setattr(threading, name, made)
        patch.setattr(threading, "Thread", Thread)
        patch.setattr(threading, "current_thread", _current_thread)
        patch.setattr(time, "monotonic", _now)
        yield


def explore(scenario: Scenario, *, steps_in: Iterable[object], preemptions: int = 1) -> int:
    """Run the scenario in each order; return their number.

    The lines of ``steps_in``, functions or the methods of classes, are the steps. The error of a
    scenario has its schedule in a note.
    """
    global _schedule
    members = [member for part in steps_in for member in (part, *vars(part).values())]
    codes = frozenset(member.__code__ for member in members if hasattr(member, "__code__"))
    explored, left = 0, [(dict[int, int](), preemptions)]
    while left:
        switches, preemptions_left = left.pop()
        with scheduled():
            _schedule = schedule = _Schedule(switches, codes)
            schedule.start(Thread(target=lambda race=schedule.race: scenario(race)))  # type: ignore[misc]  # as above
            schedule.threads[0].turn.release()
            try:
                assert schedule.ended.acquire(timeout=60), "a thread waits for a real lock"
            finally:
                _schedule = None
        if schedule.failure is not None:
            schedule.failure.add_note(f"in the schedule {switches}")
            raise schedule.failure
        explored += 1
        for step in range(max(switches, default=-1) + 1, len(schedule.choices)):
            threads, usual, preempts = schedule.choices[step]
            if preempts <= preemptions_left:
                others = [{**switches, step: number} for number in threads if number != usual]
                left += [(other, preemptions_left - preempts) for other in others]
    return explored
