"""Group commit: callers that arrive at the same time share one append to the log.

An append costs a write to disk or a round trip to the store, and the log accepts one at a time.
While an append is in progress, arriving callers wait in a queue. The next append carries one
version for each of them.

A committer thread, started by the first caller, works in rounds. It takes the waiting requests,
validates each against the catalog that results from the requests before it, appends all their
versions in one step together with their effects outside of the catalog (`Effects`), applies the
versions, and answers each caller. A caller whose command is refused or changes nothing consumes no
version. It gets its answer once the catalog it was validated against is in the log: after the
append of the requests before it, or after a sync if there is no append. If another node appends
first, the round is validated again against the newer catalog. It is not validated again if the
other node appended only silent versions, because no command reads what these change.

The callers of a round are answered together, and many return at once with their next command. So
the thread waits until as many additional callers have arrived as the last round had, but at most as
long as that round took. Without this wait, two halves of the callers would alternate. The thread
skips it if the last wait was in vain and the last round had a single caller. No round begins while
a larger update has priority (`UpdatePriority`).

Users take turns. A round takes one request of each waiting user before a second one of any, and
begins with the users whose last turn is longest ago. Once its validation has taken long, or its
changes are large, the rest goes back into the queue. So the many or slow commands of one user delay
those of another by about a round.

What must stay true:

* No caller whose change is in the log learns that nothing was changed.
* Each caller has its own deadline. It may leave until its commands are sent to the log. They are
  then never appended (the other requests are validated again without them). After the commands were
  sent, a caller whose deadline passes gets `UnknownOutcome`.
* The failure of one request never fails another.
* An append whose outcome is unknown is sent again *unchanged*, with the same ids, until the log
  reports the outcome. Only then is anything validated again. So no command is carried out twice.

Rejected: the first waiting caller leads the round. This saves the hand-over between two threads
(about 30 µs), but the deadline of that caller, or an interrupt of its thread, would end the round
for all others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

from strandline import faults
from strandline.catalog.catalog import Catalog
from strandline.catalog.follower import CatalogFollower
from strandline.catalog.requests import Group, Request, Stage, validate
from strandline.catalog.update_priority import UpdatePriority
from strandline.durable.log import Companion
from strandline.durable.state import AppliedUpdate
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
    forget_frames,
)
from strandline.outage import failing_at_once
from strandline.sql import StoreFull
from strandline.work import keeping_garbage
from strandline.work.time_slices import shorten_time_slices

logger = logging.getLogger(__name__)

MAX_WAITING = 1024
"""The size of the queue; further callers wait until the queue has room."""
GROUP_BYTES = 1 << 20
"""The group accepts no further request once its changes hold more bytes than this."""
IDLE_SECONDS = 10.0
VALIDATION_SECONDS = 0.1
"""The group accepts no further request once its validation has computed for longer than this."""
LONGEST_WAIT_SECONDS = 0.02
"""The longest time that a round waits for the callers of the last round."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_STOP_TIMEOUT = 5.0


@dataclass(slots=True)
class CommitCounts:
    """Counts since the start. Only the committer thread writes them."""

    executed: int = 0
    appends: int = 0
    lost_appends: int = 0
    rebased: int = 0
    largest_group: int = 0


class Effects(Protocol):
    """The effects of versions outside of the catalog."""

    def companion(
        self, transactions: Sequence[CatalogTransaction], catalogs: Sequence[Catalog]
    ) -> Companion:
        """Return what writes the effects, as far as possible, in the transaction of the append."""

    def project_up_to(self, version: int) -> None:
        """Carry out the remaining effects of ``version`` and of all versions before it."""


