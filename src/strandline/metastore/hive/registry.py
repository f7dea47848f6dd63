"""The methods of the service: one decorator registers the handler of a Thrift method.

A handler takes a `Call` and gives what its method returns. Which way it is called, its kind says:

| kind | called | its answer |
| --- | --- | --- |
| `reads` | at once on the event loop, else in a worker thread | kept while nothing is committed |
| `answers` | on the event loop; must wait for nothing | made each time |
| `waits` | in a worker thread | made each time |
| `changes` | in a worker thread, in the share of DDL | made each time |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from strandline.catalog import Applied, Command
from strandline.errors import InvalidInput
from strandline.metastore.hive.reading import Reading
from strandline.metastore.metastore import Metastore
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.store_folders import StoreFolders


class Kind(Enum):
    READS = "reads"
    ANSWERS = "answers"
    WAITS = "waits"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True)
class Call:
    """One request: its decoded arguments, who asks, and what to answer from."""

    args: dict[str, Any]
    user: str
    metastore: Metastore
    notifications: NotificationLog
    folders: StoreFolders
    reading: Reading
    listed: str | None = None
    """The schema whose tables the client has just listed: clients do so to drop all of them."""

    def text(self, name: str) -> str:
        """The argument of that name. Raises `InvalidInput` if it was not sent."""
        value = self.args.get(name)
        if not isinstance(value, str):
            raise InvalidInput(f"the argument {name} is missing")
        return value

    def struct(self, name: str) -> dict[str, Any]:
        """The struct of that name. Raises `InvalidInput` if it was not sent."""
        value = self.args.get(name)
        if not isinstance(value, dict):
            raise InvalidInput(f"the argument {name} is missing")
        return value

    def texts(self, name: str) -> list[str]:
        """The list of texts of that name. Raises `InvalidInput` if it was not sent."""
        value = self.args.get(name)
        if not isinstance(value, list):
            raise InvalidInput(f"the argument {name} is missing")
        return value

    def of(self, request: str) -> Call:
        """The call whose arguments are the fields of the request struct in that argument."""
        fields = self.struct(request)
        return Call(
            fields, self.user, self.metastore, self.notifications, self.folders, self.reading
        )

    def owner(self, sent: str | None) -> str:
        """Who owns what the request makes: whom it names; where that counts, else the user."""
        return sent or ("" if self.reading.for_all else self.user)

    def execute(self, *commands: Command) -> Applied:
        """Carry out DDL as the user who asks."""
        return self.metastore.execute(list(commands), author=self.user, identity=self.user)


# A handler gives a value of the type that its method returns; they are many: hence Any.
Handler = Callable[[Call], Any]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Method:
    """A registered method."""

    name: str
    kind: Kind
    handler: Handler


METHODS: dict[str, Method] = {}
"""Every method that the service has, by its Thrift name."""


def reads(*names: str) -> Callable[[H], H]:
    """Register the handler of methods that read."""
    return _registration(names, Kind.READS)


def answers(*names: str) -> Callable[[H], H]:
    """Register the handler of methods that need nothing from the store."""
    return _registration(names, Kind.ANSWERS)


def waits(*names: str) -> Callable[[H], H]:
    """Register the handler of methods that wait for the store, but not for other DDL."""
    return _registration(names, Kind.WAITS)


def changes(*names: str) -> Callable[[H], H]:
    """Register the handler of methods that change something."""
    return _registration(names, Kind.CHANGES)


def _registration(names: tuple[str, ...], kind: Kind) -> Callable[[H], H]:
    def register(handler: H) -> H:
        for name in names:
            if name in METHODS:
                raise RuntimeError(f"the method {name} has two handlers")
            METHODS[name] = Method(name, kind, handler)
        return handler

    return register
