"""Child processes: what is long is computed outside the process of the node.

The problem: see `strandline.work`. The process that computes needs the store, and the catalog. It
must start quickly, and a fork of a process that has threads and open databases is not safe.

The model. Before a node opens anything, it forks a *fork server* (`ForkServer`), which has loaded
the program, opens nothing, and does nothing but fork again when it is asked for a *child*. A
child opens the store by itself, as another node on it would: its answers are as fresh as this
node's own, it judges users in the same way, and its writes are fenced. It has one task at a time.
The node gives tasks to its children by `strandline.work.child_pool`.

A task and its reply are one packet each: a small JSON object and the descriptor of a `Content`.
In between, a child may announce to the node what it is about to do, in a packet of the same form;
it goes on when the node has taken note of it.

What must stay true:

* A child ends when the node closes its connection, or dies. In the middle of a task it ends at
  once if the task only reads; else it finishes the task first, but waits for no other writer.
* A child gives the memory of a task back after it. One that cannot give back most of it ends after
  its reply. It takes at most `MEMORY_BYTES`.

Rejected: the process pools of the standard library (they start by importing everything again, move
answers as pickles through a thread of the node, and cannot end a child for one task).
"""

from __future__ import annotations

import ctypes
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
from typing import Any

import pyarrow

from strandline.errors import (
    LimitExceeded,
    StrandlineError,
    Unavailable,
)
from strandline.work.contents import Content

logger = logging.getLogger(__name__)

KEPT_BYTES = 16 << 20
"""Memory that a child may keep after its tasks without ending."""
READER_NICENESS = 10
"""By how much a child that only reads gives way to the node."""
SESSION_NICENESS = 5
"""By how much all of them together give way to other sessions: also to many busy ones."""
_AUTOGROUP = Path("/proc/self/autogroup")
MEMORY_BYTES = 4 << 30
"""Memory that a child may take at most."""
_READER, _WRITER = b"reader", b"writer"
NOTED = b"noted"
"""The node's answer to what was announced."""
_PACKET = 64 * 1024
_MESSAGE = 8 * 1024
"""Bytes of a packet, and characters of a message in it; each may take six bytes."""

Fields = Mapping[str, Any]  # JSON
Answering = Callable[[Fields, bytes], tuple[Fields, bytes]]
"""Answers a task: its fields and content, to those of the reply. May raise `StrandlineError`."""
Announce = Callable[[bytes], None]
"""Tells the node of a child, and returns when it has taken note."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a child does: ``answer`` is called for each task.

    ``stop_waiting``, called in another thread, has it refuse what waits for another writer.
    """

    answer: Answering
    stop_waiting: Callable[[], None]


OpenService = Callable[[Announce], AbstractContextManager[Service]]


# -- in a child -------------------------------------------------------------------------------


def serve_tasks(connection: socket.socket, open_service: OpenService) -> None:
    """Answer the tasks that come, one after the other, until the connection is closed."""

    def announce(data: bytes) -> None:
        with suppress(OSError), closing(Content.of(data)) as content:  # the task needs no answer
            send_packet(connection, {"announces": True}, content)
            connection.recv(len(NOTED))

    with ExitStack() as opened:
        service: Service | None = None
        with suppress(Exception):  # the first task tries again, and reports it
            service = opened.enter_context(open_service(announce))
        before = _memory_bytes()
        while (task := receive_packet(connection)) is not None:
            fields, content = task
            data = content.read()
            content.close()
            try:
                service = service or opened.enter_context(open_service(announce))
                only_reads = fields["only_reads"]
                with _Watched(connection, _exit if only_reads else service.stop_waiting):
                    reply_fields, answer = service.answer(fields, data)
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
                send_packet(connection, {**reply_fields, "ends": ends}, reply)
            reply.close()
            if ends:
                return


class _Watched:
    """Watches the connection during the block: if the node sends no more, ``leave`` is called."""

    def __init__(self, connection: socket.socket, leave: Callable[[], None]) -> None:
        self._connection = connection
        self._leave = leave
        self._done, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP | select.POLLHUP)
        poll.register(self._done, select.POLLIN)
        if all(descriptor != self._done for descriptor, _ in poll.poll()):
            self._leave()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.close(self._wake)
        self._thread.join()
        os.close(self._done)


def _exit() -> None:
    os._exit(0)


def _give_memory_back() -> None:
    """Return to the system what the allocators of C and Arrow keep for later."""
    pyarrow.default_memory_pool().release_unused()
    with suppress(AttributeError):  # only glibc has this function, and needs it
        ctypes.CDLL(None).malloc_trim(0)


def _memory_bytes() -> int:
    """What this process has of the memory; where the system does not say, what it had at most."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def send_packet(connection: socket.socket, fields: Fields, content: Content) -> None:
    """Send a task, a reply, or what is announced."""
    packet = json.dumps(fields).encode()
    socket.send_fds(connection, [packet], [content.fileno()])


def receive_packet(connection: socket.socket) -> tuple[Fields, Content] | None:
    """The next packet; None where the other end was closed, also if it left packets unread."""
    try:
        packet, descriptors, _, _ = socket.recv_fds(connection, _PACKET, 1)
    except ConnectionResetError:
        return None
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


def _begin_nice_session() -> None:
    """Begin a session in which readers give way to all that runs on this machine.

    Where Linux weighs sessions against each other, niceness counts only within one: a reader in the
    session of the node would keep a client of another session waiting for four milliseconds.
    """
    os.setsid()
    with suppress(OSError):  # the system does not weigh sessions
        _AUTOGROUP.write_text(str(SESSION_NICENESS))


def _fork_children(control: socket.socket, open_service: OpenService) -> None:
    # A signal to the group of the node is for the node, which closes its connections when it ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # how a child ended is not asked
    _begin_nice_session()
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
                    if packet == _READER:
                        os.nice(READER_NICENESS)
                    else:  # it may hold a lock that others wait for, and gives way to none
                        os.setsid()
                    gc.disable()  # it ends before garbage matters
                    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
                    serve_tasks(connection, open_service)
