"""Where to process a request, by its cost, so that large requests do not delay other requests.

The problem: a process has one interpreter lock. A computing thread delays the event loop by an
interpreter switch at each step of a small request. A call into C or a garbage collection delays it
for its whole duration. And the memory that a large request took stays with the process.

The model: cost is counted in *things*: a row, a partition, a file, an event, a version, or as much
of a message as one of these takes (`things_of_values` and similar functions). Each place that can
process a request has a budget of things:

| where | budget | may wait for |
| --- | --- | --- |
| the event loop | `AT_ONCE` | nothing |
| a thread of the node | `IN_THREAD` | SQL and files |
| a child process (`strandline.work.children`) | unlimited | SQL and files |

If the message of a request is too large for a place, the request goes to the next place undecoded.
For a request that reads, the cost may become known only during the work. Code that processes many
things calls `spend` first, or iterates over `spending`. If the budget is exceeded, both raise
`TooLong`, and a child processes the whole request again. If a database can count the things,
`require` checks the count first, so that little work is done twice. A request that changes
something is never abandoned midway. Without children (a store embedded in another program, a test)
threads have no budget.

What must stay true: code that processes a client-controlled number of things charges the budget
before it does so. The number of things that a thread of the node processes for a client is bounded
by `IN_THREAD`, or by the size of the change that the client made in the request.

Rejected: one computing thread at a time, with a short switch interval (each garbage collection and
each call into C still stopped the loop for 40 to 300 ms, and the memory stayed); slices on the
event loop for everything (each handler would have to be written twice); a process for each request
(it would have to load the catalog each time).
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 200
"""Things that one request may process on the event loop: well under a millisecond."""
IN_THREAD = 2_000
"""Things that one request may process in a thread of the node: some twenty milliseconds."""
SWITCH_SECONDS = 0.0001
"""How long a computing thread may keep the interpreter lock while the event loop waits for it."""
YOUNG_OBJECTS, YOUNG_ROUNDS = 1_000, 3
"""New objects between two collections of the youngest generation, and such collections between two
of the next generation."""
MOST_NEW_OBJECTS = 500_000
"""The most objects that a collection of garbage may visit: it takes up to 0.2 µs for each."""
_STEP = 50
"""Things that `spending` yields between two checks of the budget."""
_BYTES_OF_A_THING = 200
_JSON_OF_A_THING = 32
_VALUES_OF_A_THING = 20


class TooLong(Exception):
    """The request costs more than its place allows. Not an error: another place processes it."""


class _Budget:
    __slots__ = ("things_left",)

    def __init__(self, things: int) -> None:
        self.things_left = things


_BUDGET: ContextVar[_Budget | None] = ContextVar("strandline.work.budget", default=None)


@contextmanager
def budget(things: int | None) -> Iterator[None]:
    """Limit the block to this many things; more raise `TooLong`. None means no limit."""
    token = _BUDGET.set(None if things is None else _Budget(things))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def spend(things: int) -> None:
    """Charge things to the budget before processing them. Raises `TooLong` if it is exceeded."""
    current = _BUDGET.get()
    if current is not None:
        current.things_left -= things
        if current.things_left < 0:
            raise TooLong


def require(count: Callable[[int], int]) -> None:
    """Raise `TooLong` if ``count`` returns more things than the budget has left.

    The argument of ``count`` is the number at which it may stop. Use this for things that are
    cheaper to count than to process. It charges nothing. Without a budget it does not call
    ``count``.
    """
    current = _BUDGET.get()
    if current is not None and count(current.things_left + 1) > current.things_left:
        raise TooLong


def refuse_budget() -> None:
    """Raise `TooLong` if there is a budget: for work on the whole store, of unknown cost."""
    if _BUDGET.get() is not None:
        raise TooLong


def spending(items: Iterable[T]) -> Iterator[T]:
    """Iterate over the items and charge them. Raises `TooLong` when they exceed the budget."""
    if _BUDGET.get() is None:
        yield from items
        return
    count = 0
    for count, item in enumerate(items, start=1):
        if not count % _STEP:
            spend(_STEP)
        yield item
    spend(count % _STEP)


def things_of_bytes(size: int) -> int:
    """Return the cost of a message of this many bytes."""
    return size // _BYTES_OF_A_THING


def things_of_json(size: int) -> int:
    """Return the cost of a JSON text of this many bytes. One call that cannot yield parses it."""
    return size // _JSON_OF_A_THING


def things_of_values(values: int) -> int:
    """Return the cost of a message of this many values (fields, elements)."""
    return values // _VALUES_OF_A_THING


class _KeptGarbage:
    """Disables the cyclic garbage collector while any thread is inside the context manager.

    For work that creates many long-lived objects at once: each collection would visit all of them.
    The block may compute and wait for a disk, but for nothing slower.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._paused = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._paused = gc.isenabled()  # if the program disabled it, it stays disabled
                gc.disable()
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks and self._paused:
                gc.enable()


keeping_garbage = _KeptGarbage()


def settle_interpreter() -> None:
    """Configure the interpreter of a node's process for short pauses.

    With a large catalog, a full garbage collection would stop the event loop for longer than a
    caller may wait. Nearly all objects are alive then: values without reference cycles. So there is
    none; the node calls `collect_garbage` regularly instead.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, 1_000_000)


def collect_garbage() -> None:
    """Free what was made since the last call and is only kept by references to each other.

    The cost is that of what was made in between and is still alive, because later calls do not
    visit it again. So what is alive during a call, and then forms a cycle, stays; a request's
    objects live for milliseconds, and this is called once a minute. If more than `MOST_NEW_OBJECTS`
    are alive, none is visited, since no thread can run meanwhile.
    """
    if len(gc.get_objects(generation=2)) > MOST_NEW_OBJECTS:
        gc.freeze()
    gc.collect()
    gc.freeze()
