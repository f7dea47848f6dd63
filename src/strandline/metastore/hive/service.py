"""`HiveMetastoreService`: the Hive Metastore protocol in front of a `Metastore`.

The problem: a statement of Spark asks the metastore a dozen times before it starts, mostly the same
questions, and every answer must be as fresh as if it came from the store.

The model. What a method does is a handler in a module beside this one, registered by name. A
request that reads is answered in one of three ways, each slower than the one before:

1. from the answers that are kept encoded, if nothing was committed since one was made;
2. at once on the event loop, if memory can prove everything that the answer needs;
3. in a worker thread, which may wait for the store.

A request that changes something runs in a worker thread, as the user that the client named.

What must stay true: the loop waits for nothing. No answer is older than any commit that a client
may know of: the mark of a kept answer is taken before it is made. Handlers know nothing of threads,
connections and encodings. Errors are ours; which exception of the protocol each becomes is said by
one table and by what the method declares, except where a handler names the exception itself because
Hive's clients look at it. While privileges are enforced no answer is kept: a kept one is found by
the bytes of its request alone, which do not say who asks.

A method that is not here is answered as unknown, cleanly: clients probe for what a server can do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from strandline import work
from strandline.errors import StrandlineError, error_of
from strandline.metastore.hive import (  # noqa: F401 - each registers its methods
    column_statistics,
    columns,
    constraints,
    databases,
    functions,
    locks,
    notification_methods,
    partition_changes,
    partitions,
    privileges,
    settings,
    table_changes,
    tables,
)
from strandline.metastore.hive.kept_answers import KeptAnswers, KeptAnswersStatistics
from strandline.metastore.hive.reading import MustWait, Reading
from strandline.metastore.hive.registry import METHODS, Call, Kind, Method
from strandline.metastore.metastore import Metastore
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.dispatch import (
    Answer,
    ConnectionInfo,
    Dispatcher,
    Encoded,
    answer_error,
    answer_value,
    refusal,
)
from strandline.metastore.thrift.messages import ApplicationException
from strandline.metastore.workers import CallKind, Workers
from strandline.work.helpers import Fields, HelperPool

DEFAULT_KEPT_BYTES = 64 << 20
SERVICE = "hive"
"""What tasks of this service are called in a helper process."""
ANONYMOUS = "anonymous"
"""The author of what a client does that never said who it is."""


_LISTING = "get_all_tables"
_LOOKING = frozenset({"get_table", "get_table_req"})
"""What Hive's client calls before it drops a table."""


def _listed(connection: ConnectionInfo, name: str, args: dict[str, Any]) -> str | None:
    """The schema whose tables the client listed just before this call.

    Hive's client drops a schema with CASCADE by listing the tables, dropping one after the other,
    and then the schema. Only the order of its calls tells the first of these from the drop of one
    table.
    """
    if name == _LISTING:
        connection.attributes[_LISTING] = str(args.get("db_name", "")).lower()
        return None
    if name in _LOOKING:
        return None
    listed: str | None = connection.attributes.pop(_LISTING, None)
    return listed


@dataclass(frozen=True, slots=True)
class HiveServiceStatistics:
    """``at_once`` requests were answered on the event loop, ``waited`` in a worker thread.

    ``helped`` were answered by a helper process.
    """

    at_once: int
    waited: int
    changes: int
    helped: int
    kept: KeptAnswersStatistics


