"""The update log as a stash: rows of (collection, key, value, time, diff) in a SQL database.

An append adds the rows of its updates and moves ``upper``, in one write transaction. In that
transaction, under the database's write lock, it compares the fence token and ``upper`` with the one
row of ``stash``. So a writer that was replaced, or that lost a race, writes nothing.

A compaction moves ``since`` and deletes the rows that this makes redundant: the heads of all
versions up to it, and each pair of rows of an object that cancel out. The remaining rows stay
unchanged, with the version and the time of the object's last change. So a compaction writes in
proportion to what changed. It reads before it takes the write lock. This is safe because only a
compaction changes rows of versions below ``upper``, and a compaction moves ``since``, which is
compared under the lock. A compaction of many versions moves ``since`` in several steps, so that
others write in between.

`strandline.durable.stash_tables` describes the tables and how damage is detected. Each append, each
compaction and each pruning is one SQL transaction, so a crash leaves all of it or nothing.

All collections share one since and one upper. Rejected: a pair for each collection, as in the
stash that this one is modelled on. There, a collection could be sealed separately. Here, a commit
seals all of them, so each commit would write the same two numbers into twenty rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp
from strandline.durable import stash_tables as tables
from strandline.durable.collections import APPEND_ONLY, AUDIT_EVENT
from strandline.durable.log import (
    TRIMMED_AT_ONCE,
    Checked,
    Frontier,
    LogAppend,
    Scanned,
    UpdateLog,
    refuse_absent,
    refuse_lasting,
    refuse_other_token,
    refuse_unreadable,
)
from strandline.durable.rows import (
    REMEDY,
    Row,
    Unordered,
    UpdateHead,
    appended_key,
    consolidated,
    head_key,
    snapshot_of_rows,
    updates_between,
    updates_of,
)
from strandline.durable.stash_tables import Numbered, StashState
from strandline.durable.update import AuditEvent, CatalogSnapshot, Update
from strandline.errors import CorruptData, Stopping, Unavailable
from strandline.fencing import FenceToken
from strandline.sql import (
    Database,
    Parameter,
    Query,
    append_time_queries,
    change_each,
    look_beside_rows,
    look_in_order,
    run,
    take_append_time,
    value,
    wait_until,
)
from strandline.sql import Row as SqlRow
from strandline.wire.registry import decode, decode_up_to
from strandline.work import keeping_garbage

UPPER_QUERY: Query = ("SELECT upper FROM stash WHERE id = 1", ())
SCANNED_AT_ONCE = 1000
MAX_UPDATES = 50_000
_HEAD = 0
_LARGEST_NUMBER = (1 << 63) - 1
_VERSIONS = f"SELECT {tables.ROW_PARTS} FROM stash_row WHERE version >= ? AND version < ?"
_OBJECTS = f"SELECT {tables.ROW_PARTS} FROM stash_row WHERE version <= ?"
_CHANGED = (
    f"SELECT {tables.ROW_PARTS} FROM stash_row WHERE version <= ? AND (version > ?"
    " OR (collection, key) IN (SELECT collection, key FROM stash_row"
    " WHERE version > ? AND version <= ? AND diff < 0))"
)
_DELETE_HEADS = "DELETE FROM stash_row WHERE number = ? AND version > ? AND version <= ?"
_DELETE_RANGE = (
    "DELETE FROM stash_row WHERE (version, number) >= (?, ?) AND (version, number) <= (?, ?)"
)
_APPENDED = (
    "SELECT version, number, time, checksum, key, value FROM stash_appended"
    " WHERE collection = ? AND (version > ? OR (version = ? AND number >= ?)) AND version < ?"
    " ORDER BY version, number LIMIT ?"
)


def upper_within(connection: Connection) -> int:
    """The log's upper, read in a transaction that the caller opened on the log's database."""
    return int(value(connection, *UPPER_QUERY) or tables.EMPTY.upper)


class StashLog(UpdateLog):
    """See the module. The caller owns the database and closes it."""

    max_updates = MAX_UPDATES

    def __init__(self, database: Database, clock: HybridClock) -> None:
        self._database = database
        self._clock = clock
        self._closed = False
        self._kinds = tables.Kinds(())  # as last committed or read
        self._remembered: tuple[int, Frontier] | None = None
        """A mark, and the frontier that was read after it. Used only if `mark_is_proof`."""
        self.frontier_is_cheap = database.mark_is_proof
        database.ensure_schema(tables.PART)

    def frontier(self) -> Frontier:
        self._refuse_when_closed()
        return self._frontier_at(self._database.mark() if self.frontier_is_cheap else -1)

    def _frontier_at(self, mark: int) -> Frontier:
        """The frontier, no older than ``mark``, which was just taken."""
        remembered = self._remembered
        if self.frontier_is_cheap and remembered is not None and remembered[0] == mark:
            return remembered[1]
        rows = self._database.rows(*tables.STATE_QUERY)
        state, kinds = tables.state_in(rows[0] if rows else None), self._kinds
        if kinds.sum == state.collections:
            frontier = _frontier_in(state, kinds)
        else:
            with self._database.read() as connection:
                frontier = self._frontier_on(connection)
        self._remembered = mark, frontier
        return frontier

    def _frontier_on(self, connection: Connection) -> Frontier:
        state = tables.state_on(connection)
        return _frontier_in(state, self._kinds_on(connection, state))

    def check(self) -> Checked:
        self._refuse_when_closed()
        first = (tables.STATE_QUERY,)
        return Checked(*look_in_order(self._database, self._clock, self._frontier_on, first=first))

    def look(self) -> Checked:
        self._refuse_when_closed()
        first = (tables.STATE_QUERY,)
        looked = look_beside_rows(self._database, self._clock, self._frontier_on, first=first)
        return Checked(*looked)

    def token(self) -> FenceToken | None:
        self._refuse_when_closed()
        rows = self._database.rows(*tables.STATE_QUERY)
        return tables.state_in(rows[0] if rows else None).token

    # -- appending

    def _append(self, append: LogAppend) -> tuple[Update, ...]:
        self._refuse_when_closed()
        unordered = [Unordered(update) for update in append.updates]
        companion = append.companion
        first = [tables.STATE_QUERY, *append_time_queries(self._database, self._clock)]
        try:
            with self._database.write(
                first=(*first, *(companion.first_queries if companion else ()))
            ) as connection:
                state = tables.state_on(connection)
                is_next = state.upper == append.expected_upper and state.token == append.token
                if is_next:
                    now = take_append_time(self._database, connection, self._clock)
                    append.check_times(earliest=state.time, latest=now)
                    ordered = append.at(now)
                    if companion is not None:
                        companion.write(connection, ordered)
                    kinds = self._write(connection, state, unordered, ordered)
                    tables.put_state(
                        connection,
                        replace(
                            state,
                            upper=append.next_upper,
                            time=ordered[-1].time,
                            token=append.new_token or append.token,
                            collections=kinds.sum,
                        ),
                    )
        except (Unavailable, OSError) as error:
            return self._settle(append, error)
        if not is_next:
            return self._refused(append)
        self._kinds = kinds
        return ordered

    def _write(
        self,
        connection: Connection,
        state: StashState,
        unordered: Sequence[Unordered],
        ordered: Sequence[Update],
    ) -> tables.Kinds:
        """Add the rows of updates that have their times. Returns the collections afterwards."""
        versions = [rows.at(update.time) for rows, update in zip(unordered, ordered, strict=True)]
        kinds = self._kinds_on(connection, state)
        missing = {row.kind for rows in versions for row in rows} - kinds.numbers.keys()
        if missing:
            kinds = tables.with_kinds(connection, kinds, missing)
        numbers = kinds.numbers
        for rows in versions:
            tables.put_rows(connection, [r for r in rows if r.kind not in APPEND_ONLY], numbers)
            tables.put_appended(connection, [r for r in rows if r.kind in APPEND_ONLY], numbers)
        return kinds

    def time_of(self, update: Update) -> Timestamp | None:
        # If the version was trimmed since, its audit event still has the id and the time.
        with self._database.read() as connection:
            kinds = self._kinds_on(connection, tables.state_on(connection))
            heads = run(
                connection,
                f"SELECT {tables.ROW_PARTS} FROM stash_row WHERE version = ? AND number = ?",
                (update.version, _HEAD),
            )
            if heads:
                row = tables.row_in(heads[0], kinds.names).row
                is_same_update = decode_up_to(row.value, UpdateHead, "id")["id"] == update.id
                return row.time if is_same_update else None
            events = _appended(
                connection, kinds, AUDIT_EVENT, (update.version, 0), update.version + 1, limit=1
            )
        if events and decode(events[0].value, AuditEvent).id == update.id:
            return events[0].time
        return None

    # -- reading

    def first_snapshot(self) -> CatalogSnapshot:
        with self._database.read() as connection:
            state = tables.state_on(connection)
            if not state.since:
                return CatalogSnapshot(0, tables.EMPTY.since_time, ())
            parts = run(connection, _OBJECTS, (state.since,))
            kinds = self._kinds_on(connection, state)
        with keeping_garbage:
            return _snapshot_in(parts, state, kinds)

    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        if start >= end:
            return ()
        with self._database.read() as connection:
            state = tables.state_on(connection)
            refuse_unreadable(start, end, since=state.since, upper=state.upper)
            parts = run(connection, _VERSIONS, (start, end))
            kinds = self._kinds_on(connection, state)
        rows = (tables.row_in(row, kinds.names).row for row in parts)
        return updates_between(rows, start, end)

    def scan(self, kind: str, start: int, end: int) -> Iterator[Scanned]:
        position, end = (max(start, 0), 0), min(end, _LARGEST_NUMBER)
        while position[0] < end:
            with self._database.read() as connection:
                kinds = self._kinds_on(connection, tables.state_on(connection))
                rows = _appended(connection, kinds, kind, position, end, limit=SCANNED_AT_ONCE)
            yield from (Scanned(row.version, row.time, row.value) for row in rows)
            if len(rows) < SCANNED_AT_ONCE:
                return
            last = rows[-1]
            position = last.version, int.from_bytes(last.key[len(head_key(0)) :], "big") + 1

    def _kinds_on(self, connection: Connection, state: StashState) -> tables.Kinds:
        """The collections of ``state``, which the same transaction has read."""
        kinds = self._kinds
        if kinds.sum != state.collections:
            self._kinds = kinds = tables.kinds_on(connection, state)
        return kinds

    def listen(self, after: Frontier, *, timeout: float) -> bool:
        self._refuse_when_closed()
        return wait_until(
            self._database,
            lambda mark: self._frontier_at(mark) != after,
            timeout=timeout,
            refuse_when_closed=self._refuse_when_closed,
        )

    # -- trimming

    def prune(self, kind: str, up_to: int, token: FenceToken) -> bool:
        self._refuse_when_closed()
        refuse_lasting(kind)
        with self._database.write(first=[tables.STATE_QUERY]) as connection:
            state = tables.state_on(connection)
            refuse_other_token(state.token, token)
            kinds = self._kinds_on(connection, state)
            frontier = _frontier_in(state, kinds)
            if up_to <= frontier.pruned_up_to(kind):
                return False
            refuse_absent(up_to, frontier)
            if kind not in kinds.numbers:
                kinds = tables.with_kinds(connection, kinds, [kind])
            kinds = tables.with_pruned(connection, kinds, kind, up_to)
            tables.put_state(connection, replace(state, collections=kinds.sum))
        return True

    def compact(self, up_to: int, token: FenceToken) -> bool:
        self._refuse_when_closed()
        is_done = False
        while True:
            with self._database.read() as connection:
                state = tables.state_on(connection)
                refuse_other_token(state.token, token)
                if up_to <= state.since:
                    return is_done
                kinds = self._kinds_on(connection, state)
                refuse_absent(up_to, _frontier_in(state, kinds))
                to = min(up_to, state.since + TRIMMED_AT_ONCE)
                parts = run(connection, _CHANGED, (to, state.since, state.since, to))
            numbered = [tables.row_in(row, kinds.names) for row in parts]
            # This raises, before anything is deleted, if a version to consolidate is missing.
            removed, compacted = _consolidate(state, to, numbered)
            ranges = _ranges(numbered, removed, above=state.since)
            with self._database.write(first=[tables.STATE_QUERY]) as connection:
                current = tables.state_on(connection)
                refuse_other_token(current.token, token)
                if current.since != state.since:
                    continue
                change_each(connection, _DELETE_HEADS, [(_HEAD, state.since, to)])
                change_each(connection, _DELETE_RANGE, ranges)
                tables.put_state(
                    connection,
                    replace(
                        current,
                        since=to,
                        since_time=compacted.since_time,
                        objects=compacted.objects,
                        sum=compacted.sum,
                    ),
                )
            is_done = True

    def close(self) -> None:
        """Wake all threads that wait in `listen`; later calls raise `Stopping`."""
        self._closed = True
        self._database.wake()

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Stopping("the store is closed in this process; nothing was read or written")


def _appended(
    connection: Connection,
    kinds: tables.Kinds,
    kind: str,
    position: tuple[int, int],
    end: int,
    *,
    limit: int,
) -> list[Row]:
    """Rows of an append-only kind, from (version, number) ``position`` to below version ``end``."""
    collection = kinds.numbers.get(kind)
    if collection is None:
        return []
    version, number = position
    results = run(connection, _APPENDED, (collection, version, version, number, end, limit))
    rows = [tables.appended_in(parts, collection, kinds.names) for parts in results]
    for parts, row in zip(results, rows, strict=True):
        if row.key != appended_key(row.version, parts[1]):
            raise CorruptData(
                f"{kind} {parts[1]} of version {row.version} is stored at the wrong place; {REMEDY}"
            )
    return rows


def _frontier_in(state: StashState, kinds: tables.Kinds) -> Frontier:
    return Frontier(state.since, state.upper, kinds.pruned)


def _weight(rows: Sequence[Numbered]) -> tuple[int, int]:
    return len(rows), sum(row.checksum for row in rows)


def _consolidate(
    state: StashState, up_to: int, rows: Sequence[Numbered]
) -> tuple[list[Numbered], StashState]:
    """The rows that a compaction up to ``up_to`` deletes, and the state after it.

    ``rows`` are the rows of the versions after ``since``, and all rows of each object of which one
    was removed. Raises `CorruptData` if a version is missing or the rows do not add up.
    """
    of_versions = updates_of(
        numbered.row for numbered in rows if numbered.row.version > state.since
    )
    versions = [update.version for update in of_versions]
    if versions != list(range(state.since + 1, up_to + 1)):
        missing = min(set(range(state.since + 1, up_to + 1)) - set(versions))
        raise CorruptData(f"version {missing} is missing in the log; nothing was trimmed: {REMEDY}")
    remaining_rows: dict[Row, int] = {}
    for row in consolidated(numbered.row for numbered in rows):
        remaining_rows[row] = remaining_rows.get(row, 0) + 1
    removed, added = [], []
    for numbered in rows:
        if remaining_rows.get(numbered.row, 0):
            remaining_rows[numbered.row] -= 1
            if numbered.row.version > state.since:
                added.append(numbered)
        else:
            removed.append(numbered)
    removed_from_snapshot = [
        numbered for numbered in removed if numbered.row.version <= state.since
    ]
    added_weight, removed_weight = _weight(added), _weight(removed_from_snapshot)
    return removed, replace(
        state,
        since_time=of_versions[-1].time,
        objects=state.objects + added_weight[0] - removed_weight[0],
        sum=state.sum + added_weight[1] - removed_weight[1],
    )


def _ranges(
    rows: Sequence[Numbered], removed: Sequence[Numbered], *, above: int
) -> list[tuple[Parameter, ...]]:
    """Ranges of (version, number) that contain the ``removed`` objects and none that stays.

    ``rows`` are all rows of the versions above ``above``, and some of earlier ones. Heads may be in
    a range, since they are removed too.
    """
    removed_positions = {(numbered.row.version, numbered.number) for numbered in removed}
    positions = sorted((numbered.row.version, numbered.number) for numbered in rows)
    objects = [position for position in positions if position[1] != _HEAD]
    ranges: list[tuple[Parameter, ...]] = []
    for (is_removed, _), in_range in groupby(
        objects,
        lambda position: (position in removed_positions, None if position[0] > above else position),
    ):
        if is_removed:
            of_range = list(in_range)
            ranges.append((*of_range[0], *of_range[-1]))
    return ranges


def _snapshot_in(
    parts: Sequence[SqlRow], state: StashState, kinds: tables.Kinds
) -> CatalogSnapshot:
    """The snapshot at the since of ``state``, which the same transaction has read."""
    numbered = [tables.row_in(row, kinds.names) for row in parts]
    if _weight(numbered) != (state.objects, state.sum):
        raise CorruptData(
            f"the snapshot of version {state.since} has {len(numbered)} rows in the stash, which "
            f"are not the {state.objects} rows that were written; {REMEDY}"
        )
    rows = consolidated(numbered_row.row for numbered_row in numbered)
    return snapshot_of_rows(state.since, state.since_time, rows)
