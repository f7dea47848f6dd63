"""The set of replicas that a node holds: bounded, level with the log, swapped in one step.

One lock guards all of them. No work under the lock grows with the size of a table: it takes
references, makes the next value of a replica from a small change, and swaps it in. All changes of a
transaction to several tables are swapped in under one acquisition of the lock.

A table is loaded while events arrive. The load is announced before the store is read, and from then
on events for the table are kept. When the rows arrive, the kept events that they do not reflect are
applied to them. So no event is lost or applied twice, in whatever order they arrive.

A change that fails evicts its table, even one that is loading, since its state is unknown.

A replica that was read from disk is *packed* until it is used: a read or an event that needs it
unpacks it, outside of the lock. Others that need it give way (`strandline.work.keyed_lock`),
because many clients come together when a node starts. Like any other, it reflects the log up to its
own event.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from strandline import work
from strandline.errors import CorruptData
from strandline.metastore.cache.replicas import Replica
from strandline.work.keyed_lock import KeyedLock

logger = logging.getLogger(__name__)

MAX_CHANGES_WHILE_LOADING = 10_000
MAX_ROWS = 60_000
"""The maximum number of rows of a table in memory: loading them takes a thread a second or two."""
MAX_OVERSIZED = 1_000


class Packed(Protocol):
    """A replica as bytes; ``size`` is their approximate number."""

    @property
    def table_id(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    def unpacked(self) -> Replica:
        """The unpacked replica. Raises `CorruptData`."""


HeldReplica: TypeAlias = Replica | Packed

Change = Callable[[Replica], Replica]
"""Returns the next value of a replica."""


@dataclass(slots=True)
class Load:
    """A load in progress of a table; the result is dropped if it is ``is_void``.

    ``ended`` is done when the load has ended, with or without a result.
    """

    table_id: int
    changes: list[tuple[int, Change]] = field(default_factory=list)
    is_void: bool = False
    ended: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class ReplicaSetStatistics:
    """The replicas held now; ``loads``, ``evictions`` and ``poisoned`` count since the start.

    ``size`` is in approximate bytes. ``poisoned`` changes could not be applied, and evicted their
    table.
    """

    applied_event: int
    replicas: int
    rows: int
    size: int
    loads: int
    evictions: int
    poisoned: int


class ReplicaSet:
    """See the module. ``applied_event`` is the last event of the log that was applied.

    ``memory_bytes`` is the limit for the size of all replicas.
    """

    def __init__(self, *, applied_event: int, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self.applied_event = applied_event
        self._replicas: OrderedDict[int, HeldReplica] = OrderedDict()
        self._loading: dict[int, Load] = {}
        self._unpacking: KeyedLock[int] = KeyedLock()
        self._oversized: OrderedDict[int, None] = OrderedDict()
        self._rows = self._size = 0
        self._loads = self._evictions = self._poisoned = 0

    def get(self, table_id: int, *, max_rows: int | None = None) -> Replica | None:
        """The replica of a table; None if not held, or packed with more than ``max_rows`` rows."""
        with self._lock:
            replica = self._replicas.get(table_id)
            if replica is None:
                return None
            self._replicas.move_to_end(table_id)
        if isinstance(replica, Replica):
            return replica
        if max_rows is not None and replica.rows > max_rows:
            return None
        return self._unpack(replica, gives_way=True)

    def needs(self, table_id: int, event_id: int) -> bool:
        """Whether the table is being loaded, or held without that event of its own."""
        with self._lock:
            return table_id in self._loading or _lacks(self._replicas.get(table_id), event_id)

    def snapshot(self) -> tuple[int, list[HeldReplica]]:
        """The last applied event, and the replicas at that moment, the most recently used last."""
        with self._lock:
            return self.applied_event, list(self._replicas.values())

    # -- loading

    def begin_load(self, table_id: int) -> Load | None:
        """Announce a load; None if the table is being loaded, or is known to be too large."""
        with self._lock:
            is_too_large = table_id in self._oversized or not self.memory_bytes
            if is_too_large or table_id in self._loading:
                return None
            load = self._loading[table_id] = Load(table_id)
            return load

    def loading(self, table_id: int) -> Load | None:
        with self._lock:
            return self._loading.get(table_id)

    def finish_load(self, load: Load, replica: Replica | None) -> None:
        """End a load with the loaded replica, or with None if the load failed."""
        with self._ending(load):
            if replica is None or load.is_void:
                return
            try:
                current = _caught_up(replica, load.changes)
            except Exception:
                self._note_poison(load.table_id, self.applied_event)
                return
            if current.size > self.memory_bytes:
                self._note_oversized(load.table_id)
                return
            self._loads += 1
            self._put(current)
            self._make_room()

    def refuse_load(self, load: Load) -> None:
        """End a load of a table that is too large to be held; it is not loaded again."""
        with self._ending(load):
            self._note_oversized(load.table_id)

    @contextmanager
    def _ending(self, load: Load) -> Iterator[None]:
        """Hold the lock at the end of a load; then the calls that gave way to it begin again."""
        try:
            with self._lock:
                del self._loading[load.table_id]
                yield
        finally:
            load.ended.set_result(None)

    # -- following the log

    def apply(self, event_id: int, changes: Sequence[tuple[int, Change]]) -> None:
        """Apply the changes of an event, each with its table id, in one step."""
        with self._lock:
            changed = [self._replicas.get(table_id) for table_id, _ in changes]
        for replica in changed:
            if replica is not None and not isinstance(replica, Replica):
                self._unpack(replica, gives_way=False)
        with self._lock:
            next_replicas: list[Replica] = []
            for table_id, change in changes:
                try:
                    next_replicas += self._next(table_id, event_id, change)
                except Exception:
                    self._note_poison(table_id, event_id)
            for replica in next_replicas:
                self._put(replica)
                if replica.rows > MAX_ROWS:  # without the old ones, the rest may still fit
                    self._evict(replica.table_id)
            self.applied_event = event_id
            self._make_room()

    def evict(self, table_id: int) -> None:
        """Evict a table; the next read loads it, even if it was too large before."""
        with self._lock:
            self._evict(table_id)
            self._oversized.pop(table_id, None)

    def skip(self, event_id: int, *, poisoned: Collection[int] | None) -> None:
        """Skip an event that cannot be read, and evict its tables, or all tables if None."""
        with self._lock:
            tables = {*self._replicas, *self._loading} if poisoned is None else poisoned
            for table_id in tables:
                self._evict(table_id)
            self._poisoned += 1
            self.applied_event = event_id

    def restart(self, applied_event: int) -> None:
        """Evict all tables, and continue after ``applied_event``."""
        with self._lock:
            for table_id in {*self._replicas, *self._loading}:
                self._evict(table_id)
            self.applied_event = applied_event

    def restore(self, applied_event: int, replicas: Iterable[HeldReplica]) -> None:
        """Hold these replicas instead, the last used last; continue after ``applied_event``."""
        self.restart(applied_event)
        with self._lock:
            for replica in replicas:
                self._put(replica)
            self._make_room()

    def statistics(self) -> ReplicaSetStatistics:
        with self._lock:
            return ReplicaSetStatistics(
                applied_event=self.applied_event,
                replicas=len(self._replicas),
                rows=self._rows,
                size=self._size,
                loads=self._loads,
                evictions=self._evictions,
                poisoned=self._poisoned,
            )

    def _unpack(self, packed: Packed, *, gives_way: bool) -> Replica | None:
        """`_unpacked`, or the result of another thread that has just unpacked the replica."""
        # The event loop unpacks small replicas, and must not wait.
        is_small = packed.rows <= work.AT_ONCE
        alone = self._unpacking.hold(packed.table_id, gives_way=gives_way)
        with nullcontext() if is_small else alone:
            with self._lock:
                current = self._replicas.get(packed.table_id)
            return current if isinstance(current, Replica) else self._unpacked(packed)

    def _unpacked(self, packed: Packed) -> Replica | None:
        """Unpack a replica of this set; None if it cannot be read, or was evicted meanwhile."""
        try:
            replica = packed.unpacked()
        except Exception:
            with self._lock:
                if self._replicas.get(packed.table_id) is packed:
                    self._note_poison(packed.table_id, self.applied_event)
            return None
        with self._lock:
            current = self._replicas.get(packed.table_id)
            if current is packed:
                self._put(replica)
                self._make_room()
                return replica
            # Another thread has unpacked or evicted it.
            return current if isinstance(current, Replica) else None

    # -- under the lock

    def _next(self, table_id: int, event_id: int, change: Change) -> list[Replica]:
        load = self._loading.get(table_id)
        if load is not None:
            load.changes.append((event_id, change))
            load.is_void |= len(load.changes) > MAX_CHANGES_WHILE_LOADING
        replica = self._replicas.get(table_id)
        if not _lacks(replica, event_id):
            return []
        if not isinstance(replica, Replica):
            raise CorruptData(f"table {table_id} is packed, and event {event_id} changes it")
        return [change(replica)]

    def _put(self, replica: HeldReplica) -> None:
        before = self._replicas.get(replica.table_id)
        if before is not None:
            self._rows -= before.rows
            self._size -= before.size
        self._replicas[replica.table_id] = replica  # keeps its position in the order of use
        self._rows += replica.rows
        self._size += replica.size

    def _drop(self, table_id: int) -> None:
        replica = self._replicas.pop(table_id)
        self._rows -= replica.rows
        self._size -= replica.size
        self._evictions += 1

    def _make_room(self) -> None:
        while self._size > self.memory_bytes:
            self._drop(next(iter(self._replicas)))

    def _evict(self, table_id: int) -> None:
        if table_id in self._replicas:
            self._drop(table_id)
        load = self._loading.get(table_id)
        if load is not None:
            load.is_void = True

    def _note_poison(self, table_id: int, event_id: int) -> None:
        logger.exception("event %d cannot be applied to table %d", event_id, table_id)
        self._poisoned += 1
        self._evict(table_id)

    def _note_oversized(self, table_id: int) -> None:
        self._oversized[table_id] = None
        if len(self._oversized) > MAX_OVERSIZED:
            self._oversized.popitem(last=False)


def _lacks(replica: HeldReplica | None, event_id: int) -> bool:
    if isinstance(replica, Replica):
        return replica.event_id < event_id
    return replica is not None  # only an unpacked one says what it reflects


def _caught_up(replica: Replica, changes: Iterable[tuple[int, Change]]) -> Replica:
    for event_id, change in changes:
        if event_id > replica.event_id:
            replica = change(replica)
    return replica
