"""Transactions, holds and the list of holders through every `Session`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.catalog.commands import AddColumns, ColumnDefinition, DropTable
from strandline.clock import Timestamp, system_wall_clock
from strandline.errors import HoldExpired, InvalidInput, ObjectNotFound, WriteConflict
from strandline.metastore.interface import MAX_COMMITS, ResolvedTable, Session
from strandline.metastore.store.data_history import TableChange
from strandline.metastore.store.rows import DeleteFile
from strandline.model.types import INT
from strandline.transactions import HolderType, TransactionState
from tests.metastore.interface.calls import USER, create, data, write
from tests.metastore.snapshots import files_of, paths_of
from tests.transactions.test_heartbeats import wait_until


def test_a_transaction_has_its_user_and_its_state(session: Session) -> None:
    begun = session.begin()
    assert (begun.user, begun.state, begun.read_only) == (USER, TransactionState.OPEN, False)
    assert session.transaction(begun.txn_id) == begun
    assert session.begin(read_only=True).read_only
    committed = session.commit(begun.txn_id)
    assert committed.state is TransactionState.COMMITTED
    assert committed.commit_time is not None
    assert committed.commit_time > begun.begin_time
    assert session.transaction(begun.txn_id) == committed


def test_a_repeated_commit_or_abort_returns_the_same_answer(
    session: Session, table: ResolvedTable
) -> None:
    committed, aborted = session.begin().txn_id, session.begin().txn_id
    session.stage(committed, table.descriptor.id, add=[data("a")])
    assert session.commit(committed) == session.commit(committed)
    assert session.abort(aborted) == session.abort(aborted)
    assert session.transaction(aborted).state is TransactionState.ABORTED


def test_a_transaction_has_one_write_id_for_each_table(session: Session, schema: str) -> None:
    session.execute([create(schema, "a"), create(schema, "b")])
    a, b = (session.table(f"{schema}.{name}").descriptor.id for name in "ab")
    write(session, a, data("x"))
    txn_id = session.begin().txn_id
    assert [session.stage(txn_id, i) for i in (a, b, a)] == [2, 1, 2]
    assert session.stage(txn_id, a, add=[data("y")]) == 2
    session.abort(txn_id)


def test_an_aborted_transaction_leaves_nothing(session: Session, table: ResolvedTable) -> None:
    table_id = table.descriptor.id
    write(session, table_id, data("a"))
    txn_id = session.begin().txn_id
    session.stage(txn_id, table_id, add=[data("b", file_id=2)], remove=["a"])
    session.abort(txn_id)
    assert paths_of(session, table.name) == ["a"]


def test_files_are_replaced_in_one_step(session: Session, table: ResolvedTable) -> None:
    table_id = table.descriptor.id
    write(session, table_id, data("a"), data("b", file_id=2))
    txn_id = session.begin().txn_id
    session.stage(txn_id, table_id, add=[data("ab", file_id=3)], remove=["a", "b"])
    assert paths_of(session, table.name) == ["a", "b"]
    session.commit(txn_id)
    assert paths_of(session, table.name) == ["ab"]


@pytest.mark.parametrize("how", ["remove", "touch", "name"])
def test_the_first_to_commit_of_two_transactions_that_change_one_file_wins(
    session: Session, table: ResolvedTable, how: str
) -> None:
    table_id = table.descriptor.id
    write(session, table_id, data("a"))
    first, second = session.begin().txn_id, session.begin().txn_id
    for number, txn_id in enumerate((first, second)):
        file_ids = (data("a").file_id,)
        deletes = DeleteFile(path=f"d{number}", file_ids=file_ids, counts=(1,))
        if how == "touch":
            session.stage(txn_id, table_id, add=[deletes], touch=["a"])
        elif how == "remove":
            session.stage(txn_id, table_id, add=[deletes], remove=["a"])
        else:
            session.stage(txn_id, table_id, add=[deletes])
    session.commit(second)
    with pytest.raises(WriteConflict, match=f"transaction {second}"):
        session.commit(first)
    assert session.transaction(first).state is TransactionState.ABORTED
    assert [file.path for file in files_of(session, table.name).delete_files] == ["d1"]


def test_appends_of_two_transactions_do_not_conflict(
    session: Session, table: ResolvedTable
) -> None:
    table_id = table.descriptor.id
    first, second = session.begin().txn_id, session.begin().txn_id
    session.stage(first, table_id, add=[data("a")])
    session.stage(second, table_id, add=[data("b", file_id=2)])
    session.commit(second)
    session.commit(first)
    assert paths_of(session, table.name) == ["a", "b"]


def test_dropping_the_table_is_a_conflict(session: Session, table: ResolvedTable) -> None:
    txn_id = session.begin().txn_id
    session.stage(txn_id, table.descriptor.id, add=[data("a")])
    session.execute(DropTable(schema=table.schema, table="t"))
    with pytest.raises(WriteConflict, match="dropped"):
        session.commit(txn_id)


def test_adding_a_column_is_not_a_conflict(session: Session, table: ResolvedTable) -> None:
    txn_id = session.begin().txn_id
    session.stage(txn_id, table.descriptor.id, add=[data("a")])
    session.execute(
        AddColumns(schema=table.schema, table="t", columns=(ColumnDefinition("n", INT),))
    )
    session.commit(txn_id)
    assert paths_of(session, table.name) == ["a"]


def test_a_heartbeat_is_accepted_for_open_and_committed_transactions(session: Session) -> None:
    begun = session.begin()
    while system_wall_clock() <= begun.last_heartbeat:
        pass  # the millisecond in which it began
    session.heartbeat(begun.txn_id)
    # The node stores it soon, and the client does not wait for that.
    wait_until(lambda: session.transaction(begun.txn_id).last_heartbeat > begun.last_heartbeat)
    session.commit(begun.txn_id)
    session.heartbeat(begun.txn_id)  # accepted: a committed transaction cannot expire


def test_commits_that_changed_rows_are_listed_oldest_first(session: Session, schema: str) -> None:
    session.execute([create(schema, "a"), create(schema, "b")])
    a, b = (session.table(f"{schema}.{name}").descriptor.id for name in "ab")
    since = session.open([]).time
    first, second = write(session, a, data("x", rows=3)), write(session, b, data("y", rows=4))
    session.commit(session.begin().txn_id)  # it changes nothing
    both = session.begin().txn_id
    session.stage(both, a, add=[data("z", file_id=9, rows=5)], remove=["x"])
    session.stage(both, b, remove=["y"])
    session.commit(both)
    commits = session.data_history(since=since)
    assert [commit.txn_id for commit in commits] == [first, second, both]
    assert {commit.user for commit in commits} == {USER}
    assert commits[0].changes == (TableChange(a, appended_rows=3, data_files_added=1),)
    replaced = TableChange(a, 5, 3, data_files_added=1, data_files_removed=1)
    removed = TableChange(b, deleted_rows=4, data_files_removed=1)
    assert commits[2].changes == (replaced, removed)

    of_b = session.data_history(since=since, table=f"{schema}.b")
    assert [commit.txn_id for commit in of_b] == [second, both]
    assert of_b[1].changes == (removed,)
    assert session.data_history(since=since, until=commits[1].time) == commits[:2]
    assert session.data_history(since=since, limit=2) == commits[:2]
    assert session.data_history(since=Timestamp(commits[1].time + 1)) == commits[2:]
    for limit in (0, -5, MAX_COMMITS + 1):
        with pytest.raises(InvalidInput, match="the limit is a number from 1 to 1000"):
            session.data_history(limit=limit)
    for number in (0, -5, 1 << 63, 1 << 70):
        for bound in ("since", "until"):
            with pytest.raises(InvalidInput, match=r"is not a time|does not fit 64 bits"):
                session.data_history(**{bound: Timestamp(number)})  # type: ignore[arg-type]  # one of them
    with pytest.raises(ObjectNotFound):
        session.data_history(table=f"{schema}.none")


def test_a_hold_is_acquired_renewed_and_released(session: Session) -> None:
    at = session.open([]).time
    hold = session.hold("reader", "ann", at=at, ttl_ms=60_000)
    assert (hold.kind, hold.owner, hold.at) == ("reader", "ann", at)
    longer = session.renew_hold(hold.hold_id, ttl_ms=600_000)
    assert longer == replace(hold, expires=longer.expires)
    assert longer.expires > hold.expires
    session.release_hold(hold.hold_id)
    session.release_hold(hold.hold_id)
    with pytest.raises(HoldExpired):
        session.renew_hold(hold.hold_id)


def test_a_hold_of_the_present_begins_when_it_is_granted(session: Session) -> None:
    begun = session.begin()
    hold = session.hold("reader", at=None)
    assert hold.at > begun.begin_time
    assert session.renew_hold(hold.hold_id).at == hold.at


def test_open_transactions_and_holds_are_listed_as_holders(session: Session) -> None:
    begun = session.begin()
    kept = session.hold("backup", "job 7", at=begun.begin_time)
    present = session.holders()
    assert present.min_open_txn is not None
    assert present.min_open_txn <= begun.txn_id
    assert present.low_watermark <= begun.begin_time
    keepers = {(h.type, h.id): h for h in present.holders}
    transaction = keepers[HolderType.TRANSACTION, begun.txn_id]
    assert (transaction.kind, transaction.owner) == ("read-write", begun.user)
    assert transaction.since == begun.begin_time
    hold = keepers[HolderType.HOLD, kept.hold_id]
    assert (hold.kind, hold.owner, hold.ends) == ("backup", "job 7", kept.expires)
    session.release_hold(kept.hold_id)
    session.abort(begun.txn_id)
    left = {(h.type, h.id) for h in session.holders().holders}
    assert not left & {(transaction.type, transaction.id), (hold.type, hold.id)}
