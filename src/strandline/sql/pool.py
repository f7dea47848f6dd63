"""SQLAlchemy's pool of connections, whose locks stay free if a signal handler raises.

A handler that raises in a method of `threading.Condition` leaves its lock taken. Then each thread
that takes or returns a connection would wait for ever (see `strandline.condition`).
"""

from __future__ import annotations

from sqlalchemy.pool import QueuePool
from sqlalchemy.pool.base import ConnectionPoolEntry
from sqlalchemy.util.queue import Queue

from strandline.condition import Condition


class _Queue(Queue[ConnectionPoolEntry]):
    def __init__(self, maxsize: int = 0, use_lifo: bool = False) -> None:
        super().__init__(maxsize, use_lifo)
        self.not_empty, self.not_full = Condition(self.mutex), Condition(self.mutex)


class ConnectionPool(QueuePool):
    """See the module."""

    __module__ = QueuePool.__module__  # SQLAlchemy names its logger after it
    _queue_class = _Queue
