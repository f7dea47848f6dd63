"""Mistakes that a node's memory can make, each as a part that takes the place of the real one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.log_applier import LogApplier, committing
from strandline.metastore.cache.replica_set import Change, HeldReplica
from strandline.metastore.cache.replicas import Replica, VisibleRows
from strandline.metastore.store.notifications import ABORT, COMMIT, WRITE, Notification
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.row_queries import TableContents
from strandline.metastore.store.rows import RowKind
from strandline.transactions import ValidWriteIdList

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


class SkipsWhatCameSince(CachedStore):
    """A state is taken as if it were of the moment of the start."""

    def restore(self, applied_event: int, replicas: Iterable[HeldReplica]) -> None:
        super().restore(max(applied_event, self.applied_event), replicas)


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
