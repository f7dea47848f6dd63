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
        return [txn for txn in self.model.values() if txn.state in states]

    def one_open(self, data: st.DataObject) -> Modelled:
        return data.draw(st.sampled_from(self.in_state(TransactionState.OPEN)))

    def has_open(self) -> bool:
        return bool(self.in_state(TransactionState.OPEN))

    def seen(self, table_id: int, at: Timestamp) -> set[int]:
        return {
            txn.write_ids[table_id]
            for txn in self.model.values()
            if table_id in txn.write_ids and txn.committed_by(at)
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
        txn = self.one_open(data)
        write_id = self.store.allocate(txn.txn_id, table_id)
        if table_id not in txn.write_ids:
            self.given[table_id] += 1
            txn.write_ids[table_id] = self.given[table_id]
        assert write_id == txn.write_ids[table_id]

    @precondition(has_open)
    @rule(data=st.data(), row_id=st.integers(1, 4))
    def change_row(self, data: st.DataObject, row_id: int) -> None:
        txn = self.one_open(data)
        self.allocate_for(txn)
        self.store.change_rows(txn.txn_id, row_id)
        txn.rows.add(row_id)

    def allocate_for(self, txn: Modelled) -> None:
        if FLIGHTS not in txn.write_ids:
            self.store.allocate(txn.txn_id, FLIGHTS)
            self.given[FLIGHTS] += 1
            txn.write_ids[FLIGHTS] = self.given[FLIGHTS]

    @precondition(has_open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        txn = self.one_open(data)
        clash = any(
            other.rows & txn.rows and other.commit_time and other.commit_time > txn.begin_time
            for other in self.model.values()
        )
        if clash:
            with pytest.raises(WriteConflict):
                self.transactions.commit(txn.txn_id)
            txn.state = TransactionState.ABORTED
            return
        last = max((other.commit_time or 0 for other in self.model.values()), default=0)
        txn.commit_time = self.transactions.commit(txn.txn_id).commit_time
        assert txn.commit_time is not None
        assert txn.commit_time > last
        txn.state = TransactionState.COMMITTED

    @precondition(has_open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        txn = self.one_open(data)
        self.transactions.abort(txn.txn_id)
        txn.state = TransactionState.ABORTED

    @precondition(has_open)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        txn = self.one_open(data)
        assert not self.transactions.heartbeat([txn.txn_id]).aborted
        # The clock may run ahead of the wall clock, never behind it.
        txn.heartbeat = max(txn.heartbeat, self.transactions.get(txn.txn_id).last_heartbeat)

    @rule(milliseconds=st.sampled_from([1000, TIMEOUT_MS // 2, TIMEOUT_MS + 1]))
    def expire(self, milliseconds: int) -> None:
        self.store.wall_ms += milliseconds
        present = self.store.clock.current() >> 16
        expected = [
            txn.txn_id
            for txn in self.in_state(TransactionState.OPEN)
            if txn.heartbeat + TIMEOUT_MS < present
        ]
        assert self.transactions.expire() == expected
        for txn_id in expected:
            self.model[txn_id].state = TransactionState.ABORTED

    @rule(table_id=st.sampled_from(TABLES))
    def take_snapshot(self, table_id: int) -> None:
        at = self.store.clock.current()
        write_ids = self.transactions.write_ids(table_id, at=at)
        now = frozenset(self.seen(table_id, at))
        assert visible(write_ids) == now
        assert visible(self.transactions.write_ids(table_id)) == now
        self.snapshots.append((table_id, at, now))

    @rule(table_id=st.sampled_from(TABLES))
    def take_list(self, table_id: int) -> None:
        unfinished = self.transactions.unfinished()
        open_ids = {txn.txn_id for txn in self.in_state(TransactionState.OPEN)}
        aborted = {txn.txn_id for txn in self.in_state(TransactionState.ABORTED) if txn.write_ids}
        assert unfinished.hwm == len(self.model)
        assert unfinished.txn_ids == tuple(sorted(open_ids | aborted))
        assert unfinished.aborted == aborted
        assert unfinished.min_open == min(open_ids, default=None)
        seen = frozenset(self.seen(table_id, self.store.clock.current()))
        self.lists.append((table_id, self.store.txns_seen_by(), seen))

    @precondition(has_open)
    @rule(data=st.data(), table_id=st.sampled_from(TABLES))
    def read_by_a_list_in_a_transaction(self, data: st.DataObject, table_id: int) -> None:
        txn = self.one_open(data)
        earlier = {
            other.write_ids[table_id]
            for other in self.in_state(TransactionState.COMMITTED)
            if table_id in other.write_ids and other.txn_id < txn.txn_id
        }
        own = {txn.write_ids[table_id]} if table_id in txn.write_ids else set()
        txns = self.store.txns_seen_by(txn.txn_id)
        assert visible(self.transactions.write_ids_by(table_id, txns)) == earlier | own

    @precondition(lambda self: self.model)
    @rule(data=st.data(), table_id=st.sampled_from(TABLES))
    def read_in_a_transaction(self, data: st.DataObject, table_id: int) -> None:
        txn = data.draw(st.sampled_from(sorted(self.model.values(), key=lambda m: m.txn_id)))
        if txn.state is TransactionState.ABORTED:
            with pytest.raises(TransactionFinished):
                self.transactions.write_ids(table_id, txn_id=txn.txn_id)
            return
        own = {txn.write_ids[table_id]} if table_id in txn.write_ids else set()
        write_ids = self.transactions.write_ids(table_id, txn_id=txn.txn_id)
        assert visible(write_ids) == self.seen(table_id, txn.begin_time) | own

    @invariant()
    def no_snapshot_ever_changes(self) -> None:
        for table_id, at, seen in self.snapshots:
            write_ids = self.transactions.write_ids(table_id, at=at)
            assert visible(write_ids) == seen
            assert write_ids.hwm == max(seen, default=0)

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def a_list_shows_what_it_showed(self, data: st.DataObject) -> None:
        self.check_list(*data.draw(st.sampled_from(self.lists)))

    def check_list(self, table_id: int, txns: ValidTxnList, seen: frozenset[int]) -> None:
        by_list = self.transactions.write_ids_by(table_id, txns)
        assert visible(by_list) == seen
        writes = [
            (txn.txn_id, txn.write_ids[table_id])
            for txn in self.model.values()
            if table_id in txn.write_ids
        ]
        following = self.given[table_id] + 1 if writes else None
        assert by_list == ValidWriteIdList.derive(
            None, txns=txns, writes=writes, next_write_id=following
        )

    @invariant()
    def open_and_aborted_are_told_apart(self) -> None:
        for table_id in TABLES:
            write_ids = self.transactions.write_ids(table_id)
            ids = {
                txn.write_ids[table_id]: txn.state
                for txn in self.model.values()
                if table_id in txn.write_ids
            }
            assert all(ids[w] is TransactionState.OPEN for w in write_ids.open_ids)
            assert all(ids[w] is TransactionState.ABORTED for w in write_ids.aborted_ids)

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        for txn in self.model.values():
            stored = self.transactions.get(txn.txn_id)
            assert (stored.state, stored.commit_time) == (txn.state, txn.commit_time)
            pairs = self.transactions.write_id_pairs(txn.txn_id)
            assert dict(pairs) == txn.write_ids


def visible(write_ids: ValidWriteIdList) -> set[int]:
    return {w for w in range(1, write_ids.hwm + 2) if write_ids.valid(w)}


@pytest.mark.parametrize(
    "examples",
    [pytest.param(12, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.soak)],
)
def test_snapshots_agree_with_the_model_and_never_change(
    tmp_path_factory: pytest.TempPathFactory, examples: int
) -> None:
    SnapshotMachine.factory = tmp_path_factory
    SnapshotMachine.TestCase.settings = settings(max_examples=examples, stateful_step_count=30)
    SnapshotMachine.TestCase().runTest()
