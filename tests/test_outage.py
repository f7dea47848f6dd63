"""How long calls wait for a server that cannot be reached."""

from __future__ import annotations

import logging
import math

import pytest

from strandline import outage
from strandline.outage import Outage, answer_deadline, failing_at_once, waiting_until


class Times:
    """A clock that stands still except in a sleep."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(outage, "time", times)
    return times


def pauses(server: Outage, *, end: float = math.inf) -> bool:
    return server.pause("refused", timeout=30.0, end=end)


def test_a_server_that_has_never_answered_is_not_waited_for(times: Times) -> None:
    server = Outage("db")
    assert not pauses(server)
    assert server.pause("no leader", timeout=30.0, end=math.inf, has_answered=True)
    assert pauses(server)


def test_calls_wait_until_the_timeout_has_passed_since_the_beginning(times: Times) -> None:
    server = Outage("db")
    server.end()
    while pauses(server):
        pass
    assert 1_024.0 < times.now <= 1_025.0
    assert times.sleeps[0] == 0.05
    assert max(times.sleeps) == 1.0
    assert len(times.sleeps) < 60
    times.now += 100.0
    assert not pauses(server)  # a call that comes later fails at once


def test_a_call_waits_no_longer_than_its_own_time(times: Times) -> None:
    server = Outage("db")
    server.end()
    while pauses(server, end=1_002.0):
        pass
    assert 1_001.0 < times.now <= 1_002.0
    assert pauses(server)


def test_a_thread_that_tries_again_itself_does_not_wait(times: Times) -> None:
    server = Outage("db")
    server.end()
    with failing_at_once():
        with failing_at_once():
            assert not pauses(server)
        assert not pauses(server)
    assert pauses(server)


def test_the_calls_of_a_block_with_a_deadline_wait_no_longer(times: Times) -> None:
    server = Outage("db")
    server.end()
    with waiting_until(1_002.0), waiting_until(1_020.0):
        while pauses(server):
            pass
    assert 1_001.0 < times.now <= 1_002.0
    assert pauses(server)


def test_an_outage_is_long_once_no_call_waits_for_its_end(times: Times) -> None:
    server = Outage("db")
    server.end()
    assert not server.is_long()
    while pauses(server):
        assert not server.is_long()
    times.now += 1.0
    assert server.is_long()
    server.end()
    assert not server.is_long()


def test_only_a_block_that_says_so_limits_the_wait_for_an_answer() -> None:
    with failing_at_once(), waiting_until(7.0, for_answers=False):
        assert answer_deadline() == math.inf
    with waiting_until(8.0), waiting_until(9.0):
        assert answer_deadline() == 8.0
    assert answer_deadline() == math.inf


def test_each_outage_is_waited_for_and_logged_once(
    times: Times, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = Outage("db")
    server.end()
    for _ in range(2):
        assert pauses(server)
        assert pauses(server)
        times.now += 100.0
        server.end()
        server.end()
    assert (
        caplog.messages
        == [
            "db cannot be reached (refused); calls wait for it for up to 25 s",
            "db can be reached again, after 100.1 s",
        ]
        * 2
    )
