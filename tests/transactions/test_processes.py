"""Several processes on one store, and processes that are killed at the worst moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from strandline.transactions import TransactionState
from tests.transactions.contender import contend, count_under_lock
from tests.transactions.stores import FLIGHTS, Store

ROUNDS = 25
LOCKED_ROUNDS = 6


@pytest.mark.slow
def test_transactions_of_two_processes_have_one_order_and_the_first_committer_wins(
    tmp_path: Path,
) -> None:
    path = tmp_path / "strandline.db"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        ends = list(pool.map(contend, [path, path], [ROUNDS, ROUNDS]))
    every = sorted((transaction for end in ends for transaction in end), key=lambda t: t.begin_time)
    assert [transaction.txn_id for transaction in every] == list(range(1, 2 * ROUNDS + 1))
    won = [transaction for transaction in every if transaction.state is TransactionState.COMMITTED]
    assert len(won) >= ROUNDS
    # Two transactions that changed one row and both committed were not open at the same time.
    for earlier, later in pairwise(won):
        assert earlier.commit_time is not None
        assert earlier.commit_time < later.begin_time
    store = Store(path)
    seen = store.transactions.write_ids(FLIGHTS)
    assert len([w for w in range(1, 2 * ROUNDS + 1) if seen.valid(w)]) == len(won)
    assert not seen.open_ids
    store.database.close()


def test_an_exclusive_lock_excludes_all_others_that_have_the_store_open(tmp_path: Path) -> None:
    path, counter = tmp_path / "strandline.db", tmp_path / "counter"
    counter.write_text("0")
    # Each thread opens its own database, as a process would; a thread starts 100 times faster.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(count_under_lock, [path] * 2, [counter] * 2, [LOCKED_ROUNDS] * 2))
    assert counter.read_text() == str(2 * LOCKED_ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "state", "write_ids"),
    [
        ("commit-sent", TransactionState.OPEN, 1),
        ("commit-durable", TransactionState.COMMITTED, 1),
    ],
)
def test_the_transaction_of_a_killed_writer_shows_whether_it_was_committed(
    tmp_path: Path, point: str, state: TransactionState, write_ids: int
) -> None:
    path = tmp_path / "strandline.db"
    program = "import sys, pathlib; from tests.transactions.contender import contend;"
    ended = subprocess.run(
        [sys.executable, "-c", f"{program} contend(pathlib.Path(sys.argv[1]), 1)", str(path)],
        env={
            **os.environ,
            "STRANDLINE_FAULT": point,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        },
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    store = Store(path)
    assert store.transactions.get(1).state is state
    assert len(store.transactions.write_id_pairs(1)) == write_ids
    assert store.transactions.write_ids(FLIGHTS).valid(1) == (state is TransactionState.COMMITTED)
    if state is TransactionState.OPEN:
        store.wall_ms += 300_001
        assert store.transactions.expire() == [1]
    assert store.transactions.begin(user="next").txn_id == 2
    store.database.close()
