"""The children of one event loop, and the tasks that they are given.

A pool keeps a few children in all, idle ones for a while. Where a task needs a new child and there
are enough, the one that has been idle longest ends. Tasks that find all of them busy wait in order;
where many wait, the next one is refused at once. Callers who ask the same thing while it waits get
the reply of one task: many readers begin with the files of the same snapshot. A task waits for the
one before it that asks the same, so that one question of many keeps one child busy and not all.

What must stay true: a child that ends without a reply is reported as `Unavailable` for a task that
reads, and as `UnknownOutcome` for one that changes something; the next task gets a new one. A reply
is never older than its question: nobody joins a task that a child has begun.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
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
"""Tasks that wait for a child."""
IDLE_SECONDS = 30.0
"""How long a child without a task is kept."""

Data = bytes | memoryview | Content


class StartChild(Protocol):
    """See `strandline.work.children.ForkServer.child`."""

    def __call__(self, *, only_reads: bool) -> socket.socket: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """What a child answered; close ``content``."""

    fields: Fields
    content: Content

    def copy(self) -> Reply:
        """The same bytes, to be closed apart from these."""
        return Reply(self.fields, Content(os.dup(self.content.fileno())))


@dataclass(frozen=True, slots=True)
class ChildStatistics:
    """``running`` and ``waiting`` tasks now; the others are counts since the start.

    ``joined`` counts the callers who got the reply of a task that another caller had asked for.
    """

    running: int
    waiting: int
    tasks: int
    joined: int
    children: int
    turned_away: int
    lost: int


class _Asked:
    """A question that only reads, and how many callers wait for the reply to it.

    ``is_open``: others may join, since no child has begun with it. Set ``task`` before `reply`.
    """

    task: asyncio.Task[Reply]

    def __init__(self) -> None:
        self.is_open = True
        self._callers = 0

    async def reply(self) -> Reply:
        """The reply, with a content of its own for each caller; without callers it is given up."""
        self._callers += 1
        try:
            reply = await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self._callers == 1:
                self.is_open = False
                self.task.cancel()
                self.task.add_done_callback(_close_content)
            raise
        finally:
            self._callers -= 1
        return reply if not self._callers else reply.copy()


class _Child:
    """The connection to a child."""

    def __init__(self, connection: socket.socket, *, only_reads: bool) -> None:
        connection.setblocking(False)
        self._connection = connection
        self.only_reads = only_reads
        self.closing: asyncio.TimerHandle | None = None

    def send(self, fields: Fields, content: Content) -> None:
        if self.closing is not None:
            self.closing.cancel()
        send_packet(self._connection, fields, content)

    async def reply(self, on_announced: Announce) -> Reply | None:
        """The reply to the task that was sent; None where the child ended instead."""
        while (packet := await self._packet()) is not None:
            fields, content = packet
            if "announces" not in fields:
                return Reply(fields, content)
            try:
                await asyncio.to_thread(lambda announced: on_announced(announced.read()), content)
            except Exception:
                logger.warning("what a child announced was not noted", exc_info=True)
            finally:
                content.close()
            with suppress(OSError):  # it has ended, which the next packet tells
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
        except OSError:
            return None

    def stop_waiting(self) -> None:
        """Send no more: the child refuses to wait for another writer, and ends after its task."""
        with suppress(OSError):  # it has ended
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self.closing is not None:
            self.closing.cancel()
        self._connection.close()


class ChildPool:
    """The children of one event loop; its methods are for that loop. Close it.

    ``start`` gives the connection to a new child (`ForkServer.child`). A child that only
    reads and ends because of its memory is followed by a new one, which opens the store while
    nothing waits for it: large reads come in a row, large writes are rare.
    ``on_announced`` is called, in a thread, with what a child announces.
    """

    def __init__(
        self,
        start: StartChild,
        *,
        on_announced: Announce = lambda data: None,
        max_children: int = MAX_CHILDREN,
        max_waiting: int = MAX_WAITING,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._start = start
        self._on_announced = on_announced
        self._max_children = max_children
        self._places = asyncio.Semaphore(max_children)
        self._max_waiting = max_waiting
        self._idle_seconds = idle_seconds
        self._idle: list[_Child] = []
        self._waiting = 0
        self._asked: dict[Hashable, _Asked] = {}
        self._running: set[asyncio.Task[Reply]] = set()
        self._writing: set[_Child] = set()
        self._stopping = False
        self._tasks = self._joined = self._children = self._turned_away = self._lost = 0

    async def run(self, name: str, fields: Fields, data: Data, *, only_reads: bool) -> Reply:
        """Have a child do a task. Raises what it raised, `Overloaded`, `Unavailable`, `Stopping`.

        A `Content` is closed. Where the caller is cancelled, a task that only reads is given up;
        another one goes on.
        """
        if not only_reads or isinstance(data, Content) or len(data) > PIECE:
            return await self._run(name, fields, data, only_reads=only_reads)
        question = (name, *sorted(fields.items()), bytes(data))
        asked = self._asked.get(question)
        if asked is not None and asked.is_open:
            self._joined += 1
            return await asked.reply()
        before = None if asked is None else asked.task
        asked = self._asked[question] = _Asked()
        task = asyncio.get_running_loop().create_task(
            self._run(name, fields, data, only_reads=True, asked=asked, before=before), name=name
        )
        task.add_done_callback(lambda _: self._forget(question, asked))
        asked.task = task
        return await asked.reply()

    def _forget(self, question: Hashable, asked: _Asked) -> None:
        if self._asked.get(question) is asked:
            del self._asked[question]

    async def _run(
        self,
        name: str,
        fields: Fields,
        data: Data,
        *,
        only_reads: bool,
        asked: _Asked | None = None,
        before: asyncio.Task[Reply] | None = None,
    ) -> Reply:
        try:
            await self._admitted(before)
        except BaseException:
            if isinstance(data, Content):
                data.close()
            raise
        task = asyncio.get_running_loop().create_task(
            self._do({**fields, "name": name, "only_reads": only_reads}, data, asked), name=name
        )
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if only_reads:
                task.cancel()
            task.add_done_callback(_close_content)
            raise

    async def _admitted(self, before: asyncio.Task[Reply] | None) -> None:
        """Wait for the task ``before``, then in order for a place among those whose tasks run."""
        self._require_open()
        if self._waiting >= self._max_waiting:
            self._turned_away += 1
            raise Overloaded(
                f"this node already has {len(self._running)} large requests in work and "
                f"{self._waiting} that wait; nothing was done, try again"
            )
        self._waiting += 1
        try:
            if before is not None:
                await asyncio.wait([before])
            await self._places.acquire()
        finally:
            self._waiting -= 1
        if self._stopping:
            self._places.release()
            self._require_open()

    def _require_open(self) -> None:
        if self._stopping:
            raise Stopping("this node is stopping; nothing was done")

    def _ended(self, task: asyncio.Task[Reply]) -> None:
        self._running.discard(task)
        self._places.release()

    def stop_waiting(self) -> None:
        """Take no more tasks; those that wait for a child or another writer get `Stopping`.

        All others go on.
        """
        self._stopping = True
        for child in self._writing:
            child.stop_waiting()

    def close(self) -> None:
        """End the children: tasks that read are lost, others go on to their end unheard."""
        self.stop_waiting()
        for task in self._running:
            task.cancel()
        while self._idle:
            self._idle.pop().close()

    def statistics(self) -> ChildStatistics:
        """How the children were used."""
        return ChildStatistics(
            len(self._running),
            self._waiting,
            self._tasks,
            self._joined,
            self._children,
            self._turned_away,
            self._lost,
        )

    async def _do(self, fields: Fields, data: Data, asked: _Asked | None) -> Reply:
        content = data if isinstance(data, Content) else await _copied(data)
        if asked is not None:
            asked.is_open = False
        try:
            child = self._assign(fields, content)
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
            self._writing.discard(child)
        if reply is None:
            child.close()
            self._lost += 1
            raise _lost(fields)
        self._keep(child, ends=reply.fields["ends"])
        error = reply.fields.get("error")
        if error is not None:
            reply.content.close()
            raise error_of(*error)
        return reply

    def _assign(self, fields: Fields, content: Content) -> _Child:
        """Send the task to a child, to an idle one if there is one that lives."""
        only_reads: bool = fields["only_reads"]
        for child in [child for child in self._idle if child.only_reads == only_reads]:
            self._idle.remove(child)
            try:
                child.send(fields, content)
            except OSError:  # it has ended meanwhile
                child.close()
            else:
                return child
        while self._idle and len(self._running) + len(self._idle) > self._max_children:
            self._idle.pop(0).close()
        child = self._new_child(only_reads=only_reads)
        try:
            child.send(fields, content)
        except OSError as error:
            child.close()
            raise Unavailable(f"a new child process cannot be reached: {error}") from error
        return child

    def _new_child(self, *, only_reads: bool) -> _Child:
        self._children += 1
        return _Child(self._start(only_reads=only_reads), only_reads=only_reads)

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

        def let_go() -> None:
            self._idle.remove(child)
            child.close()

        loop = asyncio.get_running_loop()
        child.closing = loop.call_later(self._idle_seconds, let_go)


def _settle(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def _lost(fields: Fields) -> StrandlineError:
    name = fields["name"]
    if fields["only_reads"]:
        return Unavailable(f"the process that computed {name} has ended; try again")
    return UnknownOutcome(
        f"the process that carried out {name} has ended: whether it was done, is not known; look "
        "before you repeat it"
    )


async def _copied(data: bytes | memoryview) -> Content:
    """``data`` as a `Content`, copied in pieces between which the loop turns."""
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
