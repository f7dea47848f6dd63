"""Child processes: tasks, replies, and the loss of either end of the connection.

In most tests a child is a thread at the other end of the connection; only tests about processes
start real ones.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import (
    LimitExceeded,
    NotFound,
    Overloaded,
    Stopping,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
)
from strandline.work import children as child_processes
from strandline.work import contents
from strandline.work.child_pool import ChildPool
from strandline.work.children import Fields, receive_packet, send_packet, serve_tasks
from strandline.work.contents import Content
from tests.work.open_contents import open_contents

WAIT = 60.0


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread closes large contents later, as `run` counts what is open, or ends all tests."""
    monkeypatch.setattr(contents, "FREED_AT_ONCE", 1 << 40)
    monkeypatch.setattr(os, "_exit", lambda status: None)


class Children:
    """Starts children in threads. A child echoes its task, unless the name of the task is special:

    "wait" is answered once ``go`` is set; "end" closes the connection without a reply; "bare" sends
    a packet without a descriptor; "announce" announces its data first, and "announce when told to"
    does so once ``go`` is set; "missing", "greedy" and "fails" raise errors.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
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
                serve_tasks(theirs, lambda announce: self._open(theirs, announce))

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)
        return ours

    @contextmanager
    def _open(
        self, connection: socket.socket, announce: child_processes.Announce
    ) -> Iterator[child_processes.Service]:
        self.opened += 1
        if self.failures:
            raise self.failures.pop()

        def serve(fields: Fields, data: bytes) -> tuple[Fields, bytes]:
            self.begun.release()
            match fields["name"]:
                case "wait":
                    assert self.go.wait(WAIT)
                    if self.refuses:
                        raise Stopping("nothing was done")
                case "end":
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
        for thread in self._threads:
            thread.join(WAIT)
            assert not thread.is_alive()


def run(body: Callable[[ChildPool, Children], Awaitable[Any]], **limits: Any) -> Children:
    """Run ``body`` with a pool and close the pool.

    After that, all children must have ended, no question may be remembered, and no content may be
    open that was not before.
    """

    async def main() -> None:
        pool = ChildPool(children.start, **limits)
        try:
            async with asyncio.timeout(WAIT):
                await body(pool, children)
                while pool._shared_calls:
                    await asyncio.sleep(0)
        finally:
            pool.close()
            while pool.statistics().running:
                await asyncio.sleep(0)
        assert not pool._writing

    children, before = Children(), open_contents()
    try:
        asyncio.run(main())
    finally:
        children.join()
    assert open_contents() <= before
    return children


async def ask(
    pool: ChildPool, name: str, data: Any = b"", *, only_reads: bool = False, **fields: Any
) -> bytes:
    reply = await pool.run(name, fields, data, only_reads=only_reads)
    try:
        return reply.content.read()
    finally:
        reply.content.close()


@contextmanager
def every_descriptor_taken() -> Iterator[None]:
    """In the block, this process can open no more files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        descriptors = [stack.enter_context(Path(os.devnull).open("rb"))]
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors[0].fileno() + 1, limits[1]))
        yield


def open_pipes() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this iteration
            found.add(os.readlink(link))
    return {target for target in found if target.startswith("pipe:")}


async def begun(children: Children) -> None:
    await asyncio.to_thread(children.begun.acquire, timeout=WAIT)


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_a_task_and_its_reply_can_have_any_size(size: int) -> None:
    async def body(pool: ChildPool, _: Children) -> None:
        data = os.urandom(size)
        assert await ask(pool, "echo", data) == data
        assert await ask(pool, "echo", Content.of(data)) == data
        reply = await pool.run("echo", {"word": "é"}, b"", only_reads=True)
        assert reply.fields["echo"] == "é"
        reply.content.close()

    run(body)


def test_a_child_continues_after_the_node_has_recorded_its_announcement() -> None:
    noted: list[bytes] = []

    async def body(pool: ChildPool, _: Children) -> None:
        for data in (b"first", os.urandom(3_000_000)):
            assert await ask(pool, "announce", data) == data
            assert noted.pop() == data

    run(body, on_announced=noted.append)


