"""Leader election among several processes.

Each participant runs one thread over any metastorage. Every third of the lease's time, it asks for
the lease (for the holder, this renews it) and reads who holds it. It calls the listener when the
holder changes, with the new lease, or with None while there is no holder.

What must stay true:

* A participant that says it leads holds the lease, by its own clock too: the lease's time, counted
  from *before* the call that returned it, has not passed. So a participant that was paused or cut
  off knows that it no longer leads before it asks the store. It may still act in the moment between
  checking and acting. A write that must not happen twice uses the condition `LeaseHeld` with the
  token.
* A new leader is elected soon after the old one is gone, even while the store's time stands still.
  (A wall clock that jumped ahead moved the store's time ahead, and it stands still until the other
  clocks catch up.) So if another holder's lease does not change for twice its time, by this
  participant's clock, this participant releases it. Its holder has lost it before, by its own
  clock. For this reason all participants must use the same ``ttl_ms``.
* The listener is told states, not changes: the last state it was told is the present one, as of the
  last read. Holders that came and went between two reads are not reported.
* A failure of the listener is logged and counted, and does not end the participation.

Rejected: callbacks from the store (only some stores have them); waiting for a key that the leader
writes (a leader that dies writes nothing, so the lease has to be read anyway).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from strandline.errors import Conflict, StrandlineError
from strandline.metastorage.store import Lease, Metastorage, check_key, check_ttl

logger = logging.getLogger(__name__)

ElectionListener = Callable[[Lease | None], None]
_RENEWALS_PER_TTL = 3
_JOIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ElectionStatistics:
    """Counts since the start.

    ``failures`` are rounds in which the store did not answer. ``terms`` counts how often this
    participant became the leader, ``losses`` how often it lost the lease other than by
    `Election.stop`. ``changes`` counts calls of the listener, ``listener_failures`` those that
    raised.
    """

    rounds: int
    failures: int
    terms: int
    losses: int
    changes: int
    listener_failures: int


class Election:
    """One participant in the election ``name``. ``holder`` names this running process.

    ``listener`` is called in the thread of the election, so it must not block for long. It is told
    the first state too, unless there is no leader.
    """

    def __init__(
        self,
        store: Metastorage,
        name: str,
        holder: str,
        *,
        ttl_ms: int,
        listener: ElectionListener,
    ) -> None:
        check_key(name)
        check_key(holder)
        check_ttl(ttl_ms)
        self._store = store
        self._name = name
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._listener = listener
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._held: Lease | None = None
        self._held_until = 0.0
        self._seen: Lease | None = None
        self._seen_since = 0.0
        self._told: Lease | None = None
        self._counts: Counter[str] = Counter()

    def start(self) -> Self:
        """Take part in the election, in a thread of its own, until `stop`."""
        thread = threading.Thread(target=self._run, name=f"election-{self._name}", daemon=True)
        self._thread = thread
        thread.start()
        return self

    def stop(self) -> None:
        """Stop taking part and release the lease, without calling the listener. Idempotent.

        The listener may call this; the lease is then released after the listener returns. If the
        store does not answer, the lease expires.
        """
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def leading(self) -> Lease | None:
        """The lease if this participant leads now. Dependent writes name its token."""
        with self._guard:
            return self._held if time.monotonic() < self._held_until else None

    def statistics(self) -> ElectionStatistics:
        """The counts of this participant."""
        with self._guard:
            counts = Counter(self._counts)
        return ElectionStatistics(**{name: counts[name] for name in ElectionStatistics.__slots__})

    @property
    def _me(self) -> tuple[str, str]:
        return self._holder, self._name

    def _run(self) -> None:
        round_seconds = self._ttl_ms / 1000 / _RENEWALS_PER_TTL
        while not self._stop.is_set():
            began = time.monotonic()
            self._round()
            taken = time.monotonic() - began
            self._stop.wait(max(round_seconds - taken, round_seconds / 10))
        self._release()

    def _round(self) -> None:
        """Ask for the lease, read who holds it, tell the listener."""
        self._count("rounds")
        try:
            leader = self._ask()
        except Exception as error:  # an unexpected error must not end the thread silently
            self._count("failures")
            logger.warning(
                "%s cannot take part in the election %r: %s",
                *self._me,
                error,
                exc_info=not isinstance(error, StrandlineError),
            )
            # The present leader is unknown. Only the end of our own lease is certain.
            if self._held is None or self.leading() is not None:
                return
            leader = None
        if leader is None or leader.holder != self._holder:
            self._lost()
        self._tell(leader)

    def _ask(self) -> Lease | None:
        """The present leader's lease; ours if it is free."""
        began = time.monotonic()
        leader: Lease | None = None
        if self._held is not None:
            try:
                leader = self._store.renew_lease(self._held, ttl_ms=self._ttl_ms)
            except Conflict:
                self._lost()
        if leader is None:
            leader = self._store.acquire_lease(self._name, self._holder, ttl_ms=self._ttl_ms)
        if leader is None:
            return self._present(self._store.lease(self._name))
        with self._guard:
            if self._held is None:
                self._counts["terms"] += 1
            self._held = leader
            self._held_until = began + self._ttl_ms / 1000
        return leader

    def _present(self, leader: Lease | None) -> Lease | None:
        """The lease of another holder; None if it was abandoned and is released here."""
        now = time.monotonic()
        if leader is None or leader != self._seen:
            self._seen, self._seen_since = leader, now
        elif now - self._seen_since > 2 * self._ttl_ms / 1000:
            logger.warning("%s releases the lease %r, which %s abandoned", *self._me, leader.holder)
            self._store.release_lease(leader)
            return None
        return leader

    def _lost(self) -> None:
        with self._guard:
            if self._held is not None:
                self._held = None
                self._counts["losses"] += 1

    def _release(self) -> None:
        with self._guard:
            held, self._held = self._held, None
        if held is None:
            return
        try:
            self._store.release_lease(held)
        except StrandlineError as error:
            logger.warning("%s could not release the lease %r: %s", *self._me, error)

    def _tell(self, leader: Lease | None) -> None:
        """Tell the listener if the leader or its term changed."""
        last_told, self._told = self._told, leader
        if _term(last_told) == _term(leader):
            return
        self._count("changes")
        try:
            self._listener(leader)
        except Exception:
            self._count("listener_failures")
            logger.exception("a listener of the election %r failed", self._name)

    def _count(self, what: str) -> None:
        with self._guard:
            self._counts[what] += 1


def _term(lease: Lease | None) -> tuple[str, int] | None:
    return None if lease is None else (lease.holder, lease.token)
