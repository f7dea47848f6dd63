"""A lock that is granted in the order of requests.

The writers of one process wait here instead of in SQLite's own back-off, which sleeps for
increasing times and admits whichever thread wakes at the right moment. `threading.Lock` promises no
order either: if sixteen threads write in a loop, one of them can wait for seconds.

The lock is handed over, never dropped while a thread waits: `release` wakes the thread that has
waited longest, and that thread owns the lock from then on, even before it runs. So a wait that
times out must check once more whether it got the lock at the same moment.

After `stop_waiting` only a thread that finds the lock free gets it.
"""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """A first-come-first-served mutex with a time-out. Not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._refused: set[threading.Lock] = set()
        self._nobody_waits = False
        self._taken = False
        self._owner: int | None = None

    def acquire(self, *, timeout: float) -> bool:
        """True when this thread has the lock; False after ``timeout`` seconds (0: do not wait).

        Also False after `stop_waiting`.
        """
        with self._guard:
            if not self._taken:
                self._taken = True
                self._owner = threading.get_ident()
                return True
            if self._nobody_waits:
                return False
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            served = turn.acquire(timeout=max(timeout, 0.0))
        except BaseException:
            if not self._leave(turn):
                self.release()
            raise
        if turn in self._refused or (not served and self._leave(turn)):
            return False
        self._owner = threading.get_ident()
        return True

    def release(self) -> None:
        """Give the lock to the thread that has waited longest."""
        with self._guard:
            self._owner = None
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

    def stop_waiting(self) -> None:
        """Refuse the threads that wait now, and all that would have to wait later."""
        with self._guard:
            self._nobody_waits = True
            while self._waiting:
                turn = self._waiting.popleft()
                self._refused.add(turn)
                turn.release()

    def held_by_this_thread(self) -> bool:
        """Whether the calling thread holds the lock."""
        return self._owner == threading.get_ident()

    def waiting(self) -> int:
        """The number of waiting threads."""
        return len(self._waiting)

    def _leave(self, turn: threading.Lock) -> bool:
        """Stop waiting. Returns False if the lock was handed over in the meantime."""
        with self._guard:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
            return turn in self._refused
