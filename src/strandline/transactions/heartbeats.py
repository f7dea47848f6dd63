"""Heartbeats of transactions and locks: noted in memory at once, and stored soon after.

The problem: a database has one write lock, and the clients of thousands of open transactions send
heartbeats. If each heartbeat took the lock, commits would wait for heartbeats, and heartbeats for
commits.

The model. A heartbeat is a note: which transaction or lock, and when. `Heartbeats.note` keeps it in
memory, waits for nothing and takes no lock of the database. A thread stores all notes in one short
write, at most once in `PERIOD` seconds. If that thread does not run, as in a program that has no
node, each call stores its own note.

What must stay true:

* A note whose call has returned is stored within `LATEST` seconds while the process runs. A call
  that finds the thread late stores by itself, and fails if that fails.
* Code that ends silent transactions or locks first stores the notes of its own process, in the same
  write transaction: a heartbeat that was noted before wins.
* A note never moves the last heartbeat back in time, and never revives what has ended.
* No client counts as silent because the store's time leaps, as when a clock is set or a machine has
  slept. Until a time-out has passed since a leap, silence does not include it
  (`Heartbeats.heard_until`).
* No client counts as silent because its node's clock is behind. While the store's time, which a
  node with another clock has moved ahead, stands still, heartbeats go on from it
  (`Heartbeats.time`).

A process that is killed loses the notes of the last `PERIOD`. Clients send heartbeats at a third or
half of the time-out, so the next one arrives in time, on any node.

Rejected: storing a heartbeat only if the stored one is old: then each client's would be old.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from sqlalchemy import Connection

from strandline.condition import Condition
from strandline.errors import StrandlineError
from strandline.sql import Database, change_each
from strandline.sql.database import DEFAULT_TIMEOUT
from strandline.transactions.tables import is_id
from strandline.transactions.transaction import TransactionState
from strandline.work.following import FollowingThread

logger = logging.getLogger(__name__)

PERIOD = 0.25
"""The minimum number of seconds between two writes of the thread."""
LATEST = 2.0
"""Seconds after which a call no longer relies on the thread."""
_MOST = 500
"""How many notes of each kind one write stores: other writers wait for it."""

_STORE_TXN = (
    "UPDATE txn SET last_heartbeat = ? WHERE txn_id = ?"
    f" AND state = {TransactionState.OPEN.value} AND last_heartbeat < ?"
)
_STORE_LOCK = "UPDATE lock_request SET last_heartbeat = ? WHERE lock_id = ? AND last_heartbeat < ?"


Notes = dict[int, int]
"""The times of the last heartbeats, in milliseconds, by transaction or lock id."""


class Heartbeats:
    """See the module docstring. Safe for threads."""

    def __init__(
        self,
        database: Database,
        *,
        timeout_ms: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._database = database
        self._timeout_ms = timeout_ms
        self._monotonic = monotonic
        self._ahead = 0  # how far the latest time of the store is ahead of ``monotonic``
        self._last_look: tuple[int, int] | None = None
        self._leap = self._leap_end = 0
        self._txns: Notes = {}
        self._locks: Notes = {}
        self._oldest: float | None = None
        self._notes = 0
        self._changed = Condition()
        self._storing = threading.Lock()
        self._stopping = threading.Event()
        self._thread = FollowingThread(self._round, name="storing heartbeats")

    def note(self, *, txns: Iterable[int] = (), locks: Iterable[int] = (), at: int) -> None:
        """Note that the clients of these transactions and locks were alive at ``at`` (ms).

        If the thread does not run or is late, raises what `store` raises.
        """
        with self._changed:
            for notes, ids in ((self._txns, txns), (self._locks, locks)):
                for number in ids:
                    notes[number] = max(at, notes.get(number, at))
                    self._notes += 1
            if not self._txns and not self._locks:
                return
            if self._oldest is None:
                self._oldest = time.monotonic()
            is_late = time.monotonic() - self._oldest > LATEST
            self._changed.notify_all()
        if is_late or not self._thread.running():
            self.store()

    def time(self, now: int) -> int:
        """The time (ms) of a heartbeat: ``now``, or later if the store's time stood still."""
        with self._changed:
            ran = self._ran()
            self._ahead = max(self._ahead, now - ran)
            return self._ahead + ran

    def heard_until(self, now: int) -> int:
        """``now`` (ms), less a leap of the store's time since which clients may not be heard yet.

        In a leap, the time moves on by more than this process has run since its last look. Smaller
        ones than a quarter of a time-out do not count: clients send heartbeats soon enough.
        """
        self.time(now)  # later heartbeats go on from ``now``
        with self._changed:
            ran = self._ran()
            last_look, last_ran = self._last_look or (now, ran)
            self._last_look = now, ran
            if last_look > self._leap_end + self._timeout_ms:
                self._leap = 0
            leap = (now - last_look) - (ran - last_ran)
            if leap > self._timeout_ms // 4:
                self._leap, self._leap_end = self._leap + leap, now
            return now - self._leap

    def store(self, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Store all notes made before. If it raises the database's error, unstored notes are kept.

        It waits for the write lock until ``timeout`` seconds from now. Notes made meanwhile stay in
        memory; otherwise it would never end while many clients send heartbeats.
        """
        deadline = time.monotonic() + timeout
        with self._storing:
            began = time.monotonic()
            for txns, locks in self._noted():
                # Heartbeats matter only while the machine runs: after a power cut, clients send
                # them again.
                with self._database.guarded_write(deadline=deadline, is_synced=False) as connection:
                    _write(connection, _STORE_TXN, txns)
                    _write(connection, _STORE_LOCK, locks)
                self._forget(txns, locks)
            with self._changed:
                self._oldest = began if self._txns or self._locks else None

    def counts(self) -> tuple[int, int]:
        """The number of notes since the start, and of those that are still only in memory."""
        with self._changed:
            return self._notes, len(self._txns) + len(self._locks)

    def write_txns(self, connection: Connection, txn_ids: Iterable[int]) -> None:
        """Store the notes of these transactions, if any, in a write of the caller."""
        with self._changed:
            notes = {t: self._txns[t] for t in txn_ids if t in self._txns}
        _write(connection, _STORE_TXN, notes)

    def write_locks(self, connection: Connection) -> None:
        """Store the notes of all locks in a write of the caller."""
        with self._changed:
            locks = self._locks.copy()
        _write(connection, _STORE_LOCK, locks)

    def start(self, *, now: int, has_other_nodes: bool = False) -> None:
        """Start the thread. ``now`` (ms) is the first look: a leap of the clock after it is seen.

        If other nodes, with other clocks, may use the store, no client counts as silent
        until a time-out has passed.
        """
        with self._changed:
            self._last_look = now, self._ran()
            if has_other_nodes:
                self._leap = self._leap_end = now  # all time before counts as a leap
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and store the rest if the database answers within `PERIOD`."""
        if not self._thread.running():
            return
        self._stopping.set()
        self._thread.stop(wake=self._wake)
        try:
            self.store(timeout=PERIOD)
        except StrandlineError as error:
            logger.warning("the last heartbeats are not stored: %s", error)

    def _ran(self) -> int:
        return round(self._monotonic() * 1000)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _round(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._oldest is not None or self._stopping.is_set())
        if not self._stopping.is_set():
            self.store()
            self._stopping.wait(PERIOD)

    def _noted(self) -> list[tuple[Notes, Notes]]:
        """The notes of transactions and of locks, in parts with at most `_MOST` of each."""
        with self._changed:
            txns, locks = list(self._txns.items()), list(self._locks.items())
        starts = range(0, max(len(txns), len(locks)), _MOST)
        return [(dict(txns[at : at + _MOST]), dict(locks[at : at + _MOST])) for at in starts]

    def _forget(self, txns: Notes, locks: Notes) -> None:
        """Forget the notes that are stored, unless they were renewed since."""
        with self._changed:
            for notes, stored in ((self._txns, txns), (self._locks, locks)):
                for number, at in stored.items():
                    if notes.get(number) == at:
                        del notes[number]


def _write(connection: Connection, statement: str, notes: Notes) -> None:
    rows = [(at, number, at) for number, at in sorted(notes.items()) if is_id(number)]
    change_each(connection, statement, rows)
