"""A node as ``strandline serve`` runs it, in a separate process, with levers for the test.

Clients reach it over HTTP and Thrift. Its ports stay its own until it is closed: a client of a node
that was killed tries again at that address, where another test's node could otherwise answer. What
no client can do, the test requests through a pipe:
apply the next event of the notification log, inspect the cache, wait at a gate. A thread of the
node's process answers it. A *plant* is a function of a module that is called in the process before
the node is opened: it changes how the node works, for a schedule or as a fault.
"""

from __future__ import annotations

import gc
import resource
import signal
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from strandline import work
from strandline.catalog import group_commit, update_priority
from strandline.catalog.group_commit import GroupCommit
from strandline.catalog.update_priority import UpdatePriority
from strandline.metastore.cache.log_applier import LogApplier
from strandline.metastore.session import HttpSession
from strandline.node import Node, monitoring, server
from strandline.sql.postgres_database import PostgresDatabase
from strandline.work import children
from tests.servers.loopback import ReservedPort
from tests.servers.stores import EmptyStore
from tests.servers.thrift_client import ThriftClient
from tests.sql.processes import Process

Plant = Callable[[pytest.MonkeyPatch], None]

LONG = 60.0
"""Seconds after which a test that waits for a gate counts as stuck."""
START_SECONDS = 300.0
"""Seconds that a node gets to start on a busy machine."""


class Gate:
    """A place where a thread of the node waits, once armed, until the test opens it."""

    def __init__(self) -> None:
        self._armed = threading.Event()
        self._reached = threading.Event()
        self._opened = threading.Event()

    def arm(self) -> None:
        """Make the next thread wait, and those after it."""
        self._armed.set()

    def wait(self) -> None:
        """Report that a thread has arrived, and wait."""
        if self._armed.is_set():
            self._reached.set()
            assert self._opened.wait(LONG), "the test did not open the gate"

    def reached(self) -> bool:
        """Wait until a thread has arrived; False if none did."""
        return self._reached.wait(LONG)

    def open(self) -> None:
        """Let waiting threads continue, and those that arrive later."""
        self._opened.set()


GATES: defaultdict[str, Gate] = defaultdict(Gate)
"""The gates of this process, by the names that a plant gives them."""


# -- in the process of the node ----------------------------------------------------------------


def run(
    say: Callable[[object], None],
    hear: Callable[[], Any],
    store: EmptyStore,
    plants: Sequence[str],
) -> None:
    """Serve until a signal; answer requests of the test. ``plants`` are ``module:function``."""
    patch = pytest.MonkeyPatch()  # for the life of this process
    patch.setattr(monitoring, "DEADLINE", LONG)  # a slow machine is not a failure
    for plant in plants:
        module, _, name = plant.partition(":")
        getattr(import_module(module), name)(patch)
    opened: list[Node] = []

    class WatchedNode(Node):
        def __init__(self, *arguments: Any, **options: Any) -> None:  # Any: as the real one
            super().__init__(*arguments, **options)
            opened.append(self)

    patch.setattr(server, "Node", WatchedNode)

    def ready(line: str) -> None:
        say(line)
        arguments = (say, hear, Levers(opened[0]))
        threading.Thread(target=_listen, args=arguments, daemon=True).start()

    server.serve(store.address, settings=store.settings, ready=ready)


def _listen(say: Callable[[object], None], hear: Callable[[], Any], levers: Levers) -> None:
    while True:
        try:
            word, *arguments = hear()
        except EOFError:
            return
        try:
            answer = getattr(levers, word)(*arguments)
        except Exception as error:
            answer = {"error": repr(error)}
        say({"answer": answer})


class Levers:
    """What a test can make a node do, by the names that it sends."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def apply(self, limit: int) -> int:
        """Apply the next events of the notification log to the cache; returns how many."""
        return self._node.store.log_applier.apply(limit)

    def catch_up(self) -> None:
        """Apply all of them."""
        self._node.store.log_applier.catch_up()

    def list_in_memory(self, table_id: int) -> str | None:
        """The write ids that are committed in the cache, as text; None if the table is not held."""
        replica = self._node.store._replicas.get(table_id)
        return None if replica is None else str(replica.committed)

    def clean_aborted(self) -> int:
        """Remove what aborted transactions left."""
        return self._node.aborted_rows.clean()

    def set_monotonic(self, seconds: float) -> None:
        """Set the clock that measures the age of the cache to ``seconds``, and stop it."""
        self._node.store.log_applier._monotonic = lambda: seconds

    def garbage(self) -> dict[str, int]:
        """Collect what only a full collection frees; returns Strandline's objects, by class.

        From the first call on, nothing else collects garbage.
        """
        gc.disable()
        classes = _collected()
        gc.collect()
        return {name: count for name, count in classes.items() if name.startswith("strandline.")}

    def collect_garbage(self) -> None:
        """Collect garbage as the node does."""
        work.collect_garbage()

    def unseen_garbage(self) -> dict[str, int]:
        """Objects that refer to each other, and that no later `collect_garbage` frees, by class."""
        gc.collect()
        gc.unfreeze()
        return _collected()

    def is_cycle_freed(self) -> bool:
        """Make pairs of objects that refer to each other; whether the node frees one by itself.

        A pair that is made while the node collects garbage may stay, so there are several.
        """
        gc.disable()
        freed, end = threading.Event(), time.monotonic() + LONG
        while not freed.wait(0.1) and time.monotonic() < end:
            one, other = Gate(), Gate()
            one.other, other.other = other, one  # type: ignore[attr-defined]  # only for this
            weakref.finalize(one, freed.set)
            del one, other
        return freed.is_set()

    def set_back(self) -> None:
        """Let the node notice that its catalog was set back."""
        self._node.catalogs.set_back.set_result("planted")

    def grants(self) -> int:
        """How often an update of a child process got priority, with `waits_long_for_children`."""
        return len(GRANTS)

    def arm_gate(self, gate: str) -> None:
        GATES[gate].arm()

    def reached(self, gate: str) -> bool:
        """Wait until a thread waits at the gate."""
        return GATES[gate].reached()

    def open_gate(self, gate: str) -> None:
        GATES[gate].open()


def _collected() -> dict[str, int]:
    """Collect garbage; returns the objects that a collection had to find, by class."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    classes = Counter(f"{type(value).__module__}.{type(value).__name__}" for value in gc.garbage)
    gc.garbage.clear()
    return classes


