"""The lane of long work: who enters it, in which order, and what is given back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.work import SLICE, SMALL, TIDY_AFTER, Lane, in_order, slices


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.001)


def test_few_things_need_no_turn() -> None:
    lane = Lane()
    with lane.lane(SMALL):
        assert lane.idle()
    assert list(lane.paced(range(SMALL))) == list(range(SMALL))
    assert lane.statistics().turns == 0


def test_many_things_have_the_lane_alone() -> None:
    lane = Lane()
    with ThreadPoolExecutor(1) as threads:
        with lane.lane(SMALL + 1):
            waiting = threads.submit(lambda: list(lane.paced(range(SMALL + 5))))
            until(lambda: lane.statistics().waiting == 1)
            assert not waiting.done()
        assert waiting.result() == list(range(SMALL + 5))
    found = lane.statistics()
    assert (found.turns, found.things, found.waiting) == (2, SMALL + 1 + 5, 0)
    assert lane.idle()


def test_a_turn_begins_with_the_first_thing_too_many() -> None:
    lane = Lane()
    items = lane.paced(range(SMALL + 2))
    for _ in range(SMALL):
        next(items)
    assert lane.idle()
    next(items)
    assert not lane.idle()
    items.close()  # type: ignore[attr-defined]  # it is a generator
    assert lane.idle()


def test_turns_come_in_order_of_arrival() -> None:
    lane, order = Lane(), list[int]()

    def take(number: int) -> None:
        with lane.lane(SMALL + 1):
            order.append(number)

    # The lane is left before the pool waits for its threads.
    with ThreadPoolExecutor(5) as threads, lane.lane(SMALL + 1):
        for number in range(5):
            threads.submit(take, number)
            until(lambda number=number: lane.statistics().waiting == number + 1)  # type: ignore[misc]  # mypy sees no default
    assert order == list(range(5))


def test_a_turn_inside_a_turn_waits_for_nobody() -> None:
    lane = Lane()
    with lane.lane(SMALL + 1), lane.lane(SMALL + 1):
        assert list(lane.paced(range(SMALL * 2))) == list(range(SMALL * 2))
        assert not lane.idle()
    assert lane.idle()
    assert lane.statistics().turns == 1


def test_one_that_fails_leaves_the_lane() -> None:
    lane = Lane()
    with pytest.raises(KeyError), lane.lane(SMALL + 1):
        raise KeyError
    assert lane.idle()


def test_one_that_is_interrupted_while_it_waits_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = Lane()

    def interrupted(*_: object, **named: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lane._free, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), lane.lane(SMALL + 1):
            pass
    with lane.lane(SMALL + 1):
        pass
    assert lane.idle()


def test_a_turn_that_is_never_left_is_passed() -> None:
    lane = Lane()
    lane.patience = 0.01
    kept = lane.paced(range(SMALL + 2))  # as in the frames of an error that somebody keeps
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: [next(kept) for _ in range(SMALL + 1)]).result()
        with lane.lane(SMALL + 1):
            kept.close()  # type: ignore[attr-defined]  # it is a generator
            assert not lane.idle()
    assert lane.idle()


def test_memory_is_given_back_behind_much_work_and_not_during_it() -> None:
    lane = Lane()
    with lane.lane(TIDY_AFTER):
        assert not lane.tidy()
    assert lane.tidy()
    assert not lane.tidy()
    assert lane.statistics().tidied == 1


def test_slices_hold_no_more_than_one_call_may_go_over() -> None:
    items = list(range(SLICE * 2 + 1))
    pieces = list(slices(items))
    assert [len(piece) for piece in pieces] == [SLICE, SLICE, 1]
    assert [item for piece in pieces for item in piece] == items


@pytest.mark.parametrize("count", [0, 1, SLICE, SLICE + 1, 3 * SLICE + 7])
def test_names_come_in_order_however_many_they_are(count: int) -> None:
    names = {f"name-{(number * 7919) % (count + 1)}": number for number in range(count)}
    assert list(in_order(names)) == sorted(names)
