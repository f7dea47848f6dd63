"""Calls of several clients in one SQL transaction: begins, write ids, commits without a write.

The problem: each write of the database waits for the disk, and the next write waits for it. Engines
begin a transaction for each statement, and most of their calls change a single row.

The model. A `SharedCall` reads rows of its own transaction, and then stages its changes. One thread
at a time works in *rounds*: it takes the waiting calls, reads for all of them in the round trip
that takes the write lock, stages their changes, and commits all of them at once. Each call gets its
own time, in the order of the calls. A round also reads where the log of the catalog ends. So a call
may name its table by the catalog that this process has applied, without reading the log first: the
round either proves that this catalog is the present one, or does not execute the call.

A caller that finds no round in progress executes its own call as a round, in its own thread. Calls
that arrive meanwhile wait in a queue, and a thread executes them in the next round. The clients of
a round get their answers together, and many of them soon send their next call. So the thread waits
until as many calls have arrived as the last round had, but no longer than the last round took.
After a wait in vain it does not wait again until a round has several calls.

What must stay true:

* The calls of a round touch rows of different transactions, so all of them may read before any of
  them writes. A second call of one transaction waits for the next round.
* A call is refused before it changes anything; the other calls go on. If anything else fails, the
  whole round is undone, and each call is executed by itself. So no caller makes another one fail.
  A round whose calls are all refused is undone.
* If a round's outcome is unknown, no call is executed again, and each caller gets that error.
* If a call needs a catalog that is not applied here yet, the others are executed first.
* A call is answered when its round is durable.

A crash before the commit leaves the round undone. A crash after the commit leaves calls that are
done but not answered, as with any write whose answer is lost: an open transaction without a client
times out, and a client that repeats its commit learns the outcome.

Rejected: executing commits that wrote rows in a round as well. Such a commit would have to read its
conflicts and events after what the earlier calls staged: a round trip for each, under the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection

from strandline.catalog import Catalog
from strandline.clock import HybridClock, Timestamp
from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    Overloaded,
    Stopping,
    StrandlineError,
    Unavailable,
)
from strandline.sql import Query, Row, run, take_time, take_time_query
from strandline.transactions.catalog_view import Behind, CatalogView, GuardedWrites
from strandline.transactions.reserved_ids import ReservedIds
from strandline.work.time_slices import shorten_time_slices

logger = logging.getLogger(__name__)

MAX_WAITING = 1_024
"""The maximum number of calls in the queue; further ones are refused."""
MAX_TOGETHER = 64
"""The number of transactions at which a round takes no further call: others wait for the lock."""
IDLE_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 0.002
"""The maximum time that a round waits for the callers of the last round."""

T = TypeVar("T")


class Round(NamedTuple):
    """The write transaction of a round, as one call sees it: its time and the catalog then."""

    connection: Connection
    time: Timestamp
    catalog: Catalog | None

    @property
    def catalog_version(self) -> int:
        """The catalog version at the call's time. Only for `SharedCall.under_catalog`."""
        assert self.catalog is not None
        return self.catalog.version


Stage = Callable[[Round, list[Row]], Callable[[], T]]
"""Stages the changes of a call, given the rows that it read. Raises before it changes anything.

Returns a function that gives the call's result; it is called once the round is durable.
"""


class SharedCall(Generic[T]):
    """A call that shares its SQL transaction; for one use.

    ``first_queries`` are those whose rows `Stage` gets. They and `Stage` touch only rows of the
    transaction ``txn_id``, or of the new transactions, whose number is ``begins``. ``check`` is
    called before the round, outside of it. A call that is not ``under_catalog`` does not need the
    present catalog; its `Stage` may need that of the begin, and raise `Behind`.
    """

    def __init__(
        self,
        stage: Stage[T],
        *,
        shared: SharedWrites,
        timeout: float,
        first_queries: Sequence[Query] = (),
        txn_id: int | None = None,
        check: Callable[[], None] | None = None,
        begins: int = 0,
        under_catalog: bool = True,
    ) -> None:
        self.stage = stage
        self._shared = shared
        self.first_queries = first_queries
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
        """Execute the call, see `SharedWrites.run`."""
        return self._shared.run(self)

    def submit(self, ended: Callable[[], object]) -> None:
        """Put the call into the queue, see `SharedWrites.submit`."""
        self._shared.submit(self, ended)

    def result(self) -> T:
        """Return the result of the call, or raise its error. Only for a call that has ended."""
        if self.error is not None:
            raise self.error
        assert self._outcome is not None  # it has ended without an error
        return self._outcome()

    def stage_in(self, shared: Round, rows: list[Row]) -> None:
        """Stage the call's changes, or keep the error with which it is refused."""
        self.error = None
        try:
            self._outcome = self.stage(shared, rows)
        except Behind:
            raise
        except StrandlineError as error:
            self.error = error

    def is_late(self) -> bool:
        """Whether the call's deadline has passed."""
        return time.monotonic() >= self.end

    def late(self) -> DeadlineExceeded:
        """The error of a call that no round took before its deadline."""
        return DeadlineExceeded(
            f"the call did not get its turn to write within {self.timeout:.1f} s; nothing was"
            " changed, try again"
        )

    def refused(self) -> bool:
        """Whether `check` refuses the call. Calls `check` only once."""
        check, self.check = self.check, None
        try:
            if check is not None:
                check()
        except Exception as error:
            self.error = error
            return True
        return False

    def on_end(self, ended: Callable[[], object]) -> None:
        """Call ``ended``, in any thread, when `result` is available."""
        self._ended = ended

    def notify(self) -> None:
        """Mark the call as ended and notify its caller, unless this has been done."""
        if not self.has_ended:
            self.has_ended = True
            if self._ended is not None:
                self._ended()


