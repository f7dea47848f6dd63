"""Children of a pool that are threads of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from strandline.errors import NotFound, Stopping
from strandline.work import children as child_processes
from strandline.work.child_pool import ChildPool
from strandline.work.children import Fields, serve_tasks
from tests.work.open_contents import open_contents

WAIT = 60.0


class Children:
    """Starts children in threads, which open the store once ``opens`` is set.

    A child echoes its task, unless the name of the task is special:
    "wait" is answered once ``go`` is set; "end" closes the connection without a reply; "bare" sends
    a packet without a descriptor; "announce" and "announce and end" announce their data first,
    and "announce when told to" does so once ``go`` is set; "missing", "greedy" and "fails" raise
    errors.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.opens = threading.Event()
        self.opens.set()
        self.opened = 0
        self.refuses = False
        self.kinds: list[bool] = []
        self.failures: list[Exception] = []
        self._threads: list[threading.Thread] = []

    def start(self, *, only_reads: bool) -> socket.socket:
        self.kinds.append(only_reads)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def run() -> None:
            with theirs:
                serve_tasks(
                    theirs,
                    lambda announce, _: self._open(theirs, announce),
                    only_reads=only_reads,
                )

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)
        return ours

    @contextmanager
    def _open(
        self, connection: socket.socket, announce: child_processes.Announce
    ) -> Iterator[child_processes.Service]:
        self.opened += 1
        assert self.opens.wait(WAIT)
        if self.failures:
            raise self.failures.pop()

        def serve(fields: Fields, data: bytes) -> tuple[Fields, bytes]:
            self.begun.release()
            match fields["name"]:
                case "wait":
                    assert self.go.wait(WAIT)
                    if self.refuses:
                        raise Stopping("nothing was done")
                case "end" | "announce and end" as name:
                    if name != "end":
                        announce(data)
                    connection.shutdown(socket.SHUT_RDWR)
                case "bare":
                    connection.send(b"{}")
                case "announce":
                    announce(data)
                case "announce when told to":
                    assert self.go.wait(WAIT)
                    announce(data)
                case "missing":
                    raise NotFound(f"it is not there{data.decode()}")
                case "greedy":
                    raise MemoryError
                case "fails":
                    raise ZeroDivisionError("secret")
            return {"echo": fields.get("word")}, data

        yield child_processes.Service(serve, self._stop_waiting)

    def _stop_waiting(self) -> None:
        self.refuses = True
        self.go.set()

    def join(self) -> None:
        self.go.set()
        self.opens.set()
        for thread in self._threads:
            thread.join(WAIT)
            assert not thread.is_alive()


@asynccontextmanager
async def running_pool(**limits: Any) -> AsyncIterator[tuple[ChildPool, Children]]:
    """A pool, which is closed at the end of the block.

    Then all children must have ended, no question may be remembered, and no content may be open
    that was not before.
    """
    children, before = Children(), open_contents()
    pool = ChildPool(children.start, **limits)
    try:
        async with asyncio.timeout(WAIT):
            yield pool, children
            while pool._shared_calls:
                await asyncio.sleep(0)
    finally:
        pool.close()
        while pool.statistics().running:
            await asyncio.sleep(0)
        children.join()
    assert not pool._writing
    assert open_contents() <= before


async def ask(
    pool: ChildPool, name: str, data: Any = b"", *, only_reads: bool = False, **fields: Any
) -> bytes:
    reply = await pool.run(name, fields, data, only_reads=only_reads)
    try:
        return reply.content.read()
    finally:
        reply.content.close()


async def begun(children: Children) -> None:
    await asyncio.to_thread(children.begun.acquire, timeout=WAIT)
