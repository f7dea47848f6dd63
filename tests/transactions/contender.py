"""A process that runs transactions against others on one store."""

from __future__ import annotations

from pathlib import Path

from strandline.errors import WriteConflict
from strandline.transactions import Transaction
from tests.transactions.stores import FLIGHTS, Store

CONTESTED_ROW = 1


def contend(path: Path, rounds: int) -> list[Transaction]:
    """Run ``rounds`` transactions that all change one row; how each of them ended."""
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
