"""The end of transactions: commit, abort and expiry, and the listeners that take part in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection

from strandline.clock import Timestamp, timestamp
from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    Stopping,
    StrandlineError,
    TransactionFinished,
    Unavailable,
    WriteConflict,
)
from strandline.sql import take_time
from strandline.transactions import Component, LockMode, TransactionState, records, transaction_ends
from tests.transactions.stores import CANCELLATIONS, FLIGHTS, START_MS, Recorder, Store

OPEN, COMMITTED, ABORTED = TransactionState


# -- commit and abort


def test_a_second_commit_returns_the_same_answer_and_a_later_abort_is_refused(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    committed = store.transactions.commit(txn_id)
    assert committed.commit_time is not None
    assert committed.commit_time > committed.begin_time
    assert store.transactions.commit(txn_id) == committed == store.transactions.get(txn_id)
    with pytest.raises(TransactionFinished, match="was committed at"):
        store.transactions.abort(txn_id)
    assert store.transactions.statistics().committed == 1


@pytest.mark.parametrize("writing", [[], [FLIGHTS]])
def test_a_commit_waits_for_other_writers_no_longer_than_its_timeout(
    store: Store, writing: list[int]
) -> None:
    txn_id = store.begin(writing=writing)
    with store.database.write(), ThreadPoolExecutor(1) as threads:
        committing = threads.submit(store.transactions.commit, txn_id, timeout=0.1)
        assert isinstance(committing.exception(20), DeadlineExceeded)
    assert store.transactions.get(txn_id).state is OPEN


def test_a_second_abort_returns_the_same_answer_and_a_later_commit_is_refused(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    aborted = store.transactions.abort(txn_id)
    assert aborted.state is ABORTED
    assert aborted.commit_time is None
    assert store.transactions.abort(txn_id) == aborted
    with pytest.raises(TransactionFinished, match=r"was aborted .*; begin another\Z"):
        store.transactions.commit(txn_id)
    assert store.transactions.statistics().aborted == 1


def test_abort_all_aborts_the_open_transactions_and_ignores_the_others(store: Store) -> None:
    recorder = Recorder()
    transactions = store.heard_by(recorder)
    committed, aborted = store.begin(writing=[FLIGHTS]), store.begin()
    transactions.commit(committed)
    transactions.abort(aborted)
    many = [t.txn_id for t in transactions.beginning(600, user="ann").run()]
    transactions.allocate(many[:2], FLIGHTS)
    ended = transactions.abort_all([*many, committed, aborted, 77_777, 0, -1, 1 << 70, many[0]])
    assert ended == many
    assert transactions.get(committed).state is COMMITTED
    assert {t.state for t in transactions.find_many(many).values()} == {ABORTED}
    assert transactions.statistics().aborted == 601
    assert transactions.abort_all(many) == []
    assert recorder.heard[1:] == [("abort", t, ((FLIGHTS, w),)) for w, t in enumerate(many[:2], 2)]


def test_the_writes_of_a_transaction_to_all_its_tables_become_visible_at_once(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS, CANCELLATIONS])
    before = store.transactions.get(txn_id).begin_time
    at = store.transactions.commit(txn_id).commit_time
    assert at is not None
    for table_id in (FLIGHTS, CANCELLATIONS):
        assert not store.transactions.write_ids(table_id, at=before).valid(1)
        assert not store.transactions.write_ids(table_id, at=Timestamp(at - 1)).valid(1)
        assert store.transactions.write_ids(table_id, at=at).valid(1)
        assert store.transactions.write_ids(table_id).valid(1)


def test_only_the_last_transactions_without_writes_are_remembered_as_such(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = store.transactions
    monkeypatch.setattr(transaction_ends, "_MAX_UNWRITTEN", 4)
    txn_ids = [store.begin() for _ in range(5)]
    assert [transactions.is_unwritten(t) for t in txn_ids] == [False, True, True, True, True]
    first, aborted, silent, *committed = txn_ids
    for txn_id in (first, *committed):
        assert transactions.commit(txn_id).state is COMMITTED
    transactions.abort(aborted)
    store.wall_ms += 300_001
    assert transactions.expire() == [silent]
    assert not any(map(transactions.is_unwritten, txn_ids))
    in_batches = [transaction.txn_id for transaction in transactions.beginning(2, user="ann").run()]
    transactions.abort_all(in_batches)
    assert not any(map(transactions.is_unwritten, in_batches))


# -- expiry


def test_only_silent_transactions_expire(store: Store) -> None:
    silent, beating, committed = (store.begin(writing=[FLIGHTS]) for _ in range(3))
    store.transactions.commit(committed)
    store.wall_ms += 300_000
    assert store.transactions.expire() == []
    beat = store.transactions.heartbeat([beating, committed, 99])
    assert not beat.aborted
    assert beat.missing == {99}
    store.wall_ms += 1
    assert store.transactions.expire() == [silent]
    assert store.transactions.heartbeat([silent, beating]).aborted == {silent}
    assert store.transactions.get(beating).last_heartbeat == START_MS + 300_001
    assert store.transactions.expire() == []
    assert store.transactions.statistics().expired == 1


def test_many_silent_transactions_are_aborted_by_few_writes(store: Store) -> None:
    many = [t.txn_id for t in store.transactions.beginning(120, user="ann").run()]
    store.transactions.allocate(many, FLIGHTS)
    assert store.transactions.expire() == []  # the first look may store the time
    store.wall_ms += 300_001
    before = store.database.statistics().writes
    assert store.transactions.expire() == many
    assert store.database.statistics().writes - before == 3
    assert {t.state for t in store.transactions.find_many(many).values()} == {ABORTED}
    assert store.transactions.statistics().expired == 120


def test_a_silent_transaction_that_cannot_be_aborted_is_logged_and_keeps_no_other_alive(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, stuck, last = (store.begin(writing=[FLIGHTS]) for _ in range(3))
    heard = store.begin()
    store.wall_ms += 300_001
    store.transactions.heartbeat([heard])
    recorder = Recorder()
    transactions, aborting = store.heard_by(recorder), recorder.aborting

    def fail_for_one(
        connection: Connection, writes: Mapping[int, Sequence[tuple[int, int]]]
    ) -> None:
        if stuck in writes:
            raise RuntimeError("its rows cannot be removed")
        aborting(connection, writes)

    monkeypatch.setattr(recorder, "aborting", fail_for_one)
    assert transactions.expire() == [first, last]
    assert [store.transactions.get(t).state for t in (stuck, heard)] == [OPEN, OPEN]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    monkeypatch.undo()
    assert transactions.expire() == [stuck]


def test_a_heartbeat_just_before_the_abort_prevents_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = store.begin(writing=[FLIGHTS]), store.begin(writing=[FLIGHTS])
    store.wall_ms += 300_001
    found_silent = records.silent

    def silent_then_heard(connection: Connection, *, at: int) -> list[int]:
        silent = found_silent(connection, at=at)
        with store.database.write() as other:  # the second sends a heartbeat now
            other.exec_driver_sql(
                f"UPDATE txn SET last_heartbeat = {store.wall_ms} WHERE txn_id = {second}"
            )
        return silent

    monkeypatch.setattr(records, "silent", silent_then_heard)
    assert store.transactions.expire() == [first]
    assert store.transactions.get(second).state is OPEN


def test_a_silent_transaction_that_is_not_aborted_yet_can_still_commit(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.wall_ms += 10**9
    assert store.transactions.commit(txn_id).state is COMMITTED
    assert store.transactions.expire() == []


HOUR = 3_600_000


@pytest.mark.parametrize("leap", [90_000, 2 * HOUR, 23 * HOUR])
def test_a_leap_of_the_clock_ends_no_transaction_that_is_heard(store: Store, leap: int) -> None:
    """A clock is set, or the machine slept; the clients send heartbeats every 100 seconds."""
    silent, beating = store.begin(), store.begin()
    store.wall_ms += 100_000
    store.transactions.heartbeat([beating])
    assert store.transactions.expire() == []
    for _ in range(2):  # a second leap before all are heard again
        store.leap(leap)
        assert store.transactions.expire() == []
    store.wall_ms += 100_000
    store.transactions.heartbeat([beating])
    assert store.transactions.expire() == []
    store.wall_ms += 100_001
    assert store.transactions.expire() == [silent]
    store.wall_ms += 199_999
    assert store.transactions.expire() == []
    store.wall_ms += 1
    assert store.transactions.expire() == [beating]


@pytest.mark.parametrize("has_other_nodes", [False, True])
def test_a_leap_before_the_first_look_of_a_node_ends_no_transaction_that_is_heard(
    store: Store, has_other_nodes: bool
) -> None:
    """A machine sleeps soon after a node on it has started."""
    store.transactions.heartbeats.start(now=store.wall_ms, has_other_nodes=has_other_nodes)
    try:
        silent, beating = store.begin(), store.begin()
        store.leap(2 * HOUR)
        assert store.transactions.expire() == []
        store.wall_ms += 300_000
        store.transactions.heartbeat([beating])
        assert store.transactions.expire() == []
        store.wall_ms += 1
        assert store.transactions.expire() == [silent]
    finally:
        store.transactions.heartbeats.stop()


def test_a_store_whose_time_stood_still_ends_no_transaction_when_it_goes_on(store: Store) -> None:
    """A clock was set back, and is set right again."""
    txn_id = store.begin()
    store.transactions.expire()
    store.leap(-2 * HOUR)
    for _ in range(4):
        store.wall_ms += HOUR // 4
        store.transactions.heartbeat([txn_id])
        assert store.transactions.expire() == []
    store.leap(2 * HOUR)
    assert store.transactions.expire() == []
    store.transactions.heartbeat([txn_id])
    store.wall_ms += 300_000
    assert store.transactions.expire() == []
    store.wall_ms += 1
    assert store.transactions.expire() == [txn_id]


@pytest.fixture
def ahead(store: Store) -> Iterator[Store]:
    """Another node on the same store, with a clock ten minutes ahead, that has written."""
    other = Store(store.address)
    other.wall_ms += 600_000
    with other.database.write() as connection:
        take_time(connection, other.clock)
    assert store.transactions.expire() == []  # sees that time
    yield other
    other.database.close()


def test_a_node_whose_clock_is_ahead_ends_no_transaction_that_another_node_hears(
    store: Store, ahead: Store
) -> None:
    def pass_time(milliseconds: int) -> list[int]:
        for node in (store, ahead):
            node.wall_ms += milliseconds
        return store.transactions.expire() + ahead.transactions.expire()

    for _ in range(2):  # nothing is written
        assert pass_time(400_000) == []
    txn_id = store.begin()
    for leap in (0, 0, 2 * HOUR, 0, 0, 0):
        ahead.leap(leap)
        assert pass_time(1) == []
        store.transactions.heartbeat([txn_id])
        assert pass_time(150_000) == []
    assert pass_time(150_001) == [txn_id]


@pytest.mark.parametrize("has_written", [False, True])
def test_a_node_that_starts_with_a_clock_ahead_first_lets_other_nodes_hear_their_clients(
    store: Store, ahead: Store, has_written: bool
) -> None:
    txn_id = store.begin()
    ahead.wall_ms += 2 * HOUR
    if has_written:
        with ahead.database.write() as connection:
            take_time(connection, ahead.clock)
    ahead.transactions.heartbeats.start(now=ahead.wall_ms, has_other_nodes=True)
    try:
        for _ in range(4):
            assert ahead.transactions.expire() == []
            assert store.transactions.expire() == []
            store.transactions.heartbeat([txn_id])
            for node in (store, ahead):
                node.wall_ms += 150_000
        assert ahead.transactions.expire() == []
        ahead.wall_ms += 150_001
        assert ahead.transactions.expire() == [txn_id]
    finally:
        ahead.transactions.heartbeats.stop()


# -- listeners and the fence


def test_listeners_are_called_at_the_end_of_every_transaction_that_wrote(store: Store) -> None:
    recorder = Recorder()
    transactions = store.heard_by(recorder)
    committed, aborted, expired = (store.begin(writing=[FLIGHTS]) for _ in range(3))
    idle, unwritten = store.begin(), store.begin()
    assert transactions.commit(unwritten).state is COMMITTED
    store.allocate(committed, CANCELLATIONS)
    transactions.commit(committed)
    transactions.commit(committed)
    transactions.abort(aborted)
    transactions.abort(aborted)
    store.wall_ms += 300_001
    assert transactions.expire() == [expired, idle]
    assert recorder.heard == [
        ("commit", committed, ((FLIGHTS, 1), (CANCELLATIONS, 1))),
        ("abort", aborted, ((FLIGHTS, 2),)),
        ("abort", expired, ((FLIGHTS, 3),)),
    ]


def test_listeners_get_a_conflict_as_an_abort_only(store: Store) -> None:
    recorder = Recorder()
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish()
    with pytest.raises(WriteConflict):
        store.heard_by(recorder).commit(txn_id)
    assert recorder.heard == [("abort", txn_id, ((FLIGHTS, 1),))]
    assert store.contents()["note"] == [(txn_id,)]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_failing_listener_rolls_back_the_commit_or_abort(store: Store, end: str) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.change_rows(txn_id, 10)
    before = store.contents()
    with pytest.raises(RuntimeError, match="the listener failed"):
        getattr(store.heard_by(Recorder(), Recorder(fail=True)), end)(txn_id)
    assert store.contents() == before
    assert store.transactions.get(txn_id).state is OPEN
    assert store.transactions.commit(txn_id).state is COMMITTED


@pytest.mark.parametrize("error", [Fenced, Stopping, Unavailable])
def test_an_expiry_that_fails_for_every_transaction_raises(
    store: Store, error: type[StrandlineError], monkeypatch: pytest.MonkeyPatch
) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.wall_ms += 300_001
    recorder = Recorder()
    transactions = store.heard_by(recorder)

    def fail(*_: object) -> None:
        raise error("no write is possible")

    monkeypatch.setattr(recorder, "aborting", fail)
    with pytest.raises(error):
        transactions.expire()
    assert store.transactions.get(txn_id).state is TransactionState.OPEN


def test_transactions_that_expired_before_a_failure_are_counted_and_logged(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node removes the rows of aborted transactions when it has counted some."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(transaction_ends, "_ABORTED_TOGETHER", 1)
    first, second = (store.begin(writing=[FLIGHTS]) for _ in range(2))
    store.wall_ms += 300_001
    recorder = Recorder()
    transactions = store.heard_by(recorder)

    def fail_for_the_second(
        connection: Connection, writes: Mapping[int, Sequence[tuple[int, int]]]
    ) -> None:
        if second in writes:
            raise Unavailable("no write is possible")

    monkeypatch.setattr(recorder, "aborting", fail_for_the_second)
    with pytest.raises(Unavailable):
        transactions.expire()
    assert [store.transactions.get(t).state for t in (first, second)] == [ABORTED, OPEN]
    assert transactions.aborts == 1
    assert [message.rpartition(": ")[2] for message in caplog.messages] == [str(first)]


def test_a_fenced_process_changes_nothing(store: Store) -> None:
    transactions = store.transactions
    txn_id = store.begin(writing=[FLIGHTS])
    silent = store.begin()
    now = transactions.get(silent).begin_time
    hold = transactions.holds.acquire("reader", "ann", at=now, ttl_ms=10**9)
    on_a_table = [Component(LockMode.EXCLUSIVE, "d", "t")]
    lock, waiting = (transactions.locks.acquire(on_a_table, owner="ann").lock_id for _ in range(2))
    store.wall_ms += 300_001
    store.fenced = True
    before = store.contents()
    calls: list[Callable[[], object]] = [
        lambda: transactions.begin(user="ann"),
        lambda: transactions.heartbeat([txn_id]),
        lambda: store.allocate(txn_id, CANCELLATIONS),
        lambda: transactions.commit(txn_id),
        lambda: transactions.abort(txn_id),
        transactions.expire,
        lambda: transactions.autocommit(FLIGHTS, user="ann").__enter__(),
        lambda: transactions.write_ids(FLIGHTS, at=timestamp(store.wall_ms)),
        lambda: transactions.holds.acquire("reader", "ann", at=now, ttl_ms=5),
        lambda: transactions.holds.renew(hold.hold_id, ttl_ms=5),
        lambda: transactions.holds.release(hold.hold_id),
        lambda: transactions.holds.raise_low_watermark(now),
        transactions.holds.cleaning_limit,
        transactions.locks.expire,
        lambda: transactions.locks.check(lock),
        lambda: transactions.locks.check(waiting),
        lambda: transactions.locks.heartbeat(lock),
        lambda: transactions.locks.release(lock),
        lambda: transactions.locks.withdraw(waiting),
    ]
    for call in calls:
        with pytest.raises(Fenced):
            call()
    store.leap(300_001)
    with pytest.raises(Fenced):
        transactions.holds.outlast_leap()
    assert store.contents() == before
