"""The node's HTTP side for transactional clients: an ASGI application under ``/v1``.

``POST /v1/<method>`` is a call of `Session` (see `calls`); pages are for people and their tools.
Answers are JSON, or Arrow for lists of files. Every error is an RFC 9457 problem, with the HTTP
status of its kind.

What must stay true: the event loop only moves bytes. Reading JSON, calling the store and writing
the answer happen in threads of the node's `Workers`, or in a child process if they are long. If
either refuses a call, it is answered at once, with ``Retry-After``. The time and memory that bodies
may take is bounded (`bodies`).

A request must declare the content type of its call, JSON or Arrow. Browsers send such a request to
a foreign address only after a preflight request, which is not answered here. So no web page can
reach a node on its reader's loopback. `callers` says which user a request comes from, and refuses a
page that has its own name point to this node.

The address of a node may lead to a node of another store later, for example after a restart on
another machine. So each answer names the store, and a request that names another store is refused
before its body is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import monotonic
from types import MappingProxyType

from strandline import __version__, work
from strandline.errors import (
    NotFound,
    Overloaded,
    StoreMoved,
    StrandlineError,
    UnsupportedOperation,
    forget_frames,
)
from strandline.logs import CLIENT
from strandline.metastore.call_log import CallLog
from strandline.metastore.delegation import delegate
from strandline.metastore.metastore import Metastore
from strandline.metastore.request_memory import ANSWER_BYTES
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
    Unauthenticated,
    authenticate_caller,
    caller_of,
)
from strandline.metastore.session.calls import CALLS, PROTOCOL, PROTOCOL_HEADER, STORE_HEADER, Call
from strandline.metastore.session.http_messages import (
    Answer,
    ClientGone,
    Receive,
    Request,
    Scope,
    Send,
)
from strandline.metastore.session.local_session import LocalSession
from strandline.metastore.session.wire_json import PROBLEM_TYPE, write_error
from strandline.metastore.workers import ClientLeft, Workers
from strandline.work.child_pool import ChildPool
from strandline.work.children import Fields
from strandline.work.contents import Body, Content, release

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1
"""The seconds that an overloaded node asks its clients to wait."""
_READING = ("GET", "HEAD")
_SHOWN = 80
"""The number of characters of a header that an error shows."""
_PROTOCOL_NAME, _STORE_NAME = PROTOCOL_HEADER.lower(), STORE_HEADER.lower()
SERVICE = "http"
"""The name of this application's tasks in a child process."""

Serve = Callable[[Request], Awaitable[Answer]]
"""Answers one request."""
Page = Callable[[], Awaitable[Answer]]
"""Answers a GET whose answer is the same for all clients."""


class WrongMethod(UnsupportedOperation):
    """The path is not served with that HTTP method. The answer has HTTP status 405."""

    def __init__(self, request: Request, methods: Sequence[str]) -> None:
        self.allowed = ", ".join(methods)
        super().__init__(
            f"{request.method} is not supported for {request.path[:80]}; use {self.allowed}"
        )


@dataclass(frozen=True, slots=True)
class HttpStatistics:
    """Counts since the start.

    ``body_memory`` and ``answer_memory`` are the present values in bytes. ``full`` counts the
    requests that were refused because either was exhausted.
    """

    requests: int
    errors: int
    body_memory: int
    answer_memory: int
    full: int


def answer_task(metastore: Metastore, fields: Fields, body: bytes) -> tuple[Fields, Content]:
    """Execute, in a child process, a call that is too long for the process of the node."""
    session = LocalSession(
        metastore, user=fields["user"], host=fields["host"], has_typed_commands=True
    )
    pieces = CALLS[fields["name"]].answer(session, body, still_wanted=bool)
    return {}, Content.of_pieces(pieces)