def followed_by_hand(patch: pytest.MonkeyPatch) -> None:
    """A plant: the cache follows the log only when the test, or a reader, makes it."""
    patch.setattr(LogApplier, "follow", lambda _: threading.Event().wait(0.05))


def deaf_to_news(patch: pytest.MonkeyPatch) -> None:
    """A plant: the notifications of a server do not arrive."""
    patch.setattr(PostgresDatabase, "mark", lambda _: 1)


def few_descriptors(_: pytest.MonkeyPatch) -> None:
    """A plant: the system allows the node 340 open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (340, 340))


def often_collecting(patch: pytest.MonkeyPatch) -> None:
    """A plant: the node often collects garbage."""
    patch.setattr(server, "COLLECTING_SECONDS", 0.05)


def committer_dies(patch: pytest.MonkeyPatch) -> None:
    """A plant: the thread that commits changes of the catalog ends with an error."""

    def die(*_: object) -> bool:
        raise MemoryError("planted")

    patch.setattr(GroupCommit, "_await_callers", die)


def forks_no_children(patch: pytest.MonkeyPatch) -> None:
    """A plant: the process that starts children ends at once."""
    patch.setattr(children, "_fork_children", lambda *_: None)


def stops_patiently(patch: pytest.MonkeyPatch) -> None:
    """A plant: a commit that is in progress at the stop of the node is awaited for long."""
    patch.setattr(group_commit, "_STOP_TIMEOUT", 2 * LONG)


GRANTS: list[UpdatePriority] = []


def waits_long_for_children(patch: pytest.MonkeyPatch) -> None:
    """A plant: commands wait for long until the large update of a child process has ended."""
    grant = UpdatePriority.grant

    def noted(priority: UpdatePriority) -> None:
        GRANTS.append(priority)
        grant(priority)

    patch.setattr(update_priority, "PRIORITY_SECONDS", 2 * LONG)
    patch.setattr(UpdatePriority, "grant", noted)


# -- in the test --------------------------------------------------------------------------------


class ServedNode:
    """See the module. It is ready once it is constructed, and killed when it is closed."""

    def __init__(self, store: EmptyStore, *, plants: Sequence[Plant] = (), **settings: Any) -> None:
        names = [f"{plant.__module__}:{plant.__name__}" for plant in plants]
        self.is_on_servers = "://" in store.address
        self._ports = ReservedPort(), ReservedPort()
        settings["thrift_port"], settings["http_port"] = (port.number for port in self._ports)
        store = store._replace(settings=replace(store.settings, **settings))
        self._process = Process("tests.servers.served_node:run", store, names)
        word, thrift, http = self._process.hear(timeout=START_SECONDS).split()
        assert word == "ready"
        self._thrift, self.url = urlsplit(thrift), http

    def session(self, *, user: str = "ann", timeout: float = LONG) -> HttpSession:
        """A session over HTTP."""
        return HttpSession(self.url, user=user, timeout=timeout)

    def thrift(self, *, timeout: float = LONG) -> ThriftClient:
        """A client of the Hive protocol."""
        return ThriftClient(str(self._thrift.hostname), self._thrift.port or 0, timeout=timeout)

    @property
    def thrift_address(self) -> str:
        """``host:port`` of the Hive protocol."""
        return str(self._thrift.netloc)

    def statistics(self) -> dict[str, Any]:  # Any: JSON
        """The counts of the parts of the node."""
        counts: dict[str, Any] = httpx.get(f"{self.url}/v1/statistics").json()
        return counts

    def tell(self, word: str, *arguments: object) -> Any:  # Any: what the lever gives
        """Use a lever (`Levers`); returns its result."""
        self._process.say([word, *arguments])
        answer = self._process.hear(timeout=LONG)["answer"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def stop(self) -> None:
        """Send SIGSTOP."""
        self._process.stop()

    def go_on(self) -> None:
        """Send SIGCONT."""
        self._process.go_on()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def terminate(self) -> None:
        """Send SIGTERM, and wait until it has ended without an error."""
        self._process.signal(signal.SIGTERM)
        assert self._process.finish() == 0

    def ended(self) -> int | None:
        """Wait until it has ended by itself; the exit status."""
        return self._process.finish()

    def close(self) -> None:
        self._process.close()
        for port in self._ports:
            port.close()
