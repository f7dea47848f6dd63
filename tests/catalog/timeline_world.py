"""The world of a timeline: one store, the nodes on it, their wall clock, and the calls under way.

All nodes share the wall clock, which stands still until a step moves it. So a call that waits for a
later time cannot end before that, however slow or fast the machine is. `World.wait_of` returns when
the call was seen to wait at the present time of the clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from strandline.catalog import CatalogManager, initial_catalog
from strandline.catalog.events import AppliedVersion
from strandline.clock import HybridClock, Timestamp, milliseconds
from strandline.durable import MetastorageLog, OpenableState, durable_state
from strandline.metastorage import SqlMetastorage
from strandline.sql import open_sqlite
from tests.conftest import ManualWall

PATIENCE = 60.0
"""Seconds that an expected event may take; no test waits until this time is over."""


class WatchedClock(HybridClock):
    """A node's clock. It records which call waits for what time."""

    def __init__(self, world: World) -> None:
        super().__init__(world.wall)
        self._world = world

    def wait_until(self, at: Timestamp, *, timeout: float) -> None:
        with self._world.changed:
            if self.current() < at:
                self._world.waits[threading.current_thread().name] = at
                self._world.changed.notify_all()
        super().wait_until(at, timeout=timeout)

    def look_again(self) -> None:
        """Wake the threads that wait, because the wall clock has moved."""
        with self._moved:
            self._moved.notify_all()


class Told:
    """A listener. ``heard`` are the versions that it received and could read in the catalog."""

    def __init__(self, world: World, manager: CatalogManager, reaction: Reaction) -> None:
        self._world, self._manager, self._reaction = world, manager, reaction
        self.heard: list[int] = []
        self.may_return = threading.Event()

    def __call__(self, applied: AppliedVersion) -> None:
        version = applied.update.version
        assert self._manager.catalog(version) is applied.catalog
        assert applied.before.version == version - 1
        self.heard.append(version)
        self._world.tell()
        self._reaction(self)


Reaction = Callable[[Told], None]
"""What a listener does when it receives a version."""


class Node:
    """The catalog of a process on the store. The node holds or joins it when `begin` is called."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._opened = ExitStack()
        database = open_sqlite(world.folder / "strandline.db")
        self._opened.callback(database.close)
        self.clock = WatchedClock(world)
        self.store = SqlMetastorage(database, self.clock)
        self._opened.callback(self.store.close)
        self.log = MetastorageLog(self.store)
        self.replayed: tuple[int, list[int]] = (0, [])
        self._manager: CatalogManager | None = None

    @property
    def manager(self) -> CatalogManager:
        """The manager of a node that holds the catalog or has joined it."""
        assert self._manager is not None, "this node has no catalog"
        return self._manager

    def openable(self) -> OpenableState:
        """The store before it is opened."""
        return durable_state(self.log)

    def begin(self, *, hold: bool) -> None:
        """Become the holder of a new epoch, or join the present one."""
        state = (
            self.openable().open(
                member=f"holder {id(self)}",
                initialize=initial_catalog(
                    delay_ms=self.world.delay_ms,
                    skew_ms=self.world.skew_ms,
                    default_location="file:/warehouse",
                ),
                raise_fence=lambda *_: None,
            )
            if hold
            else self.openable().join(member=f"joined {id(self)}")
        )
        start, *replayed = state.recovered
        self.replayed = (start.version, [applied.version for applied in replayed])
        self._manager = CatalogManager(state, self.clock, elapsed=self.world.wall)

    def close(self) -> None:
        """Stop, and let go of the store."""
        if self._manager is not None:
            self._manager.stop()
        self._opened.close()


class World:
    """See the module."""

    def __init__(self, folder: Path, *, delay_ms: int, skew_ms: int) -> None:
        self.folder, self.delay_ms, self.skew_ms = folder, delay_ms, skew_ms
        self.wall = ManualWall()
        self.start = self.wall.now
        self.nodes: dict[int, Node] = {}
        self.listeners: dict[str, Told] = {}
        self.calls: dict[str, Future[Any]] = {}
        self.changed = threading.Condition()
        self.waits: dict[str, Timestamp] = {}
        """The time that each call waits for, as seen since the wall clock last moved."""

    def node(self, number: int) -> Node:
        """The node of that number, connected to the store when it is first asked for."""
        if number not in self.nodes:
            self.nodes[number] = Node(self)
        return self.nodes[number]

    def restart(self, number: int) -> Node:
        """The node of that number as a new process, with nothing in its memory."""
        if number in self.nodes:
            self.nodes.pop(number).close()
        return self.node(number)

    def move(self, ms: int) -> None:
        """Move the wall clock of all nodes."""
        with self.changed:
            self.wall.now += ms
            self.waits.clear()
        for node in self.nodes.values():
            node.clock.look_again()

    def since_start(self, at: Timestamp) -> int:
        """Milliseconds between the beginning of the timeline and ``at``."""
        return milliseconds(at) - self.start

    def call(self, name: str, work: Callable[[], object]) -> None:
        """Do ``work`` in a thread of that name."""
        future: Future[object] = Future()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            self.tell()

        self.calls[name] = future
        threading.Thread(target=run, name=name, daemon=True).start()

    def tell(self) -> None:
        """Wake the steps that wait, because something has happened."""
        with self.changed:
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return when ``condition`` holds; it is checked whenever something has happened."""
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE), f"in vain: {what}"

    def wait_of(self, name: str) -> int | None:
        """The time that the call waits for by the clock as it is now; None if the call is done."""
        call = self.calls[name]
        self.until(lambda: call.done() or name in self.waits, f"call {name} neither ends nor waits")
        return None if call.done() else self.since_start(self.waits[name])

    def close(self) -> None:
        """End everything."""
        for listener in self.listeners.values():
            listener.may_return.set()
        for node in self.nodes.values():
            node.close()
