"""The hybrid logical clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.clock import (
    MAX_AHEAD_MS,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    HybridClock,
    Timestamp,
    add_milliseconds,
    format_timestamp,
    logical,
    milliseconds,
    milliseconds_before,
    parse_timestamp,
    round_up,
    system_elapsed,
    timestamp,
)
from strandline.errors import DeadlineExceeded, InvalidInput, WrongClock
from tests.case_table import CaseTable
from tests.conftest import ManualWall


def parts(at: Timestamp) -> tuple[int, int]:
    return milliseconds(at), logical(at)


@dataclass(frozen=True)
class Asked:
    """One call of the clock while the wall clock shows ``wall``: milliseconds and counter."""

    wall: int
    gives: tuple[int, int]
    heard: int | None = None
    """Milliseconds of a time that the clock is updated with; if None, it is asked for the time."""


VECTORS = CaseTable(
    "the clock follows the wall and what it hears, and never stands",
    cases=[87],
    rows=[
        pytest.param(
            [
                *(Asked(100, (100, count)) for count in range(3)),
                Asked(200, (200, 0)),
                Asked(50, (200, 1)),
                Asked(50, (200, 2)),
            ],
            id="it counts where the wall stands still or goes back",
        ),
        pytest.param(
            [
                Asked(100, (100, 0)),
                Asked(100, (600, 1), heard=600),
                Asked(100, (600, 2)),
                Asked(500, (600, 3)),
                Asked(601, (601, 0)),
            ],
            id="it is ahead of what it heard until the wall has passed it",
        ),
        pytest.param(
            [
                Asked(600, (600, 0)),
                Asked(600, (600, 1), heard=10),
                Asked(700, (700, 0), heard=600),
                Asked(700, (700, 1), heard=700),
                Asked(700, (700, 2), heard=700),
            ],
            id="what is past moves it on by one",
        ),
    ],
)


@pytest.mark.parametrize("steps", VECTORS.rows)
def test_the_clock_follows_the_wall_and_later_times_and_never_stops(steps: list[Asked]) -> None:
    wall = ManualWall(steps[0].wall)
    clock = HybridClock(wall)
    for step in steps:
        wall.now = step.wall
        time = clock.now() if step.heard is None else clock.update(timestamp(step.heard))
        assert parts(time) == step.gives
        assert clock.current() == time


@given(st.lists(st.tuples(st.integers(1, 10_000), st.none() | st.integers(1, 10_000))))
def test_now_never_repeats_or_goes_back_whatever_the_wall_clock_does(
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


def test_the_largest_timestamp_is_refused() -> None:
    clock = HybridClock(ManualWall(100))
    with pytest.raises(InvalidInput, match="no clock can move past it"):
        clock.update(MAX_TIMESTAMP)
    assert parts(clock.now()) == (100, 0)
    assert clock.ahead_of_wall(timestamp(130, 5)) == 30
    assert clock.ahead_of_wall(timestamp(70)) == -30


def test_times_are_unique_across_threads() -> None:
    clock = HybridClock(ManualWall())

    def take(_: int) -> list[int]:
        return [clock.now() for _ in range(500)]

    with ThreadPoolExecutor(8) as threads:
        assert len({at for times in threads.map(take, range(8)) for at in times}) == 4000


NO_TIMES = CaseTable(
    "what lies outside 48 bits and 16 bits, or is 0, is no time",
    cases=[87],
    rows=[
        (lambda: timestamp(-1), "time -1 ms since 1970 is out of bounds"),
        (lambda: timestamp(1 << 47), "times lie between 1970 and the year 6429"),
        (lambda: timestamp(1 << 48), "times lie between 1970 and the year 6429"),
        (lambda: timestamp(1, -1), "logical time is out of bounds: -1"),
        (lambda: timestamp(1, 1 << 16), "logical time is out of bounds: 65536"),
        (lambda: timestamp(0, 0), "0 means 'no time'"),
        (
            lambda: add_milliseconds(timestamp(100, 7), -101),
            "time -1 ms since 1970 is out of bounds",
        ),
        (lambda: add_milliseconds(timestamp(100), -100), "0 means 'no time'"),
        (
            lambda: add_milliseconds(timestamp(1), (1 << 47) - 1),
            "times lie between 1970 and the year 6429",
        ),
        (lambda: round_up(timestamp((1 << 47) - 1, 1)), "times lie between 1970 and the year 6429"),
    ],
)


@pytest.mark.parametrize(("make", "says"), NO_TIMES.rows)
def test_an_invalid_timestamp_is_refused(make: Callable[[], Timestamp], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        make()


ARITHMETIC = CaseTable(
    "a time that is moved keeps its counter, and rounding goes up to the next millisecond",
    cases=[87],
    rows=[
        (add_milliseconds(timestamp(100, 7), 50), (150, 7)),
        (add_milliseconds(timestamp(100, 7), -50), (50, 7)),
        (add_milliseconds(timestamp(100, 7), -100), (0, 7)),
        (milliseconds_before(timestamp(100, 7), 99), (1, 7)),
        (milliseconds_before(timestamp(100, 7), 100), (0, 1)),
        (milliseconds_before(timestamp(100, 7), 1000), (0, 1)),
        (round_up(timestamp(100, 7)), (101, 0)),
        (round_up(timestamp(100)), (100, 0)),
        (timestamp(0, 1), (0, 1)),
        (MIN_TIMESTAMP, (0, 1)),
        (MAX_TIMESTAMP, ((1 << 47) - 1, (1 << 16) - 1)),
        (timestamp(1) - 1, (0, (1 << 16) - 1)),
    ],
)


@pytest.mark.parametrize(("time", "due"), ARITHMETIC.rows)
def test_times_are_moved_and_rounded_as_listed(time: Timestamp, due: tuple[int, int]) -> None:
    assert parts(time) == due


@given(st.integers(1 << 16, min(MAX_TIMESTAMP, 253402300799_000 << 16)))
def test_every_time_can_be_parsed_from_its_text(number: int) -> None:
    at = Timestamp(number)
    text = format_timestamp(at)
    read = parse_timestamp(text.lower())
    assert milliseconds(read) == milliseconds(at)
    assert logical(read) == (logical(at) or 0xFFFF)
    assert format_timestamp(read) == text


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01 00:00:01.5", 1500),
        ("1970-01-01t01:00:01+01:00", 1000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_text_without_a_counter_is_the_end_of_its_millisecond(text: str, ms: int) -> None:
    assert parts(parse_timestamp(text)) == (ms, 0xFFFF)


@pytest.mark.parametrize("text", ["", "yesterday", "2013-13-01", "2013-01-01T00:00:00Z+x"])
def test_an_invalid_time_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="write it like"):
        parse_timestamp(text)


def test_waiting_ends_when_the_clock_is_updated_with_a_later_time() -> None:
    is_read = threading.Event()

    def wall() -> int:
        is_read.set()  # by the waiting thread, which holds the clock's lock until it waits
        return 100

    clock = HybridClock(wall)
    target = timestamp(MAX_AHEAD_MS)
    thread = threading.Thread(target=lambda: clock.wait_until(target, timeout=60))
    thread.start()
    assert is_read.wait(60)
    clock.update(target)
    thread.join(20)
    assert not thread.is_alive()


def test_a_time_that_the_clock_has_reached_is_not_waited_for() -> None:
    clock = HybridClock(ManualWall(100))
    clock.wait_until(clock.update(timestamp(10_000)), timeout=0)


def test_waiting_ends_at_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match="did not reach"):
        HybridClock(ManualWall(100)).wait_until(timestamp(10_000), timeout=0.01)


def test_a_time_that_was_reached_stays_reached_if_the_wall_clock_is_set_back() -> None:
    wall = ManualWall()
    clock = HybridClock(wall)
    read, awaited = clock.current(), timestamp(wall.now + 5)
    wall.now -= 10
    assert clock.current() == read
    wall.now += 15
    clock.wait_until(awaited, timeout=0)
    wall.now -= 15
    assert clock.current() == awaited
    assert clock.now() >= awaited
    assert clock.update(read) > awaited


# -- jumps of the wall clock -----------------------------------------------------------------------


def test_a_far_forward_jump_of_the_wall_clock_is_refused_and_has_no_later_effect() -> None:
    wall, elapsed = ManualWall(), ManualWall(5)
    clock = HybridClock(wall, elapsed=elapsed)
    before = clock.now()
    wall.now += 400 * MAX_AHEAD_MS
    elapsed.now += 10
    for _ in range(2):
        with pytest.raises(WrongClock, match="it jumped forward"):
            clock.now()
    with pytest.raises(WrongClock, match="it jumped forward"):
        clock.check()
    assert parts(clock.current()) == (1_000_010, 0)
    assert clock.ahead_of_wall(before) == -10
    clock.update(before)
    wall.now = 1_000_020
    clock.check()
    assert parts(clock.now()) == (1_000_020, 0)


def test_a_jump_of_the_clock_of_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HybridClock()
    jumped = time.time_ns() + 2 * MAX_AHEAD_MS * 1_000_000
    monkeypatch.setattr("strandline.clock._time.time_ns", lambda: jumped)
    with pytest.raises(WrongClock, match="it jumped forward"):
        clock.now()


@pytest.mark.parametrize(
    ("passed", "heard"),
    [
        pytest.param(0, None, id="a day is allowed"),
        pytest.param(400 * MAX_AHEAD_MS, None, id="it slept for so long"),
        pytest.param(0, 400 * MAX_AHEAD_MS, id="its store is as far"),
    ],
)
def test_an_explained_forward_jump_of_the_wall_clock_is_accepted(
    passed: int, heard: int | None
) -> None:
    wall, elapsed = ManualWall(), ManualWall(5)
    clock = HybridClock(wall, elapsed=elapsed)
    elapsed.now += passed
    if heard is not None:
        clock.update(timestamp(wall.now + heard))
    wall.now += MAX_AHEAD_MS + passed + (heard or 0)
    assert parts(clock.now()) == (wall.now, 0)


def test_a_wall_clock_that_is_set_back_and_forward_again_is_accepted() -> None:
    wall, elapsed = ManualWall(), ManualWall(5)
    clock = HybridClock(wall, elapsed=elapsed)
    clock.now()
    wall.now = 3
    clock.now()
    wall.now = 1_000_000 + MAX_AHEAD_MS
    elapsed.now += 100
    assert parts(clock.now()) == (wall.now, 0)


def test_elapsed_time_is_positive_and_never_goes_back() -> None:
    first = system_elapsed()
    assert 0 < first <= system_elapsed()
