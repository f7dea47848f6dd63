"""Faults of the cache, each planted as a class that replaces the real part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.log_applier import LogApplier, committing
from strandline.metastore.cache.replica_set import Change, HeldReplica
from strandline.metastore.cache.replicas import Replica, VisibleRows
from strandline.metastore.store.notifications import ABORT, COMMIT, WRITE, Notification
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.rows import RowKind
from strandline.metastore.store.table_contents import TableContents
from strandline.transactions import ValidWriteIdList

Steps = list[tuple[int, Change]]


class ShowsBeforeCommit(LogApplier):
    """Rows become visible with the event that stages them, before the commit."""

    def _changes(self, event: Notification) -> Steps:
        steps = super()._changes(event)
        if event.verb == WRITE and steps and event.write_id is not None:
            # One change for both: a second change would find its event already applied.
            ((table_id, stage),) = steps
            commit = committing(event.event_id, event.write_id)
            return [(table_id, lambda replica: commit(_reopened(stage, replica)))]
        return steps


def _reopened(stage: Change, replica: Replica) -> Replica:
    """Apply ``stage`` to a replica whose list may have the id committed already, by the fault."""
    staged = stage(replace(replica, committed=ValidWriteIdList(hwm=0)))
    return replace(staged, committed=replica.committed)


class CommitsHalf(LogApplier):
    """Only the first table of a transaction is committed."""

    def _changes(self, event: Notification) -> Steps:
        steps = super()._changes(event)
        return steps[:1] if event.verb == COMMIT else steps


class NeverCommits(LogApplier):
    """A commit does not extend the list."""

    def _changes(self, event: Notification) -> Steps:
        return [] if event.verb == COMMIT else super()._changes(event)


class KeepsAborted(LogApplier):
    """An abort leaves the rows of its transaction."""

    def _changes(self, event: Notification) -> Steps:
        return [] if event.verb == ABORT else super()._changes(event)


class CommitsAborted(LogApplier):
    """An abort is applied as a commit."""

    def _changes(self, event: Notification) -> Steps:
        if event.verb != ABORT:
            return super()._changes(event)
        return [(t, committing(event.event_id, w)) for t, w in event.end().writes]


class LosesRemovals(LogApplier):
    """A staging adds its rows but loses its removals."""

    def _changes(self, event: Notification) -> Steps:
        steps = super()._changes(event)
        if event.verb != WRITE or event.write_id is None or event.table_id is None:
            return steps
        number, write_id = event.event_id, event.write_id
        rows = self._store.staged_rows(event.table_id, write_id, event.write())
        return [(t, lambda replica: replica.staged(number, write_id, rows, ())) for t, _ in steps]


class AnswersWithoutAsking(CachedStore):
    """The cache answers although it lacks writes that the reader's list has."""

    def _shown(
        self,
        replica: Replica,
        kind: RowKind,
        write_ids: ValidWriteIdList | None,
        *,
        by_partition: bool = False,
    ) -> VisibleRows | None:
        return replica.visible(kind, write_ids or replica.committed)


class ComparesMarks(CachedStore):
    """The cache answers if its high-water mark is not below the reader's."""

    def _shown(
        self,
        replica: Replica,
        kind: RowKind,
        write_ids: ValidWriteIdList | None,
        *,
        by_partition: bool = False,
    ) -> VisibleRows | None:
        reader = write_ids or replica.committed
        return replica.visible(kind, reader) if replica.committed.hwm >= reader.hwm else None


class AnswersAtItsOwnList(CachedStore):
    """The cache filters by its own list instead of the reader's."""

    def _shown(
        self,
        replica: Replica,
        kind: RowKind,
        write_ids: ValidWriteIdList | None,
        *,
        by_partition: bool = False,
    ) -> VisibleRows | None:
        if super()._shown(replica, kind, write_ids) is None:
            return None
        return replica.visible(kind, replica.committed)


class SkipsWhatCameSince(LogApplier):
    """A restored state is treated as if it were up to date at the start."""

    def restore(self, applied_event: int, replicas: Iterable[HeldReplica]) -> None:
        super().restore(max(applied_event, self._replicas.applied_event), replicas)


class LoadsCommittedRowsOnly(SqlObjectStore):
    """A table is loaded without the rows of transactions that are open at that time."""

    def contents(self, table_id: int, *, max_bytes: int, max_rows: int) -> TableContents | None:
        loaded = super().contents(table_id, max_bytes=max_bytes, max_rows=max_rows)
        if loaded is None:
            return None
        rows = tuple(row for row in loaded.rows if loaded.committed.valid(row.write_id))
        return replace(loaded, rows=rows)


class LoadsWithoutItsPlace(SqlObjectStore):
    """A table is loaded as if it had been read after later events."""

    def contents(self, table_id: int, *, max_bytes: int, max_rows: int) -> TableContents | None:
        loaded = super().contents(table_id, max_bytes=max_bytes, max_rows=max_rows)
        return loaded and replace(loaded, event_id=loaded.event_id + 2)
