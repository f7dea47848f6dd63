"""The one clock row of a database.

Every write that wants a place in time takes it here, inside its own write transaction: the row is
where the order of a database is decided. Metastorage writes, begin and commit of transactions and
notification events share it, so that one order holds over all of them.

What must stay true: times grow in commit order, whatever any wall clock does. The row is read and
written under the write lock, so the time of a later transaction is above that of every earlier one
that committed. A time taken before the lock would not do: its owner could be stopped for ten
seconds and then commit into a past that others have read.

A time that is too far ahead of the wall clock is refused, because no later one could go back. Where
the store has such a time already, and an operator has said to go on (`accept_time`), its times grow
by one logical step each until the wall clock has caught up. What was accepted is the second row.
"""

from __future__ import annotations

from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp, milliseconds
from strandline.sql.statements import Query, run, value

_LAST, _ACCEPTED = 1, 2
_TAKE = (
    "INSERT INTO strandline_clock (id, time) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET time ="
    " CASE WHEN strandline_clock.time + ? <= excluded.time THEN excluded.time"
    " ELSE strandline_clock.time + ? END RETURNING time"
)


def take_time(
    connection: Connection, clock: HybridClock, *, bounded: bool = True, count: int = 1
) -> Timestamp:
    """The next time of this database: max(the clock's, the last time + 1).

    With ``count``, so many times are taken, one after the other, all above the last time; this is
    the last of them.

    Called inside a write transaction; the time counts from its commit on. The clock is moved past
    the time. Not ``bounded`` is what leaves nothing in the history, a look or a lease: that the
    store's time is ahead already is no reason to refuse it. Raises `WrongClock`.
    """
    taken = Timestamp(value(connection, *taking_time(clock, bounded=bounded, count=count)))
    if bounded and clock.is_too_far_ahead(taken):
        accepted = milliseconds(accepted_time(connection))
        if milliseconds(taken) > accepted + clock.max_ahead_ms:
            raise clock.too_far_ahead(taken, todo="run `strandline repair-clock FOLDER`")
    clock.update(taken)
    return taken


def taking_time(clock: HybridClock, *, bounded: bool = True, count: int = 1) -> Query:
    """What `take_time` runs, for a write that begins with it.

    The clock is asked before the write lock is there then: the row decides all the same.
    """
    first = clock.now() if bounded else clock.current()
    return _TAKE, (first + count - 1, count, count)


def stored_time(connection: Connection) -> Timestamp:
    """The last time given; 0 if none was."""
    return _row(connection, _LAST)


def present_time(connection: Connection, clock: HybridClock) -> Timestamp:
    """The later of the clock's and the store's time."""
    return max(clock.current(), stored_time(connection))


def accepted_time(connection: Connection) -> Timestamp:
    """The time up to which an operator has accepted times that are ahead; 0 if none."""
    return _row(connection, _ACCEPTED)


def accept_time(connection: Connection) -> None:
    """Go on behind the last time given, however far ahead it is. Inside a write transaction."""
    run(
        connection,
        "INSERT INTO strandline_clock (id, time) SELECT ?, time FROM strandline_clock WHERE id = ?"
        " ON CONFLICT (id) DO UPDATE SET time = excluded.time",
        (_ACCEPTED, _LAST),
    )


def _row(connection: Connection, number: int) -> Timestamp:
    time: int | None = value(
        connection, "SELECT time FROM strandline_clock WHERE id = ?", (number,)
    )
    return Timestamp(time or 0)
