"""Where long work is done, so that no other request feels it: one rule, by what a request costs.

The problem: a process has one interpreter lock. The event loop answers a small request in a tenth
of a millisecond, if it gets the lock when it wants it. A thread that computes gives it back only
after the interpreter's *switch interval*; the loop asks several times for one answer, and each
further thread that computes makes it wait once more. With eight threads and the usual five
milliseconds, a small request takes seconds.

The rule. Cost is counted in *things*: rows, partitions, files, events.

* Up to `SMALL` things are gone over at once, wherever the request is: on the event loop if memory
  holds them, else in a worker thread.
* Whatever goes over more of them is long. It runs in a worker thread and in *the lane*, which one
  thread has at a time: `lane` where the number is known, `paced` where it turns out on the way. Who
  comes later waits for the lane in order of arrival, without computing.
* The switch interval is short (`share_the_interpreter`), so that the thread in the lane gives the
  interpreter back at once.
* No call into C that keeps the lock goes over more than `SLICE` things.

What must stay true: the thread in the lane waits for nothing but reads of the disk. It never waits
there for the write lock of a database, for another process or for a client.

Memory that long work took is given back when the lane has been empty for a while (`Lane.tidy`):
what the allocators of the interpreter, of C and of Arrow hold free is returned to the system, and
the objects that stay are left out of all later looks for garbage, each of which would stop the
loop.

Rejected: child processes. Each would need the node's catalog and caches, a copy for each of them,
and what they make has to cross into the process of the loop all the same. Threads that compute side
by side: they share one interpreter, so all of them end late. Slices on the event loop: each slice
is a pause that all others feel.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

SMALL = 200
"""Things that may be gone over anywhere: well under a millisecond."""
SLICE = 2_000
"""Things that one call into C may go over, which nothing can interrupt."""
PATIENCE = 30.0
"""Seconds after which who waits for the lane takes it from a thread that does not leave it."""
SWITCH_SECONDS = 0.0001
YOUNG_OBJECTS = 10_000
YOUNG_ROUNDS = 5
"""New objects between two looks for garbage among them, and such looks between two wider ones."""
TIDY_SECONDS = 1.0
"""How long after a turn memory is given back, unless another turn goes on."""
TIDY_AFTER = 2_000
"""Things that were gone over in the lane since the last `tidy`, for another one to be worth it."""


@dataclass(frozen=True, slots=True)
class WorkStatistics:
    """Counts since the start: turns in the lane and the things that were gone over in them.

    ``waited`` and ``longest`` are seconds: what all turns together waited for the lane, and for how
    long the longest had it. ``waiting`` is now.
    """

    turns: int
    things: int
    waited: float
    longest: float
    waiting: int
    tidied: int


class _Turn:
    """One stay in the lane; compared by identity."""

    def __init__(self, began: float) -> None:
        self.began = began


class Lane:
    """See the module. One for a process. Safe for threads; a turn may stand inside another.

    ``tidies``: a while after the last of many things, memory is given back.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._queue: deque[object] = deque()
        self._owner: int | None = None
        self._depth = 0
        self._turns = self._things = self._untidied = self._tidied = 0
        self._waited = self._longest = 0.0
        self._tidying: threading.Timer | None = None
        self._turn = _Turn(0.0)
        self.tidies = False
        self.patience = PATIENCE

    @contextmanager
    def lane(self, things: int) -> Iterator[None]:
        """Go over so many things in the block: in the lane, if they are many."""
        if things <= SMALL:
            yield
            return
        turn = self._enter(things)
        try:
            yield
        finally:
            self._leave(turn)

    def paced(self, items: Iterable[T]) -> Iterator[T]:
        """The items; from the first beyond `SMALL` on, in the lane until the last was taken."""
        count, turn = 0, None
        try:
            for item in items:
                count += 1
                if count == SMALL + 1:
                    turn = self._enter(0)
                yield item
        finally:
            if turn is not None:
                self._count(count - SMALL)
                self._leave(turn)

    def idle(self) -> bool:
        """Whether no thread has the lane, or waits for it."""
        with self._free:
            return self._owner is None and not self._queue

    def tidy(self) -> bool:
        """Give back the memory that long work took; False if there was none, or it goes on."""
        with self._free:
            self._tidying = None
            if self._untidied < TIDY_AFTER or self._owner is not None or self._queue:
                return False
            self._untidied = 0
            self._tidied += 1
        return_memory()
        return True

    def statistics(self) -> WorkStatistics:
        """How the lane was used."""
        with self._free:
            return WorkStatistics(
                turns=self._turns,
                things=self._things,
                waited=self._waited,
                longest=self._longest,
                waiting=len(self._queue),
                tidied=self._tidied,
            )

    def _count(self, things: int) -> None:
        with self._free:
            self._things += things
            self._untidied += things

    def _enter(self, things: int) -> _Turn:
        me, asked = threading.get_ident(), time.monotonic()
        with self._free:
            self._things += things
            self._untidied += things
            if self._owner == me:
                self._depth += 1
                return self._turn
            ticket = object()
            self._queue.append(ticket)
            try:
                # One that failed may be kept, with all that it held, in its error: pass it.
                self._free.wait_for(
                    lambda: self._owner is None and self._queue[0] is ticket, timeout=self.patience
                )
            finally:  # one that is interrupted while it waits must not stop those behind it
                self._queue.remove(ticket)
                self._free.notify_all()
            self._owner, self._depth = me, 1
            self._turns += 1
            self._turn = _Turn(time.monotonic())
            self._waited += self._turn.began - asked
            return self._turn

    def _leave(self, turn: _Turn) -> None:
        with self._free:
            if turn is not self._turn:
                return  # it was passed
            self._depth -= 1
            if self._depth:
                return
            self._longest = max(self._longest, time.monotonic() - turn.began)
            self._owner = None
            self._free.notify_all()
            if self.tidies and self._untidied >= TIDY_AFTER and self._tidying is None:
                self._tidying = threading.Timer(TIDY_SECONDS, self.tidy)
                self._tidying.daemon = True
                self._tidying.start()


_LANE = Lane()
lane = _LANE.lane
paced = _LANE.paced
tidy = _LANE.tidy
statistics = _LANE.statistics


def slices(items: Sequence[T], size: int = SLICE) -> Iterator[Sequence[T]]:
    """The items in pieces that one call into C may go over."""
    for first in range(0, len(items), size):
        yield items[first : first + size]


def in_order(names: Collection[str]) -> Iterable[str]:
    """``names`` in order; many of them in slices that are merged, which can be interrupted."""
    if len(names) <= SLICE:
        return sorted(names)
    rest = iter(names)
    return merge(*iter(lambda: sorted(islice(rest, SLICE)), []))


def share_the_interpreter() -> None:
    """Let a thread that computes give the interpreter back quickly; for the process of a node."""
    sys.setswitchinterval(SWITCH_SECONDS)
    _LANE.tidies = True
    gc.collect()
    gc.freeze()
    # A look at all objects of a node with a large catalog takes longer than a caller may wait, and
    # nearly all of what it would find there is alive: values without circles.
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, 1_000_000)


def return_memory() -> None:
    """Return what is free to the system, and leave what stays out of later looks for garbage."""
    gc.collect(1)  # among the new objects: looking through all would stop the loop
    gc.freeze()
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:  # there with glibc
        trim(0)


def _libc() -> object:
    return ctypes.CDLL(None)
