"""A condition variable whose lock stays free if a signal handler raises.

The handlers of Python run between its instructions, and those of Ctrl-C, of a time limit and often
of SIGTERM raise. ``with lock`` is safe: nothing runs between taking the lock and the block, nor
between the block and the release. But the ``__enter__`` and ``__exit__`` of `threading.Condition`
are functions in Python. If a handler raises in one of them, the lock stays taken, and each thread
that needs it waits for ever. That is not rare: a signal that comes while the thread waits for the
interpreter is handled there. So `Condition` has those of its lock, which are in C.
"""

from __future__ import annotations

import threading
from operator import attrgetter


class Condition(threading.Condition):
    """See the module. Use it in ``with``."""

    __enter__ = property(attrgetter("lock.__enter__"))
    __exit__ = property(attrgetter("lock.__exit__"))

    def __init__(self, lock: threading.RLock | None = None) -> None:
        self.lock = threading.RLock() if lock is None else lock
        super().__init__(self.lock)
