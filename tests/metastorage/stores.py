"""The stores that the conformance suite is run on.

A kind makes an empty store and opens it, any number of times and in any process, by its address.
Where a server stands behind it, tests may also take that away, and reach it through a proxy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from strandline.clock import HybridClock
from strandline.metastorage import Metastorage, open_metastorage
from tests.servers import etcd, postgresql
from tests.servers.sqlite import sqlite_url

PATIENCE = 30.0


class Server(Protocol):
    """A real server that the tests of one process share; started when it is first asked for."""

    @property
    def port(self) -> int:
        """Where it listens on the loopback interface, the same after a restart."""

    def stop(self) -> None:
        """End it as an administrator does, connections and all; return when it is gone."""

    def start(self) -> None:
        """Start it again on the same data; return when it answers."""

    def restart(self) -> None:
        """Stop and start."""

    def pause(self) -> None:
        """SIGSTOP every process of it: connections stand, nothing is answered."""

    def resume(self) -> None:
        """SIGCONT."""

    def running(self) -> bool:
        """Whether it was started and not stopped."""


class StoreKind(ABC):
    """One implementation of the metastorage and the server behind it."""

    @abstractmethod
    def create(self, folder: Path) -> str:
        """The address of an empty store; what it keeps on disk lies in ``folder``."""

    @contextmanager
    def open(
        self, address: str, clock: HybridClock, *, patience: float = PATIENCE
    ) -> Iterator[Metastorage]:
        """The store at ``address`` as one more node opens it.

        A call that gets no answer for ``patience`` seconds ends with an error.
        """
        store = open_metastorage(address, clock, patience=patience)
        try:
            yield store
        finally:
            store.close()

    has_server = False

    def server(self) -> Server:
        """The server behind the stores of this kind, where there is one."""
        raise NotImplementedError

    @property
    def commit_mark(self) -> bytes:
        """What a client's bytes hold that make a write of the value ``AAA…`` happen."""
        raise NotImplementedError

    def through(self, address: str, port: int) -> str:
        """The same store, reached by way of another port of the loopback interface."""
        raise NotImplementedError


class Sqlite(StoreKind):
    def create(self, folder: Path) -> str:
        return sqlite_url(folder / "strandline.db")


class Postgres(StoreKind):
    has_server = True

    def create(self, folder: Path) -> str:
        return postgresql.running().new_schema()

    def server(self) -> Server:
        return postgresql.running()

    commit_mark = b"COMMIT\0"

    def through(self, address: str, port: int) -> str:
        return address.replace(f":{postgresql.running().port}/", f":{port}/")


class Etcd(StoreKind):
    has_server = True

    def create(self, folder: Path) -> str:
        return etcd.running().new_prefix()

    def server(self) -> Server:
        return etcd.running()

    commit_mark = b"QUFBQUFBQUFB"  # of AAA… in base64, wherever it begins

    def through(self, address: str, port: int) -> str:
        return address.replace(f":{etcd.running().port}/", f":{port}/")


STORES: dict[str, StoreKind] = {"sqlite": Sqlite(), "postgresql": Postgres(), "etcd": Etcd()}
