"""Child processes: large requests are processed outside the process of the node.

The problem: see `strandline.work`. The child needs the store and the catalog, and it must start
quickly. But forking a process that has threads and open databases is not safe.

The model: before a node opens anything, it forks a *fork server* (`ForkServer`). The fork server
has loaded the program, opens nothing, and only forks a *child* on request. A child opens the store
by itself, as another node would: its answers are as fresh as this node's, it checks privileges in
the same way, and its writes are fenced. The node says which store that is (`ServedStore`), since
the address may lead elsewhere by then. A child runs one task at a time. The node sends tasks to its
children through `strandline.work.child_pool`.

A task and its reply are one packet each: a small JSON object and the descriptor of a `Content`.
A child begins with a packet of the same form, which says that it has opened the store. During a
task, it may announce to the node what it is about to do, in another one, and continues after the
node has noted it.

What must stay true:

* A child ends when the node closes the connection or dies. A child that only reads ends
  immediately, also while it opens the store: the node counts it no longer. A child that writes
  finishes its task first, but waits for no other writer.
* A child returns the memory of a task to the system after the task. If it cannot return most of it,
  it ends after its reply. It uses at most `MEMORY_BYTES`.

Rejected: the process pools of the standard library (they import everything again at start, pass
answers as pickles through a thread of the node, and cannot end the child of a single task).
"""

from __future__ import annotations

import ctypes
import errno
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

from strandline.errors import LimitExceeded, StrandlineError, Unavailable
from strandline.work.contents import Content
from strandline.work.served_store import ServedStore

logger = logging.getLogger(__name__)

KEPT_BYTES = 16 << 20
"""Memory that a child may keep after its tasks without ending."""
READER_NICENESS = 10
"""The niceness of a child that only reads, so that the node has priority over it."""
SESSION_NICENESS = 5
"""The niceness of the session of all these children, so that other sessions have priority."""
_AUTOGROUP = Path("/proc/self/autogroup")
MEMORY_BYTES = 4 << 30
"""The maximum memory of a child, if the system does not allow less."""
NOTED = b"noted"
"""The node's answer to an announcement."""
_PACKET = 64 * 1024
"""The maximum bytes of a packet: more than an error takes, with twelve for each character."""

Fields = Mapping[str, Any]  # JSON
Answering = Callable[[Fields, bytes], tuple[Fields, bytes | Content]]
"""Maps a task's fields and content to those of the reply. May raise `StrandlineError`."""
Announce = Callable[[bytes], None]
"""Announces data to the node of a child. Returns when the node has noted it."""


@dataclass(frozen=True, slots=True)
class Service:
    """The work of a child: ``answer`` is called for each task.

    ``stop_waiting`` is called in another thread. After that, the service refuses to wait for
    another writer.
    """

    answer: Answering
    stop_waiting: Callable[[], None]


OpenService = Callable[[Announce, ServedStore | None], AbstractContextManager[Service]]
"""Opens the store, which must be the one that is served, for a child."""


# -- in a child -------------------------------------------------------------------------------


def serve_tasks(
    connection: socket.socket,
    open_service: OpenService,
    served: ServedStore | None = None,
    *,
    only_reads: bool,
) -> None:
    """Answer tasks one after the other until the connection is closed or too much memory stays."""

    def announce(data: bytes) -> None:
        with suppress(OSError), closing(Content.of(data)) as content:  # the task continues anyway
            send_packet(connection, {"announces": True}, content)
            connection.recv(len(NOTED))

    def opened() -> Service:
        with ExitStack() as watched:
            if only_reads:
                watched.enter_context(_Watched(connection, _exit))
            return stack.enter_context(open_service(announce, served))

    with ExitStack() as stack:
        service: Service | None = None
        with suppress(Exception):  # the first task tries again and reports the error
            service = opened()
        with suppress(BrokenPipeError), closing(Content()) as nothing:  # the node has ended
            send_packet(connection, {"opened": True}, nothing)
        before = _memory_bytes()
        while (task := receive_packet(connection)) is not None:
            fields, content = task
            data = content.read()
            content.close()
            try:
                service = service or opened()
                with _Watched(connection, _exit if only_reads else service.stop_waiting):
                    reply_fields, answer = service.answer(fields, data)
            except StrandlineError as error:
                reply_fields, answer = {"error": [error.code, error.message]}, b""
            except MemoryError:
                message = (
                    f"{fields.get('name')} needs more than the {_memory_limit() / (1 << 30):.3g} "
                    "GiB of memory that one call may use; request less at once"
                )
                reply_fields, answer = {"error": [LimitExceeded.code, message]}, b""
            except Exception:
                logger.exception("a child process failed while it answered %s", fields.get("name"))
                message = (
                    f"{fields.get('name')} failed with an internal error; see the log of the node"
                )
                reply_fields, answer = {"error": [StrandlineError.code, message]}, b""
            del data
            reply = answer if isinstance(answer, Content) else Content.of(answer)
            del answer
            _give_memory_back()
            ends = _memory_bytes() - before > KEPT_BYTES
            with suppress(BrokenPipeError):  # the node has ended
                send_packet(connection, {**reply_fields, "ends": ends}, reply)
            reply.close()
            if ends:
                return


