"""A pool of connections that loses none if a signal handler raises.

SQLAlchemy counts the connections that are in use. If a handler raises just as one is taken or
returned, the count stays too high, and one that raises in a method of `threading.Condition` leaves
the pool locked (see `strandline.condition`). So here each connection has a *slot*, and the pool
counts the slots that still exist. The slot of a connection that an interrupt has lost goes with it.
"""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakSet

from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.pool import Pool, QueuePool
from sqlalchemy.pool.base import ConnectionPoolEntry

from strandline.condition import Condition

_LOOK_SECONDS = 0.5
"""How often a caller that waits looks whether a lost connection has gone: nothing tells it."""


class _Slot:
    """The right to one connection, or to one of the next that are free."""

    __slots__ = ("__weakref__",)


class ConnectionPool(Pool):
    """See the module. The arguments are those of SQLAlchemy's `QueuePool`.

    The connection that was returned last is used first: it has its plans and warm caches. A caller
    that waits is served before those that come later.
    """

    __module__ = QueuePool.__module__  # SQLAlchemy names its logger after it

    def __init__(
        self,
        creator: Any,  # as in SQLAlchemy, where its type is private
        pool_size: int = 5,  # `create_engine` does not see keyword-only ones
        max_overflow: int = 10,
        timeout: float = 30.0,
        **options: Any,  # those of `Pool`
    ) -> None:
        super().__init__(creator, **options)
        self._size, self._most, self._timeout = pool_size, pool_size + max_overflow, timeout
        self._options = options
        self._idle: list[ConnectionPoolEntry] = []
        self._slots: WeakSet[_Slot] = WeakSet()
        self._claims: WeakSet[_Slot] = WeakSet()
        """One for each caller that waits."""
        self._changed = Condition()

    def open_connections(self) -> int:
        return len(self._slots)

    def status(self) -> str:
        return f"connections: {len(self._slots)}, idle: {len(self._idle)}, at most: {self._most}"

    def recreate(self) -> ConnectionPool:
        return type(self)(
            self._creator,
            pool_size=self._size,
            max_overflow=self._most - self._size,
            timeout=self._timeout,
            **{**self._options, "_dispatch": self.dispatch, "dialect": self._dialect},
        )

    def dispose(self) -> None:
        with self._changed:  # others may take connections meanwhile
            idle, self._idle = self._idle, []
        for entry in idle:
            entry.close()

    def _do_get(self) -> ConnectionPoolEntry:
        with self._changed:
            # Else a thread that returns a connection would take it again, and others none.
            if self._claims or self._is_exhausted():
                self._await_turn()
            entry = self._idle.pop() if self._idle else None
            if entry is None:
                slot = _Slot()
                self._slots.add(slot)
            if self._claims and not self._is_exhausted():
                self._changed.notify()  # the next one need not wait until one is returned
        if entry is not None:
            return entry
        try:
            entry = self._create_connection()
            entry.slot = slot  # type: ignore[attr-defined]  # it has a dictionary for its users
        except BaseException:
            self._give_up(slot)  # the error may be kept, and its traceback keeps the slot
            raise
        return entry

    def _is_exhausted(self) -> bool:
        return not self._idle and len(self._slots) >= self._most

    def _await_turn(self) -> None:
        """Wait for a connection, behind those who wait already. The caller holds the lock."""
        end, claim = time.monotonic() + self._timeout, _Slot()
        self._claims.add(claim)
        try:
            while True:
                seconds_left = end - time.monotonic()
                if seconds_left <= 0:
                    raise NoConnection(f"at most {self._most} connections, all of them in use")
                self._changed.wait(min(seconds_left, _LOOK_SECONDS))
                if not self._is_exhausted():
                    return
        finally:
            self._claims.discard(claim)

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        with self._changed:
            if is_kept := len(self._idle) < self._size:
                self._idle.append(record)
                self._changed.notify()
        if not is_kept:
            record.close()
            self._give_up(record.slot)  # type: ignore[attr-defined]  # `_do_get` has set it

    def _give_up(self, slot: _Slot) -> None:
        with self._changed:
            self._slots.discard(slot)
            self._changed.notify()
