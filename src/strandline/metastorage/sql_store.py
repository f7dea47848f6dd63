"""The metastorage in the tables of a SQL database: a SQLite file, or a PostgreSQL server.

Every invoke is one write transaction, so the database's write lock determines the order of the
store. Under the lock the invoke reads its conditions, takes the time and moves the head. The time
comes from the database's clock row, which transactions and notifications of the same store share.

`check` takes the write lock too, so it comes after every write in flight. It leaves its time in the
clock row, so the next write gets a later one, whatever process and wall clock it comes from. `look`
does the same with the row of the looks, which only an invoke locks too.

A deletion leaves a row (revision, key), so that waiting threads learn of it whenever they look.
Only the last few thousand are kept. ``forgotten`` in the head row is the revision up to which they
were removed. A thread that waits from an earlier revision returns at once, as after a change.

If an unmoved mark of the database proves that nothing was committed, `revision` remembers the
head's revision with the mark that was taken *before* it was read. It reads the revision again only
if the mark has moved. Each remembered pair is correct by itself, so threads may overwrite each
other's pairs in any order. (If the mark were taken after the read, a commit between the two would
count as seen.) `strandline.sql.ordered_reads` implements the waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp
from strandline.metastorage import sql_tables as tables
from strandline.metastorage.store import (
    Absent,
    Beside,
    Condition,
    Delete,
    DeleteRange,
    Exists,
    Head,
    KeyValue,
    Lease,
    LeaseHeld,
    Metastorage,
    Operation,
    Outcome,
    Put,
    PutTimed,
    TimeIs,
    ValueIs,
    check_bound,
    check_invoke,
    check_key,
    check_limit,
    check_ttl,
    lease_lost,
    prefix_end,
)
from strandline.sql import (
    Database,
    Parameter,
    Query,
    Row,
    append_time_queries,
    change,
    change_each,
    first_row,
    insert_queries,
    look_beside_rows,
    look_in_order,
    present_time,
    run,
    run_all,
    take_append_time,
    take_time,
    value,
    wait_until,
)

DELETIONS_KEPT = 4096

_GET = "SELECT value, revision, time FROM metastorage WHERE key = ?"
_RANGE = (
    "SELECT key, value, revision, time FROM metastorage WHERE key >= ? AND key < ? ORDER BY key"
)
_LARGEST_NUMBER = (1 << 63) - 1
_HEAD = (
    "(SELECT revision FROM metastorage_head WHERE id = 1),"
    " (SELECT time FROM metastorage_head WHERE id = 1)"
)
_PUT = "INSERT INTO metastorage (key, revision, time, value) VALUES "
_PUT_AGAIN = (
    " ON CONFLICT (key) DO UPDATE SET revision = excluded.revision,"
    " time = excluded.time, value = excluded.value"
)
_MOVE_HEAD = (
    "INSERT INTO metastorage_head (id, revision, time, forgotten) VALUES (1, ?, ?, 0)"
    " ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, time = excluded.time"
)
_CONDITIONS_AT_ONCE = 100
_ALL_HOLD = " AND "
_CHANGED = (
    "SELECT revision, revision > ? AND (forgotten > ?"
    " OR EXISTS (SELECT 1 FROM metastorage{by_revision}"
    " WHERE revision > ? AND key >= ? AND key < ?)"
    " OR EXISTS (SELECT 1 FROM metastorage_deletion WHERE revision > ? AND key >= ? AND key < ?))"
    " FROM metastorage_head WHERE id = 1"
)


class SqlMetastorage(Metastorage):
    """See `Metastorage`. `close` closes the database only if ``owns_database`` is set."""

    max_operations = 100_000

    def __init__(
        self,
        database: Database,
        clock: HybridClock,
        *,
        deletions_kept: int = DELETIONS_KEPT,
        owns_database: bool = False,
    ) -> None:
        super().__init__()
        self.revision_is_cheap = database.mark_is_proof
        self._clock = clock
        self._database = database
        hint = database.index_hint("metastorage_by_revision")
        self._changed = _CHANGED.format(by_revision=hint)
        self._owns_database = owns_database
        self._deletions_kept = deletions_kept
        self._remembered = (-1, 0)
        """A mark, and the revision that was read after it. Used only if `mark_is_proof`."""
        database.ensure_schema(tables.PART)

    def get(self, key: str) -> KeyValue | None:
        self._refuse_when_closed()
        rows = self._database.rows(_GET, (check_key(key),))
        return _key_value(key, rows[0]) if rows else None

    def get_on(self, connection: Connection, key: str) -> KeyValue | None:
        """`get` in a transaction that the caller has open on the same database."""
        row = first_row(connection, *self.get_query(key))
        return None if row is None else _key_value(key, row)

    def get_query(self, key: str) -> Query:
        return _GET, (check_key(key),)

    def range(self, start: str, end: str, *, limit: int | None = None) -> list[KeyValue]:
        self._refuse_when_closed()
        check_limit(limit)
        bounds: tuple[Parameter, ...] = (check_bound(start), check_bound(end))
        if limit is None:
            rows = self._database.rows(_RANGE, bounds)
        else:
            rows = self._database.rows(_RANGE + " LIMIT ?", (*bounds, min(limit, _LARGEST_NUMBER)))
        return [KeyValue(row[0], row[1], row[2], Timestamp(row[3])) for row in rows]

    def invoke(
        self,
        conditions: Sequence[Condition],
        on_success: Sequence[Operation],
        on_failure: Sequence[Operation] = (),
    ) -> Outcome:
        self._refuse_when_closed()
        self._count("invokes")
        check_invoke(conditions, on_success, on_failure, at_most=self.max_operations)
        about_leases = any(isinstance(condition, LeaseHeld) for condition in conditions)
        queries = [] if about_leases else _condition_queries(conditions)
        with self._database.write(first=self._first(queries, on_success)) as connection:
            now = (
                take_append_time(self._database, connection, self._clock) if about_leases else None
            )
            head, succeeded = _head_and_answers(
                connection, queries or _condition_queries(conditions, now)
            )
            operations = on_success if succeeded else on_failure
            if operations:
                now = now or take_append_time(self._database, connection, self._clock)
                following = Head(head.revision + 1, now)
                if self._apply(connection, operations, following):
                    head = following
        if not succeeded:
            self._count("refused")
        return Outcome(succeeded, head.revision, head.time)

    def check(self) -> Head:
        self._refuse_when_closed()
        first = _condition_queries(())
        revision, now = look_in_order(self._database, self._clock, self.revision_on, first=first)
        return Head(revision, now)

    def look(self) -> Head:
        self._refuse_when_closed()
        first = _condition_queries(())
        revision, now = look_beside_rows(self._database, self._clock, self.revision_on, first=first)
        return Head(revision, now)

    def revision(self) -> int:
        self._refuse_when_closed()
        mark = self._database.mark() if self.revision_is_cheap else -1
        remembered_mark, revision = self._remembered
        if self.revision_is_cheap and mark == remembered_mark:
            return revision
        self._count("revision_reads")
        revision = self._database.rows(f"SELECT {_HEAD}")[0][0] or 0
        self._remembered = (mark, revision)
        return revision

    def revision_on(self, connection: Connection) -> int:
        """`revision` in a transaction that the caller has open on the same database."""
        return _head_and_answers(connection, _condition_queries(()))[0].revision

    def wait_for_change(self, prefix: str, after_revision: int, *, timeout: float) -> bool:
        self._refuse_when_closed()
        end, after = prefix_end(prefix), min(max(0, after_revision), _LARGEST_NUMBER)

        def look(mark: int) -> bool:
            nonlocal after
            revision, changed = self._look(mark, prefix, end, after)
            if not changed:
                # Revisions that were examined once need not be examined again.
                after = max(after, revision)
            return changed

        return wait_until(
            self._database, look, timeout=timeout, refuse_when_closed=self._refuse_when_closed
        )

    def acquire_lease(self, name: str, holder: str, *, ttl_ms: int) -> Lease | None:
        self._refuse_when_closed()
        check_ttl(ttl_ms)
        check_key(holder)
        present = self._lease(name)
        if present is not None and present.holder != holder:
            return None
        with self._database.write() as connection:
            now = take_time(connection, self._clock, bounded=False)
            return tables.grant_lease(connection, name, holder, now, ttl_ms)

    def renew_lease(self, lease: Lease, *, ttl_ms: int) -> Lease:
        self._refuse_when_closed()
        check_ttl(ttl_ms)
        check_key(lease.name)
        with self._database.write() as connection:
            now = take_time(connection, self._clock, bounded=False)
            present = tables.live_lease(connection, lease.name, now)
            renewed = None
            if present is not None and (present.token, present.holder) == (
                lease.token,
                lease.holder,
            ):
                renewed = tables.grant_lease(connection, lease.name, lease.holder, now, ttl_ms)
        if renewed is None:
            raise lease_lost(lease, to=present)
        return renewed

    def release_lease(self, lease: Lease) -> None:
        self._refuse_when_closed()
        check_key(lease.name)
        with self._database.write() as connection:
            present = tables.lease_row(connection, lease.name)
            if present is not None and present.holder == lease.holder:
                tables.end_lease(connection, lease)

    def lease(self, name: str) -> Lease | None:
        self._refuse_when_closed()
        return self._lease(name)

    def close(self) -> None:
        self._closed = True
        self._database.wake()
        if self._owns_database:
            self._database.close()

    def _look(self, mark: int, start: str, end: str, after: int) -> tuple[int, bool]:
        """The revision, and whether a key of the range changed after ``after`` or may have changed.

        ``mark`` was taken before. A revision that was read under the same mark is not read again.
        """
        remembered_mark, revision = self._remembered
        if self.revision_is_cheap and mark == remembered_mark and revision <= after:
            return revision, False
        parameters = (after, after, after, start, end, after, start, end)
        rows = self._database.rows(self._changed, parameters)
        return (rows[0][0], bool(rows[0][1])) if rows else (0, False)

    def _lease(self, name: str) -> Lease | None:
        check_key(name)
        with self._database.read() as connection:
            lease = tables.lease_row(connection, name)
            now = present_time(connection, self._clock)
        if lease is None or lease.expires > now:
            return lease
        with self._database.write() as connection:
            return tables.live_lease(
                connection, name, take_time(connection, self._clock, bounded=False)
            )

    def _apply(self, connection: Connection, operations: Sequence[Operation], head: Head) -> bool:
        """Do the operations and move the head. Returns False if they changed nothing."""
        deleted = 0
        puts: list[tuple[Parameter, ...]] = []
        for operation in operations:  # first, since a change would drop what was read ahead
            if isinstance(operation, Beside):
                operation.write(connection, head.time)
        for operation in operations:  # in any order, since no two of them touch one key
            match operation:
                case Put() | PutTimed():
                    put = operation if isinstance(operation, Put) else operation.at(head.time)
                    puts.append((put.key, head.revision, head.time, put.value))
                case Delete():
                    # No key contains a character below the space: the range has only this key.
                    deleted += _delete(connection, operation.key, operation.key + "\1", head)
                case DeleteRange():
                    deleted += _delete(connection, operation.start, operation.end, head)
        if not puts and not deleted:
            return False
        for text, values in insert_queries(_PUT, puts, _PUT_AGAIN):
            change_each(connection, text, [values])
        change_each(connection, _MOVE_HEAD, [(head.revision, head.time)])
        if deleted:
            self._forget_old_deletions(connection)
        return True

    def _first(self, queries: Sequence[Query], on_success: Sequence[Operation]) -> Sequence[Query]:
        """The queries that an invoke begins with; none if a later one depends on their answers."""
        if len(queries) != 1:
            return ()
        if not on_success:
            return queries
        beside = (o.first_queries for o in on_success if isinstance(o, Beside))
        taking = append_time_queries(self._database, self._clock)
        return *queries, *taking, *chain.from_iterable(beside)

    def _forget_old_deletions(self, connection: Connection) -> None:
        oldest = value(
            connection,
            "SELECT revision FROM metastorage_deletion ORDER BY revision DESC LIMIT 1 OFFSET ?",
            (self._deletions_kept,),
        )
        if oldest is not None:
            run(connection, "DELETE FROM metastorage_deletion WHERE revision <= ?", (oldest,))
            run(connection, "UPDATE metastorage_head SET forgotten = ?", (oldest,))


def _key_value(key: str, row: Row) -> KeyValue:
    return KeyValue(key, row[0], row[1], Timestamp(row[2]))


def _condition_queries(
    conditions: Sequence[Condition], now: Timestamp | None = None
) -> list[Query]:
    """The queries of `_head_and_answers`; ``now`` is the time for conditions about leases."""
    queries: list[Query] = []
    for start in range(0, max(len(conditions), 1), _CONDITIONS_AT_ONCE):
        chunk = [_condition_query(c, now) for c in conditions[start : start + _CONDITIONS_AT_ONCE]]
        holds = _ALL_HOLD.join(text for text, _ in chunk) or "1 = 1"
        values = tuple(value for _, values in chunk for value in values)
        queries.append((f"SELECT {_HEAD}, {holds}", values))
    return queries


def _head_and_answers(connection: Connection, queries: Sequence[Query]) -> tuple[Head, bool]:
    """The head, and whether all conditions of ``queries`` hold (see `_condition_queries`)."""
    rows = [row for (row,) in run_all(connection, *queries)]
    revision, time, _ = rows[0]
    return Head(revision or 0, Timestamp(time or 0)), all(row[2] for row in rows)


def _condition_query(condition: Condition, now: Timestamp | None) -> Query:
    """The SQL expression that is true if the condition holds, and its parameters."""
    match condition:
        case Absent():
            return "NOT EXISTS (SELECT 1 FROM metastorage WHERE key = ?)", (condition.key,)
        case Exists():
            return "EXISTS (SELECT 1 FROM metastorage WHERE key = ?)", (condition.key,)
        case TimeIs():
            text = "EXISTS (SELECT 1 FROM metastorage WHERE key = ? AND time = ?)"
            return text, (condition.key, _storable(condition.time))
        case ValueIs():
            text = "EXISTS (SELECT 1 FROM metastorage WHERE key = ? AND value = ?)"
            return text, (condition.key, condition.value)
        case LeaseHeld():
            text = (
                "EXISTS (SELECT 1 FROM metastorage_lease"
                " WHERE name = ? AND holder IS NOT NULL AND token = ? AND expires > ?)"
            )
            return text, (condition.name, _storable(condition.token), now)


def _storable(number: int) -> int:
    """``number``, or -1, which no row has, if a column cannot hold it."""
    return number if 0 <= number <= _LARGEST_NUMBER else -1


def _delete(connection: Connection, start: str, end: str, head: Head) -> int:
    """Delete a range and record each deleted key. Returns the number of keys."""
    run(
        connection,
        "INSERT INTO metastorage_deletion (revision, key)"
        " SELECT ?, key FROM metastorage WHERE key >= ? AND key < ?",
        (head.revision, start, end),
    )
    return change(connection, "DELETE FROM metastorage WHERE key >= ? AND key < ?", (start, end))
