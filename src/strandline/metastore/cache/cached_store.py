"""`CachedStore`: a node's memory of the object store, with the same interface.

The problem: reads of table and partition metadata come by the thousand, and each must see exactly
the committed writes of its own snapshot, although several nodes write. Asking the store each time
is exact and slow; a cache that follows with some delay is fast and shows torn or old writes.

The model. The cache holds the rows themselves, by write id (`replicas`), and follows the
notification log: a staging brings rows under an id that is open, the commit event makes all ids of
its transaction committed in one step, an abort drops them. A read presents the list of write ids
that it took at its start. It is answered from memory exactly when every id that its list
has committed is committed here, and the rows are filtered by the *reader's* list, so old and new
snapshots alike get their exact answer. Otherwise the store answers, at the reader's list; of a
large table only after the log was applied once more, which takes less than to read it. How far the
cache lags behind therefore decides how fast an answer is, never which.

What is held outlives the process as a `snapshot`, which the next one may `restore` (`state_file`).

A read without a list (plain tables) asks for the present. It is answered from memory if the log was
applied up to its head not longer than ``staleness`` seconds ago; with 0, if the head is where it
was. One look at the head serves all readers that wait for it; a reader that cannot get one reads
the store.

What must stay true:

* a table is loaded at one point: rows, list and event number from one SQL snapshot. Events that
  come while it loads are kept for it, and those that the snapshot reflects are left out;
* events are applied in order, each by one swap under the lock: no reader finds one table of a
  transaction committed and another not, except through its own lists;
* an event that cannot be applied evicts the tables that it is about and is counted; it stops
  nothing else. A log that cannot be read is another matter: nothing is skipped;
* a node's own commits take the same way. A plain change returns after its events are applied here;
  behind the end of a transaction, no present is read from memory before the next look at the log;
* eviction just forgets. Memory is bounded; what went unused longest goes first. A table of very
  many rows is not held at all: each change of it would cost as much as a large answer.

Rejected: one value an entry with a flag "committed" (two open transactions break it), and with the
set of those pending (older readers never hit).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

from strandline import work
from strandline.metastore.cache.following import Follower
from strandline.metastore.cache.log_applier import BATCH, LogApplier
from strandline.metastore.cache.replica_set import MAX_ROWS, HeldReplica, ReplicaSet
from strandline.metastore.cache.replicas import Replica, VisibleRows
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.object_store import ObjectStore, SqlObjectStore
from strandline.metastore.store.partition_moves import PartitionMove, PartitionMoves
from strandline.metastore.store.rows import Removal, Row, RowKind
from strandline.metastore.store.staging import Staging
from strandline.model.partitioning import Partition
from strandline.model.places import Place
from strandline.transactions import Transactions, ValidWriteIdList

logger = logging.getLogger(__name__)

DEFAULT_STALENESS = 1.0
DEFAULT_MEMORY_BYTES = 256 << 20
MAX_LOCATIONS = 100_000
_PARTITIONS_OF_A_THING = 5
"""Partitions that are asked about in the time of one thing (`strandline.work`)."""
_ROWS_OF_A_THING = 20
"""Rows in memory that are listed and looked at in that time; who does more with them spends it."""


@dataclass(frozen=True, slots=True)
class CachedStoreStatistics:
    """Counts since the start; ``size`` is in bytes, about.

    A miss is a read that the store answered: memory was "behind" a commit, did not hold the table
    ("not_held"), or cannot tell what that list of write ids shows ("other_list"). ``poisoned``
    events evicted their tables. ``failures`` are rounds of the follower that failed;
    ``last_failure`` says why.
    """

    hits: int
    misses_by_cause: Mapping[str, int]
    replicas: int
    rows: int
    size: int
    loads: int
    evictions: int
    poisoned: int
    applied_event: int
    following: bool
    failures: int
    last_failure: str | None

    @property
    def misses(self) -> int:
        """All of them."""
        return sum(self.misses_by_cause.values())


class KnownLocations:
    """Places of managed tables, until an event moves one. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[int, str] = {}
        self.moves = 0

    def get(self, table_id: int) -> str | None:
        """The place of a table, as of the events that were applied."""
        return self._places.get(table_id)

    def put(self, table_id: int, location: str, *, moves: int) -> None:
        """Remember a place that was read while `moves` was this."""
        with self._lock:
            if moves == self.moves:
                if len(self._places) >= MAX_LOCATIONS:
                    self._places.clear()
                self._places[table_id] = location

    def forget(self, table_id: int | None) -> None:
        """A table was moved; None: any may have been."""
        with self._lock:
            self.moves += 1
            if table_id is None:
                self._places.clear()
            else:
                self._places.pop(table_id, None)


