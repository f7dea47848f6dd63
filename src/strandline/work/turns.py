"""Turns at making what several threads need: one makes it, the others wait until it is made."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

from strandline.work import give_way

K = TypeVar("K", bound=Hashable)


class Turns(Generic[K]):
    """See the module. Each key has its own turns. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._making: dict[K, Future[None]] = {}

    @contextmanager
    def turn(self, key: K, *, gives_way: bool = True) -> Iterator[None]:
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
                del self._making[key]
            made.set_result(None)

    def _first(self, key: K, made: Future[None]) -> Future[None]:
        with self._lock:
            return self._making.setdefault(key, made)