class _AllRefused(Exception):
    """No call of a round changes anything."""


class _NotForAll(Exception):
    """Only the calls ``waiting`` of a round need a catalog that is not applied here yet."""

    def __init__(self, waiting: Sequence[SharedCall[Any]]) -> None:  # Any: results are not used
        super().__init__()
        self.waiting = waiting


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
        self._at_work: object = None  # whose round is in progress: a caller's call, or the thread's
        self._expected = 1  # calls that the thread waits for
        self._calls = self._rounds = 0
        self._thread: threading.Thread | None = None

    def run(self, call: SharedCall[T]) -> T:
        """Return the result of ``call``, once it is durable.

        Raises the call's own error, `DeadlineExceeded` if no round took the call before its
        deadline, and what `GuardedWrites.run` raises.
        """
        self._writes.refuse_in_a_fork()
        try:
            with self._lock:
                is_alone = self._at_work is None and not self._waiting
                if is_alone:
                    self._at_work = call
                else:
                    gate = threading.Lock()
                    gate.acquire()
                    call.on_end(gate.release)
                    self._enqueue(call)
            if is_alone:
                self._round([call])
            else:
                self._await(call, gate)
        finally:
            if self._at_work is call:
                self._at_work = None  # before any call, which Ctrl-C could interrupt
                with self._lock:
                    if self._waiting:
                        self._wake()
        return call.result()

    def counts(self) -> tuple[int, int, int]:
        """The calls and their writes since the start, and the calls that wait for a round now."""
        with self._lock:
            return self._calls, self._rounds, len(self._waiting)

    def submit(self, call: SharedCall[T], ended: Callable[[], object]) -> None:
        """Queue ``call``; ``ended`` is called in another thread when its result is available.

        Does not wait. Raises `Overloaded` if the queue is full.
        """
        call.on_end(ended)
        with self._lock:
            self._enqueue(call)

    def _enqueue(self, call: SharedCall[T]) -> None:
        """Put a call into the queue. The caller holds the lock."""
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded(
                f"{len(self._waiting)} calls wait for the database, which is the maximum; nothing "
                "was done, try again"
            )
        self._waiting.append(call)  # type: ignore[arg-type]  # the queue looks at no result
        try:
            self._wake()
        except BaseException:  # no thread would execute the call
            self._waiting.pop()
            raise

    def _wake(self) -> None:
        """Start the thread, or wake it if enough calls wait. The caller holds the lock."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="shared-writes", daemon=True)
            thread.start()  # fails where the system has no more threads
            self._thread = thread
        elif len(self._waiting) >= self._expected:
            # Not `notify`: after one that Ctrl-C cut off, the next would wake no thread.
            self._news.notify_all()

    def _await(self, call: SharedCall[T], gate: threading.Lock) -> None:
        """Wait until a queued call has ended. If it is late before a round takes it, it leaves."""
        try:
            if gate.acquire(timeout=max(call.end - time.monotonic(), 0.0)):
                return
            error: BaseException = call.late()
        except BaseException as interrupt:
            error = interrupt
        with self._lock:
            still_waits = call in self._waiting
            if still_waits:
                self._waiting.remove(call)  # type: ignore[arg-type]  # as above
        if still_waits or not isinstance(error, DeadlineExceeded):
            raise error
        gate.acquire()  # the database's own time limit ends the round

    # -- the thread

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """End the waiting calls if the thread ends by ``error``. The next call starts it again.

        If the memory does not suffice for this either, a call that waits then takes them along.
        """
        with self._lock:
            self._thread = None
            calls, self._waiting = self._waiting, deque()
        for call in calls:
            call.error = Unavailable(
                "the thread that writes for several calls ended with an unexpected error "
                f"({error!r}); nothing was changed, try again"
            )
            call.notify()

    def _work(self) -> None:
        shorten_time_slices()
        last, seconds, expects_several = 0, 0.0, True
        while True:
            with self._lock:
                expected = len(self._waiting) + last if expects_several else 1
                while self._at_work or not self._waiting:
                    if not self._news.wait(IDLE_SECONDS) and not (self._waiting or self._at_work):
                        self._thread = None
                        return
                all_arrived = self._await_calls(
                    min(expected, MAX_TOGETHER), min(seconds, LONGEST_WAIT_SECONDS)
                )
                began = time.monotonic()
                calls = self._take_calls()
                self._at_work = calls or None
            if not calls:  # all have left or were late
                continue
            try:
                self._round(calls)
            except Exception:
                logger.exception("a round of shared writes failed")
            finally:
                with self._lock:
                    self._at_work = None
            last, seconds = len(calls), time.monotonic() - began
            expects_several = (expects_several and all_arrived) or last > 1

    def _await_calls(self, number: int, seconds: float) -> bool:
        """Wait until the queue has ``number`` calls, at most ``seconds``; return whether it has."""
        self._expected, end = number, time.monotonic() + seconds
        while len(self._waiting) < number:
            if not self._news.wait(max(end - time.monotonic(), 0.0)):
                break
        self._expected = 1
        return len(self._waiting) >= number

    def _take_calls(self) -> list[SharedCall[object]]:
        """Take the calls of the next round out of the queue: at most one for each transaction."""
        calls: list[SharedCall[object]] = []
        put_off: list[SharedCall[object]] = []
        txn_ids: set[int] = set()
        count = 0
        while self._waiting and count < MAX_TOGETHER:
            call = self._waiting.popleft()
            if call.is_late():
                call.error = call.late()
                call.notify()
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
        """Execute the calls, and end each of them, whatever happens."""
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
                call.notify()

    def _write_or_split(self, calls: Sequence[SharedCall[T]]) -> None:
        try:
            self._write(calls)
        except (Fenced, Stopping, Unavailable):
            raise  # each call by itself would fail as well, or may have been committed
        except _NotForAll as behind:
            self._round([call for call in calls if call not in behind.waiting])
            self._write_or_split([call for call in calls if call in behind.waiting])
        except Exception:
            if len(calls) == 1:
                raise
            for call in calls:
                try:
                    self._write([call])
                except Exception as error:
                    call.error = error

    def _write(self, calls: Sequence[SharedCall[T]]) -> None:
        """Execute the calls in one SQL transaction; return when it is durable."""
        count = len(calls)
        timeout = max(0.0, max(call.end for call in calls) - time.monotonic())
        looks = any(call.under_catalog for call in calls)

        def first() -> Sequence[Query]:
            return (
                take_time_query(self._clock, count=count),
                *(self._catalogs.first_queries if looks else ()),
                *chain.from_iterable(call.first_queries for call in calls),
            )

        def body(connection: Connection) -> None:
            last = take_time(connection, self._clock, count=count)
            first_time = Timestamp(last - count + 1)
            catalog = self._catalog(connection, calls, first_time, last) if looks else None
            # All calls read before one writes: a write invalidates what was read ahead.
            rows = [
                [row for query in c.first_queries for row in run(connection, *query)] for c in calls
            ]
            waiting: list[SharedCall[T]] = []
            reason = ""
            for place, call in enumerate(calls, start=1):
                at = Timestamp(last - count + place)
                try:
                    call.stage_in(Round(connection, at, catalog), rows[place - 1])
                except Behind as error:  # its transaction began under that version, on another node
                    waiting.append(call)
                    reason = error.message
            if waiting:
                raise Behind(reason) if len(waiting) == count else _NotForAll(waiting)
            if all(call.error is not None for call in calls):
                raise _AllRefused

        with suppress(_AllRefused):
            if all(call.begins for call in calls):
                self._reserved_ids.begin(body, first=first, timeout=timeout)
            else:
                self._writes.run(body, timeout=timeout, first=first, notifies=False)
            self._calls += count  # one round runs at a time
            self._rounds += 1

    def _catalog(
        self,
        connection: Connection,
        calls: Sequence[SharedCall[T]],
        first: Timestamp,
        last: Timestamp,
    ) -> Catalog:
        """The catalog that is active at all times from ``first`` to ``last``.

        Raises `Behind`, or `_NotForAll` if some of ``calls`` need not wait for the catalog.
        """
        try:
            catalog = self._catalogs.catalog_at(connection, last)
        except Behind as behind:
            waiting = [call for call in calls if call.under_catalog]
            raise behind if len(waiting) == len(calls) else _NotForAll(waiting) from None
        if catalog.time > first:
            raise _SeveralCatalogs
        return catalog
