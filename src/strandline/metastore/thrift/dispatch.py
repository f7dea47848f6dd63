"""What stands between a connection and the code that answers: handlers, and how they fail.

Every metastore answers some methods alike: the base service fb303, and ``set_ugi``. Hive's client
sends the oneway ``shutdown`` whenever it closes or reopens a connection. It means "this client
goes", and the server stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strandline.errors import (
    InvalidInput,
    ObjectNotFound,
    StrandlineError,
    UnsupportedOperation,
    surface_of,
)
from strandline.metastore.thrift.codec import Codec
from strandline.metastore.thrift.messages import (
    EXCEPTION,
    REPLY,
    ApplicationException,
    ThriftException,
    request_key,
)
from strandline.model.identifiers import MAX_USER_LENGTH
from strandline.work.contents import Content

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Encoded:
    """An answer that is encoded already: the whole result struct, as `Codec.encode_result` gives.

    It costs the server one write.
    """

    result: bytes


_RECENT, _RECENT_BYTES = 10, 1024
"""How many requests of a client are remembered, and up to which size."""


class ConnectionInfo:
    """What is known of one client. It lives as long as its connection, and only its handlers and
    its server change it.

    ``user`` is who the client said that it is with ``set_ugi`` ("" before).
    ``attributes`` is for the handlers' own use. ``is_large`` says that the arguments of the request
    in work are too many for anything that takes a time for each of them on the event loop.
    ``recent`` are the last requests, also those that a kept answer served; empty for a long one.
    ``on_leave`` is called when the client has left; a handler that waits sets it.
    """

    __slots__ = ("_message", "attributes", "id", "is_large", "on_leave", "peer", "recent", "user")

    def __init__(self, connection_id: int, peer: str) -> None:
        self.id = connection_id
        self.peer = peer
        self.user = ""
        self.attributes: dict[str, Any] = {}  # Any: the handlers choose what they keep
        self.is_large = False
        self.on_leave: Callable[[], object] = bool
        self.recent: deque[bytes] = deque(maxlen=_RECENT)
        self._message = b""

    @property
    def request(self) -> bytes:
        """The request in work without its sequence id: what ``lookup`` is asked for its like.

        Read it before the handler first awaits: an answer kept under it is found again.
        """
        return request_key(self._message)

    def came(self, message: bytes) -> None:
        """The server tells of a request that has come."""
        self.recent.append(message if len(message) <= _RECENT_BYTES else b"")

    def begin(self, message: bytes, *, is_large: bool = False) -> None:
        """The server names the request that is now in work; a large one without its bytes."""
        self._message = message
        self.is_large = is_large


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back for one request: a kind of message and its struct.

    ``failed`` says that no one meant this to happen, ``refused`` why a child refused the request.
    A `Content` belongs to the part that sends the answer.
    """

    kind: int
    body: bytes | Content
    failed: bool = False
    refused: StrandlineError | None = None


# A handler gets decoded arguments and gives what the method returns (None for a void method), or
# an `Encoded`, or an awaitable of either. Both are of as many types as the protocol: hence Any.
Handler = Callable[[ConnectionInfo, str, dict[str, Any]], Any]
Lookup = Callable[[bytes], bytes | None]
Delegate = Callable[[ConnectionInfo, str, memoryview], Awaitable[Answer]]
InThread = Callable[[ConnectionInfo, Callable[[], Any]], asyncio.Future[Any]]


