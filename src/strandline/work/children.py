"""Child processes: what is long is computed outside the process of the node.

The problem: see `strandline.work`. The process that computes needs the store, and the catalog. It
must start quickly, and a fork of a process that has threads and open databases is not safe.

The model. Before a node opens anything, it forks a *fork server* (`ForkServer`), which has loaded
the program, opens nothing, and does nothing but fork again when it is asked for a *child*. A
child opens the store by itself, as another node on it would: its answers are as fresh as this
node's own, it judges users in the same way, and its writes are fenced. It has one task at a time.
`ChildPool` keeps the children of one event loop: a few in all, idle ones for a while. Where a task
needs a new child and there are enough, the one that has been idle longest ends. Tasks that find all
of them busy wait in order; where many wait, the next one is refused at once.

A task and its reply are one packet each: a small JSON object and the descriptor of a `Content`.
In between, a child may announce to the node what it is about to do, in a packet of the same form;
it goes on when the node has taken note of it.

What must stay true:

* A child ends when the node closes its connection, or dies. In the middle of a task it ends at
  once if the task only reads; else it finishes the task first.
* A child gives the memory of a task back after it. One that cannot give back most of it ends after
  its reply. It takes at most `MEMORY_BYTES`.
* A child that ends without a reply is reported as `Unavailable` for a task that reads, and as
  `UnknownOutcome` for one that changes something; the next task gets a new one.

Rejected: the process pools of the standard library (they start by importing everything again, move
answers as pickles through a thread of the node, and cannot end a child for one task).
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow

from strandline.errors import (
    LimitExceeded,
    Overloaded,
    Stopping,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
    error_of,
)
from strandline.work.contents import PIECE, Content

logger = logging.getLogger(__name__)

MAX_CHILDREN = max(2, os.cpu_count() or 1)
MAX_WAITING = 64
"""Tasks that wait for a child."""
IDLE_SECONDS = 30.0
"""How long a child without a task is kept."""
KEPT_BYTES = 32 << 20
"""Memory that a child may keep after its tasks without ending."""
READER_NICENESS = 10
"""By how much a child that only reads gives way to the node and to other clients' work."""
MEMORY_BYTES = 4 << 30
"""Memory that a child may take at most."""
_READER, _WRITER = b"reader", b"writer"
_NOTED = b"noted"
"""The node's answer to what was announced."""
_PACKET = 64 * 1024
_MESSAGE = 8 * 1024
"""Bytes of a packet, and characters of a message in it; each may take six bytes."""

Fields = Mapping[str, Any]  # JSON
Serve = Callable[[Fields, bytes], tuple[Fields, bytes]]
"""Answers a task: its fields and content, to those of the reply. May raise `StrandlineError`."""
Data = bytes | memoryview | Content
Announce = Callable[[bytes], None]
"""Tells the node of a child, and returns when it has taken note."""
OpenService = Callable[[Announce], AbstractContextManager[Serve]]


class StartChild(Protocol):
    """See `ForkServer.child`."""

    def __call__(self, *, only_reads: bool) -> socket.socket: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """What a child answered; close ``content``."""

    fields: Fields
    content: Content


# -- in a child -------------------------------------------------------------------------------


def serve_tasks(connection: socket.socket, open_service: OpenService) -> None:
    """Answer the tasks that come, one after the other, until the connection is closed."""

    def announce(data: bytes) -> None:
        with suppress(OSError), closing(Content.of(data)) as content:  # the task needs no answer
            _send(connection, {"announces": True}, content)
            connection.recv(len(_NOTED))

    with ExitStack() as opened:
        serve: Serve | None = None
        with suppress(Exception):  # the first task tries again, and reports it
            serve = opened.enter_context(open_service(announce))
        before = _memory_bytes()
        while (task := _receive(connection)) is not None:
            fields, content = task
            data = content.read()
            content.close()
            try:
                with _EndsEarly(connection, only_reads=fields["only_reads"]):
                    serve = serve or opened.enter_context(open_service(announce))
                    reply_fields, answer = serve(fields, data)
            except StrandlineError as error:
                reply_fields, answer = {"error": [error.code, error.message[:_MESSAGE]]}, b""
            except MemoryError:
                message = (
                    f"{fields.get('name')} needs more than the {MEMORY_BYTES >> 30} GiB of memory "
                    "that one call may take; ask for less at once"
                )
                reply_fields, answer = {"error": [LimitExceeded.code, message]}, b""
            except Exception:
                logger.exception("a child failed at %s", fields.get("name"))
                message = f"{fields.get('name')} failed inside; the log of the node says where"
                reply_fields, answer = {"error": [StrandlineError.code, message]}, b""
            del data
            reply = Content.of(answer)
            del answer
            _give_memory_back()
            ends = _memory_bytes() - before > KEPT_BYTES
            with suppress(BrokenPipeError):  # the node has ended
                _send(connection, {**reply_fields, "ends": ends}, reply)
            reply.close()
            if ends:
                return