def test_a_child_continues_if_the_node_fails_to_record_its_announcement() -> None:
    async def body(pool: ChildPool, _: Children) -> None:
        assert await ask(pool, "announce", b"x") == b"x"
        assert await ask(pool, "echo", b"y") == b"y"

    run(body, on_announced=lambda data: 1 // 0)


def test_the_end_of_a_task_is_told_after_its_announcement_also_if_its_caller_has_left() -> None:
    told: list[bytes] = []

    async def body(pool: ChildPool, children: Children) -> None:
        left = asyncio.create_task(ask(pool, "announce when told to", b"x"))
        await begun(children)
        left.cancel()
        await asyncio.wait([left])
        assert told == []
        children.go.set()
        while pool.statistics().running:
            await asyncio.sleep(0)
        assert told == [b"x", b"end"]
        await ask(pool, "echo", only_reads=True)
        await ask(pool, "echo")
        assert told == [b"x", b"end", b"end"]
        with pytest.raises(UnknownOutcome):
            await ask(pool, "end")
        assert told[3:] == [b"end"]

    run(body, on_announced=told.append, on_ended=lambda: told.append(b"end"))


def test_a_child_that_cannot_announce_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[bytes] = []

    def full(_: bytes) -> Content:
        monkeypatch.undo()
        raise OSError(errno.EMFILE, "too many open files")

    async def body(pool: ChildPool, _: Children) -> None:
        assert await ask(pool, "echo", b"x") == b"x"
        monkeypatch.setattr(Content, "of", full)
        assert await ask(pool, "announce", b"x") == b"x"

    run(body, on_announced=noted.append)
    assert noted == []


@pytest.mark.parametrize(("only_reads", "error"), [(True, Unavailable), (False, UnknownOutcome)])
def test_a_reply_whose_file_does_not_fit_into_the_process_counts_as_lost(
    only_reads: bool, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """The system delivers the packet, and drops the descriptor without an error."""

    async def body(pool: ChildPool, _: Children) -> None:
        with pytest.raises(error):
            await ask(pool, "bare", only_reads=only_reads)
        assert await ask(pool, "echo", b"x", only_reads=only_reads) == b"x"

    run(body)
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize("only_reads", [True, False])
def test_a_task_is_refused_while_the_process_can_open_no_more_files(only_reads: bool) -> None:
    async def body(pool: ChildPool, _: Children) -> None:
        await ask(pool, "echo", only_reads=only_reads)
        with every_descriptor_taken(), pytest.raises(Unavailable, match="nothing was done"):
            await ask(pool, "echo", only_reads=only_reads)
        assert await ask(pool, "echo", b"x", only_reads=only_reads) == b"x"

    run(body)


def test_no_child_is_started_while_the_process_can_open_no_more_files() -> None:
    control, fork_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    refused = pytest.raises(Unavailable, match="Too many open files")
    with control, fork_server, every_descriptor_taken(), refused:
        child_processes.ForkServer(control).child(only_reads=True)


def test_a_child_whose_reply_is_not_read_exits_without_an_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    @contextmanager
    def open_service(_: child_processes.Announce) -> Iterator[child_processes.Service]:
        yield child_processes.Service(lambda fields, data: ({}, data), lambda: None)

    with theirs:
        with ours, closing(Content.of(b"x")) as content:
            child_processes.send_packet(ours, {"name": "echo", "only_reads": False}, content)
            child = threading.Thread(target=serve_tasks, args=(theirs, open_service))
            child.start()
            assert select.select([ours], [], [], WAIT)[0]
        child.join(WAIT)
        assert not child.is_alive()


def test_a_child_is_reused_for_the_next_task() -> None:
    async def body(pool: ChildPool, _: Children) -> None:
        for _number in range(3):
            await ask(pool, "echo", only_reads=True)
        statistics = pool.statistics()
        assert (statistics.tasks, statistics.children, statistics.running) == (3, 1, 0)

    assert run(body).opened == 1


def test_a_child_that_works_for_longer_than_idle_seconds_is_not_idle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        await ask(pool, "echo")
        waiting = asyncio.create_task(ask(pool, "wait", b"x"))
        for _ in range(2):
            await begun(children)
        asyncio.get_running_loop().call_later(0.2, children.go.set)  # later than the idle time
        assert await waiting == b"x"

    run(body, idle_seconds=0.1)
    assert caplog.messages == []


def test_an_idle_child_exits_after_idle_seconds() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        await ask(pool, "echo")
        await asyncio.to_thread(children._threads[0].join, WAIT)
        await ask(pool, "echo")
        assert pool.statistics().children == 2

    run(body, idle_seconds=0.0)


@pytest.mark.parametrize("only_reads", [True, False])
def test_a_child_that_keeps_too_much_memory_exits_and_only_a_reader_is_replaced_at_once(
    monkeypatch: pytest.MonkeyPatch, only_reads: bool
) -> None:
    monkeypatch.setattr(child_processes, "KEPT_BYTES", -(1 << 40))

    async def body(pool: ChildPool, children: Children) -> None:
        await ask(pool, "echo", only_reads=only_reads)
        await asyncio.to_thread(children._threads[0].join, WAIT)
        assert pool.statistics().children == 1 + only_reads
        assert await ask(pool, "echo", b"x", only_reads=only_reads) == b"x"
        await asyncio.to_thread(children._threads[1].join, WAIT)
        assert pool.statistics().children == 2 + only_reads

    run(body)


def test_a_reply_counts_although_the_next_child_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_processes, "KEPT_BYTES", -(1 << 40))

    def refuse(*, only_reads: bool) -> socket.socket:
        raise Unavailable("the process that starts children has ended")

    async def body(pool: ChildPool, children: Children) -> None:
        asking = asyncio.create_task(ask(pool, "wait", b"x", only_reads=True))
        await begun(children)
        pool._start = refuse
        children.go.set()
        assert await asking == b"x"

    run(body)


def test_a_read_only_child_is_not_given_a_writing_task() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        for only_reads in (True, False, True, False):
            await ask(pool, "echo", only_reads=only_reads)
        assert children.kinds == [True, False]

    run(body)


def test_a_task_leaves_no_pipe_open_in_its_child() -> None:
    async def body(pool: ChildPool, _: Children) -> None:
        for word in (b"a", b"b", b"c"):
            await ask(pool, "echo", word)

    before = open_pipes()
    run(body)
    assert open_pipes() <= before


def test_a_peer_that_closes_with_an_unread_packet_has_closed_the_connection() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs, closing(Content.of(b"x")) as content:
            send_packet(ours, {}, content)
        assert receive_packet(ours) is None


def test_a_child_that_was_idle_is_given_one_task_at_a_time() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        await ask(pool, "echo")
        await begun(children)
        first = asyncio.create_task(ask(pool, "wait", b"first"))
        await begun(children)
        assert await ask(pool, "echo", b"second") == b"second"
        children.go.set()
        assert await first == b"first"
        assert pool.statistics().children == 2

    run(body, max_children=2)


def test_idle_children_count_towards_max_children() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        first = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await begun(children)
        await ask(pool, "echo", only_reads=True)
        children.go.set()
        await first  # so the second child has been idle longest
        assert await ask(pool, "echo", b"x") == b"x"
        await asyncio.to_thread(children._threads[1].join, WAIT)
        assert not children._threads[1].is_alive()
        await ask(pool, "echo", only_reads=True)
        await ask(pool, "echo")
        assert children.kinds == [True, True, False]

    run(body, max_children=2)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_child_that_fails_to_open_the_store_tries_again_at_each_task(failures: int) -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        children.failures = [ZeroDivisionError("secret") for _ in range(failures)]
        if failures == 2:
            with pytest.raises(
                StrandlineError, match="echo failed with an internal error"
            ) as refusal:
                await ask(pool, "echo")
            assert type(refusal.value) is StrandlineError
        assert await ask(pool, "echo", b"x") == b"x"
        assert (pool.statistics().lost, pool.statistics().children) == (0, 1)

    run(body)


def test_errors_of_tasks_reach_the_caller_and_unexpected_ones_show_their_text_only_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(pool: ChildPool, _: Children) -> None:
        with pytest.raises(NotFound, match=r"^it is not there$"):
            await ask(pool, "missing")
        with pytest.raises(NotFound, match=r"^it is not there"):
            await ask(pool, "missing", "🌊".encode() * 100_000)
        with pytest.raises(LimitExceeded, match="greedy needs more than the 4 GiB"):
            await ask(pool, "greedy")
        with pytest.raises(StrandlineError, match="fails failed with an internal error") as failure:
            await ask(pool, "fails")
        assert "secret" not in str(failure.value)
        assert "secret" in caplog.text
        assert pool.statistics().children == 1

    run(body)


@pytest.mark.parametrize(("only_reads", "expected"), [(True, Unavailable), (False, UnknownOutcome)])
def test_a_child_that_exits_without_a_reply_is_an_error(
    only_reads: bool, expected: type[StrandlineError]
) -> None:
    async def body(pool: ChildPool, _: Children) -> None:
        # The child is a thread here: if it exited as a reading child does, it would end the test.
        with pytest.raises(expected):
            await ask(pool, "end", only_reads=only_reads)
        assert await ask(pool, "echo", b"x") == b"x"
        assert pool.statistics().lost == 1

    if only_reads:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "_exit", lambda status: None)
            run(body)
    else:
        run(body)


