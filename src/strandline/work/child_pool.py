"""The children of one event loop, and the tasks that run in them.

A pool has a limited number of children and keeps idle ones for a while. If a task needs a new child
and the limit is reached, the pool ends the child that has been idle longest. While all children are
busy, tasks wait, and their users take turns. If too many tasks wait, or too many of one user, the
pool refuses the next one immediately.

A child gets its task when it has opened the store, which may take seconds. If the callers leave
before that, the child is kept as an idle one: otherwise callers with a shorter timeout would never
get an answer.

Callers that ask the same question while it waits share one task and its reply, because many readers
begin with the files of the same snapshot. If a child has already begun a task for the question, a
new task waits until that task is finished. So a popular question keeps one child busy, not all.

What must stay true: if a child ends without a reply, the caller gets `Unavailable` for a task that
only reads, and `UnknownOutcome` for a task that changes something; the next task gets a new child.
A reply is never older than its question: no caller joins a task that a child has begun.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from strandline.errors import (
    Overloaded,
    Stopping,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
    error_of,
)
from strandline.work.children import NOTED, Announce, Fields, receive_packet, send_packet
from strandline.work.contents import PIECE, Content

logger = logging.getLogger(__name__)

MAX_CHILDREN = max(2, os.cpu_count() or 1)
MAX_WAITING = 64
"""How many tasks may wait for a child."""
USER_SHARE = 0.75
"""The share of these that one user may have."""
_MAX_USERS = 1_000
"""The number of users whose last turn is known."""
IDLE_SECONDS = 30.0
"""How long the pool keeps a child without a task."""

Data = bytes | memoryview | Content


class StartChild(Protocol):
    """See `strandline.work.children.ForkServer.child`."""

    def __call__(self, *, only_reads: bool) -> socket.socket: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a child. The owner must close ``content``."""

    fields: Fields
    content: Content

    def copy(self) -> Reply:
        """Return a reply with the same bytes, which must be closed separately."""
        try:
            return Reply(self.fields, Content(os.dup(self.content.fileno())))
        except OSError as shortage:
            raise Unavailable(
                f"the reply of a child process cannot be kept: {shortage.strerror}; try again"
            ) from shortage


@dataclass(frozen=True, slots=True)
class ChildStatistics:
    """The number of ``running`` and ``waiting`` tasks now, and counts since the start.

    ``joined`` counts the callers that shared the task of another caller.
    """

    running: int
    waiting: int
    tasks: int
    joined: int
    children: int
    turned_away: int
    lost: int


class _SharedCall:
    """A question that only reads, and the number of callers that wait for its reply.

    While ``is_open``, other callers may join, because no child has begun the task. Set ``task``
    before calling `reply`.
    """

    task: asyncio.Task[Reply]

    def __init__(self) -> None:
        self.is_open = True
        self._callers = 0

    async def reply(self) -> Reply:
        """Return the reply, with a separate content for each caller.

        If the last waiting caller is cancelled, the task is cancelled too.
        """
        self._callers += 1
        task = self.task
        try:
            reply = await _result_of(task)
        except asyncio.CancelledError:
            if self._callers == 1:
                self.is_open = False
                task.cancel()
                task.add_done_callback(_close_content)
            raise
        finally:
            self._callers -= 1
        return reply if not self._callers else reply.copy()


