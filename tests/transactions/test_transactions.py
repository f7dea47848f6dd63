"""The life of a transaction, call by call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from sqlalchemy import Connection

from strandline.clock import MAX_TIMESTAMP, Timestamp, add_milliseconds, parse_timestamp, timestamp
from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    InvalidInput,
    LimitExceeded,
    ObjectNotFound,
    StrandlineError,
    TransactionFinished,
    TransactionNotFound,
    UnsupportedOperation,
    VersionNotFound,
    WriteConflict,
)
from strandline.sql import stored_time
from strandline.transactions import (
    CatalogVersion,
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
from tests.transactions.catalogs import Column, Table
from tests.transactions.stores import CANCELLATIONS, FLIGHTS, START_MS, Store

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


def test_an_id_is_never_given_twice(store: Store) -> None:
    first = store.begin()
    store.transactions.abort(first)
    with store.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM txn")
    assert store.begin() == first + 1


def test_many_begin_at_one_time_and_by_ascending_ids(store: Store) -> None:
    before = store.begin()
    begun = store.transactions.begin_many(600, user="ann", host="h", agent="a", read_only=True)
    assert [t.txn_id for t in begun] == list(range(before + 1, before + 601))
    assert len({t.begin_time for t in begun}) == 1
    assert {(t.user, t.host, t.agent, t.read_only, t.state) for t in begun} == {
        ("ann", "h", "a", True, OPEN)
    }
    assert store.transactions.get(begun[-1].txn_id) == begun[-1]
    assert store.transactions.statistics().begun == 601
    for count in (0, -1, MAX_BATCH + 1):
        with pytest.raises(InvalidInput, match=f"not {count}"):
            store.transactions.begin_many(count, user="ann")


def test_no_more_are_open_than_there_is_room_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions_module, "MAX_OPEN", 40)
    store.transactions.begin_many(38, user="ann")
    last = [store.begin(), store.begin()]
    before = store.contents()
    with pytest.raises(LimitExceeded, match="at most 40"):
        store.begin()
    assert store.contents() == before
    store.transactions.abort(last[0])
    with pytest.raises(LimitExceeded):
        store.transactions.begin_many(2, user="ann")
    assert store.begin() > last[1]


def test_begins_count_what_is_open_rarely(store: Store) -> None:
    store.transactions.begin_many(500, user="ann")
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


def test_several_transactions_get_write_ids_in_their_order_or_none_does(store: Store) -> None:
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
        ([], InvalidInput),
        (range(1, MAX_BATCH + 2), InvalidInput),
    ):
        with pytest.raises(error):
            allocate(refused, FLIGHTS)
    with pytest.raises(ObjectNotFound):
        allocate([first], 77)
    assert store.contents() == before
    assert allocate([third, first], FLIGHTS) == {first: 1, third: 2}
    assert allocate([second, third, first, first], FLIGHTS) == {first: 1, third: 2, second: 3}
    assert store.allocate(second, FLIGHTS) == 3
    assert store.allocate(store.begin(), FLIGHTS) == 4
    many = [t.txn_id for t in store.transactions.begin_many(700, user="ann")]
    assert allocate(many, CANCELLATIONS) == dict(zip(many, range(1, 701), strict=True))


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_finished_transaction_writes_nothing_more(store: Store, end: str) -> None:
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


# -- commit and abort


def test_a_second_commit_gives_the_same_answer_and_an_abort_comes_too_late(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    committed = store.transactions.commit(txn_id)
    assert committed.commit_time is not None
    assert committed.commit_time > committed.begin_time
    assert store.transactions.commit(txn_id) == committed == store.transactions.get(txn_id)
    with pytest.raises(TransactionFinished, match="was committed at"):
        store.transactions.abort(txn_id)
    assert store.transactions.statistics().committed == 1


def test_a_second_abort_gives_the_same_answer_and_a_commit_comes_too_late(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    aborted = store.transactions.abort(txn_id)
    assert aborted.state is ABORTED
    assert aborted.commit_time is None
    assert store.transactions.abort(txn_id) == aborted
    with pytest.raises(TransactionFinished, match="was aborted"):
        store.transactions.commit(txn_id)
    assert store.transactions.statistics().aborted == 1


def test_many_are_aborted_and_those_that_are_not_open_are_left_alone(store: Store) -> None:
    recorder = Recorder()
    transactions = store.heard_by(recorder)
    committed, aborted = store.begin(writing=[FLIGHTS]), store.begin()
    transactions.commit(committed)
    transactions.abort(aborted)
    many = [t.txn_id for t in transactions.begin_many(600, user="ann")]
    transactions.allocate(many[:2], FLIGHTS)
    ended = transactions.abort_all([*many, committed, aborted, 77_777, 0, -1, 1 << 70, many[0]])
    assert ended == many
    assert transactions.get(committed).state is COMMITTED
    assert {t.state for t in transactions.find_many(many).values()} == {ABORTED}
    assert transactions.statistics().aborted == 601
    assert transactions.abort_all(many) == []
    assert recorder.heard[1:] == [("abort", t, ((FLIGHTS, w),)) for w, t in enumerate(many[:2], 2)]


def test_all_tables_of_a_transaction_become_visible_at_once(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS, CANCELLATIONS])
    before = store.transactions.get(txn_id).begin_time
    at = store.transactions.commit(txn_id).commit_time
    assert at is not None
    for table_id in (FLIGHTS, CANCELLATIONS):
        assert not store.transactions.write_ids(table_id, at=before).valid(1)
        assert not store.transactions.write_ids(table_id, at=Timestamp(at - 1)).valid(1)
        assert store.transactions.write_ids(table_id, at=at).valid(1)
        assert store.transactions.write_ids(table_id).valid(1)


# -- first committer wins


def test_the_second_to_commit_on_a_row_is_aborted_and_told_by_whom(store: Store) -> None:
    first, second = store.begin(writing=[FLIGHTS]), store.begin(writing=[FLIGHTS])
    store.change_rows(first, 10, 11)
    store.change_rows(second, 11, 12)
    store.transactions.commit(second)
    with pytest.raises(WriteConflict) as refused:
        store.transactions.commit(first)
    for named in (f"transaction {first}", f"transaction {second}", "row 11"):
        assert named in refused.value.message
    assert store.transactions.get(first).state is ABORTED
    with pytest.raises(TransactionFinished):
        store.transactions.commit(first)
    assert store.transactions.statistics().conflicts == 1


def test_rows_changed_one_after_the_other_do_not_conflict(store: Store) -> None:
    for _ in range(2):
        txn_id = store.begin(writing=[FLIGHTS])
        store.change_rows(txn_id, 10)
        store.change_rows(txn_id, 10, 11)
        store.transactions.commit(txn_id)
    assert store.transactions.write_ids(FLIGHTS) == ValidWriteIdList(hwm=2)


def test_appends_and_different_rows_do_not_conflict(store: Store) -> None:
    open_together = [store.begin(writing=[FLIGHTS]) for _ in range(4)]
    store.change_rows(open_together[0], 10)
    store.change_rows(open_together[1], 11)
    for txn_id in open_together:
        assert store.transactions.commit(txn_id).state is COMMITTED


def test_a_row_of_an_aborted_or_open_transaction_is_free(store: Store) -> None:
    aborted, still_open, other = (store.begin(writing=[FLIGHTS]) for _ in range(3))
    for txn_id in (aborted, still_open, other):
        store.change_rows(txn_id, 10)
    store.transactions.abort(aborted)
    assert store.transactions.commit(other).state is COMMITTED
    with pytest.raises(WriteConflict):
        store.transactions.commit(still_open)


def test_a_footprint_larger_than_one_statement_is_compared_whole(store: Store) -> None:
    first, second = store.begin(writing=[FLIGHTS]), store.begin(writing=[FLIGHTS])
    store.change_rows(first, *range(1, 1300))
    store.change_rows(second, 1299)
    store.transactions.commit(first)
    with pytest.raises(WriteConflict, match="row 1299"):
        store.transactions.commit(second)


def test_footprints_are_kept_for_as_long_as_they_can_clash(store: Store) -> None:
    def footprints() -> int:
        return len(store.contents()["txn_footprint"])

    past = store.begin(writing=[FLIGHTS])
    store.change_rows(past, 10)
    store.transactions.commit(past)
    old = store.begin(writing=[FLIGHTS])
    store.change_rows(old, 10)
    winner = store.begin(writing=[FLIGHTS])
    store.change_rows(winner, 10)
    store.transactions.commit(winner)
    assert footprints() == 3
    store.transactions.expire()
    assert footprints() == 2
    with pytest.raises(WriteConflict):
        store.transactions.commit(old)
    assert footprints() == 1
    store.transactions.expire()
    assert footprints() == 0


# -- the catalog at begin and at commit


BEFORE = Table(FLIGHTS, "flights", primary_key=(1,))


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (None, "was dropped"),
        (Table(FLIGHTS, "flights", primary_key=(1,), kind="external"), "kind"),
        (Table(FLIGHTS, "flights", primary_key=(1,), transactional=False), "kind"),
        (Table(FLIGHTS, "flights", primary_key=(2,)), "primary key"),
        (Table(FLIGHTS, "flights", primary_key=(1,), partition_columns=(2,)), "partitioning"),
        (
            Table(FLIGHTS, "flights", (Column(1, "k", "int"), Column(2, "v", "string")),
                  primary_key=(1,)),
            "type of column k",
        ),
        (
            Table(FLIGHTS, "flights", (Column(1, "k"), Column(2, "v", "string", nullable=False)),
                  primary_key=(1,)),
            "nullability of column v",
        ),
    ],
)  # fmt: skip
def test_a_change_that_makes_the_written_rows_wrong_is_a_conflict(
    store: Store, after: Table | None, named: str
) -> None:
    store.catalogs.publish(BEFORE)
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish(*([after] if after else []))
    with pytest.raises(WriteConflict, match=named) as refused:
        store.transactions.commit(txn_id)
    assert "version 2 and 3" in refused.value.message
    assert store.transactions.get(txn_id).state is ABORTED


@pytest.mark.parametrize(
    "after",
    [
        Table(FLIGHTS, "flights_2013", primary_key=(1,)),
        Table(FLIGHTS, "flights", (Column(1, "key"), Column(2, "w", "string")), primary_key=(1,)),
        Table(FLIGHTS, "flights", (Column(1, "k"),), primary_key=(1,)),
        Table(FLIGHTS, "flights", (*BEFORE.columns, Column(3, "x", nullable=False)),
              primary_key=(1,)),
        Table(FLIGHTS, "flights", (Column(1, "k"), Column(3, "v", "int")), primary_key=(1,)),
    ],
    ids=["rename table", "rename columns", "drop column", "add column", "drop and add again"],
)  # fmt: skip
def test_a_change_that_rows_survive_by_their_ids_is_no_conflict(store: Store, after: Table) -> None:
    store.catalogs.publish(BEFORE)
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish(after)
    assert store.transactions.commit(txn_id).state is COMMITTED


def test_a_table_that_was_not_there_at_the_begin_is_a_conflict(store: Store) -> None:
    txn_id = store.begin()
    with pytest.raises(ObjectNotFound, match="transaction 1 cannot write table 77"):
        store.allocate(txn_id, 77)
    # Release 0.2.0 let it pass; its transactions may still be open.
    with store.database.write() as connection:
        records.allocate(connection, [txn_id], 77)
    store.catalogs.publish(Table(77, "later"))
    with pytest.raises(WriteConflict, match="was not there"):
        store.transactions.commit(txn_id)


def test_a_table_that_is_not_transactional_gets_no_write_id(store: Store) -> None:
    store.catalogs.publish(Table(5, "plain", transactional=False))
    txn_id = store.begin()
    with pytest.raises(UnsupportedOperation, match="plain is not transactional"):
        store.allocate(txn_id, 5)
    assert store.transactions.write_id_pairs(txn_id) == ()


def test_ddl_on_tables_that_were_not_written_is_no_conflict(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish(Table(FLIGHTS, "flights"))
    assert store.transactions.commit(txn_id).state is COMMITTED


def test_a_catalog_that_is_behind_catches_up_and_the_commit_goes_through(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish(Table(FLIGHTS, "renamed"), applied=False)
    assert store.transactions.commit(txn_id).state is COMMITTED
    assert store.catalogs.syncs == 1
    assert store.transactions.statistics().behind == 1


def test_a_begin_waits_for_the_catalog_of_its_begin_time(store: Store) -> None:
    store.catalogs.publish(Table(FLIGHTS, "renamed"), applied=False)
    assert store.transactions.begin(user="ann").catalog_version == 2
    with store.transactions.autocommit(FLIGHTS, user="ann") as step:
        assert step.transaction.catalog_version == 2


def test_a_catalog_that_stays_behind_ends_at_the_deadline_and_changes_nothing(
    store: Store,
) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish(Table(FLIGHTS, "renamed"), applied=False)
    store.catalogs.on_sync = lambda: None
    before = store.contents()
    with pytest.raises(DeadlineExceeded, match="version 2 is not applied"):
        store.transactions.commit(txn_id, timeout=0.2)
    with pytest.raises(DeadlineExceeded):
        store.transactions.begin(user="ann", timeout=0.2)
    assert store.contents() == before
    assert store.catalogs.syncs > 0


def test_a_transaction_that_wrote_nothing_commits_without_the_catalog(store: Store) -> None:
    txn_id = store.begin()
    store.catalogs.publish(applied=False)
    assert store.transactions.commit(txn_id).state is COMMITTED
    assert store.catalogs.syncs == 0


# -- heartbeats


def test_silent_transactions_expire_and_others_live(store: Store) -> None:
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
    many = [t.txn_id for t in store.transactions.begin_many(120, user="ann")]
    store.transactions.allocate(many, FLIGHTS)
    store.wall_ms += 300_001
    before = store.database.statistics().writes
    assert store.transactions.expire() == many
    assert store.database.statistics().writes - before == 3
    assert {t.state for t in store.transactions.find_many(many).values()} == {ABORTED}
    assert store.transactions.statistics().expired == 120


def test_a_heartbeat_that_comes_just_before_the_abort_still_wins(store: Store) -> None:
    first, second = store.begin(writing=[FLIGHTS]), store.begin(writing=[FLIGHTS])
    store.wall_ms += 300_001

    class BeatForTheOther(Recorder):
        def aborting(
            self,
            connection: Connection,
            transaction: Transaction,
            *,
            writes: Sequence[tuple[int, int]],
        ) -> None:
            # Inside the abort of the first: both were found silent, the second speaks up now.
            connection.exec_driver_sql(
                f"UPDATE txn SET last_heartbeat = {store.wall_ms} WHERE txn_id = {second}"
            )

    assert store.heard_by(BeatForTheOther()).expire() == [first]
    assert store.transactions.get(second).state is OPEN


def test_an_expired_transaction_that_nobody_aborted_yet_may_still_commit(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.wall_ms += 10**9
    assert store.transactions.commit(txn_id).state is COMMITTED
    assert store.transactions.expire() == []


# -- listeners and the fence


@dataclass
class Recorder:
    """Notes what it is told, in a table of the same database; fails on demand."""

    fail: bool = False
    heard: list[tuple[object, ...]] = field(default_factory=list)

    def committing(
        self,
        connection: Connection,
        transaction: Transaction,
        *,
        time: Timestamp,
        writes: Sequence[tuple[int, int]],
        catalog: CatalogVersion,
    ) -> None:
        assert stored_time(connection) == time
        self._note(connection, "commit", transaction, writes)

    def aborting(
        self,
        connection: Connection,
        transaction: Transaction,
        *,
        writes: Sequence[tuple[int, int]],
    ) -> None:
        self._note(connection, "abort", transaction, writes)

    def _note(
        self,
        connection: Connection,
        verb: str,
        transaction: Transaction,
        writes: Sequence[tuple[int, int]],
    ) -> None:
        self.heard.append((verb, transaction.txn_id, tuple(writes)))
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS note (txn_id INTEGER)")
        connection.exec_driver_sql(f"INSERT INTO note VALUES ({transaction.txn_id})")
        if self.fail:
            raise RuntimeError("the listener failed")


def test_listeners_hear_of_the_end_of_every_transaction_that_wrote(store: Store) -> None:
    recorder = Recorder()
    transactions = store.heard_by(recorder)
    committed, aborted, expired = (store.begin(writing=[FLIGHTS]) for _ in range(3))
    idle = store.begin()
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


def test_a_conflict_is_heard_as_an_abort_only(store: Store) -> None:
    recorder = Recorder()
    txn_id = store.begin(writing=[FLIGHTS])
    store.catalogs.publish()
    with pytest.raises(WriteConflict):
        store.heard_by(recorder).commit(txn_id)
    assert recorder.heard == [("abort", txn_id, ((FLIGHTS, 1),))]
    assert store.contents()["note"] == [(txn_id,)]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_listener_that_fails_undoes_everything(store: Store, end: str) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    store.change_rows(txn_id, 10)
    before = store.contents()
    with pytest.raises(RuntimeError, match="the listener failed"):
        getattr(store.heard_by(Recorder(), Recorder(fail=True)), end)(txn_id)
    assert store.contents() == before
    assert store.transactions.get(txn_id).state is OPEN
    assert store.transactions.commit(txn_id).state is COMMITTED


def test_a_fenced_process_changes_nothing(store: Store) -> None:
    transactions = store.transactions
    txn_id = store.begin(writing=[FLIGHTS])
    silent = store.begin()
    now = transactions.get(silent).begin_time
    held = transactions.holds.acquire("reader", "ann", at=now, ttl_ms=10**9)
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
        lambda: transactions.holds.renew(held.hold_id, ttl_ms=5),
        lambda: transactions.holds.release(held.hold_id),
        lambda: transactions.holds.raise_low_watermark(now),
    ]
    for call in calls:
        with pytest.raises(Fenced):
            call()
    assert store.contents() == before


# -- whose a transaction is


def test_a_transaction_is_used_by_its_owner_alone(store: Store) -> None:
    transactions = store.transactions
    of_ann, of_bob = store.begin(), transactions.begin(user="Bob").txn_id
    every = [of_ann, of_bob]
    component = Component(LockMode.EXCLUSIVE, "shop")
    before = store.contents()
    calls: list[Callable[[], object]] = [
        lambda: transactions.commit(of_ann, owner="bob"),
        lambda: transactions.abort(of_ann, owner="bob"),
        lambda: transactions.abort_all(every, owner="bob"),
        lambda: transactions.heartbeat(every, owner="bob"),
        lambda: transactions.allocate(every, FLIGHTS, owner="bob"),
        lambda: transactions.writing(of_ann, FLIGHTS, owner="bob").__enter__(),
        lambda: transactions.locks.acquire(
            [component], owner="bob", txn_id=of_ann, txn_owner="bob"
        ),
    ]
    for call in calls:
        with pytest.raises(ForeignTransaction, match=f"transaction {of_ann} is of another user"):
            call()
    assert store.contents() == before
    assert transactions.heartbeat([of_bob, 77], owner="bob").missing == {77}
    assert transactions.allocate([of_bob], FLIGHTS, owner="bob") == {of_bob: 1}
    assert transactions.abort_all([of_bob, 77], owner="bob") == [of_bob]


# -- one SQL transaction


def test_an_autocommit_begins_writes_and_commits_in_one_step(store: Store) -> None:
    recorder = Recorder()
    with store.heard_by(recorder).autocommit(FLIGHTS, user="hive", agent="thrift") as step:
        assert step.write_id == 1
        assert step.transaction.state is OPEN
        records.add_footprint(
            step.connection, step.transaction.txn_id, FLIGHTS, frozenset([10, 11])
        )
    done = store.transactions.get(step.transaction.txn_id)
    assert (done.state, done.user, done.agent) == (COMMITTED, "hive", "thrift")
    assert recorder.heard == [("commit", done.txn_id, ((FLIGHTS, 1),))]
    assert store.transactions.write_ids(FLIGHTS) == ValidWriteIdList(hwm=1)


def test_an_autocommit_whose_block_fails_never_happened(store: Store) -> None:
    before = store.contents()

    def fail(step: Step) -> None:
        step.connection.exec_driver_sql("CREATE TABLE staged (x INTEGER)")
        raise StrandlineError("staging failed")

    with (
        pytest.raises(StrandlineError, match="staging failed"),
        store.transactions.autocommit(FLIGHTS, user="hive") as step,
    ):
        fail(step)
    assert store.contents() == before
    with store.transactions.autocommit(FLIGHTS, user="hive") as step:
        assert step.write_id == 1


def test_an_autocommit_on_a_table_that_is_gone_never_happened(store: Store) -> None:
    before = store.contents()
    with (
        pytest.raises(WriteConflict),
        store.transactions.autocommit(99, user="hive"),
    ):
        pass
    assert store.contents() == before


# -- times


def test_a_time_of_this_millisecond_is_answered_and_stays_settled(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    end_of_this_millisecond = parse_timestamp("2023-11-14T22:13:20.000Z")
    assert end_of_this_millisecond >> 16 == START_MS
    seen = store.transactions.write_ids(FLIGHTS, at=end_of_this_millisecond)
    committed = store.transactions.commit(txn_id)
    assert committed.commit_time is not None
    assert committed.commit_time > end_of_this_millisecond
    assert store.transactions.write_ids(FLIGHTS, at=end_of_this_millisecond) == seen


def test_a_time_that_has_not_come_is_refused(store: Store) -> None:
    tomorrow = timestamp(START_MS + 86_400_000)
    before = store.contents()
    with pytest.raises(VersionNotFound, match="in the future"):
        store.transactions.write_ids(FLIGHTS, at=tomorrow)
    assert store.contents() == before
    for at in (0, -1, MAX_TIMESTAMP + 1):
        with pytest.raises(InvalidInput):
            store.transactions.write_ids(FLIGHTS, at=Timestamp(at))
    with pytest.raises(InvalidInput, match="not both"):
        store.transactions.write_ids(FLIGHTS, at=tomorrow, txn_id=1)


def test_a_time_before_the_first_commit_shows_nothing(store: Store) -> None:
    store.transactions.commit(store.begin(writing=[FLIGHTS]))
    long_ago = add_milliseconds(timestamp(START_MS), -86_400_000)
    assert store.transactions.write_ids(FLIGHTS, at=long_ago) == ValidWriteIdList(hwm=0)
    assert store.transactions.write_ids(12345) == ValidWriteIdList(hwm=0)


def test_times_grow_even_when_the_wall_clock_goes_back(store: Store) -> None:
    first = store.transactions.begin(user="ann")
    store.wall_ms -= 3_600_000
    second = store.transactions.begin(user="ann")
    committed = store.transactions.commit(first.txn_id)
    assert committed.commit_time is not None
    assert first.begin_time < second.begin_time < committed.commit_time


def write_id_of(store: Store, transaction: Transaction) -> int:
    ((_, write_id),) = store.transactions.write_id_pairs(transaction.txn_id)
    return write_id


def test_begin_and_commit_times_follow_the_order_of_effects_under_sixteen_threads(
    store: Store,
) -> None:
    started = threading.Barrier(16)

    def work(_: int) -> list[Transaction]:
        started.wait()
        done = []
        for _ in range(5):
            begun = store.transactions.begin(user="t")
            seen = store.transactions.write_ids(FLIGHTS, txn_id=begun.txn_id)
            write_id = store.allocate(begun.txn_id, FLIGHTS)
            done.append(store.transactions.commit(begun.txn_id))
            again = store.transactions.write_ids(FLIGHTS, txn_id=begun.txn_id)
            assert again.canonical() == seen.with_own_write(write_id).canonical()
        return done

    with ThreadPoolExecutor(16) as pool:
        every = [one for done in pool.map(work, range(16)) for one in done]
    assert [t.txn_id for t in sorted(every, key=lambda t: t.begin_time)] == list(range(1, 81))
    times = [time for t in every for time in (t.begin_time, t.commit_time)]
    assert len(set(times)) == len(times)
    write_ids = {t.txn_id: write_id_of(store, t) for t in every}
    for one in every:
        assert one.commit_time is not None
        assert one.begin_time < one.commit_time
        by_then = {t.txn_id for t in every if (t.commit_time or 0) <= one.begin_time}
        seen = store.transactions.write_ids(FLIGHTS, txn_id=one.txn_id)
        visible = {txn_id for txn_id, write_id in write_ids.items() if seen.valid(write_id)}
        assert visible == by_then | {one.txn_id}
    assert store.transactions.write_ids(FLIGHTS) == ValidWriteIdList(hwm=80)


# -- what is kept and how it is found


def test_statistics_and_the_oldest_begin_follow_the_open_transactions(store: Store) -> None:
    assert store.transactions.statistics().oldest_begin is None
    first = store.transactions.begin(user="ann")
    second = store.transactions.begin(user="bob")
    assert store.transactions.statistics().oldest_begin == first.begin_time
    store.transactions.commit(first.txn_id)
    found = store.transactions.statistics()
    assert (found.begun, found.committed, found.open) == (2, 1, 1)
    assert found.oldest_begin == second.begin_time


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_no_statement_reads_a_whole_table(store: Store) -> None:
    """Each plan searches an index: cost must not follow the length of history."""
    for _ in range(3):
        store.transactions.commit(store.begin(writing=[FLIGHTS]))
    txn_id = store.begin(writing=[FLIGHTS])
    other = store.begin(writing=[FLIGHTS])
    with recorded() as statements:
        store.transactions.write_ids(FLIGHTS)
        store.transactions.write_ids(FLIGHTS, at=store.transactions.get(txn_id).begin_time)
        store.change_rows(txn_id, 10)
        store.transactions.commit(txn_id)
        store.transactions.expire()
        store.transactions.heartbeat([other])
        store.transactions.statistics()
        store.transactions.abort(other)
    assert len(statements) > 25
    with store.database.read() as connection:
        for statement, parameters in statements:
            if statement.split()[0] not in {"SELECT", "INSERT", "UPDATE", "DELETE"}:
                continue
            each = parameters[0] if isinstance(parameters, list) else parameters
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", each)
            for step in plan:
                scans = step[3].startswith("SCAN") and step[3] != "SCAN CONSTANT ROW"
                assert not scans, f"{step[3]}: {statement}"
                by_index = "USING" in step[3] or "max(txn.txn_id)" in statement
                assert by_index or not step[3].startswith("SEARCH"), f"{step[3]}: {statement}"
                # All writes of a table, however long ago, would be found by the table alone.
                assert not ("txn_write_id" in step[3] and step[3].endswith("(table_id=?)"))