class _Watched:
    """Watches the connection during the block. Calls ``leave`` if the node closes its side."""

    def __init__(self, connection: socket.socket, leave: Callable[[], None]) -> None:
        self._connection = connection
        self._leave = leave
        self._end, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP | select.POLLHUP)
        poll.register(self._end, select.POLLIN)
        if all(descriptor != self._end for descriptor, _ in poll.poll()):
            self._leave()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.close(self._wake)
        self._thread.join()
        os.close(self._end)


def _exit() -> None:
    os._exit(0)


def _give_memory_back() -> None:
    """Return the unused memory of the C and Arrow allocators to the system."""
    pyarrow.default_memory_pool().release_unused()
    with suppress(AttributeError):  # only glibc has and needs this function
        ctypes.CDLL(None).malloc_trim(0)


def _memory_limit() -> int:
    """`MEMORY_BYTES`, or a lower limit of the system, which only root could raise."""
    _, limit = resource.getrlimit(resource.RLIMIT_DATA)
    return MEMORY_BYTES if limit == resource.RLIM_INFINITY else min(limit, MEMORY_BYTES)


def _memory_bytes() -> int:
    """Return the resident memory of this process, or its maximum if the system has no ``/proc``."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def send_packet(connection: socket.socket, fields: Fields, content: Content) -> None:
    """Send a task, a reply or an announcement."""
    packet = json.dumps(fields).encode()
    socket.send_fds(connection, [packet], [content.fileno()])


def receive_packet(connection: socket.socket) -> tuple[Fields, Content] | None:
    """Return the next packet, or None if the peer closed the connection.

    A peer that closes with unread packets also gives None. Raises `OSError` for a packet whose
    descriptor did not fit into this process.
    """
    try:
        packet, descriptors, _, _ = socket.recv_fds(connection, _PACKET, 1)
    except ConnectionResetError:
        return None
    if not packet:
        return None
    if not descriptors:  # the system drops it without an error
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return json.loads(packet), Content(descriptors[0])


# -- the fork server ---------------------------------------------------------------------------


class ForkServer:
    """The connection to the process that forks children; see the module. Close it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    @classmethod
    def start(cls, open_service: OpenService) -> ForkServer:
        """Fork the fork server. A child calls ``open_service`` to open what it needs.

        This process must have a single thread, and nothing open that a child must not share.
        Raises `Unavailable` if the system lets it start no process.
        """
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            is_child = os.fork() == 0
        except OSError as error:
            parent_end.close()
            child_end.close()
            raise Unavailable(
                f"the system lets this node start no process ({error.strerror}); raise its limits "
                "of memory and of processes (TasksMax in systemd, the pids limit of a container)"
            ) from error
        if is_child:
            with _ThenExits():
                parent_end.close()
                _fork_children(child_end, open_service)
        child_end.close()
        return cls(parent_end)

    def child(self, served: ServedStore | None = None, *, only_reads: bool) -> socket.socket:
        """Return the connection to a new child, which opens the store immediately.

        With ``served``, it must be that store.

        Raises `Unavailable` if the fork server has ended, or this process can open no more files.
        """
        try:
            parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise Unavailable(f"a child process cannot be started: {error.strerror}") from error
        try:
            packet = json.dumps([only_reads, served]).encode()
            socket.send_fds(self._control, [packet], [child_end.fileno()])
        except OSError as error:
            parent_end.close()
            raise Unavailable("the process that starts children has ended; try again") from error
        finally:
            child_end.close()
        return parent_end

    def fileno(self) -> int:
        """The descriptor that becomes readable when the fork server ends."""
        return self._control.fileno()

    def close(self) -> None:
        """End the fork server. Children end when their own connections are closed."""
        self._control.close()


class _ThenExits:
    """Ends the process after the block, even on an error, without running the parent's code."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            logger.error("a child process failed", exc_info=error)
        logging.shutdown()
        os._exit(0 if error is None else 1)


def _begin_nice_session() -> None:
    """Begin a session whose processes have lower priority than all other sessions.

    If Linux schedules by session (autogroup), niceness only counts within a session. A reader in
    the session of the node would then delay a client in another session by four milliseconds.
    """
    os.setsid()
    with suppress(OSError):  # the system has no autogroups
        _AUTOGROUP.write_text(str(SESSION_NICENESS))


def _fork_children(control: socket.socket, open_service: OpenService) -> None:
    # Signals to the node's process group are for the node; it closes its connections when it ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the exit status
    _begin_nice_session()
    gc.collect()
    gc.freeze()  # otherwise a child's first garbage collection would copy every page
    while True:
        packet, descriptors, _, _ = socket.recv_fds(control, _PACKET, 1)
        if not packet:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            try:
                is_child = os.fork() == 0
            except OSError as error:  # too many processes or too little memory: the task is lost
                logger.error("a child process could not be started: %s", error.strerror)
                continue
            if is_child:
                with _ThenExits():
                    control.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    only_reads, store = json.loads(packet)
                    served = None if store is None else ServedStore(*store)
                    if only_reads:
                        os.nice(READER_NICENESS)
                    else:  # a writer may hold a lock that others wait for: normal priority
                        os.setsid()
                    gc.disable()  # the child ends before garbage matters
                    limit = _memory_limit()
                    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
                    serve_tasks(connection, open_service, served, only_reads=only_reads)
