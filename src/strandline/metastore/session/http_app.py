"""The node's HTTP side for transactional clients: an ASGI application under ``/v1``.

``POST /v1/<method>`` is a call of `Session` (see `session_calls`), ``GET /v1/health`` and
``GET /v1/statistics`` are for people and their tools. Answers are JSON; lists of files are Arrow.
An error of any kind is a problem of RFC 9457 with the status of its surface.

What must stay true: the event loop only moves bytes. Reading JSON, calling the store and writing
the answer happen in threads of the node's `Workers`, or in a child process where they are long; a
call that either refuses is answered at once, with ``Retry-After``. What bodies may take, in time
and memory, is bounded (`bodies`).

A request has to say that it is JSON. Browsers send such a request to a foreign address only after
asking it, which is not answered here, so no web page can reach a node on its reader's loopback. A
page that has its own name point to this node is refused by `callers`.

Who asks is said by HTTP Basic credentials, or by a header without a secret. Unless the node was
given something to prove a secret with, the name is an assertion and believed, as on the Hive port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import Protocol, runtime_checkable

from anyio import CapacityLimiter, move_on_after, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from strandline import __version__, work
from strandline.errors import (
    NotFound,
    Overloaded,
    StrandlineError,
    UnsupportedOperation,
)
from strandline.logs import CLIENT
from strandline.metastore.metastore import Metastore
from strandline.metastore.served_calls import ANSWER_BYTES, DEFAULT_SLOW_MS, delegate, log_call
from strandline.metastore.session.bodies import (
    BODY_MEMORY_BYTES,
    BODY_SECONDS,
    MAX_BODY_BYTES,
    Bodies,
    BodyTooLate,
)
from strandline.metastore.session.callers import (
    Authenticate,
    Caller,
    OriginGuard,
    Unproved,
    caller_of,
    prove,
)
from strandline.metastore.session.calls import (
    CALLS,
    JSON_TYPE,
    PREFIX,
    PROTOCOL,
    PROTOCOL_HEADER,
    Call,
)
from strandline.metastore.session.local_session import LocalSession
from strandline.metastore.session.wire_json import PROBLEM_TYPE, write_error, write_json
from strandline.metastore.workers import ClientLeft, Workers
from strandline.work.children import ChildPool, Fields
from strandline.work.contents import Content

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1
"""What a full node asks its clients to wait."""
HEALTH_THREADS = 2
HEALTH_SECONDS = 2.0
"""After this time a check of the node's health counts as failed."""
_READING = ("GET", "HEAD")
SERVICE = "http"
"""What tasks of this application are called in a child process."""

Serve = Callable[[Request], Awaitable[Response]]
"""Answers one request."""


def application(
    metastore: Metastore,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    workers: Workers | None = None,
    children: ChildPool | None = None,
    authenticate: Authenticate | None = None,
    check_health: Callable[[], Sequence[Problem]] = tuple,
    connections: Counted | None = None,
    slow_call_ms: int = DEFAULT_SLOW_MS,
    body_seconds: float = BODY_SECONDS,
    body_memory_bytes: int = BODY_MEMORY_BYTES,
    hosts: Collection[str] = (),
) -> ASGIApp:
    """The application for ``metastore``; any ASGI server can run it.

    With ``authenticate``, every call must bring Basic credentials that it accepts; it is asked in a
    worker thread, at each call. Without it, users are believed. ``check_health`` says what keeps
    the node from its work; it is called in a thread. A call slower than ``slow_call_ms`` is logged.
    ``hosts`` are the names, beside those of loopback, under which clients may reach the node.
    ``connections`` counts those of the server.
    """
    return _Application(
        metastore,
        bodies=Bodies(
            max_bytes=max_body_bytes,
            seconds=body_seconds,
            memory_bytes=body_memory_bytes,
            answer_bytes=ANSWER_BYTES,
            outside=children is not None,
        ),
        workers=workers or Workers(),
        children=children,
        authenticate=authenticate,
        check_health=check_health,
        connections=connections,
        slow_call_ms=slow_call_ms,
        origins=OriginGuard(hosts),
    )


