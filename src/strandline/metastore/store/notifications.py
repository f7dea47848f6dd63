"""The notification log: everything that happened to catalog and rows, in one order.

Caches, change feeds and Hive clients read it. The SQL transaction that makes a change durable also
logs its event, and takes the event's number from one row that stays locked until the commit. So
numbers grow in the order of commits and have no gap, each event describes a change that is durable,
and a reader that has read up to n has missed nothing up to n.

DML is logged under four verbs. `WRITE`: a transaction staged rows of one table; they are stored,
but not committed. `INSERT`: the same, for rows that record an insert of which a client reported the
files. `COMMIT` and `ABORT`: the transaction ended, with all its (table, write id) pairs at once.
Transactions that wrote nothing log no event. DDL events keep the verbs of the catalog's update log,
and `projection` logs them. Events are stored as our own records; the JSON that Hive clients expect
is rendered when a client asks for it.

The time of an event is that of the catalog version, the commit or the staging that it describes.
The times of commits grow with their numbers. Times as a whole do not: a version may be projected
after a later staging.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp
from strandline.durable.update import ARGUMENTS, Arguments, Change
from strandline.errors import CorruptData
from strandline.metastore.store import upgrades
from strandline.sql import Counter, Database, Parameter, Query, change_each, first_row, take_time
from strandline.wire import decode, nested_list, register
from strandline.wire.codecs import TEXT, UINT, pair, sequence
from strandline.wire.registry import compare, is_empty, seal

WRITE = "write"
INSERT = "insert"
STAGED = (WRITE, INSERT)
COMMIT = "commit_txn"
ABORT = "abort_txn"
SET_LOCATION = "set_location"

_COLUMNS = "event_id, time, verb, catalog_version, txn_id, table_id, write_id, body"
_LOG = f"INSERT INTO notification_log ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_READ = f"SELECT {_COLUMNS} FROM notification_log WHERE event_id > ? ORDER BY event_id LIMIT ?"
POSITION = "SELECT event_id, projected_version, projected_entries FROM notification_sequence"
_NEXT = (
    "SELECT position.event_id, projected_version, projected_entries, event.*"
    " FROM notification_sequence AS position LEFT JOIN"
    " (SELECT event_id, time, verb, catalog_version, txn_id, table_id, write_id,"
    f" CASE WHEN event_id > ? AND verb IN {(*STAGED, COMMIT, ABORT)} THEN body END AS body"
    " FROM notification_log WHERE event_id >= ? ORDER BY event_id LIMIT ?) AS event ON 1 = 1"
    " ORDER BY event.event_id"
)
_ANY_EVENT = "SELECT 1 FROM notification_log LIMIT 1"
NUMBERS = Counter(
    "notification_sequence", "event_id", zeros=("projected_version", "projected_entries")
)
"""The counter of event ids."""
_MOVE = (
    "INSERT INTO notification_sequence (id, event_id, projected_version, projected_entries)"
    " VALUES (1, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET event_id = excluded.event_id,"
    " projected_version = excluded.projected_version,"
    " projected_entries = excluded.projected_entries WHERE notification_sequence.event_id = ?"
    " AND notification_sequence.projected_version = ?"
    " AND notification_sequence.projected_entries = ?"
)


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """One entry of a catalog version: its author, arguments, and records before and after."""

    author: str
    arguments: Arguments
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteEvent:
    """``rows`` rows were added, with ids from ``first_row_id`` on; the rows ``removed`` removed."""

    first_row_id: int = 0
    rows: int = 0
    removed: tuple[int, ...] = ()

    @property
    def added(self) -> range:
        return range(self.first_row_id, self.first_row_id + self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent:
    """A transaction ended; ``writes`` are its (table id, write id) pairs, by table id."""

    writes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to be logged. If ``time`` is None, it gets the time of the logging."""

    verb: str
    body: bytes = b""
    time: Timestamp | None = None
    catalog_version: int | None = None
    txn_id: int | None = None
    table_id: int | None = None
    write_id: int | None = None


class Notification(NamedTuple):
    """An event of the log. The verb decides which of the optional fields are set.

    A tuple, since thousands are read at once.
    """

    event_id: int
    time: Timestamp
    verb: str
    catalog_version: int | None
    txn_id: int | None
    table_id: int | None
    write_id: int | None
    body: bytes

    def write(self) -> WriteEvent:
        """The body of a `WRITE` or `INSERT`. Raises `CorruptData` or `IncompatibleFormat`."""
        return decode(self.body, WriteEvent, context=self._context())

    def end(self) -> EndEvent:
        """The body of a `COMMIT` or `ABORT`. Raises `CorruptData` or `IncompatibleFormat`."""
        return decode(self.body, EndEvent, context=self._context())

    def ddl(self) -> DdlEvent:
        """The body of an event of the catalog. Raises `CorruptData` or `IncompatibleFormat`."""
        return decode(self.body, DdlEvent, context=self._context())

    @property
    def has_body(self) -> bool:
        return not is_empty(self.body)

    def compare(self) -> None:
        """Raise `CorruptData` unless the body has the checksum of itself and of the columns."""
        compare(self.body, self._context())

    def _context(self) -> bytes:
        ids = self.catalog_version, self.txn_id, self.table_id, self.write_id
        return event_context(self.event_id, self.time, self.verb, ids)


