"""Locks of Hive's clients on schemas, tables and partitions, granted in the order of requests.

The problem: engines that know nothing of our transactions (PyIceberg, Iceberg for Java, Hudi)
serialize their commits by a lock of the metastore. They lock the table, read the location of its
metadata, write new metadata, alter the table, and unlock. If two of them held the lock at once, the
second commit would silently undo the first. Our own transactions need no locks and ignore them.

The model is Hive's. A *request* has one or more *components*, each a mode on a schema, a table or a
partition. A request is granted as a whole or waits as a whole. The id of a request is its place in
the queue: a request waits for every earlier request that conflicts with it, whether that one is
granted or waiting. So a stream of readers does not starve a writer. Two SHARED_WRITE conflict, as
in Hive 2.3, whose clients rely on being the only writer. In Hive 4 they do not conflict; its
clients wait here although they need not.

| requested: rows; held: columns | SHARED_READ | SHARED_WRITE | EXCL_WRITE | EXCLUSIVE |
| --- | --- | --- | --- | --- |
| SHARED_READ  | both | both | both | wait |
| SHARED_WRITE | both | wait | wait | wait |
| EXCL_WRITE   | both | wait | wait | wait |
| EXCLUSIVE    | wait | wait | wait | wait |

What must stay true:

* Two requests that are granted at the same time do not conflict, unless they belong to one
  transaction.
* A granted request stays granted until its client releases it, or is silent for longer than the
  time-out, or the transaction that it belongs to ends.
* Every decision is one write transaction of the database. So the processes on one store decide in
  one order, and a request that was answered survives a restart.
* A client that has lost its lock learns it: heartbeat and check raise `LockNotFound`.

No request waits inside the metastore. A client that has to wait polls with `Locks.check`.

Rejected: readers that overtake a waiting writer, as in Hive 2.3. It does not look at later requests
when it grants the writer, so the writer's exclusive lock is granted while they hold theirs. Locks
on table ids (the clients lock tables that do not exist yet, to create them). Locks in the memory
of a node (several processes share one store).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from sqlalchemy import Connection, RowMapping

from strandline.clock import HybridClock, milliseconds
from strandline.errors import (
    InvalidInput,
    LimitExceeded,
    LockNotFound,
    TransactionFinished,
    TransactionNotFound,
)
from strandline.logs import fields
from strandline.sql import Database, present_time
from strandline.transactions import lock_records, records
from strandline.transactions.heartbeats import Heartbeats
from strandline.transactions.transaction import TransactionState, refuse_long_texts, require_owner

logger = logging.getLogger(__name__)

MAX_COMPONENTS = 1_000
MAX_NAME_LENGTH = 4_000
MAX_STORED = 10_000
"""The maximum number of components in a store; each one slows every grant on its schema."""
MAX_SHOWN = 10_000
"""The maximum number of components that `Locks.list` returns."""


class LockMode(Enum):
    """The mode of a lock. The numbers are stored in the database."""

    SHARED_READ = 1
    SHARED_WRITE = 2
    EXCLUSIVE = 3
    EXCL_WRITE = 4


_WAITS_FOR: dict[LockMode, frozenset[LockMode]] = {
    LockMode.SHARED_READ: frozenset({LockMode.EXCLUSIVE}),
    LockMode.SHARED_WRITE: frozenset(LockMode) - {LockMode.SHARED_READ},
    LockMode.EXCL_WRITE: frozenset(LockMode) - {LockMode.SHARED_READ},
    LockMode.EXCLUSIVE: frozenset(LockMode),
}


@dataclass(frozen=True, slots=True)
class Component:
    """A mode on a schema, on a table in it, or on a partition of the table; names in lower case.

    ``number`` is its place in its request, from 1, once the request is stored.
    """

    mode: LockMode
    schema: str
    table: str | None = None
    partition: str | None = None
    number: int = field(default=0, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        if not self.schema:
            raise InvalidInput("a lock must name a schema")
        if self.partition is not None and self.table is None:
            raise InvalidInput("a lock on a partition must name its table")
        names = (self.schema, self.table or "", self.partition or "")
        if max(map(len, names)) > MAX_NAME_LENGTH:
            raise LimitExceeded(f"a name in a lock has at most {MAX_NAME_LENGTH} characters")

    def waits_for(self, earlier: Component) -> bool:
        """Whether this component must wait for that component of an earlier request."""
        return (
            self.schema == earlier.schema
            and (self.table is None or earlier.table is None or self.table == earlier.table)
            and (
                self.partition is None
                or earlier.partition is None
                or self.partition == earlier.partition
            )
            and earlier.mode in _WAITS_FOR[self.mode]
            and not self._only_uses_schema(earlier)
        )

    def _only_uses_schema(self, earlier: Component) -> bool:
        """Whether one side only reads the schema (``USE``) and the other locks a table in it.

        The table's lock is exclusive. The reader of a schema needs only its name.
        """
        own_mode, earlier_mode = self.mode, earlier.mode
        if self.table is None and earlier.table is not None:
            return own_mode is LockMode.SHARED_READ and earlier_mode is LockMode.EXCLUSIVE
        if self.table is not None and earlier.table is None:
            return own_mode is LockMode.EXCLUSIVE and earlier_mode is LockMode.SHARED_READ
        return False


@dataclass(frozen=True, slots=True)
class LockRequest:
    """A request as it was when it was read. ``owner`` made it, ``user`` is the user that it names.

    Times are in milliseconds since 1970. ``acquired_at`` is None while the request waits;
    ``blocked_by`` is the first request that it waits for.
    """

    lock_id: int
    txn_id: int | None
    owner: str
    user: str
    host: str
    agent: str
    last_heartbeat: int
    acquired_at: int | None
    blocked_by: int | None
    components: tuple[Component, ...]

    @property
    def acquired(self) -> bool:
        return self.acquired_at is not None

    def waits_for(self, earlier: LockRequest) -> dict[Component, int]:
        """The components that wait for one of ``earlier``, with the number of the first."""
        numbers = {component: component.number for component in reversed(earlier.components)}
        return _first_blocking(self.components, numbers)


class Locks:
    """The locks of one store. Safe for threads, and for several processes on one store.

    ``timeout_ms`` is how long a request lives without a heartbeat. Calls that take ``may_touch``
    call it with the request; it raises if the caller may not check or end the request.
    """

    def __init__(
        self,
        database: Database,
        clock: HybridClock,
        *,
        heartbeats: Heartbeats,
        timeout_ms: int,
    ) -> None:
        self._database = database
        self._clock = clock
        self._heartbeats = heartbeats
        self._timeout_ms = timeout_ms

    def acquire(
        self,
        components: Sequence[Component],
        *,
        owner: str,
        user: str = "",
        host: str = "",
        agent: str = "",
        txn_id: int | None = None,
        txn_owner: str | None = None,
    ) -> LockRequest:
        """Add a request to the queue. It is granted if no earlier request conflicts, else it waits.

        With ``txn_id`` the request belongs to that transaction and ends with it. Raises
        `TransactionNotFound` (also if the transaction is committed, as in Hive),
        `TransactionFinished`, `ForeignTransaction` if the transaction does not belong to
        ``txn_owner``, `InvalidInput`, `LimitExceeded`.
        """
        if not components:
            raise InvalidInput("a lock request must name at least one schema, table or partition")
        if len(components) > MAX_COMPONENTS:
            raise LimitExceeded(
                f"a lock request has at most {MAX_COMPONENTS} components, this one has"
                f" {len(components)}; lock whole tables instead of their partitions"
            )
        refuse_long_texts(owner, user, host, agent)
        with self._database.guarded_write() as connection:
            if txn_id is not None:
                _require_open(connection, txn_id, txn_owner)
            now = self._now_ms(connection)
            self._delete_silent(connection, now)
            _require_room(connection, len(components), owner=owner)
            lock_id = lock_records.add(
                connection,
                [_values(component) for component in components],
                owner=owner,
                user=user,
                host=host,
                agent=agent,
                txn_id=txn_id,
                last_heartbeat=self._heartbeats.time(now),
                timeout_ms=self._timeout_ms,
            )
            return self._settle(connection, self._find(connection, lock_id, None), now)

    def check(
        self, lock_id: int, *, may_touch: Callable[[LockRequest], None] | None = None
    ) -> LockRequest:
        """Return the request as it is now, after granting it if possible.

        Counts as a heartbeat, also of its transaction. Raises `LockNotFound`.
        """
        with self._database.read() as connection:
            self._database.guard(connection)
            request = self._find(connection, lock_id, may_touch)
            now = self._now_ms(connection)
            stays = self._stays_as_it_is(connection, request, now)
        txn_ids = () if request.txn_id is None else (request.txn_id,)
        heard_at = self._heartbeats.time(now)
        self._heartbeats.note(locks=[lock_id], txns=txn_ids, at=heard_at)
        if stays:
            # The usual answer to a client that polls: it must not cost a write.
            return replace(request, last_heartbeat=max(heard_at, request.last_heartbeat))
        with self._database.guarded_write() as connection:
            request = self._find(connection, lock_id, may_touch)
            now = self._now_ms(connection)
            heard_at = self._heartbeats.time(now)
            lock_records.set_state(connection, lock_id, last_heartbeat=heard_at)
            request = replace(request, last_heartbeat=heard_at)
            if request.acquired:
                return request
            self._delete_silent(connection, now)
            return self._settle(connection, request, now)

    def heartbeat(
        self, lock_id: int, *, may_touch: Callable[[LockRequest], None] | None = None
    ) -> None:
        """Note that the client of a request is alive. Raises `LockNotFound`.

        It waits for no writer, and no writer waits for it: see `Heartbeats`.
        """
        with self._database.read() as connection:
            self._database.guard(connection)
            self._find(connection, lock_id, may_touch)
            now = self._now_ms(connection)
        self._heartbeats.note(locks=[lock_id], at=self._heartbeats.time(now))

    def release(
        self, lock_id: int, *, may_touch: Callable[[LockRequest], None] | None = None
    ) -> None:
        """Remove a request, granted or waiting. Does nothing if it does not exist.

        Raises `TransactionFinished` if the request is granted to a transaction: it ends with that.
        While it waits, Hive's clients give it up in this way, before they end the transaction.
        """
        with self._database.guarded_write() as connection:
            try:
                request = self._find(connection, lock_id, may_touch)
            except LockNotFound:
                return
            if request.txn_id is not None and request.acquired:
                raise TransactionFinished(
                    f"lock {lock_id} belongs to transaction {request.txn_id} and ends with it;"
                    " commit or abort the transaction"
                )
            lock_records.remove(connection, lock_id)

    def withdraw(self, lock_id: int) -> None:
        """Remove a request if it is waiting, even if it belongs to a transaction."""
        with self._database.guarded_write() as connection:
            rows = lock_records.find(connection, lock_id)
            if rows and rows[0]["acquired_at"] is None:
                lock_records.remove(connection, lock_id)

    def list(
        self,
        *,
        schema: str | None = None,
        table: str | None = None,
        partition: str | None = None,
        txn_id: int | None = None,
        lock_ids: Collection[int] | None = None,
    ) -> list[LockRequest]:
        """The requests with a component of these names, in the order of the queue.

        Each request has only the components that match. Returns at most `MAX_SHOWN` components in
        total; ``lock_ids`` are at most as many.
        """
        with self._database.read() as connection:
            rows = lock_records.shown(
                connection,
                schema=schema,
                table=table,
                partition=partition,
                txn_id=txn_id,
                lock_ids=lock_ids,
                limit=MAX_SHOWN,
            )
        by_request: dict[int, list[RowMapping]] = {}
        for row in rows:
            by_request.setdefault(row["lock_id"], []).append(row)
        return [_request(group) for group in by_request.values()]

    def expire(self) -> int:
        """Delete the requests that were silent for longer than their time-out; return how many."""
        with self._database.read() as connection:
            if not self._has_silent(connection, self._now_ms(connection)):
                return 0
        with self._database.guarded_write() as connection:
            # Checked again: a heartbeat that arrived in the meantime wins. The present too: to
            # `heard_until`, an earlier time would look like a leap of the clock.
            return len(self._delete_silent(connection, self._now_ms(connection)))

    # -- inside one SQL transaction

    def _stays_as_it_is(self, connection: Connection, request: LockRequest, now: int) -> bool:
        """Whether the request is granted, or still waits for the same request, which is alive."""
        if request.acquired:
            return True
        if self._has_silent(connection, now):
            return False
        # Requests never change, only end: the first that conflicts stays the first until it ends.
        return request.blocked_by is not None and lock_records.is_stored(
            connection, request.blocked_by
        )

    def _has_silent(self, connection: Connection, now: int) -> bool:
        return lock_records.has_silent(connection, at=self._heartbeats.heard_until(now))

    def _delete_silent(self, connection: Connection, now: int) -> Sequence[int]:
        self._heartbeats.write_locks(connection)
        silent = lock_records.delete_silent(connection, at=self._heartbeats.heard_until(now))
        if silent:
            logger.info(
                "released locks whose clients sent no heartbeat for their time-out: %s",
                ", ".join(map(str, silent)),
                extra=fields(count=len(silent)),  # the line of thousands is cut
            )
        return silent

    def _settle(self, connection: Connection, request: LockRequest, now: int) -> LockRequest:
        """Grant a waiting request unless an earlier one conflicts; store which one conflicts."""
        blocker = _first_conflict(connection, request)
        acquired_at = now if blocker is None else None
        lock_records.set_state(
            connection, request.lock_id, acquired_at=acquired_at, blocked_by=blocker
        )
        return replace(request, acquired_at=acquired_at, blocked_by=blocker)

    def _find(
        self,
        connection: Connection,
        lock_id: int,
        may_touch: Callable[[LockRequest], None] | None,
    ) -> LockRequest:
        rows = lock_records.find(connection, lock_id)
        if not rows:
            raise LockNotFound(
                f"no such lock lockid:{lock_id}: it was released, timed out or never existed; "
                "lock again, and read again what the lock was to protect"
            )
        request = _request(rows)
        if may_touch is not None:
            may_touch(request)
        return request

    def _now_ms(self, connection: Connection) -> int:
        return milliseconds(present_time(connection, self._clock))


def _require_room(connection: Connection, count: int, *, owner: str) -> None:
    stored = lock_records.component_count(connection) + count
    if stored > MAX_STORED:
        raise LimitExceeded(
            f"the locks of all clients may have {MAX_STORED} components together, and that limit "
            "is nearly reached; lock again when some are released or time out"
        )
    share = MAX_STORED * 3 // 4
    if stored > share and lock_records.component_count(connection, owner=owner) + count > share:
        raise LimitExceeded(
            f"the locks of one user may have {share} components together, and {owner} has nearly "
            "as many; release some, or lock whole tables instead of their partitions"
        )


def _values(component: Component) -> dict[str, object]:
    return {
        "schema": component.schema,
        "table": component.table,
        "partition": component.partition,
        "mode": component.mode.value,
    }


def _first_conflict(connection: Connection, request: LockRequest) -> int | None:
    """The first earlier request that this one has to wait for, or None."""
    components = frozenset(request.components)
    rows = lock_records.earlier_components(
        connection,
        request.lock_id,
        schemas={component.schema for component in components},
        tables={component.table for component in components},
        modes={mode.value for component in components for mode in _WAITS_FOR[component.mode]},
        txn_id=request.txn_id,
    )
    first: dict[Component, int] = {_component(row): row["lock_id"] for row in rows}
    return min(_first_blocking(components, first).values(), default=None)


def _first_blocking(
    components: Iterable[Component], earlier: Mapping[Component, int]
) -> dict[Component, int]:
    """The components that wait for one of ``earlier``, each with the smallest of their numbers.

    The cost grows with the number of different components on both sides, not with their product.
    """
    index = _Index(earlier)
    first: dict[Component, int] = {}
    for component in frozenset(components):
        overlapping = index.may_overlap(component)
        numbers = [earlier[other] for other in overlapping if component.waits_for(other)]
        if numbers:
            first[component] = min(numbers)
    return first


class _Index:
    """Components by the object that they lock, and by the schema and table that contain it."""

    def __init__(self, components: Iterable[Component]) -> None:
        self._on: defaultdict[tuple[str | None, ...], list[Component]] = defaultdict(list)
        self._within: defaultdict[tuple[str | None, ...], list[Component]] = defaultdict(list)
        for component in components:
            schema, table = component.schema, component.table
            self._on[schema, table, component.partition].append(component)
            self._within[schema, None].append(component)
            if table is not None:
                self._within[schema, table].append(component)

    def may_overlap(self, component: Component) -> list[Component]:
        """The components on the same object, inside it, or around it."""
        schema, table, partition = component.schema, component.table, component.partition
        if table is None:
            return self._within[schema, None]
        around = self._on[schema, None, None]
        if partition is None:
            return around + self._within[schema, table]
        return around + self._on[schema, table, None] + self._on[schema, table, partition]


def _require_open(connection: Connection, txn_id: int, owner: str | None) -> None:
    transaction = records.find(connection, txn_id)
    require_owner(txn_id, transaction.user, owner=owner)
    if transaction.state is TransactionState.OPEN:
        return
    committed = transaction.state is TransactionState.COMMITTED
    raise (TransactionNotFound if committed else TransactionFinished)(
        f"transaction {txn_id} cannot lock: it {records.ending(transaction)}; begin another"
    )


def _component(row: RowMapping) -> Component:
    return Component(LockMode(row["mode"]), row["schema"], row["table"], row["partition"])


def _request(rows: Sequence[RowMapping]) -> LockRequest:
    row = rows[0]
    return LockRequest(
        lock_id=row["lock_id"],
        txn_id=row["txn_id"],
        owner=row["owner"],
        user=row["user"],
        host=row["host"],
        agent=row["agent"],
        last_heartbeat=row["last_heartbeat"],
        acquired_at=row["acquired_at"],
        blocked_by=row["blocked_by"],
        components=tuple(replace(_component(row), number=row["number"] + 1) for row in rows),
    )
