"""What readers see, compared with a model: no snapshot that was taken may ever change."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strandline.clock import Timestamp
from strandline.errors import TransactionFinished, WriteConflict
from strandline.transactions import TransactionState, ValidTxnList, ValidWriteIdList
from tests.transactions.stores import CANCELLATIONS, FLIGHTS, Store

TABLES = (FLIGHTS, CANCELLATIONS)
TIMEOUT_MS = 300_000


@dataclass
class Modelled:
    """A transaction in the model."""

    txn_id: int
    begin_time: Timestamp
    heartbeat: int
    state: TransactionState = TransactionState.OPEN
    commit_time: Timestamp | None = None
    write_ids: dict[int, int] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)

    def committed_by(self, at: Timestamp) -> bool:
        return self.commit_time is not None and self.commit_time <= at


class SnapshotMachine(RuleBasedStateMachine):
    """Random transactions; lists are recomputed from the model and compared id by id."""

    factory: pytest.TempPathFactory

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(self.factory.mktemp("store") / "strandline.db")
        self.transactions = self.store.transactions
        self.model: dict[int, Modelled] = {}
        self.given = dict.fromkeys(TABLES, 0)
        self.snapshots: list[tuple[int, Timestamp, frozenset[int]]] = []
        self.lists: list[tuple[int, ValidTxnList, frozenset[int]]] = []

    def teardown(self) -> None:
        for taken in self.lists:
            self.check_list(*taken)
        self.store.database.close()

    def in_state(self, *states: TransactionState) -> list[Modelled]:
        return [one for one in self.model.values() if one.state in states]

    def one_open(self, data: st.DataObject) -> Modelled:
        return data.draw(st.sampled_from(self.in_state(TransactionState.OPEN)))

    def has_open(self) -> bool:
        return bool(self.in_state(TransactionState.OPEN))

    def seen(self, table_id: int, at: Timestamp) -> set[int]:
        return {
            one.write_ids[table_id]
            for one in self.model.values()
            if table_id in one.write_ids and one.committed_by(at)
        }

    @rule(milliseconds=st.sampled_from([0, 1, 5]))
    def begin(self, milliseconds: int) -> None:
        self.store.wall_ms += milliseconds
        begun = self.transactions.begin(user="ann")
        self.model[begun.txn_id] = Modelled(begun.txn_id, begun.begin_time, begun.last_heartbeat)
        assert begun.txn_id == len(self.model)

    @precondition(has_open)
    @rule(data=st.data(), table_id=st.sampled_from(TABLES))
    def allocate(self, data: st.DataObject, table_id: int) -> None:
        one = self.one_open(data)
        write_id = self.store.allocate(one.txn_id, table_id)
        if table_id not in one.write_ids:
            self.given[table_id] += 1
            one.write_ids[table_id] = self.given[table_id]
        assert write_id == one.write_ids[table_id]

    @precondition(has_open)
    @rule(data=st.data(), row_id=st.integers(1, 4))
    def change_row(self, data: st.DataObject, row_id: int) -> None:
        one = self.one_open(data)
        self.allocate_for(one)
        self.store.change_rows(one.txn_id, row_id)
        one.rows.add(row_id)

    def allocate_for(self, one: Modelled) -> None:
        if FLIGHTS not in one.write_ids:
            self.store.allocate(one.txn_id, FLIGHTS)
            self.given[FLIGHTS] += 1
            one.write_ids[FLIGHTS] = self.given[FLIGHTS]

    @precondition(has_open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        one = self.one_open(data)
        clash = any(
            other.rows & one.rows and other.commit_time and other.commit_time > one.begin_time
            for other in self.model.values()
        )
        if clash:
            with pytest.raises(WriteConflict):
                self.transactions.commit(one.txn_id)
            one.state = TransactionState.ABORTED
            return
        last = max((other.commit_time or 0 for other in self.model.values()), default=0)
        one.commit_time = self.transactions.commit(one.txn_id).commit_time
        assert one.commit_time is not None
        assert one.commit_time > last
        one.state = TransactionState.COMMITTED

    @precondition(has_open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        one = self.one_open(data)
        self.transactions.abort(one.txn_id)
        one.state = TransactionState.ABORTED

    @precondition(has_open)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        one = self.one_open(data)
        assert not self.transactions.heartbeat([one.txn_id]).aborted
        # The clock may run ahead of the wall clock, never behind it.
        one.heartbeat = max(one.heartbeat, self.transactions.get(one.txn_id).last_heartbeat)

    @rule(milliseconds=st.sampled_from([1000, TIMEOUT_MS // 2, TIMEOUT_MS + 1]))
    def expire(self, milliseconds: int) -> None:
        self.store.wall_ms += milliseconds
        present = self.store.clock.current() >> 16
        expected = [
            one.txn_id
            for one in self.in_state(TransactionState.OPEN)
            if one.heartbeat + TIMEOUT_MS < present
        ]
        assert self.transactions.expire() == expected
        for txn_id in expected:
            self.model[txn_id].state = TransactionState.ABORTED

    @rule(table_id=st.sampled_from(TABLES))
    def take_snapshot(self, table_id: int) -> None:
        at = self.store.clock.current()
        found = self.transactions.write_ids(table_id, at=at)
        now = frozenset(self.seen(table_id, at))
        assert visible(found) == now
        assert visible(self.transactions.write_ids(table_id)) == now
        self.snapshots.append((table_id, at, now))

    @rule(table_id=st.sampled_from(TABLES))
    def take_list(self, table_id: int) -> None:
        unfinished = self.transactions.unfinished()
        open_ids = {one.txn_id for one in self.in_state(TransactionState.OPEN)}
        aborted = {one.txn_id for one in self.in_state(TransactionState.ABORTED) if one.write_ids}
        assert unfinished.hwm == len(self.model)
        assert unfinished.txn_ids == tuple(sorted(open_ids | aborted))
        assert unfinished.aborted == aborted
        assert unfinished.min_open == min(open_ids, default=None)
        seen = frozenset(self.seen(table_id, self.store.clock.current()))
        self.lists.append((table_id, unfinished.seen_by(), seen))

    @precondition(has_open)
    @rule(data=st.data(), table_id=st.sampled_from(TABLES))
    def read_by_a_list_in_a_transaction(self, data: st.DataObject, table_id: int) -> None:
        one = self.one_open(data)
        earlier = {
            other.write_ids[table_id]
            for other in self.in_state(TransactionState.COMMITTED)
            if table_id in other.write_ids and other.txn_id < one.txn_id
        }
        own = {one.write_ids[table_id]} if table_id in one.write_ids else set()
        txns = self.transactions.unfinished().seen_by(one.txn_id)
        assert visible(self.transactions.write_ids_by(table_id, txns)) == earlier | own

    @precondition(lambda self: self.model)
    @rule(data=st.data(), table_id=st.sampled_from(TABLES))
    def read_in_a_transaction(self, data: st.DataObject, table_id: int) -> None:
        one = data.draw(st.sampled_from(sorted(self.model.values(), key=lambda m: m.txn_id)))
        if one.state is TransactionState.ABORTED:
            with pytest.raises(TransactionFinished):
                self.transactions.write_ids(table_id, txn_id=one.txn_id)
            return
        own = {one.write_ids[table_id]} if table_id in one.write_ids else set()
        found = self.transactions.write_ids(table_id, txn_id=one.txn_id)
        assert visible(found) == self.seen(table_id, one.begin_time) | own

    @invariant()
    def no_snapshot_ever_changes(self) -> None:
        for table_id, at, seen in self.snapshots:
            found = self.transactions.write_ids(table_id, at=at)
            assert visible(found) == seen
            assert found.hwm == max(seen, default=0)

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def a_list_shows_what_it_showed(self, data: st.DataObject) -> None:
        self.check_list(*data.draw(st.sampled_from(self.lists)))

    def check_list(self, table_id: int, txns: ValidTxnList, seen: frozenset[int]) -> None:
        by_list = self.transactions.write_ids_by(table_id, txns)
        assert visible(by_list) == seen
        writes = [
            (one.txn_id, one.write_ids[table_id])
            for one in self.model.values()
            if table_id in one.write_ids
        ]
        following = self.given[table_id] + 1 if writes else None
        assert by_list == ValidWriteIdList.derive(
            None, txns=txns, writes=writes, next_write_id=following
        )

    @invariant()
    def open_and_aborted_are_told_apart(self) -> None:
        for table_id in TABLES:
            found = self.transactions.write_ids(table_id)
            ids = {
                one.write_ids[table_id]: one.state
                for one in self.model.values()
                if table_id in one.write_ids
            }
            assert all(ids[w] is TransactionState.OPEN for w in found.open_ids)
            assert all(ids[w] is TransactionState.ABORTED for w in found.aborted_ids)

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        for one in self.model.values():
            found = self.transactions.get(one.txn_id)
            assert (found.state, found.commit_time) == (one.state, one.commit_time)
            pairs = self.transactions.write_id_pairs(one.txn_id)
            assert dict(pairs) == one.write_ids


def visible(found: ValidWriteIdList) -> set[int]:
    return {w for w in range(1, found.hwm + 2) if found.valid(w)}


@pytest.mark.parametrize("examples", [12, pytest.param(200, marks=pytest.mark.soak)])
def test_snapshots_agree_with_the_model_and_never_change(
    tmp_path_factory: pytest.TempPathFactory, examples: int
) -> None:
    SnapshotMachine.factory = tmp_path_factory
    SnapshotMachine.TestCase.settings = settings(max_examples=examples, stateful_step_count=30)
    SnapshotMachine.TestCase().runTest()
