"""How far the database of a store had come, said in etcd, which keeps its catalog.

A database that was restored alone, from an older day, is sound, and short. Nothing in it can say
so, and a catalog that is further is what a crash leaves too. So a node writes the database's time
to a key beside the catalog: when it starts, once a minute, and when it stops. Who opens the store
compares. `strandline.sql.head_file` does this for a folder; where one database keeps the catalog
and all else, they are restored together.

What must stay true: **the mark is never ahead of what is durable.** Its time is taken by a write
that waits for the disk, as some writes do not, and goes to etcd when that has committed. The mark
may be behind, by the minute: what a database has lost of its last minute goes unnoticed.

*Rejected*: the mark with each commit (a round trip to etcd for each, and a commit of rows would
need both servers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp, format_timestamp
from strandline.errors import CorruptData
from strandline.metastorage import Absent, KeyValue, Metastorage, Put, RevisionIs
from strandline.sql import Database, stored_time, take_time
from strandline.wire import decode, encode, register
from strandline.wire.codecs import TIME

KEY = "database.time"
NOTE_SECONDS = 60.0
"""How often a node writes the mark."""


@dataclass(frozen=True, slots=True)
class DatabaseTime:
    """The record: a time that the database of the store had assigned."""

    time: Timestamp


register(DatabaseTime, type_id=76, version=1, since="0.4.0", fields=[("time", TIME)])


@dataclass(frozen=True, slots=True)
class DatabaseMark:
    """See the module. ``address`` is the store's, as it is shown."""

    metastorage: Metastorage
    address: str

    def says(self) -> Timestamp:
        """The time of the mark; 0 without one. Raises `CorruptData`, `Unavailable`."""
        return self._time_of(self.metastorage.get(KEY))

    def compare(self, said: Timestamp, database: Database) -> None:
        """Raise `CorruptData` if the mark ``said`` more than ``database`` has.

        The mark is read first: between the two, a node may write both.
        """
        with database.read() as connection:
            time = stored_time(connection)
        if time < said:
            ends = f"it ends at {format_timestamp(time)}" if time else "it is empty"
            raise CorruptData(
                f"{database.name} is older than it was: {ends}, and had come to"
                f" {format_timestamp(said)}, as {self.address} says. Only the database was put back"
                " from an older day, or its backup is older than that of etcd. Restore both from"
                " one backup; to go on without what is missing, run `strandline accept-loss"
                f" {self.address}`"
            )

    def note(
        self, database: Database, clock: HybridClock, guard: Callable[[Connection], object]
    ) -> None:
        """Write the mark. ``guard`` raises for a node that may not write to the store any more."""
        with database.write() as connection:
            guard(connection)
            time = take_time(connection, clock, bounded=False)
        kept = self.metastorage.get(KEY)
        if self._time_of(kept) < time:
            unchanged = Absent(KEY) if kept is None else RevisionIs(KEY, kept.revision)
            # Where another node was first, its mark is as good.
            self.metastorage.invoke([unchanged], [Put(KEY, encode(DatabaseTime(time)))])

    def accept_loss(self, database: Database, clock: HybridClock) -> tuple[Timestamp, Timestamp]:
        """Let ``database`` go on behind the mark's time; how far it was, and the mark.

        No time is assigned again that it had before it lost something.
        """
        said = self.says()
        with database.write() as connection:
            before = stored_time(connection)
            if before < said:
                clock.update(said)
                take_time(connection, clock, bounded=False)
        return before, said

    @staticmethod
    def _time_of(kept: KeyValue | None) -> Timestamp:
        return Timestamp(0) if kept is None else decode(kept.value, DatabaseTime).time