def test_an_idle_child_that_has_died_is_replaced() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        await ask(pool, "echo")
        pool._idle[0]._connection.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(children._threads[0].join, WAIT)
        assert await ask(pool, "echo", b"x") == b"x"
        assert pool.statistics().lost == 0

    run(body)


def test_a_new_child_that_has_already_ended_is_reported_as_unavailable() -> None:
    connections: list[socket.socket] = []

    def start(*, only_reads: bool) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.close()
        connections.append(ours)
        return ours

    async def body(pool: ChildPool, _: Children) -> None:
        pool._start = start
        with pytest.raises(Unavailable, match="cannot be reached"):
            await ask(pool, "echo")
        assert [connection.fileno() for connection in connections] == [-1]

    run(body)


def test_tasks_queue_in_order_and_tasks_beyond_max_waiting_are_refused() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        ended: list[int] = []

        async def numbered(number: int) -> None:
            await ask(pool, "wait" if number == 0 else "echo")
            ended.append(number)

        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(numbered(number)))
            await asyncio.sleep(0)
        await begun(children)
        content = Content.of(b"x")
        with pytest.raises(Overloaded, match="1 large requests running and 3 waiting"):
            await ask(pool, "echo", content)
        assert content.fileno() == -1
        tasks[2].cancel()
        children.go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert ended == [0, 1, 3]
        assert pool.statistics().turned_away == 1

    run(body, max_children=1, max_waiting=3)


