"""The catalog of a node, in a process of its own.

`serve` opens (or creates) the catalog at an address, follows it, and answers requests, each in its
own thread. In addition, any process may ask it to read by a datagram to its socket. So another node
can ask a reader directly, within microseconds of its own DDL.

To prove that the tests find mistakes, it can be started with one of those in
`tests.catalog.node_faults`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from strandline.catalog import CatalogManager, initial_catalog
from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.clock import HybridClock, system_wall_clock
from strandline.durable import DurableCatalogState, MetastorageLog, durable_state
from strandline.errors import Conflict, Fenced, NotFound, StrandlineError
from strandline.metastorage import Metastorage, SqlMetastorage, open_metastorage
from strandline.model.types import INT
from tests.sql.processes import Process

READERS = 4
ANSWER_SECONDS = 60.0
OPENING_PATIENCE = 60.0
UNTYPED = "untyped"
"""The code of an error that has none, because it is not one of the program's own."""


def table(name: str, *, comment: str | None = None) -> CreateTable:
    """A command that makes a small table in the default schema."""
    columns = (ColumnDefinition("id", INT),)
    return CreateTable(
        schema="default",
        definition=TableDefinition(name=name, columns=columns, comment=comment),
    )


def refusal(error: Exception) -> dict[str, object]:
    """What a node answers if a request raises an error."""
    if isinstance(error, StrandlineError):
        return {"error": error.code, "message": error.message}
    return {"error": UNTYPED, "message": repr(error)}


def open_state(
    store: Metastorage, member: str, *, delay_ms: int, skew_ms: int
) -> DurableCatalogState:
    """The catalog in ``store``, joined or created."""
    initialize = initial_catalog(
        delay_ms=delay_ms, skew_ms=skew_ms, default_location="file:/warehouse"
    )
    while True:
        openable = durable_state(MetastorageLog(store))
        try:
            return openable.join(member=member)
        except NotFound:
            with suppress(Conflict, Fenced):  # another node created it: join that
                return openable.create(
                    member=member, initialize=initialize, raise_fence=lambda *_: None
                )


class Reader:
    """Answers datagrams ``name`` with whether this node's present catalog has that table."""

    def __init__(self, manager: CatalogManager, path: str) -> None:
        self._manager = manager
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        for _ in range(READERS):
            threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            name, sender = self._socket.recvfrom(1024)
            began = time.monotonic()
            try:
                exists = self._manager.present().table("default", name.decode()) is not None
                answer: dict[str, object] = {"found": exists}
            except Exception as error:
                answer = refusal(error)
            answer |= {"began": began, "took": time.monotonic() - began}
            self._socket.sendto(json.dumps(answer).encode(), sender)


