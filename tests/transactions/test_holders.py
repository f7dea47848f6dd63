"""Holders: the transactions, holds and locks that keep something back, read from the database."""

from __future__ import annotations

import pytest

from strandline.clock import Timestamp, add_milliseconds, timestamp
from strandline.transactions import Component, Holder, HolderType, LockMode, holders
from tests.transactions.stores import CANCELLATIONS, FLIGHTS, START_MS, Store

DAY = 86_400_000
WEEK = 7 * DAY
TIMEOUT_MS = 300_000


def ago(ms: int) -> Timestamp:
    return timestamp(START_MS - ms)


def test_an_unused_store_has_no_holders(store: Store) -> None:
    present = store.transactions.holders()
    assert (present.holders, present.min_open_txn) == ((), None)
    assert (present.transactions, present.holds, present.locks) == (0, 0, 0)
    assert present.low_watermark >= ago(WEEK)


def test_every_holder_is_shown_with_its_owner_and_what_it_keeps_back(store: Store) -> None:
    transactions = store.transactions
    begun = transactions.begin(user="ann", host="h1", agent="job 7")
    transactions.allocate([begun.txn_id], FLIGHTS)
    reader = transactions.begin(user="bob", read_only=True)
    ended = store.begin(writing=[FLIGHTS])
    transactions.commit(ended)
    hold = transactions.holds.acquire("backup", "carl", at=ago(DAY), ttl_ms=1_000)
    exclusive = [
        Component(LockMode.EXCLUSIVE, "shop", "orders"),
        Component(LockMode.SHARED_READ, "s"),
    ]
    granted = transactions.locks.acquire(exclusive, owner="dora", host="h2")
    waiting = transactions.locks.acquire(
        exclusive[:1], owner="emil", agent="x", txn_id=reader.txn_id
    )
    present = transactions.holders()
    assert (present.transactions, present.holds, present.locks) == (2, 1, 2)
    assert present.min_open_txn == begun.txn_id
    writer, also_reading = present.of_type(HolderType.TRANSACTION)
    assert writer == Holder(
        HolderType.TRANSACTION,
        begun.txn_id,
        "read-write",
        "ann",
        "h1 (job 7)",
        since=begun.begin_time,
        heard_of=ago(0),
        ends=timestamp(START_MS + TIMEOUT_MS),
        keeps=(writer.keeps[0], "write ids in 1 table"),
    )
    assert writer.keeps[0].startswith("history from 2023-11-14T")
    assert writer.keeps[0].endswith(" on, with version 1 of the catalog")
    assert (also_reading.kind, also_reading.owner, len(also_reading.keeps)) == (
        "read-only",
        "bob",
        1,
    )
    (kept,) = present.of_type(HolderType.HOLD)
    assert (kept.id, kept.kind, kept.owner) == (hold.hold_id, "backup", "carl")
    assert (kept.since, kept.ends, kept.heard_of) == (ago(DAY), hold.expires, None)
    assert kept.keeps == ("history from 2023-11-13T22:13:20.000Z on",)
    first, second = present.of_type(HolderType.LOCK)
    assert (first.id, first.kind, first.owner, first.client) == (
        granted.lock_id,
        "granted",
        "dora",
        "h2",
    )
    assert first.keeps == ("EXCLUSIVE on shop.orders", "SHARED_READ on s", "1 other request")
    assert first.ends == timestamp(START_MS + TIMEOUT_MS)
    assert (second.id, second.kind, second.client, second.since, second.ends) == (
        waiting.lock_id,
        "waiting",
        "x",
        None,
        None,
    )
    assert second.keeps == (
        "EXCLUSIVE on shop.orders",
        f"waits for lock {granted.lock_id}",
        f"ends with transaction {reader.txn_id}",
    )
    only_bob = transactions.holders("bob".__eq__)
    assert (only_bob.transactions, only_bob.holds, only_bob.locks) == (1, 0, 0)
    assert only_bob.holders == (also_reading,)


def test_an_expired_hold_is_not_listed(store: Store) -> None:
    store.transactions.holds.acquire("reader", "ann", at=ago(0), ttl_ms=1_000)
    store.wall_ms += 1_001
    assert store.transactions.holders().holders == ()


def test_the_low_watermark_is_the_earliest_of_retention_oldest_hold_and_oldest_begin(
    store: Store,
) -> None:
    transactions = store.transactions
    begun = transactions.begin(user="ann").begin_time
    store.wall_ms += 2 * WEEK
    transactions.heartbeat([1])
    assert transactions.holders().low_watermark == begun
    # History that only a transaction keeps can be held by others too.
    hold = transactions.holds.acquire("reader", "bob", at=begun, ttl_ms=4 * WEEK)
    transactions.commit(1)
    present_holders = transactions.holders()
    assert (present_holders.low_watermark, present_holders.holds) == (begun, 1)
    assert [holder.id for holder in present_holders.holders] == [hold.hold_id]
    transactions.holds.release(hold.hold_id)
    present = store.clock.current()
    assert transactions.holders().low_watermark == add_milliseconds(present, -WEEK)


def test_only_the_oldest_holders_are_listed_but_all_are_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "MAX_HOLDERS", 3)
    begun = store.transactions.beginning(5, user="ann").run()
    for number in range(4):
        store.transactions.holds.acquire("r", f"o{number}", at=ago(number), ttl_ms=1_000)
    for number in range(4):
        component = Component(LockMode.SHARED_READ, "s", f"t{number}")
        store.transactions.locks.acquire([component], owner="ann")
    store.transactions.allocate([t.txn_id for t in begun], CANCELLATIONS)
    present = store.transactions.holders()
    assert (present.transactions, present.holds, present.locks) == (5, 4, 4)
    assert [h.id for h in present.of_type(HolderType.TRANSACTION)] == [t.txn_id for t in begun[:3]]
    assert [h.owner for h in present.of_type(HolderType.HOLD)] == ["o3", "o2", "o1"]
    assert len(present.of_type(HolderType.LOCK)) == 3


def test_the_holders_of_others_take_no_place_in_a_list_of_some_owners(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "MAX_HOLDERS", 2)
    transactions = store.transactions
    for owner in ("ann", "ann", "Bob", "bob"):
        transactions.begin(user=owner)
        transactions.holds.acquire("r", owner, at=ago(0), ttl_ms=1_000)
        transactions.locks.acquire([Component(LockMode.SHARED_READ, "s", owner)], owner=owner)
    chosen = transactions.holders(lambda owner: owner.lower() == "bob")
    assert (chosen.transactions, chosen.holds, chosen.locks) == (2, 2, 2)
    assert [holder.owner for holder in chosen.holders] == ["Bob", "bob"] * 3
    assert [h.keeps[0] for h in chosen.of_type(HolderType.LOCK)] == [
        "SHARED_READ on s.Bob",
        "SHARED_READ on s.bob",
    ]
    nobody = transactions.holders(lambda owner: False)
    assert (nobody.transactions, nobody.holds, nobody.locks, nobody.holders) == (0, 0, 0, ())
