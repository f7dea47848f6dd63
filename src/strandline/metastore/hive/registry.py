"""The methods of the service: one decorator registers the handler of a Thrift method.

A handler returns what its method returns. Its kind determines where it runs:

| kind | runs | its answer |
| --- | --- | --- |
| `reads` | on the event loop; from its first `off_loop` on in a thread | kept until a commit |
| `answers` | on the event loop, a large request in a thread; waits for nothing | made each time |
| `shares` | on the event loop; from its first `off_loop` on in a thread | made each time |
| `writes` | in a thread | made each time |
| `changes` | in a thread, in the share of DDL | made each time |

Except in ``answers``, a handler gets each argument by one name, also if it is a field of a request
(`strandline.metastore.hive.arguments`). The later form of a method often has another answer. A
handler that serves both forms returns the answer of the form that is registered first. If the other
form answers with a struct instead, its first field gets the value.

Handlers are coroutines that await only their `HiveReader` and each other; in a thread they may
block. The handlers of ``shares`` also await operations that share a write with other requests
(`Waits`). They read from the latest catalog that this node has applied. That write, or
`Call.proven`, proves that it is the present one. The handlers of ``answers`` are functions of the
request alone.

Handlers raise errors from `strandline.errors`, and the table there maps each to an exception of the
protocol. Where Hive uses another exception for a method and clients check for it, the handler names
that exception, with the functions at the end of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Self, TypeVar

from strandline.catalog import Applied, Command
from strandline.errors import InvalidInput, InvalidName
from strandline.metastore.hive.arguments import ONE_NAME, renamed, request_of
from strandline.metastore.hive.hive_reader import HiveReader
from strandline.metastore.hive.recent_calls import NOTHING_BEFORE, RecentCalls
from strandline.metastore.metastore import Metastore
from strandline.metastore.reader import present_catalog
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.thrift.field_table import HIVE_METASTORE
from strandline.metastore.thrift.messages import ThriftException
from strandline.model.identifiers import MAX_USER_LENGTH

T = TypeVar("T")


class MethodKind(Enum):
    READS = "reads"
    ANSWERS = "answers"
    SHARES = "shares"
    WRITES = "writes"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived: its method, its decoded arguments, its user, and the metastore.

    Arguments are read by their names; `InvalidInput` is raised for one that was not sent.
    ``before`` are the client's previous requests, for a method that changes something.
    ``sent_names`` are the names by which the client sends those that it names differently.
    """

    method: Method
    args: dict[str, Any]
    user: str
    metastore: Metastore
    before: RecentCalls = field(default=NOTHING_BEFORE, kw_only=True)
    sent_names: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def text(self, name: str) -> str:
        return self._sent(name, str)

    def struct(self, name: str) -> dict[str, Any]:
        return self._sent(name, dict)

    def texts(self, name: str) -> list[str]:
        return self._sent(name, list)

    def structs(self, name: str) -> list[dict[str, Any]]:
        return self._sent(name, list)

    def _sent(self, name: str, kind: type[T]) -> T:
        value = self.args.get(name)
        if not isinstance(value, kind):
            raise InvalidInput(f"the argument {self.sent_names.get(name, name)} is missing")
        return value

    def of(self, request: str) -> Self:
        """Return a request whose arguments are the fields of the struct in that argument."""
        return replace(self, args=self.struct(request), sent_names={})


@dataclass(frozen=True, slots=True)
class Call(Request):
    """A request, with what its handler reads from."""

    reader: HiveReader

    async def proven(self) -> Self:
        """Return the call with the present catalog, after reading the log if that is necessary."""
        present = await present_catalog(self.metastore)
        return replace(self, reader=HiveReader(self.metastore, present, user=self.user))

    @property
    def folders(self) -> StoreFolders:
        return self.metastore.folders

    def owner(self, sent: str | None) -> str:
        """Return the owner of an object that the request creates: the one it names, or its user.

        If the request names none while privileges are not enforced, the owner is "". Raises
        `InvalidName` if the name is too long for a user.
        """
        if sent and len(sent) > MAX_USER_LENGTH:
            raise InvalidName(
                f"the name of an owner has at most {MAX_USER_LENGTH} characters, this one has "
                f"{len(sent)}: {sent[:40]!r}…"
            )
        return sent or ("" if self.reader.for_all else self.user)

    def execute(self, *commands: Command) -> Applied:
        return self.metastore.execute(commands, user=self.user)


