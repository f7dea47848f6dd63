"""Locks that stay free if a signal handler raises: a condition variable, and a limited wait.

The handlers of Python run between its instructions, and those of Ctrl-C, of a time limit and often
of SIGTERM raise. ``with lock`` is safe: nothing runs between taking the lock and the block, nor
between the block and the release. But the ``__enter__`` and ``__exit__`` of `threading.Condition`
are functions in Python. If a handler raises in one of them, the lock stays taken, and each thread
that needs it waits for ever. That is not rare: a signal that comes while the thread waits for the
interpreter is handled there. So `Condition` has those of its lock, which are in C. A handler may
also raise where `threading.Condition.wait` does not hold the lock. The end of the block would then
raise a `RuntimeError` in place of Ctrl-C, so `Condition.wait` takes the lock again.

Nor is ``lock.acquire(timeout=…)`` safe before a ``try``: a handler may raise between the two.
`TimedLock` gives the lock back then. It needs an `RLock`, which says whether the thread has it.

All of this holds up to Python 3.13. Python 3.14 runs handlers also between taking the lock and the
block of ``with lock``. There, an ``__enter__`` in Python that gives the lock back, with an
``__exit__`` in C, is safe, as that of `TimedLock`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from operator import attrgetter


class LockTaken(Exception):
    """Another thread had the lock for as long as `TimedLock` waited."""


class TimedLock:
    """See the module. Use it in ``with``.

    Raises ``late`` after ``timeout`` seconds, `LockTaken` by default. -1 waits for ever.
    """

    __exit__ = property(attrgetter("lock.__exit__"))

    def __init__(
        self, lock: threading.RLock, *, timeout: float, late: Exception | None = None
    ) -> None:
        self.lock = lock
        self._timeout = timeout
        self._late = late

    def __enter__(self) -> None:
        try:
            if self.lock.acquire(timeout=self._timeout):
                return
        except BaseException:
            with suppress(RuntimeError):  # this thread does not have it
                self.lock.release()
            raise
        raise self._late or LockTaken


class Condition(threading.Condition):
    """See the module. Use it in ``with``."""

    __enter__ = property(attrgetter("lock.__enter__"))
    __exit__ = property(attrgetter("lock.__exit__"))

    def __init__(self, lock: threading.RLock | None = None) -> None:
        self.lock = threading.RLock() if lock is None else lock
        super().__init__(self.lock)

    def wait(self, timeout: float | None = None) -> bool:
        try:
            return super().wait(timeout)
        except BaseException:
            if not self._is_owned():  # type: ignore[attr-defined]  # typeshed leaves it out
                self.lock.acquire()
            raise
