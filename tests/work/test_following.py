"""A background task that reports its failures and continues."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from strandline.errors import CorruptData, Fenced, Stopping, Unavailable
from strandline.work import following
from strandline.work.following import FollowingThread


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(following, "LONGEST_PAUSE", 0.002)


def test_a_failure_is_logged_counted_and_followed_by_another_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds, enough = [0], threading.Event()

    def round_() -> None:
        rounds[0] += 1
        if rounds[0] <= 3:
            raise (Unavailable("away"), CorruptData("broken"), KeyError("a bug"))[rounds[0] - 1]
        enough.set()

    caplog.set_level(logging.WARNING)
    follower = FollowingThread(round_, name="applier")
    follower.start()
    assert enough.wait(60)
    assert follower.running()
    follower.stop()
    assert not follower.running()
    assert follower.failures == 3
    assert follower.last_failure == "KeyError: 'a bug'"
    # An unavailable store is only a warning: it is not a defect. Only a defect has frames.
    assert [
        (r.levelname, r.getMessage().partition(";")[0], r.exc_info is not None)
        for r in caplog.records
    ] == [
        ("WARNING", "applier: away", False),
        ("ERROR", "applier: broken", False),
        ("ERROR", "applier failed", True),
    ]


def test_a_thread_that_the_system_could_not_start_can_be_stopped_and_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a node that cannot start would not close its store."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran = threading.Event()
    follower = FollowingThread(ran.set, name="applier")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="start new thread"):
            follower.start()
    follower.stop()
    follower.start()
    assert ran.wait(60)
    follower.stop()


def test_a_failure_that_repeats_is_logged_once_and_again_after_a_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds = iter(["away", "away", "full", "full", "", "full"])
    ended = threading.Event()

    def round_() -> None:
        failure = next(rounds, None)
        if failure is None:
            ended.set()
            raise Stopping("closed")
        if failure:
            raise Unavailable(failure)

    caplog.set_level(logging.INFO)
    follower = FollowingThread(round_, name="applier")
    follower.start()
    assert ended.wait(60)
    follower.stop()
    assert follower.failures == 5
    assert [message.partition(";")[0].partition(",")[0] for message in caplog.messages] == [
        "applier: away",
        "applier: full",
        "the thread applier works again",
        "applier: full",
    ]


def test_pauses_between_failures_grow_up_to_the_longest_and_begin_again_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds, pauses = iter([False, False, False, True, False]), list[float]()

    def round_() -> None:
        works = next(rounds, None)
        if works is None:
            raise Stopping("closed")
        if not works:
            raise Unavailable("away")

    follower = FollowingThread(round_, name="applier")
    monkeypatch.setattr(follower._stop, "wait", pauses.append)
    follower.start()
    thread = follower._thread
    assert thread is not None
    thread.join(60)
    assert pauses == [0.001, 0.002, 0.002, 0.001]


def test_a_check_raises_unless_the_last_round_ended_recently_and_without_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, begun, failures = [100.0], threading.Semaphore(0), SimpleQueue[str]()
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def round_() -> None:
        begun.release()
        if failure := failures.get(timeout=60):
            raise Unavailable(failure)

    def end_round(failure: str = "") -> None:
        failures.put(failure)
        assert begun.acquire(timeout=60)

    follower = FollowingThread(round_, name="applier")
    for _ in range(2):  # it can be started again
        follower.start()
        thread = follower._thread
        follower.start()  # it runs already
        assert follower._thread is thread
        assert thread is not None
        assert thread.daemon  # so a process can end
        assert begun.acquire(timeout=60)
        follower.check(longest=5.0)
        now[0] += 6.0
        with pytest.raises(Unavailable, match=r"for 6\.0 s"):
            follower.check(longest=5.0)
        end_round()
        follower.check(longest=5.0)
        end_round("away")
        with pytest.raises(Unavailable, match="away"):
            follower.check(longest=5.0)
        end_round()
        follower.check(longest=5.0)
        follower.stop(wake=lambda: failures.put(""))
        with pytest.raises(Unavailable, match="not running"):
            follower.check(longest=5.0)
        follower.stop()  # it has stopped already
        now[0] += 100.0


def test_a_round_can_stop_its_own_thread() -> None:
    threads = SimpleQueue[threading.Thread]()

    def round_() -> None:
        threads.put(threading.current_thread())
        follower.stop()

    follower = FollowingThread(round_, name="applier")
    follower.start()
    threads.get(timeout=60).join(60)
    assert not follower.running()
    assert follower.failures == 0


def test_the_time_of_an_outage_is_counted_from_its_first_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds, ended = iter(["waits for hours and fails", "fails", "works"]), threading.Event()
    now = [0.0]
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def round_() -> None:
        what = next(rounds, None)
        now[0] += 7200 if what == "waits for hours and fails" else 1
        if what is None:
            ended.set()
            raise Stopping("closed")
        if what != "works":
            raise Unavailable("away")

    caplog.set_level(logging.INFO)
    follower = FollowingThread(round_, name="projector")
    follower.start()
    assert ended.wait(60)
    follower.stop()
    assert caplog.messages[-1] == "the thread projector works again, after 2.0 s"


@pytest.mark.parametrize("error", [Stopping("closed"), Fenced("another node has it")])
def test_a_follower_ends_without_a_failure_if_its_source_is_closed_or_lost(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = [0]

    def round_() -> None:
        rounds[0] += 1
        raise error

    follower = FollowingThread(round_, name="applier", final=(Fenced,))
    follower.start()
    thread = follower._thread
    assert thread is not None
    thread.join(60)
    assert not follower.running()
    assert (rounds, follower.failures, caplog.messages) == ([1], 0, [])


def test_a_recorded_failure_keeps_no_object_of_its_round_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following.logger, "disabled", True)  # pytest keeps logged exceptions

    class Cursor:
        """An object that would keep a database from being closed."""

    failed = threading.Event()
    cursors: list[weakref.ref[Cursor]] = []

    def round_() -> None:
        if cursors:
            failed.set()
            raise Stopping("closed")
        cursor = Cursor()
        cursors.append(weakref.ref(cursor))
        raise Unavailable("away")

    follower = FollowingThread(round_, name="applier")
    gc.disable()
    try:
        follower.start()
        assert failed.wait(60)
        follower.stop()
        assert follower.last_failure == "Unavailable: away"
        assert cursors[0]() is None
    finally:
        gc.enable()
