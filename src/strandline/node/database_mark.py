"""The mark: the time that a store's database had reached, written to the etcd with its catalog.

If only the database is restored from an older backup, it is sound but lacks commits. Nothing in the
database can show this. Nor does a catalog that is ahead of it, since a crash leaves that too. So a
node writes the database's time to a key beside the catalog: when it starts, once a minute, and when
it stops. A process that opens the store compares the two. `strandline.sql.head_file` does the same
for a folder. If one database keeps the catalog and everything else, both are restored together.

What must stay true: **the mark is never ahead of what is durable.** A write that waits for the disk
takes the time (some writes do not wait), and the mark goes to etcd after that write has committed.
The mark may be up to a minute behind, so the loss of a database's last minute can go unnoticed.

Rejected: writing the mark with each commit (each would need a round trip to etcd, and a commit of
rows would need both servers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.clock import HybridClock, Timestamp, format_timestamp
from strandline.durable import UpdateLog, durable_state
from strandline.errors import Conflict, CorruptData
from strandline.metastorage import Absent, KeyValue, Metastorage, Put, TimeIs
from strandline.metastore.store.notifications import NotificationLog
from strandline.node.membership import new_member_id, open_newer_epoch, refuse_older_catalog
from strandline.node.sequences import skip_ids
from strandline.sql import Database, FenceRow, stored_time, take_time
from strandline.wire import decode, encode, register
from strandline.wire.codecs import TIME

KEY = "database.time"
NOTE_SECONDS = 60.0
"""How often a node writes the mark."""


@dataclass(frozen=True, slots=True)
class DatabaseTime:
    """The record in etcd: a time that the database of the store has assigned."""

    time: Timestamp


register(DatabaseTime, type_id=76, version=1, since="0.4.0", fields=[("time", TIME)])


@dataclass(frozen=True, slots=True)
class DatabaseMark:
    """See the module. ``address`` is the address of the store as messages show it."""

    metastorage: Metastorage
    address: str

    def marked_time(self) -> Timestamp:
        """Return the time of the mark, or 0 without one. Raises `CorruptData`, `Unavailable`."""
        return self._time_of(self.metastorage.get(KEY))

    def compare(self, marked_time: Timestamp, database: Database) -> None:
        """Raise `CorruptData` if ``marked_time`` is later than the time of ``database``.

        Read the mark before calling this, since a node may write both in between.
        """
        with database.read() as connection:
            time = stored_time(connection)
        if time >= marked_time:
            return
        recorded = f"but {self.address} recorded {format_timestamp(marked_time)}"
        if not time:
            raise CorruptData(
                f"{database.name} is empty, {recorded}: it is not the database of this store, or it"
                " was lost. Name the right one in the setting objects, or restore the database and"
                " etcd from one backup"
            )
        raise CorruptData(
            f"{database.name} is older than it was: it ends at {format_timestamp(time)}, "
            f"{recorded}. If it is that of another store, name the right one in the setting"
            " objects. Else only the database was restored, or its backup is older than that of"
            " etcd: restore both from one backup; to continue without the missing changes, run "
            "`strandline accept-loss` with the address of the store"
        )

    def note(self, database: Database, clock: HybridClock) -> None:
        """Write the mark. Raises what the guard of ``database`` raises."""
        with database.guarded_write() as connection:
            time = take_time(connection, clock, bounded=False)
        pair = self.metastorage.get(KEY)
        if self._time_of(pair) < time:
            unchanged = Absent(KEY) if pair is None else TimeIs(KEY, pair.time)
            # If another node has written its mark first, that one is as good.
            self.metastorage.invoke([unchanged], [Put(KEY, encode(DatabaseTime(time)))])

    def accept_loss(
        self,
        database: Database,
        clock: HybridClock,
        log: UpdateLog,
        *,
        confirm: Callable[[Timestamp, Timestamp], None],
    ) -> None:
        """Open a newer epoch on ``database`` and ``log``, and move the database past the mark.

        So the halves have one fence token, although that of the database was lost, and the database
        does not assign again a time that it had assigned before its loss. ``confirm`` gets the time
        of the database and the mark. It raises to stop this. Raises `Conflict`, and changes
        nothing, if the catalog no longer has versions that the database lacks, and
        `WrongEnvironment` if it is the catalog that was set back.
        """
        mark_time = self.marked_time()
        catalog_token = log.token()
        with database.read() as connection:
            before, fence = stored_time(connection), FenceRow.read(connection)
        refuse_older_catalog(fence, log)
        # An earlier release moved the time of a database past the mark, and left its older token.
        is_older = fence is not None and catalog_token is not None and fence.token < catalog_token
        is_whole = before >= mark_time and not is_older
        if not is_whole:
            self._refuse_trimmed(database, clock, log)
        confirm(before, mark_time)
        if is_whole:
            return
        generation = durable_state(log).deploy_generation() or 0
        open_newer_epoch(log, database, clock, generation, member=new_member_id())
        with database.write() as connection:
            clock.update(mark_time)
            take_time(connection, clock, bounded=False)
            skip_ids(connection)

    def _refuse_trimmed(self, database: Database, clock: HybridClock, log: UpdateLog) -> None:
        projected = NotificationLog(database, clock).position().projected_version
        since = log.frontier().since
        if since > projected:
            raise Conflict(
                f"{database.name} has the folders and events of the catalog up to version "
                f"{projected}, but {self.address} no longer has the versions before {since}, which "
                "were trimmed; nothing was changed. Restore both from one backup"
            )

    @staticmethod
    def _time_of(pair: KeyValue | None) -> Timestamp:
        return Timestamp(0) if pair is None else decode(pair.value, DatabaseTime).time