def in_any_thread(_: ConnectionInfo, decode: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run ``decode`` in a thread of asyncio."""
    return asyncio.get_running_loop().run_in_executor(None, decode)


def reads_alone(_: str) -> bool:
    """Whether a method changes nothing, of a service all of whose methods read."""
    return True


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Answers requests, on the event loop.

    ``handler(connection, method, args)`` may raise `ThriftException`, any `StrandlineError`, which
    then becomes the exception that `strandline.errors.SURFACES` names, or `ApplicationException`.
    What takes longer than a millisecond belongs into an awaitable. Requests of one connection
    never overlap; requests of different connections do, where a handler awaits.

    ``lookup(request)`` is asked first, with a request as it came but without its sequence id
    (`request_key`). It gives the encoded result struct, or None to have the handler called. It
    must not block: nothing is decoded on this way.

    ``delegate(connection, method, args)`` answers a request that is too long for this process, by
    its undecoded arguments.

    ``in_thread(connection, decode)`` decodes a large request in a thread. It may raise
    `Overloaded`.

    ``only_reads(method)`` says whether the method changes nothing, so that a client may repeat it.
    """

    handler: Handler
    lookup: Lookup | None = None
    delegate: Delegate | None = None
    in_thread: InThread = in_any_thread
    only_reads: Callable[[str], bool] = reads_alone


def answer_value(codec: Codec, method: str, value: Any) -> Answer:
    """The answer in which ``method`` returns what its handler gave."""
    if isinstance(value, Answer):
        return value
    if isinstance(value, Encoded):
        return Answer(REPLY, value.result)
    try:
        return Answer(REPLY, codec.encode_result(method, value))
    except InvalidInput as error:
        return _internal_error(method, error)


def answer_error(codec: Codec, method: str, error: BaseException) -> Answer:
    """The answer to a request whose handler raised.

    An exception that the method does not declare goes as ``MetaException``, and where not even
    that is declared, as a ``TApplicationException`` with the same message.
    """
    if isinstance(error, ApplicationException):
        return Answer(EXCEPTION, error.encode())
    if isinstance(error, ThriftException):
        wanted, value = error.name, error.value
        message = str(value.get("message", error))
    elif isinstance(error, StrandlineError):
        wanted, message = surface_of(error).thrift, error.message
        value = {"message": message}
    else:
        return _internal_error(method, error)
    try:
        meant = ThriftException(wanted, value)
        instead = ThriftException("MetaException", {"message": message})
        for exception in (meant, instead):
            body = codec.encode_exception(method, exception)
            if body is not None:
                return Answer(REPLY, body)
    except InvalidInput as fault:
        return _internal_error(method, fault)
    undeclared = ApplicationException(ApplicationException.INTERNAL_ERROR, message)
    return Answer(EXCEPTION, undeclared.encode())


def refusal(error: BaseException) -> BaseException:
    """``error`` as the log tells of it: those in the protocol's words as ours."""
    if isinstance(error, ThriftException):
        unknown = error.name.startswith(("Unknown", "NoSuch"))
        kind = ObjectNotFound if unknown else InvalidInput
        return kind(str(error.value.get("message", error)))
    if isinstance(error, ApplicationException):
        return UnsupportedOperation(str(error))
    return error


def _internal_error(method: str, error: BaseException) -> Answer:
    _log.error("the handler of %s failed", method, exc_info=error)
    text = f"Internal error processing {method}"
    internal = ApplicationException(ApplicationException.INTERNAL_ERROR, text)
    return Answer(EXCEPTION, internal.encode(), failed=True)


def awaits(value: Any) -> bool:
    """Whether a handler's answer is still to come."""
    return isinstance(value, Awaitable)


ALIVE = 2
"""The status of fb303 that says that the service answers."""


class BaseService:
    """Answers the methods that need no metastore.

    ``started`` is in seconds since the epoch; ``counters`` gives what ``getCounters`` shows.
    """

    def __init__(self, *, started: int, counters: Callable[[], Mapping[str, int]]) -> None:
        # The arguments and answers of methods are of as many types as the protocol: hence Any.
        self._answers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "aliveSince": lambda args: started,
            "getCounter": lambda args: counters().get(args.get("key", ""), 0),
            "getCounters": lambda args: dict(counters()),
            "getCpuProfile": lambda args: "",
            "getName": lambda args: "new db based metaserver",
            "getOption": lambda args: "",
            "getOptions": lambda args: {},
            "getStatus": lambda args: ALIVE,
            "getStatusDetails": lambda args: "",
            "getVersion": lambda args: "3.0",
            "reinitialize": lambda args: None,
            "setOption": lambda args: None,
            "shutdown": lambda args: None,
        }

    def answers(self, method: str) -> bool:
        return method == "set_ugi" or method in self._answers

    def answer(self, connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        if method == "set_ugi":
            return _set_ugi(connection, args)
        return self._answers[method](args)


def _set_ugi(connection: ConnectionInfo, args: dict[str, Any]) -> list[str]:
    """Remembers who the client says it is, and gives its groups back, as Hive does."""
    user: str = args.get("user_name", "")
    if len(user) > MAX_USER_LENGTH:
        raise InvalidInput(  # the name would stay in memory as long as its connection
            f"the user's name has {len(user)} characters; give at most {MAX_USER_LENGTH}"
        )
    connection.user = user
    groups: list[str] = args.get("group_names", [])
    return groups
