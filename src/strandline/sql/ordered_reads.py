"""Ordered reads: reads of a database in the order of its writes, and waits for a change.

A waiting thread reads the database again when its mark has moved (see `strandline.sql.database`).
If the server is away, the thread waits on, because the server may come back with the change. Only
at its time-out does it get the error that the server did not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp
from strandline.errors import Unavailable, UnknownOutcome
from strandline.outage import failing_at_once
from strandline.sql.clock_row import look_time_query, take_time_after_looks, time_after_looks_query
from strandline.sql.database import Database
from strandline.sql.statements import Query, run, run_at_commit

T = TypeVar("T")

_LOOKS = 3
"""The number of attempts of `look_in_order` if answers are lost."""
_GATHER_SECONDS, _MAX_GATHER_SECONDS = 0.01, 0.05
"""How long a waiting thread lets commits accumulate before it looks at them together.

The pause doubles each time that none of them concerned it, as while rows are written.
"""
_LOOK_AGAIN_SECONDS = 0.1
"""The pause before a waiting thread looks again if the server did not answer."""


def look_in_order(
    database: Database,
    clock: HybridClock,
    look: Callable[[Connection], T],
    *,
    first: Sequence[Query],
    deadline: float | None = None,
) -> tuple[T, Timestamp]:
    """The result of ``look`` after every write in flight, and a time before every later write.

    ``first`` are the queries that ``look`` runs first, and ``deadline`` ends the wait for other
    writers (`Database.write`). It writes the time, but for its caller it is a read: if the answer
    is lost, it is tried again, and never ends with an unknown outcome.

    The time is as durable as its readers need it: a process that could see it undone would have to
    survive a power cut of the machine. If a remote process still knows such a time, the wall clock
    has passed it by then, unless the clock was also set back by more than the restart took.
    """
    begin = partial(
        database.write, deadline=deadline, first=first, notifies=False, is_provisional=True
    )
    return _looked(database, clock, look, begin, partial(time_after_looks_query, clock))


def look_beside_rows(
    database: Database,
    clock: HybridClock,
    look: Callable[[Connection], T],
    *,
    first: Sequence[Query],
) -> tuple[T, Timestamp]:
    """`look_in_order`, but only in the order of appends: it does not wait for writes of rows.

    The time is before that of every later append, and not before that of any earlier one.
    """
    begin = partial(database.look, first=first)
    return _looked(database, clock, look, begin, partial(look_time_query, clock))


def _looked(
    database: Database,
    clock: HybridClock,
    look: Callable[[Connection], T],
    begin: Callable[[], AbstractContextManager[Connection]],
    time_query: Callable[[], Query],
) -> tuple[T, Timestamp]:
    for looks_left in reversed(range(_LOOKS)):
        try:
            with begin() as connection:
                result = look(connection)
                rows = run_at_commit(connection, *time_query())
        except UnknownOutcome as error:
            if not looks_left:
                raise Unavailable(
                    f"{database.name} lost its answer to each of {_LOOKS} requests for its time "
                    f"({error.reason}); nothing was changed, try again"
                ) from error
        else:
            new_time = Timestamp(rows[0][0])
            clock.update(new_time)
            return result, new_time
    raise AssertionError("unreachable")


def append_time_queries(database: Database, clock: HybridClock) -> tuple[Query, ...]:
    """The queries of `take_append_time`, for an append that begins with them."""
    return *database.append_lock, time_after_looks_query(clock)


def take_append_time(database: Database, connection: Connection, clock: HybridClock) -> Timestamp:
    """`take_time` for an append to a log in ``database``: after every look that has begun."""
    for statement, parameters in database.append_lock:
        run(connection, statement, parameters)
    return take_time_after_looks(connection, clock)


def wait_until(
    database: Database,
    look: Callable[[int], bool],
    *,
    timeout: float,
    refuse_when_closed: Callable[[], None],
) -> bool:
    """Wait until ``look`` returns True.

    Returns False after ``timeout`` seconds, or when the database is woken. ``look`` gets the mark
    that was taken before it.
    """
    finish = time.monotonic() + timeout
    gather = _GATHER_SECONDS
    while True:
        # The last look comes after the time-out, so a lost connection never returns False.
        is_last = time.monotonic() >= finish
        mark, failed = database.mark(), None
        try:
            with failing_at_once():
                if look(mark):
                    return True
        except Unavailable as error:
            failed = error
        if is_last and failed is not None:
            raise failed
        if is_last:
            return False
        pause = max(finish - time.monotonic(), 0.0)
        if failed is not None:
            pause = min(pause, _LOOK_AGAIN_SECONDS)
        mark_now = database.wait_for_commit(mark, timeout=pause)
        if mark_now != mark and failed is None:
            # Most commits write rows, come in quick succession, and do not concern this thread.
            time.sleep(max(min(gather, finish - time.monotonic()), 0.0))
            gather = min(2 * gather, _MAX_GATHER_SECONDS)
        refuse_when_closed()
        if mark_now == mark and failed is None and time.monotonic() < finish:
            return False