def event_context(event_id: int, time: Timestamp, verb: str, ids: tuple[int | None, ...]) -> bytes:
    """The columns beside the body of an event, which its checksum covers."""
    try:
        numbers = _NUMBERS.pack(
            event_id, time, *(-1 if number is None else number for number in ids)
        )
        return numbers + verb.encode()
    except (struct.error, AttributeError):
        raise CorruptData(
            f"event {event_id} has columns of wrong types; restore the store from a backup"
        ) from None


_NUMBERS = struct.Struct("<6q")


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The log's last event, and how far the catalog's log is projected into it."""

    event_id: int = 0
    projected_version: int = 0
    projected_entries: int = 0


class NotificationLog:
    """The log of one store. Safe for threads, and for several processes on one store.

    Raises `CorruptData` if the row of its position is missing, but not its events.
    """

    def __init__(self, database: Database, clock: HybridClock) -> None:
        database.ensure_schema(upgrades.PART)
        # A new store has neither. No event is read here otherwise: a damaged one stops no node.
        if not database.rows(POSITION) and database.rows(_ANY_EVENT):
            raise CorruptData(
                "the notification log has events, but the row of notification_sequence that numbers"
                " them is missing, as after a partial restore; restore the store from a backup"
            )
        self._database = database
        self._clock = clock

    def append(
        self, connection: Connection, events: Sequence[NewEvent], *, last: int | None = None
    ) -> None:
        """Log events in the caller's write transaction.

        ``last`` is the id of the last event, if the caller took the ids from `NUMBERS` already.
        """
        if not events:
            return
        now = None
        if any(event.time is None for event in events):
            now = take_time(connection, self._clock)
        if last is None:
            (last,) = Counter.take(connection, (NUMBERS, len(events)))
        first = last - len(events) + 1
        change_each(
            connection,
            _LOG,
            [_columns(number, event, now) for number, event in enumerate(events, first)],
        )

    def read(self, after: int, *, limit: int) -> list[Notification]:
        """Return at most ``limit`` events after the event ``after``, in order.

        If the log was cleaned beyond ``after``, the first event is not ``after`` + 1.
        """
        return list(map(Notification._make, self._database.rows(_READ, (after, limit))))

    def read_next(self, applied: int, *, limit: int) -> tuple[LogPosition, list[Notification]]:
        """Return the log's position, the event ``applied`` and the next ones, from one snapshot.

        There are at most ``limit`` next ones. DDL events come without their bodies, which may take
        megabytes: all changes of a version. So does the event ``applied``.
        """
        rows = self._database.rows(_NEXT, (applied, applied, limit + 1))
        if not rows:
            return LogPosition(), []
        events = [
            Notification._make((*row[3:10], row[10] or b"")) for row in rows if row[3] is not None
        ]
        return LogPosition(*rows[0][:3]), events

    def head(self) -> int:
        """The id of the last event, as of now; 0 if there is none."""
        return self.position().event_id

    def position_on(self, connection: Connection) -> LogPosition:
        """The log's position, as the caller's transaction sees it."""
        row = first_row(connection, POSITION)
        return LogPosition() if row is None else LogPosition(*row)

    def move_projection(
        self,
        connection: Connection,
        before: LogPosition,
        *,
        version: int,
        entries: int,
        events: Sequence[NewEvent] = (),
        also: Sequence[Query] = (),
    ) -> LogPosition:
        """Log ``events`` and move the projection to ``version`` and ``entries``.

        Runs in the caller's write transaction, which has read ``before``, so that no other writer
        can move it meanwhile. Returns the new position. The events must have times. The statements
        ``also`` are run too. Waits for no answer to any of the statements.
        """
        after = LogPosition(before.event_id + len(events), version, entries)
        position = after.event_id, version, entries
        old_position = before.event_id, before.projected_version, before.projected_entries
        numbered = enumerate(events, before.event_id + 1)
        change_each(connection, _LOG, [_columns(number, event, None) for number, event in numbered])
        change_each(connection, _MOVE, [position + old_position])
        for text, queries in groupby(also, key=itemgetter(0)):
            change_each(connection, text, [parameters for _, parameters in queries])
        return after

    def position(self) -> LogPosition:
        rows = self._database.rows(POSITION)
        return LogPosition(*rows[0]) if rows else LogPosition()

    def mark(self) -> int:
        return self._database.mark()

    @property
    def mark_is_proof(self) -> bool:
        return self._database.mark_is_proof

    def wait(self, mark: int, *, timeout: float) -> int:
        """Wait until the mark differs from ``mark``, or ``timeout`` seconds; return the mark."""
        return self._database.wait_for_commit(mark, timeout=timeout)


def _columns(event_id: int, event: NewEvent, now: Timestamp | None) -> tuple[Parameter, ...]:
    """The row of an event, with its body sealed."""
    time = now if event.time is None else event.time
    assert time is not None
    ids = event.catalog_version, event.txn_id, event.table_id, event.write_id
    body = seal(event.body, event_context(event_id, time, event.verb, ids))
    return (event_id, time, event.verb, *ids, body)


register(
    DdlEvent,
    type_id=44,
    version=1,
    since="0.1.0",
    fields=[("author", TEXT), ("arguments", ARGUMENTS), ("changes", nested_list(Change))],
)
register(
    WriteEvent,
    type_id=46,
    version=1,
    since="0.1.0",
    fields=[("first_row_id", UINT), ("rows", UINT), ("removed", sequence(UINT))],
)
register(
    EndEvent,
    type_id=47,
    version=1,
    since="0.1.0",
    fields=[("writes", sequence(pair(UINT, UINT)))],
)
