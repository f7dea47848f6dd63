"""Locks of Hive clients: conflicts, the queue, release and expiry."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from strandline.clock import timestamp
from strandline.errors import (
    Fenced,
    InvalidInput,
    LimitExceeded,
    LockNotFound,
    TransactionFinished,
    TransactionNotFound,
)
from strandline.transactions import Component, LockMode, LockRequest, lock_records, locks
from strandline.transactions.tables import LOCK_COMPONENT, LOCK_REQUEST
from tests.transactions.stores import FLIGHTS, START_MS, Store

READ, WRITE, EXCLUSIVE, EXCL_WRITE = LockMode
TABLE = """
asked      | READ | WRITE | EXCL_WRITE | EXCLUSIVE
READ       | both | both  | both       | wait
WRITE      | both | wait  | wait       | wait
EXCL_WRITE | both | wait  | wait       | wait
EXCLUSIVE  | wait | wait  | wait       | wait
"""
MODES = {"READ": READ, "WRITE": WRITE, "EXCL_WRITE": EXCL_WRITE, "EXCLUSIVE": EXCLUSIVE}
TIMEOUT_MS = 300_000


def _cells() -> list[tuple[LockMode, LockMode, bool]]:
    lines = [[cell.strip() for cell in row.split("|")] for row in TABLE.split("\n") if row]
    modes = [MODES[name] for name in lines[0][1:]]
    return [
        (MODES[row[0]], earlier, cell == "wait")
        for row in lines[1:]
        for earlier, cell in zip(modes, row[1:], strict=True)
    ]


def ask(store: Store, *components: Component, txn_id: int | None = None) -> LockRequest:
    return store.transactions.locks.acquire(components, owner="ann", user="ann", txn_id=txn_id)


def on(mode: LockMode, name: str) -> Component:
    """Return a component on ``schema``, ``schema.table`` or ``schema.table.partition``."""
    return Component(mode, *name.split("."))


@pytest.mark.parametrize(("asked", "owned", "waits"), _cells())
def test_two_requests_on_a_table_wait_if_their_modes_conflict(
    store: Store, asked: LockMode, owned: LockMode, waits: bool
) -> None:
    first = ask(store, on(owned, "d.t"))
    second = ask(store, on(asked, "d.t"))
    assert (first.acquired, second.acquired) == (True, not waits)
    assert second.blocked_by == (first.lock_id if waits else None)


@pytest.mark.parametrize(
    ("owned", "asked", "waits"),
    [
        (on(EXCLUSIVE, "d.t"), on(EXCLUSIVE, "d.u"), False),
        (on(EXCLUSIVE, "d.t"), on(EXCLUSIVE, "e.t"), False),
        (on(EXCLUSIVE, "d"), on(EXCLUSIVE, "e"), False),
        (on(EXCLUSIVE, "d"), on(READ, "d"), True),
        (on(READ, "d"), on(EXCLUSIVE, "d"), True),
        (on(EXCLUSIVE, "d"), on(READ, "d.t"), True),
        (on(EXCLUSIVE, "d"), on(READ, "d.t.p=1"), True),
        (on(READ, "d.t"), on(EXCLUSIVE, "d"), True),
        (on(READ, "d.t.p=1"), on(EXCLUSIVE, "d"), True),
        (on(EXCLUSIVE, "d.t"), on(READ, "d"), False),
        (on(EXCLUSIVE, "d.t.p=1"), on(READ, "d"), False),
        (on(READ, "d"), on(EXCLUSIVE, "d.t"), False),
        (on(WRITE, "d"), on(EXCLUSIVE, "d.t"), True),
        (on(EXCLUSIVE, "d.t"), on(WRITE, "d"), True),
        (on(EXCLUSIVE, "d.t.p=1"), on(READ, "d.t"), True),
        (on(EXCLUSIVE, "d.t"), on(READ, "d.t.p=1"), True),
        (on(EXCLUSIVE, "d.t.p=1"), on(EXCLUSIVE, "d.t.p=2"), False),
        (on(EXCLUSIVE, "d.t.p=1"), on(EXCLUSIVE, "d.t.p=1"), True),
        (on(EXCLUSIVE, "d.t.p=1"), on(EXCLUSIVE, "d.u.p=1"), False),
    ],
)
def test_objects_overlap_as_in_hive(
    store: Store, owned: Component, asked: Component, waits: bool
) -> None:
    ask(store, owned)
    assert ask(store, asked).acquired is not waits


def test_the_index_finds_the_same_conflicts_as_pairwise_comparison(store: Store) -> None:
    names = ["d", "d.t", "d.u", "d.t.p=1", "d.t.p=2", "e", "e.t"]
    every = [on(mode, name) for mode, name in itertools.product(LockMode, names)]
    for asked in every:
        index = locks._Index(every)
        overlapping = {request for request in index.may_overlap(asked) if asked.waits_for(request)}
        assert overlapping == {request for request in every if asked.waits_for(request)}


# -- the queue


def test_a_waiting_request_is_granted_at_its_next_check_after_the_release(store: Store) -> None:
    manager = store.transactions.locks
    first, second = ask(store, on(EXCLUSIVE, "d.t")), ask(store, on(EXCLUSIVE, "d.t"))
    assert manager.check(second.lock_id).acquired is False
    manager.release(first.lock_id)
    granted = manager.check(second.lock_id)
    assert granted.acquired_at == START_MS
    assert granted.blocked_by is None
    assert manager.check(second.lock_id) == granted


def test_readers_do_not_overtake_a_waiting_writer(store: Store) -> None:
    manager = store.transactions.locks
    reader, writer = ask(store, on(READ, "d.t")), ask(store, on(EXCLUSIVE, "d.t"))
    late = ask(store, on(READ, "d.t"))
    assert (reader.acquired, writer.acquired, late.acquired) == (True, False, False)
    assert (writer.blocked_by, late.blocked_by) == (reader.lock_id, writer.lock_id)
    manager.release(reader.lock_id)
    assert manager.check(late.lock_id).acquired is False
    assert manager.check(writer.lock_id).acquired is True
    manager.release(writer.lock_id)
    assert manager.check(late.lock_id).acquired is True


def test_a_waiting_request_that_is_released_no_longer_blocks_later_requests(store: Store) -> None:
    manager = store.transactions.locks
    ask(store, on(READ, "d.t"))
    writer, late = ask(store, on(EXCLUSIVE, "d.t")), ask(store, on(READ, "d.t"))
    manager.release(writer.lock_id)
    assert manager.check(late.lock_id).acquired is True
    contents = store.contents()
    assert len(contents["lock_request"]) == len(contents["lock_component"]) == 2


def test_a_request_is_granted_for_all_its_components_or_waits(store: Store) -> None:
    manager = store.transactions.locks
    first = ask(store, on(EXCLUSIVE, "d.t"))
    both = ask(store, on(EXCLUSIVE, "d.u"), on(EXCLUSIVE, "d.t"))
    assert both.acquired is False
    assert ask(store, on(EXCLUSIVE, "d.u")).blocked_by == both.lock_id
    manager.release(first.lock_id)
    assert manager.check(both.lock_id).acquired is True


def test_a_waiting_request_names_the_first_request_that_it_still_waits_for(store: Store) -> None:
    manager = store.transactions.locks
    first, second = ask(store, on(READ, "d.t.p=1")), ask(store, on(READ, "d.t"))
    third = ask(store, on(READ, "d.s"))
    waiting = ask(store, on(EXCLUSIVE, "d.t"), on(EXCLUSIVE, "d.s"))
    assert waiting.blocked_by == first.lock_id
    for released, following in itertools.pairwise([first, second, third]):
        manager.release(released.lock_id)
        assert manager.check(waiting.lock_id).blocked_by == following.lock_id
        assert manager.list()[-1].blocked_by == following.lock_id


def test_a_queue_of_equal_requests_is_read_as_one_row(store: Store) -> None:
    """Ten thousand clients may wait for one table, and all of them poll."""
    first = ask(store, on(EXCLUSIVE, "d.t"))
    for _ in range(30):
        ask(store, on(EXCLUSIVE, "d.t"))
    last = ask(store, on(EXCLUSIVE, "d.t"))
    assert last.blocked_by == first.lock_id
    with store.database.read() as connection:
        rows = lock_records.earlier_components(
            connection,
            last.lock_id,
            schemas={"d"},
            tables={"t"},
            modes=[mode.value for mode in LockMode],
            txn_id=None,
        )
    assert [row["lock_id"] for row in rows] == [first.lock_id]


def test_a_request_reads_only_earlier_ones_of_modes_that_it_waits_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of readers of one partition each do not hold up the next one."""
    read: list[int] = []
    earlier_components = lock_records.earlier_components

    def counted(*arguments: Any, **named: Any) -> Any:  # Any: as the real one
        rows = earlier_components(*arguments, **named)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(lock_records, "earlier_components", counted)
    ask(store, *(on(READ, f"d.t.p={number}") for number in range(5)))
    ask(store, on(WRITE, "d.u.p=1"))
    for component in (on(READ, "d.t"), on(WRITE, "d.t"), on(READ, "d.u"), on(WRITE, "d.u")):
        ask(store, component)
    assert read == [0, 0, 0, 0, 0, 1]