# A handler returns a value of its method's type; there are many types: hence Any.
Handler = Callable[[Call], Coroutine[Any, Any, Any]]
Answerer = Callable[[Request], Any]
F = TypeVar("F", bound=Handler | Answerer)


@dataclass(frozen=True, slots=True)
class Method:
    """A registered method. ``handler`` is an `Answerer` for the kind ``answers``."""

    name: str
    kind: MethodKind
    handler: Callable[[Any], Any]  # Any: see above

    @property
    def only_reads(self) -> bool:
        return self.kind in (MethodKind.READS, MethodKind.ANSWERS)


METHODS: dict[str, Method] = {}
"""Every method of the service, by its Thrift name."""


def _registers(kind: MethodKind) -> Callable[..., Callable[[F], F]]:
    """Return a decorator that registers the handler of the methods that it names."""

    def named(*names: str) -> Callable[[F], F]:
        def register(handler: F) -> F:
            for name in names:
                if name in METHODS:
                    raise RuntimeError(f"the method {name} has two handlers")
                fitted = handler if kind is MethodKind.ANSWERS else _fitted(name, names[0], handler)
                METHODS[name] = Method(name, kind, fitted)
            return handler

        return register

    return named


reads, answers = _registers(MethodKind.READS), _registers(MethodKind.ANSWERS)
shares, writes, changes = map(
    _registers, (MethodKind.SHARES, MethodKind.WRITES, MethodKind.CHANGES)
)


def constantly(name: str, answer: object) -> None:
    """Register a method that gives the same answer to every request."""
    answers(name)(lambda request: answer)


def _fitted(name: str, first: str, handler: Handler) -> Handler:
    """The handler of the method ``first``, with the arguments and the answer of the method."""
    method, returns = HIVE_METASTORE.methods[name], HIVE_METASTORE.methods[first].returns
    request, fields = request_of(name)
    sent_names = {ONE_NAME.get(field, field): field for field in fields}
    if len(sent_names) < len(fields):
        raise RuntimeError(f"two arguments of the method {name} have one name")
    if not request and list(sent_names) == fields:
        return handler

    def named(call: Call) -> Call:
        args = renamed(call.struct(request) if request else call.args)
        # Not `replace`, which takes three times as long.
        return Call(
            call.method,
            args,
            call.user,
            call.metastore,
            call.reader,
            before=call.before,
            sent_names=sent_names,
        )

    if method.returns == returns or method.returns is None:
        return lambda call: handler(named(call))
    answered = HIVE_METASTORE.structs[method.returns.name].fields[:1]

    async def in_struct(call: Call) -> dict[str, Any]:
        answer = await handler(named(call))
        return {field.name: answer for field in answered}

    return in_struct


def _exception(name: str) -> Callable[[str], ThriftException]:
    return lambda message: ThriftException(name, {"message": message})


meta_exception = _exception("MetaException")
"""What Hive throws if the method declares nothing more specific."""
invalid_object = _exception("InvalidObjectException")
"""The object is invalid, or its parent does not exist."""
invalid_operation = _exception("InvalidOperationException")
"""Methods that alter also use it for a missing object."""
unknown_table = _exception("UnknownTableException")
"""Used by the methods that return the columns of a table."""
unknown_database = _exception("UnknownDBException")
"""Used by the methods that list the tables of a database."""
config_forbidden = _exception("ConfigValSecurityException")
"""Clients may not read this setting."""
