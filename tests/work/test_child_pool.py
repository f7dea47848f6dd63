"""The pool: which task which child gets, when callers share a reply, and how tasks end."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading

import pytest

from strandline.errors import NotFound, Overloaded, Stopping, StrandlineError, Unavailable
from strandline.work import children as child_processes
from strandline.work.child_pool import ChildPool
from strandline.work.contents import Content
from tests.work.open_contents import open_contents
from tests.work.pool_children import WAIT, Children, ask, begun, running_pool

pytestmark = pytest.mark.usefixtures("in_this_process")


async def test_a_child_is_reused_for_the_next_task() -> None:
    async with running_pool() as (pool, children):
        for _number in range(3):
            await ask(pool, "echo", only_reads=True)
        statistics = pool.statistics()
        assert (statistics.tasks, statistics.children, statistics.running) == (3, 1, 0)

    assert children.opened == 1


async def test_a_child_gets_no_more_tasks_after_a_takeover() -> None:
    """It may not have noticed, and would use the former primary if its address led there."""
    timeline = [1]
    async with running_pool(timeline=lambda: timeline[0]) as (pool, children):
        await ask(pool, "echo")
        await ask(pool, "echo")
        timeline[0] = 2
        await ask(pool, "echo")
        await ask(pool, "echo")
        assert children.opened == 2


async def test_a_child_that_opened_the_store_before_a_takeover_gets_no_task() -> None:
    timeline = [1]
    async with running_pool(timeline=lambda: timeline[0]) as (pool, children):
        children.opens.clear()
        asking = asyncio.create_task(ask(pool, "echo", b"x"))
        while not children.kinds:
            await asyncio.sleep(0)
        timeline[0] = 2
        children.opens.set()
        assert await asking == b"x"
        assert children.opened == 2
        assert pool.statistics().lost == 0


@pytest.mark.parametrize(
    ("only_reads", "error"), [(True, "unavailable"), (False, "unknown_outcome")]
)
async def test_the_result_of_a_task_that_a_takeover_met_does_not_count(
    only_reads: bool, error: str
) -> None:
    """The child may have read from the former primary, or written to it."""
    timeline = [1]
    async with running_pool(timeline=lambda: timeline[0]) as (pool, children):
        asking = asyncio.create_task(ask(pool, "wait", only_reads=only_reads))
        await begun(children)
        timeline[0] = 2
        children.go.set()
        with pytest.raises(Unavailable, match="former primary") as refusal:
            await asking
        assert refusal.value.code == error


@pytest.mark.parametrize(("only_reads", "error"), [(True, "unavailable"), (False, "stopping")])
async def test_the_refusal_of_a_read_that_a_takeover_met_does_not_count(
    only_reads: bool, error: str
) -> None:
    """A former primary lacks new tables. A change that was refused there happened nowhere."""
    timeline = [1]
    async with running_pool(timeline=lambda: timeline[0]) as (pool, children):
        children.refuses = True
        asking = asyncio.create_task(ask(pool, "wait", only_reads=only_reads))
        await begun(children)
        timeline[0] = 2
        children.go.set()
        with pytest.raises(StrandlineError) as refusal:
            await asking
        assert refusal.value.code == error


async def test_an_idle_child_exits_after_idle_seconds() -> None:
    async with running_pool(idle_seconds=0.0) as (pool, children):
        await ask(pool, "echo")
        await asyncio.to_thread(children._threads[0].join, WAIT)
        await ask(pool, "echo")
        assert pool.statistics().children == 2


@pytest.mark.parametrize("only_reads", [True, False])
async def test_a_child_that_keeps_too_much_memory_exits_and_only_a_reader_is_replaced_at_once(
    monkeypatch: pytest.MonkeyPatch, only_reads: bool
) -> None:
    monkeypatch.setattr(child_processes, "KEPT_BYTES", -(1 << 40))
    async with running_pool() as (pool, children):
        await ask(pool, "echo", only_reads=only_reads)
        await asyncio.to_thread(children._threads[0].join, WAIT)
        assert pool.statistics().children == 1 + only_reads
        assert await ask(pool, "echo", b"x", only_reads=only_reads) == b"x"
        await asyncio.to_thread(children._threads[1].join, WAIT)
        assert pool.statistics().children == 2 + only_reads


async def test_a_reply_counts_although_the_next_child_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_processes, "KEPT_BYTES", -(1 << 40))

    def refuse(*, only_reads: bool) -> socket.socket:
        raise Unavailable("the process that starts children has ended")

    async with running_pool() as (pool, children):
        asking = asyncio.create_task(ask(pool, "wait", b"x", only_reads=True))
        await begun(children)
        pool._start = refuse
        children.go.set()
        assert await asking == b"x"


async def test_a_read_takes_the_content_of_a_short_message() -> None:
    async with running_pool() as (pool, _):
        assert await ask(pool, "echo", Content.of(b"short"), only_reads=True) == b"short"


async def test_a_read_only_child_is_not_given_a_writing_task() -> None:
    async with running_pool() as (pool, children):
        for only_reads in (True, False, True, False):
            await ask(pool, "echo", only_reads=only_reads)
        assert children.kinds == [True, False]


async def test_a_child_that_was_idle_is_given_one_task_at_a_time() -> None:
    async with running_pool(max_children=2) as (pool, children):
        await ask(pool, "echo")
        await begun(children)
        first = asyncio.create_task(ask(pool, "wait", b"first"))
        await begun(children)
        assert await ask(pool, "echo", b"second") == b"second"
        children.go.set()
        assert await first == b"first"
        assert pool.statistics().children == 2


async def test_idle_children_count_towards_max_children() -> None:
    async with running_pool(max_children=2) as (pool, children):
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


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_child_that_fails_to_open_the_store_tries_again_at_each_task(failures: int) -> None:
    async with running_pool() as (pool, children):
        children.failures = [ZeroDivisionError("secret") for _ in range(failures)]
        if failures == 2:
            with pytest.raises(
                StrandlineError, match="echo failed with an internal error"
            ) as refusal:
                await ask(pool, "echo")
            assert type(refusal.value) is StrandlineError
        assert await ask(pool, "echo", b"x") == b"x"
        assert (pool.statistics().lost, pool.statistics().children) == (0, 1)


async def abandon_while_opening(pool: ChildPool, children: Children) -> None:
    """Cancel a read before its child, which is the first one, has opened the store."""
    children.opens.clear()
    asking = asyncio.create_task(ask(pool, "echo", only_reads=True))
    while not children.kinds:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_child_that_is_abandoned_while_it_opens_the_store_is_given_the_next_task() -> None:
    """Else callers with a short time limit would never get an answer."""
    async with running_pool(max_children=1) as (pool, children):
        await abandon_while_opening(pool, children)
        equal = [asyncio.create_task(ask(pool, "echo", b"x", only_reads=True)) for _ in range(2)]
        while not pool.statistics().joined:
            await asyncio.sleep(0)
        children.opens.set()
        assert await asyncio.gather(*equal) == [b"x", b"x"]
        assert (pool.statistics().children, pool.statistics().tasks) == (1, 1)


async def test_a_child_of_the_other_kind_that_is_still_opening_the_store_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Semaphore(0)
    monkeypatch.setattr(os, "_exit", lambda status: ended.release())
    async with running_pool(max_children=1) as (pool, children):
        await abandon_while_opening(pool, children)
        writing = asyncio.create_task(ask(pool, "echo", b"x"))
        assert await asyncio.to_thread(ended.acquire, timeout=WAIT)
        children.opens.set()
        assert await writing == b"x"
        assert children.kinds == [True, False]


async def test_an_idle_child_that_has_died_is_replaced() -> None:
    async with running_pool() as (pool, children):
        await ask(pool, "echo")
        pool._idle[0]._connection.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(children._threads[0].join, WAIT)
        assert await ask(pool, "echo", b"x") == b"x"
        assert pool.statistics().lost == 0


async def test_a_new_child_that_has_already_ended_is_reported_as_unavailable() -> None:
    connections: list[socket.socket] = []

    def start(*, only_reads: bool) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.close()
        connections.append(ours)
        return ours

    async with running_pool() as (pool, _):
        pool._start = start
        with pytest.raises(Unavailable, match="ended before it began echo; nothing was done"):
            await ask(pool, "echo")
        assert pool.statistics().lost == 1
        assert [connection.fileno() for connection in connections] == [-1]


async def test_tasks_queue_in_order_and_tasks_beyond_max_waiting_are_refused() -> None:
    async with running_pool(max_children=1, max_waiting=3) as (pool, children):
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


async def test_users_take_turns_and_none_may_have_all_tasks_that_wait() -> None:
    async with running_pool(max_children=1, max_waiting=8) as (pool, children):
        ended: list[str] = []

        async def ask_as(user: str) -> None:
            await ask(pool, "wait", user=user)
            ended.append(user)

        async def begin(user: str) -> asyncio.Task[None]:
            asking = asyncio.create_task(ask_as(user))
            await asyncio.sleep(0)
            return asking

        tasks = [await begin("ann")]
        await begun(children)
        tasks += [await begin("ann") for _ in range(6)]
        with pytest.raises(Overloaded, match="6 waiting, 6 of them from ann"):
            await ask(pool, "echo", user="ann")
        tasks += [await begin("bob"), await begin("eve")]
        tasks[1].cancel()
        children.go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert ended == ["ann", "bob", "eve", *["ann"] * 5]


async def test_callers_of_equal_reads_that_are_queued_share_the_reply_of_one_task() -> None:
    async with running_pool(max_children=1, max_waiting=3) as (pool, children):
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


async def test_a_read_does_not_join_an_equal_task_that_is_already_running() -> None:
    async with running_pool(max_children=2) as (pool, children):
        first = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await begun(children)
        second = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await asyncio.sleep(0)
        children.go.set()
        await asyncio.gather(first, second)
        counts = pool.statistics()
        assert (counts.tasks, counts.joined) == (2, 0)


async def test_equal_reads_that_wait_for_a_running_one_occupy_one_child() -> None:
    async with running_pool(max_children=2) as (pool, children):
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


async def test_a_read_that_all_its_callers_cancelled_can_be_asked_again() -> None:
    async with running_pool(max_children=1) as (pool, children):
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


async def test_callers_that_share_a_task_get_its_error() -> None:
    async with running_pool(max_children=1) as (pool, children):
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


async def test_callers_that_share_a_reply_are_told_if_it_cannot_be_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with running_pool(max_children=1) as (pool, children):
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


async def test_a_read_whose_caller_is_cancelled_is_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Semaphore(0)
    monkeypatch.setattr(os, "_exit", lambda status: ended.release())
    async with running_pool(max_children=1) as (pool, children):
        asking = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await begun(children)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert await ask(pool, "echo", b"x") == b"x"
        assert pool.statistics().children == 2
        assert await asyncio.to_thread(ended.acquire, timeout=WAIT)


async def test_a_reply_that_arrives_while_its_only_caller_is_cancelled_is_closed() -> None:
    async with running_pool() as (pool, children):
        asking = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await begun(children)
        (shared_call,) = pool._shared_calls.values()
        shared_call.task.add_done_callback(lambda _: asking.cancel())
        children.go.set()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_read_that_is_cancelled_while_it_is_copied_leaves_no_content_open() -> None:
    before = open_contents()
    async with running_pool() as (pool, _):
        asking = asyncio.create_task(ask(pool, "echo", bytes(3_000_000), only_reads=True))
        while not open_contents() - before:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert not pool.statistics().tasks


async def test_a_writing_task_whose_caller_is_cancelled_runs_to_its_end() -> None:
    async with running_pool(max_children=1) as (pool, children):
        asking = asyncio.create_task(ask(pool, "wait"))
        await begun(children)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert pool.statistics().running == 1
        children.go.set()
        assert await ask(pool, "echo", b"x") == b"x"
        assert pool.statistics().children == 1


async def test_a_pool_that_stops_waiting_refuses_writing_tasks_that_wait() -> None:
    async with running_pool(max_children=1) as (pool, children):
        waiting = asyncio.create_task(ask(pool, "wait"))
        await begun(children)
        queued = [asyncio.create_task(ask(pool, "echo")) for _ in range(2)]
        await asyncio.sleep(0)
        pool.stop_waiting()
        for refused in (waiting, *queued, ask(pool, "echo")):
            with pytest.raises(Stopping):
                await refused


async def test_a_pool_that_stops_waiting_answers_running_reads_and_refuses_new_tasks_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exits = list[int]()
    monkeypatch.setattr(os, "_exit", exits.append)
    async with running_pool(max_children=1) as (pool, children):
        reading = asyncio.create_task(ask(pool, "wait", b"x", only_reads=True))
        await begun(children)
        pool.stop_waiting()
        with pytest.raises(Stopping):  # although no child is free
            await ask(pool, "echo")
        children.go.set()
        assert await reading == b"x"
    assert not exits


async def test_a_write_that_is_copied_when_the_pool_stops_waits_for_no_other_writer() -> None:
    async with running_pool() as (pool, _):
        asking = asyncio.create_task(ask(pool, "wait", bytes(3_000_000)))
        while not pool.statistics().running:
            await asyncio.sleep(0)
        assert not pool.statistics().tasks
        pool.stop_waiting()
        with pytest.raises(Stopping):
            await asking


async def test_a_closed_pool_refuses_queued_and_new_tasks() -> None:
    async with running_pool(max_children=1) as (pool, children):
        first = asyncio.create_task(ask(pool, "wait"))
        await begun(children)
        second = asyncio.create_task(ask(pool, "echo"))
        await asyncio.sleep(0)
        pool.close()
        for asking in (second, ask(pool, "echo")):
            with pytest.raises(Stopping):
                await asking
        await asyncio.gather(first, return_exceptions=True)


async def test_a_closed_pool_abandons_running_reads() -> None:
    async with running_pool() as (pool, children):
        reading = asyncio.create_task(ask(pool, "wait", only_reads=True))
        await begun(children)
        pool.close()
        await asyncio.wait([reading])
        assert reading.cancelled()
