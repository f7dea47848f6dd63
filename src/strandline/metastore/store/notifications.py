"""The notification log: everything that happened to catalog and rows, in one order.

Caches follow it, change feeds read it, Hive clients ask for it. An event gets its number in the SQL
transaction that makes its cause durable, from one row that stays locked until the commit. So
numbers grow in the order of commits and have no gap, an event tells of something that is there, and
a reader that has read up to n has missed nothing up to n.

DML is logged in three verbs. `WRITE`: a transaction staged rows of one table; they are there, and
committed for nobody. `COMMIT` and `ABORT`: what became of all its (table, write id) pairs at once.
Transactions that wrote nothing leave no event. DDL keeps the verbs of the catalog's update log and
is put here by `projection`. Events are our own records; the JSON that Hive's
clients expect is made when one of them asks.

The time of an event is that of its cause: of the catalog's version, of the commit, of the staging.
The times of commits grow with the numbers; a version may be projected after a staging that came
later, so times as a whole do not.
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
from strandline.metastore.store import tables
from strandline.metastore.store.upgrades import STEPS
from strandline.sql import (
    Counter,
    Database,
    Parameter,
    Query,
    change_each,
    first_row,
    take_time,
)
from strandline.wire import decode, nested_list, register
from strandline.wire.codecs import TEXT, UINT, pair, sequence
from strandline.wire.registry import compare, is_empty, seal

WRITE = "write"
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
    f" CASE WHEN verb IN ('{WRITE}', '{COMMIT}', '{ABORT}') THEN body END AS body"
    " FROM notification_log WHERE event_id > ? ORDER BY event_id LIMIT ?) AS event ON 1 = 1"
    " ORDER BY event.event_id"
)
NUMBERS = Counter(
    "notification_sequence", "event_id", zeros=("projected_version", "projected_entries")
)
"""The ids of events."""
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
    """One entry of a catalog version: who did what, with the records before and after."""

    author: str
    arguments: Arguments
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteEvent:
    """Rows ``first_row_id`` … + ``rows`` − 1 were added; the rows ``removed`` were removed."""

    first_row_id: int = 0
    rows: int = 0
    removed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent:
    """A transaction ended; ``writes`` are its (table id, write id) pairs, by table id."""

    writes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event that is to be logged. ``time`` None: the time of the logging."""

    verb: str
    body: bytes = b""
    time: Timestamp | None = None
    catalog_version: int | None = None
    txn_id: int | None = None
    table_id: int | None = None
    write_id: int | None = None


class Notification(NamedTuple):
    """An event of the log. Which of the optional fields are there depends on the verb.

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
        """The body of a `WRITE`. Raises `CorruptData` or `IncompatibleFormat`."""
        return decode(self.body, WriteEvent, context=self._context())

    def end(self) -> EndEvent:
        """The body of a `COMMIT` or `ABORT`. Raises `CorruptData` or `IncompatibleFormat`."""
        return decode(self.body, EndEvent, context=self._context())

    def ddl(self) -> DdlEvent:
        """The body of an event of the catalog. Raises `CorruptData` or `IncompatibleFormat`."""
        return decode(self.body, DdlEvent, context=self._context())

    @property
    def has_body(self) -> bool:
        """Whether the event says more than its columns do."""
        return not is_empty(self.body)

    def compare(self) -> None:
        """Raise `CorruptData` unless event and body are as they were logged."""
        compare(self.body, self._context())

    def _context(self) -> bytes:
        ids = self.catalog_version, self.txn_id, self.table_id, self.write_id
        return event_context(self.event_id, self.time, self.verb, ids)


def event_context(event_id: int, time: Timestamp, verb: str, ids: tuple[int | None, ...]) -> bytes:
    """What the body of an event is sealed with: the columns beside it."""
    try:
        numbers = _NUMBERS.pack(
            event_id, time, *(-1 if number is None else number for number in ids)
        )
        return numbers + verb.encode()
    except (struct.error, AttributeError):
        raise CorruptData(
            f"event {event_id} has columns of other types than were written; restore the store "
            "from a backup"
        ) from None


_NUMBERS = struct.Struct("<6q")


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where the log stands: its last event, and how much of the catalog's log is in it."""

    event_id: int
    projected_version: int
    projected_entries: int