class CachedStore(ObjectStore):
    """See the module. Safe to use from several threads.

    ``zone_partitions`` tells for a table the partitions of its zone that are held here, None for
    all: of the others the store answers. ``staleness`` is in seconds, measured by ``monotonic``.
    """

    applier = LogApplier
    """What follows the log; a test of the tests puts a faulty one here."""

    def __init__(
        self,
        store: SqlObjectStore,
        notifications: NotificationLog,
        transactions: Transactions,
        *,
        zone_partitions: Callable[[int], frozenset[int] | None] = lambda table_id: None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        staleness: float | Callable[[], float] = DEFAULT_STALENESS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._zone_partitions = zone_partitions
        self._replicas = ReplicaSet(applied_event=notifications.head(), memory_bytes=memory_bytes)
        self._locations = KnownLocations()
        self._applier = self.applier(
            store,
            notifications,
            transactions,
            self._replicas,
            on_move=self._locations.forget,
            staleness=staleness,
            monotonic=monotonic,
        )
        self._follower = Follower(self._applier.follow, name="cache-applier")
        self._hits = 0
        self._misses = dict.fromkeys(("behind", "not_held", "other_list"), 0)

    # -- life

    def start(self) -> None:
        """Follow the notification log in a thread of its own until `stop`."""
        self._follower.start()

    def stop(self, *, wake: Callable[[], None] = lambda: None) -> None:
        """Stop following. Reads and writes go on, and apply what they need by themselves.

        ``wake`` ends the wait for commits.
        """
        self._follower.stop(wake=wake)

    @property
    def applied_event(self) -> int:
        """The last event of the notification log that is applied here."""
        return self._replicas.applied_event

    def statistics(self) -> CachedStoreStatistics:
        """What is held, and how it did."""
        replicas = self._replicas.statistics()
        return CachedStoreStatistics(
            hits=self._hits,
            misses_by_cause=MappingProxyType(self._misses.copy()),
            replicas=replicas.replicas,
            rows=replicas.rows,
            size=replicas.size,
            loads=replicas.loads,
            evictions=replicas.evictions,
            poisoned=replicas.poisoned,
            applied_event=replicas.applied_event,
            following=self._follower.running(),
            failures=self._follower.failures,
            last_failure=self._follower.last_failure,
        )

    # -- reading

    def rows(
        self,
        table_id: int,
        kind: RowKind,
        *,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
    ) -> list[Row]:
        answer = self._answer(table_id, kind, write_ids, names)
        if answer is None:
            return self._store.rows(table_id, kind, write_ids=write_ids, names=names)
        work.spend(len(answer if names is None else names) // _ROWS_OF_A_THING)
        return _picked(answer, names)

    def data_files(
        self,
        table_id: int,
        *,
        write_ids: ValidWriteIdList,
        in_partition: Callable[[Partition], bool] | None = None,
    ) -> list[Row]:
        if in_partition is None:
            return self.rows(table_id, RowKind.DATA_FILE, write_ids=write_ids)
        answer = self._answer(table_id, RowKind.DATA_FILE, write_ids)
        if answer is None:
            return self._store.data_files(table_id, write_ids=write_ids, in_partition=in_partition)
        work.spend(len(answer.by_partition) // _PARTITIONS_OF_A_THING)
        wanted = [rows for known, rows in answer.by_partition.items() if in_partition(known)]
        work.spend(sum(map(len, wanted)))
        return sorted(chain.from_iterable(wanted), key=lambda row: row.name)

    def row(
        self, table_id: int, kind: RowKind, name: str, *, write_ids: ValidWriteIdList | None
    ) -> Row | None:
        answer = self._answer(table_id, kind, write_ids, (name,))
        if answer is None:
            return self._store.row(table_id, kind, name, write_ids=write_ids)
        return answer.get(name)

    def is_level(self) -> bool:
        return self._applier.is_at_head()

    def known_rows(
        self,
        table_id: int,
        kind: RowKind,
        *,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
    ) -> list[Row] | None:
        if kind is RowKind.STATISTICS:
            return None
        if write_ids is None and not self._applier.is_known_level():
            return None
        replica = self._replicas.get(table_id, most=work.AT_ONCE)
        answer = None
        if replica is not None:
            reader = replica.committed if write_ids is None else write_ids
            if replica.can_tell(reader):
                answer = _sure(replica, replica.known_visible(kind, reader), names)
        if answer is None or len(answer if names is None else names) > work.AT_ONCE:
            return None
        self._hits += 1
        return _picked(answer, names)

    def location(self, table_id: int) -> str | None:
        moves = self._locations.moves
        place = self._store.location(table_id)
        if place is not None:
            self._locations.put(table_id, place, moves=moves)
        return place

    def mark(self) -> int | None:
        return self._applier.mark()

    def known_location(self, table_id: int, *, version: int, is_last: bool = False) -> str | None:
        moves, place = self._locations.moves, self._locations.get(table_id)
        if place is None or not self._applier.has_projected(version, is_last=is_last):
            return None
        # Nothing moved before the log was seen to end; what moves later came after this read.
        return place if moves == self._locations.moves else None

    def places_by_id(self, table_ids: Collection[int]) -> dict[int, Place]:
        return self._store.places_by_id(table_ids)

    def tables_with_unfinished_moves(self) -> list[int]:
        return self._store.tables_with_unfinished_moves()

    def finish_moves(
        self, table_id: int, carry_out: Callable[[list[PartitionMove]], Sequence[PartitionMove]]
    ) -> None:
        self._store.finish_moves(table_id, carry_out)

    def partition_moves(self, table_id: int) -> PartitionMoves:
        return self._store.partition_moves(table_id)

    def rows_of_write(self, table_id: int, write_id: int) -> tuple[list[Row], list[Removal]]:
        return self._store.rows_of_write(table_id, write_id)

    def rows_by_id(self, row_ids: Collection[int]) -> dict[int, Row]:
        return self._store.rows_by_id(row_ids)

    def _answer(
        self,
        table_id: int,
        kind: RowKind,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
    ) -> VisibleRows | None:
        """The visible rows by name, or those with ``names``; None: the store has to answer."""
        if kind is RowKind.STATISTICS:
            return None  # no replica has them
        if write_ids is None and not self._applier.is_level():
            self._misses["behind"] += 1
            return None
        replica = self._loaded(table_id)
        if replica is None:
            self._misses["not_held"] += 1
            return None
        shown = self._shown(replica, kind, write_ids)
        if shown is None and replica.rows > work.AT_ONCE and self._applier.look():
            # To read so many rows takes longer than to apply what this reader has seen elsewhere.
            replica = self._replicas.get(table_id) or replica
            shown = self._shown(replica, kind, write_ids)
        answer = _sure(replica, shown, names)
        if shown is None:
            self._misses["other_list"] += 1
        elif answer is None:
            self._misses["not_held"] += 1
        else:
            self._hits += 1
        return answer

    def _loaded(self, table_id: int) -> Replica | None:
        """What memory holds of a table, which is read if need be; None if it cannot hold it."""
        replica = self._replicas.get(table_id)
        if replica is None and self._load(table_id):
            replica = self._replicas.get(table_id)
        return replica

    def _shown(
        self, replica: Replica, kind: RowKind, write_ids: ValidWriteIdList | None
    ) -> VisibleRows | None:
        reader = replica.committed if write_ids is None else write_ids
        return replica.visible(kind, reader) if replica.can_tell(reader) else None

    def _load(self, table_id: int) -> bool:
        """Read a table from the store into memory; False if that is not possible now."""
        load = self._replicas.begin_load(table_id)
        if load is None:
            return False
        replica = None
        try:
            with work.budget(None):  # it is bounded, and serves others too
                contents = self._store.contents(
                    table_id, max_bytes=self._replicas.memory_bytes, max_rows=MAX_ROWS
                )
            if contents is not None:
                held = self._zone_partitions(table_id)
                replica = Replica.of(contents, table_id=table_id, zone_partitions=held)
        except BaseException:
            self._replicas.finish_load(load, None)
            raise
        if replica is None:
            self._replicas.refuse_load(load)
            return False
        self._replicas.finish_load(load, replica)
        return True

    # -- writing: the store writes, and what is committed is applied before the call returns

    @contextmanager
    def staging(
        self,
        txn_id: int,
        table_id: int,
        *,
        owner: str | None = None,
        paths: Collection[str] = (),
    ) -> Iterator[Staging]:
        # Its event comes with that of the end: until then no list shows the rows to a reader.
        with self._store.staging(txn_id, table_id, owner=owner, paths=paths) as staging:
            yield staging

    @contextmanager
    def change(self, table_id: int, *, author: str) -> Iterator[Staging]:
        with self._store.change(table_id, author=author) as change:
            yield change
        self._applier.apply_own()

    def tables_at(self, places: Collection[Place]) -> dict[Place, set[int]]:
        return self._store.tables_at(places)

    def forget(self, table_id: int) -> None:
        """Rows of a table were cleaned: the next read loads it anew."""
        self._replicas.evict(table_id)

    # -- following the log

    def apply(self, limit: int = BATCH) -> int:
        """Apply the next events of the notification log, at most ``limit``; how many it were.

        Raises `Unavailable` if the store cannot be read; then nothing was skipped.
        """
        return self._applier.apply(limit)

    # -- a state that outlives the process

    def snapshot(self) -> tuple[int, list[HeldReplica]]:
        """The last event that is applied, and what is held then, the last used last."""
        return self._replicas.snapshot()

    def restore(self, applied_event: int, replicas: Iterable[HeldReplica]) -> None:
        """Hold what a `snapshot` of this store held, and apply the events since."""
        self._applier.restore(applied_event, replicas)

    def look(self) -> bool:
        return self._applier.look()

    def look_again(self) -> None:
        self._applier.look_again()

    def catch_up(self) -> None:
        """Bring memory level with what is committed now, by whatever way it was written."""
        self._applier.catch_up()


def _sure(
    replica: Replica, shown: VisibleRows | None, names: Collection[str] | None
) -> VisibleRows | None:
    """The rows that are shown; None where others, in zone partitions elsewhere, may be missing."""
    if shown is None or replica.zone_partitions is None:
        return shown
    return shown if names is not None and all(name in shown for name in names) else None


def _picked(answer: VisibleRows, names: Collection[str] | None) -> list[Row]:
    if names is None:
        return list(answer)
    rows = map(answer.get, sorted(set(names)))
    return [row for row in rows if row is not None]
