"""`CachedStore`: a node's memory of the object store, with the same interface.

The problem: there are thousands of reads of table and partition metadata, and each must see exactly
the committed writes of its own snapshot, although several nodes write. Reading the store each time
is exact and slow. A cache that follows with some delay is fast, but returns torn or old writes.

The model. The cache holds the rows themselves, by write id (`replicas`), and follows the
notification log. The event of a staging adds rows under an open write id. The event of a commit
commits all write ids of its transaction in one step. The event of an abort drops their rows. A read
has the list of write ids that it took at its start. Memory answers it exactly if every id that is
committed in the reader's list is committed in the cache. The rows are filtered by the *reader's*
list, so old and new snapshots both get their exact answer. Otherwise the store answers, at the
reader's list; for a large table, the log is first applied once more, which takes less time than
reading the table. A reader that finds its table being loaded gives way (`strandline.work`), unless
it needs only some names. So the lag of the cache affects how fast an answer is, never what it
contains.

The contents of the cache can outlive the process: the next one may restore a `snapshot`
(`state_file`).

A read without a list (of a plain table) is a read of the present. Memory answers it if the log was
applied up to its head at most ``staleness`` seconds ago or, if that is 0, if the head has not moved
since. One look at the head serves all readers that wait for it; a reader that cannot get one reads
the store.

What must stay true:

* a table is loaded at one moment: rows, list and event number are from one SQL snapshot. Events
  that arrive during the load are kept for the table, except those that the snapshot reflects;
* events are applied in order, each by one swap under the lock: no reader finds one table of a
  transaction committed and another not, except through its own lists;
* an event that cannot be applied evicts the tables that it is about, and is counted. Later events
  are still applied. If the log cannot be read, nothing is skipped;
* a node's own commits are applied from the log too. A plain change returns after its events are
  applied here. After the end of a transaction, memory does not answer for the present before the
  next look at the log;
* eviction only frees memory. Memory is bounded; the least recently used table is evicted first. A
  table with very many rows is never held: loading it would keep a thread busy for many seconds.

Rejected: one value for each entry with a flag "committed" (two open transactions break it), and
such a flag with the set of open writes beside it (older readers would never hit).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from types import MappingProxyType

from strandline import work
from strandline.clock import elapsed_seconds
from strandline.errors import UnknownOutcome
from strandline.metastore.cache.log_applier import LogApplier
from strandline.metastore.cache.replica_set import (
    MAX_ROWS,
    HeldReplica,
    ReplicaSet,
    ReplicaSetStatistics,
)
from strandline.metastore.cache.replicas import Replica, VisibleRows
from strandline.metastore.store.object_store import ObjectStore, SqlObjectStore
from strandline.metastore.store.rows import Row, RowKind
from strandline.metastore.store.staging import Staging
from strandline.model.partitioning import Partition
from strandline.transactions import ValidWriteIdList
from strandline.work.following import FollowingThread

DEFAULT_STALENESS = 1.0
DEFAULT_MEMORY_BYTES = 256 << 20
MAX_LOCATIONS = 100_000
_ESCAPED_OR_PLAIN = re.compile("!(.)|(.)", re.DOTALL)
"""A character of a pattern of LIKE."""
_PARTITIONS_PER_UNIT = 50
"""The number of partitions that are tested for one unit of `strandline.work`: 0.2 µs for each."""
_ROWS_PER_UNIT = 20
"""The number of rows in memory that are listed for one unit; callers spend any further work."""
_BYTES_AT_ONCE = 80 * 1024
"""The bytes of rows in memory that the event loop may decode: far more than those of
`work.AT_ONCE` usual partitions. A client may give a partition a value of a megabyte."""
_COMPARED_PER_UNIT = 200
"""Names times characters of a pattern that cost one unit."""


@dataclass(frozen=True, slots=True)
class CachedStoreStatistics(ReplicaSetStatistics):
    """The replicas held now, and counts since the start.

    A miss is a read that the store answered, because memory was "behind" a commit, did not hold the
    table ("not_held"), or cannot answer for that list of write ids ("other_list"). ``failures`` are
    failed rounds of the follower; ``last_failure`` is the last error.
    """

    hits: int
    misses_by_cause: Mapping[str, int]
    following: bool
    failures: int
    last_failure: str | None

    @property
    def misses(self) -> int:
        return sum(self.misses_by_cause.values())


class KnownLocations:
    """Locations of managed tables, each kept until an event moves the table. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_table: dict[int, str] = {}
        self.moves = 0

    def get(self, table_id: int) -> str | None:
        """The location of a table as of the applied events, or None if it is not known."""
        return self._by_table.get(table_id)

    def put(self, table_id: int, location: str, *, moves: int) -> None:
        """Remember a location that was read, unless `moves` has changed since it was ``moves``."""
        with self._lock:
            if moves == self.moves:
                if len(self._by_table) >= MAX_LOCATIONS:
                    self._by_table.clear()
                self._by_table[table_id] = location

    def forget(self, table_id: int | None) -> None:
        """Forget the location of a moved table, or all locations if ``table_id`` is None."""
        with self._lock:
            self.moves += 1
            if table_id is None:
                self._by_table.clear()
            else:
                self._by_table.pop(table_id, None)


