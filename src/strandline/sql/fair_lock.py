"""A lock that is granted in the order of requests.

The writers of one process wait here instead of in SQLite's own back-off, which sleeps for
increasing times and admits whichever thread wakes at the right moment. `threading.Lock` promises no
order either: if sixteen threads write in a loop, one of them can wait for seconds.

The lock is handed over, never dropped while a thread waits: `release` makes the thread that has
waited longest the owner, even before it runs. So whether a wait was in vain, only the owner says:
after a time-out, after `stop_waiting`, and after an error of a signal handler, such as Ctrl-C.
Handlers run after a call into C. So between two such calls, no step here leaves the lock to a
thread that does not know it.

After `stop_waiting` only a thread that finds the lock free gets it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple


class Claim(NamedTuple):
    """A thread that wants the lock, and what wakes it if it waits."""

    thread: int
    woken: threading.Lock


class FairLock:
    """A first-come-first-served mutex with a time-out. Not reentrant.

    ``owner`` is another object for each `acquire`, or None.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[Claim] = deque()
        self._nobody_waits = False
        self.owner: Claim | None = None

    def acquire(self, *, timeout: float) -> bool:
        """True when this thread has the lock; False after ``timeout`` seconds (0: do not wait).

        Also False after `stop_waiting`.
        """
        claim = Claim(threading.get_ident(), threading.Lock())
        claim.woken.acquire()
        try:
            with self._guard:
                if self.owner is None:
                    self.owner = claim
                    return True
                if self._nobody_waits:
                    return False
                self._waiting.append(claim)
            claim.woken.acquire(timeout=max(timeout, 0.0))
            self._leave(claim)
            return self.owner is claim
        except BaseException:
            self._leave(claim)
            if self.owner is claim:
                self.release()
            raise

    def release(self) -> None:
        """Give the lock to the thread that has waited longest."""
        with self._guard:
            if self._waiting:
                claim = self._waiting[0]
                del self._waiting[0]
                self.owner = claim
                claim.woken.release()
            else:
                self.owner = None

    def stop_waiting(self) -> None:
        """Refuse the threads that wait now, and all that would have to wait later."""
        with self._guard:
            self._nobody_waits = True
            while self._waiting:
                self._waiting.popleft().woken.release()

    def held_by_this_thread(self) -> bool:
        """Whether the calling thread holds the lock."""
        owner = self.owner
        return owner is not None and owner.thread == threading.get_ident()

    def waiting(self) -> int:
        """The number of waiting threads."""
        return len(self._waiting)

    def _leave(self, claim: Claim) -> None:
        with self._guard:
            if claim in self._waiting:
                self._waiting.remove(claim)