class HiveMetastoreService:
    """See the module. Its methods are for the event loop.

    ``kept_bytes`` bounds the answers that are kept; ``identities`` says whether answers about
    transactional tables tell the data source who they are.
    """

    def __init__(
        self,
        metastore: Metastore,
        *,
        notifications: NotificationLog,
        workers: Workers | None = None,
        helpers: HelperPool | None = None,
        kept_bytes: int = DEFAULT_KEPT_BYTES,
        identities: bool = True,
    ) -> None:
        self._metastore = metastore
        self._notifications = notifications
        self._folders = metastore.folders
        self._workers = workers or Workers()
        self._helpers = helpers
        self._identities = identities
        self._address: str | None = None
        self._kept = KeptAnswers(max_bytes=kept_bytes)
        self._keeps = metastore.catalogs.delay == 0
        self._at_once = self._waited = self._changes = self._helped = 0
        delegate = None if helpers is None else self.delegate
        self.dispatcher = Dispatcher(self.handle, self.look_up, delegate)

    def announce(self, address: str) -> None:
        """Say under which URI (``thrift://host:port``) clients reach this service."""
        self._address = address

    def look_up(self, request: bytes) -> bytes | None:
        """The kept answer to a request, if it is still right."""
        return self._kept.find(request, self._notifications.mark())

    # Arguments and answers are of as many types as the protocol: hence Any.
    def handle(self, connection: ConnectionInfo, name: str, args: dict[str, Any]) -> Any:
        """Answer a request; see `strandline.metastore.thrift.dispatch.Dispatcher`."""
        method = METHODS.get(name)
        if method is None:
            raise ApplicationException.unknown_method(name)
        user = connection.user or ANONYMOUS
        listed = _listed(connection, name, args)
        if method.kind in (Kind.CHANGES, Kind.WAITS):
            self._changes += 1
            call = replace(self._call(args, user, at_once=False), listed=listed)
            kind = CallKind.DDL if method.kind is Kind.CHANGES else CallKind.SMALL
            return self._in_thread(connection, lambda: method.handler(call), kind)
        if method.kind is Kind.ANSWERS:
            return method.handler(self._call(args, user, at_once=True))
        # A listing must be heard of, so its answer is not kept.
        request = b"" if name == _LISTING else connection.request
        mark = self._notifications.mark()
        if connection.is_large:
            call = self._call(args, user, at_once=False)
            return self._wait(connection, method, call, request, CallKind.LARGE)
        call = self._call(args, user, at_once=True)
        try:
            answer = method.handler(call)
            for_all = call.reading.for_all
        except MustWait:
            call = self._call(args, user, at_once=False)
            return self._wait(connection, method, call, request, CallKind.SMALL)
        self._at_once += 1
        return self._keep(request, mark, HIVE_CODEC.encode_result(name, answer), for_all=for_all)

    def _in_thread(
        self, connection: ConnectionInfo, work: Callable[[], Any], kind: CallKind
    ) -> asyncio.Future[Any]:
        """What ``work`` gives in a worker thread. A client that leaves before gives it up."""
        call = self._workers.submit(work, user=connection.user or ANONYMOUS, kind=kind)
        connection.on_leave = call.withdraw
        return call.result

    def _wait(
        self,
        connection: ConnectionInfo,
        method: Method,
        call: Call,
        request: bytes,
        kind: CallKind,
    ) -> Coroutine[Any, Any, Encoded | Answer]:
        def read() -> tuple[int, bytes, bool]:
            mark = self._notifications.mark()
            with work.budget(None if self._helpers is None else work.IN_THREAD):
                answer = method.handler(call)
                work.spend(_things(answer))
                encoded = HIVE_CODEC.encode_result(method.name, answer)
            return mark, encoded, call.reading.for_all

        result = self._in_thread(connection, read, kind)

        async def answer() -> Encoded | Answer:
            self._waited += 1
            try:
                mark, encoded, for_all = await result
            except work.TooLong:
                args = await asyncio.to_thread(HIVE_CODEC.encode_args, method.name, call.args)
                return await self._delegated(connection, method, args)
            return self._keep(request, mark, encoded, for_all=for_all)

        return answer()

    # -- in a helper process

    async def delegate(self, connection: ConnectionInfo, name: str, args: memoryview) -> Answer:
        """Have a helper process answer a request, by its undecoded arguments."""
        method = METHODS.get(name)
        if method is None:
            raise ApplicationException.unknown_method(name)
        connection.attributes.pop(_LISTING, None)
        return await self._delegated(connection, method, args)

    async def _delegated(
        self, connection: ConnectionInfo, method: Method, args: bytes | memoryview
    ) -> Answer:
        assert self._helpers is not None  # the callers know
        self._helped += 1
        user = connection.user or ANONYMOUS
        fields = {"service": SERVICE, "user": user, "address": self._address}
        only_reads = method.kind in (Kind.READS, Kind.ANSWERS)
        asking = asyncio.ensure_future(
            self._helpers.run(method.name, fields, args, only_reads=only_reads)
        )
        if only_reads:
            connection.on_leave = asking.cancel
        reply = await asking
        refused = reply.fields["refused"]
        return Answer(
            reply.fields["kind"],
            reply.content,
            failed=reply.fields["failed"],
            refused=None if refused is None else error_of(*refused),
        )

    def answer_task(self, fields: Fields, args: bytes) -> tuple[Fields, bytes]:
        """In a helper process: answer what `delegate` was asked."""
        name = fields["name"]
        method = METHODS[name]
        self._address = fields["address"]
        refused: StrandlineError | None = None
        try:
            call = self._call(HIVE_CODEC.decode_args(name, args), fields["user"], at_once=False)
            answer = answer_value(HIVE_CODEC, name, method.handler(call))
        except Exception as error:
            answer = answer_error(HIVE_CODEC, name, error)
            told = refusal(error)
            refused = told if isinstance(told, StrandlineError) else None
        assert isinstance(answer.body, bytes)  # made just now
        return {
            "kind": answer.kind,
            "failed": answer.failed,
            "refused": None if refused is None else [refused.code, refused.message[:1_000]],
        }, answer.body

    def _keep(self, request: bytes, mark: int, answer: bytes, *, for_all: bool) -> Encoded:
        # With a delay, the present moves on by time alone and a mark proves nothing.
        if self._keeps and for_all and request:
            self._kept.keep(request, mark, answer)
        return Encoded(answer)

    def _call(self, args: dict[str, Any], user: str, *, at_once: bool) -> Call:
        reading = Reading(
            self._metastore,
            at_once=at_once,
            user=user,
            address=self._address,
            identities=self._identities,
        )
        return Call(args, user, self._metastore, self._notifications, self._folders, reading)

    def statistics(self) -> HiveServiceStatistics:
        """How requests were answered; those that a kept answer served are in ``kept``."""
        return HiveServiceStatistics(
            self._at_once, self._waited, self._changes, self._helped, self._kept.statistics()
        )


def _things(answer: object) -> int:
    """How many things an answer lists."""
    if isinstance(answer, dict):
        return max(map(_things, answer.values()), default=0)
    return len(answer) if isinstance(answer, list) else 0
