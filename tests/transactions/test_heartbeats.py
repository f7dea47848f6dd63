"""Heartbeats: what a call waits for, and when heartbeats are stored."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from strandline.errors import Fenced
from strandline.transactions import Component, LockMode, TransactionState, heartbeats
from strandline.transactions.heartbeats import Heartbeats
from strandline.work.following import FollowingThread
from tests.sql.statements import recorded
from tests.transactions.stores import FLIGHTS, START_MS, Store

TIMEOUT_MS = 300_000
ON_A_TABLE = (Component(LockMode.EXCLUSIVE, "shop", "orders"),)


@pytest.fixture
def noted(store: Store) -> Iterator[Store]:
    """A store whose heartbeats are stored by a thread, as in a node."""
    with patch.object(heartbeats, "LATEST", 1e9):
        store.transactions.heartbeats.start(now=store.wall_ms)
        yield store
        store.transactions.heartbeats.stop()


@pytest.fixture
def unstored(store: Store) -> Iterator[Store]:
    """The same store, but its thread never stores anything."""

    def idle(thread: FollowingThread) -> None:
        thread._stop.wait()

    with patch.object(FollowingThread, "_run", idle), patch.object(heartbeats, "LATEST", 1e9):
        store.transactions.heartbeats.start(now=store.wall_ms)
        yield store
        store.transactions.heartbeats.stop()


def wait_until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def heard_of(store: Store, txn_id: int) -> int:
    return store.transactions.get(txn_id).last_heartbeat


def test_a_heartbeat_returns_while_a_writer_holds_the_database(noted: Store) -> None:
    txn_id = noted.begin(writing=[FLIGHTS])
    locks = noted.transactions.locks
    lock_id = locks.acquire(ON_A_TABLE, owner="ann").lock_id
    noted.wall_ms += 1_000
    with noted.database.write():
        assert not noted.transactions.heartbeat([txn_id]).aborted
        locks.heartbeat(lock_id)
        assert locks.check(lock_id).last_heartbeat == START_MS + 1_000
    noted.transactions.heartbeats.stop()
    assert heard_of(noted, txn_id) == START_MS + 1_000
    assert [lock.last_heartbeat for lock in locks.list()] == [START_MS + 1_000]


def test_a_heartbeat_call_only_reads_from_the_database(unstored: Store) -> None:
    txn_ids = [t.txn_id for t in unstored.transactions.beginning(700, user="ann").run()]
    with recorded(of_this_thread=True) as statements:
        unstored.transactions.heartbeat(txn_ids)
    sent = [statement for statement, _ in statements]
    assert any("FROM txn" in statement for statement in sent)
    assert not [s for s in sent if s.startswith(("UPDATE", "INSERT", "DELETE")) or "LOCK" in s]


def test_heartbeats_of_many_clients_are_stored_by_few_writes(unstored: Store) -> None:
    txn_ids = [t.txn_id for t in unstored.transactions.beginning(1_000, user="ann").run()]
    unstored.wall_ms += 1_000
    for start in range(0, 1_000, 100):
        unstored.transactions.heartbeat(txn_ids[start : start + 100])
    before = unstored.database.statistics().unsynced_writes
    unstored.transactions.heartbeats.store()
    assert unstored.database.statistics().unsynced_writes - before == 2
    stored = unstored.transactions.find_many(txn_ids).values()
    assert {t.last_heartbeat for t in stored} == {START_MS + 1_000}
    counted = unstored.transactions.statistics()
    assert (counted.heartbeats, counted.unstored_heartbeats) == (1_000, 0)
    unstored.transactions.heartbeats.store()
    assert unstored.database.statistics().unsynced_writes - before == 2


def test_a_heartbeat_that_is_not_stored_yet_keeps_its_transaction_from_expiring(
    unstored: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    silent, beating = unstored.begin(), unstored.begin()
    unstored.wall_ms += TIMEOUT_MS + 1
    unstored.transactions.heartbeat([beating])
    with patch.object(Heartbeats, "store", lambda *_, **__: None):
        assert heard_of(unstored, beating) == START_MS
        assert unstored.transactions.expire() == [silent]
    assert heard_of(unstored, beating) == START_MS + TIMEOUT_MS + 1
    (aborted,) = caplog.records
    assert aborted.getMessage().endswith(f"sent no heartbeat for their time-out: {silent}")
    assert vars(aborted)["fields"] == {"count": 1}


def test_a_heartbeat_that_is_not_stored_yet_keeps_its_lock_from_expiring(unstored: Store) -> None:
    locks = unstored.transactions.locks
    lock_id = locks.acquire(ON_A_TABLE, owner="ann").lock_id
    unstored.wall_ms += TIMEOUT_MS + 1
    locks.heartbeat(lock_id)
    assert not locks.acquire(ON_A_TABLE, owner="bob").acquired
    assert locks.expire() == 0
    assert locks.list(lock_ids=[lock_id])[0].acquired


def test_a_heartbeat_call_stores_heartbeats_itself_if_the_thread_is_late(
    unstored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(heartbeats, "LATEST", 2.0)
    first, second = unstored.begin(), unstored.begin()
    unstored.wall_ms += 1_000
    for txn_id in (first, second):
        unstored.transactions.heartbeat([txn_id])
        assert heard_of(unstored, first) == heard_of(unstored, second) == START_MS
        now[0] += 1.5
    unstored.transactions.heartbeat([second])
    assert heard_of(unstored, first) == heard_of(unstored, second) == START_MS + 1_000


def test_heartbeats_that_could_not_be_stored_are_stored_later(unstored: Store) -> None:
    txn_id = unstored.begin()
    unstored.wall_ms += 1_000
    unstored.transactions.heartbeat([txn_id])
    unstored.fenced = True
    with pytest.raises(Fenced):
        unstored.transactions.heartbeats.store()
    with pytest.raises(Fenced):
        unstored.transactions.heartbeat([txn_id])
    assert heard_of(unstored, txn_id) == START_MS
    unstored.fenced = False
    unstored.transactions.heartbeats.store()
    assert heard_of(unstored, txn_id) == START_MS + 1_000


def test_a_heartbeat_never_lowers_a_stored_time_or_revives_an_ended_transaction(
    unstored: Store,
) -> None:
    transactions = unstored.transactions
    living, renewed, ended = unstored.begin(), unstored.begin(), unstored.begin()
    transactions.heartbeat([ended])
    transactions.heartbeats.note(txns=[renewed], at=START_MS + 500)
    transactions.heartbeats.note(txns=[living, renewed], at=START_MS - 5_000)
    transactions.commit(ended)
    before = transactions.get(ended)
    unstored.wall_ms += 1_000
    transactions.heartbeats.note(txns=[ended, 777, -1, 1 << 70], at=START_MS + 1_000)
    transactions.heartbeats.store()
    assert transactions.get(ended) == before
    assert before.state is TransactionState.COMMITTED
    assert heard_of(unstored, living) == START_MS
    assert heard_of(unstored, renewed) == START_MS + 500


@pytest.mark.parametrize("kind", ["txns", "locks"])
def test_a_heartbeat_that_arrives_while_an_earlier_one_is_stored_is_stored_by_the_next_write(
    unstored: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """If the same call stored it, heartbeats of many clients would take the lock all the time."""
    txn_id, locks = unstored.begin(), unstored.transactions.locks
    lock_id = locks.acquire(ON_A_TABLE, owner="ann").lock_id
    noted, write = unstored.transactions.heartbeats, heartbeats._write
    before = unstored.database.statistics().unsynced_writes

    def note(at: int) -> None:
        noted.note(**{kind: [txn_id if kind == "txns" else lock_id]}, at=at)

    def heard() -> int:
        return heard_of(unstored, txn_id) if kind == "txns" else locks.list()[0].last_heartbeat

    def overtaken(*arguments: Any) -> None:
        write(*arguments)
        if len(writes) == 1:
            note(START_MS + 2_000)
        writes.append(arguments)

    writes: list[object] = []
    note(START_MS + 1_000)
    monkeypatch.setattr(heartbeats, "_write", overtaken)
    noted.store()
    assert heard() == START_MS + 1_000
    assert unstored.database.statistics().unsynced_writes == before + 1
    assert noted.counts()[1] == 1
    assert noted._oldest is not None  # so the thread stores it, without another heartbeat
    noted.store()
    assert heard() == START_MS + 2_000
    assert noted._oldest is None


def test_the_thread_stores_heartbeats_and_continues_after_a_failure(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "PERIOD", 0.01)
    beats = store.transactions.heartbeats
    txn_id = store.begin()
    store.wall_ms += 1_000
    beats.start(now=store.wall_ms)
    store.fenced = True
    with beats._changed:
        beats._txns[txn_id] = START_MS + 1_000
        beats._oldest = 0.0
        beats._changed.notify_all()
    wait_until(lambda: "storing heartbeats: " in caplog.text)
    store.fenced = False
    wait_until(lambda: heard_of(store, txn_id) > START_MS)
    beats.stop()


def test_the_last_heartbeats_are_stored_when_the_thread_is_stopped(unstored: Store) -> None:
    txn_id = unstored.begin()
    lock_id = unstored.transactions.locks.acquire(ON_A_TABLE, owner="ann").lock_id
    unstored.wall_ms += 1_000
    unstored.transactions.heartbeat([txn_id])
    unstored.transactions.locks.heartbeat(lock_id)
    assert unstored.transactions.heartbeats.counts()[1] == 2
    unstored.transactions.heartbeats.stop()
    assert heard_of(unstored, txn_id) == START_MS + 1_000
    assert not unstored.transactions.heartbeats._thread.running()


def test_a_heartbeat_wakes_the_thread_that_stores_it(noted: Store) -> None:
    txn_id = noted.begin()
    noted.wall_ms += 1_000
    noted.transactions.heartbeat([txn_id])
    wait_until(lambda: heard_of(noted, txn_id) > START_MS)


def test_a_heartbeat_for_no_open_transaction_leaves_nothing_to_store(
    unstored: Store,
) -> None:
    ended = unstored.begin()
    unstored.transactions.commit(ended)
    unstored.transactions.heartbeat([])
    unstored.transactions.heartbeat([ended, 777])
    assert unstored.transactions.statistics().unstored_heartbeats == 0
    assert unstored.transactions.heartbeats._oldest is None


@pytest.mark.parametrize("count", [5, 300])
def test_a_commit_runs_the_same_statements_however_many_transactions_are_open(
    store: Store, count: int
) -> None:
    def statements_of_a_write() -> list[str]:
        with recorded(of_this_thread=True) as statements:
            txn_id = store.begin(writing=[FLIGHTS])
            store.change_rows(txn_id, 7)
            store.transactions.commit(txn_id)
        # On a server, the first statements of a write contain their values as text.
        return [re.sub(r"\d+", "0", statement) for statement, _ in statements]

    statements_of_a_write()  # the first write counts the open transactions
    alone = statements_of_a_write()
    others = [t.txn_id for t in store.transactions.beginning(count, user="ann").run()]
    store.transactions.allocate(others, FLIGHTS)
    assert statements_of_a_write() == alone