class NotificationLog:
    """The log of one store. Safe for threads, and for several processes on one store."""

    def __init__(self, database: Database, clock: HybridClock) -> None:
        database.ensure_schema(tables.PART, tables.VERSION, tables.METADATA, steps=STEPS)
        self._database = database
        self._clock = clock

    def append(
        self, connection: Connection, events: Sequence[NewEvent], *, last: int | None = None
    ) -> list[int]:
        """Log events in the caller's write transaction; their ids.

        ``last`` is the one of the last event, where they are taken from `NUMBERS` already.
        """
        if not events:
            return []
        now = None
        if any(event.time is None for event in events):
            now = take_time(connection, self._clock)
        if last is None:
            (last,) = Counter.take(connection, (NUMBERS, len(events)))
        first = last - len(events) + 1
        change_each(
            connection,
            _LOG,
            [_columns(first + number, event, now) for number, event in enumerate(events)],
        )
        return list(range(first, first + len(events)))

    def read(self, after: int, *, limit: int) -> list[Notification]:
        """At most ``limit`` events behind the event ``after``, in order.

        Where the log was cleaned, the first event is not ``after`` + 1.
        """
        return list(map(Notification._make, self._database.rows(_READ, (after, limit))))

    def read_next(self, after: int, *, limit: int) -> tuple[LogPosition, list[Notification]]:
        """Where the log stands, and what `read` gives, at one moment; of DDL without the bodies.

        The body of a DDL event holds all that a version changed, which may be megabytes.
        """
        rows = self._database.rows(_NEXT, (after, limit))
        if not rows:
            return LogPosition(0, 0, 0), []
        events = [
            Notification._make((*row[3:10], row[10] or b"")) for row in rows if row[3] is not None
        ]
        return LogPosition(*rows[0][:3]), events

    def head(self) -> int:
        """The id of the last event, as of now; 0 if there is none."""
        return self.position().event_id

    def head_on(self, connection: Connection) -> int:
        """`head` as the caller's transaction sees it."""
        return self.position_on(connection).event_id

    def position_on(self, connection: Connection) -> LogPosition:
        """Where the log stands, as the caller's transaction sees it."""
        row = first_row(connection, POSITION)
        return LogPosition(0, 0, 0) if row is None else LogPosition(*row)

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
        """Log ``events`` and say that the catalog's log is projected up to there.

        In the caller's write transaction, in which it has read ``before``: nobody else moves it
        meanwhile. Returns where the log stands then. The events have times. ``also`` is done too;
        of all this, no answer is waited for.
        """
        after = LogPosition(before.event_id + len(events), version, entries)
        position = after.event_id, version, entries
        was = before.event_id, before.projected_version, before.projected_entries
        numbered = enumerate(events, before.event_id + 1)
        change_each(connection, _LOG, [_columns(number, event, None) for number, event in numbered])
        change_each(connection, _MOVE, [position + was])
        for text, queries in groupby(also, key=itemgetter(0)):
            change_each(connection, text, [parameters for _, parameters in queries])
        return after

    def position(self) -> LogPosition:
        """Where the log stands, as of now."""
        rows = self._database.rows(POSITION)
        return LogPosition(*rows[0]) if rows else LogPosition(0, 0, 0)

    def mark(self) -> int:
        return self._database.mark()

    @property
    def mark_is_proof(self) -> bool:
        return self._database.mark_is_proof

    def wait(self, mark: int, *, timeout: float) -> int:
        """Wait until the mark is no longer ``mark``, or ``timeout`` seconds; the mark then."""
        return self._database.wait_for_commit(mark, timeout=timeout)


def _columns(event_id: int, event: NewEvent, now: Timestamp | None) -> tuple[Parameter, ...]:
    """The row of an event, its body sealed."""
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
