"""The layer between a connection and the code that answers: handlers, and how they fail.

Every metastore answers some methods in the same way: the base service fb303, and ``set_ugi``.
Hive's client sends the oneway ``shutdown`` whenever it closes or reopens a connection. It means
that this client leaves, so the server keeps running.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.clock import elapsed_seconds
from strandline.errors import (
    InvalidInput,
    ObjectNotFound,
    StrandlineError,
    UnsupportedOperation,
    forget_frames,
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
from strandline.work.contents import Body

_log = logging.getLogger(__name__)


_RECENT, _RECENT_BYTES = 64, 640
"""The number of a client's requests that are remembered, and their largest size in bytes.

Two names of the greatest length fit. The threads of a Spark application share a connection."""
_RETURN_SECONDS = 10.0
_MOST_DEPARTED = 100
"""Of how many clients that have left the requests are remembered, and for how long."""


class ConnectionInfo:
    """What is known of one client. It lives as long as its connection, and only its handlers and
    its server change it.

    ``user`` is the user name that the client sent with ``set_ugi`` ("" before that). ``is_large``
    means that the request in progress has too many arguments for work on the event loop that takes
    time for each of them. ``recent`` are the last requests, including those that a kept answer
    served; a long request is an empty entry. ``on_leave`` is called when the client has left; a
    handler that waits sets it.
    """

    __slots__ = ("_message", "id", "is_large", "on_leave", "peer", "recent", "user")

    def __init__(self, connection_id: int, peer: str) -> None:
        self.id = connection_id
        self.peer = peer
        self.user = ""
        self.is_large = False
        self.on_leave: Callable[[], object] = bool
        self.recent: deque[bytes] = deque(maxlen=_RECENT)
        self._message = b""

    @property
    def host(self) -> str:
        """The address of the client's machine."""
        return self.peer.rpartition(":")[0]

    @property
    def request(self) -> bytes:
        """The request in progress without its sequence id: the key that ``lookup`` gets.

        Read it before the handler first awaits. An answer kept under it is found again.
        """
        return request_key(self._message)

    def received(self, message: bytes) -> None:
        """Called by the server when a request has arrived."""
        self.recent.append(message if len(message) <= _RECENT_BYTES else b"")

    def follow(self, earlier: Sequence[bytes]) -> None:
        """Take the ``earlier`` requests, of its last connection, for the client's recent ones."""
        self.recent.clear()
        self.recent.extend(earlier)

    def begin(self, message: bytes, *, is_large: bool = False) -> None:
        """Called by the server with the request that is now in progress; empty for a large one."""
        self._message = message
        self.is_large = is_large
        self.on_leave = bool  # that of the last request may refer to its result


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request: a kind of message and its encoded struct.

    ``failed`` marks an unintended error. ``refused`` is the error with which a child process
    refused the request. The part that sends the answer owns a `Content`.
    """

    kind: int
    body: Body
    failed: bool = False
    refused: StrandlineError | None = None


# A handler gets decoded arguments and returns what the method returns (None for a void method), an
# `Answer`, which the server only has to write, or an awaitable of either. Arguments and what is
# returned have as many types as the protocol: hence Any.
Handler = Callable[[ConnectionInfo, str, dict[str, Any]], Any]
Lookup = Callable[[bytes], bytes | None]
Delegate = Callable[[ConnectionInfo, str, memoryview], Awaitable[Answer]]
InThread = Callable[[ConnectionInfo, Callable[[], Any]], asyncio.Future[Any]]


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Answers requests, on the event loop.

    ``handler(connection, method, args)`` may raise `ThriftException`, `ApplicationException`, or
    any `StrandlineError`, which becomes the exception that `strandline.errors.SURFACES` names.
    Work of more than a millisecond belongs in an awaitable. Requests of one connection never
    overlap; requests of different connections do, where a handler awaits.

    ``lookup(request)`` is called first, with a request as it arrived but without its sequence id
    (`request_key`). It returns the encoded result struct, or None to have the handler called. It
    must not block. Nothing is decoded on this path.

    ``delegate(connection, method, args)`` answers a request that is too long for this process, from
    its undecoded arguments.

    ``in_thread(connection, decode)`` decodes a large request in a thread. It may raise
    `Overloaded`.

    ``only_reads(method)`` says whether the method changes nothing, so that a client may repeat it.
    """

    handler: Handler
    lookup: Lookup | None
    delegate: Delegate | None
    in_thread: InThread
    only_reads: Callable[[str], bool]


