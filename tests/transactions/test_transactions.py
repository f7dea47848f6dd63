"""Calls on transactions: begin, write ids, ownership, autocommit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.clock import HybridClock, timestamp
from strandline.errors import (
    InvalidInput,
    LimitExceeded,
    ObjectNotFound,
    StrandlineError,
    TransactionFinished,
    TransactionNotFound,
    UnsupportedOperation,
    WriteConflict,
)
from strandline.sql import accept_time
from strandline.transactions import (
    Behind,
    Component,
    ForeignTransaction,
    LockMode,
    Step,
    Transaction,
    TransactionState,
    ValidWriteIdList,
    records,
)
from strandline.transactions import transactions as transactions_module
from strandline.transactions.transactions import MAX_BATCH
from tests.sql.statements import recorded
from tests.transactions.catalogs import new_table
from tests.transactions.stores import CANCELLATIONS, FLIGHTS, START_MS, Recorder, Store

OPEN, COMMITTED, ABORTED = TransactionState


# -- begin


def test_a_transaction_begins_open_under_the_catalog_of_its_begin(store: Store) -> None:
    begun = store.transactions.begin(user="ann", host="h1", agent="spark", read_only=True)
    assert begun == Transaction(
        txn_id=1,
        state=OPEN,
        begin_time=begun.begin_time,
        commit_time=None,
        catalog_version=1,
        last_heartbeat=START_MS,
        user="ann",
        host="h1",
        agent="spark",
        read_only=True,
        timeout_ms=300_000,
    )
    assert begun.begin_time >= timestamp(START_MS)
    assert store.transactions.get(1) == begun


def test_a_transaction_id_is_never_reused(store: Store) -> None:
    first = store.begin()
    store.transactions.abort(first)
    with store.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM txn")
    assert store.begin() == first + 1


def test_transactions_begun_in_one_call_have_one_begin_time_and_ascending_ids(store: Store) -> None:
    before = store.begin()
    begun = store.transactions.beginning(600, user="ann", host="h", agent="a", read_only=True).run()
    assert [t.txn_id for t in begun] == list(range(before + 1, before + 601))
    assert len({t.begin_time for t in begun}) == 1
    assert {(t.user, t.host, t.agent, t.read_only, t.state) for t in begun} == {
        ("ann", "h", "a", True, OPEN)
    }
    assert store.transactions.get(begun[-1].txn_id) == begun[-1]
    assert store.transactions.statistics().begun == 601
    for count in (0, -1, MAX_BATCH + 1):
        with pytest.raises(InvalidInput, match=f"not {count}"):
            store.transactions.beginning(count, user="ann").run()


def test_begins_beyond_max_open_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions_module, "MAX_OPEN", 40)
    store.transactions.beginning(20, user="bob").run()
    store.transactions.beginning(18, user="ann").run()
    last = [store.begin(), store.begin()]
    before = store.contents()
    with pytest.raises(LimitExceeded, match="at most 40"):
        store.begin()
    assert store.contents() == before
    store.transactions.abort(last[0])
    with pytest.raises(LimitExceeded):
        store.transactions.beginning(2, user="ann").run()
    assert store.begin() > last[1]


def test_the_begins_of_one_user_leave_a_quarter_of_max_open_for_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions_module, "MAX_OPEN", 400)
    begun = store.transactions.beginning(300, user="ann").run()
    for _ in range(20):  # begins of others, which are not all counted, let no more of hers pass
        with pytest.raises(LimitExceeded, match="at most 300 of one user may be open"):
            store.transactions.beginning(1, user="ann").run()
        store.transactions.beginning(1, user="bob").run()
    store.transactions.abort(begun[0].txn_id)
    store.transactions.beginning(1, user="ann").run()


def test_begins_rarely_count_the_open_transactions(store: Store) -> None:
    store.transactions.beginning(500, user="ann").run()
    with recorded(of_this_thread=True) as statements:
        for _ in range(50):
            store.begin()
    assert sum("count(" in statement for statement, _ in statements) <= 1


@pytest.mark.parametrize("txn_id", [0, -1, 7, 1 << 63, 1 << 200])
def test_an_unknown_transaction_is_named_in_the_error(store: Store, txn_id: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.transactions.get(txn_id),
        lambda: store.transactions.commit(txn_id),
        lambda: store.transactions.abort(txn_id),
        lambda: store.allocate(txn_id, FLIGHTS),
        lambda: store.transactions.write_id_pairs(txn_id),
        lambda: store.transactions.write_ids(FLIGHTS, txn_id=txn_id),
    ]
    for call in calls:
        with pytest.raises(TransactionNotFound, match=str(txn_id)):
            call()
    assert store.transactions.heartbeat([txn_id]).missing == {txn_id}


# -- write ids


def test_write_ids_of_a_table_start_at_one_and_stay_with_their_transaction(store: Store) -> None:
    first, second = store.begin(), store.begin()
    allocate = store.allocate
    assert [allocate(first, FLIGHTS), allocate(second, FLIGHTS)] == [1, 2]
    assert [allocate(first, FLIGHTS), allocate(first, CANCELLATIONS)] == [1, 1]
    assert store.transactions.write_id_pairs(first) == ((FLIGHTS, 1), (CANCELLATIONS, 1))
    assert store.transactions.write_id_pairs(second) == ((FLIGHTS, 2),)


def test_a_read_only_transaction_gets_no_write_id_and_may_commit(store: Store) -> None:
    txn_id = store.begin(read_only=True)
    with pytest.raises(UnsupportedOperation, match="read-only"):
        store.allocate(txn_id, FLIGHTS)
    with pytest.raises(UnsupportedOperation, match="read-only"):
        store.change_rows(txn_id, 5)
    assert store.transactions.commit(txn_id).state is COMMITTED


def test_several_transactions_get_write_ids_in_order_or_none_of_them_does(store: Store) -> None:
    first, second, third, aborted = (store.begin() for _ in range(4))
    store.transactions.abort(aborted)
    reader = store.begin(read_only=True)
    allocate = store.transactions.allocate
    before = store.contents()
    for refused, error in (
        ([first, aborted], TransactionFinished),
        ([first, 777], TransactionNotFound),
        ([first, reader], UnsupportedOperation),
        ([first, -1], TransactionNotFound),
        ([first, 1 << 70], TransactionNotFound),
        ([], InvalidInput),
        (range(1, MAX_BATCH + 2), InvalidInput),
    ):
        with pytest.raises(error):
            allocate(refused, FLIGHTS)
    with pytest.raises(ObjectNotFound):
        allocate([first], 77)
    assert store.contents() == before
    assert allocate([third, first], FLIGHTS) == {first: 1, third: 2}
    assert store.allocate(second, CANCELLATIONS) == 1
    assert allocate([second, third, first, first], FLIGHTS) == {first: 1, third: 2, second: 3}
    assert store.allocate(second, FLIGHTS) == 3
    assert store.allocate(store.begin(), FLIGHTS) == 4
    many = [t.txn_id for t in store.transactions.beginning(700, user="ann").run()]
    assert allocate(many, CANCELLATIONS) == dict(zip(many, range(2, 702), strict=True))


def test_no_transaction_gets_a_write_id_if_one_began_when_the_table_was_gone(store: Store) -> None:
    before = store.begin()
    store.catalogs.publish()
    with pytest.raises(ObjectNotFound):
        store.transactions.allocate([before, store.begin()], FLIGHTS)
    assert store.transactions.write_id_pairs(before) == ()


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_finished_transaction_cannot_write(store: Store, end: str) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    getattr(store.transactions, end)(txn_id)
    before = store.contents()
    for call in (
        lambda: store.allocate(txn_id, FLIGHTS),
        lambda: store.allocate(txn_id, CANCELLATIONS),
        lambda: store.change_rows(txn_id, 5),
    ):
        with pytest.raises(TransactionFinished, match=f"transaction {txn_id}"):
            call()
    assert store.contents() == before


# -- ownership


@pytest.mark.parametrize("writing", [[], [FLIGHTS]])
def test_only_its_owner_can_use_a_transaction(store: Store, writing: list[int]) -> None:
    transactions = store.transactions
    of_ann, of_bob = store.begin(writing=writing), transactions.begin(user="Bob").txn_id
    every = [of_ann, of_bob]
    component = Component(LockMode.EXCLUSIVE, "shop")
    before = store.contents()
    calls: list[Callable[[], object]] = [
        lambda: transactions.commit(of_ann, owner="bob"),
        lambda: transactions.abort(of_ann, owner="bob"),
        lambda: transactions.abort_all(every, owner="bob"),
        lambda: transactions.heartbeat(every, owner="bob"),
        lambda: transactions.allocate([of_ann], FLIGHTS, owner="bob"),
        lambda: transactions.allocate(every, FLIGHTS, owner="bob"),
        lambda: transactions.writing(of_ann, FLIGHTS, owner="bob").__enter__(),
        lambda: transactions.locks.acquire(
            [component], owner="bob", txn_id=of_ann, txn_owner="bob"
        ),
    ]
    for call in calls:
        message = f"transaction {of_ann} belongs to another user"
        with pytest.raises(ForeignTransaction, match=message):
            call()
    assert store.contents() == before
    assert transactions.heartbeat([of_bob, 77], owner="bob").missing == {77}
    assert transactions.allocate([of_bob], FLIGHTS, owner="bob") == {of_bob: 1 + len(writing)}
    assert transactions.abort_all([of_bob, 77], owner="bob") == [of_bob]


# -- one SQL transaction


def test_an_autocommit_begins_writes_and_commits_in_one_step(store: Store) -> None:
    recorder = Recorder()
    with store.heard_by(recorder).autocommit(FLIGHTS, user="hive") as step:
        assert step.write_id == 1
        assert step.transaction.state is OPEN
        records.add_footprint(
            step.connection, step.transaction.txn_id, FLIGHTS, frozenset([10, 11])
        )
    ended = store.transactions.get(step.transaction.txn_id)
    assert (ended.state, ended.user) == (COMMITTED, "hive")
    assert recorder.heard == [("commit", ended.txn_id, ((FLIGHTS, 1),))]
    assert store.transactions.write_ids(FLIGHTS) == ValidWriteIdList(hwm=1)


def test_an_autocommit_is_committed_also_if_the_catalog_is_no_longer_known(store: Store) -> None:
    """A node that was paused does not know it until it has looked at the log."""
    with store.transactions.autocommit(FLIGHTS, user="hive") as step:
        store.catalogs.publish(new_table(FLIGHTS, "flights"), applied=False)
    assert store.transactions.get(step.transaction.txn_id).state is COMMITTED


@pytest.mark.parametrize("error", [StrandlineError, Behind])
def test_an_autocommit_whose_block_fails_changes_nothing(
    store: Store, error: type[StrandlineError]
) -> None:
    before = store.contents()

    def fail(step: Step) -> None:
        step.connection.exec_driver_sql("CREATE TABLE staged (x INTEGER)")
        raise error("staging failed")

    with (
        pytest.raises(error, match="staging failed"),
        store.transactions.autocommit(FLIGHTS, user="hive") as step,
    ):
        fail(step)
    assert store.contents() == before
    with store.transactions.autocommit(FLIGHTS, user="hive") as step:
        assert step.write_id == 1


def test_an_autocommit_on_a_missing_table_changes_nothing(store: Store) -> None:
    before = store.contents()
    with (
        pytest.raises(WriteConflict),
        store.transactions.autocommit(99, user="hive"),
    ):
        pass
    assert store.contents() == before


def test_write_ids_are_allocated_while_accepted_times_are_ahead_of_the_clock(store: Store) -> None:
    store.begin()
    with store.database.write() as connection:
        accept_time(connection)
    store.wall_ms -= 1_000
    store.clock = HybridClock(lambda: store.wall_ms, max_ahead_ms=1)
    store.transactions = store.heard_by()
    txn_id = store.begin()
    assert [store.allocate(txn_id, FLIGHTS) for _ in range(2)] == [1, 1]
    assert store.allocate(store.begin(), FLIGHTS) == 2
