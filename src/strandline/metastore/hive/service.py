"""`HiveMetastoreService`: the Hive Metastore protocol in front of a `Metastore`.

The problem: a Spark statement sends the metastore a dozen requests before it starts, mostly the
same ones, and every answer must be as fresh as if it came from the store.

The model. Each method has a handler in a module beside this one, registered by name. A request that
reads is answered in one of four ways, each slower than the one before:

1. from a kept encoded answer, if nothing was committed since that answer was made;
2. on the event loop, if the node can prove from memory everything that the answer needs;
3. started on the loop, and continued in a worker thread at the first step that has to wait;
4. abandoned in the thread because it costs too much (`strandline.work`), and computed by a child
   process. If the answer turns out to be short, it is kept.

A request that changes something runs in a worker thread, as the user that the client named. Calls
of transactions that share a write with those of other clients stay on the loop, and wait there for
the thread that writes for all of them.

What must stay true: the loop never blocks. No answer is older than a commit that a client may know
of: the mark of a kept answer is taken before the answer is made. A handler runs once, and knows
nothing of connections and encodings. Handlers raise Strandline's errors. One table, together with
what the method declares, maps each to an exception of the protocol, except where a handler names
the exception itself because Hive's clients check for it. While privileges are enforced no answer is
kept: a kept answer is found only by the bytes of its request, which do not name the user. Nor is an
answer that relies on a hold (`snapshot_holds`), which runs out.

A method that does not exist here is answered as unknown: clients probe what a server can do.

A kept answer belongs to the bytes of its request and to a *mark* (`Metastore.mark`). The mark stays
the same only while answers about the present do, and reading it costs microseconds. Any commit
makes every kept answer useless, and the next request for each makes it again. That is the price of
not tracking what an answer depends on. Then many clients may send one request at the same time. If
the first one leaves the loop, those with the same user and mark wait for its answer.

On a server, the notification of another node's commit may be on its way, and the mark is not proof.
There, an answer that must include every commit of rows (`HiveReader.needs_proof`) is not kept. And
a read in progress may have begun before a commit that the next client knows of. So a client may
share a read only if its request had arrived when the read began. All that come while a read is in
progress wait for its end, and share the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from strandline import work
from strandline.errors import ProtocolError, StrandlineError, error_of
from strandline.metastore.delegation import delegate
from strandline.metastore.hive import (  # noqa: F401 - each registers its methods
    constraints,
    databases,
    event_methods,
    fixed_answers,
    functions,
    locks,
    partition_alters,
    partition_changes,
    partition_specs,
    partitions,
    roles,
    statistics,
    statistics_changes,
    table_changes,
    tables,
    transactions,
    truncation,
)
from strandline.metastore.hive.hive_reader import HiveReader
from strandline.metastore.hive.kept_answers import KeptAnswers, KeptAnswersStatistics
from strandline.metastore.hive.names import refuse_other_catalogs
from strandline.metastore.hive.recent_calls import NOTHING_BEFORE, RecentCalls
from strandline.metastore.hive.registry import METHODS, Call, Method, MethodKind, Request
from strandline.metastore.metastore import Metastore
from strandline.metastore.off_loop import finish, off_loop_for
from strandline.metastore.reader import present_catalog
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.dispatch import (
    Answer,
    ConnectionInfo,
    Dispatcher,
    answer_error,
    answer_value,
    refusal,
)
from strandline.metastore.thrift.messages import REPLY, ApplicationException
from strandline.metastore.workers import CallKind, PooledCall, Workers
from strandline.work.child_pool import ChildPool
from strandline.work.children import Fields
from strandline.work.contents import Content

_ANSWERED_AT_ONCE = 8 * 1024
"""The largest request, in bytes, that is answered from its arguments alone on the event loop: the
name of a partition may consist of thousands of keys and values."""
_KEPT_BYTES = 64 << 20
_KEPT_OF_CHILD = 1 << 20
"""The largest answer of a child, in bytes, that the event loop reads into memory and keeps."""
SERVICE = "hive"
"""The name of this service in tasks for a child process."""
ANONYMOUS = "anonymous"
"""The author of changes by a client that did not identify itself."""


_Answered = tuple[Answer, bool]
"""An answer, and whether it may be kept: each user gets the same one until the next commit."""
_Question = tuple[bytes, Hashable, str]
"""A request, its mark and its user, which together determine the answer.