class CachedStore(ObjectStore):
    """See the module. Safe to use from several threads.

    ``zone_partitions`` returns the partitions of a table's zone that are held here, or None for
    all; the store answers for the others. ``staleness`` is in seconds, measured by ``monotonic``.
    ``on_set_back`` is called if the database was set back.
    """

    applier = LogApplier
    """The class that follows the log; a test of the tests replaces it by a faulty one."""

    def __init__(
        self,
        store: SqlObjectStore,
        *,
        zone_partitions: Callable[[int], frozenset[int] | None] = lambda table_id: None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        staleness: float | Callable[[], float] = DEFAULT_STALENESS,
        on_set_back: Callable[[], object] = lambda: None,
        monotonic: Callable[[], float] = elapsed_seconds,
    ) -> None:
        self.sql_store = store
        self._zone_partitions = zone_partitions
        head = store.notifications.head()
        self._replicas = ReplicaSet(applied_event=head, memory_bytes=memory_bytes)
        self._locations = KnownLocations()
        self.log_applier = self.applier(
            store,
            self._replicas,
            on_move=self._locations.forget,
            on_set_back=on_set_back,
            staleness=staleness,
            monotonic=monotonic,
        )
        self.follower = FollowingThread(self.log_applier.follow, name="cache-applier")
        """Follows the notification log. Reads and writes also work without it."""
        self._hits = 0
        self._misses = dict.fromkeys(("behind", "not_held", "other_list"), 0)

    def lag(self) -> int:
        """The number of events of the notification log that are not applied here."""
        applied = self._replicas.applied_event  # first: the head never falls below it
        return self.sql_store.notifications.head() - applied

    def statistics(self) -> CachedStoreStatistics:
        return CachedStoreStatistics(
            **asdict(self._replicas.statistics()),
            hits=self._hits,
            misses_by_cause=MappingProxyType(self._misses.copy()),
            following=self.follower.running(),
            failures=self.follower.failures,
            last_failure=self.follower.last_failure,
        )

    # -- reading

    def rows(
        self,
        table_id: int,
        kind: RowKind,
        *,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
        like: str | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        answer = self._answer(table_id, kind, write_ids, names)
        if answer is None:
            return self.sql_store.rows(
                table_id, kind, write_ids=write_ids, names=names, like=like, limit=limit
            )
        work.spend(len(answer if names is None else names) // _ROWS_PER_UNIT)
        rows = _picked(answer, names)
        if names is not None or like is None:
            return rows
        work.spend(len(rows) * len(like) // _COMPARED_PER_UNIT)
        matches = _is_like(like)
        return [row for row in rows if matches(row.name)]

    def data_files(
        self,
        table_id: int,
        *,
        write_ids: ValidWriteIdList,
        partitions: Container[Partition] | None = None,
    ) -> list[Row]:
        if partitions is None:
            return self.rows(table_id, RowKind.DATA_FILE, write_ids=write_ids)
        answer = self._answer(table_id, RowKind.DATA_FILE, write_ids, by_partition=True)
        if answer is None:
            return self.sql_store.data_files(table_id, write_ids=write_ids, partitions=partitions)
        by_partition = answer.by_partition
        work.spend(len(by_partition) // _PARTITIONS_PER_UNIT)
        matching_rows = [rows for key, rows in by_partition.items() if key in partitions]
        work.spend(sum(map(len, matching_rows)))
        return sorted(chain.from_iterable(matching_rows), key=lambda row: row.name)

    def known_rows(
        self,
        table_id: int,
        kind: RowKind,
        *,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
    ) -> list[Row] | None:
        """`rows`, or None if memory cannot answer without waiting or reading many rows or bytes."""
        if kind is RowKind.STATISTICS or self.log_applier.was_away:
            return None
        if write_ids is None and not self.log_applier.is_known_level():
            return None
        replica = self._replicas.get(table_id, max_rows=work.AT_ONCE)
        answer = None
        if replica is not None:
            reader = replica.committed if write_ids is None else write_ids
            if replica.can_tell(reader):
                answer = _if_complete(replica, replica.known_visible(kind, reader), names)
        if answer is None or len(answer if names is None else names) > work.AT_ONCE:
            return None
        rows = _picked(answer, names)
        if sum(len(row.body) for row in rows) > _BYTES_AT_ONCE:
            return None
        self._hits += 1
        return rows

    def locations(self, table_ids: Collection[int]) -> dict[int, str]:
        moves = self._locations.moves
        locations = self.sql_store.locations(table_ids)
        for table_id, location in locations.items():
            self._locations.put(table_id, location, moves=moves)
        return locations

    def last_known_location(self, table_id: int) -> str | None:
        """`location` as of the applied events, or None if memory does not have it."""
        return self._locations.get(table_id)

    def known_location(self, table_id: int, *, version: int, is_last: bool = False) -> str | None:
        """`location`, or None if memory cannot prove it without waiting.

        ``version`` is the catalog version that the caller reads: its DDL may have moved the table.
        ``is_last`` says that it was the log's last version when the caller's request began.
        """
        moves, location = self._locations.moves, self._locations.get(table_id)
        if location is None or not self.log_applier.has_projected(version, is_last=is_last):
            return None
        # No table moved up to the last look at the head; a later move is after this read.
        return location if moves == self._locations.moves else None

    def _answer(
        self,
        table_id: int,
        kind: RowKind,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
        *,
        by_partition: bool = False,
    ) -> VisibleRows | None:
        """The visible rows of all names or at least of ``names``; None if the store must answer."""
        if kind is RowKind.STATISTICS:
            return None  # no replica has statistics
        log = self.log_applier
        if not log.is_same_log() or (write_ids is None and not log.is_level()):
            self._misses["behind"] += 1
            return None
        replica = self._loaded(table_id, is_cheap=names is not None)
        if replica is None:
            self._misses["not_held"] += 1
            return None
        shown = self._shown(replica, kind, write_ids, by_partition=by_partition)
        if shown is None and replica.rows > work.AT_ONCE and self.log_applier.look():
            # Reading so many rows takes longer than applying the commits that the reader has seen.
            replica = self._replicas.get(table_id) or replica
            shown = self._shown(replica, kind, write_ids, by_partition=by_partition)
        answer = _if_complete(replica, shown, names)
        if shown is None:
            self._misses["other_list"] += 1
        elif answer is None:
            self._misses["not_held"] += 1
        else:
            self._hits += 1
        return answer

    def _loaded(self, table_id: int, *, is_cheap: bool) -> Replica | None:
        """The replica of a table, loaded if necessary; None if the store must answer.

        Gives way to a load in progress, unless the answer of the store ``is_cheap``.
        """
        replica = self._replicas.get(table_id)
        if replica is not None:
            return replica
        if not self._load(table_id) and not is_cheap:
            load = self._replicas.loading(table_id)
            if load is not None:
                work.give_way(load.ended)
        return self._replicas.get(table_id)

    def _shown(
        self,
        replica: Replica,
        kind: RowKind,
        write_ids: ValidWriteIdList | None,
        *,
        by_partition: bool = False,
    ) -> VisibleRows | None:
        reader = replica.committed if write_ids is None else write_ids
        if not replica.can_tell(reader):
            return None
        return replica.visible(kind, reader, by_partition=by_partition)

    def _load(self, table_id: int) -> bool:
        """Load a table from the store into memory; return False if that is not possible now."""
        load = self._replicas.begin_load(table_id)
        if load is None:
            return False
        replica = None
        try:
            with work.budget(None):  # a load is bounded, and serves other readers too
                contents = self.sql_store.contents(
                    table_id, max_bytes=self._replicas.memory_bytes, max_rows=MAX_ROWS
                )
            if contents is not None:
                zone_partitions = self._zone_partitions(table_id)
                replica = Replica.of(contents, table_id=table_id, zone_partitions=zone_partitions)
        except BaseException:
            self._replicas.finish_load(load, None)
            raise
        if replica is None:
            self._replicas.refuse_load(load)
            return False
        self._replicas.finish_load(load, replica)
        if replica.event_id > self._replicas.applied_event:
            self.log_applier.look()
        return True

    # -- writing: the store writes; a plain change is applied before the call returns

    @contextmanager
    def change(self, table_id: int, *, author: str) -> Iterator[Staging]:
        try:
            with self.sql_store.change(table_id, author=author) as change:
                yield change
        except UnknownOutcome:
            self.log_applier.invalidate_level()  # the next read must show whether it was committed
            raise
        self.log_applier.apply_own()

    def forget(self, table_id: int) -> None:
        """Evict a table whose rows were cleaned: the next read loads it again."""
        self._replicas.evict(table_id)

    def cached_tables(self) -> list[int]:
        return [replica.table_id for replica in self.snapshot()[1]]

    def snapshot(self) -> tuple[int, list[HeldReplica]]:
        """The last applied event and the replicas at that moment, the most recently used last."""
        return self._replicas.snapshot()


def _if_complete(
    replica: Replica, shown: VisibleRows | None, names: Collection[str] | None
) -> VisibleRows | None:
    """The ``shown`` rows, or None if rows of zone partitions on other nodes may be missing."""
    if shown is None or replica.zone_partitions is None:
        return shown
    return shown if names is not None and all(name in shown for name in names) else None


def _is_like(pattern: str) -> Callable[[str], bool]:
    """Return the test of a name for a pattern; each wildcard stands for any characters."""
    pieces = [""]
    for escaped, plain in _ESCAPED_OR_PLAIN.findall(pattern):
        if plain and plain in "%_":
            pieces.append("")
        else:
            pieces[-1] += escaped or plain
    if len(pieces) == 1:
        return lambda name: name == pieces[0]
    first, *between, last = pieces

    def matches(name: str) -> bool:
        at, end = len(first), len(name) - len(last)
        if at > end or not (name.startswith(first) and name.endswith(last)):
            return False
        # Each at the first possible place, which is never worse than a later one. A regular
        # expression would need time for the product of both lengths; `find` needs it for their sum.
        for piece in between:
            start = name.find(piece, at, end)
            if start < 0:
                return False
            at = start + len(piece)
        return True

    return matches


def _picked(answer: VisibleRows, names: Collection[str] | None) -> list[Row]:
    if names is None:
        return list(answer)
    rows = map(answer.get, sorted(set(names)))
    return [row for row in rows if row is not None]
