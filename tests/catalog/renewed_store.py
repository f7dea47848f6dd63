"""One store for many tests, which has its first contents again before each test.

Opening a store for one test costs three times as much as the test itself.
"""

from __future__ import annotations

import atexit
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from strandline.catalog import CatalogManager
from strandline.durable import DurableCatalogState, MetastorageLog, durable_state
from strandline.metastorage import Delete, Put
from strandline.metastorage.store import prefix_end
from tests.conftest import ManualWall, new_member_of

MEMORY = Path("/dev/shm")
_END = prefix_end("")


class RenewedStore:
    """A store with a new catalog that ``prepare`` has changed, in a memory folder if there is one.

    It is deleted when the process ends.
    """

    def __init__(self, prepare: Callable[[CatalogManager], None] = lambda _: None) -> None:
        folder = TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        atexit.register(folder.cleanup)
        self._wall = ManualWall()
        self._member = new_member_of(Path(folder.name) / "strandline.db", self._wall)
        atexit.register(self._member.close)
        self._member.open()
        with self._running(self._joined()) as manager:
            prepare(manager)
        self._contents = self._member.store.range("", _END)
        self._state = self._joined()

    @contextmanager
    def manager(self) -> Iterator[CatalogManager]:
        """A manager that joins the store with its first contents. One at a time."""
        store = self._member.store
        known = {content.key for content in self._contents}
        others = [entry.key for entry in store.range("", _END) if entry.key not in known]
        puts = [Put(content.key, content.value) for content in self._contents]
        store.invoke([], [*map(Delete, others), *puts])
        # Not joined anew: to read the same log again and again would cost a third of the tests.
        state = copy.copy(self._state)
        state.log, state.recovered = MetastorageLog(store), [*self._state.recovered]
        with self._running(state) as manager:
            yield manager

    def _joined(self) -> DurableCatalogState:
        return durable_state(MetastorageLog(self._member.store)).join(member="m0")

    @contextmanager
    def _running(self, state: DurableCatalogState) -> Iterator[CatalogManager]:
        manager = CatalogManager(state, self._member.clock, elapsed=self._wall)
        try:
            yield manager
        finally:
            manager.stop()
