"""Which calls get a slot and a thread, and what happens to calls whose clients have left."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import NoReturn

import pytest

from strandline.errors import Overloaded
from strandline.metastore.workers import MAX_AGAIN, CallKind, ClientLeft, PooledCall, Workers
from strandline.work import give_way

WAIT = 60.0
MODULE = Workers.__module__
READ, WRITE, LARGE, DDL = CallKind


@pytest.fixture(autouse=True)
def watched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.UNWATCHED_SECONDS", 0.0)


class Work:
    """Work that signals when it has begun, and ends when ``end`` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.end = threading.Event()

    def __call__(self, still_wanted: Callable[[], None] = lambda: None) -> str:
        self.begun.set()
        assert self.end.wait(WAIT)
        still_wanted()
        return "done"


async def settle(turns: int = 20) -> None:
    """Let everything run that is ready."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not fact():
            await asyncio.sleep(0)


async def end(*several: tuple[Work, asyncio.Future[str]]) -> None:
    for work, _ in several:
        work.end.set()
    assert await asyncio.gather(*(result for _, result in several)) == ["done"] * len(several)


def submit(workers: Workers, user: str, kind: CallKind) -> tuple[Work, asyncio.Future[str]]:
    work = Work()
    return work, workers.submit(work, user=user, kind=kind).result


async def test_at_most_two_reads_set_out_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{MODULE}.COMPUTING_SECONDS", WAIT)
    workers = Workers(threads=8)
    calls = [submit(workers, f"u{number}", READ) for number in range(5)]
    await until(lambda: calls[0][0].begun.is_set() and calls[1][0].begun.is_set())
    assert workers.statistics().running == 2
    await end(calls[1])
    await until(calls[2][0].begun.is_set)
    assert workers.statistics().running == 2
    assert not calls[3][0].begun.is_set()
    await end(calls[0], *calls[2:])


async def test_a_call_for_which_no_thread_can_be_started_waits_for_one_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers, start = Workers(threads=4), threading.Thread.start

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    refused = [submit(workers, "ann", WRITE)[1] for _ in range(3)]
    for result in refused:
        with pytest.raises(Overloaded, match="can't start new thread"):
            await asyncio.wait_for(result, WAIT)
    monkeypatch.setattr(threading.Thread, "start", start)
    first = submit(workers, "ann", WRITE)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    second, third = submit(workers, "ben", WRITE), submit(workers, "cem", WRITE)
    await until(first[0].begun.is_set)
    await end(first, second, third)
    workers.close()
    assert workers.statistics().calls == 0


async def test_calls_that_wait_until_others_have_computed_share_one_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{MODULE}.COMPUTING_SECONDS", WAIT)
    workers, loop, timers = Workers(threads=8), asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    def counted(when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, callback)

    monkeypatch.setattr(loop, "call_at", counted)
    calls = [submit(workers, f"u{number}", READ) for number in range(5)]
    assert len(timers) == 1
    monkeypatch.undo()
    await end(*calls)


async def test_calls_one_after_the_other_share_a_thread() -> None:
    workers, before = Workers(), {*threading.enumerate()}
    for _ in range(3):
        await workers.submit(threading.get_ident, user="ann").result
    assert len({*threading.enumerate()} - before) == 1
    workers.close()


async def test_the_next_call_to_set_out_is_of_the_user_with_the_fewest_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{MODULE}.COMPUTING_SECONDS", WAIT)
    workers = Workers(threads=8)
    many = [submit(workers, "ann", READ) for _ in range(6)]
    asked = submit(workers, "bob", READ)
    await until(lambda: many[0][0].begun.is_set() and many[1][0].begun.is_set())
    await end(many[0])
    await until(asked[0].begun.is_set)
    assert not any(work.begun.is_set() for work, _ in many[2:])
    await end(*many[1:], asked)


async def test_writes_and_ddl_set_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.COMPUTING_SECONDS", WAIT)
    workers = Workers(threads=16)
    reads = [submit(workers, f"u{number}", READ) for number in range(3)]
    others = [submit(workers, f"w{n}", kind) for n, kind in enumerate([WRITE, DDL] * 4)]
    await until(lambda: all(work.begun.is_set() for work, _ in others))
    assert not reads[2][0].begun.is_set()
    await end(*others, *reads)


async def test_a_call_that_takes_long_lets_others_set_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.MAX_COMPUTING_SECONDS", 3 * WAIT)
    workers = Workers(threads=8)
    calls = [submit(workers, f"u{number}", READ) for number in range(8)]
    await until(lambda: all(work.begun.is_set() for work, _ in calls))
    await end(*calls)
    assert workers.statistics().running == 0


async def test_a_call_that_computes_for_long_lets_others_set_out_only_after_a_longer_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = iter(range(10_000_000))  # a second of processor time at each look
    looks: list[PooledCall] = []
    still_computes = PooledCall.still_computes

    def counted(call: PooledCall, now: float) -> bool:
        looks.append(call)
        return still_computes(call, now)

    monkeypatch.setattr(f"{MODULE}._clock_of_this_thread", lambda: lambda: float(next(used)))
    monkeypatch.setattr(f"{MODULE}.MAX_COMPUTING_SECONDS", 3 * WAIT)
    monkeypatch.setattr(f"{MODULE}.COMPUTING_SECONDS", 0.0005)
    monkeypatch.setattr(PooledCall, "still_computes", counted)

    pool = Workers(threads=8)
    calls = [submit(pool, f"u{number}", READ) for number in range(3)]
    await until(lambda: len(looks) > 20)
    assert not calls[2][0].begun.is_set()
    monkeypatch.setattr(f"{MODULE}.MAX_COMPUTING_SECONDS", 0.0)
    await until(calls[2][0].begun.is_set)
    await end(*calls)


@pytest.mark.parametrize("kind", [LARGE, DDL])
async def test_large_and_ddl_calls_leave_half_of_the_threads_to_others(kind: CallKind) -> None:
    workers = Workers(threads=4)
    long = [submit(workers, f"u{number}", kind) for number in range(3)]
    await until(lambda: long[0][0].begun.is_set() and long[1][0].begun.is_set())
    small = [submit(workers, "ann", READ) for _ in range(2)]
    await until(lambda: all(work.begun.is_set() for work, _ in small))
    assert not long[2][0].begun.is_set()
    assert workers.statistics().running == 4
    await end(*long, *small)
    assert workers.statistics().calls == 0


async def test_large_and_writing_calls_leave_a_thread_to_small_reads() -> None:
    workers = Workers(threads=4)
    long = [submit(workers, f"u{n}", kind) for n, kind in enumerate([LARGE, WRITE, DDL, WRITE])]
    small = submit(workers, "ann", READ)
    await until(small[0].begun.is_set)
    await until(lambda: workers.statistics().running == 4)
    assert [work.begun.is_set() for work, _ in long] == [True, True, True, False]
    await end(*long, small)


async def test_one_user_cannot_occupy_all_threads() -> None:
    workers = Workers(threads=4)
    own = [submit(workers, "ann", READ) for _ in range(10)]
    await until(lambda: sum(work.begun.is_set() for work, _ in own) == 3)
    other = submit(workers, "bob", READ)
    await until(other[0].begun.is_set)
    assert sum(work.begun.is_set() for work, _ in own) == 3
    await end(*own, other)


async def test_waiting_calls_begin_in_the_order_of_their_arrival() -> None:
    workers = Workers(threads=1)
    first = submit(workers, "ann", READ)
    order: list[int] = []
    kinds = [DDL, READ, LARGE, READ, DDL]
    later = [
        workers.submit(lambda n=n: order.append(n), user=f"u{n % 2}", kind=kind)  # type: ignore[misc]  # n is bound
        for n, kind in enumerate(kinds)
    ]
    await end(first)
    await asyncio.gather(*(call.result for call in later))
    assert order == [0, 1, 2, 3, 4]


async def test_slots_are_limited_by_kind_and_by_user_and_further_calls_are_refused() -> None:
    workers = Workers(threads=1, max_calls=8)
    calls = [submit(workers, "ann", kind) for kind in (LARGE, LARGE, LARGE, LARGE)]
    with pytest.raises(Overloaded, match=r"4 large calls.*nothing was done"):
        submit(workers, "bob", LARGE)
    calls += [submit(workers, "ann", kind) for kind in (DDL, DDL)]
    with pytest.raises(Overloaded, match="6 calls of ann"):
        submit(workers, "ann", READ)
    with pytest.raises(Overloaded, match="6 large and writing calls"):
        submit(workers, "bob", DDL)
    calls += [submit(workers, "bob", READ) for _ in range(2)]
    with pytest.raises(Overloaded, match="already answers 8 calls,"):
        workers.require_slot()
    assert workers.statistics().refused == 4
    await end(*calls)
    assert workers.statistics().calls == 0
    await end(submit(workers, "ann", LARGE))


async def test_small_reads_take_no_slots_of_writes_which_may_take_three_quarters() -> None:
    workers = Workers(threads=1, max_calls=8)
    reads = [submit(workers, user, READ) for user in ("ann", "bob") * 3]
    writes = [submit(workers, "carl", WRITE) for _ in range(2)]
    await end(*reads, *writes)
    writes = [submit(workers, user, WRITE) for user in ("ann", "bob") * 3]
    with pytest.raises(Overloaded, match="6 large and writing calls"):
        submit(workers, "carl", WRITE)
    await end(*writes)


async def test_a_waiting_call_is_given_up_when_its_client_leaves() -> None:
    workers = Workers(threads=1)
    first, waiting, left = submit(workers, "ann", READ), Work(), asyncio.Event()

    async def until_left() -> None:
        await left.wait()

    second = asyncio.ensure_future(
        workers.run(waiting, user="bob", kind=READ, until_left=until_left)
    )
    await settle()
    left.set()
    with pytest.raises(ClientLeft):
        await second
    statistics = workers.statistics()
    assert (statistics.given_up, statistics.calls) == (1, 1)
    await end(first)
    assert not waiting.begun.is_set()


class GivesWay:
    """Work that gives way until ``made`` is done, each time, if it can."""

    def __init__(self) -> None:
        self.made: Future[None] = Future()
        self.runs = 0

    def __call__(self, still_wanted: Callable[[], None] = lambda: None) -> str:
        self.runs += 1
        assert self.runs <= 1 + MAX_AGAIN
        give_way(self.made)
        return "done"


def test_a_call_that_gives_way_keeps_its_slot_and_leaves_its_thread_to_a_waiting_call() -> None:
    async def main() -> None:
        workers = Workers(threads=1)
        work = GivesWay()
        call = workers.submit(work, user="ann", again=work)
        waiting = submit(workers, "ann", READ)
        async with asyncio.timeout(WAIT):
            await end(waiting)
        statistics = workers.statistics()
        assert (work.runs, statistics.running, statistics.calls) == (1, 0, 1)
        await asyncio.to_thread(work.made.set_result, None)
        async with asyncio.timeout(WAIT):
            assert await call.result == "done"
        assert workers.statistics().calls == 0

    asyncio.run(main(), debug=True)  # which checks what other threads call


async def test_a_call_gives_way_only_a_few_times() -> None:
    work, again = GivesWay(), GivesWay()
    work.made.set_result(None)
    again.made.set_result(None)
    assert await Workers().submit(work, user="ann", again=again).result == "done"
    assert (work.runs, again.runs) == (1, MAX_AGAIN)


async def test_a_call_that_gave_way_is_given_up_when_its_client_leaves() -> None:
    workers = Workers(threads=1)
    work, left = GivesWay(), asyncio.Event()

    async def until_left() -> None:
        await left.wait()

    task = asyncio.ensure_future(
        workers.run(work, user="ann", kind=READ, until_left=until_left, gives_way=True)
    )
    await until(lambda: work.runs == 1 and workers.statistics().running == 0)
    left.set()
    with pytest.raises(ClientLeft):
        await task
    statistics = workers.statistics()
    assert (statistics.given_up, statistics.calls) == (1, 0)
    work.made.set_result(None)
    await end(submit(workers, "ann", READ))
    assert work.runs == 1


async def test_a_call_that_has_begun_again_keeps_its_slot_until_it_ends() -> None:
    workers, again, made = Workers(threads=1), Work(), Future[None]()
    call = workers.submit(lambda: give_way(made), user="ann", again=again)
    made.set_result(None)
    await until(again.begun.is_set)
    call.result.cancel()
    await settle()
    assert workers.statistics().calls == 1
    again.end.set()
    await until(lambda: workers.statistics().calls == 0)


def test_a_call_whose_client_left_while_it_ran_does_not_begin_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        workers = Workers(threads=1)
        waiting, made = Work(), Future[None]()

        def work() -> str:
            waiting()
            give_way(made)
            return "done"

        call = workers.submit(work, user="ann", again=work)
        await until(waiting.begun.is_set)
        call.result.cancel()
        waiting.end.set()
        await until(lambda: workers.statistics().calls == 0)

    asyncio.run(main())
    assert not caplog.records


@pytest.mark.parametrize(
    ("error", "logged"), [(Overloaded("x"), False), (ClientLeft(), False), (KeyError("x"), True)]
)
def test_an_error_after_the_client_has_left_is_logged_only_if_it_is_unexpected(
    caplog: pytest.LogCaptureFixture, error: Exception, logged: bool
) -> None:
    async def main() -> None:
        workers, waiting = Workers(threads=1), Work()

        def work() -> NoReturn:
            waiting()
            raise error

        call = workers.submit(work, user="ann")
        await until(waiting.begun.is_set)
        call.result.cancel()
        waiting.end.set()
        await until(lambda: workers.statistics().calls == 0)

    asyncio.run(main())
    assert bool(caplog.records) is logged


async def test_a_call_that_cannot_begin_again_does_not_give_way() -> None:
    work = GivesWay()
    assert await Workers().submit(work, user="ann").result == "done"


async def test_a_running_call_is_given_up_at_its_next_check_after_its_client_left() -> None:
    workers = Workers(threads=1)
    work, left = Work(), asyncio.Event()

    async def until_left() -> None:
        await left.wait()

    task = asyncio.ensure_future(workers.run(work, user="ann", kind=READ, until_left=until_left))
    await until(work.begun.is_set)
    left.set()
    await settle()
    assert not task.done()  # a call that has begun keeps its thread
    work.end.set()
    with pytest.raises(ClientLeft):
        await task
    assert workers.statistics().given_up == 1


async def test_a_call_cancelled_while_it_runs_keeps_its_slot_until_it_ends() -> None:
    workers = Workers(threads=1)
    work, result = submit(workers, "ann", READ)
    await until(work.begun.is_set)
    result.cancel()
    assert workers.statistics().running == 1
    work.end.set()
    await until(lambda: workers.statistics().running == 0)


async def test_a_call_cancelled_while_it_waits_never_begins() -> None:
    workers = Workers(threads=1)
    first, second, third = (submit(workers, "ann", READ) for _ in range(3))
    third[1].cancel()
    await settle()
    assert workers.statistics().calls == 2
    async with asyncio.timeout(WAIT):
        await end(first, second)
    assert not third[0].begun.is_set()


def test_a_call_may_end_after_its_event_loop() -> None:
    work, workers = Work(), Workers()

    async def main() -> None:
        workers.submit(work, user="ann")

    asyncio.run(main())
    work.end.set()
    workers.close()


async def test_an_idle_thread_keeps_no_call_in_memory() -> None:
    workers, work = Workers(), Work()
    await end((work, workers.submit(work, user="ann").result))
    kept = weakref.ref(work)
    del work
    await until(lambda: kept() is None)
    workers.close()


@pytest.mark.parametrize("kind", [KeyError, StopIteration, BaseException])
def test_an_error_in_a_call_is_raised_to_its_caller(kind: type[BaseException]) -> None:
    def work() -> str:
        raise kind("x")

    async def main() -> None:
        async with asyncio.timeout(WAIT):
            await Workers().submit(work, user="ann").result

    with pytest.raises(RuntimeError if kind is StopIteration else kind, match="x"):
        asyncio.run(main())


async def test_a_thread_requests_short_time_slices_before_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[int] = []
    monkeypatch.setattr(
        "strandline.metastore.workers.shorten_time_slices",
        lambda: requested.append(threading.get_ident()),
    )

    pool = Workers()
    result = await pool.submit(threading.get_ident, user="ann").result
    assert requested == [result]
    pool.close()
