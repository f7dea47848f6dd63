"""The cache against the store and a model; and the same check against planted faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.log_applier import LogApplier, committing
from strandline.metastore.cache.replica_set import Change
from strandline.metastore.cache.replicas import Replica, VisibleRows
from strandline.metastore.store.notifications import ABORT, COMMIT, WRITE, Notification
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.row_queries import TableContents
from strandline.metastore.store.rows import RowKind
from strandline.metastore.store.store_folders import StoreFolders
from strandline.transactions import ValidWriteIdList
from tests.metastore.cache.cache_model import CacheMachine, check_small_histories
from tests.metastore.dml import Dml

CALM = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.parametrize("examples", [12, pytest.param(300, marks=pytest.mark.soak)])
def test_the_cache_gives_the_stores_answer_at_every_list(dml: Dml, examples: int) -> None:
    run_state_machine_as_test(
        type("Machine", (CacheMachine,), {"dml": dml}),
        settings=settings(
            max_examples=examples if dml.database.dialect == "sqlite" else examples // 2,
            stateful_step_count=40,
            suppress_health_check=CALM,
        ),
    )


@pytest.mark.parametrize(
    ("every", "count"), [(5, 26), pytest.param(1, 128, marks=pytest.mark.soak)]
)
def test_the_cache_is_right_in_every_history_of_two_transactions(
    dml: Dml, every: int, count: int
) -> None:
    machine = type("Machine", (CacheMachine,), {"dml": dml})
    if dml.database.dialect != "sqlite" and every > 1:
        every, count = every * 2 + 1, count // 2 - 1
    assert check_small_histories(machine, every=every) == count


Steps = list[tuple[int, Change]]


class ShowsBeforeCommit(LogApplier):
    """Rows are visible from the event that brings them."""

    def _changes(self, event: Notification) -> Steps:
        steps = super()._changes(event)
        if event.verb == WRITE and steps and event.write_id is not None:
            # One change for both: the second of two would find its event applied.
            ((table_id, stage),) = steps
            commit = committing(event.event_id, event.write_id)
            return [(table_id, lambda held: commit(_reopened(stage, held)))]
        return steps


def _reopened(stage: Change, held: Replica) -> Replica:
    """``stage`` on a replica whose list may have the id committed already, by the fault."""
    staged = stage(replace(held, committed=ValidWriteIdList(hwm=0)))
    return replace(staged, committed=held.committed)


class CommitsHalf(LogApplier):
    """Of the tables of a transaction, only the first is committed."""

    def _changes(self, event: Notification) -> Steps:
        steps = super()._changes(event)
        return steps[:1] if event.verb == COMMIT else steps


class NeverCommits(LogApplier):
    """The list is not extended by a commit."""

    def _changes(self, event: Notification) -> Steps:
        return [] if event.verb == COMMIT else super()._changes(event)


class KeepsAborted(LogApplier):
    """An abort leaves its rows."""

    def _changes(self, event: Notification) -> Steps:
        return [] if event.verb == ABORT else super()._changes(event)


class CommitsAborted(LogApplier):
    """An abort counts as a commit."""

    def _changes(self, event: Notification) -> Steps:
        if event.verb != ABORT:
            return super()._changes(event)
        return [(t, committing(event.event_id, w)) for t, w in event.end().writes]


class LosesRemovals(LogApplier):
    """A staging brings its rows and not its removals."""

    def _changes(self, event: Notification) -> Steps:
        steps = super()._changes(event)
        if event.verb != WRITE or event.write_id is None or event.table_id is None:
            return steps
        number, write_id = event.event_id, event.write_id
        rows = self._store.staged_rows(event.table_id, write_id, event.write())
        return [(t, lambda held: held.staged(number, write_id, rows, ())) for t, _ in steps]


class AnswersWithoutAsking(CachedStore):
    """Memory answers although it lacks writes that the reader's list has."""

    def _shown(
        self, replica: Replica, kind: RowKind, write_ids: ValidWriteIdList | None
    ) -> VisibleRows | None:
        return replica.visible(kind, write_ids or replica.committed)


class ComparesMarks(CachedStore):
    """Memory answers when its high-water mark is not below the reader's."""

    def _shown(
        self, replica: Replica, kind: RowKind, write_ids: ValidWriteIdList | None
    ) -> VisibleRows | None:
        reader = write_ids or replica.committed
        return replica.visible(kind, reader) if replica.committed.hwm >= reader.hwm else None


class AnswersAtItsOwnList(CachedStore):
    """Memory filters by its own list in place of the reader's."""

    def _shown(
        self, replica: Replica, kind: RowKind, write_ids: ValidWriteIdList | None
    ) -> VisibleRows | None:
        if super()._shown(replica, kind, write_ids) is None:
            return None
        return replica.visible(kind, replica.committed)


class LoadsCommittedRowsOnly(SqlObjectStore):
    """A table is loaded without the rows of transactions that are open at that time."""

    def contents(self, table_id: int, *, max_bytes: int, max_rows: int) -> TableContents | None:
        found = super().contents(table_id, max_bytes=max_bytes, max_rows=max_rows)
        if found is None:
            return None
        rows = tuple(row for row in found.rows if found.committed.valid(row.write_id))
        return replace(found, rows=rows)


class LoadsWithoutItsPlace(SqlObjectStore):
    """A table is loaded as if it had been read at the end of all events."""

    def contents(self, table_id: int, *, max_bytes: int, max_rows: int) -> TableContents | None:
        found = super().contents(table_id, max_bytes=max_bytes, max_rows=max_rows)
        return found and replace(found, event_id=found.event_id + 2)


def faulty_dml(fault: type, path: Path) -> tuple[Dml, type[CachedStore]]:
    """A store with the fault in it, and the kind of cache to put before it."""
    dml = Dml(path)
    if issubclass(fault, LogApplier):
        return dml, type("Faulty", (CachedStore,), {"applier": fault})
    if issubclass(fault, CachedStore):
        return dml, fault
    assert issubclass(fault, SqlObjectStore)
    folders = StoreFolders(path.parent)
    dml.store = fault(dml.database, dml.transactions, dml.log, guard=dml.guard, folders=folders)
    return dml, CachedStore


FAULTS: list[type] = [
    ShowsBeforeCommit,
    CommitsHalf,
    NeverCommits,
    KeepsAborted,
    CommitsAborted,
    LosesRemovals,
    AnswersWithoutAsking,
    ComparesMarks,
    AnswersAtItsOwnList,
    LoadsCommittedRowsOnly,
    LoadsWithoutItsPlace,
]


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_check_finds_a_planted_fault(fault: type, tmp_path: Path) -> None:
    dml, cache_kind = faulty_dml(fault, tmp_path / "strandline.db")
    machine = type("Faulty", (CacheMachine,), {"dml": dml, "cache_kind": cache_kind})
    with pytest.raises(AssertionError):
        check_small_histories(machine)
    dml.database.close()