class _EndsEarly:
    """Ends this process when its connection is closed during the block, if the task only reads."""

    def __init__(self, connection: socket.socket, *, only_reads: bool) -> None:
        self._connection = connection
        self._only_reads = only_reads
        self._done, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP | select.POLLHUP)
        poll.register(self._done, select.POLLIN)
        if all(descriptor != self._done for descriptor, _ in poll.poll()):
            os._exit(0)

    def __enter__(self) -> None:
        if self._only_reads:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.close(self._wake)
        if self._only_reads:
            self._thread.join()
        os.close(self._done)


def _give_memory_back() -> None:
    """Return to the system what the allocators of C and Arrow keep for later."""
    for pool in (pyarrow.default_memory_pool(), pyarrow.system_memory_pool()):
        pool.release_unused()


def _memory_bytes() -> int:
    """What this process has of the memory; where the system does not say, what it had at most."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _send(connection: socket.socket, fields: Fields, content: Content) -> None:
    packet = json.dumps(fields).encode()
    socket.send_fds(connection, [packet], [content.fileno()])


def _receive(connection: socket.socket) -> tuple[Fields, Content] | None:
    """The next packet; None where the other end was closed."""
    packet, descriptors, _, _ = socket.recv_fds(connection, _PACKET, 1)
    if not packet:
        return None
    return json.loads(packet), Content(descriptors[0])


# -- the fork server ---------------------------------------------------------------------------


class ForkServer:
    """A process that forks children; see the module. Close it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    @classmethod
    def start(cls, open_service: OpenService) -> ForkServer:
        """Fork it. The process must have one thread, and nothing open that a child may not share.

        A child opens what it needs with ``open_service``.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            with _ThenExits():
                ours.close()
                _fork_children(theirs, open_service)
        theirs.close()
        return cls(ours)

    def child(self, *, only_reads: bool) -> socket.socket:
        """The connection to a new child, which opens the store at once."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._control, [_READER if only_reads else _WRITER], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise Unavailable(
                f"the process that starts children has ended ({error.strerror}); restart the node"
            ) from error
        finally:
            theirs.close()
        return ours

    def close(self) -> None:
        """End it; the children end when their own connections are closed."""
        self._control.close()


class _ThenExits:
    """The process ends with the block, whatever happens in it, and runs nothing of its parent's."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            logger.error("a child process failed", exc_info=error)
        logging.shutdown()
        os._exit(0 if error is None else 1)


def _fork_children(control: socket.socket, open_service: OpenService) -> None:
    # A signal to the group of the node is for the node, which closes its connections when it ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # how a child ended is not asked
    gc.collect()
    gc.freeze()  # else a child's first look for garbage would copy every page
    while True:
        packet, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not packet:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                with _ThenExits():
                    control.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    if packet == _READER:  # another one may hold a lock that others wait for
                        os.nice(READER_NICENESS)
                    gc.disable()  # it ends before garbage matters
                    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
                    serve_tasks(connection, open_service)


# -- in the node -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChildStatistics:
    """``running`` and ``waiting`` tasks now; the others are counts since the start."""

    running: int
    waiting: int
    tasks: int
    children: int
    turned_away: int
    lost: int


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
        _send(self._connection, fields, content)

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
                self._connection.send(_NOTED)
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
            return _receive(self._connection)
        except OSError:
            return None

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
        self._running: set[asyncio.Task[Reply]] = set()
        self._closed = False
        self._tasks = self._children = self._turned_away = self._lost = 0

    async def run(self, name: str, fields: Fields, data: Data, *, only_reads: bool) -> Reply:
        """Have a child do a task. Raises what it raised, `Overloaded`, `Unavailable`, `Stopping`.

        A `Content` is closed. Where the caller is cancelled, a task that only reads is given up;
        another one goes on.
        """
        try:
            await self._admitted()
        except BaseException:
            if isinstance(data, Content):
                data.close()
            raise
        task = asyncio.get_running_loop().create_task(
            self._do({**fields, "name": name, "only_reads": only_reads}, data), name=name
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

    async def _admitted(self) -> None:
        """Wait in order for a place among those whose tasks run."""
        self._require_open()
        if self._waiting >= self._max_waiting:
            self._turned_away += 1
            raise Overloaded(
                f"this node already has {len(self._running)} large requests in work and "
                f"{self._waiting} that wait; nothing was done, try again"
            )
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        if self._closed:
            self._places.release()
            self._require_open()

    def _require_open(self) -> None:
        if self._closed:
            raise Stopping("this node is stopping; nothing was done")

    def _ended(self, task: asyncio.Task[Reply]) -> None:
        self._running.discard(task)
        self._places.release()

    def close(self) -> None:
        """End the children: tasks that read are lost, others go on to their end unheard."""
        self._closed = True
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
            self._children,
            self._turned_away,
            self._lost,
        )

    async def _do(self, fields: Fields, data: Data) -> Reply:
        content = data if isinstance(data, Content) else await _copied(data)
        try:
            child = self._assign(fields, content)
        finally:
            content.close()
        self._tasks += 1
        try:
            reply = await child.reply(self._on_announced)
        except BaseException:
            child.close()
            raise
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
        if ends or self._closed:
            child.close()
        if self._closed:
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
