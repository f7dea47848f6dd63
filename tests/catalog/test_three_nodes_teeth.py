"""The checks of `test_three_nodes` find each mistake that a node can be started with.

Here they do less of the same, on PostgreSQL, with two or three nodes, which all make the mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.catalog.node_faults import NODE_FAULTS
from tests.catalog.test_three_nodes import (
    Nodes,
    a_node_that_was_stopped_never_answers_with_an_old_catalog,
    a_node_whose_clock_is_behind_has_it_when_the_call_returns,
    a_store_that_was_away_leaves_no_trace,
    breakable,
    every_node_has_what_a_call_did_as_soon_as_it_returns,
    started,
)
from tests.metastorage.stores import STORES

DELAY_MS, SKEW_MS = 100, 50
LONG_MS = 3_000
"""More than calls and reads take on a busy machine, when they wait for no clock."""
STORE = STORES["postgresql"]

Check = Callable[[Path, str | None], None]


def nodes_on(
    folder: Path, fault: str | None, *, count: int, delay_ms: int = DELAY_MS, skew_ms: int = SKEW_MS
) -> AbstractContextManager[Nodes]:
    address = STORE.create(folder)
    return started(address, folder, count=count, delay_ms=delay_ms, skew_ms=skew_ms, fault=fault)


def one_call(folder: Path, fault: str | None) -> None:
    with nodes_on(folder, fault, count=2, skew_ms=LONG_MS) as nodes:
        a_node_whose_clock_is_behind_has_it_when_the_call_returns(nodes, turns=5)


def many_calls(folder: Path, fault: str | None, *, delay_ms: int = DELAY_MS) -> None:
    with nodes_on(folder, fault, count=3, delay_ms=delay_ms) as nodes:
        for number in range(10):  # the first one suffices, unless the machine is busy
            every_node_has_what_a_call_did_as_soon_as_it_returns(
                nodes, rounds=[number], each=8, threads=4, waiting_ms=delay_ms + SKEW_MS
            )


def a_stop(folder: Path, fault: str | None) -> None:
    delay_ms = 5 * DELAY_MS
    with nodes_on(folder, fault, count=2, delay_ms=delay_ms) as nodes:
        a_node_that_was_stopped_never_answers_with_an_old_catalog(
            nodes, folder, turns=50, delays=3, delay_ms=delay_ms
        )


def an_absence(
    folder: Path, fault: str | None, *, away: float = 3.0, late: float = 60.0, long: float = 240.0
) -> None:
    with breakable(STORE, folder, count=2, delay_ms=DELAY_MS, skew_ms=SKEW_MS, fault=fault) as (
        nodes,
        absence,
    ):
        a_store_that_was_away_leaves_no_trace(
            nodes, absence, patience=1.0, away=away, short=0.3, late=late, long=long
        )


TEETH: dict[str, tuple[Check, str]] = {
    "return_when_it_is_in_the_log": (
        partial(many_calls, delay_ms=LONG_MS),
        "another node did not|a call did not wait",
    ),
    "leave_the_skew_out": (one_call, "whose clock is behind"),
    "acknowledge_a_lost_append": (many_calls, "another node did not have it"),
    "one_version_for_a_group": (many_calls, "told the same version"),
    "new_ids_for_each_try": (an_absence, "already_exists"),
    "carry_out_who_has_left": (an_absence, "what would never happen did"),
    "wait_for_ever": (partial(an_absence, late=0.7), "waits longer than it said"),
    "news_every_minute": (many_calls, "another node did not have it"),
    "memory_without_a_look": (a_stop, "an old catalog"),
    "time_of_its_own_cpu": (a_stop, "an old catalog"),
    "time_in_ticks": (a_stop, "an old catalog"),
    "memory_where_the_store_is_away": (
        partial(an_absence, away=30.0),  # memory answers once a look has failed
        "a read while the store is away",
    ),
    "errors_of_the_driver": (an_absence, "untyped"),
    "give_the_store_up": (partial(an_absence, long=24.0), "did not get what it waited for"),
    "follow_until_the_first_failure": (partial(an_absence, long=30.0), "does not follow the log"),
}


def test_each_mistake_has_a_check() -> None:
    assert set(TEETH) == set(NODE_FAULTS)


@pytest.mark.teeth
@pytest.mark.parametrize("fault", TEETH)
def test_the_checks_find_each_mistake(fault: str, tmp_path: Path) -> None:
    check, complaint = TEETH[fault]
    with pytest.raises(AssertionError, match=complaint):
        check(tmp_path, fault)
