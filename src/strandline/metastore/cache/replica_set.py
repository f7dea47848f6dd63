"""The replicas that a node holds: bounded, kept level with the log, swapped in one step.

One lock stands before all of them. Under it nothing is computed that grows with a table: taking
references, making the next value of a replica from a small change, putting it in place. What a
transaction did to several tables is put in place in one turn of the lock.

A table loads while events go on. Its load is announced before the store is read, and events for it
are kept from then on; when its rows arrive, the kept events that they do not reflect are applied
to them. So no event is lost and none applied twice, whichever came first.

A change that fails evicts its table, also one that is loading: what is not known is forgotten.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from strandline.metastore.cache.replicas import Replica

logger = logging.getLogger(__name__)

MAX_CHANGES_WHILE_LOADING = 10_000
MAX_ROWS = 10_000
"""Rows of a table that is held: what a thread of the node may load, and go over at a change."""
MAX_OVERSIZED = 1_000

Key = tuple[int, int]
"""Zone partition and table id."""

Change = Callable[[Replica], Replica]
"""The next value of a replica."""


@dataclass(slots=True)
class Load:
    """A table that is being read from the store; ``spoiled`` ones are not kept."""

    table_id: int
    changes: list[tuple[int, Change]] = field(default_factory=list)
    spoiled: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaSetStatistics:
    """What is held; ``loads``, ``evictions`` and ``poisoned`` count since the start.

    ``size`` is in bytes, about. ``poisoned`` changes could not be applied.
    """

    applied_event: int
    replicas: int
    rows: int
    size: int
    loads: int
    evictions: int
    poisoned: int


class ReplicaSet:
    """See the module. ``applied_event`` is where the log stood when it was made."""

    def __init__(self, *, applied_event: int, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._applied = applied_event
        self._replicas: OrderedDict[Key, Replica] = OrderedDict()
        self._partitions: dict[int, set[int]] = {}
        self._loading: dict[int, Load] = {}
        self._oversized: OrderedDict[int, None] = OrderedDict()
        self._rows = self._size = 0
        self._loads = self._evictions = self._poisoned = 0

    @property
    def memory_bytes(self) -> int:
        """The most that is held."""
        return self._memory_bytes

    @property
    def applied_event(self) -> int:
        """The last event that was applied."""
        return self._applied

    def get(self, table_id: int, partitions: Iterable[int]) -> list[Replica] | None:
        """The replicas of a table for these zone partitions, as of one moment; None without all."""
        with self._lock:
            replicas = []
            for partition in partitions:
                key = (partition, table_id)
                replica = self._replicas.get(key)
                if replica is None:
                    return None
                self._replicas.move_to_end(key)
                replicas.append(replica)
            return replicas

    def follows(self, table_id: int) -> bool:
        """Whether events of this table matter here."""
        with self._lock:
            return table_id in self._partitions or table_id in self._loading

    # -- loading

    def begin_load(self, table_id: int) -> Load | None:
        """Announce a load; None if the table is being loaded, or was found to be too large."""
        with self._lock:
            if table_id in self._loading or table_id in self._oversized:
                return None
            load = self._loading[table_id] = Load(table_id)
            return load

    def finish_load(self, load: Load, replicas: Sequence[Replica] | None) -> None:
        """End a load with what was read; None if it failed."""
        with self._lock:
            del self._loading[load.table_id]
            if replicas is None or load.spoiled:
                return
            try:
                current = [_caught_up(replica, load.changes) for replica in replicas]
            except Exception:
                self._note_poison(load.table_id, self._applied)
                return
            if sum(replica.size for replica in current) > self._memory_bytes:
                self._note_oversized(load.table_id)
                return
            self._loads += 1
            for replica in current:
                self._put((replica.zone_partition, replica.table_id), replica)
            self._make_room()

    def refuse_load(self, load: Load) -> None:
        """End a load of a table that is too large to be held; it is not tried again."""
        with self._lock:
            del self._loading[load.table_id]
            self._note_oversized(load.table_id)

    # -- following the log

    def apply(self, event_id: int, changes: Sequence[tuple[int, Change]]) -> None:
        """Apply an event: its changes by table id, all in one step."""
        with self._lock:
            nexts: dict[Key, Replica] = {}
            for table_id, change in changes:
                try:
                    nexts |= self._next(table_id, event_id, change)
                except Exception:
                    self._note_poison(table_id, event_id)
            for key, replica in nexts.items():
                self._put(key, replica)
                if replica.rows > MAX_ROWS:
                    self._outgrow(key[1])
            self._applied = event_id
            self._make_room()

    def evict(self, table_id: int) -> None:
        """Forget a table; the next read loads it."""
        with self._lock:
            self._evict(table_id)

    def outgrow(self, table_id: int) -> None:
        """Forget a table that is now too large to be held; it is not loaded again."""
        with self._lock:
            self._outgrow(table_id)

    def skip(self, event_id: int, *, poisoned: Collection[int] | None) -> None:
        """Pass over an event that cannot be read, forgetting its tables; None: all tables."""
        with self._lock:
            tables = {*self._partitions, *self._loading} if poisoned is None else poisoned
            for table_id in tables:
                self._evict(table_id)
            self._poisoned += 1
            self._applied = event_id

    def restart(self, applied_event: int) -> None:
        """Forget everything and go on behind ``applied_event``."""
        with self._lock:
            for table_id in {*self._partitions, *self._loading}:
                self._evict(table_id)
            self._applied = applied_event

    def statistics(self) -> ReplicaSetStatistics:
        """What is held now."""
        with self._lock:
            return ReplicaSetStatistics(
                applied_event=self._applied,
                replicas=len(self._replicas),
                rows=self._rows,
                size=self._size,
                loads=self._loads,
                evictions=self._evictions,
                poisoned=self._poisoned,
            )

    # -- under the lock

    def _next(self, table_id: int, event_id: int, change: Change) -> dict[Key, Replica]:
        load = self._loading.get(table_id)
        if load is not None:
            load.changes.append((event_id, change))
            load.spoiled |= len(load.changes) > MAX_CHANGES_WHILE_LOADING
        keys = [(partition, table_id) for partition in self._partitions.get(table_id, ())]
        return {
            key: change(self._replicas[key])
            for key in keys
            if self._replicas[key].event_id < event_id
        }

    def _put(self, key: Key, replica: Replica) -> None:
        before = self._replicas.get(key)
        if before is not None:
            self._rows -= before.rows
            self._size -= before.size
        self._replicas[key] = replica  # keeps its place in the order of use, or goes last
        self._partitions.setdefault(key[1], set()).add(key[0])
        self._rows += replica.rows
        self._size += replica.size

    def _drop(self, key: Key) -> None:
        replica = self._replicas.pop(key)
        self._rows -= replica.rows
        self._size -= replica.size
        tables = self._partitions[key[1]]
        tables.discard(key[0])
        if not tables:
            del self._partitions[key[1]]
        self._evictions += 1

    def _make_room(self) -> None:
        while self._size > self._memory_bytes:
            self._drop(next(iter(self._replicas)))

    def _evict(self, table_id: int) -> None:
        for partition in tuple(self._partitions.get(table_id, ())):
            self._drop((partition, table_id))
        load = self._loading.get(table_id)
        if load is not None:
            load.spoiled = True

    def _outgrow(self, table_id: int) -> None:
        self._evict(table_id)
        self._note_oversized(table_id)

    def _note_poison(self, table_id: int, event_id: int) -> None:
        logger.exception("event %d cannot be applied to table %d", event_id, table_id)
        self._poisoned += 1
        self._evict(table_id)

    def _note_oversized(self, table_id: int) -> None:
        self._oversized[table_id] = None
        if len(self._oversized) > MAX_OVERSIZED:
            self._oversized.popitem(last=False)


def _caught_up(replica: Replica, changes: Iterable[tuple[int, Change]]) -> Replica:
    for event_id, change in changes:
        if event_id > replica.event_id:
            replica = change(replica)
    return replica
