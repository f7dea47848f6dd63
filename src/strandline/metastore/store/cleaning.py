"""Cleaning: rows and files that no snapshot can see any more are removed.

===================  ==============================================================================
removed rows         rows that a commit removed up to the *limit*, with their files
dropped partitions   folders of dropped partitions of plain tables whose rows are gone
leftovers            files of ended transactions that no row names, such as those of killed writers
dropped tables       tables that no kept version of the catalog has, with their folders; see
                     `dropped_tables`
events               events of the notification log older than its retention; the newest one stays
transactions         those that ended long ago, with their write ids; see `old_transactions`
===================  ==============================================================================

The limit is the low watermark (`Holds.cleaning_limit`), or the time up to which clients may read a
snapshot without a hold (`snapshot_holds`), whichever is earlier. Every hold, every open transaction
and every reader within the retention sees the removal. An older reader without a hold must not get
an answer that lacks files or partitions. So the SQL transaction that deletes such rows also records
the limit for the table, and a reader with an older list is refused (`row_queries.require_kept`).
The cache of this node drops the table, and learns the limit when it loads the table again. The
cache of another node may still show the rows to such a reader. So the store is asked when a
snapshot of the past is opened (`SqlObjectStore.require_kept`), and for the place of a partition
(`SqlObjectStore.partition_moves`). A reader who opened its snapshot before finds a missing file.
Replaced statistics and parameters are not recorded: without them, a reader of the past gets none,
which is never wrong.

What must stay true:

* rows are deleted first, and files after that SQL transaction: a crash in between leaves leftovers.
  A file that a row still names stays, even if another row of that name was removed;
* a delete file is removed by a commit, like that of a client, once all its data files are removed,
  and before their rows are deleted: then a client may give their ids to other data files;
* rows of a table are deleted in the order of their ids. So the row of an altered partition goes
  before the row that replaced it, without which it would look dropped;
* the folder of a dropped partition is listed before the rows are read, and only its row can bring
  it back. A row whose folder has not been moved aside yet stays;
* leftovers are listed before the open transactions and the rows are read. So the transaction of a
  leftover cannot have staged it in between, and a transaction that has ended stages nothing more;
* a table of which a file is missing has no leftovers: if the database or the warehouse was set
  back, its folder may be that of another table, whose only files they are. Nor has a table with a
  file of a committed write whose rows are lost, for example by a restore with other tools;
* the place of a table is compared after its folder is opened. A table that is created at the place
  of a dropped or renamed one gets its folder after that change is committed;
* only a file whose name gives its transaction can be a leftover, and files are deleted only in own
  places of the store, through descriptors that follow no link. External tables are never touched;
* nothing is cleaned while a backup copies files.

A table that had no leftovers and whose folders have not changed since costs one look at the times
of its folders. Several nodes may clean one store at once.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from strandline.catalog import CatalogManager
from strandline.clock import HybridClock, Timestamp
from strandline.errors import CorruptData, WriteConflict
from strandline.metastore.store.aborted_rows import MAX_ROWS, AbortedRows
from strandline.metastore.store.cleaned_files import Cleaned, CleanedFiles, Pass
from strandline.metastore.store.dropped_tables import DroppedTables
from strandline.metastore.store.object_store import ObjectStore
from strandline.metastore.store.old_transactions import OUTCOME_KEPT_MS, OldTransactions
from strandline.metastore.store.own_files import Times, missing_file, own_files, times_of_folders
from strandline.metastore.store.removed_rows import (
    RemovedRow,
    compare_rows,
    delete_files_of_none,
    forget,
    is_recorded,
    named_for_good,
    names_of_files,
    removed_rows,
    tables_with_removed_rows,
    unnamed,
)
from strandline.metastore.store.row_queries import rows_by_id
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.table_places import all_places, place_of
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.places import Place
from strandline.model.privileges import SYSTEM_NAME
from strandline.sql import Database, change, run
from strandline.transactions import Transactions, TransactionState
from strandline.transactions.holds import is_backed_up

logger = logging.getLogger(__name__)

MAX_EVENTS = 10_000
"""The maximum number of events that one SQL transaction deletes: all writers wait for it."""
MAX_READ = 50 * MAX_ROWS
"""The maximum number of removed rows in one read. Each read sorts all those of the table."""

_OPEN = f"SELECT txn_id FROM txn WHERE state = {TransactionState.OPEN.value}"

_OLD_EVENTS = (
    "SELECT coalesce((SELECT min(event_id) FROM notification_log WHERE time > ?),"
    " (SELECT max(event_id) FROM notification_log)) - min(event_id), min(event_id)"
    " FROM notification_log"
)
"""The number of events older than a time, up to the first younger one; and the first event.

