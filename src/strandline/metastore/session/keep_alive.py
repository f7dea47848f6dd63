"""Open transactions of a client: kept alive, and ended with the block that uses them.

The store aborts a transaction that sends no heartbeat for its time-out, so that a client that died
blocks no other. A live client has to send heartbeats, even while Spark writes files for an hour.
`KeepAlive` is a thread that sends a heartbeat for every open transaction at a third of its
time-out.

A failed heartbeat must not go unnoticed. If the store refuses it (the transaction was aborted), or
does not answer for as long as the time-out, the error is kept, and raised by the next use of the
transaction. After a single lost heartbeat, the thread tries again sooner.

Jobs write with `transaction_scope`::

    with transaction_scope(session) as transaction:
        transaction.stage(table_id, add=files)

It commits at the end of the block and aborts if the block raises. A process that is forked in the
block does neither: the transaction is that of its parent.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from strandline.condition import Condition
from strandline.errors import (
    Conflict,
    NotFound,
    ProtocolError,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
)
from strandline.metastore.interface import Session, Snapshot
from strandline.metastore.session.file_lists import staged_parts
from strandline.metastore.store.rows import DataFile, DeleteFile
from strandline.transactions import Transaction, TransactionState

logger = logging.getLogger(__name__)

BEATS = 3
"""The number of heartbeats within a time-out."""
_SOONER = 4
"""A failed heartbeat is tried again after the period divided by this."""


@dataclass(slots=True)
class _Watched:
    transaction: Transaction
    due: float
    heard: float
    """The time of the last successful heartbeat; both times are on the monotonic clock."""
    failure: StrandlineError | None = None

    @property
    def period(self) -> float:
        return self.transaction.timeout_ms / 1000 / BEATS


@dataclass(frozen=True, slots=True)
class KeepAliveStatistics:
    """``watched`` is the present number; the others are counts since the start."""

    watched: int
    beats: int
    missed: int
    lost: int


class KeepAlive:
    """Sends heartbeats for the open transactions of one session.

    Safe to use from several threads. Also a context manager that stops it. Does not close the
    session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._changed = Condition()
        self._watched: dict[int, _Watched] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._beats = self._missed = self._lost = 0
        self._process = os.getpid()

    def watch(self, transaction: Transaction) -> None:
        now = time.monotonic()
        with self._changed:
            watched = _Watched(transaction, due=now, heard=now)
            watched.due += watched.period
            self._watched[transaction.txn_id] = watched
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name="keep-alive", daemon=True)
                thread.start()  # fails where the system has no more threads
                self._thread = thread
            self._changed.notify_all()

    def forget(self, txn_id: int) -> None:
        with self._changed:
            self._watched.pop(txn_id, None)

    def check(self, txn_id: int) -> None:
        """Raise the error of the transaction's heartbeats if it is lost.

        If a heartbeat is late by a period, it is sent first: this process may have been paused, and
        the transaction aborted meanwhile.
        """
        with self._changed:
            watched = self._watched.get(txn_id)
            if watched is None:
                return
            is_late = watched.failure is None and time.monotonic() > watched.due + watched.period
        if is_late:
            self._beat(watched)
        with self._changed:
            failure = watched.failure
        if failure is not None:
            raise type(failure)(failure.message) from failure

    def statistics(self) -> KeepAliveStatistics:
        with self._changed:
            return KeepAliveStatistics(len(self._watched), self._beats, self._missed, self._lost)

    def stop(self) -> None:
        """Stop all heartbeats. The transactions stay open until they time out. Idempotent."""
        if _must_leave(self._process):
            return
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> KeepAlive:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while (watched := self._next_due()) is not None:
            self._beat(watched)

    def _next_due(self) -> _Watched | None:
        """Wait for the next transaction whose heartbeat is due; return it, or None once stopped."""
        with self._changed:
            while not self._stopped:
                live = [watched for watched in self._watched.values() if watched.failure is None]
                first = min(live, key=lambda watched: watched.due, default=None)
                wait = None if first is None else first.due - time.monotonic()
                if first is not None and wait is not None and wait <= 0:
                    return first
                self._changed.wait(wait)
        return None

    def _beat(self, watched: _Watched) -> None:
        txn_id, has_ended = watched.transaction.txn_id, False
        failure: StrandlineError | None = None
        began = time.monotonic()
        try:
            self._session.heartbeat(txn_id)
        except (Conflict, NotFound) as error:
            failure, has_ended = error, True
        except StrandlineError as error:
            failure = error
        except Exception as error:
            logger.exception("a heartbeat failed with an internal error")
            failure = StrandlineError(f"a heartbeat failed with an internal error: {error}")
        with self._changed:
            self._beats += 1
            if failure is None:
                watched.heard = began
                watched.due = began + watched.period
            else:
                self._missed += 1
                watched.due = time.monotonic() + watched.period / _SOONER
                silence = time.monotonic() - watched.heard
                if has_ended:
                    watched.failure = failure
                elif silence * 1000 >= watched.transaction.timeout_ms:
                    watched.failure = Unavailable(
                        f"transaction {txn_id} had no successful heartbeat for {silence:.1f} s, "
                        f"and its time-out is {watched.transaction.timeout_ms} ms: {failure}; "
                        "begin again"
                    )
                self._lost += watched.failure is not None
            self._changed.notify_all()


