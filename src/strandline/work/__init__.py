"""Where to process a request, by its cost, so that large requests do not delay other requests.

The problem: a process has one interpreter lock. A computing thread delays the event loop by an
interpreter switch at each step of a small request. A call into C or a garbage collection delays it
for its whole duration. And the memory that a large request took stays with the process.

The model: cost is counted in *units*. A unit is the cost of a row, a partition, a file, an event or
a version, or of as much of a message as one of these costs (`units_of_values` and similar
functions). Each place that can process a request has a budget of units:

| where | budget | may wait for |
| --- | --- | --- |
| the event loop | `AT_ONCE` | nothing |
| a thread of the node | `IN_THREAD` | SQL and files |
| a child process (`strandline.work.children`) | unlimited | SQL and files |

If the message of a request is too large for a place, the request goes to the next place undecoded.
For a request that reads, the cost may become known only during the work. Code that processes many
rows or files calls `spend` first, or iterates over `spending`. If the budget is exceeded, both
raise `TooLong`, and a child processes the whole request again. If a database can count them,
`require` checks the count first, so that little work is done twice. A request that changes
something is never abandoned midway. Without children (a store embedded in another program, a test)
threads have no budget.

What must stay true: code whose cost a client controls charges the budget before it does the work.
The units that a thread of the node processes for a client are bounded by `IN_THREAD`, or by the
size of the change that the client made in the request.

Many readers may come together for what is made once for all of them, such as a table in memory.
Without it, each of their answers costs as much as making it. So the others give way (`give_way`):
they leave their threads, and begin again once it is made.

Rejected: one computing thread at a time, with a short switch interval (each garbage collection and
each call into C still stopped the loop for 40 to 300 ms, and the memory stayed); slices on the
event loop for everything (each handler would have to be written twice); a process for each request
(it would have to load the catalog each time).
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

AT_ONCE = 200
"""Units that one request may cost on the event loop: well under a millisecond."""
IN_THREAD = 2_000
"""Units that one request may cost in a thread of the node: some twenty milliseconds."""
SWITCH_SECONDS = 0.0001
"""How long a computing thread may keep the interpreter lock while the event loop waits for it."""
YOUNG_OBJECTS, YOUNG_ROUNDS = 1_000, 3
"""New objects between two collections of the youngest generation, and such collections between two
of the next generation."""
MAX_NEW_OBJECTS = 200_000
"""The maximum number of objects that a garbage collection visits; each takes up to 0.2 µs."""
MAX_KEPT_OBJECTS = 50_000
"""The maximum number of new objects of a block that the next garbage collection visits."""
FREED_AT_ONCE = 20
"""The number of objects that `free_slowly` frees in one step: some hundred microseconds."""
_STEP = 50
"""The number of items that `spending` yields between two checks of the budget."""
_BYTES_PER_UNIT = 200
_JSON_BYTES_PER_UNIT = 32
_VALUES_PER_UNIT = 20


class TooLong(Exception):
    """The request costs more than its place allows. Not an error: another place processes it."""


class NotYet(Exception):
    """The call gives way until ``made`` is done. Not an error: it begins again then."""

    def __init__(self, made: Future[None]) -> None:
        super().__init__()
        self.made = made


class _Budget:
    __slots__ = ("units_left",)

    def __init__(self, units: int) -> None:
        self.units_left = units


_BUDGET: ContextVar[_Budget | None] = ContextVar("strandline.work.budget", default=None)
GIVES_WAY: ContextVar[bool] = ContextVar("strandline.work.gives_way", default=False)
"""Whether the present call can begin again, so that `give_way` may abandon it."""


@contextmanager
def budget(units: int | None) -> Iterator[None]:
    """Limit the block to this many units; more raise `TooLong`. None means no limit."""
    token = _BUDGET.set(None if units is None else _Budget(units))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def spend(units: int) -> None:
    """Charge units to the budget before the work. Raises `TooLong` if it is exceeded."""
    current = _BUDGET.get()
    if current is not None:
        current.units_left -= units
        if current.units_left < 0:
            raise TooLong


def require(count: Callable[[int], int]) -> None:
    """Raise `TooLong` if ``count`` returns more units than the budget has left.

    The argument of ``count`` is the number at which it may stop. Use this if counting is cheaper
    than processing. It charges nothing. Without a budget it does not call ``count``.
    """
    current = _BUDGET.get()
    if current is not None and count(current.units_left + 1) > current.units_left:
        raise TooLong


def refuse_budget() -> None:
    """Raise `TooLong` if there is a budget: for work on the whole store, of unknown cost."""
    if _BUDGET.get() is not None:
        raise TooLong


def give_way(made: Future[None]) -> None:
    """Abandon the call until ``made`` is done: raise `NotYet`. Does nothing if it must go on."""
    if GIVES_WAY.get():
        raise NotYet(made)


def spending(items: Iterable[T]) -> Iterator[T]:
    """Iterate over the items; each costs a unit. Raises `TooLong` when they exceed the budget.

    If their number is known, it is charged before the first item.
    """
    if isinstance(items, Sized):
        spend(len(items))
        yield from items
        return
    if _BUDGET.get() is None:
        yield from items
        return
    count = 0
    for count, item in enumerate(items, start=1):
        if not count % _STEP:
            spend(_STEP)
        yield item
    spend(count % _STEP)


def units_of_bytes(size: int) -> int:
    """Return the cost in units of a message of this many bytes."""
    return size // _BYTES_PER_UNIT


def units_of_json(size: int) -> int:
    """Return the cost of a JSON text: high, because one call that cannot yield parses it."""
    return size // _JSON_BYTES_PER_UNIT


def units_of_values(values: int) -> int:
    """Return the cost in units of a message of this many values (fields, elements)."""
    return values // _VALUES_PER_UNIT


class _KeptGarbage:
    """Disables the cyclic garbage collector while any thread is inside the context manager.

    For work that creates many long-lived objects at once: each collection would visit all of them.
    The block may compute and wait for a store, but for nothing slower: meanwhile, no thread's
    cycles of objects are freed.

    If ``freezes``, more than `MAX_KEPT_OBJECTS` new objects are never visited, not even after the
    block. Cycles that exist at its end then stay.
    """

    def __init__(self) -> None:
        self.freezes = False
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
                if self.freezes and gc.get_count()[0] > MAX_KEPT_OBJECTS:
                    gc.freeze()
                gc.enable()


keeping_garbage = _KeptGarbage()


def settle_interpreter() -> None:
    """Configure the interpreter of a node's process for short pauses.

    With a large catalog, a full garbage collection would stop the event loop for longer than a
    caller may wait. Nearly all objects are alive then: values without reference cycles. So there is
    none; the node calls `collect_garbage` regularly instead.
    """
    keeping_garbage.freezes = True
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, 1_000_000)


def collect_garbage() -> None:
    """Free the cycles of objects that were made since the last call.

    A call visits the objects that were made since the last one and are alive, and later calls do
    not visit them again. So objects that are alive during a call, and then form a cycle, stay. A
    request's objects live for milliseconds, and this is called once a minute; what lives longer,
    such as a connection, must end without a cycle. If more than `MAX_NEW_OBJECTS` are alive, none
    is visited, since no thread can run meanwhile.
    """
    # In one step, in which no other thread runs: the list has the tuples that other threads are
    # making, and ``tuple(generator)`` raises a SystemError there if its tuple has two references.
    (count,) = map(len, map(gc.get_objects, [None]))
    if count > MAX_NEW_OBJECTS:
        gc.freeze()
    gc.collect()
    gc.freeze()


def free_slowly(objects: list[Any]) -> None:
    """Empty a list that has the last references to its objects, in a thread of its own.

    To free a long list is one step of the interpreter: no other thread could run until its end.
    """

    def free() -> None:
        while objects:
            del objects[-FREED_AT_ONCE:]

    if len(objects) > AT_ONCE:
        with suppress(RuntimeError):  # the system has no more threads
            threading.Thread(target=free, name="list-freeing", daemon=True).start()
