"""The methods of the service: one decorator registers the handler of a Thrift method.

A handler gives what its method returns. Where it runs, its kind says:

| kind | runs | its answer |
| --- | --- | --- |
| `reads` | on the event loop; from its first `off_loop` on in a thread | kept until a commit |
| `answers` | on the event loop; waits for nothing | made each time |
| `shares` | on the event loop; from its first `off_loop` on in a thread | made each time |
| `writes` | in a thread | made each time |
| `changes` | in a thread, in the share of DDL | made each time |

Handlers are coroutines that await nothing but their `HiveReader` and each other; in a thread they
may wait. The handlers of ``shares`` also await what shares a write with other requests (`Waits`).
They read from the latest catalog that this node has applied, which that write, or `Call.proven`,
proves to be the present one. The handlers of ``answers`` are functions of the request alone.

Handlers raise errors from `strandline.errors`, and the table there says which exception of the
protocol each becomes. Where Hive uses another exception for a method and clients look at it, the
handler names that exception, with the functions at the end of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self, TypeVar

from strandline.catalog import Applied, Command
from strandline.errors import InvalidInput, InvalidName
from strandline.metastore.hive.hive_reader import HiveReader
from strandline.metastore.hive.recent_calls import RecentCalls
from strandline.metastore.metastore import Metastore
from strandline.metastore.reader import present_catalog
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.thrift.messages import ThriftException
from strandline.model.identifiers import MAX_USER_LENGTH


class Kind(Enum):
    READS = "reads"
    ANSWERS = "answers"
    SHARES = "shares"
    WRITES = "writes"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came: its decoded arguments, its user, and the metastore."""

    args: dict[str, Any]
    user: str
    metastore: Metastore

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
        return self._listed(name)

    def _listed(self, name: str) -> list[Any]:
        value = self.args.get(name)
        if not isinstance(value, list):
            raise InvalidInput(f"the argument {name} is missing")
        return value

    def structs(self, name: str) -> list[dict[str, Any]]:
        """The list of structs of that name. Raises `InvalidInput` if it was not sent."""
        return self._listed(name)

    def of(self, request: str) -> Self:
        """The request whose arguments are the fields of the struct in that argument."""
        return replace(self, args=self.struct(request))


@dataclass(frozen=True, slots=True)
class Call(Request):
    """A request with what its handler reads from."""

    notifications: NotificationLog
    reader: HiveReader
    before: RecentCalls
    """What the client asked just before."""

    async def proven(self) -> Self:
        """The call with the catalog of the present, after a look at the log if it takes one."""
        present = await present_catalog(self.metastore)
        return replace(self, reader=HiveReader(self.metastore, present, user=self.user))

    @property
    def folders(self) -> StoreFolders:
        return self.metastore.folders

    def owner(self, sent: str | None) -> str:
        """The owner of what the request creates: the named one, else the user if that matters.

        Raises `InvalidName` for a name that no user has.
        """
        if sent and len(sent) > MAX_USER_LENGTH:
            raise InvalidName(
                f"the name of an owner may have {MAX_USER_LENGTH} characters, found {len(sent)}: "
                f"{sent[:40]!r}…"
            )
        return sent or ("" if self.reader.for_all else self.user)

    def execute(self, *commands: Command) -> Applied:
        """Carry out DDL as the user who asks."""
        return self.metastore.execute(list(commands), author=self.user, identity=self.user)


# A handler gives a value of the type that its method returns; they are many: hence Any.
Handler = Callable[[Call], Coroutine[Any, Any, Any]]
Answerer = Callable[[Request], Any]
H = TypeVar("H", bound=Handler)
A = TypeVar("A", bound=Answerer)


@dataclass(frozen=True, slots=True)
class Method:
    """A registered method. ``handler`` is an `Answerer` for the kind ``answers``."""

    name: str
    kind: Kind
    handler: Callable[[Any], Any]  # Any: see above

    @property
    def only_reads(self) -> bool:
        """Whether the method changes nothing."""
        return self.kind in (Kind.READS, Kind.ANSWERS)


METHODS: dict[str, Method] = {}
"""Every method that the service has, by its Thrift name."""


def reads(*names: str) -> Callable[[H], H]:
    """Register the handler of methods that read."""
    return _registration(names, Kind.READS)


def answers(*names: str) -> Callable[[A], A]:
    """Register the handler of methods that need nothing from the store."""
    return _registration(names, Kind.ANSWERS)


def shares(*names: str) -> Callable[[H], H]:
    """Register the handler of methods whose writes share a SQL transaction with those of others."""
    return _registration(names, Kind.SHARES)


def writes(*names: str) -> Callable[[H], H]:
    """Register the handler of methods that write to the store and do not wait for DDL."""
    return _registration(names, Kind.WRITES)


def changes(*names: str) -> Callable[[H], H]:
    """Register the handler of methods that change something."""
    return _registration(names, Kind.CHANGES)


F = TypeVar("F", bound=Callable[[Any], Any])  # Any: see above


def _registration(names: tuple[str, ...], kind: Kind) -> Callable[[F], F]:
    def register(handler: F) -> F:
        for name in names:
            if name in METHODS:
                raise RuntimeError(f"the method {name} has two handlers")
            METHODS[name] = Method(name, kind, handler)
        return handler

    return register


def meta_exception(message: str) -> ThriftException:
    """``MetaException``: what Hive throws where the method declares nothing more exact."""
    return ThriftException("MetaException", {"message": message})


def invalid_object(message: str) -> ThriftException:
    """``InvalidObjectException``: the object is invalid, or its parent does not exist."""
    return ThriftException("InvalidObjectException", {"message": message})


def invalid_operation(message: str) -> ThriftException:
    """``InvalidOperationException``: also for a missing object, in the methods that alter."""
    return ThriftException("InvalidOperationException", {"message": message})


def unknown_table(message: str) -> ThriftException:
    """``UnknownTableException``, of the methods that give the columns of a table."""
    return ThriftException("UnknownTableException", {"message": message})


def unknown_database(name: str) -> ThriftException:
    """``UnknownDBException``, of the methods that list the tables of a database."""
    message = f"Could not find database {name}"
    return ThriftException("UnknownDBException", {"message": message})


def config_forbidden(name: str) -> ThriftException:
    """``ConfigValSecurityException``: clients may not ask for this setting."""
    message = f"For security reasons, the config key {name} cannot be accessed"
    return ThriftException("ConfigValSecurityException", {"message": message})
