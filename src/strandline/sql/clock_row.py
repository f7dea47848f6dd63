"""The one clock row of a database.

Every write that wants a place in time takes it here, inside its own write transaction: the row is
where the order of a database is decided. Metastorage writes, begin and commit of transactions and
notification events share it, so that one order holds over all of them.

What must stay true: times grow in commit order, whatever any wall clock does. The row is read and
written under the write lock, so the time of a later transaction is above that of every earlier one
that committed. A time taken before the lock would not do: its owner could be stopped for ten
seconds and then commit into a past that others have read.
"""

from __future__ import annotations

from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp


def take_time(connection: Connection, clock: HybridClock) -> Timestamp:
    """The next time of this database: max(the clock's, the last time + 1).

    Called inside a write transaction; the time counts from its commit on. The clock is moved past
    the time.
    """
    taken = connection.exec_driver_sql(
        f"INSERT INTO strandline_clock (id, time) VALUES (1, {clock.now():d})"
        " ON CONFLICT (id) DO UPDATE SET time = CASE"
        " WHEN strandline_clock.time < excluded.time THEN excluded.time"
        " ELSE strandline_clock.time + 1 END RETURNING time"
    ).scalar_one()
    clock.update(taken)
    return Timestamp(taken)


def stored_time(connection: Connection) -> Timestamp:
    """The last time given; 0 if none was."""
    row = connection.exec_driver_sql("SELECT time FROM strandline_clock WHERE id = 1").first()
    return Timestamp(0 if row is None else row[0])
