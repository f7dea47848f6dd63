"""A lock for each key: one thread makes what several need, and the others wait or give way."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

from strandline.work import give_way

K = TypeVar("K", bound=Hashable)


class KeyedLock(Generic[K]):
    """See the module. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[K, Future[None]] = {}

    @contextmanager
    def hold(self, key: K, *, gives_way: bool = True) -> Iterator[None]:
        """Run the block while no other thread runs one for ``key``.

        If one does, the call gives way (`strandline.work.give_way`) if it ``gives_way``. If it must
        go on, it waits in its thread.
        """
        made: Future[None] = Future()
        while (other := self._first(key, made)) is not made:
            if gives_way:
                give_way(other)
            other.result()
        try:
            yield
        finally:
            with self._lock:
                del self._held[key]
            made.set_result(None)

    def _first(self, key: K, made: Future[None]) -> Future[None]:
        with self._lock:
            return self._held.setdefault(key, made)