def answer_value(codec: Codec, method: str, value: Any) -> Answer:
    """Return the answer in which ``method`` returns the value that its handler gave."""
    if isinstance(value, Answer):
        return value
    try:
        return Answer(REPLY, codec.encode_result(method, value))
    except InvalidInput as error:
        return _internal_error(method, error)


def answer_error(codec: Codec, method: str, error: BaseException) -> Answer:
    """Return the answer to a request whose handler raised ``error``, and forget its frames.

    An exception that the method does not declare is sent as ``MetaException``. If the method does
    not declare that either, it is sent as ``TApplicationException`` with the same message.
    """
    answer = _shown_error(codec, method, error)
    forget_frames(error)
    return answer


def _shown_error(codec: Codec, method: str, error: BaseException) -> Answer:
    if isinstance(error, ApplicationException):
        return Answer(EXCEPTION, error.encode())
    if isinstance(error, ThriftException):
        exception_name, value = error.name, error.value
        message = str(value.get("message", error))
    elif isinstance(error, StrandlineError):
        exception_name, message = surface_of(error).thrift, error.message
        value = {"message": message}
    else:
        return _internal_error(method, error)
    try:
        intended = ThriftException(exception_name, value)
        instead = ThriftException("MetaException", {"message": message})
        for exception in (intended, instead):
            body = codec.encode_exception(method, exception)
            if body is not None:
                return Answer(REPLY, body)
    except InvalidInput as fault:
        return _internal_error(method, fault)
    except ApplicationException:
        pass  # no exception is declared: the method does not exist
    undeclared = ApplicationException(ApplicationException.INTERNAL_ERROR, message)
    return Answer(EXCEPTION, undeclared.encode())


def refusal(error: BaseException) -> BaseException:
    """Return ``error`` as the log shows it. Exceptions of the protocol become our own errors."""
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


class BaseService:
    """Answers the methods that need no metastore.

    ``started`` is in seconds since the epoch; ``counters`` returns what ``getCounters`` shows.

    Hive's client may reopen its connection in the middle of a statement of Spark. So a connection
    that begins just after a client of the same user and address has left follows its requests.
    """

    def __init__(
        self,
        *,
        started: int,
        counters: Callable[[], Mapping[str, int]],
        monotonic: Callable[[], float] = elapsed_seconds,
    ) -> None:
        self._monotonic = monotonic
        self._departed: dict[tuple[str, str], tuple[float, tuple[bytes, ...]]] = {}
        # The arguments and answers of methods have as many types as the protocol: hence Any.
        self._answers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "aliveSince": lambda args: started,
            "getCounter": lambda args: counters().get(args.get("key", ""), 0),
            "getCounters": lambda args: dict(counters()),
            "getCpuProfile": lambda args: "",
            "getName": lambda args: "new db based metaserver",
            "getOption": lambda args: "",
            "getOptions": lambda args: {},
            "getStatus": lambda args: 2,  # alive
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
            groups = _set_ugi(connection, args)
            self._follow_departed(connection)
            return groups
        if method == "shutdown":
            self._note_departed(connection)
        return self._answers[method](args)

    def _note_departed(self, connection: ConnectionInfo) -> None:
        client = _client_of(connection)
        self._departed.pop(client, None)
        self._departed[client] = self._monotonic(), tuple(connection.recent)[:-1]
        if len(self._departed) > _MOST_DEPARTED:
            del self._departed[next(iter(self._departed))]

    def _follow_departed(self, connection: ConnectionInfo) -> None:
        left_at, requests = self._departed.get(_client_of(connection), (0.0, ()))
        is_first = len(connection.recent) <= 1
        if requests and is_first and self._monotonic() - left_at < _RETURN_SECONDS:
            connection.follow(requests)


def _client_of(connection: ConnectionInfo) -> tuple[str, str]:
    """The user and the address, without the port, which differs for each connection."""
    return connection.user, connection.host


def _set_ugi(connection: ConnectionInfo, args: dict[str, Any]) -> list[str]:
    """Store the user name that the client sent. Return its groups, as Hive does."""
    user: str = args.get("user_name", "")
    if len(user) > MAX_USER_LENGTH:
        raise InvalidInput(  # the name would stay in memory as long as its connection
            f"the user's name has {len(user)} characters; give at most {MAX_USER_LENGTH}"
        )
    connection.user = user
    groups: list[str] = args.get("group_names", [])
    return groups
