"""Calls of several clients in one SQL transaction: begins, write ids, commits of nothing.

The problem: a write of the database waits for the disk, and the next write waits for it. Clients of
engines begin a transaction for each statement, and most of what they then ask for is one row.

The model. A `SharedCall` asks for rows of its own transaction, and then stages what it changes. One
thread at a time works in *rounds*: it takes the calls that wait, reads for all of them in the round
trip that takes the write lock, stages what they change, and commits all of it at once. Each call
has a time of its own, in their order. A round also reads where the log of the catalog ends. So a
client's call may name its table by what this process has applied, without a look at the log: the
round proves that this is the present, or does not make the call.

A caller that finds no round under way makes one of its own call, in its own thread. What comes
meanwhile waits, and a thread makes the next round of it. The clients of a round are answered
together, and many come again with their next call. So the thread waits until as many have come as
the last round had, at most as long as that took; not where it waited in vain before.

What must stay true:

* The calls of a round touch rows of different transactions, so all of them may read before any of
  them writes. A second call of one transaction waits for the next round.
* A call refuses before it changes anything; then the others go on. Where anything else fails, all
  of the round is undone, and each call is made by itself. So one caller never fails another. A
  round of refused calls is undone.
* Where a round's outcome is unknown no call is made again, and each caller is told so.
* Where the catalog is behind its log, the calls of the round that need none are made first.
* A call is answered when its round is durable.

A crash between any two statements leaves the round undone; one after the commit leaves calls that
nobody was told of, as with any write whose answer was lost: an open transaction without a client
times out, and a commit is settled by asking again.

Rejected: to commit what wrote rows in a round, too. Its conflicts and events are read behind what
the calls before it staged, a round trip for each, under the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp
from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    Overloaded,
    Stopping,
    StrandlineError,
    Unavailable,
)
from strandline.sql import Query, Row, run, take_time, taking_time
from strandline.transactions.catalog_view import (
    Behind,
    CatalogVersion,
    CatalogView,
    GuardedWrites,
)
from strandline.transactions.reserved_ids import ReservedIds

logger = logging.getLogger(__name__)

MAX_WAITING = 1_024
"""Calls in the queue; further ones are refused."""
MOST_TOGETHER = 64
"""A round that is about so many transactions takes no further call: others wait for the lock."""
IDLE_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 0.002
"""How long a round waits for the callers of the last one, at most."""

T = TypeVar("T")


class Round(NamedTuple):
    """The write transaction of a round, as one call sees it: its time, and the catalog then."""

    connection: Connection
    time: Timestamp
    catalog: CatalogVersion | None

    @property
    def catalog_version(self) -> int:
        """The version of the catalog at its time; for a call `SharedCall.under_catalog`."""
        assert self.catalog is not None
        return self.catalog.version


Stage = Callable[[Round, list[Row]], Callable[[], T]]
"""Stages what a call changes, by the rows that it asked for; gives what it gives once durable.