class Asker:
    """Asks another node's `Reader`; used by one thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._socket.settimeout(ANSWER_SECONDS)

    def ask(self, reader: str, name: str) -> dict[str, Any]:
        """Whether the node whose reader listens at ``reader`` has the table ``name``."""
        self._socket.sendto(name.encode(), reader)
        answer: dict[str, Any] = json.loads(self._socket.recv(4096))
        return answer

    def close(self) -> None:
        self._socket.close()
        os.unlink(self._path)


class Service:
    """The requests that a node answers, by name."""

    def __init__(
        self, manager: CatalogManager, store: Metastorage, folder: str, number: int
    ) -> None:
        self._manager = manager
        self._store = store
        self._folder = folder
        self._number = number

    def create(self, name: str, timeout: float = 30.0, comment: str | None = None) -> int:
        """Create a table; returns its version."""
        command = table(name, comment=comment)
        return self._manager.execute(command, author="ann", timeout=timeout).version

    def wait_for_answers(self, patience: float) -> None:
        """From now on, wait so long for an answer of a database; etcd gets `OPENING_PATIENCE`."""
        if isinstance(self._store, SqlMetastorage):
            self._store._database._timeout = patience

    def read(self, name: str) -> bool:
        """Whether the present has the table."""
        return self._manager.present().table("default", name) is not None

    def tables(self) -> list[str]:
        """The names of all tables of the present."""
        return self._manager.present().relation_names("default")

    def created(self) -> list[str]:
        """The names of the tables that the log says were created, in the order of the versions."""
        return [
            str(arguments["table"]).partition(".")[2]
            for version in self._manager.history()
            for verb, arguments in version.actions
            if verb == "create_table"
        ]

    def arrived(self, version: int, timeout: float) -> int:
        """Wait until the version is applied here, without asking the store for anything."""
        return self._manager.catalog_ready(version, timeout=timeout).version

    def created_and_read(
        self, *, reader: int, calls: int, threads: int, first: int = 0
    ) -> list[dict[str, Any]]:
        """Create tables, and let node ``reader`` read each right after its call returned."""
        answers: list[dict[str, Any]] = []

        def work(thread: int) -> None:
            asker = Asker(f"{self._folder}/ask-{self._number}-{reader}-{thread}")
            for call in range(thread, calls, threads):
                name = f"t_{self._number}_{reader}_{first + call}"
                began = time.monotonic()
                version = self.create(name)
                returned = time.monotonic()
                answer = asker.ask(f"{self._folder}/read-{reader}", name)
                answer |= {"gap": answer["began"] - returned, "call": returned - began}
                answers.append(answer | {"version": version})
            asker.close()

        with ThreadPoolExecutor(threads) as workers:
            for future in [workers.submit(work, n) for n in range(threads)]:
                future.result()
        return answers


def serve(say: Callable[[object], None], hear: Callable[[], Any], options: dict[str, Any]) -> None:
    """Answer requests until the test ends it; ``options`` are those of `CatalogProcess`."""
    if options["fault"] is not None:
        from tests.catalog import node_faults

        node_faults.plant(options["fault"])
    sys.setswitchinterval(0.0005)  # a reader should not wait for threads that execute
    folder, number = options["folder"], options["number"]
    clock = HybridClock(lambda: system_wall_clock() - options["behind_ms"])
    patience: float = options["patience"]
    store = open_metastorage(options["address"], clock, timeout=max(patience, OPENING_PATIENCE))
    state = open_state(
        store, f"node-{number}", delay_ms=options["delay_ms"], skew_ms=options["skew_ms"]
    )
    manager = CatalogManager(state, clock)
    manager.start()
    service = Service(manager, store, folder, number)
    service.wait_for_answers(patience)  # until here a busy machine may need longer
    Reader(manager, f"{folder}/read-{number}")
    writing = threading.Lock()

    def answer(request: dict[str, Any]) -> None:
        try:
            said = {"value": getattr(service, request["ask"])(**request["with"])}
        except Exception as error:
            said = refusal(error)
        with writing:
            say(said | {"id": request["id"]})

    say({"id": 0, "value": "ready"})
    while (request := hear()) is not None:
        threading.Thread(target=answer, args=[request], daemon=True).start()
    manager.stop()
    store.close()


class RefusedError(Exception):
    """A node answered with an error; the first argument is its code, or `UNTYPED`."""


class CatalogProcess:
    """The test's side of a node, and a context manager that ends the node.

    The node's wall clock is ``behind_ms`` behind the machine's. ``fault`` names one of the mistakes
    in `tests.catalog.node_faults`; such a node is killed at its end, whatever it is still doing.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        number: int,
        *,
        delay_ms: int,
        skew_ms: int,
        patience: float = 30.0,
        behind_ms: int = 0,
        fault: str | None = None,
    ) -> None:
        self._faulty = fault is not None
        options = {
            "address": address,
            "folder": str(folder),
            "number": number,
            "delay_ms": delay_ms,
            "skew_ms": skew_ms,
            "patience": patience,
            "behind_ms": behind_ms,
            "fault": fault,
        }
        self._process = Process("tests.catalog.catalog_process:serve", options)
        self.reader = str(folder / f"read-{number}")
        self.behind_ms = behind_ms
        self._pending: dict[int, Future[Any]] = {0: Future()}
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.ready = self._pending[0]

    def ask(self, what: str, **arguments: object) -> Future[Any]:
        """Send a request; its result raises `RefusedError` if the node answers with an error."""
        with self._lock:
            number = len(self._pending)
            future = self._pending[number] = Future()
            self._process.say({"id": number, "ask": what, "with": arguments})
        return future

    def _listen(self) -> None:
        for said in self._process.everything():
            future = self._pending[said["id"]]
            if "error" in said:
                future.set_exception(RefusedError(said["error"], said["message"]))
            else:
                future.set_result(said["value"])
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionError("the node has ended"))

    def pause(self) -> None:
        """Suspend every thread of the node."""
        self._process.stop()

    def resume(self) -> None:
        """Let the node continue."""
        self._process.go_on()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.resume()
        if self._faulty or kind is not None:
            self._process.kill()
        else:
            self._process.say(None)
            self._process.finish()
        self._listener.join()
        self._process.close()
