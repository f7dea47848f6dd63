"""Looks at a database that several parts have in common: in the order of its writes, or waiting.

A waiter looks when the database's mark has moved (see `strandline.sql.database`). A server that is
away makes a waiter wait on, up to its time-out, because it may come back with the change; only then
the waiter is told that the server did not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp
from strandline.errors import Unavailable, UnknownOutcome
from strandline.sql.clock_row import take_time
from strandline.sql.database import Database

T = TypeVar("T")

_LOOKS = 3
"""How often a look is taken whose answer gets lost."""
_ROOM_SECONDS, _MOST_ROOM_SECONDS = 0.01, 0.05
"""How long a waiter leaves further commits before it looks at them together.

Twice as long each time that nothing among them was its business, as while rows are written.
"""
_LOOK_AGAIN_SECONDS = 0.1
"""After how long a waiter looks again if the server did not answer."""


def look_in_order(
    database: Database, clock: HybridClock, look: Callable[[Connection], T]
) -> tuple[T, Timestamp]:
    """What ``look`` reads, after every write in flight, and a time that no later write is given.

    It writes the time, but for its caller it is a read: when its answer is lost it is asked again,
    and never ends as an unknown outcome.
    """
    for left in reversed(range(_LOOKS)):
        try:
            with database.write_time() as connection:
                return look(connection), take_time(connection, clock, bounded=False)
        except UnknownOutcome as error:
            if not left:
                raise Unavailable(
                    f"{database.name} was asked for its time {_LOOKS} times, and each time the"
                    f" answer was lost ({error.message}); nothing was changed, try again"
                ) from error
    raise AssertionError("unreachable")


def wait_until(
    database: Database,
    look: Callable[[int], bool],
    *,
    timeout: float,
    refuse_when_closed: Callable[[], None],
) -> bool:
    """Wait until ``look`` says so; False after ``timeout`` seconds, or when the database is woken.

    ``look`` is given the mark that was taken before.
    """
    finish = time.monotonic() + timeout
    room = _ROOM_SECONDS
    while True:
        # The last look comes after the time is over: False is no answer of a lost connection.
        over = time.monotonic() >= finish
        mark, failed = database.mark(), None
        try:
            if look(mark):
                return True
        except Unavailable as error:
            failed = error
        if over and failed is not None:
            raise failed
        if over:
            return False
        pause = max(finish - time.monotonic(), 0.0)
        if failed is not None:
            pause = min(pause, _LOOK_AGAIN_SECONDS)
        mark_now = database.wait_for_commit(mark, timeout=pause)
        if mark_now != mark and failed is None:
            # Most commits are of rows and no business of this waiter, and come in a row.
            time.sleep(max(min(room, finish - time.monotonic()), 0.0))
            room = min(2 * room, _MOST_ROOM_SECONDS)
        refuse_when_closed()
        if mark_now == mark and failed is None and time.monotonic() < finish:
            return False
