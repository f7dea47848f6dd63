"""Versions that somebody waits for: a future for each, completed by whoever applies the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from strandline.catalog.catalog import Catalog
from strandline.errors import StrandlineError


class AwaitedVersions:
    """The futures that are not done yet. Safe to use from several threads."""

    def __init__(self) -> None:
        self._futures: list[tuple[int, Future[Catalog]]] = []
        self._lock = threading.Lock()

    def add(self, version: int) -> Future[Catalog]:
        """A new future of ``version``."""
        future: Future[Catalog] = Future()
        with self._lock:
            self._futures.append((version, future))
        return future

    def forget(self, future: Future[Catalog]) -> None:
        """Cancel a future that nobody waits for any more."""
        future.cancel()
        self._take(lambda _, one: one is future)

    def tell(self, upper: int, catalog: Callable[[int], Catalog]) -> None:
        """Complete the futures of versions below ``upper``, with the ``catalog`` of theirs."""
        if not self._futures:
            return
        for version, future in self._take(lambda version, _: version < upper):
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(catalog(version))
            except StrandlineError as error:
                future.set_exception(error)

    def end(self, error: StrandlineError) -> None:
        """Fail all that are left."""
        for _, future in self._take(lambda *_: True):
            if future.set_running_or_notify_cancel():
                future.set_exception(type(error)(error.message))

    def _take(
        self, due: Callable[[int, Future[Catalog]], bool]
    ) -> list[tuple[int, Future[Catalog]]]:
        """Those that are ``due``, which are not among the others any more."""
        with self._lock:
            taken = [one for one in self._futures if due(*one)]
            self._futures = [one for one in self._futures if not due(*one)]
        return taken