class OpenTransaction:
    """A transaction within its `transaction_scope`.

    Each use first raises the error of its heartbeats, if there is one. ``transaction`` is its last
    known state; ``commit_is_unknown`` says that a commit ended in `UnknownOutcome`.

    ``stage_is_unknown`` says that a stage failed, or was interrupted, and may have happened, wholly
    or in part. Then the transaction can only be aborted, because a caller that stages the same rows
    again would have them twice.

    A commit waits for the stage of another thread, so that it has all parts of it or none.
    """

    def __init__(self, session: Session, keep_alive: KeepAlive, begun: Transaction) -> None:
        self._session = session
        self._keep_alive = keep_alive
        self.transaction = begun
        self.commit_is_unknown = False
        self.stage_is_unknown = False
        self._staging = threading.RLock()
        self._process = os.getpid()

    @property
    def txn_id(self) -> int:
        return self.transaction.txn_id

    @property
    def state(self) -> TransactionState:
        """Open until `commit` or `abort` has returned."""
        return self.transaction.state

    def open(self, names: Sequence[str]) -> Snapshot:
        """A snapshot of these tables as the transaction sees them, with its own writes."""
        self.check()
        return self._session.open(names, txn_id=self.txn_id)

    def stage(
        self,
        table_id: int,
        *,
        add: Sequence[DataFile | DeleteFile] = (),
        remove: Sequence[str] = (),
        touch: Sequence[str] = (),
    ) -> int:
        """See `Session.stage`. Files that are too much for one call are staged in several.

        If one of these calls fails after the first, the transaction can only be aborted.
        """
        with self._turn():
            self.check()
            write_id = 0
            for number, part in enumerate(staged_parts(add, remove=remove, touch=touch)):
                self.stage_is_unknown = True  # also if the call is interrupted
                try:
                    write_id = self._session.stage(self.txn_id, table_id, **part)
                except StrandlineError as error:
                    self.stage_is_unknown = number > 0 or _may_have_happened(error)
                    raise
            self.stage_is_unknown = False
            return write_id

    def commit(self) -> Transaction:
        """See `Session.commit`. After it, the end of the block does nothing."""
        with self._turn():
            self.check()
            try:
                self.transaction = self._session.commit(self.txn_id)
            except UnknownOutcome:
                self.commit_is_unknown = True
                raise
        self._keep_alive.forget(self.txn_id)
        return self.transaction

    def check(self) -> None:
        """Raise the error for which the transaction can only be aborted, if there is one."""
        self._keep_alive.check(self.txn_id)
        if self.stage_is_unknown:
            raise Unavailable(
                f"transaction {self.txn_id} can only be aborted: it is unknown whether one of its "
                "statements was carried out; begin another transaction and repeat all statements"
            )

    def _turn(self) -> AbstractContextManager[object]:
        """For a stage or the commit. A fork, which the session refuses, waits for no thread."""
        return nullcontext() if _must_leave(self._process) else self._staging

    def abort(self) -> Transaction:
        """See `Session.abort`. After it, the end of the block does nothing."""
        self._keep_alive.forget(self.txn_id)
        self.transaction = self._session.abort(self.txn_id)
        return self.transaction


@contextmanager
def transaction_scope(
    session: Session, *, read_only: bool = False, keep_alive: KeepAlive | None = None
) -> Iterator[OpenTransaction]:
    """A transaction for a block, which commits at its end and aborts if it raises.

    Raises what `Session.commit` raises. ``keep_alive`` can serve several scopes of one session;
    without it, the scope makes its own.

    At the end of the interpreter, a block in a generator that is still open is left as it is: the
    transaction times out. Daemon threads no longer run then, and some may hold locks. In a process
    that was forked in the block, its end does nothing.
    """
    process = os.getpid()
    if keep_alive is None:
        with (
            KeepAlive(session) as own,
            transaction_scope(session, read_only=read_only, keep_alive=own) as transaction,
        ):
            yield transaction
        return
    begun = session.begin(read_only=read_only)
    transaction = OpenTransaction(session, keep_alive, begun)
    try:
        keep_alive.watch(begun)
        yield transaction
        if transaction.state is TransactionState.OPEN and not _must_leave(process):
            transaction.commit()
    except BaseException as error:
        # A transaction that may be committed is left as it is; the client can look it up by its id.
        is_open = transaction.state is TransactionState.OPEN
        if is_open and not transaction.commit_is_unknown and not _must_leave(process):
            _abort_after(error, transaction)
        raise
    finally:
        if not _must_leave(process):
            keep_alive.forget(begun.txn_id)


def _must_leave(process: int) -> bool:
    """Whether to leave what ``process`` has begun: its threads no longer run, or only there."""
    return sys.is_finalizing() or os.getpid() != process


def _may_have_happened(error: StrandlineError) -> bool:
    """Whether a call that raised ``error`` may have taken effect."""
    is_unexpected = type(error) is StrandlineError
    return is_unexpected or isinstance(error, UnknownOutcome | ProtocolError)


def _abort_after(error: BaseException, transaction: OpenTransaction) -> None:
    """Abort; if that fails too, add a note to ``error``, which the caller gets."""
    try:
        transaction.abort()
    except StrandlineError as second:
        error.add_note(f"transaction {transaction.txn_id} could not be aborted: {second}")
