"""The clock row of a database, and beside it the row of the looks.

Every write that needs a position in time takes it from this row, inside its own write transaction.
The row decides the order of a database. Metastorage writes, begin and commit of transactions and
notification events share it, so one order holds over all of them.

What must stay true: times grow in commit order, whatever any wall clock does. The row is read and
written under the write lock, so the time of a transaction is above that of every transaction that
committed before. A time taken before the lock would not do: the writer could be paused for ten
seconds and then commit into a past that others have already read.

**Looks.** A look at the log (`strandline.sql.look_beside_rows`) needs a time before that of every
later append, and must not wait for a write of rows, which may hold the write lock for seconds. So
it takes its time from a row of its own, under the lock on that row alone. An append holds both
locks, and its time is above both rows. So a look waits only for appends.

A time that is too far ahead of the wall clock is refused, because no later time could go back. If
the store has such a time already, and an operator has accepted it (`accept_time`), its times grow
by one logical step each until the wall clock has caught up. The accepted time is in the second row.
"""

from __future__ import annotations

from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp, milliseconds, timestamp
from strandline.errors import CorruptData
from strandline.sql.schema_versions import LOOKS_ROW, WRITES_ROW
from strandline.sql.statements import Query, run, value

_ACCEPTED_ROW = 2
_READ = "SELECT time FROM strandline_clock WHERE id = ?"
STORED_TIME_QUERY: Query = (_READ, (WRITES_ROW,))
"""The query of `stored_time`."""
_TAKE = (
    "INSERT INTO strandline_clock (id, time) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET time ="
    " CASE WHEN strandline_clock.time + ? <= excluded.time THEN excluded.time"
    " ELSE strandline_clock.time + ? END RETURNING time"
)
# Of the row itself, of the other row and of a clock, the latest; above both rows.
_TAKE_ABOVE_BOTH = (
    "UPDATE strandline_clock SET time = (SELECT max(candidate) FROM (SELECT max(time) + 1 AS"
    f" candidate FROM strandline_clock WHERE id IN ({WRITES_ROW}, {LOOKS_ROW})"
    " UNION ALL SELECT CAST(? AS BIGINT))"
    " AS candidates) WHERE id = {} RETURNING time"
)
_SERVER_CLOCK = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
_HIGHEST = (
    f"SELECT max(time), count(*) FROM strandline_clock WHERE id IN ({WRITES_ROW}, {LOOKS_ROW})"
)


def take_time(
    connection: Connection, clock: HybridClock, *, bounded: bool = True, count: int = 1
) -> Timestamp:
    """The next time of this database: max(the clock's time, the last time + 1).

    With ``count``, it takes that many consecutive times, all above the last time, and returns the
    last of them. Call it inside a write transaction; the time counts once that commits. The clock
    is moved past the time. Pass ``bounded=False`` for what leaves nothing in the history, such as a
    read or a lease: then a store whose time is far ahead does not refuse. Raises `WrongClock`.
    """
    new_time = Timestamp(value(connection, *take_time_query(clock, bounded=bounded, count=count)))
    if bounded:
        _refuse_far_ahead(connection, clock, new_time)
    clock.update(new_time)
    return new_time


def take_time_after_looks(connection: Connection, clock: HybridClock) -> Timestamp:
    """`take_time`, above the times of all looks that have ended.

    An append holds the lock on the row of the looks, so no look is in progress. Raises
    `WrongClock`, and `CorruptData` if the row is missing.
    """
    clock.check()
    new_time: Timestamp | None = value(connection, *time_after_looks_query(clock))
    if new_time is None:
        raise _no_time()
    _refuse_far_ahead(connection, clock, new_time)
    clock.update(new_time)
    return new_time


def time_after_looks_query(clock: HybridClock) -> Query:
    """The query of `take_time_after_looks`. It reads the clock and does not move it."""
    return _TAKE_ABOVE_BOTH.format(WRITES_ROW), (clock.current(),)


def look_time_query(clock: HybridClock) -> Query:
    """The query that takes the time of a look, under the lock on the row of the looks.

    It too is above both rows.
    """
    return _TAKE_ABOVE_BOTH.format(LOOKS_ROW), (clock.current(),)


def check_time(connection: Connection, clock: HybridClock) -> None:
    """Raise the `WrongClock` that a write would raise now."""
    clock.check()
    _refuse_far_ahead(connection, clock, highest_time(connection))


def _refuse_far_ahead(connection: Connection, clock: HybridClock, new_time: Timestamp) -> None:
    if clock.is_too_far_ahead(new_time):
        accepted = milliseconds(accepted_time(connection))
        if milliseconds(new_time) > accepted + clock.max_ahead_ms:
            raise clock.too_far_ahead(new_time, todo="run `strandline repair-clock` on this store")


def take_time_query(clock: HybridClock, *, bounded: bool = True, count: int = 1) -> Query:
    """The query of `take_time`, for a write that begins with it.

    Then the clock is read before the write lock is held. Still, the row decides the time.
    """
    first = clock.now() if bounded else clock.current()
    return _TAKE, (first + count - 1, count, count)


def stored_time(connection: Connection) -> Timestamp:
    """The last time assigned, or 0."""
    return _time(connection, STORED_TIME_QUERY)


def highest_time(connection: Connection) -> Timestamp:
    """The later of the last time assigned and the last time of a look, or 0.

    Raises `CorruptData` if one of the two rows is missing: it is also a lock.
    """
    [(time, rows)] = run(connection, _HIGHEST)
    if rows < 2:
        raise _no_time()
    return Timestamp(time)


def _no_time() -> CorruptData:
    return CorruptData(
        "the last time of the store is missing in its database; restore it from a backup"
    )


def present_time(connection: Connection, clock: HybridClock) -> Timestamp:
    """The later of the clock's time and the store's."""
    return max(clock.current(), stored_time(connection))


def expiry_time(connection: Connection, now: Timestamp) -> Timestamp:
    """``now``, or the time of the server's clock if that is earlier.

    What expires for all nodes is compared with it: the clock of one node may be ahead. For a file,
    it is ``now``, because its processes share one clock.
    """
    if connection.dialect.name != "postgresql":
        return now
    return min(now, timestamp(value(connection, _SERVER_CLOCK)))


def accepted_time(connection: Connection) -> Timestamp:
    """The time up to which an operator has accepted times that are ahead, or 0."""
    return _time(connection, (_READ, (_ACCEPTED_ROW,)))


def accept_time(connection: Connection) -> None:
    """Accept the last time assigned, however far ahead. Call it inside a write transaction."""
    run(
        connection,
        "INSERT INTO strandline_clock (id, time) VALUES (?, ?)"
        " ON CONFLICT (id) DO UPDATE SET time = excluded.time",
        (_ACCEPTED_ROW, highest_time(connection)),
    )


def _time(connection: Connection, query: Query) -> Timestamp:
    time: int | None = value(connection, *query)
    return Timestamp(time or 0)
