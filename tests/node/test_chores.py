"""The background chores of a node: repeated, whatever fails, until the node stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from strandline.errors import CorruptData, Stopping, Unavailable
from strandline.node.chores import Chores

PATIENCE_SECONDS = 60.0


@pytest.fixture
def chores() -> Iterator[Chores]:
    with Chores() as chores:
        yield chores


class Counted:
    """A chore that counts its runs, and raises ``errors`` one after the other."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self._done = threading.Semaphore(0)

    def __call__(self) -> None:
        self._done.release()
        if self._errors:
            raise self._errors.pop(0)

    def wait(self, times: int) -> None:
        for _ in range(times):
            assert self._done.acquire(timeout=PATIENCE_SECONDS)


def test_a_failed_chore_is_logged_and_repeated_like_the_others(
    chores: Chores, caplog: pytest.LogCaptureFixture
) -> None:
    errors = Unavailable("no server"), CorruptData("broken"), RuntimeError("a mistake")
    failing, other = Counted(*errors), Counted()
    chores.repeat("t", {"counting": failing, "the other": other}, pauses=repeat(0))
    failing.wait(5)
    other.wait(3)
    logged = [(r.levelno, r.getMessage()) for r in caplog.records]
    assert logged == [
        (logging.WARNING, "counting failed: no server; it will be tried again later"),
        (logging.ERROR, "counting failed: broken; it will be tried again later"),
        (logging.ERROR, "counting failed; it will be tried again later"),
    ]
    assert chores.statistics().failures == {"counting": 3, "the other": 0}


def test_a_failure_that_repeats_is_logged_once_and_again_after_a_success(
    chores: Chores, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    outcomes: list[Exception | None] = [Unavailable("no server")] * 3 + [None]

    def count() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    for _ in range(4):
        assert chores.do("counting", count)
    outcomes.append(Unavailable("no server"))
    assert chores.do("counting", count)
    failed = "counting failed: no server; it will be tried again later"
    assert caplog.messages == [failed, "counting works again", failed]
    assert chores.statistics().failures == {"counting": 4}


def test_a_pause_may_be_longer_than_a_thread_can_wait(
    chores: Chores,
) -> None:
    chore = Counted()
    chores.repeat("t", {"counting": chore}, pauses=chain([0, 0], repeat(1e12)))
    chore.wait(2)
    assert not chore._done.acquire(timeout=0.05)


def test_chores_end_when_the_node_is_stopping(chores: Chores) -> None:
    chores.stopping.set()
    with pytest.raises(Stopping):
        chores.refuse_when_stopping()
    assert not chores.do("stopping", chores.refuse_when_stopping)
    chore = Counted()
    chores.repeat("t", {"counting": chore}, pauses=repeat(0))
    chores.join()
    assert not chore._done.acquire(blocking=False)


def test_join_does_not_wait_for_a_thread_that_could_not_start(
    chores: Chores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        chores.repeat("t", {}, pauses=repeat(0))
    chores.stopping.set()
    chores.join()
