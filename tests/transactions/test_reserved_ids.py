"""Begins that wait for no disk, and the ids that they may have."""

from __future__ import annotations

import pytest

from strandline.transactions import reserved_ids
from tests.transactions.stores import Store


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserved_ids, "RESERVED_IDS", 10)


def synced_begins(store: Store, count: int) -> int:
    """How many of so many begins wait for the disk; their ids follow each other."""
    before = store.database.statistics().writes
    ids = [store.transactions.begin(user="ann").txn_id for _ in range(count)]
    assert ids == list(range(ids[0], ids[0] + count))
    failed = store.database.statistics().failed_writes
    assert failed == 0 or store.database.may_lose_provisional
    return store.database.statistics().writes - before


def test_one_begin_of_a_block_waits_for_the_disk(store: Store) -> None:
    assert synced_begins(store, 33) == (3 if store.database.may_lose_provisional else 33)


def test_many_that_begin_at_once_are_within_one_block_or_wait(store: Store) -> None:
    first = store.transactions.beginning(25, user="ann").run()
    assert [t.txn_id for t in first] == list(range(first[0].txn_id, first[0].txn_id + 25))
    assert synced_begins(store, 10) == (0 if store.database.may_lose_provisional else 10)


def test_ids_go_on_behind_a_block_that_was_given_back_and_skip_one_that_was_not(
    store: Store,
) -> None:
    last = store.transactions.begin(user="ann").txn_id
    store.transactions.reserved_ids.release()
    assert store.transactions.begin(user="ann").txn_id == last + 1
    store.transactions.reserved_ids.skip_lost()
    following = store.transactions.begin(user="ann").txn_id
    assert following == (last + 12 if store.database.may_lose_provisional else last + 2)
    assert store.transactions.statistics().open == 3
