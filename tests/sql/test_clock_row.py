from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.clock import (
    MAX_AHEAD_MS,
    HybridClock,
    Timestamp,
    add_milliseconds,
    milliseconds,
    timestamp,
)
from strandline.errors import CorruptData, WrongClock
from strandline.sql import (
    Database,
    accept_time,
    accepted_time,
    change,
    check_time,
    highest_time,
    look_beside_rows,
    open_sqlite,
    stored_time,
    take_append_time,
    take_time,
)
from tests.sql.processes import Process


def take(database: Database, clock: HybridClock) -> Timestamp:
    with database.write() as connection:
        return take_time(connection, clock)


def stored(database: Database) -> Timestamp:
    with database.read() as connection:
        return stored_time(connection)


def test_the_stored_time_is_0_at_first(database: Database) -> None:
    assert stored(database) == 0


def test_a_time_is_that_of_the_wall_clock_if_that_is_ahead(database: Database) -> None:
    assert take(database, HybridClock(lambda: 5_000)) == timestamp(5_000)
    assert stored(database) == timestamp(5_000)


def test_a_time_is_the_last_one_plus_1_if_the_wall_clock_is_behind(database: Database) -> None:
    take(database, HybridClock(lambda: 5_000))
    slow = HybridClock(lambda: 1)
    assert take(database, slow) == timestamp(5_000, 1)
    assert slow.now() > timestamp(5_000, 1)


@pytest.mark.parametrize("behind", range(5))
def test_times_taken_together_are_all_above_the_last(database: Database, behind: int) -> None:
    last = take(database, HybridClock(lambda: 5_000))
    # Another write took the last time after this clock was read, and before this lock was taken.
    clock = HybridClock(lambda: 1)
    clock.update(Timestamp(last - behind - 2))
    with database.write() as connection:
        taken = take_time(connection, clock, count=3)
    assert taken - 3 >= last


def test_an_append_to_a_database_without_its_last_time_is_refused(database: Database) -> None:
    with database.write() as connection:
        change(connection, "DELETE FROM strandline_clock")
    with (
        pytest.raises(CorruptData, match="the last time of the store is missing"),
        database.write() as connection,
    ):
        take_append_time(database, connection, HybridClock(lambda: 5_000))


@pytest.mark.parametrize("rows", ["id = 1", "id = 3", "true"])
def test_a_database_without_a_last_time_is_damaged(database: Database, rows: str) -> None:
    with database.write() as connection:
        change(connection, f"DELETE FROM strandline_clock WHERE {rows}")
    damaged = pytest.raises(CorruptData, match="the last time of the store is missing")
    with damaged, database.read() as connection:
        highest_time(connection)


DAY = MAX_AHEAD_MS


def test_a_write_whose_time_would_be_too_far_ahead_is_refused(database: Database) -> None:
    ahead, right = HybridClock(lambda: 1_000 + DAY + 1), HybridClock(lambda: 1_000)
    last = take(database, ahead)
    for _ in range(2):
        with pytest.raises(WrongClock, match="run `strandline repair-clock` on this store"):
            take(database, right)
    assert stored(database) == last
    assert milliseconds(right.current()) == 1_000
    assert take(database, HybridClock(lambda: 1_001)) == last + 1
    patient = HybridClock(lambda: 1_000, max_ahead_ms=DAY + 1)
    assert take(database, patient) == last + 2


def test_times_that_are_ahead_increase_by_1_once_they_were_accepted(database: Database) -> None:
    wall = [1_000 + 9 * DAY]
    clock = HybridClock(lambda: wall[0])
    last = take(database, clock)
    wall[0] = 1_000
    with pytest.raises(WrongClock):
        take(database, clock)
    with database.write() as connection:
        accept_time(connection)
    with database.read() as connection:
        assert accepted_time(connection) == last
    times = [
        take(database, source) for source in (clock, HybridClock(lambda: 1_000)) for _ in range(3)
    ]
    assert times == sorted(set(times))
    assert times[0] > last
    assert times[-1] < add_milliseconds(last, 1)
    take(database, HybridClock(lambda: 1_000 + 99 * DAY))  # and it jumps once more
    with pytest.raises(WrongClock):
        take(database, HybridClock(lambda: 1_000))
    wall[0] = 1_000 + 99 * DAY
    assert take(database, clock) > timestamp(wall[0])


def test_a_time_that_only_a_look_has_taken_stops_appends_until_it_is_accepted(
    database: Database,
) -> None:
    ahead, right = HybridClock(lambda: 1_000 + 9 * DAY), HybridClock(lambda: 1_000)
    _, looked_at = look_beside_rows(database, ahead, lambda connection: None, first=())
    with pytest.raises(WrongClock), database.write() as connection:
        take_append_time(database, connection, right)
    with pytest.raises(WrongClock), database.read() as connection:
        check_time(connection, right)
    with database.write() as connection:
        accept_time(connection)
    with database.write() as connection:
        check_time(connection, right)
        assert take_append_time(database, connection, right) > looked_at


def test_a_failed_write_does_not_use_up_its_time(database: Database) -> None:
    def fail() -> None:
        with database.write() as connection:
            take_time(connection, HybridClock())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert stored(database) == 0


@pytest.mark.slow
@settings(max_examples=30)  # each example makes a file, on a disk that syncs
@given(walls=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 1 << 40)), max_size=20))
def test_times_increase_whatever_the_wall_clocks_show(
    tmp_path_factory: pytest.TempPathFactory, walls: list[tuple[int, int]]
) -> None:
    database = open_sqlite(tmp_path_factory.mktemp("clock") / "strandline.db")
    now = [1, 1, 1]
    clocks = [HybridClock(lambda node=node: now[node], max_ahead_ms=1 << 46) for node in range(3)]  # type: ignore[misc]  # mypy can not type a lambda with a default
    times = []
    for node, wall in walls:
        now[node] = wall
        times.append(take(database, clocks[node]))
    database.close()
    assert all(earlier < later for earlier, later in pairwise(times))
    assert all(time >= timestamp(wall) for time, (_, wall) in zip(times, walls, strict=True))


def test_times_increase_over_processes_with_different_wall_clocks(url: str) -> None:
    with ExitStack() as stack:
        others = [
            stack.enter_context(Process("tests.sql.work:take_times", url, wall, 60))
            for wall in (1_000, 50_000, 50_001)
        ]
        for other in others:
            assert other.hear() == "ready"
        for other in others:
            other.say("go")
        pairs = sorted(tuple(pair) for other in others for pair in other.hear())
    # Each time was taken on top of the previous one, so the pairs form one chain.
    assert len(pairs) == 180
    assert pairs[0][0] == 0
    for (_, taken), (earlier, _) in pairwise(pairs):
        assert taken == earlier
    assert all(earlier < taken for earlier, taken in pairs)
