"""Reads as of a time, and the SQL statements that they execute."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.clock import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Timestamp,
    add_milliseconds,
    parse_timestamp,
    timestamp,
)
from strandline.errors import InvalidInput, Unavailable, UnknownOutcome, VersionNotFound
from strandline.sql import take_time
from strandline.transactions import (
    ForeignTransaction,
    Transaction,
    TransactionState,
    ValidWriteIdList,
)
from strandline.transactions.transaction_reads import SETTLED_MS
from tests.sql.statements import recorded
from tests.transactions.stores import FLIGHTS, START_MS, Store

OPEN, COMMITTED, ABORTED = TransactionState


# -- times


def test_a_read_as_of_the_current_millisecond_is_answered_and_never_changes(store: Store) -> None:
    txn_id = store.begin(writing=[FLIGHTS])
    end_of_this_millisecond = parse_timestamp("2023-11-14T22:13:20.000Z")
    assert end_of_this_millisecond >> 16 == START_MS
    seen = store.transactions.write_ids(FLIGHTS, at=end_of_this_millisecond)
    committed = store.transactions.commit(txn_id)
    assert committed.commit_time is not None
    assert committed.commit_time > end_of_this_millisecond
    assert store.transactions.write_ids(FLIGHTS, at=end_of_this_millisecond) == seen


def test_a_read_while_the_disk_fails_does_not_say_that_a_change_may_have_been_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UnknownOutcome.of_commit("the disk failed")

    monkeypatch.setattr(type(store.database), "_commit", fail)
    with pytest.raises(Unavailable, match=r"\(the disk failed\); nothing was changed") as refused:
        store.transactions.write_ids(FLIGHTS, at=parse_timestamp("2023-11-14T22:13:20.000Z"))
    assert not isinstance(refused.value, UnknownOutcome)


def test_a_future_or_invalid_time_is_refused(store: Store) -> None:
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


def test_a_list_is_read_by_a_user_if_it_sees_no_uncommitted_write_of_others(store: Store) -> None:
    transactions = store.transactions
    transactions.commit(store.begin(writing=[FLIGHTS]))
    owner = transactions.get(store.begin(writing=[FLIGHTS])).user
    committed, all_writes = ValidWriteIdList(hwm=1), ValidWriteIdList(hwm=2)
    assert transactions.own_or_committed(FLIGHTS, committed, owner="other") == committed
    beyond = ValidWriteIdList(hwm=9)
    assert transactions.own_or_committed(FLIGHTS, beyond, owner=owner.upper()) == all_writes
    for write_ids in (all_writes, beyond):
        with pytest.raises(ForeignTransaction):
            transactions.own_or_committed(FLIGHTS, write_ids, owner="other")
    assert transactions.own_or_committed(12345, beyond, owner="other") == ValidWriteIdList(hwm=0)


def test_a_list_older_than_every_write_of_a_table_shows_none_of_them(store: Store) -> None:
    txns = store.txns_seen_by()
    for _ in range(2):
        store.transactions.commit(store.begin(writing=[FLIGHTS]))
    seen = store.transactions.write_ids_by(FLIGHTS, txns)
    # As Hive does it, the list ends at the first write that is hidden.
    assert (seen.hwm, seen.exceptions) == (1, (1,))
    assert store.transactions.write_ids(FLIGHTS) == ValidWriteIdList(hwm=2)


def test_a_list_of_a_transaction_hides_a_later_one_that_wrote_before_it(store: Store) -> None:
    own = store.begin()
    txns = store.txns_seen_by(own)
    later = store.begin(writing=[FLIGHTS])
    own_write_id = store.allocate(own, FLIGHTS)
    store.transactions.commit(later)
    seen = store.transactions.write_ids_by(FLIGHTS, txns)
    assert (own_write_id, seen.hwm, seen.exceptions) == (2, 2, (1,))


def test_a_settled_time_shows_what_was_committed_and_nothing_committed_later(store: Store) -> None:
    committed = store.transactions.commit(store.begin(writing=[FLIGHTS]))
    later = store.begin(writing=[FLIGHTS])
    before = store.contents()
    moment = store.transactions.settled(since=MIN_TIMESTAMP)
    assert store.contents() == before
    assert moment is not None
    assert committed.commit_time is not None
    assert moment >= committed.commit_time
    seen = store.transactions.write_ids(FLIGHTS, at=moment)
    assert seen == ValidWriteIdList(hwm=1)
    store.wall_ms -= 500
    commit_time = store.transactions.commit(later).commit_time
    assert commit_time is not None
    assert commit_time > moment
    assert store.transactions.write_ids_as_of([FLIGHTS], moment) == {FLIGHTS: seen}


def test_finding_a_settled_time_does_not_wait_for_the_writer(store: Store) -> None:
    store.begin()
    moment = store.transactions.latest_time()
    with store.database.write() as connection, ThreadPoolExecutor(1) as threads:
        take_time(connection, store.clock)
        settled = threads.submit(store.transactions.settled, since=MIN_TIMESTAMP)
        assert settled.result(60) == moment


def test_a_settled_time_exists_only_if_it_is_recent_and_its_catalog_is_applied(
    store: Store,
) -> None:
    store.begin()
    last = store.transactions.latest_time()
    assert store.transactions.settled(since=last) == last
    assert store.transactions.settled(since=Timestamp(last + 1)) is None
    store.wall_ms += store.retention_ms // 2
    assert store.transactions.settled(since=MIN_TIMESTAMP) == last
    store.wall_ms += 1
    assert store.transactions.settled(since=MIN_TIMESTAMP) is None
    store.begin()
    last = store.transactions.latest_time()
    store.retention_ms = 0
    store.wall_ms += SETTLED_MS
    assert store.transactions.settled(since=MIN_TIMESTAMP) == last
    store.wall_ms += 1
    assert store.transactions.settled(since=MIN_TIMESTAMP) is None
    store.begin()
    store.catalogs.publish(applied=False)
    assert store.transactions.settled(since=MIN_TIMESTAMP) is None


def test_a_settled_time_can_be_held_for_half_the_retention(store: Store) -> None:
    store.begin()
    store.wall_ms += store.retention_ms // 2
    moment = store.transactions.settled(since=MIN_TIMESTAMP)
    store.wall_ms += store.retention_ms // 2
    assert store.transactions.holds.acquire("reader", "r", at=moment, ttl_ms=1).at == moment


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


@pytest.mark.slow
def test_begin_and_commit_times_follow_the_order_of_effects_under_sixteen_threads(
    store: Store,
) -> None:
    started = threading.Barrier(16)

    def work(_: int) -> list[Transaction]:
        started.wait()
        ended = []
        for _ in range(5):
            begun = store.transactions.begin(user="t")
            seen = store.transactions.write_ids(FLIGHTS, txn_id=begun.txn_id)
            write_id = store.allocate(begun.txn_id, FLIGHTS)
            ended.append(store.transactions.commit(begun.txn_id))
            again = store.transactions.write_ids(FLIGHTS, txn_id=begun.txn_id)
            assert again.canonical() == seen.with_own_write(write_id).canonical()
        return ended

    with ThreadPoolExecutor(16) as pool:
        every = [transaction for ended in pool.map(work, range(16)) for transaction in ended]
    assert [t.txn_id for t in sorted(every, key=lambda t: t.begin_time)] == list(range(1, 81))
    times = [time for t in every for time in (t.begin_time, t.commit_time)]
    assert len(set(times)) == len(times)
    write_ids = {t.txn_id: write_id_of(store, t) for t in every}
    for transaction in every:
        assert transaction.commit_time is not None
        assert transaction.begin_time < transaction.commit_time
        by_then = {t.txn_id for t in every if (t.commit_time or 0) <= transaction.begin_time}
        seen = store.transactions.write_ids(FLIGHTS, txn_id=transaction.txn_id)
        visible = {txn_id for txn_id, write_id in write_ids.items() if seen.valid(write_id)}
        assert visible == by_then | {transaction.txn_id}
    assert store.transactions.write_ids(FLIGHTS) == ValidWriteIdList(hwm=80)


# -- what is kept and how it is found


def test_statistics_and_the_oldest_begin_follow_the_open_transactions(store: Store) -> None:
    assert store.transactions.statistics().oldest_begin is None
    first = store.transactions.begin(user="ann")
    second = store.transactions.begin(user="bob")
    assert store.transactions.statistics().oldest_begin == first.begin_time
    store.transactions.commit(first.txn_id)
    statistics = store.transactions.statistics()
    assert (statistics.begun, statistics.committed, statistics.open) == (2, 1, 1)
    assert statistics.oldest_begin == second.begin_time


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_no_statement_reads_a_whole_table(store: Store) -> None:
    """Each query plan uses an index, so that the cost does not grow with the history."""
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
                # A search by the table alone would read all its writes, however old.
                assert not ("txn_write_id" in step[3] and step[3].endswith("(table_id=?)"))