@dataclass(frozen=True, slots=True)
class HttpStatistics:
    """Counts since the start.

    ``body_memory`` and ``answer_memory`` are now; ``full`` counts the requests that were refused
    for lack of either.
    """

    requests: int = 0
    errors: int = 0
    body_memory: int = 0
    answer_memory: int = 0
    full: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the node can do its work, which release it is, and the catalog versions it holds.

    ``status`` is "ok" without ``problems``, else "failing".
    """

    status: str
    release: str
    catalog_version: int
    earliest_version: int
    problems: tuple[dict[str, str], ...]


class Problem(Protocol):
    """Something that keeps the node from its work: the check that failed, and why."""

    @property
    def check(self) -> str: ...

    @property
    def reason(self) -> str: ...


@dataclass(slots=True)
class _Asked:
    """One call, as the log tells of it."""

    method: str
    client: str
    began: float
    user: str = ""

    def ended(self, slow_ms: int, error: Exception | None = None) -> None:
        log_call(
            self.method,
            client=self.client,
            user=self.user,
            seconds=monotonic() - self.began,
            slow_ms=slow_ms,
            error=error,
        )


def answer_task(metastore: Metastore, fields: Fields, body: bytes) -> tuple[Fields, bytes]:
    """In a child process: carry out a call that is too long for the process of the node."""
    session = LocalSession(metastore, user=fields["user"], host=fields["host"])
    return {}, CALLS[fields["name"]].answer(session, body, still_wanted=bool)


@runtime_checkable
class Counted(Protocol):
    """What counts what it does."""

    def statistics(self) -> object: ...


class _Application:
    def __init__(
        self,
        metastore: Metastore,
        *,
        bodies: Bodies,
        workers: Workers,
        children: ChildPool | None,
        authenticate: Authenticate | None,
        check_health: Callable[[], Sequence[Problem]],
        connections: Counted | None,
        slow_call_ms: int,
        origins: OriginGuard,
    ) -> None:
        self._metastore = metastore
        self._authenticate = authenticate
        self._bodies = bodies
        self._workers = workers
        self._children = children
        self._check_health = check_health
        self._connections = connections
        self._slow_call_ms = slow_call_ms
        self._counts = HttpStatistics()  # touched on the loop only
        self._origins = origins
        self._routes: dict[str, tuple[tuple[str, ...], Serve]] = {
            f"{PREFIX}/health": (_READING, self.health),
            f"{PREFIX}/statistics": (_READING, self.statistics),
            **{call.path: (("POST",), self.endpoint(call)) for call in CALLS.values()},
        }

    @cached_property
    def _watching(self) -> CapacityLimiter:
        """The threads of those who watch the node: there are some when it is full."""
        return CapacityLimiter(HEALTH_THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: an ASGI application."""
        request = Request(scope, receive)
        try:
            serve = self._served_by(request)
        except StrandlineError as error:
            response = _error_response(error)
        else:
            response = await serve(request)
        response.headers[PROTOCOL_HEADER] = PROTOCOL
        await response(scope, receive, send)

    def _served_by(self, request: Request) -> Serve:
        """What answers the request. Raises what keeps it from being answered."""
        self._origins.require_own(request)
        spoken = request.headers.get(PROTOCOL_HEADER, PROTOCOL)
        if spoken != PROTOCOL:
            raise UnsupportedOperation(
                f"this node, of release {__version__}, speaks protocol {PROTOCOL!r}, and the client"
                f" {spoken[:20]!r}; install the same release on both; nothing was done"
            )
        path = request.scope["path"]
        methods, serve = self._routes.get(path, ((), None))
        if serve is None:
            known = ", ".join(["health", "statistics", *CALLS])
            raise NotFound(
                f"{path[:80]!r} is not there; below {PREFIX}/ are: {known}; a client has to be of"
                f" the node's release, which is {__version__}"
            )
        if request.method not in methods:
            raise UnsupportedOperation(
                f"{request.method} {path[:80]} is not there; use {', '.join(methods)}"
            )
        return serve

    # -- routes --------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """200 if the node can do its work, else 503 with the reasons.

        The checks run in threads of their own, so that a node full of requests is told apart from
        one that is broken. What does not end in time is a problem itself.
        """
        problems: Sequence[Problem] = ()
        with move_on_after(HEALTH_SECONDS) as scope:
            problems = await to_thread.run_sync(
                self._check_health, limiter=self._watching, abandon_on_cancel=True
            )
        reported = [{"check": problem.check, "reason": problem.reason} for problem in problems]
        if scope.cancelled_caught:
            reason = f"the store did not answer within {HEALTH_SECONDS} s"
            reported = [{"check": "deadline", "reason": reason}]
        catalogs = self._metastore.catalogs
        health = Health(
            "failing" if reported else "ok",
            __version__,
            catalogs.latest_catalog().version,
            catalogs.earliest_catalog().version,
            tuple(reported),
        )
        return Response(
            write_json(health, Health),
            status_code=503 if reported else 200,
            media_type=JSON_TYPE,
            headers={"Cache-Control": "no-store"},
        )

    async def statistics(self, request: Request) -> Response:
        """What every part counts, by part."""
        http = self._counted()
        asked = _Asked("statistics", "", monotonic())
        try:
            counters = await to_thread.run_sync(self._gather, http, limiter=self._watching)
        except Exception as error:
            return self._refused(error, asked)
        return Response(counters, media_type=JSON_TYPE)

    def endpoint(self, call: Call) -> Serve:
        """What serves the route of ``call``."""

        async def serve(request: Request) -> Response:
            host = request.client.host if request.client else ""
            asked = _Asked(
                call.name, f"{host}:{request.client.port}" if request.client else "", monotonic()
            )
            CLIENT.set(asked.client)
            owner = object()  # of the memory that the request takes
            body: bytes | Content = b""
            try:
                asking = caller_of(request.headers)
                asked.user = asking.user
                self._workers.require_place()
                body = await self._bodies.read(request, owner, call.request_type)
                asked.began = monotonic()  # how long its client takes is not our slowness
                self._counts = replace(self._counts, requests=self._counts.requests + 1)
                answer = await self._answered(call, asking, body, request, host)
                response = self._bodies.response(answer, call.answer_type)
            except (ClientDisconnect, ClientLeft):
                return Response(status_code=400)  # no client hears it
            except Exception as error:
                return self._refused(error, asked)
            finally:
                self._bodies.memory.release(owner)
                if isinstance(body, Content):
                    body.close()
            asked.ended(self._slow_call_ms)
            return response

        return serve

    # -- one request ---------------------------------------------------------------------------

    async def _answered(
        self, call: Call, asking: Caller, body: bytes | Content, request: Request, host: str
    ) -> bytes | Content:
        """The body of the answer, made where the rule of `strandline.work` says."""

        async def until_left() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        children = self._children
        kind = call.kind(len(body) if isinstance(body, bytes) else body.size)
        if isinstance(body, bytes):
            session = LocalSession(self._metastore, user=asking.user, host=host)
            is_bounded = children is not None and call.only_reads

            def answer(still_wanted: Callable[[], None]) -> bytes:
                prove(asking, self._authenticate)
                with work.budget(work.IN_THREAD if is_bounded else None):
                    return call.answer(session, body, still_wanted=still_wanted)

            try:
                return await self._workers.run(
                    answer, user=asking.user, kind=kind, until_left=until_left
                )
            except work.TooLong:
                pass
        else:
            await self._workers.run(
                lambda still_wanted: prove(asking, self._authenticate),
                user=asking.user,
                kind=kind,
                until_left=until_left,
            )
        assert children is not None  # else nothing is too long
        answering = asyncio.ensure_future(self._delegate_to_child(call, asking, body, host))
        leaving = asyncio.ensure_future(until_left())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not call.only_reads:
                await asyncio.wait({answering})
            if not answering.done():
                raise ClientLeft
            return answering.result()
        finally:
            leaving.cancel()
            answering.cancel()

    async def _delegate_to_child(
        self, call: Call, asking: Caller, body: bytes | Content, host: str
    ) -> bytes | Content:
        """The body of the answer, made by a child process."""
        assert self._children is not None  # the caller knows
        fields = {"service": SERVICE, "user": asking.user, "host": host}
        reply = await delegate(
            self._metastore, self._children, call.name, fields, body, only_reads=call.only_reads
        )
        return reply.content

    def _counted(self) -> HttpStatistics:
        memory, answers = self._bodies.memory, self._bodies.answers
        return replace(
            self._counts,
            body_memory=memory.taken,
            answer_memory=answers.taken,
            full=memory.refused + answers.refused,
        )

    def _refused(self, error: Exception, asked: _Asked) -> Response:
        asked.ended(self._slow_call_ms, error)
        self._counts = replace(self._counts, errors=self._counts.errors + 1)
        if not isinstance(error, StrandlineError):
            logger.error("a request failed inside", exc_info=error)
        answer = _error_response(error)
        if isinstance(error, Overloaded):
            answer.headers["Retry-After"] = str(RETRY_SECONDS)
        if isinstance(error, BodyTooLate):
            answer.headers["Connection"] = "close"
        if isinstance(error, Unproved):
            answer.status_code = 401
            answer.headers["WWW-Authenticate"] = 'Basic realm="strandline", charset="UTF-8"'
        return answer

    def _gather(self, http: HttpStatistics) -> bytes:
        parts: dict[str, object] = {
            "catalog": self._metastore.catalogs,
            "transactions": self._metastore.transactions,
            "projection": self._metastore.projector,
            "store": self._metastore.store,
            "workers": self._workers,
            "children": self._children,
            "connections": self._connections,
        }
        counted = {
            name: part.statistics() for name, part in parts.items() if isinstance(part, Counted)
        }
        written = [
            f'"{name}":'.encode() + write_json(value, type(value))
            for name, value in (*counted.items(), ("http", http))
        ]
        return b"{" + b",".join(written) + b"}"


def _error_response(error: BaseException) -> Response:
    status, body = write_error(error)
    return Response(body, status_code=status, media_type=PROBLEM_TYPE)
