"""Random transactions, reads and DDL over several nodes, while nodes and the store are struck.

Clients run in threads of the test; each has its own random numbers, derived from the seed. Every
call goes to a randomly chosen node. Meanwhile, one strike after another kills and replaces a node,
stops one for a while, or strikes the server of the store. The nodes clean up while the clients run:
history is kept for seconds, or as long as a hold keeps it. At the end, all unknown outcomes are
asked for, and every node is read once more.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from strandline.catalog import Command
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    DropTable,
    RenameTable,
    SetTableProperties,
    TableDefinition,
)
from strandline.errors import (
    AlreadyExists,
    Conflict,
    ObjectNotFound,
    ProtocolError,
    Stopping,
    Unavailable,
    VersionNotFound,
)
from strandline.metastore.interface import Snapshot
from strandline.model.types import BIGINT
from tests.consistency.client import SCHEMA, Client, Table, path_of
from tests.consistency.history import OPEN, History, is_delete_file
from tests.servers import etcd, postgresql
from tests.servers.served_node import ServedNode
from tests.servers.stores import EmptyStore

LOST = (Unavailable, ProtocolError, Stopping)
TABLES = ("orders", "parts", "stock")
SCRATCH_TABLES = ("x", "y", "z")
"""The tables that clients create, change and drop."""
HELD_SHARE = 0.3
"""The share of snapshots that are held."""
PATIENCE = 5.0
"""Seconds that a client waits for one call."""
BACK_OFF = 0.05
"""Seconds that a client waits after a node that gave no answer."""
SETTINGS: dict[str, Any] = {  # Any: each of its own type
    "transaction_timeout_ms": 8_000,
    "clean_interval_ms": 1_000,
    "history_retention_ms": 4_000,
    "snapshot_hold_ms": 20_000,
}
STOPPED_OPERATIONS, LONGEST_STOP = 25, 1.0
"""How many operations a node or a server is stopped for, and the seconds at most."""


@dataclass
class Cluster:
    """The nodes on one store. A killed node is replaced, and closed only with the others.

    So its port stays reserved: clients may try it again for as long as they wait for a call.
    """

    store: EmptyStore
    nodes: list[ServedNode] = field(default_factory=list)
    ended: list[ServedNode] = field(default_factory=list)
    strikes: list[str] = field(default_factory=list)

    def start(self, count: int) -> None:
        self.nodes = [self._new_node() for _ in range(count)]

    @property
    def urls(self) -> list[str]:
        """The present nodes, without those that were killed."""
        return [node.url for node in self.nodes]

    def _new_node(self) -> ServedNode:
        warehouse, cache_folder = self.store.settings.warehouse, ""
        if warehouse:
            cache_folder = str(Path(warehouse).parent)
            os.makedirs(cache_folder, exist_ok=True)
        return ServedNode(self.store, cache_folder=cache_folder, **SETTINGS)

    def strike(self, rng: random.Random, wait: Callable[[], None]) -> None:
        """Strike a node or the store; call ``wait`` while something is stopped."""
        kinds = ["kill", "stop", "renew"]
        servers = [*([etcd] if "etcd:" in self.store.address else []), postgresql]
        if "://" in self.store.address:
            kinds = ["kill", "restart", "stop", "crash", "renew", "pause"]
        kind, number = kinds[len(self.strikes) % len(kinds)], rng.randrange(len(self.nodes))
        self.strikes.append(kind)
        node, server = self.nodes[number], rng.choice(servers).running
        match kind:
            case "kill":
                self.nodes[number] = self._new_node()
                node.kill()
                self.ended.append(node)
            case "renew":  # the next node starts with the cache of this one
                node.terminate()
                self.ended.append(node)
                self.nodes[number] = self._new_node()
            case "stop":
                node.stop()
                wait()
                node.go_on()
            case "pause":
                server().pause()
                wait()
                server().resume()
            case "restart":
                server().restart()
            case "crash":
                server().crash()
                server().start()

    def close(self) -> None:
        for node in (*self.nodes, *self.ended):
            node.close()


class Taken(NamedTuple):
    """A snapshot of tables, and the hold that keeps it, if there is one."""

    tables: list[Table]
    snapshot: Snapshot
    hold_id: int | None


class Load:
    """What the clients do, and when it is enough."""

    def __init__(self, cluster: Cluster, history: History, *, seed: int, operations: int) -> None:
        self._cluster = cluster
        self._history = history
        self._seed = seed
        self._operations = operations
        self._snapshots: list[Taken] = []
        self._numbers = iter(range(1, 1 << 20))
        self._lock = threading.Lock()
        self._back_off = threading.Event()  # never set
        self.went_on = threading.Condition()
        with closing(Client(history, cluster.nodes[0])) as client:
            self.tables = [client.create(name) for name in TABLES]

    def is_over(self) -> bool:
        return self._history.answered >= self._operations

    def wait(self) -> None:
        """Wait until the clients have made progress for a while."""
        enough = self._history.answered + STOPPED_OPERATIONS
        with self.went_on:
            self.went_on.wait_for(lambda: self._history.answered >= enough, LONGEST_STOP)

    @contextmanager
    def _client(self, rng: random.Random, name: str) -> Iterator[Client]:
        node = rng.choice(self._cluster.nodes)
        with closing(Client(self._history, node, name=name, timeout=PATIENCE)) as client:
            yield client

    def run(self, name: str) -> None:
        """Run one client until the load is over."""
        rng = random.Random(f"{self._seed}/{name}")
        actions = {
            self._write: 10,
            self._read: 8,
            self._read_again: 4,
            self._look: 2,
            self._change: 4,
        }
        while not self.is_over():
            (action,) = rng.choices([*actions], [*actions.values()])
            try:
                action(rng, name)
            except (AlreadyExists, Conflict, ObjectNotFound, VersionNotFound):
                pass
            except LOST:
                self._back_off.wait(BACK_OFF)
            with self.went_on:
                self.went_on.notify_all()

    def _write(self, rng: random.Random, name: str) -> None:
        """A transaction on some tables; its calls go to any node."""
        with self._client(rng, name) as client:
            txn_id = client.begin()
        try:
            for table in rng.sample(self.tables, rng.randint(1, len(self.tables))):
                with self._client(rng, name) as client:
                    seen = client.read(table, txn_id=txn_id)[table.name]
                    some = rng.sample(seen, min(len(seen), rng.choice((0, 0, 0, 1, 2))))
                    removed = [name for name in some if is_delete_file(name) or rng.random() < 0.5]
                    touched = [name for name in some if name not in removed]
                    client.stage(txn_id, table, add=[self._number()], remove=removed, touch=touched)
                    if rng.random() < 0.2:
                        client.read(*self.tables, txn_id=txn_id)
            aborts = rng.random() < 0.1
        except LOST:
            aborts = True
        with self._client(rng, name) as client:
            client.abort(txn_id) if aborts else client.commit(txn_id)

    def _number(self) -> int:
        with self._lock:
            return next(self._numbers)

    def _read(self, rng: random.Random, name: str) -> None:
        """A snapshot that one node gives and others answer."""
        tables = rng.sample(self.tables, rng.randint(1, len(self.tables)))
        hold_id = None
        with self._client(rng, name) as client:
            snapshot = client.snapshot(*tables)
            if rng.random() < HELD_SHARE:
                hold_id = client.hold(snapshot.time)
        with self._lock:
            self._snapshots.append(Taken(tables, snapshot, hold_id))
        self._files(rng, name, tables, snapshot)

    def _read_again(self, rng: random.Random, name: str) -> None:
        """Read an old snapshot by its lists or by its time, and then release its hold."""
        with self._lock:
            if not self._snapshots:
                return
            taken = self._snapshots.pop(rng.randrange(len(self._snapshots)))
        snapshot = taken.snapshot
        if rng.random() < 0.5:
            with self._client(rng, name) as client:
                snapshot = client.snapshot(*taken.tables, at=snapshot.time)
        self._files(rng, name, taken.tables, snapshot)
        if taken.hold_id is not None:
            with self._client(rng, name) as client:
                client.release(taken.hold_id)

    def _files(
        self, rng: random.Random, name: str, tables: Sequence[Table], snapshot: Snapshot
    ) -> None:
        for table in tables:
            with self._client(rng, name) as client:
                client.files(table, snapshot.write_ids[table.table_id], at=snapshot.time)

    def _look(self, rng: random.Random, name: str) -> None:
        """Read as a client of the Hive protocol, which knows no transactions."""
        with self._client(rng, name) as client:
            if rng.random() < 0.7:
                client.view(rng.choice(self.tables))
            else:
                client.events()

    def _change(self, rng: random.Random, name: str) -> None:
        """Change one of a few tables, which other clients change too."""
        author, (table, other) = f"author {self._number()}", rng.sample(SCRATCH_TABLES, 2)
        column = ColumnDefinition("k", BIGINT)
        commands: list[Command] = [
            CreateTable(schema=SCHEMA, definition=TableDefinition(name=table, columns=(column,))),
            DropTable(schema=SCHEMA, table=table),
            RenameTable(schema=SCHEMA, table=table, new_name=other),
            SetTableProperties(schema=SCHEMA, table=table, set=(("author", author),)),
        ]
        with self._client(rng, name) as client:
            client.change(author, rng.choice(commands))

    def settle(self) -> None:
        """Learn each outcome, and read everything on each node."""
        begun = {op.txn_id for op in self._history.operations if op.txn_id}
        with ExitStack() as opened:
            clients = [
                opened.enter_context(closing(Client(self._history, node, name="end")))
                for node in self._cluster.nodes
            ]
            for txn_id in sorted(begun):
                if clients[0].state(txn_id) == OPEN:
                    clients[0].abort(txn_id)
            for client in clients:
                files = client.read(*self.tables)
                for table in self.tables:
                    for name in files[table.name]:
                        assert (table.folder / path_of(name)).exists(), "a visible file was cleaned"
                client.events()
                for table in self.tables:
                    client.view(table)
                client.log()


def storm(
    store: EmptyStore, *, seed: int, operations: int, nodes: int = 3, clients: int = 4, every: int
) -> tuple[History, list[str]]:
    """The history of about ``operations`` answered operations; a strike follows each ``every``."""
    history, cluster = History(), Cluster(store)
    with ExitStack() as opened:
        opened.callback(cluster.close)
        cluster.start(nodes)
        load = Load(cluster, history, seed=seed, operations=operations)
        rng = random.Random(f"{seed}/strikes")
        with ThreadPoolExecutor(clients) as threads:
            running = [threads.submit(load.run, f"{number}") for number in range(clients)]
            next_strike = every
            while not all(client.done() for client in running):
                with load.went_on:
                    load.went_on.wait(PATIENCE)
                if history.answered >= next_strike and not load.is_over():
                    cluster.strike(rng, load.wait)
                    next_strike = history.answered + every
        for client in running:
            if (error := client.exception()) is not None:
                last = "\n".join(map(str, history.operations[-100:]))
                error.add_note(
                    f"nodes {cluster.urls}, strikes {cluster.strikes}, at the end:\n{last}"
                )
                raise error
        load.settle()
    return history, cluster.strikes
