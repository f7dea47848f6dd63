"""Nodes on one folder whose clocks tests move, and whose versions become active late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from strandline.catalog import CatalogManager, initial_catalog
from strandline.catalog.commands import CreateSchema
from strandline.clock import HybridClock, add_milliseconds, milliseconds, round_up
from strandline.durable import MetastorageLog, durable_state
from strandline.metastorage import SqlMetastorage
from strandline.sql import open_sqlite
from tests.conftest import ManualWall

DELAY, SKEW = 200, 50


class Node:
    """A node with its own wall clock and its own elapsed time."""

    def __init__(self, folder: Path, *, delay: int = DELAY, skew: int = SKEW) -> None:
        self.wall, self.elapsed = ManualWall(), ManualWall()
        self.database = open_sqlite(folder / "strandline.db")
        self.clock = HybridClock(self.wall)
        self.store = SqlMetastorage(self.database, self.clock)
        openable = durable_state(MetastorageLog(self.store))
        state = (
            openable.join(member="joined")
            if openable.is_initialized()
            else openable.open(
                member="opener",
                initialize=initial_catalog(
                    delay_ms=delay, skew_ms=skew, default_location="file:/warehouse"
                ),
                raise_fence=lambda *_: None,
            )
        )
        self.manager = CatalogManager(state, self.clock, elapsed=self.elapsed)

    def passes(self, ms: int) -> None:
        """Let time pass on this node."""
        self.wall.now += ms
        self.elapsed.now += ms

    def has(self, name: str) -> bool:
        return self.manager.present().schema(name) is not None

    def close(self) -> None:
        self.manager.stop()
        self.store.close()
        self.database.close()


Nodes = Callable[..., Node]


def carried_out(writer: Node, name: str, *others: Node) -> None:
    """Execute CREATE SCHEMA, and let the time that it takes pass on all nodes."""
    finished = threading.Event()

    def work() -> None:
        writer.manager.execute(CreateSchema(name=name), author="ann", timeout=60)
        finished.set()

    before = writer.manager.latest_catalog().version
    thread = threading.Thread(target=work)
    thread.start()
    while writer.manager.latest_catalog().version == before:
        assert not finished.wait(0.001)
    target = round_up(add_milliseconds(writer.manager.latest_catalog().time, SKEW))
    passed = max(0, milliseconds(target) - writer.wall.now)
    for node in (writer, *others):
        node.passes(passed)
    assert finished.wait(60)
    thread.join()


class TogetherLock:
    """No thread enters before all eight have arrived; then they enter one by one."""

    def __init__(self) -> None:
        self.come, self.lock = threading.Barrier(8), threading.RLock()
        self.known = threading.local()

    def __enter__(self) -> None:
        if not hasattr(self.known, "has_come"):
            self.known.has_come = True
            self.come.wait(60)
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
