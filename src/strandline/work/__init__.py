"""Where a request is computed, so that no other request feels it: one rule, by what it costs.

The problem: a process has one interpreter lock. A thread that computes holds back the event loop by
a switch of the interpreter at each step of a small request, a call into C or a look for garbage
holds it back for its whole length, and the memory that large work took stays with the process.

The model. Cost is counted in *things*: a row, a partition, a file, an event, a version, or as much
of a message as one of these takes (`things_of_values` and its kin). Each place where a
request can be computed has a budget of them:

| where | budget | what may wait |
| --- | --- | --- |
| the event loop | `AT_ONCE` | nothing |
| a thread of the node | `IN_THREAD` | for SQL and files |
| a child process (`strandline.work.children`) | none | for SQL and files |

A request that is too long for a place as it comes goes to the next one undecoded. Whether a request
that reads is too long may turn out on the way: what goes over many things calls `spend` first, or
takes them from `spending`; where the budget is not enough, both raise `TooLong`, and the request is
given to a child, which does all of it. What a database can count is counted first (`require`), so
that little is done twice. A request that changes something is never given up on the way. Without
children (a store that is embedded in another program, a test) threads have no budget.

What must stay true: what goes over a number of things that a client decides says so here before it
does. The number of things that a thread of the node goes over for a client is bounded by
`IN_THREAD`, or by the size of the change that the client made in it.

Rejected: one thread that computes at a time, with a short switch interval (each look for garbage
and each call into C still stopped the loop for 40 to 300 ms, and the memory stayed); slices on the
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
"""Things that may be gone over on the event loop: well under a millisecond."""
IN_THREAD = 2_000
"""Things that one request may go over in a thread of the node: some twenty milliseconds."""
SWITCH_SECONDS = 0.0001
"""How long a thread that computes may keep the interpreter while the event loop wants it."""
YOUNG_OBJECTS, YOUNG_ROUNDS = 1_000, 3
"""New objects between two looks for garbage among them, and such looks between two wider ones."""
_STEP = 50
"""Things that `spending` gives between two looks at the budget."""
_BYTES_OF_A_THING = 200
_JSON_OF_A_THING = 32
_VALUES_OF_A_THING = 20


class TooLong(Exception):
    """What is computed costs more than its place allows. Not an error: it is done elsewhere."""


class _Budget:
    __slots__ = ("left",)

    def __init__(self, things: int) -> None:
        self.left = things


_BUDGET: ContextVar[_Budget | None] = ContextVar("strandline.work.budget", default=None)


@contextmanager
def budget(things: int | None) -> Iterator[None]:
    """What the block goes over is at most so many things, or `TooLong`; None: as many as it is."""
    token = _BUDGET.set(None if things is None else _Budget(things))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def spend(things: int) -> None:
    """Called before so many things are gone over. Raises `TooLong`."""
    current = _BUDGET.get()
    if current is not None:
        current.left -= things
        if current.left < 0:
            raise TooLong


def require(count: Callable[[int], int]) -> None:
    """Raise `TooLong` if the things that ``count`` counts, up to a limit, cost more than is left.

    For what is cheaper to count than to go over. Nothing is spent, and without a budget nothing is
    counted.
    """
    current = _BUDGET.get()
    if current is not None and count(current.left + 1) > current.left:
        raise TooLong


def spending(items: Iterable[T]) -> Iterator[T]:
    """The items; raises `TooLong` at the one that the budget does not allow."""
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
    """What a message of so many bytes costs."""
    return size // _BYTES_OF_A_THING


def things_of_json(size: int) -> int:
    """What a JSON text of so many bytes costs: it is read in one call, which is not interrupted."""
    return size // _JSON_OF_A_THING


def things_of_values(values: int) -> int:
    """What a message of so many values (fields, elements) costs."""
    return values // _VALUES_OF_A_THING


class _KeptGarbage:
    """While any thread is in a block of it, the process looks for no garbage in circles.

    For work that makes many objects at once which live on: each look would go over all of them. The
    block computes, and waits for no more than a disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._paused = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._paused = gc.isenabled()  # where the program looks for none, it goes on so
                gc.disable()
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks and self._paused:
                gc.enable()


keeping_garbage = _KeptGarbage()


def settle_interpreter() -> None:
    """Keep the pauses of the interpreter short; for the process of a node.

    A look at all objects of a node with a large catalog would stop the loop for longer than a
    caller may wait, and nearly all of what it finds is alive: values without circles.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, 1_000_000)
