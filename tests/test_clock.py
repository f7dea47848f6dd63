"""The hybrid logical clock."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.clock import (
    MAX_TIMESTAMP,
    HybridClock,
    Timestamp,
    add_milliseconds,
    format_timestamp,
    logical,
    milliseconds,
    parse_timestamp,
    round_up,
    timestamp,
)
from strandline.errors import DeadlineExceeded, InvalidInput
from tests.conftest import ManualWall


def parts(at: Timestamp) -> tuple[int, int]:
    return milliseconds(at), logical(at)


def test_now_follows_the_wall_and_counts_where_the_wall_stands_still() -> None:
    wall = ManualWall(100)
    clock = HybridClock(wall)
    assert [parts(clock.now()) for _ in range(3)] == [(100, 0), (100, 1), (100, 2)]
    wall.now = 200
    assert parts(clock.now()) == (200, 0)
    wall.now = 50
    assert [parts(clock.now()) for _ in range(2)] == [(200, 1), (200, 2)]


def test_update_moves_past_what_was_heard() -> None:
    wall = ManualWall(100)
    clock = HybridClock(wall)
    assert parts(clock.update(timestamp(600))) == (600, 1)
    assert parts(clock.now()) == (600, 2)
    assert parts(clock.update(timestamp(10))) == (600, 3)


@given(st.lists(st.tuples(st.integers(1, 10_000), st.none() | st.integers(1, 10_000))))
def test_no_wall_clock_makes_now_repeat_or_go_back(
    steps: list[tuple[int, int | None]],
) -> None:
    wall = ManualWall(5)
    clock = HybridClock(wall)
    last = clock.now()
    for wall.now, heard in steps:
        if heard is not None:
            assert clock.update(timestamp(heard)) > timestamp(heard)
        assert clock.current() >= last
        now = clock.now()
        assert now > last
        last = now


def test_times_are_distinct_over_threads() -> None:
    clock = HybridClock(ManualWall())
    given_times: list[list[int]] = [[] for _ in range(8)]

    def take(into: list[int]) -> None:
        into.extend(clock.now() for _ in range(500))

    threads = [threading.Thread(target=take, args=(into,)) for into in given_times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({at for times in given_times for at in times}) == 4000


@pytest.mark.parametrize(("ms", "count"), [(-1, 0), (1 << 47, 0), (0, 0), (1, -1), (1, 1 << 16)])
def test_what_is_no_time_is_refused(ms: int, count: int) -> None:
    with pytest.raises(InvalidInput):
        timestamp(ms, count)


def test_arithmetic_keeps_the_counter_and_rounding_goes_up() -> None:
    at = timestamp(100, 7)
    assert parts(add_milliseconds(at, -50)) == (50, 7)
    assert parts(round_up(at)) == (101, 0)
    assert round_up(timestamp(100)) == timestamp(100)


@given(st.integers(1 << 16, min(MAX_TIMESTAMP, 253402300799_000 << 16)))
def test_every_time_is_read_back_from_its_text(number: int) -> None:
    at = Timestamp(number)
    text = format_timestamp(at)
    read = parse_timestamp(text.lower())
    assert milliseconds(read) == milliseconds(at)
    assert logical(read) == (logical(at) or 0xFFFF)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01 00:00:01.5", 1500),
        ("1970-01-01t01:00:01+01:00", 1000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_time_without_a_counter_is_the_end_of_its_millisecond(text: str, ms: int) -> None:
    assert parts(parse_timestamp(text)) == (ms, 0xFFFF)


@pytest.mark.parametrize("text", ["", "yesterday", "2013-13-01", "2013-01-01T00:00:00Z+x"])
def test_a_text_that_is_no_time_says_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidInput, match="write it like"):
        parse_timestamp(text)


def test_waiting_ends_when_the_clock_hears_a_later_time() -> None:
    clock = HybridClock(ManualWall(100))
    target = timestamp(10_000)
    thread = threading.Thread(target=lambda: clock.wait_until(target, timeout=30))
    thread.start()
    clock.update(target)
    thread.join(10)
    assert not thread.is_alive()


def test_waiting_ends_at_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match="did not reach"):
        HybridClock(ManualWall(100)).wait_until(timestamp(10_000), timeout=0.01)