def test_polling_a_waiting_lock_compares_it_with_no_other_while_its_blocker_lives(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = store.transactions.locks
    first, second = ask(store, on(READ, "d.t")), ask(store, on(READ, "d.t"))
    waiting = ask(store, on(EXCLUSIVE, "d.t"))
    with monkeypatch.context() as patch:
        patch.delattr(lock_records, "earlier_components")
        assert manager.check(waiting.lock_id).blocked_by == first.lock_id
    manager.release(first.lock_id)
    assert manager.check(waiting.lock_id).blocked_by == second.lock_id
    manager.release(second.lock_id)
    assert manager.check(waiting.lock_id).acquired


def test_polling_a_lock_causes_no_synced_write(store: Store) -> None:
    manager = store.transactions.locks
    lock, waiting = ask(store, on(EXCLUSIVE, "d.t")), ask(store, on(EXCLUSIVE, "d.t"))
    before = store.database.statistics()
    for _ in range(5):
        manager.check(lock.lock_id)
        manager.check(waiting.lock_id)
    after = store.database.statistics()
    assert after.writes == before.writes
    assert after.unsynced_writes == before.unsynced_writes + 10


# -- release and expiry


def test_a_silent_request_expires_for_the_next_one_and_its_client_gets_lock_not_found(
    store: Store,
) -> None:
    manager = store.transactions.locks
    first, second = ask(store, on(EXCLUSIVE, "d.t")), ask(store, on(EXCLUSIVE, "d.t"))
    store.wall_ms += TIMEOUT_MS
    assert manager.check(second.lock_id).acquired is False
    store.wall_ms += 1
    assert manager.check(second.lock_id).acquired is True
    for call in (manager.check, manager.heartbeat):
        with pytest.raises(LockNotFound, match=f"lockid:{first.lock_id}"):
            call(first.lock_id)
    manager.release(first.lock_id)


@pytest.mark.parametrize("call", ["check", "heartbeat"])
def test_a_check_or_heartbeat_keeps_a_request_alive(store: Store, call: str) -> None:
    manager = store.transactions.locks
    lock = ask(store, on(EXCLUSIVE, "d.t"))
    for _ in range(3):
        store.wall_ms += TIMEOUT_MS
        getattr(manager, call)(lock.lock_id)
    assert manager.expire() == 0
    assert ask(store, on(READ, "d.t")).acquired is False


def test_the_expiry_of_transactions_deletes_silent_locks_too_and_logs_them(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lock = ask(store, on(EXCLUSIVE, "d.t"), on(READ, "d.u"))
    store.wall_ms += TIMEOUT_MS + 1
    store.transactions.expire()
    assert f"sent no heartbeat for their time-out: {lock.lock_id}" in caplog.text
    assert [vars(record)["fields"] for record in caplog.records] == [{"count": 1}]
    contents = store.contents()
    assert contents["lock_request"] == contents["lock_component"] == []


def test_a_leap_of_the_clock_ends_no_request_that_is_heard(store: Store) -> None:
    manager = store.transactions.locks
    silent, beating = ask(store, on(EXCLUSIVE, "d.t")), ask(store, on(EXCLUSIVE, "d.u"))
    waiting = ask(store, on(EXCLUSIVE, "d.t"))
    store.leap(24 * TIMEOUT_MS)
    assert manager.expire() == 0
    assert not manager.check(waiting.lock_id).acquired
    assert not ask(store, on(EXCLUSIVE, "d.u")).acquired
    manager.heartbeat(beating.lock_id)
    store.wall_ms += TIMEOUT_MS
    assert not manager.check(waiting.lock_id).acquired
    manager.heartbeat(beating.lock_id)
    store.wall_ms += 1
    assert manager.check(waiting.lock_id).acquired
    manager.heartbeat(beating.lock_id)
    with pytest.raises(LockNotFound):
        manager.heartbeat(silent.lock_id)


def test_a_wait_for_the_database_is_no_leap_of_the_clock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = store.transactions.locks
    ask(store, on(EXCLUSIVE, "d.t"))
    store.wall_ms += TIMEOUT_MS + 1
    silent = store.begin()

    def wait(connection: object) -> None:
        store.wall_ms += TIMEOUT_MS

    with monkeypatch.context() as patch:
        patch.setattr(
            store.database, "guard", wait
        )  # as if another writer had the database until then
        assert locks.expire() == 1
    store.wall_ms += 1
    assert store.transactions.expire() == [silent]


def test_locks_survive_a_restart(store: Store) -> None:
    lock = ask(store, on(EXCLUSIVE, "d.t"))
    store.database.close()
    again = Store(store.address)
    assert again.transactions.locks.list() == [lock]
    assert ask(again, on(READ, "d.t")).acquired is False
    again.database.close()


def test_a_lock_id_is_never_reused(store: Store) -> None:
    first = ask(store, on(READ, "d.t"))
    store.transactions.locks.release(first.lock_id)
    assert ask(store, on(READ, "d.t")).lock_id == first.lock_id + 1


@pytest.mark.parametrize("lock_id", [-1, 0, 7, 1 << 63, 1 << 200])
def test_an_unknown_lock_is_named_in_the_error_and_can_be_released(
    store: Store, lock_id: int
) -> None:
    manager = store.transactions.locks
    for call in (manager.check, manager.heartbeat):
        with pytest.raises(LockNotFound, match=f"lockid:{lock_id}:"):
            call(lock_id)
    manager.release(lock_id)
    manager.withdraw(lock_id)


# -- transactions


def test_a_lock_of_a_transaction_ends_with_it(store: Store) -> None:
    manager, ends = store.transactions.locks, (store.transactions.commit, store.transactions.abort)
    for end, writing in itertools.product(ends, ([], [FLIGHTS])):
        txn_id = store.begin(writing=writing)
        lock = ask(store, on(EXCLUSIVE, "d.t"), txn_id=txn_id)
        with pytest.raises(TransactionFinished, match=f"transaction {txn_id}"):
            manager.release(lock.lock_id)
        waiting = ask(store, on(READ, "d.t"))
        end(txn_id)
        assert manager.check(waiting.lock_id).acquired is True
        manager.release(waiting.lock_id)
        with pytest.raises(LockNotFound):
            manager.heartbeat(lock.lock_id)


def test_a_waiting_lock_of_a_transaction_can_be_given_up(store: Store) -> None:
    manager, txn_id = store.transactions.locks, store.begin()
    writer = ask(store, on(EXCLUSIVE, "d.t"))
    given_up = ask(store, on(EXCLUSIVE, "d.t"), txn_id=txn_id)
    manager.release(given_up.lock_id)
    with pytest.raises(LockNotFound):
        manager.check(given_up.lock_id)
    manager.release(writer.lock_id)
    assert ask(store, on(EXCLUSIVE, "d.t")).acquired is True
    store.transactions.commit(txn_id)


def test_a_lock_of_a_transaction_lives_as_long_as_its_transaction(store: Store) -> None:
    txn_id = store.begin()
    lock = ask(store, on(EXCLUSIVE, "d.t"), txn_id=txn_id)
    store.wall_ms += TIMEOUT_MS
    store.transactions.heartbeat([txn_id])
    store.wall_ms += TIMEOUT_MS
    store.transactions.expire()
    assert [request.acquired for request in store.transactions.locks.list()] == [True]
    store.wall_ms += 1
    store.transactions.expire()
    with pytest.raises(LockNotFound):
        store.transactions.locks.heartbeat(lock.lock_id)


def test_checking_a_lock_keeps_its_transaction_alive(
    store: Store,
) -> None:
    txn_id = store.begin()
    lock = ask(store, on(EXCLUSIVE, "d.t"), txn_id=txn_id)
    waiting = ask(store, on(EXCLUSIVE, "d.t"), txn_id=store.begin())
    store.wall_ms += TIMEOUT_MS
    for request in (lock, waiting):
        store.transactions.locks.check(request.lock_id)
    store.wall_ms += TIMEOUT_MS
    assert store.transactions.expire() == []
    assert not store.transactions.locks.check(waiting.lock_id).acquired


def test_locks_of_one_transaction_do_not_wait_for_each_other(store: Store) -> None:
    txn_id = store.begin()
    ask(store, on(EXCLUSIVE, "d.t"), txn_id=txn_id)
    assert ask(store, on(EXCLUSIVE, "d.t"), txn_id=txn_id).acquired is True
    assert ask(store, on(EXCLUSIVE, "d.t"), txn_id=store.begin()).acquired is False


def test_a_lock_that_names_a_transaction_needs_it_to_be_open(store: Store) -> None:
    with pytest.raises(TransactionNotFound):
        ask(store, on(READ, "d.t"), txn_id=9)
    txn_id = store.begin()
    store.transactions.abort(txn_id)
    with pytest.raises(TransactionFinished):
        ask(store, on(READ, "d.t"), txn_id=txn_id)
    assert store.contents()["lock_request"] == []


# -- limits


def test_an_invalid_or_excessive_request_is_refused_and_stores_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        ask(store)
    with pytest.raises(LimitExceeded, match="at most 1000 components"):
        ask(store, *[on(READ, "d.t")] * (locks.MAX_COMPONENTS + 1))
    long = "d" * (locks.MAX_NAME_LENGTH + 1)
    for names in (("",), ("d", None, "p=1"), (long,), ("d", long), ("d", "t", long)):
        with pytest.raises(InvalidInput):
            Component(READ, *names)
    monkeypatch.setattr(locks, "MAX_STORED", 2)
    ask(store, on(READ, "d.t"))
    with pytest.raises(LimitExceeded, match="all clients may have 2 components"):
        ask(store, on(READ, "d.t"), on(READ, "d.u"))
    store.fenced = True
    with pytest.raises(Fenced):
        ask(store, on(READ, "d.t"))
    assert len(store.contents()["lock_request"]) == 1


def test_the_locks_of_one_user_leave_room_for_those_of_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "MAX_STORED", 4)
    manager = store.transactions.locks
    tables = [on(READ, f"d.t{number}") for number in range(4)]
    first = manager.acquire(tables[:3], owner="ann")
    with pytest.raises(LimitExceeded, match="one user may have 3 components"):
        manager.acquire(tables[3:], owner="ann")
    manager.acquire(tables[3:], owner="bob")
    manager.release(first.lock_id)
    manager.acquire(tables[:3], owner="ann")


def test_requests_are_listed_by_name_in_the_order_of_the_queue(store: Store) -> None:
    first = ask(store, on(READ, "d.t"), on(READ, "d.u.p=1"))
    second = ask(store, on(READ, "e"))
    manager = store.transactions.locks
    assert manager.list() == [first, second]
    third = ask(store, on(READ, "d.u"))
    assert [lock.lock_id for lock in manager.list(table="u")] == [first.lock_id, third.lock_id]
    assert [lock.lock_id for lock in manager.list(schema="e")] == [second.lock_id]
    (lock,) = manager.list(schema="d", table="u", partition="p=1")
    assert lock.components == (on(READ, "d.u.p=1"),)
    assert lock.components[0].number == 2
    assert [lock.components for lock in manager.list(schema="d", table="t")] == [(on(READ, "d.t"),)]
    assert manager.list(lock_ids=[second.lock_id]) == [second]
    assert manager.list(lock_ids=[]) == []
    assert manager.list(txn_id=1) == []


# -- stores of earlier releases


def test_a_store_of_0_2_0_is_migrated_to_have_locks_and_users_of_holds(tmp_path: Path) -> None:
    store = Store(tmp_path / "strandline.db")
    with store.database.write() as connection:
        for table in (LOCK_COMPONENT, LOCK_REQUEST):
            table.drop(connection)
        added = connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE '%_whole'"
        )
        for name in list(added.scalars()):
            connection.exec_driver_sql(f"DROP INDEX {name}")
        connection.exec_driver_sql('ALTER TABLE hold DROP COLUMN "user"')
        connection.exec_driver_sql(
            "INSERT INTO hold (kind, owner, time, expires) VALUES ('reader', 'job', ?, ?)",
            (timestamp(START_MS), timestamp(START_MS + 60_000)),
        )
        connection.exec_driver_sql(
            "UPDATE strandline_schema SET version = 1 WHERE part = 'transactions'"
        )
    store.database.close()
    again = Store(store.address)
    assert ask(again, on(READ, "d.t")).acquired is True
    (hold,) = again.transactions.holds.list()
    asked: list[str] = []
    again.transactions.holds.renew(hold.hold_id, ttl_ms=1, may_touch=asked.append)
    assert asked == ["job"]
    with again.database.read() as connection:
        assert len(connection.execute(select(LOCK_REQUEST)).all()) == 1
    again.database.close()


def test_a_request_that_is_released_while_it_is_checked_is_not_granted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks_of, heartbeats = store.transactions.locks, store.transactions.heartbeats
    first, waiting = (ask(store, on(EXCLUSIVE, "d.t")) for _ in range(2))
    locks_of.release(first.lock_id)
    note = heartbeats.note

    def note_and_release(**noted: Any) -> None:
        note(**noted)
        locks_of.release(waiting.lock_id)

    monkeypatch.setattr(heartbeats, "note", note_and_release)
    with pytest.raises(LockNotFound):
        locks_of.check(waiting.lock_id)