class _Slots:
    """The slots of running tasks. A free one goes to the user who got none for longest."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._number = 0
        self._last: dict[str, int] = {}  # by user, the number of the last slot; in their order

    async def acquire(self, user: str) -> None:
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((user, slot))
        self._assign()
        try:
            await slot
        except asyncio.CancelledError:
            if slot.cancelled():
                self._waiting.remove((user, slot))
            else:
                self.release()
            raise

    def release(self) -> None:
        self._free += 1
        self._assign()

    def _assign(self) -> None:
        while self._free and (ready := [w for w in self._waiting if not w[1].cancelled()]):
            user, slot = first = min(ready, key=lambda waiting: self._last.get(waiting[0], 0))
            self._waiting.remove(first)
            self._free -= 1
            slot.set_result(None)
            self._number += 1
            self._last.pop(user, None)
            self._last[user] = self._number
            if len(self._last) > _MAX_USERS:
                del self._last[next(iter(self._last))]


class _Child:
    """The connection to a child."""

    def __init__(self, connection: socket.socket, timeline: int, *, only_reads: bool) -> None:
        connection.setblocking(False)
        self._connection = connection
        self.timeline = timeline
        """That of the node when the child was started."""
        self.only_reads = only_reads
        self.has_announced = False
        """Whether it has announced something during its present task."""
        self.is_open = False
        """Whether it has tried to open the store."""
        self.closing: asyncio.TimerHandle | None = None

    async def opens(self) -> bool:
        """Wait until the child ``is_open``. Returns False if it has ended."""
        if not self.is_open and (packet := await self._packet()) is not None:
            packet[1].close()
            self.is_open = True
        return self.is_open

    def send(self, fields: Fields, content: Content) -> None:
        self.has_announced = False
        send_packet(self._connection, fields, content)

    async def reply(self, on_announced: Announce) -> Reply | None:
        """Return the reply to the task that was sent, or None if the child ended without one."""
        while (packet := await self._packet()) is not None:
            fields, content = packet
            if "announces" not in fields:
                return Reply(fields, content)
            self.has_announced = True
            try:
                await asyncio.to_thread(lambda announced: on_announced(announced.read()), content)
            except Exception:
                logger.warning(
                    "the announcement of a child process could not be recorded", exc_info=True
                )
            finally:
                content.close()
            with suppress(OSError):  # the child has ended; the next `_packet` returns None
                self._connection.send(NOTED)
        return None

    async def _packet(self) -> tuple[Fields, Content] | None:
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        descriptor = self._connection.fileno()
        loop.add_reader(descriptor, _settle, readable)
        try:
            await readable
        finally:
            loop.remove_reader(descriptor)
        try:
            return receive_packet(self._connection)
        except OSError as error:
            logger.warning("what a child process sent cannot be received: %s", error.strerror)
            return None

    def stop_waiting(self) -> None:
        """Send no more packets. The child waits for no other writer and ends after its task."""
        with suppress(OSError):  # the child has ended
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self.closing is not None:
            self.closing.cancel()
        self._connection.close()


class ChildPool:
    """The children of one event loop. Call its methods in that loop, and close it.

    ``start`` returns the connection to a new child (`ForkServer.child`). If a child that only
    reads ends because of its memory, the pool starts a new one immediately, so that it opens the
    store before the next task comes. Large reads come in series; large writes are rare. Once
    ``timeline`` returns a larger number (`Database.timeline`), a child gets no more tasks, and the
    result of its last one does not count: it may know of no takeover.
    ``on_announced`` is called, in a thread, with the data that a child announces, and
    ``on_ended`` when the last of the tasks whose children have announced something ends, also if
    its caller left.
    """

    def __init__(
        self,
        start: StartChild,
        *,
        on_announced: Announce = lambda data: None,
        on_ended: Callable[[], object] = lambda: None,
        timeline: Callable[[], int] = lambda: 0,
        max_children: int = MAX_CHILDREN,
        max_waiting: int = MAX_WAITING,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._start = start
        self._on_announced = on_announced
        self._on_ended = on_ended
        self._timeline = timeline
        self._max_children = max_children
        self._slots = _Slots(max_children)
        self._max_waiting = max_waiting
        self._idle_seconds = idle_seconds
        self._idle: list[_Child] = []
        self._waiting = Counter[str]()  # by user
        self._shared_calls: dict[Hashable, _SharedCall] = {}
        self._running: set[asyncio.Task[Reply]] = set()
        self._writing: set[_Child] = set()
        self._stopping = False
        self._tasks = self._joined = self._children = self._turned_away = self._lost = 0

    async def run(self, name: str, fields: Fields, data: Data, *, only_reads: bool) -> Reply:
        """Run a task in a child and return its reply. Closes ``data`` if it is a `Content`.

        If the caller is cancelled, a task that only reads is abandoned; any other task continues.

        Raises the error that the child reports, `Overloaded` if too many tasks wait,
        `Unavailable` or `UnknownOutcome` if the child ends, and `Stopping` after `stop_waiting`.
        """
        if not only_reads or isinstance(data, Content) or len(data) > PIECE:
            return await self._run(name, fields, data, only_reads=only_reads)
        question = (name, *sorted(fields.items()), bytes(data))
        shared_call = self._shared_calls.get(question)
        if shared_call is not None and shared_call.is_open:
            self._joined += 1
            return await shared_call.reply()
        before = None if shared_call is None else shared_call.task
        shared_call = self._shared_calls[question] = _SharedCall()
        task = asyncio.get_running_loop().create_task(
            self._run(name, fields, data, only_reads=True, shared_call=shared_call, before=before),
            name=name,
        )
        task.add_done_callback(lambda _: self._forget(question, shared_call))
        shared_call.task = task
        return await shared_call.reply()

    def _forget(self, question: Hashable, shared_call: _SharedCall) -> None:
        del shared_call.task  # which may refer to the call, by the traceback of its error
        if self._shared_calls.get(question) is shared_call:
            del self._shared_calls[question]

    async def _run(
        self,
        name: str,
        fields: Fields,
        data: Data,
        *,
        only_reads: bool,
        shared_call: _SharedCall | None = None,
        before: asyncio.Task[Reply] | None = None,
    ) -> Reply:
        user = fields.get("user", "")
        try:
            await self._admitted(user, before)
        except BaseException:
            if isinstance(data, Content):
                data.close()
            raise
        task = asyncio.get_running_loop().create_task(
            self._do({**fields, "name": name}, data, shared_call, only_reads=only_reads), name=name
        )
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            return await _result_of(task)
        except asyncio.CancelledError:
            if only_reads:
                task.cancel()
            task.add_done_callback(_close_content)
            raise

    async def _admitted(self, user: str, before: asyncio.Task[Reply] | None) -> None:
        """Wait for the task ``before`` to end, then for a slot in the pool."""
        self._require_open()
        waiting, of_user = self._waiting.total(), self._waiting[user]
        if waiting >= self._max_waiting or of_user >= ceil(self._max_waiting * USER_SHARE):
            self._turned_away += 1
            raise Overloaded(
                f"this node already has {len(self._running)} large requests running and "
                f"{waiting} waiting, {of_user} of them from {user}; nothing was done, try again"
            )
        self._waiting[user] += 1
        try:
            if before is not None:
                await asyncio.wait([before])
            await self._slots.acquire(user)
        finally:
            self._waiting -= Counter((user,))
        if self._stopping:
            self._slots.release()
            self._require_open()

    def _require_open(self) -> None:
        if self._stopping:
            raise Stopping("this node is stopping; nothing was done")

    def _ended(self, task: asyncio.Task[Reply]) -> None:
        self._running.discard(task)
        self._slots.release()

    def stop_waiting(self) -> None:
        """Accept no more tasks. Tasks that wait for a child or another writer fail with `Stopping`.

        All other tasks continue.
        """
        self._stopping = True
        for child in self._writing:
            child.stop_waiting()

    def close(self) -> None:
        """Disconnect all children. Tasks that only read are lost; others finish without a reply."""
        self.stop_waiting()
        for task in self._running:
            task.cancel()
        while self._idle:
            self._idle.pop().close()

    def statistics(self) -> ChildStatistics:
        """Return statistics about the children and tasks."""
        return ChildStatistics(
            len(self._running),
            self._waiting.total(),
            self._tasks,
            self._joined,
            self._children,
            self._turned_away,
            self._lost,
        )

    async def _do(
        self, fields: Fields, data: Data, shared_call: _SharedCall | None, *, only_reads: bool
    ) -> Reply:
        try:
            content = data if isinstance(data, Content) else await _copied(data)
        except OSError as shortage:
            raise Unavailable(
                f"{fields['name']} cannot be sent to a child process: {shortage.strerror}; nothing"
                " was done, try again"
            ) from shortage
        try:
            child = await self._sent(fields, content, shared_call, only_reads=only_reads)
        finally:
            content.close()
        self._tasks += 1
        if not child.only_reads:
            self._writing.add(child)
            if self._stopping:
                child.stop_waiting()
        try:
            reply = await child.reply(self._on_announced)
        except BaseException:
            child.close()
            raise
        finally:
            if not child.only_reads:
                self._writing.discard(child)
            if child.has_announced and not any(other.has_announced for other in self._writing):
                self._on_ended()
        if reply is None:
            child.close()
            self._lost += 1
            raise _lost(fields["name"], only_reads=only_reads)
        self._keep(child, ends=reply.fields["ends"])
        error = reply.fields.get("error")
        if self._is_outdated(child) and (only_reads or error is None):  # else nothing was changed
            reply.content.close()
            why = "began before a takeover, and may have used the former primary"
            raise _lost(fields["name"], why, only_reads=only_reads)
        if error is not None:
            reply.content.close()
            raise error_of(*error)
        return reply

    async def _sent(
        self, fields: Fields, content: Content, shared_call: _SharedCall | None, *, only_reads: bool
    ) -> _Child:
        """Send the task to an idle child that is still alive, else to a new child; returns it."""
        while True:
            idle = self._idle_child(only_reads=only_reads)
            child = idle or self._new_child(only_reads=only_reads)
            try:
                is_alive = await child.opens()
            except asyncio.CancelledError:
                self._keep(child, ends=False)
                raise
            if shared_call is not None:
                shared_call.is_open = False
            is_outdated = self._is_outdated(child)  # there may have been a takeover since it began
            with suppress(OSError):  # the child has ended in the meantime
                if is_alive and not is_outdated:
                    child.send(fields, content)
                    return child
            child.close()
            if idle is None and not is_outdated:
                self._lost += 1
                raise Unavailable(
                    f"a new child process ended before it began {fields['name']}; nothing was "
                    "done, try again"
                )

    def _idle_child(self, *, only_reads: bool) -> _Child | None:
        """Take an idle child, if possible an open one. Without any, end those beyond the limit."""
        for outdated in filter(self._is_outdated, self._idle.copy()):
            self._idle.remove(outdated)
            outdated.close()
        children = [child for child in self._idle if child.only_reads == only_reads]
        child = min(children, key=lambda child: not child.is_open, default=None)
        if child is not None:
            self._idle.remove(child)
            if child.closing is not None:
                child.closing.cancel()
            return child
        while self._idle and len(self._running) + len(self._idle) > self._max_children:
            self._idle.pop(0).close()
        return None

    def _new_child(self, *, only_reads: bool) -> _Child:
        self._children += 1
        timeline = self._timeline()  # first: the child may get a later one
        return _Child(self._start(only_reads=only_reads), timeline, only_reads=only_reads)

    def _is_outdated(self, child: _Child) -> bool:
        return child.timeline < self._timeline()

    def _keep(self, child: _Child, *, ends: bool) -> None:
        if ends or self._stopping:
            child.close()
        if self._stopping:
            return
        if ends:
            if not child.only_reads:
                return
            try:
                child = self._new_child(only_reads=True)
            except Unavailable:
                return  # the next task reports it
        self._idle.append(child)

        def close_idle() -> None:
            self._idle.remove(child)
            child.close()

        loop = asyncio.get_running_loop()
        child.closing = loop.call_later(self._idle_seconds, close_idle)


async def _result_of(task: asyncio.Task[Reply]) -> Reply:
    """The result of ``task``, which continues if the caller is cancelled.

    With `asyncio.shield`, a task that fails would keep the traceback of its error.
    """
    await asyncio.wait([task])
    return task.result()


def _settle(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def _lost(name: str, why: str = "has ended", *, only_reads: bool) -> StrandlineError:
    if only_reads:
        return Unavailable(f"the process that computed {name} {why}; try again")
    return UnknownOutcome(
        f"the process that carried out {name} {why}: it is not known whether the call took "
        "effect; check before you repeat it"
    )


async def _copied(data: bytes | memoryview) -> Content:
    """Return ``data`` as a `Content`. Copies it in pieces and yields to the loop between them."""
    content = Content()
    try:
        view = memoryview(data)
        for at in range(0, len(view), PIECE):
            content.write(view[at : at + PIECE])
            await asyncio.sleep(0)
    except BaseException:
        content.close()
        raise
    return content


def _close_content(task: asyncio.Task[Reply]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().content.close()
