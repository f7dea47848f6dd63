"""One store for many tests, each of which finds in it what it held at first.

A store that is opened for one test costs three times what the test does with it.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from strandline.catalog import CatalogManager
from strandline.durable import MetastorageLog, durable_state
from strandline.metastorage import Delete, Put
from strandline.metastorage.store import prefix_end
from tests.conftest import ManualWall, new_member_of

MEMORY = Path("/dev/shm")
_END = prefix_end("")


class RenewedStore:
    """A store in memory, where that is a folder, with a new catalog that ``prepare`` has changed.

    It is gone with the process.
    """

    def __init__(self, prepare: Callable[[CatalogManager], None] = lambda _: None) -> None:
        folder = TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        atexit.register(folder.cleanup)
        self._wall = ManualWall()
        self._member = new_member_of(Path(folder.name) / "strandline.db", self._wall)
        atexit.register(self._member.close)
        self._member.open()
        with self._running() as manager:
            prepare(manager)
        self._contents = self._member.store.range("", _END)

    @contextmanager
    def manager(self) -> Iterator[CatalogManager]:
        """A manager that joins the store as it was at first. One at a time."""
        store = self._member.store
        known = {found.key for found in self._contents}
        others = [found.key for found in store.range("", _END) if found.key not in known]
        puts = [Put(found.key, found.value) for found in self._contents]
        store.invoke([], [*map(Delete, others), *puts])
        with self._running() as manager:
            yield manager

    @contextmanager
    def _running(self) -> Iterator[CatalogManager]:
        state = durable_state(MetastorageLog(self._member.store)).join(member="m0")
        manager = CatalogManager(state, self._member.clock, elapsed=self._wall)
        try:
            yield manager
        finally:
            manager.stop()
