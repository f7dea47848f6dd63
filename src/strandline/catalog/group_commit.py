"""Group commit: callers that come together share one append to the log.

An append costs a write to disk or a round trip to the store, and the log takes one at a time. So
while one is under way the callers that arrive wait in a queue, and the next append carries a
version for each of them.

One thread, started with the first caller, works in rounds. It takes the requests that wait,
validates each against the catalog that the ones before it leave, appends the versions of all in one
step, together with what they do outside of the catalog (`Effects`), applies them, and answers each
caller. A caller whose command is refused or changes nothing consumes no version. It gets its answer
once the catalog it was validated against is in the log: with the append of the requests before it,
or else after a look at the log. An append that is lost to another node's is validated again against
the newer catalog, unless it was lost to silent versions alone, which no command looks at.

The callers of a round are answered together, and many come again with their next command. So the
thread waits until as many more callers have come as the last round had, at most as long as that
took; else two halves of the callers would take turns. It does not wait where the last wait was in
vain and one caller came.

What must stay true:

* A caller's deadline is its own. Until its commands are sent to the log it may leave, and they are
  never appended (the others are validated again without them). After that it gets `UnknownOutcome`.
* One caller's failure never fails another.
* An append whose outcome is unknown is sent again *as it is*, with the same ids, until the log says
  what became of it. Only then is anything validated again. So no command happens twice.

Rejected: the first waiting caller as the leader of a round. It saves the hand-over between two
threads (some 30 µs), but its own deadline, or an interrupt that hits its thread, would then end the
round of all others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from strandline import faults
from strandline.catalog.catalog import Catalog
from strandline.catalog.requests import Group, Request, Stage, validate
from strandline.clock import Timestamp
from strandline.durable.log import Companion
from strandline.durable.state import AppliedUpdate, DurableCatalogState
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    InvalidInput,
    OutOfSync,
    Stopping,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
    VersionNotFound,
)
from strandline.work import keeping_garbage

logger = logging.getLogger(__name__)

MAX_WAITING = 1024
"""Callers in the queue; more wait for room."""
GROUP_BYTES = 1 << 20
"""A group whose changes hold more bytes than this takes no further caller."""
IDLE_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 0.02
"""How long a round waits for the callers of the last one, at most."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_STOP_PATIENCE = 5.0


@dataclass(slots=True)
class CommitCounts:
    """Counts since the start; of one thread."""

    executed: int = 0
    appends: int = 0
    lost_appends: int = 0
    rebased: int = 0
    largest_group: int = 0


class Applying(Protocol):
    """What a round needs of the follower of the log."""

    @property
    def state(self) -> DurableCatalogState:
        """What the node writes with now."""

    def sync(self) -> None:
        """Apply the log up to its head as it is now, joining a newer epoch if need be."""

    def latest_catalog(self) -> Catalog:
        """The highest version applied here."""

    def own_append(
        self, transactions: Sequence[CatalogTransaction]
    ) -> AbstractContextManager[None]:
        """The calling thread commits ``transactions`` in the block, and calls `apply_own`."""

    def apply_own(self, updates: Sequence[AppliedUpdate]) -> list[Catalog]:
        """Apply updates that this node has just appended behind its latest version."""

    def now(self) -> Timestamp:
        """The present, for commands that write it down."""


class Effects(Protocol):
    """What versions do outside of the catalog."""

    def companion(
        self, transactions: Sequence[CatalogTransaction], catalogs: Sequence[Catalog]
    ) -> Companion:
        """What writes their effects, as far as it can, in the transaction that appends them."""

    def project_up_to(self, version: int) -> None:
        """Carry out what is left of the effects of ``version`` and of all before it."""


