from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from strandline.sql.fair_lock import FairLock
from tests.interrupts import is_interrupted


def test_acquire_gives_up_at_its_timeout() -> None:
    lock = FairLock()
    assert lock.acquire(timeout=0)
    assert lock.held_by_this_thread()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(lock.acquire(timeout=0.01)))
    thread.start()
    thread.join()
    assert answers == [False]
    assert lock.waiting() == 0
    lock.release()
    assert not lock.held_by_this_thread()
    assert lock.acquire(timeout=0)


def test_the_lock_is_handed_to_the_waiter_and_cannot_be_taken_by_another() -> None:
    lock = FairLock()
    lock.acquire(timeout=0)
    got = threading.Event()
    leave = threading.Event()

    def wait() -> None:
        assert lock.acquire(timeout=30)
        got.set()
        assert leave.wait(30)
        lock.release()

    thread = threading.Thread(target=wait)
    thread.start()
    while lock.waiting() == 0:
        time.sleep(0)
    lock.release()
    assert not lock.acquire(timeout=0)
    assert got.wait(30)
    leave.set()
    thread.join()
    assert lock.acquire(timeout=0)


def test_simultaneous_timeouts_and_handovers_lose_no_waiter() -> None:
    lock = FairLock()
    inside = 0
    served = 0

    def contend(timeout: float) -> None:
        nonlocal inside, served
        for _ in range(300):
            if lock.acquire(timeout=timeout):
                inside += 1
                assert inside == 1
                time.sleep(0)
                inside -= 1
                served += 1
                lock.release()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(contend, [n * 0.00005 for n in range(8)]))
    assert served > 0
    assert lock.waiting() == 0
    assert lock.acquire(timeout=0)


def test_a_waiter_that_is_interrupted_after_it_got_the_lock_gives_it_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = FairLock()
    lock.acquire(timeout=0)

    class Turn:
        """What a waiter waits for. Control-C interrupts it just when it gets the lock."""

        def acquire(self, timeout: float | None = None) -> None:
            if timeout is not None:
                lock.release()
                raise KeyboardInterrupt

        def release(self) -> None:
            pass

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Lock", Turn)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(timeout=30)
    assert not lock.held_by_this_thread()
    assert lock.acquire(timeout=0)


def test_an_interrupt_at_any_step_of_acquire_leaves_the_lock_free() -> None:
    step = 0
    while is_interrupted(partial((lock := FairLock()).acquire, timeout=0), at_step=step):
        assert lock.acquire(timeout=0)
        step += 1
    assert step > 3
