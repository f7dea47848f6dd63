"""What a node does in the background: again and again, whatever fails, until it stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from strandline.errors import Stopping, Unavailable
from strandline.node.chores import Chores

PATIENCE_SECONDS = 60.0


@pytest.fixture
def chores() -> Iterator[Chores]:
    chores = Chores()
    yield chores
    chores.stopping.set()
    chores.join()


class Counted:
    """A chore that counts, and raises ``errors`` one after the other."""

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


def test_a_chore_that_fails_is_logged_and_done_again_and_so_are_those_beside_it(
    chores: Chores, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = Counted(Unavailable("no server"), RuntimeError("a mistake")), Counted()
    chores.repeat("t", {"counting": failing, "the other": other}, pauses=repeat(0))
    failing.wait(5)
    other.wait(3)
    logged = [(r.levelno, r.getMessage()) for r in caplog.records]
    assert logged == [
        (logging.WARNING, "counting failed: no server; it will be tried again later"),
        (logging.ERROR, "counting failed; it will be tried again later"),
    ]


def test_each_pause_is_waited_for_and_may_be_longer_than_a_thread_can_wait(
    chores: Chores,
) -> None:
    chore = Counted()
    chores.repeat("t", {"counting": chore}, pauses=chain([0, 0], repeat(1e12)))
    chore.wait(2)
    assert not chore._done.acquire(timeout=0.05)


def test_a_chore_that_finds_the_node_stopping_is_the_last(chores: Chores) -> None:
    chores.stopping.set()
    with pytest.raises(Stopping):
        chores.refuse_when_stopping()
    assert not chores.do("stopping", chores.refuse_when_stopping)
    chore = Counted()
    chores.repeat("t", {"counting": chore}, pauses=repeat(0))
    chores.join()
    assert not chore._done.acquire(blocking=False)


def test_a_thread_that_cannot_start_is_not_waited_for(
    chores: Chores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        chores.repeat("t", {}, pauses=repeat(0))
    chores.stopping.set()
    chores.join()