Raises before it changes anything.
"""


class SharedCall(Generic[T]):
    """A call that shares its SQL transaction; for one use.

    ``asks`` are the statements whose rows `Stage` gets; they and it touch rows of the transaction
    ``txn_id`` alone, or of the new ones that it ``begins``, which are so many. ``check`` is called
    before the round, outside of it. Not ``under_catalog`` is a call that no version of the catalog
    matters for: it waits for none.
    """

    def __init__(
        self,
        stage: Stage[T],
        *,
        shared: SharedWrites,
        timeout: float,
        asks: Sequence[Query] = (),
        txn_id: int | None = None,
        check: Callable[[], None] | None = None,
        begins: int = 0,
        under_catalog: bool = True,
    ) -> None:
        self.stage = stage
        self._shared = shared
        self.asks = asks
        self.txn_id = txn_id
        self.check = check
        self.begins = begins
        self.under_catalog = under_catalog
        self.timeout = timeout
        self.end = time.monotonic() + timeout
        self.error: BaseException | None = None
        self.has_ended = False
        self._outcome: Callable[[], T] | None = None
        self._ended: Callable[[], object] | None = None

    def run(self) -> T:
        """Make it, see `SharedWrites.run`."""
        return self._shared.run(self)

    def submit(self, ended: Callable[[], object]) -> None:
        """Have it made, see `SharedWrites.submit`."""
        self._shared.submit(self, ended)

    def result(self) -> T:
        """What the call gives; raises its error. For a call that has ended."""
        if self.error is not None:
            raise self.error
        assert self._outcome is not None  # it has ended without an error
        return self._outcome()

    def stage_in(self, shared: Round, rows: list[Row]) -> None:
        """Stage what it changes, or keep why it is refused."""
        self.error = None
        try:
            self._outcome = self.stage(shared, rows)
        except Behind:
            raise
        except StrandlineError as error:
            self.error = error

    def is_late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() >= self.end

    def late(self) -> DeadlineExceeded:
        """The error of a call that no round has taken."""
        return DeadlineExceeded(
            f"the call did not get its turn to write within {self.timeout:.1f} s; nothing was"
            " changed, try again"
        )

    def refused(self) -> bool:
        """Whether `check`, which is called once, refuses it."""
        check, self.check = self.check, None
        try:
            if check is not None:
                check()
        except Exception as error:
            self.error = error
        return self.error is not None

    def on_end(self, ended: Callable[[], object]) -> None:
        """``ended`` is called when `result` is there, in any thread."""
        self._ended = ended

    def tell(self) -> None:
        """The call has ended, or had before."""
        if not self.has_ended:
            self.has_ended = True
            if self._ended is not None:
                self._ended()


class _AllRefused(Exception):
    """No call of a round changes anything."""


class _NotForAll(Exception):
    """The catalog is behind its log, and some calls of a round need none."""


class _SeveralCatalogs(Exception):
    """A version of the catalog becomes active between the times of a round."""


class SharedWrites:
    """See the module. Safe for threads."""

    def __init__(
        self,
        clock: HybridClock,
        *,
        writes: GuardedWrites,
        catalogs: CatalogView,
        reserved_ids: ReservedIds,
    ) -> None:
        self._clock = clock
        self._writes = writes
        self._catalogs = catalogs
        self._reserved_ids = reserved_ids
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._waiting: deque[SharedCall[object]] = deque()
        self._at_work = False
        self._expected = 1  # calls that the thread waits for
        self._thread: threading.Thread | None = None

    def run(self, call: SharedCall[T]) -> T:
        """What ``call`` gives, once it is durable.

        Raises its refusal, `DeadlineExceeded` where its time is over before a round takes it, and
        what `GuardedWrites.run` raises.
        """
        with self._lock:
            is_alone = not self._at_work and not self._waiting
            if is_alone:
                self._at_work = True
            else:
                gate = threading.Lock()
                gate.acquire()
                call.on_end(gate.release)
                self._enqueue(call)
        if not is_alone:
            self._await(call, gate)
            return call.result()
        try:
            self._round([call])
        finally:
            with self._lock:
                self._at_work = False
                if self._waiting:
                    self._wake()
        return call.result()

    def submit(self, call: SharedCall[T], ended: Callable[[], object]) -> None:
        """Have ``call`` made; ``ended`` is called in another thread when its result is there.

        Waits for nothing. Raises `Overloaded`.
        """
        call.on_end(ended)
        with self._lock:
            self._enqueue(call)

    def _enqueue(self, call: SharedCall[T]) -> None:
        """Put a call into the queue; under the lock."""
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded(
                f"{len(self._waiting)} calls wait for the database, which is the most allowed;"
                " nothing was done, try again"
            )
        self._waiting.append(call)  # type: ignore[arg-type]  # the queue looks at no result
        try:
            self._wake()
        except BaseException:  # there is no thread that would make it
            self._waiting.pop()
            raise

    def _wake(self) -> None:
        """Let the thread look at the queue; under the lock."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="shared-writes", daemon=True)
            thread.start()  # fails where the system has no more threads
            self._thread = thread
        elif len(self._waiting) >= self._expected:
            self._news.notify()

    def _await(self, call: SharedCall[T], gate: threading.Lock) -> None:
        """Wait until a call of the queue has ended; it may leave as long as no round has it."""
        try:
            if gate.acquire(timeout=max(call.end - time.monotonic(), 0.0)):
                return
            error: BaseException = call.late()
        except BaseException as interrupt:
            error = interrupt
        with self._lock:
            left = call in self._waiting
            if left:
                self._waiting.remove(call)  # type: ignore[arg-type]  # as above
        if left or not isinstance(error, DeadlineExceeded):
            raise error
        gate.acquire()  # the database's patience ends the round

    # -- the thread

    def _run(self) -> None:
        last, seconds, hopeful = 0, 0.0, True
        while True:
            with self._lock:
                expected = len(self._waiting) + last if hopeful else 1
                while self._at_work or not self._waiting:
                    if not self._news.wait(IDLE_SECONDS) and not (self._waiting or self._at_work):
                        self._thread = None
                        return
                have_come = self._await_calls(
                    min(expected, MOST_TOGETHER), min(seconds, LONGEST_WAIT_SECONDS)
                )
                calls = self._taken()
                self._at_work = bool(calls)
            if not calls:  # they have left, or are late
                continue
            began = time.monotonic()
            try:
                self._round(calls)
            except Exception:
                logger.exception("a round of shared writes failed")
            finally:
                with self._lock:
                    self._at_work = False
            last, seconds = len(calls), time.monotonic() - began
            hopeful = (hopeful and have_come) or last > 1

    def _await_calls(self, number: int, seconds: float) -> bool:
        """Wait until so many calls are in the queue, or for so long; whether they are."""
        self._expected, end = number, time.monotonic() + seconds
        while len(self._waiting) < number:
            if not self._news.wait(max(end - time.monotonic(), 0.0)):
                break
        self._expected = 1
        return len(self._waiting) >= number

    def _taken(self) -> list[SharedCall[object]]:
        """The calls of the next round, out of the queue: one for each transaction."""
        calls: list[SharedCall[object]] = []
        put_off: list[SharedCall[object]] = []
        txn_ids: set[int] = set()
        count = 0
        while self._waiting and count < MOST_TOGETHER:
            call = self._waiting.popleft()
            if call.is_late():
                call.error = call.late()
                call.tell()
                continue
            if call.txn_id in txn_ids:
                put_off.append(call)
                continue
            calls.append(call)
            count += max(call.begins, 1)
            if call.txn_id is not None:
                txn_ids.add(call.txn_id)
        self._waiting.extendleft(reversed(put_off))
        return calls

    # -- a round

    def _round(self, calls: Sequence[SharedCall[T]]) -> None:
        """Make the calls, and end each of them, whatever happens."""
        try:
            admitted = [call for call in calls if not call.refused()]
            if admitted:
                self._write_or_split(admitted)
        except BaseException as error:
            for call in calls:
                if not call.has_ended:
                    call.error = call.error or error
            if not isinstance(error, Exception):
                raise
        finally:
            for call in calls:
                call.tell()

    def _write_or_split(self, calls: Sequence[SharedCall[T]]) -> None:
        try:
            self._write(calls)
        except (Fenced, Stopping, Unavailable):
            raise  # each by itself would fail as well, or has happened
        except _NotForAll:
            self._round([call for call in calls if not call.under_catalog])
            self._write_or_split([call for call in calls if call.under_catalog])
        except Exception:
            if len(calls) == 1:
                raise
            for call in calls:
                try:
                    self._write([call])
                except Exception as error:
                    call.error = error

    def _write(self, calls: Sequence[SharedCall[T]]) -> None:
        """Make the calls in one SQL transaction; return when it is durable."""
        count = len(calls)
        timeout = max(0.0, max(call.end for call in calls) - time.monotonic())
        looks = any(call.under_catalog for call in calls)

        def first() -> Sequence[Query]:
            return (
                taking_time(self._clock, count=count),
                *(self._catalogs.ahead if looks else ()),
                *chain.from_iterable(call.asks for call in calls),
            )

        def body(connection: Connection) -> None:
            last = take_time(connection, self._clock, count=count)
            first_time = Timestamp(last - count + 1)
            catalog = self._catalog(connection, calls, first_time, last) if looks else None
            # All read before one writes: what was read ahead is good only so far.
            rows = [[row for query in c.asks for row in run(connection, *query)] for c in calls]
            for place, call in enumerate(calls, start=1):
                at = Timestamp(last - count + place)
                call.stage_in(Round(connection, at, catalog), rows[place - 1])
            if all(call.error is not None for call in calls):
                raise _AllRefused

        with suppress(_AllRefused):
            if all(call.begins for call in calls):
                self._reserved_ids.begin(body, first=first, timeout=timeout)
            else:
                self._writes.run(body, timeout=timeout, first=first, is_news=False)

    def _catalog(
        self,
        connection: Connection,
        calls: Sequence[SharedCall[T]],
        first: Timestamp,
        last: Timestamp,
    ) -> CatalogVersion:
        """The catalog active at all times from ``first`` to ``last``.

        Raises `Behind`, or `_NotForAll` where some of ``calls`` need not wait for it.
        """
        try:
            catalog = self._catalogs.catalog_at(connection, last)
        except Behind:
            if all(call.under_catalog for call in calls):
                raise
            raise _NotForAll from None
        if catalog.time > first:
            raise _SeveralCatalogs
        return catalog
