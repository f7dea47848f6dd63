"""The stores that the conformance suite is run on.

A kind makes an empty store and opens it by its address, any number of times and in any process. If
it has a server, tests can also stop the server, and connect to it through a proxy.
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


class Server(Protocol):
    """A real server that the tests of one process share; it is started on first use."""

    @property
    def port(self) -> int:
        """Its port on the loopback interface, which is the same after a restart."""

    def stop(self) -> None:
        """Stop it as an administrator does, with its connections; return when it has ended."""

    def start(self) -> None:
        """Start it again on the same data; return when it answers."""

    def restart(self) -> None:
        """Stop and start."""

    def pause(self) -> None:
        """Send SIGSTOP to all its processes: connections stay open, and nothing is answered."""

    def resume(self) -> None:
        """Send SIGCONT to all its processes."""

    def running(self) -> bool:
        """Whether it was started and not stopped."""


class StoreKind(ABC):
    """One implementation of the metastorage, and the server that it uses."""

    @abstractmethod
    def create(self, folder: Path) -> str:
        """Make an empty store and return its address; its files are in ``folder``."""

    @contextmanager
    def open(self, address: str, clock: HybridClock) -> Iterator[Metastorage]:
        """Open the store at ``address`` as one more node."""
        store = open_metastorage(address, clock)
        try:
            yield store
        finally:
            store.close()

    has_server = False

    def server(self) -> Server:
        """The server of the stores of this kind, if it has one."""
        raise NotImplementedError

    @property
    def commit_mark(self) -> bytes:
        """Bytes in the client's message that commits a write of the value ``AAA…``."""
        raise NotImplementedError

    def through(self, address: str, port: int) -> str:
        """The address of the same store through another port of the loopback interface."""
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

    commit_mark = b"QUFBQUFBQUFB"  # AAA… in base64, at any alignment

    def through(self, address: str, port: int) -> str:
        return address.replace(f":{etcd.running().port}/", f":{port}/")


STORES: dict[str, StoreKind] = {"sqlite": Sqlite(), "postgresql": Postgres(), "etcd": Etcd()}
