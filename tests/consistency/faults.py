"""Faults of a served node, planted in its process, which a history of its clients must show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from strandline.catalog.manager import CatalogManager
from strandline.catalog.planning import Planning
from strandline.clock import Timestamp
from strandline.durable import CatalogTransaction
from strandline.errors import DeadlineExceeded
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.log_applier import LogApplier
from strandline.metastore.cache.replica_set import Change
from strandline.metastore.interface import AsOf, Snapshot
from strandline.metastore.off_loop import off_loop
from strandline.metastore.reader import Reader
from strandline.metastore.store import row_queries
from strandline.metastore.store.notifications import COMMIT, NewEvent, Notification, NotificationLog
from strandline.node import Node
from strandline.transactions import Transaction, records, transaction_ends
from strandline.transactions.holds import Holds
from tests.metastore.cache.cache_faults import ComparesMarks, ShowsBeforeCommit
from tests.servers.served_node import GATES


def a_commit_shown_early(patch: pytest.MonkeyPatch) -> None:
    """The cache takes a write for committed at the event that brings its rows."""
    patch.setattr(CachedStore, "applier", ShowsBeforeCommit)


def one_invalidation_skipped(patch: pytest.MonkeyPatch) -> None:
    """The cache skips the first event that brings rows."""
    real = LogApplier._staged
    skipped: list[int] = []

    def staged(self: LogApplier, run: Sequence[Notification]) -> list[tuple[int, Change]]:
        changes = real(self, run)
        if changes and not skipped:
            skipped.append(run[0].event_id)
            return []
        return changes

    patch.setattr(LogApplier, "_staged", staged)


def served_by_watermark_alone(patch: pytest.MonkeyPatch) -> None:
    """The cache answers every list whose high-water mark it has reached."""
    patch.setattr(CachedStore, "_shown", ComparesMarks._shown)


def a_table_id_reused(patch: pytest.MonkeyPatch) -> None:
    """The next id is one above the largest in use, so the id of a dropped table is given again."""
    kinds = ("database", "schema", "table", "index", "view", "zone", "role", "system_view")

    def allocate(self: CatalogTransaction, name: str = "", *, amount: int = 1) -> range:
        objects = (stored for kind in kinds for stored in self.contents.objects(kind))
        used = max((stored.id for stored in objects), default=0)
        return range(used + 1, used + 1 + amount)

    patch.setattr(CatalogTransaction, "allocate_id", allocate)
    patch.setattr(Planning, "next_id", property(lambda self: allocate(self.transaction)[0]))


def a_removal_row_dropped(patch: pytest.MonkeyPatch) -> None:
    """A staging does not write its removals."""
    patch.setattr(row_queries, "add_removals", lambda *_: None)


def the_token_not_compared_in_sql(patch: pytest.MonkeyPatch) -> None:
    """Writes of rows do not check the fence."""
    patch.setattr(Node, "_guard", lambda *_: None)


def a_snapshot_waits(patch: pytest.MonkeyPatch) -> None:
    """Not a fault: a snapshot stops at the gate "snapshot" before it is taken."""
    _wait_in_open(patch, keep_lists=False)


def a_list_derived_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    """The lists of a snapshot are older than its time, which the store gives under its lock."""
    _wait_in_open(patch, keep_lists=True)


def _wait_in_open(patch: pytest.MonkeyPatch, *, keep_lists: bool) -> None:
    real = Reader.open

    async def wait(
        self: Reader, names: Iterable[str], *, at: AsOf, transaction: Transaction | None = None
    ) -> Snapshot:
        await off_loop()
        names = list(names)
        tables = [self.catalog.table(*name.split(".")) for name in names]
        lists = {
            table.id: self.metastore.transactions.write_ids(table.id) for table in tables if table
        }
        GATES["snapshot"].wait()
        snapshot = await real(self, names, at=at, transaction=transaction)
        return replace(snapshot, write_ids=lists) if keep_lists else snapshot

    patch.setattr(Reader, "open", wait)


def an_event_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """The event of the first commit is logged after that of the next one."""
    real = NotificationLog.append
    kept: list[NewEvent] = []

    def append(
        self: NotificationLog, connection: Connection, events: Sequence[NewEvent], **options: Any
    ) -> None:
        if events and events[0].verb == COMMIT:
            kept.extend(events)
            if len(kept) == 1:
                return
            events = kept[:0:-1] + kept[:1]
        real(self, connection, events, **options)

    patch.setattr(NotificationLog, "append", append)


def a_hold_ignored(patch: pytest.MonkeyPatch) -> None:
    """History is trimmed even if a hold keeps it."""

    def raise_low_watermark(self: Holds, to: Timestamp) -> None:
        """Raise nothing; the catalog is trimmed next."""

    patch.setattr(Holds, "raise_low_watermark", raise_low_watermark)


def an_abort_ignored(patch: pytest.MonkeyPatch) -> None:
    """An abort is answered and logged, and the transaction stays open."""

    def mark_aborted(
        connection: Connection, txn_ids: Sequence[int], **_: object
    ) -> list[Transaction]:
        return [records.find(connection, txn_id) for txn_id in txn_ids]

    patch.setattr(records, "mark_aborted", mark_aborted)


def a_conflict_ignored(patch: pytest.MonkeyPatch) -> None:
    """The second committer is not refused."""
    patch.setattr(transaction_ends, "row_conflict", lambda *_, **__: None)


def a_change_refused_after_its_commit(patch: pytest.MonkeyPatch) -> None:
    """A change of the catalog succeeds, and its caller is told that it did not start."""
    real = CatalogManager.execute

    def execute(self: CatalogManager, *given: Any, **named: Any) -> Any:
        real(self, *given, **named)
        raise DeadlineExceeded("planted")

    patch.setattr(CatalogManager, "execute", execute)