def test_callers_of_equal_reads_that_are_queued_share_the_reply_of_one_task() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        first = asyncio.create_task(ask(pool, "wait", b"same", only_reads=True))
        await begun(children)
        same = [
            asyncio.create_task(ask(pool, "wait", b"same", only_reads=True, user="a"))
            for _ in range(5)
        ]
        other = asyncio.create_task(ask(pool, "wait", b"same", only_reads=True, user="b"))
        else_asked = asyncio.create_task(ask(pool, "wait", b"else", only_reads=True, user="a"))
        await asyncio.sleep(0)
        same[0].cancel()
        children.go.set()
        replies = await asyncio.gather(else_asked, first, other, *same[1:])
        assert replies == [b"else"] + [b"same"] * 6
        counts = pool.statistics()
        assert (counts.tasks, counts.joined, counts.turned_away) == (4, 4, 0)

    run(body, max_children=1, max_waiting=3)


def test_a_read_does_not_join_an_equal_task_that_is_already_running() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        first = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await begun(children)
        second = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await asyncio.sleep(0)
        children.go.set()
        await asyncio.gather(first, second)
        counts = pool.statistics()
        assert (counts.tasks, counts.joined) == (2, 0)

    run(body, max_children=2)


def test_equal_reads_that_wait_for_a_running_one_occupy_one_child() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        first = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await begun(children)
        same = [asyncio.create_task(ask(pool, "wait", only_reads=True)) for _ in "abc"]
        while not pool.statistics().waiting:
            await asyncio.sleep(0)
        assert await ask(pool, "echo", b"another", only_reads=True) == b"another"
        assert pool.statistics().children == 2
        children.go.set()
        await asyncio.gather(first, *same)
        counts = pool.statistics()
        assert (counts.tasks, counts.joined) == (3, 2)

    run(body, max_children=2)