class GroupCommit:
    """See the module. Safe to use from several threads."""

    def __init__(self, follower: CatalogFollower) -> None:
        self._follower = follower
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._waiting: deque[Request] = deque()
        self._working: list[Request] = []
        self._rounds = 0
        self._turns: dict[str, int] = {}  # of users who wait: the last round that served them
        self._expected = 1  # callers that the committer thread waits for
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.priority = UpdatePriority(follower, self._news)
        self.counts = CommitCounts()
        self.effects: Effects | None = None
        """Carried out for each group before its callers are answered.

        This saves the callers from doing it one by one. A failure is not reported to the callers; a
        caller that needs it calls `Effects.project_up_to` itself.
        """

    # -- callers -------------------------------------------------------------------------------

    def execute(self, request: Request) -> None:
        """Have ``request`` carried out. Returns when it is done, also if it was refused.

        Raises `DeadlineExceeded` (nothing of it was or will be done), `UnknownOutcome` or
        `Stopping`.
        """
        if request.left() <= 0:
            raise self._late(request)
        try:
            self._enqueue(request)
            is_answered = request.gate.acquire(timeout=request.left())
        except BaseException:
            self._leave(request)
            raise
        if not is_answered and (late := self._leave(request)) is not None:
            raise late

    def _enqueue(self, request: Request) -> None:
        with self._lock:
            while len(self._waiting) >= MAX_WAITING and not self._stop.is_set():
                if not self._not_full.wait(timeout=request.left()):
                    raise self._late(request)
            if self._stop.is_set():
                raise Stopping.of_node()
            self._waiting.append(request)
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="catalog-committer", daemon=True)
                thread.start()  # fails where the system has no more threads
                self._thread = thread
            if len(self._waiting) >= self._expected:
                # Not `notify`: after one that Ctrl-C cut off, the next would wake no thread.
                self._news.notify_all()

    def _leave(self, request: Request) -> StrandlineError | None:
        """Stop waiting for ``request``. Return why it is late, or None if it was already done."""
        with self._lock:
            if request.stage is Stage.DONE:
                return None
            late = self._late(request)  # before the committer thread can change its stage
            request.has_left = True
            if request.stage is Stage.WAITING:
                request.stage = Stage.LEFT
                if request in self._waiting:
                    self._waiting.remove(request)
                    self._not_full.notify()
            return late

    def _late(self, request: Request) -> StrandlineError:
        passed = f"{time.monotonic() - request.began:.3f} s"
        if request.version is not None:
            return UnknownOutcome(
                f"the change is in the log as version {request.version}, but this node did not "
                f"finish applying it within {passed}: its folders and events may still be "
                "created. Do not repeat it; read the catalog"
            )
        if request.stage is Stage.SENT:
            lost = request.error.reason if isinstance(request.error, UnknownOutcome) else ""
            return UnknownOutcome(
                f"the change was sent to the log, which did not answer within {passed}"
                f"{lost and f' ({lost})'}. The change may still take effect: read the catalog "
                "before you repeat it"
            )
        reason = f": {request.error}" if request.error else ""
        return DeadlineExceeded(
            "the change did not start within the time limit and will not take effect; try "
            f"again{reason}"
        )

    def stop(self) -> None:
        """Refuse all callers from now on. Waiting callers get `Stopping`. Idempotent."""
        with self._lock:
            if self._stop.is_set():
                return
            self._stop.set()
            self._news.notify_all()
            self._not_full.notify_all()
            thread = self._thread
            for request in [*self._waiting, *self._working]:
                if request.stage is Stage.WAITING:
                    self._finish(request, Stopping.of_node())
            self._waiting.clear()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_TIMEOUT)
        with self._lock:
            for request in self._working:
                if request.stage is Stage.SENT:
                    self._finish(request, self._late(request))

    # -- the committer thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with failing_at_once():  # it tries again itself, and callers may leave meanwhile
                self._work()
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """Answer the callers if the thread ends by ``error``. The next caller starts it again.

        If the memory does not suffice for this either, the callers wait for their deadlines.
        """
        ended = Unavailable(
            f"the thread that commits changes ended with an unexpected error ({error!r}); nothing "
            "was changed, try again"
        )
        with self._lock:
            self._thread = None
            for request in [*self._waiting, *self._working]:
                is_sent = request.stage is Stage.SENT
                self._finish(request, self._late(request) if is_sent else ended)
            self._waiting.clear()
            self._working = []
            self._not_full.notify_all()

    def _work(self) -> None:
        shorten_time_slices()
        last_round_size, seconds = 0, 0.0  # of the last round
        wait_pays = True
        while True:
            with self._lock:
                expected = len(self._waiting) + last_round_size if wait_pays else 1
                while not self._waiting and not self._stop.is_set():
                    if not self._news.wait(IDLE_SECONDS) and not self._waiting:
                        self._thread = None
                        return
                self.priority.wait_for_others(self._stop)
                if self._stop.is_set():
                    return
                limit = self._follower.state.log.max_updates
                arrived = self._await_callers(
                    min(expected, limit), min(seconds, LONGEST_WAIT_SECONDS)
                )
                if self._stop.is_set():
                    return
                self._working = self._next_requests(limit)
                self._not_full.notify(len(self._working))
            began = time.monotonic()
            try:
                self._commit(self._working)
            except BaseException as error:  # of any kind: no caller may wait for ever
                if not isinstance(error, StrandlineError):
                    logger.exception("committing a group of changes failed")
                self._end(self._working, error)
                if isinstance(error, Fenced):
                    self._join_newer_epoch()
            seconds = time.monotonic() - began
            last_round_size = len(self._working)  # without those that went back into the queue
            wait_pays = (wait_pays and arrived) or last_round_size > 1
            with self._lock:
                self._working = []
            self.priority.withdraw_unused()

    def _next_requests(self, limit: int) -> list[Request]:
        """Take up to ``limit`` requests from the queue, in the order of the turns of their users.

        The caller holds the lock.
        """
        numbers: defaultdict[str, int] = defaultdict(int)
        turns = []
        for request in self._waiting:
            turns.append((numbers[request.author], self._turns.get(request.author, 0)))
            numbers[request.author] += 1
        self._rounds += 1
        self._turns = {user: self._turns.get(user, 0) for user in numbers}
        in_turn = sorted(zip(turns, self._waiting, strict=True), key=itemgetter(0))
        requests = [request for _, request in in_turn]
        self._waiting = deque(requests[limit:])
        return requests[:limit]

    def _serve(self, requests: Sequence[Request], number: int) -> Sequence[Request]:
        """Put all but the first ``number`` requests of a round back into the queue.

        Returns these first ones, whose users have had their turn.
        """
        with self._lock:
            self._turns |= {request.author: self._rounds for request in requests[:number]}
            others = dict.fromkeys(requests[number:])
            self._working = [request for request in self._working if request not in others]
            self._waiting.extendleft(
                request for request in reversed(others) if request.stage is Stage.WAITING
            )
            return requests[:number]

    def _await_callers(self, number: int, seconds: float) -> bool:
        """Wait until ``number`` callers are in the queue, for at most ``seconds``.

        Return whether they arrived. The caller holds the lock.
        """
        self._expected, end = number, time.monotonic() + seconds
        while len(self._waiting) < number and not self._stop.is_set():
            if not self._news.wait(max(end - time.monotonic(), 0.0)):
                break
        self._expected = 1
        return len(self._waiting) >= number

    def _join_newer_epoch(self) -> None:
        """Join the newer epoch, so that the next callers are not refused as these were."""
        try:
            self._follower.sync()
        except StrandlineError as error:
            logger.warning("%s", error)
        except Exception:  # the thread must live on; the next fenced append retries
            logger.exception("joining the newer epoch failed")

    def _commit(self, requests: Sequence[Request]) -> None:
        """Carry out all requests, in as many appends as needed."""
        pause = _FIRST_PAUSE
        synced = False  # whether this node has synced with the log since these requests came
        lost_before, seconds = self.counts.lost_appends, 0.0
        while waiting := self._still_waiting(requests):
            try:
                self._follower.refuse_set_back()  # its outcome is known: nothing is sent yet
                losses = self.counts.lost_appends - lost_before
                if self.priority.is_needed(losses, seconds):
                    self.priority.ask(max(request.left() for request in waiting))
                began = time.monotonic()
                group = self._validated(waiting)
                seconds = time.monotonic() - began
                requests = self._serve(waiting, len(group.members))
                if group.requests():
                    self._append(group)
                elif synced:
                    self._answer(group, [])
                else:
                    for member in group.members:  # each is validated again, after the sync
                        if member.error is not None:
                            forget_frames(member.error)
                    self._follower.sync()
                    synced = True
                pause = _FIRST_PAUSE
            except Unavailable as error:
                with self._lock:
                    for request in waiting:
                        if request.stage is not Stage.DONE:  # that one may be in the log
                            request.error = error
                self._unsend(waiting)
                self._stop.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _still_waiting(self, requests: Sequence[Request]) -> list[Request]:
        with self._lock:
            self.priority.wait_for_others(self._stop)
            return [request for request in requests if request.stage is Stage.WAITING]

    def _validated(self, requests: Sequence[Request]) -> Group:
        try:
            return self._validate(self._follower.latest_catalog(), requests)
        except Fenced:  # by an earlier append, after which this node could not join the newer epoch
            self._follower.sync()
            return self._validate(self._follower.latest_catalog(), requests)

    def _validate(self, base: Catalog, requests: Sequence[Request]) -> Group:
        group = Group(base)
        now = self._follower.now()
        end = time.thread_time() + VALIDATION_SECONDS
        with keeping_garbage:  # what commands make lives on
            for request in requests:
                catalog = group.catalog
                transaction = self._follower.state.transaction(catalog, author=request.author)
                group.add(validate(catalog, transaction, request, now))
                if group.size > GROUP_BYTES or time.thread_time() > end:
                    break
        return group

    def _append(self, group: Group) -> None:
        """Append and apply a group and answer its callers.

        Requests outside of the group stay waiting, and so do all of the group if a caller has left.
        """
        if self._send(group.requests()):
            with self._follower.own_append(group.transactions()):
                self._append_and_apply(group)

    def _append_and_apply(self, group: Group) -> None:
        requests = group.requests()
        try:
            appended = self._settle(group, requests)
        except OutOfSync:
            self.counts.lost_appends += 1
            for request in requests:  # first: if the node stops, `_unsend` answers them
                request.error = Unavailable(
                    "other changes of the catalog came first; fewer commands at once take less time"
                )
            self._unsend(requests)
            rebased = self._rebase(group)
            if rebased is not None:
                self.counts.rebased += 1
                self._append(rebased)
            return
        except (UnknownOutcome, StoreFull) as error:
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
            catalogs = self._apply_own(appended, requests)
        except BaseException as error:
            for request, applied in zip(requests, appended, strict=True):
                self._end([request], _appended_only(applied, error))
            raise
        self._project_up_to(appended[-1].version)
        self._answer(group, catalogs)

    def _apply_own(
        self, appended: Sequence[AppliedUpdate], requests: Sequence[Request]
    ) -> Sequence[Catalog]:
        """Apply what is in the log; if the store is away, try again while a caller waits."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._follower.apply_own(appended)
            except Unavailable:
                if not self._wait_with(requests, pause):
                    raise
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _wait_with(self, requests: Sequence[Request], seconds: float) -> bool:
        """Wait before the next attempt. Return False if no caller waits for it."""
        self._stop.wait(min(seconds, max(request.left() for request in requests)))
        return not self._stop.is_set() and any(request.left() for request in requests)

    def _project_up_to(self, version: int) -> None:
        if self.effects is None:
            return
        try:
            self.effects.project_up_to(version)
        except StrandlineError as error:
            logger.debug("the callers of version %d will carry out its effects: %s", version, error)
        except Exception:
            logger.exception(
                "the effects of version %d failed; its callers will try them again", version
            )

    def _settle(self, group: Group, requests: Sequence[Request]) -> list[AppliedUpdate]:
        """Commit ``group``; if the outcome is unknown, repeat until it is known."""
        pause = _FIRST_PAUSE
        unknown: UnknownOutcome | None = None
        transactions = group.transactions()
        companion = None
        if self.effects is not None:
            companion = self.effects.companion(transactions, group.catalogs())
        while True:
            try:
                if unknown is not None:
                    self._follower.refuse_set_back()  # a standby may have taken over meanwhile
                return self._follower.state.commit_transactions(transactions, companion=companion)
            except OutOfSync:
                raise  # also of an earlier attempt, the log has nothing
            except UnknownOutcome as error:
                unknown = error
            except Exception as error:
                if unknown is None:
                    raise
                if not isinstance(error, Unavailable):  # perhaps without asking the log
                    raise unknown from error
            for request in requests:  # a caller that leaves now learns why
                request.error = unknown
            if not self._wait_with(requests, pause):
                raise unknown
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _rebase(self, group: Group) -> Group | None:
        """Sync, and return what `Group.rebased` returns for the versions that came first."""
        self._follower.sync()
        newer = self._follower.latest_catalog()
        try:
            between = self._follower.state.log.updates(group.base.version + 1, newer.version + 1)
        except VersionNotFound:
            return None
        return group.rebased(newer, between)

    # -- answering the callers -----------------------------------------------------------------

    def _send(self, requests: Sequence[Request]) -> bool:
        """Mark all as sent. If a caller has left, mark none and return False."""
        with self._lock:
            if any(request.stage is not Stage.WAITING for request in requests):
                return False
            for request in requests:
                request.stage = Stage.SENT
            return True

    def _unsend(self, requests: Sequence[Request]) -> None:
        """Let the callers leave again: nothing of these requests is in the log or can get there."""
        with self._lock:
            for request in requests:
                if request.stage is Stage.SENT:
                    request.stage = Stage.LEFT if request.has_left else Stage.WAITING
                    if self._stop.is_set():
                        self._finish(request, Stopping.of_node())

    def _answer(self, group: Group, catalogs: Sequence[Catalog]) -> None:
        """Answer each caller of ``group``; ``catalogs`` are those of its versions, in order."""
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
        """Answer one caller. The caller holds the lock. Callers that left are not notified."""
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
