"""Begins that do not wait for the disk, and the ids that are reserved for them."""

from __future__ import annotations

import pytest

from strandline.transactions import reserved_ids
from tests.transactions.stores import Store


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserved_ids, "RESERVED_IDS", 10)


def synced_begins(store: Store, count: int) -> int:
    """Begin ``count`` transactions with consecutive ids; return how many waited for the disk."""
    before = store.database.statistics().writes
    ids = [store.transactions.begin(user="ann").txn_id for _ in range(count)]
    assert ids == list(range(ids[0], ids[0] + count))
    failed = store.database.statistics().failed_writes
    assert failed == 0 or store.database.may_lose_provisional
    return store.database.statistics().writes - before


def test_only_one_begin_of_a_block_of_reserved_ids_waits_for_the_disk(store: Store) -> None:
    assert synced_begins(store, 34) == (4 if store.database.may_lose_provisional else 34)


def test_a_batch_of_begins_fits_in_one_block_or_waits_for_the_disk(store: Store) -> None:
    first = store.transactions.beginning(25, user="ann").run()
    assert [t.txn_id for t in first] == list(range(first[0].txn_id, first[0].txn_id + 25))
    assert synced_begins(store, 10) == (0 if store.database.may_lose_provisional else 10)


def test_ids_continue_after_a_released_block_and_skip_a_lost_block(
    store: Store,
) -> None:
    last = store.transactions.begin(user="ann").txn_id
    store.transactions.reserved_ids.release()
    assert store.transactions.begin(user="ann").txn_id == last + 1
    store.transactions.reserved_ids.skip_lost()
    following = store.transactions.begin(user="ann").txn_id
    assert following == (last + 12 if store.database.may_lose_provisional else last + 2)
    assert store.transactions.statistics().open == len(store.contents()["txn"]) == 3


def test_a_lost_block_whose_ids_were_all_assigned_skips_no_id(store: Store) -> None:
    assert synced_begins(store, 11) == (1 if store.database.may_lose_provisional else 11)
    store.transactions.reserved_ids.skip_lost()
    assert store.transactions.begin(user="ann").txn_id == 12