def test_a_read_that_all_its_callers_cancelled_can_be_asked_again() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        first = asyncio.create_task(ask(pool, "wait"))
        await begun(children)
        waiting = [asyncio.create_task(ask(pool, "echo", b"x", only_reads=True)) for _ in "ab"]
        await asyncio.sleep(0)
        for caller in waiting:
            caller.cancel()
        again = asyncio.create_task(ask(pool, "echo", b"x", only_reads=True))
        await asyncio.gather(*waiting, return_exceptions=True)
        children.go.set()
        assert await again == b"x"
        await first
        assert pool.statistics().tasks == 2

    run(body, max_children=1)


def test_callers_that_share_a_task_get_its_error() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        first = asyncio.create_task(ask(pool, "wait"))
        await begun(children)
        same = [asyncio.create_task(ask(pool, "missing", only_reads=True)) for _ in "ab"]
        await asyncio.sleep(0)
        children.go.set()
        for caller in same:
            with pytest.raises(NotFound, match="it is not there"):
                await caller
        await first
        assert pool.statistics().joined == 1

    run(body, max_children=1)


def test_callers_that_share_a_reply_are_told_if_it_cannot_be_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def body(pool: ChildPool, children: Children) -> None:
        first = asyncio.create_task(ask(pool, "wait"))
        await begun(children)
        same = [asyncio.create_task(ask(pool, "echo", b"x", only_reads=True)) for _ in "ab"]
        await asyncio.sleep(0)
        monkeypatch.setattr(os, "dup", full)
        children.go.set()
        with pytest.raises(Unavailable, match="Too many open files"):
            await same[0]
        assert await same[1] == b"x"
        await first

    run(body, max_children=1)