class GroupCommit:
    """See the module. Safe to use from several threads."""

    def __init__(self, follower: Applying) -> None:
        self._follower = follower
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._waiting: deque[Request] = deque()
        self._working: list[Request] = []
        self._expected = 1  # callers that the thread waits for
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.counts = CommitCounts()
        self.effects: Effects | None = None
        """Carried out for each group before its callers are answered.

        So that they need not do it one by one. A caller that needs its failure asks itself.
        """

    # -- callers -------------------------------------------------------------------------------

    def execute(self, request: Request) -> None:
        """Have ``request`` carried out; returns when it is done, also where it was refused.

        Raises `DeadlineExceeded` (and nothing of it happens), `UnknownOutcome` or `Stopping`.
        """
        if request.left() <= 0:
            raise self._late(request)
        try:
            self._enqueue(request)
            done = request.gate.acquire(timeout=request.left())
        except BaseException:
            self._leave(request)
            raise
        if not done and self._leave(request):
            raise self._late(request)

    def _enqueue(self, request: Request) -> None:
        with self._lock:
            while len(self._waiting) >= MAX_WAITING and not self._stop.is_set():
                if not self._room.wait(timeout=request.left()):
                    raise self._late(request)
            if self._stop.is_set():
                raise _stopping()
            self._waiting.append(request)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="catalog-committer", daemon=True
                )
                self._thread.start()
            if len(self._waiting) >= self._expected:
                self._news.notify()

    def _leave(self, request: Request) -> bool:
        """Wait no longer for ``request``; False if it was just done."""
        with self._lock:
            if request.stage is Stage.DONE:
                return False
            request.gone = True
            if request.stage is Stage.WAITING:
                request.stage = Stage.LEFT
                if request in self._waiting:
                    self._waiting.remove(request)
                    self._room.notify()
            return True

    def _late(self, request: Request) -> StrandlineError:
        passed = f"{time.monotonic() - request.began:.1f} s"
        if request.version is not None:
            return UnknownOutcome(
                f"the change is in the log as version {request.version}, and this node was not "
                f"done with it within {passed}: its folders and events may still be made. "
                "Do not repeat it; read the catalog"
            )
        if request.stage is Stage.SENT:
            return UnknownOutcome(
                f"the change was sent to the log, which has not answered within {passed}; "
                "it may still happen: read the catalog before doing it again"
            )
        why = f": {request.error}" if request.error else ""
        return DeadlineExceeded(
            f"the change did not get its turn within the time allowed, and nothing of it will "
            f"happen; try again{why}"
        )

    def stop(self) -> None:
        """Refuse all callers from now on; those that wait get `Stopping`. Idempotent."""
        with self._lock:
            if self._stop.is_set():
                return
            self._stop.set()
            self._news.notify_all()
            self._room.notify_all()
            thread = self._thread
            for request in [*self._waiting, *self._working]:
                if request.stage is Stage.WAITING:
                    self._finish(request, _stopping())
            self._waiting.clear()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_PATIENCE)
        with self._lock:
            for request in self._working:
                if request.stage is Stage.SENT:
                    self._finish(request, self._late(request))

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        answered, seconds = 0, 0.0  # of the last round
        hopeful = True
        while True:
            with self._lock:
                expected = len(self._waiting) + answered if hopeful else 1
                while not self._waiting and not self._stop.is_set():
                    if not self._news.wait(IDLE_SECONDS) and not self._waiting:
                        self._thread = None
                        return
                limit = self._follower.state.log.max_updates
                have_come = self._await_callers(
                    min(expected, limit), min(seconds, LONGEST_WAIT_SECONDS)
                )
                if self._stop.is_set():
                    return
                self._working = [
                    self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))
                ]
                self._room.notify(len(self._working))
            answered, began = len(self._working), time.monotonic()
            hopeful = (hopeful and have_come) or answered > 1
            try:
                self._commit(self._working)
            except BaseException as error:  # of any kind: no caller may wait for ever
                if not isinstance(error, StrandlineError):
                    logger.exception("committing a group of changes failed")
                self._end(self._working, error)
                if isinstance(error, Fenced):
                    self._join_newer_epoch()
            seconds = time.monotonic() - began
            with self._lock:
                self._working = []

    def _await_callers(self, number: int, seconds: float) -> bool:
        """Wait until so many callers are in the queue, or for so long; whether they are.

        Under the lock.
        """
        self._expected, end = number, time.monotonic() + seconds
        while len(self._waiting) < number and not self._stop.is_set():
            if not self._news.wait(max(end - time.monotonic(), 0.0)):
                break
        self._expected = 1
        return len(self._waiting) >= number

    def _join_newer_epoch(self) -> None:
        """So that the next callers are not refused as these were."""
        try:
            self._follower.sync()
        except StrandlineError as error:
            logger.warning("%s", error)
        except Exception:  # the thread must not end; the next caller's append comes here again
            logger.exception("joining the newer epoch failed")

    def _commit(self, requests: Sequence[Request]) -> None:
        """Carry out all requests, in as many appends as it takes."""
        pause = _FIRST_PAUSE
        synced = False  # whether this node has looked at the log since these requests came
        while waiting := self._still_waiting(requests):
            group = self._validate(self._follower.latest_catalog(), waiting)
            try:
                if group.requests():
                    self._append(group)
                elif synced:
                    self._answer(group, [])
                else:
                    self._follower.sync()
                    synced = True
                pause = _FIRST_PAUSE
            except Unavailable as error:
                for request in waiting:
                    request.error = error
                self._unsend(waiting)
                self._stop.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _still_waiting(self, requests: Sequence[Request]) -> list[Request]:
        with self._lock:
            return [request for request in requests if request.stage is Stage.WAITING]

    def _validate(self, base: Catalog, requests: Sequence[Request]) -> Group:
        group = Group(base)
        now = self._follower.now()
        with keeping_garbage:  # what commands make lives on
            for request in requests:
                catalog = group.catalog
                transaction = self._follower.state.transaction(catalog, author=request.author)
                group.add(validate(catalog, transaction, request, now))
                if group.size > GROUP_BYTES:
                    break
        return group

    def _append(self, group: Group) -> None:
        """Append and apply a group and answer its callers; the others stay waiting."""
        if self._send(group.requests()):
            with self._follower.own_append(group.transactions()):
                self._append_and_apply(group)

    def _append_and_apply(self, group: Group) -> None:
        requests = group.requests()
        try:
            appended = self._settle(group, requests)
        except OutOfSync:
            self.counts.lost_appends += 1
            self._unsend(requests)
            rebased = self._rebase(group)
            if rebased is not None:
                self.counts.rebased += 1
                self._append(rebased)
            return
        except UnknownOutcome as error:
            self._end(requests, error)
            return
        except InvalidInput as error:  # more than the store takes at once
            if len(requests) == 1:
                self._end(requests, error)
                return
            self._unsend(requests)
            for request in requests:
                self._commit([request])
            return
        for request, applied in zip(requests, appended, strict=True):
            request.version = applied.version
        faults.reached("ddl-appended")
        self.counts.appends += 1
        self.counts.largest_group = max(self.counts.largest_group, len(requests))
        try:
            catalogs = self._follower.apply_own(appended)
        except BaseException as error:
            for request, applied in zip(requests, appended, strict=True):
                self._end([request], _appended_only(applied, error))
            raise
        self._project_up_to(appended[-1].version)
        self._answer(group, catalogs)

    def _project_up_to(self, version: int) -> None:
        if self.effects is None:
            return
        try:
            self.effects.project_up_to(version)
        except StrandlineError as error:
            logger.debug("the effects of version %d are left to its callers: %s", version, error)
        except Exception:
            logger.exception("the effects of version %d failed; its callers try them", version)

    def _settle(self, group: Group, requests: Sequence[Request]) -> list[AppliedUpdate]:
        """Commit ``group``; where the outcome is unknown, again until it is known."""
        pause = _FIRST_PAUSE
        unknown: UnknownOutcome | None = None
        transactions = group.transactions()
        companion = None
        if self.effects is not None:
            companion = self.effects.companion(transactions, group.catalogs())
        while True:
            try:
                return self._follower.state.commit_transactions(transactions, companion=companion)
            except UnknownOutcome as error:
                unknown = error
            except (Unavailable, Stopping) as error:
                if unknown is None:
                    raise
                if isinstance(error, Stopping):
                    raise unknown from error
            self._stop.wait(min(pause, max(request.left() for request in requests)))
            if self._stop.is_set() or not any(request.left() for request in requests):
                raise unknown  # every caller has left
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _rebase(self, group: Group) -> Group | None:
        """The group on the newer catalog as it was validated, if it lost to silent versions only.

        None if another version came between, or one that changed the same objects.
        """
        self._follower.sync()
        newer = self._follower.latest_catalog()
        try:
            between = self._follower.state.log.updates(group.base.version + 1, newer.version + 1)
        except VersionNotFound:
            return None
        own_objects = {
            (change.kind, change.key)
            for transaction in group.transactions()
            for change in transaction.changes()
        }
        objects_between = {
            (change.kind, change.key) for update in between for change in update.changes()
        }
        silent = bool(between) and all(update.silent for update in between)
        if not silent or own_objects & objects_between:
            return None
        rebased = Group(newer)
        for member in group.members:
            catalog = rebased.catalog
            transaction = member.transaction and member.transaction.rebased(catalog)
            if transaction is not None:
                catalog = Catalog(transaction.version, catalog.time, transaction.contents)
            rebased.add(replace(member, catalog=catalog, transaction=transaction))
        return rebased

    # -- answering the callers -----------------------------------------------------------------

    def _send(self, requests: Sequence[Request]) -> bool:
        """Mark all as sent; False, and none is, where one of them has left."""
        with self._lock:
            if any(request.stage is not Stage.WAITING for request in requests):
                return False
            for request in requests:
                request.stage = Stage.SENT
            return True

    def _unsend(self, requests: Sequence[Request]) -> None:
        """Nothing of these is in the log, nor can be: their callers may leave again."""
        with self._lock:
            for request in requests:
                if request.stage is Stage.SENT:
                    request.stage = Stage.LEFT if request.gone else Stage.WAITING
                    if self._stop.is_set():
                        self._finish(request, _stopping())

    def _answer(self, group: Group, catalogs: Sequence[Catalog]) -> None:
        """Answer each caller of ``group``, whose versions are ``catalogs``."""
        versions = iter(catalogs)
        latest = group.base
        with self._lock:
            for member in group.members:
                request = member.request
                if member.transaction is not None:
                    latest = next(versions)
                    request.actions = tuple(
                        (entry.verb, entry.arguments)
                        for entry in member.transaction.entries
                        if not entry.silent
                    )
                request.catalog = latest
                request.applied = member.applied
                self._finish(request, member.error)

    def _end(self, requests: Sequence[Request], error: BaseException) -> None:
        with self._lock:
            for request in requests:
                self._finish(request, error)

    def _finish(self, request: Request, error: BaseException | None) -> None:
        """Answer one caller; under the lock. Callers that left are not notified."""
        if request.stage in (Stage.WAITING, Stage.SENT):
            request.stage = Stage.DONE
            request.error = error
            self.counts.executed += error is None
            request.gate.release()


def _appended_only(applied: AppliedUpdate, error: BaseException) -> UnknownOutcome:
    return UnknownOutcome(
        f"the change is in the log as version {applied.version}, but this node could not apply it "
        f"yet: {error!r}. Do not repeat it; read the catalog"
    )


def _stopping() -> Stopping:
    return Stopping("this node is stopping; ask another one, or again when it is back")