The times of events do not always grow with their ids, and the events that stay must have no gap.
"""

_ROW_ID = re.compile("[0-9]{1,18}")
"""The name of the folder of a dropped partition."""


@dataclass(frozen=True, slots=True)
class Cleanable:
    """What cleaning removed, or would remove.

    It removes what commits removed up to ``limit``. That is None while a backup copies files: then
    nothing is removed.
    """

    limit: Timestamp | None
    parts: tuple[Cleaned, ...]


@dataclass(frozen=True, slots=True)
class CleanerStatistics:
    """Counts since the start. ``failures`` are files and folders that could not be deleted."""

    runs: int
    rows: int
    files: int
    bytes: int
    failures: int


class Cleaner:
    """See the module. Safe for threads, and for several processes on one store.

    ``on_rows_gone`` is called with the id of a table after its rows and before its files are
    deleted, and with those of ``cached_tables`` (the tables in memory) that no kept version has.
    ``store`` commits removals. What was removed less than ``snapshot_hold_ms`` ago stays.
    """

    def __init__(
        self,
        database: Database,
        clock: HybridClock,
        transactions: Transactions,
        aborted_rows: AbortedRows,
        catalogs: CatalogManager,
        *,
        folders: StoreFolders,
        store: ObjectStore,
        on_rows_gone: Callable[[int], None],
        cached_tables: Callable[[], Collection[int]],
        snapshot_hold_ms: int,
        notification_retention_ms: int,
    ) -> None:
        self._database = database
        self._clock = clock
        self._transactions = transactions
        self._aborted_rows = aborted_rows
        self._catalogs = catalogs
        self._folders = folders
        self._files = CleanedFiles(folders)
        self._store = store
        self._on_rows_gone = on_rows_gone
        self._snapshot_hold_ms = snapshot_hold_ms
        self._notification_retention_ms = notification_retention_ms
        self._old_transactions = OldTransactions(database)
        self._dropped_tables = DroppedTables(
            database,
            clock,
            transactions,
            catalogs,
            folders=folders,
            files=self._files,
            on_rows_gone=on_rows_gone,
            cached_tables=cached_tables,
        )
        self._settled: dict[int, Times] = {}
        self._runs = self._rows = self._file_count = self._bytes = 0

    def statistics(self) -> CleanerStatistics:
        return CleanerStatistics(
            self._runs, self._rows, self._file_count, self._bytes, self._files.failures
        )

    def clean(
        self,
        *,
        dry_run: bool = False,
        most_named: int = sys.maxsize,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Cleanable:
        """Remove all that can be removed until ``stopped``, or report what would be.

        The result has at most ``most_named`` names of each part.
        """
        this_pass = Pass(dry_run, stopped)
        limit = self._transactions.holds.cleaning_limit(dry_run=dry_run)
        if limit is None:
            logger.info("nothing is cleaned while a backup copies files")
            return Cleanable(limit, ())
        limit = min(limit, self._transactions.holds.time_before(self._snapshot_hold_ms))
        if not dry_run:
            self._runs += 1
            self._aborted_rows.clean(stopped=stopped)
        parts: list[Cleaned] = []
        for cleaned in chain(
            self._removed_rows(limit, this_pass),
            self._dropped_partitions(limit, this_pass),
            self._old_events(this_pass),
            self._leftovers(this_pass),
            self._dropped_tables.clean(this_pass),
            self._ended_transactions(limit, this_pass),
        ):
            if not dry_run:
                self._rows += cleaned.rows
                self._file_count += cleaned.files
                self._bytes += cleaned.bytes
                logger.info(
                    "cleaned %s (%s): %d rows, %d files of %d bytes",
                    cleaned.what,
                    cleaned.table,
                    cleaned.rows,
                    cleaned.files,
                    cleaned.bytes,
                )
            del cleaned.names[most_named:]
            parts.append(cleaned)
        if not dry_run:
            self._dropped_tables.remove_emptied_schemas(this_pass)
        return Cleanable(limit, tuple(parts))

    # -- removed rows

    def _removed_rows(self, limit: Timestamp, this_pass: Pass) -> Iterator[Cleaned]:
        with self._database.read() as connection:
            table_ids = tables_with_removed_rows(connection, limit)
        for table_id in table_ids:
            table = self._catalogs.latest_catalog().table_by_id(table_id)
            cleaned = Cleaned("removed rows", self._name(table, table_id))
            try:
                if this_pass.dry_run:
                    with self._database.read() as connection:
                        removed = removed_rows(connection, table_id, limit, max_rows=None)
                        names = names_of_files(removed)
                        unnamed_files = unnamed(connection, table_id, names, are_stored=True)
                    cleaned.rows = len(removed)
                    self._count(cleaned, table, table_id, unnamed_files)
                else:
                    self._remove_delete_files_of_none(table)
                    for removed in self._forget_removed(table_id, limit, this_pass):
                        cleaned.rows += len(removed)
                        if is_recorded(removed):
                            self._on_rows_gone(table_id)
                        with self._database.read() as connection:
                            unnamed_files = unnamed(connection, table_id, names_of_files(removed))
                        self._count(cleaned, table, table_id, unnamed_files, delete=True)
            except (CorruptData, WriteConflict) as error:
                level = logging.INFO if isinstance(error, WriteConflict) else logging.WARNING
                message = "the removed rows of %s stay until the next pass: %s"
                logger.log(level, message, cleaned.table, error)
            if cleaned.rows:
                yield cleaned

    def _remove_delete_files_of_none(self, table: TableDescriptor | None) -> None:
        """Commit their removal. If that fails, the rows of data files must stay.

        Raises `CorruptData`, and `WriteConflict` if another node does the same, or the table is
        dropped meanwhile.
        """
        if table is None or not table.transactional:
            return
        with self._database.read() as connection:  # no writer waits for it
            row_ids = delete_files_of_none(connection, table.id)
        if row_ids:
            with self._store.change(table.id, author=SYSTEM_NAME) as change:
                change.stage(remove=row_ids)

    def _forget_removed(
        self, table_id: int, limit: Timestamp, this_pass: Pass
    ) -> Iterator[list[RemovedRow]]:
        """Delete the removed rows of a table in parts; yield each deleted part."""
        while not this_pass.stopped():
            with self._database.read() as connection:  # this may take long: no writer waits for it
                rows = removed_rows(connection, table_id, limit, max_rows=MAX_READ)
            if not rows:
                return
            for start in range(0, len(rows), MAX_ROWS):
                part = rows[start : start + MAX_ROWS]
                if this_pass.stopped() or not self._forget(table_id, limit, part):
                    return
                yield part

    def _forget(self, table_id: int, limit: Timestamp, rows: Sequence[RemovedRow]) -> bool:
        """Delete rows that were removed up to ``limit``; return False during a backup."""
        with self._database.guarded_write() as connection:
            if is_backed_up(connection, self._clock.current()):
                return False
            forget(connection, table_id, limit, rows)
            return True

    def _count(
        self,
        cleaned: Cleaned,
        table: TableDescriptor | None,
        table_id: int,
        names: Collection[str],
        *,
        delete: bool = False,
    ) -> None:
        """Count these files of a managed table, and with ``delete`` delete them."""
        if table is not None and table.kind is not TableKind.MANAGED:
            return
        with self._own_folder(table_id, self._place(table_id)) as root:
            if root is not None:
                for name in names:
                    self._files.take(cleaned, root, name, delete=delete)

    @contextmanager
    def _own_folder(self, table_id: int, place: Place | None) -> Iterator[int | None]:
        """The descriptor of a table's folder at ``place``, or None if it is not there any more.

        Another table may have got the place before the folder was opened.
        """
        with self._files.own_folder(place) as root:
            yield root if root is not None and self._place(table_id) == place else None

    def _place(self, table_id: int) -> Place | None:
        with self._database.read() as connection:
            return place_of(connection, table_id)

    # -- dropped partitions

    def _dropped_partitions(self, limit: Timestamp, this_pass: Pass) -> Iterator[Cleaned]:
        catalog = self._catalogs.latest_catalog()
        for path, name, place in self._files.set_aside():
            table = catalog.table_by_id(int(name["table"]))
            if table is None or not name["partitions"] or path.is_symlink():
                continue  # the folders of a dropped table go with it
            if this_pass.stopped():
                return
            try:
                names = os.listdir(path)
            except FileNotFoundError:
                continue  # the table was purged meanwhile
            except OSError as error:
                self._files.note_failure(path, error)
                continue
            listed = {int(text): text for text in names if _ROW_ID.fullmatch(text)}
            try:
                with self._database.read() as connection:
                    if is_backed_up(connection, self._clock.current()):
                        return
                    kept = set(rows_by_id(connection, listed))
                    if this_pass.dry_run:
                        removed = removed_rows(connection, table.id, limit, max_rows=None)
                        kept -= {row.row_id for row in removed}
            except CorruptData as error:
                self._files.note_failure(path, error)
                continue
            cleaned = Cleaned("dropped partitions", self._name(table, table.id))
            for row_id in sorted(listed.keys() - kept):
                self._files.take_folder(
                    cleaned, place, path / listed[row_id], delete=not this_pass.dry_run
                )
            if cleaned.names:
                yield cleaned

    # -- leftovers

    def _leftovers(self, this_pass: Pass) -> Iterator[Cleaned]:
        with self._database.read() as connection:
            places = all_places(connection)
        catalog = self._catalogs.latest_catalog()
        table_ids = set(catalog.table_ids())
        for dropped_id in self._settled.keys() - table_ids:
            self._settled.pop(dropped_id, None)  # another pass may have removed it
        for table_id in table_ids:
            place = places.get(table_id)
            if place is None or not self._folders.reaches(place):
                continue
            if this_pass.stopped():
                return
            times = times_of_folders(self._folders.path_text(place))
            if not any(times) or self._settled.get(table_id) == times:
                continue
            table = catalog.table_by_id(table_id)
            if table is None or not table.transactional:
                continue
            cleaned = Cleaned("leftovers", self._name(table, table.id))
            with self._own_folder(table.id, place) as root:
                if root is None:
                    continue
                listed = list(own_files(root))  # before the rows are read: see the module
                try:
                    with self._database.read() as connection:
                        still_open = {txn_id for (txn_id,) in run(connection, _OPEN)}
                        named = named_for_good(connection, table.id)
                        if is_backed_up(connection, self._clock.current()):
                            return
                        leftovers = {
                            name: owner
                            for name, owner in listed
                            if name not in named and owner not in still_open
                        }
                        # A row whose name is damaged may be that of a file.
                        compare_rows(connection, table.id, leftovers)
                except CorruptData as error:
                    logger.warning("the leftovers of %s stay: %s", cleaned.table, error)
                    continue
                unlisted = named.difference(name for name, _ in listed)
                if leftovers and (missing_name := missing_file(root, unlisted)) is not None:
                    logger.warning(
                        "the leftovers of %s stay: its file %s is missing or out of reach, so this "
                        "may be the folder of another table, or the database or the warehouse was "
                        "set back; `strandline verify` finds what else is missing",
                        cleaned.table,
                        missing_name,
                    )
                    continue
                for name in leftovers:
                    self._files.take(cleaned, root, name, delete=not this_pass.dry_run)
            if not leftovers and still_open.isdisjoint(owner for _, owner in listed):
                self._settled[table.id] = times
            if cleaned.files:
                yield cleaned

    # -- events

    def _old_events(self, this_pass: Pass) -> Iterator[Cleaned]:
        oldest = self._transactions.holds.time_before(self._notification_retention_ms)
        with self._database.read() as connection:
            ((count, first),) = run(connection, _OLD_EVENTS, (oldest,))
        if not count:
            return
        if not this_pass.dry_run:
            delete = "DELETE FROM notification_log WHERE event_id < ?"
            for start in range(first, first + count, MAX_EVENTS):
                with self._database.guarded_write() as connection:
                    change(connection, delete, (min(start + MAX_EVENTS, first + count),))
        yield Cleaned("events", "the notification log", rows=count)

    # -- transactions

    def _ended_transactions(self, limit: Timestamp, this_pass: Pass) -> Iterator[Cleaned]:
        # Memory learns from an event which writes a transaction made: the event goes first.
        kept_ms = max(self._notification_retention_ms, OUTCOME_KEPT_MS)
        count = self._old_transactions.clean(
            min(limit, self._transactions.holds.time_before(kept_ms)),
            dry_run=this_pass.dry_run,
            stopped=this_pass.stopped,
        )
        if count:
            yield Cleaned("transactions", "all tables", rows=count)

    def _name(self, table: TableDescriptor | None, table_id: int) -> str:
        if table is None:
            return f"table {table_id}"
        return str(self._catalogs.latest_catalog().qualified_name(table))