def test_a_read_whose_caller_is_cancelled_is_aborted() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        asking = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await begun(children)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert await ask(pool, "echo", b"x") == b"x"
        assert pool.statistics().children == 2
        assert await asyncio.to_thread(ended.acquire, timeout=WAIT)

    ended = threading.Semaphore(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", lambda status: ended.release())
        run(body, max_children=1)


def test_a_read_that_is_cancelled_while_it_is_copied_leaves_no_content_open() -> None:
    async def body(pool: ChildPool, _: Children) -> None:
        asking = asyncio.create_task(ask(pool, "echo", bytes(3_000_000), only_reads=True))
        while not open_contents() - before:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert not pool.statistics().tasks

    before = open_contents()
    run(body)


def test_a_writing_task_whose_caller_is_cancelled_runs_to_its_end() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        asking = asyncio.create_task(ask(pool, "wait"))
        await begun(children)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert pool.statistics().running == 1
        children.go.set()
        assert await ask(pool, "echo", b"x") == b"x"
        assert pool.statistics().children == 1

    run(body, max_children=1)


def test_a_pool_that_stops_waiting_refuses_writing_tasks_that_wait() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        waiting = asyncio.create_task(ask(pool, "wait"))
        await begun(children)
        queued = [asyncio.create_task(ask(pool, "echo")) for _ in range(2)]
        await asyncio.sleep(0)
        pool.stop_waiting()
        for refused in (waiting, *queued, ask(pool, "echo")):
            with pytest.raises(Stopping):
                await refused

    run(body, max_children=1)


def test_a_pool_that_stops_waiting_answers_running_reads_and_refuses_new_tasks_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exits = list[int]()
    monkeypatch.setattr(os, "_exit", exits.append)

    async def body(pool: ChildPool, children: Children) -> None:
        reading = asyncio.create_task(ask(pool, "wait", b"x", only_reads=True))
        await begun(children)
        pool.stop_waiting()
        with pytest.raises(Stopping):  # although no child is free
            await ask(pool, "echo")
        children.go.set()
        assert await reading == b"x"

    run(body, max_children=1)
    assert not exits


def test_a_writing_task_that_is_copied_when_the_pool_stops_waits_for_no_other_writer() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        asking = asyncio.create_task(ask(pool, "wait", bytes(3_000_000)))
        while not pool.statistics().running:
            await asyncio.sleep(0)
        assert not pool.statistics().tasks
        pool.stop_waiting()
        with pytest.raises(Stopping):
            await asking

    run(body)


def test_a_closed_pool_refuses_queued_and_new_tasks() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        first = asyncio.create_task(ask(pool, "wait"))
        await begun(children)
        second = asyncio.create_task(ask(pool, "echo"))
        await asyncio.sleep(0)
        pool.close()
        for asking in (second, ask(pool, "echo")):
            with pytest.raises(Stopping):
                await asking
        await asyncio.gather(first, return_exceptions=True)

    run(body, max_children=1)


def test_a_closed_pool_abandons_running_reads() -> None:
    async def body(pool: ChildPool, children: Children) -> None:
        reading = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await begun(children)
        pool.close()
        await asyncio.wait([reading])
        assert reading.cancelled()

    run(body)


FORKS = """
import os, signal, socket, sys
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from strandline.work.children import ForkServer, Service, receive_packet, send_packet
from strandline.work.contents import Content

@contextmanager
def service(announce):
    kept = []
    def serve(fields, data):
        if fields["name"] == "sleep":
            signal.pause()
        kept.append([bytes(1_000) for _ in range(100_000)][-1])
        place = {"session": os.getsid(0), "niceness": os.nice(0)}
        return {"pid": os.getpid(), "parent": os.getppid(), **place}, data
    yield Service(serve, bool)

server = ForkServer.start(service)
children = [server.child(only_reads=True) for _ in range(2)]
pids = []
for child in children:
    for word in (b"first", b"second"):
        content = Content.of(word)
        send_packet(child, {"name": "echo", "only_reads": True}, content)
        fields, answer = receive_packet(child)
        assert answer.read() == word
        assert not fields["ends"]  # it has given back the memory that it took
        pids.append(fields["pid"])
        # They give way to the clients of the node too, in whatever sessions those are.
        assert fields["session"] == fields["parent"] and fields["niceness"] > os.nice(0)
assert len(set(pids)) == 2 and os.getpid() not in pids
writer = server.child(only_reads=False)
send_packet(writer, {"name": "echo", "only_reads": False}, Content.of(b""))
fields, _ = receive_packet(writer)
assert fields["session"] == fields["pid"] and fields["niceness"] == os.nice(0)
send_packet(children[0], {"name": "sleep", "only_reads": True}, Content.of(b""))
print(fields["parent"], *set(pids), flush=True)
sys.stdin.readline()
"""


FAILING_FORKS = """
import errno, os
from contextlib import nullcontext
from strandline.work.children import ForkServer, Service, receive_packet, send_packet
from strandline.work.contents import Content

forks, fork = [], os.fork

def fork_or_fail():
    forks.append("one")
    if len(forks) == 2:  # the first starts the fork server
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()

os.fork = fork_or_fail
echo = Service(lambda fields, data: ({}, data), bool)
server = ForkServer.start(lambda announce: nullcontext(echo))
assert receive_packet(server.child(only_reads=True)) is None
child = server.child(only_reads=True)
send_packet(child, {"name": "echo", "only_reads": True}, Content.of(b"word"))
_, answer = receive_packet(child)
print(answer.read())
"""


def test_a_child_that_cannot_be_forked_is_lost_and_the_next_one_is_forked() -> None:
    # From Python 3.12 on, a fork beside other threads, which pyarrow has, is deprecated.
    options = ("-W", "ignore::DeprecationWarning")
    completed = subprocess.run(
        [sys.executable, *options, "-c", FAILING_FORKS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stdout) == (0, "b'word'\n"), completed.stderr
    assert completed.stderr == (
        "a child process could not be started: Resource temporarily unavailable\n"
    )


def test_all_child_processes_exit_when_the_node_is_killed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 3
        watched = [os.pidfd_open(pid) for pid in pids]
        process.send_signal(signal.SIGKILL)
    for descriptor in watched:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(WAIT * 1000)
        os.close(descriptor)