class HttpApplication:
    """The application for ``metastore``; any ASGI server can run it.

    With ``authenticate``, every call needs Basic credentials that it accepts; it is called in a
    worker thread, for each call. Without it, users are not verified. ``hosts`` are the names,
    besides those of loopback, under which clients may reach the node. ``pages`` are answered to
    GET, by path, without authentication.
    """

    def __init__(
        self,
        metastore: Metastore,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        workers: Workers | None = None,
        children: ChildPool | None = None,
        authenticate: Authenticate | None = None,
        calls: CallLog | None = None,
        body_seconds: float = BODY_SECONDS,
        body_memory_bytes: int = BODY_MEMORY_BYTES,
        hosts: Collection[str] = (),
        pages: Mapping[str, Page] = MappingProxyType({}),
    ) -> None:
        self._metastore = metastore
        self._store = metastore.catalogs.state.environment or ""
        self._authenticate = authenticate
        self._bodies = Bodies(
            max_bytes=max_body_bytes,
            seconds=body_seconds,
            memory_bytes=body_memory_bytes,
            answer_bytes=ANSWER_BYTES,
            outside=children is not None,
        )
        self._workers = workers or Workers()
        self._children = children
        self._calls = calls or CallLog()
        self._requests = self._errors = 0  # changed on the loop only
        self._whole_store_call: str | None = None  # this too
        self._origins = OriginGuard(hosts)
        self._routes: dict[str, tuple[tuple[str, ...], Serve]] = {
            **{path: (_READING, self._page(page)) for path, page in pages.items()},
            **{call.path: (("POST",), self.endpoint(call)) for call in CALLS.values()},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            serve = self._served_by(request)
        except WrongMethod as error:
            answer = _error_answer(error, status=405)
            answer.headers["Allow"] = error.allowed
        except StrandlineError as error:
            answer = _error_answer(error)
        else:
            answer = await serve(request)
        answer.headers[PROTOCOL_HEADER] = PROTOCOL
        answer.headers[STORE_HEADER] = self._store
        await answer.send(send)

    def _served_by(self, request: Request) -> Serve:
        """The function that answers the request. Raises an error if the request is refused."""
        self._origins.require_own(request)
        spoken = request.headers.get(_PROTOCOL_NAME, PROTOCOL)
        if spoken != PROTOCOL:
            raise UnsupportedOperation(
                f"this node, of release {__version__}, speaks protocol {PROTOCOL!r}, but the "
                f"client speaks {spoken[:20]!r}; install the same release on both; nothing was "
                "done"
            )
        used = request.headers.get(_STORE_NAME, self._store)
        if used != self._store:
            raise StoreMoved(
                f"this is a node of the store with the environment {self._store}, but the client "
                f"uses that of {used[:_SHOWN]!r}; nothing was done; correct the address of the "
                "node, or open another session to use this store"
            )
        path = request.path
        methods, serve = self._routes.get(path, ((), None))
        if serve is None:
            known = ", ".join(self._routes)
            raise NotFound(
                f"{path[:80]!r} does not exist; the paths are: {known}; use a client of the "
                f"node's release, which is {__version__}"
            )
        if request.method not in methods:
            raise WrongMethod(request, methods)
        return serve

    def _page(self, page: Page) -> Serve:
        async def serve(request: Request) -> Answer:
            try:
                return await page()
            except Exception as error:
                return self._refused(error)

        return serve

    def endpoint(self, call: Call) -> Serve:
        async def serve(request: Request) -> Answer:
            began, user = monotonic(), ""
            CLIENT.set(request.client)
            owner = object()  # owns the memory that the request takes
            body: Body = b""
            failure: Exception | None = None
            try:
                asking = caller_of(request.headers)
                user = asking.user
                self._workers.require_slot()
                await self._authenticate_large(asking, request)
                body = await self._bodies.read(request, owner, call.request_type, user=user)
                began = monotonic()  # the time that the client takes is not the node's
                self._requests += 1
                content = await self._answered(call, asking, body, request)
                answer = self._bodies.answer(
                    content, call.answer_type, user=user, only_reads=call.only_reads
                )
            except (ClientGone, ClientLeft) as left:
                forget_frames(left)
                return Answer(b"", PROBLEM_TYPE, status=400)  # no client receives it
            except Exception as error:
                failure, answer = error, self._refused(error)
            finally:
                self._bodies.memory.release(owner)
                release(body)
            self._calls.ended(
                SERVICE,
                call.name,
                client=request.client,
                user=user,
                seconds=monotonic() - began,
                error=failure,
            )
            return answer

        return serve

    # -- one request ---------------------------------------------------------------------------

    async def _authenticate_large(self, asking: Caller, request: Request) -> None:
        """Authenticate the caller of a request that may be large, before its body takes memory.

        The caller of a small request is authenticated in the thread that answers it.
        """
        size = request.announced_bytes
        is_small = size is not None and work.units_of_json(size) <= work.IN_THREAD
        if self._authenticate is not None and not is_small:
            check = partial(authenticate_caller, asking, self._authenticate)
            await self._workers.submit(check, user=asking.user).result

    async def _answered(self, call: Call, asking: Caller, body: Body, request: Request) -> Body:
        """The body of the answer, made in the place that `strandline.work` prescribes."""
        host, until_left = request.client_host, request.until_left
        children = self._children
        kind = call.kind(len(body))
        if isinstance(body, bytes):
            session = LocalSession(
                self._metastore, user=asking.user, host=host, has_typed_commands=True
            )
            is_bounded = children is not None and call.may_be_too_long

            def answer(still_wanted: Callable[[], None]) -> bytes:
                authenticate_caller(asking, self._authenticate)
                request.admit()
                with work.budget(work.IN_THREAD if is_bounded else None):
                    return b"".join(call.answer(session, body, still_wanted=still_wanted))

            try:
                return await self._workers.run(
                    answer,
                    user=asking.user,
                    kind=kind,
                    until_left=until_left,
                    gives_way=call.only_reads,
                )
            except work.TooLong as too_long:
                forget_frames(too_long)
        request.admit()  # also the caller of a large request is authenticated by now
        assert children is not None  # without children, no call is too long
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

    async def _delegate_to_child(self, call: Call, asking: Caller, body: Body, host: str) -> Body:
        """Have a child process execute the call; return the body of the answer."""
        assert self._children is not None  # the caller has checked it
        fields = {"service": SERVICE, "user": asking.user, "host": host}
        with self._whole_store(call) if call.reads_whole_store else nullcontext():
            reply = await delegate(
                self._metastore, self._children, call.name, fields, body, only_reads=call.only_reads
            )
        return reply.content

    @contextmanager
    def _whole_store(self, call: Call) -> Iterator[None]:
        """Let ``call`` read the whole store. Raises `Overloaded` while another call does so.

        Such calls may take hours. So they never keep more than one of the child processes busy.
        """
        if self._whole_store_call is not None:
            raise Overloaded(
                f"this node executes {self._whole_store_call} for a client, and reads its whole "
                f"store for one client at a time; nothing was done, try {call.name} again later"
            )
        self._whole_store_call = call.name
        try:
            yield
        finally:
            self._whole_store_call = None

    def statistics(self) -> HttpStatistics:
        """The present counts. Any thread may call this."""
        memory, answers = self._bodies.memory, self._bodies.answers
        return HttpStatistics(
            requests=self._requests,
            errors=self._errors,
            body_memory=memory.taken,
            answer_memory=answers.taken,
            full=memory.refused + answers.refused,
        )

    def _refused(self, error: Exception) -> Answer:
        self._errors += 1
        if not isinstance(error, StrandlineError):
            logger.error("a request failed with an internal error", exc_info=error)
        forget_frames(error)
        answer = _error_answer(error, status=401 if isinstance(error, Unauthenticated) else None)
        if isinstance(error, Overloaded):
            answer.headers["Retry-After"] = str(RETRY_SECONDS)
        if isinstance(error, BodyTooLate):
            answer.headers["Connection"] = "close"
        if isinstance(error, Unauthenticated):
            answer.headers["WWW-Authenticate"] = 'Basic realm="strandline", charset="UTF-8"'
        return answer


def _error_answer(error: BaseException, *, status: int | None = None) -> Answer:
    status, body = write_error(error, status=status)
    return Answer(body, PROBLEM_TYPE, status)
