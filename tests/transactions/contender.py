"""What processes run that contend for one store."""

from __future__ import annotations

from pathlib import Path

from strandline.errors import WriteConflict
from strandline.transactions import Component, LockMode, Transaction
from tests.transactions.stores import FLIGHTS, Store

CONTESTED_ROW = 1


def contend(path: Path, rounds: int) -> list[Transaction]:
    """Run ``rounds`` transactions that all change one row; return how each of them ended."""
    store = Store(path)
    try:
        return [_one(store) for _ in range(rounds)]
    finally:
        store.database.close()


def _one(store: Store) -> Transaction:
    txn_id = store.begin(writing=[FLIGHTS])
    store.change_rows(txn_id, CONTESTED_ROW)
    try:
        return store.transactions.commit(txn_id)
    except WriteConflict:
        return store.transactions.get(txn_id)


def count_under_lock(path: Path, counter: Path, rounds: int) -> None:
    """Increment the number in the file ``counter`` ``rounds`` times, under an exclusive lock.

    Only the lock keeps two callers from losing each other's increments.
    """
    store = Store(path)
    locks = store.transactions.locks
    try:
        for _ in range(rounds):
            request = locks.acquire([Component(LockMode.EXCLUSIVE, "d", "t")], owner="ann")
            while not request.acquired:
                request = locks.check(request.lock_id)
            number = int(counter.read_text())
            counter.write_text(str(number + 1))
            locks.release(request.lock_id)
    finally:
        store.database.close()
