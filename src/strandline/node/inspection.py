"""What a node shows the operator of its store; see `strandline.metastore.inspection`.

What must stay true: an inspection changes nothing in the store. It uses the open database and log
of the node, but opens the catalog anew: it reads what is stored, not what the node has in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from strandline.config import SettingValue
from strandline.durable import durable_state
from strandline.metastore.inspection import MAX_FINDINGS, MAX_NAMED, Finding, VerificationReport
from strandline.metastore.store.cleaning import Cleanable, Cleaner
from strandline.metastore.store.notifications import NotificationLog
from strandline.node.address import StoreAddress
from strandline.node.catalog_dump import dump_pieces
from strandline.node.catalog_log import LogPlace, log_name
from strandline.node.database_mark import DatabaseMark
from strandline.node.opened_store import OpenedStore
from strandline.node.store_database import compare_head
from strandline.sql import Database, SqliteDatabase


class StoreInspection:
    """The `Inspection` of an open store. ``settings`` are those of the node, without secrets."""

    def __init__(
        self,
        store: OpenedStore,
        notifications: NotificationLog,
        cleaner: Cleaner,
        settings: Sequence[SettingValue],
    ) -> None:
        self._store = store
        self._notifications = notifications
        self._cleaner = cleaner
        self._settings = settings

    def verify(self, *, pages: bool) -> VerificationReport:
        from strandline.node.verification import Verification  # it imports pyarrow

        store = self._store
        verification = Verification(
            store.database,
            durable_state(store.catalog_log.log).open_read_only,
            self._notifications,
            folders=store.folders,
            compare_head=head_comparison(store.address, store.database, store.mark),
            pages=pages,
        )
        verified = verification.verified
        findings: list[Finding] = []
        for finding in verification.findings():
            count = verified.errors if finding.is_error else verified.leftovers
            if count <= MAX_FINDINGS:
                findings.append(finding)
        return VerificationReport(tuple(findings), verified)

    def dump(self, *, ignore: Sequence[str], stats_only: bool) -> Iterator[str]:
        state = durable_state(self._store.catalog_log.log).open_read_only(latest_only=True)
        return dump_pieces(state, ignored=ignore, only_counts=stats_only)

    def clean(self) -> Cleanable:
        return self._cleaner.clean(dry_run=True, most_named=MAX_NAMED)

    def settings(self) -> list[SettingValue]:
        return list(self._settings)

    def catalog_log(self) -> str:
        store = self._store
        return log_name(LogPlace(store.database, store.address, store.clock))

    def database_bytes(self) -> int:
        return self._store.database.size()


def head_comparison(
    address: StoreAddress, database: Database, mark: DatabaseMark | None
) -> Callable[[], None] | None:
    """Return the function that compares the database with its marks outside, or None without any.

    The marks are in the head file of a folder, or in etcd (``mark``).
    """
    if isinstance(database, SqliteDatabase) and address.folder is not None:
        return partial(compare_head, address.folder, database)
    return None if mark is None else lambda: mark.compare(mark.marked_time(), database)