Without a mark that is proof, they do not: see the module.
"""


@dataclass(slots=True)
class _Read:
    """A read in a worker thread, and the number of its clients that have not left.

    Reads are numbered in the order in which they begin. ``mark`` was taken before the read began.
    """

    call: PooledCall
    number: int
    mark: Hashable | None
    clients: int = 0

    def leave(self) -> None:
        """Note that a client has left; withdraw the call if it was the last one."""
        self.clients -= 1
        if not self.clients:
            self.call.withdraw()


class _Asked(NamedTuple):
    """A question, with the mark of the moment, and the read in progress that answers it, if any."""

    question: _Question
    mark: Hashable | None
    read: _Read | None

    @property
    def has_proof(self) -> bool:
        return self.question[1] is not None


@dataclass(frozen=True, slots=True)
class HiveServiceStatistics:
    """``at_once`` requests were answered on the event loop, ``waited`` ended in a worker thread.

    ``delegated`` requests were answered by a child process.
    """

    at_once: int
    waited: int
    changes: int
    delegated: int
    kept: KeptAnswersStatistics


class HiveMetastoreService:
    """See the module. Call its methods on the event loop only."""

    def __init__(
        self,
        metastore: Metastore,
        *,
        workers: Workers | None = None,
        children: ChildPool | None = None,
    ) -> None:
        self._metastore = metastore
        self._workers = workers or Workers()
        self._children = children
        self._kept_answers = KeptAnswers(max_bytes=_KEPT_BYTES)
        self._reads: dict[_Question, _Read] = {}  # in progress
        self._begun_reads = 0
        self._at_once = self._waited = self._changes = self._delegated = 0
        delegate = None if children is None else self.delegate
        self.dispatcher = Dispatcher(
            self.handle, self.look_up, delegate, self._in_thread, _only_reads
        )

    def look_up(self, request: bytes) -> bytes | None:
        """Return the kept answer to a request if it is still current, else None."""
        # Most requests of writers are unknown, and a mark costs more than this check.
        if not self._kept_answers.knows(request):
            return None
        mark = self._metastore.mark()
        return None if mark is None else self._kept_answers.find(request, mark)

    def _in_thread(
        self, connection: ConnectionInfo, decode: Callable[[], Any]
    ) -> asyncio.Future[Any]:
        user = connection.user or ANONYMOUS
        call = self._workers.submit(decode, user=user, kind=CallKind.LARGE)
        connection.on_leave = call.withdraw
        return call.result

    # Arguments and answers have as many types as the protocol: hence Any.
    def handle(self, connection: ConnectionInfo, name: str, args: dict[str, Any]) -> Any:
        """Answer a request; see `strandline.metastore.thrift.dispatch.Dispatcher`."""
        method = METHODS.get(name)
        if method is None:
            raise ApplicationException.unknown_method(name)
        user = connection.user or ANONYMOUS
        before = NOTHING_BEFORE if method.only_reads else RecentCalls(tuple(connection.recent)[:-1])
        request = self._request(method, args, user, before)
        if method.kind is MethodKind.ANSWERS:
            if connection.is_large or len(connection.request) > _ANSWERED_AT_ONCE:
                return self._in_thread(connection, lambda: self._written(request))
            return method.handler(request)
        if method.kind is MethodKind.READS:
            return self._read(connection, request)
        self._changes += 1
        if method.kind is MethodKind.SHARES and not connection.is_large:
            return self._workers.drive(
                self._handle(request),
                user=user,
                on_call=lambda call: setattr(connection, "on_leave", call.withdraw),
            )
        kind = CallKind.DDL if method.kind is MethodKind.CHANGES else CallKind.WRITE
        call = self._workers.submit(lambda: self._written(request), user=user, kind=kind)
        connection.on_leave = call.withdraw
        return call.result

    def _request(
        self, method: Method, args: dict[str, Any], user: str, before: RecentCalls
    ) -> Request:
        refuse_other_catalogs(method.name, args)
        return Request(method, args, user, self._metastore, before=before)

    def _read(self, connection: ConnectionInfo, request: Request) -> Any:
        asked = self._asked(connection.request, request.user)
        if asked.read is None or asked.has_proof:
            return self._read_at(asked, connection, request)
        return self._read_after(asked, connection, request)

    def _asked(self, key: bytes, user: str) -> _Asked:
        mark = self._metastore.mark()
        question = key, mark if self._metastore.notifications.mark_is_proof else None, user
        read = self._reads.get(question)
        if read is not None and read.call.result.done():
            read = None
        return _Asked(question, mark, read)

    def _read_after(
        self, asked: _Asked, connection: ConnectionInfo, request: Request
    ) -> Coroutine[Any, Any, Any]:
        """Read when the read in progress has ended, which began before the request arrived."""
        begun_reads, has_left = self._begun_reads, False

        def leave() -> None:
            nonlocal has_left
            has_left = True

        connection.on_leave = leave

        async def waited() -> Any:
            now = asked
            key, _, user = asked.question
            while now.read is not None and not now.has_proof and now.read.number <= begun_reads:
                await asyncio.wait([now.read.call.result])
                if has_left:  # no client needs another read
                    raise asyncio.CancelledError
                kept_answer = self.look_up(key)
                if kept_answer is not None:
                    return Answer(REPLY, kept_answer)
                now = self._asked(key, user)
            answer = self._read_at(now, connection, request)
            return await answer if isinstance(answer, Coroutine) else answer

        return waited()

    def _read_at(self, asked: _Asked, connection: ConnectionInfo, request: Request) -> Any:
        """Share the read in progress, or begin one if there is none, at the mark of ``asked``."""
        question, mark, read = asked
        key = question[0]
        if read is None:
            self._begun_reads += 1
            begun = self._begin(connection, request)
            if not isinstance(begun, PooledCall):
                self._at_once += 1
                return self._kept(key, mark, *begun)
            read = _Read(begun, self._begun_reads, mark)
            if key:
                self._reads[question] = read
                begun.result.add_done_callback(lambda _: self._forget(question, begun))
        read.clients += 1
        result, mark, has_left = read.call.result, read.mark, False

        def leave() -> None:
            nonlocal has_left
            has_left = True
            read.leave()

        connection.on_leave = leave

        async def waited() -> Answer:
            self._waited += 1
            answered: _Answered | bytes = await result
            if isinstance(answered, bytes):
                if has_left:  # no child works for clients that have left
                    raise asyncio.CancelledError
                answered = await self._delegate_to_child(connection, request.method, answered)
            return self._kept(key, mark, *answered)

        return waited()

    def _forget(self, question: _Question, ended: PooledCall) -> None:
        """Forget a read that has ended; after a cancelled one, a new one may have its place."""
        read = self._reads.get(question)
        if read is not None and read.call is ended:
            del self._reads[question]

    def _begin(self, connection: ConnectionInfo, request: Request) -> _Answered | PooledCall:
        """Begin a read. The result of a call is an answer, or the encoded arguments if too long."""

        def go_on(reading: Coroutine[Any, Any, _Answered]) -> _Answered | bytes:
            try:
                with work.budget(None if self._children is None else work.IN_THREAD):
                    return finish(reading)
            except work.TooLong:
                return HIVE_CODEC.encode_args(request.method.name, request.args)

        def run() -> _Answered | bytes:
            return go_on(self._encoded(request))

        user = request.user
        if connection.is_large:
            return self._workers.submit(run, user=user, kind=CallKind.LARGE, again=run)
        reading = self._encoded(request)
        return self._workers.begin(reading, user=user, go_on=go_on, again=run)

    # -- in a child process

    async def delegate(self, connection: ConnectionInfo, name: str, args: memoryview) -> Answer:
        """Have a child process answer a request from its undecoded arguments."""
        method = METHODS.get(name)
        if method is None:
            raise ApplicationException.unknown_method(name)
        answer, _ = await self._delegate_to_child(connection, method, args)
        return answer

    async def _delegate_to_child(
        self, connection: ConnectionInfo, method: Method, args: bytes | memoryview
    ) -> _Answered:
        assert self._children is not None  # the callers check that
        self._delegated += 1
        user = connection.user or ANONYMOUS
        fields = {"service": SERVICE, "user": user}
        only_reads = method.only_reads
        asking = asyncio.ensure_future(
            delegate(
                self._metastore, self._children, method.name, fields, args, only_reads=only_reads
            )
        )
        if only_reads:
            connection.on_leave = asking.cancel
        reply = await asking
        refused = reply.fields["refused"]
        answer = Answer(
            reply.fields["kind"],
            reply.content,
            failed=reply.fields["failed"],
            refused=None if refused is None else error_of(*refused),
        )
        return answer, reply.fields["may_be_kept"]

    def answer_task(self, fields: Fields, args: bytes) -> tuple[Fields, bytes]:
        """In a child process: answer a request that `delegate` sent."""
        name = fields["name"]
        method = METHODS[name]
        refused: StrandlineError | None = None
        may_be_kept = False
        try:
            try:
                decoded = HIVE_CODEC.decode_args(name, args)
            except ProtocolError as error:
                kind = ApplicationException.PROTOCOL_ERROR
                raise ApplicationException(kind, error.message) from error
            request = self._request(method, decoded, fields["user"], NOTHING_BEFORE)
            if method.kind is MethodKind.READS:
                call = finish(self._call(request))
                result, may_be_kept = finish(method.handler(call)), _may_be_kept(call)
            else:
                result = self._result(request)
            answer = answer_value(HIVE_CODEC, name, result)
        except Exception as error:
            answer = answer_error(HIVE_CODEC, name, error)
            shown = refusal(error)
            refused = shown if isinstance(shown, StrandlineError) else None
        assert isinstance(answer.body, bytes)  # made just now
        return {
            "kind": answer.kind,
            "failed": answer.failed,
            "refused": None if refused is None else [refused.code, refused.message[:1_000]],
            "may_be_kept": may_be_kept,
        }, answer.body

    def _result(self, request: Request) -> Any:
        """Return the result of a request, in a thread or process that may wait."""
        if request.method.kind is MethodKind.ANSWERS:
            return request.method.handler(request)
        return finish(self._handle(request))

    def _written(self, request: Request) -> Any:
        """Return the result of a request that changes something, in a thread; encode a long one."""
        answer = self._result(request)
        if _units(answer) <= work.AT_ONCE:
            return answer
        return Answer(REPLY, HIVE_CODEC.encode_result(request.method.name, answer))

    async def _handle(self, request: Request) -> Any:
        return await request.method.handler(await self._call(request))

    async def _encoded(self, request: Request) -> _Answered:
        call = await self._call(request)
        answer = await request.method.handler(call)
        units = _units(answer)
        await off_loop_for(units)
        work.spend(units)
        body = HIVE_CODEC.encode_result(request.method.name, answer)
        return Answer(REPLY, body), _may_be_kept(call)

    def _kept(self, key: bytes, mark: Hashable | None, answer: Answer, may_be_kept: bool) -> Answer:
        """Return the answer, and keep it if it may be kept.

        That of a child is kept if it is short: the next such request needs no child.
        """
        returned = answer.kind == REPLY and answer.refused is None
        if mark is None or not (key and may_be_kept and returned):
            return answer
        body = answer.body
        if isinstance(body, Content):
            if len(body) > _KEPT_OF_CHILD:
                return answer
            content, body = body, body.read()
            content.close()
            answer = replace(answer, body=body)
        self._kept_answers.keep(key, mark, body)
        return answer

    async def _call(self, request: Request) -> Call:
        catalogs = self._metastore.catalogs
        if request.method.kind is MethodKind.SHARES and not catalogs.delay:
            present = catalogs.latest_catalog()
        else:
            present = await present_catalog(self._metastore)
        return Call(
            request.method,
            request.args,
            request.user,
            self._metastore,
            HiveReader(self._metastore, present, user=request.user),
            before=request.before,
        )

    def statistics(self) -> HiveServiceStatistics:
        """Return how requests were answered. Those that a kept answer served are in ``kept``."""
        return HiveServiceStatistics(
            self._at_once,
            self._waited,
            self._changes,
            self._delegated,
            self._kept_answers.statistics(),
        )


def _may_be_kept(call: Call) -> bool:
    """Whether the answer to a call that reads may be kept until the next commit."""
    reader = call.reader
    is_current = call.metastore.notifications.mark_is_proof or not reader.needs_proof
    return is_current and reader.for_all and not reader.relies_on_hold


def _units(answer: object) -> int:
    """The cost of an answer in units of `work`. Elements that are already encoded cost nothing."""
    if isinstance(answer, dict):
        return max(map(_units, answer.values()), default=0)
    if not isinstance(answer, list) or (answer and isinstance(answer[0], bytes)):
        return 0
    return len(answer)


def _only_reads(name: str) -> bool:
    method = METHODS.get(name)
    return method is None or method.only_reads  # the server itself answers the others
