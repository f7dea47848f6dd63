"""Calls that share writes, in each order of the steps of their callers and the thread."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from strandline.transactions.shared_writes import SharedWrites
from tests.schedules import Race, explore, scheduled
from tests.transactions.stores import FLIGHTS, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with scheduled():  # a thread may stop while it has a lock of the database
        made = Store(tmp_path / "strandline.db")
    with closing(made.database):
        yield made


def explored(store: Store) -> int:
    """Allocate a write id, and begin, at the same time; return how many orders there are."""

    def scenario(race: Race) -> None:
        transactions, began = store.heard_by(), time.monotonic()
        writer = transactions.begin(user="ann").txn_id
        given, begun = race(
            lambda: transactions.allocating(writer, FLIGHTS).run(),
            lambda: transactions.begin(user="bob"),
        )
        assert list(given) == [writer]
        assert begun.txn_id == writer + 1
        assert transactions._shared.counts()[2] == 0
        assert time.monotonic() - began < 1.0, "a call waited until the thread woke up by itself"

    steps = (SharedWrites.run, SharedWrites._enqueue, SharedWrites._wake)
    return explore(scenario, steps_in=steps)


def test_no_call_waits_longer_than_its_round_in_any_order(store: Store) -> None:
    assert explored(store) > 20


@pytest.mark.teeth
def test_a_caller_that_wakes_nobody_after_its_own_round_is_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake = SharedWrites._wake

    def wake_for_a_new_call(shared: SharedWrites) -> None:
        if sys._getframe(1).f_code.co_name == "_enqueue":
            wake(shared)

    monkeypatch.setattr(SharedWrites, "_wake", wake_for_a_new_call)
    with pytest.raises(AssertionError, match="until the thread woke up by itself"):
        explored(store)
