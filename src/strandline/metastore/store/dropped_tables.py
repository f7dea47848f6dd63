"""Cleaning of dropped tables: those that no kept version of the catalog has.

Their rows, their write numbers and their folders are removed, with the folders of dropped schemas
in which only these were left. So are the folders that a purge, a truncation or a move left when its
process died. `cleaning` runs this as one of its steps.

What must stay true:

* a pass that has dropped tables to clean first appends a version (`ReadAgain`), and judges all
  versions before it. One of them may restore a table. After it, only what reads the history again
  can restore tables, and that finds no version that had them;
* the number of its next write goes before the rows of a table: from then on, readers of the past
  are refused (`row_queries.require_kept`);
* nothing is cleaned while a backup copies files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from strandline.catalog import Catalog, CatalogManager
from strandline.catalog.undo.command import ReadAgain
from strandline.clock import HybridClock, milliseconds
from strandline.durable.transaction import OBJECT_IDS
from strandline.errors import VersionNotFound
from strandline.metastore.store.aborted_rows import MAX_ROWS
from strandline.metastore.store.cleaned_files import Cleaned, CleanedFiles, FolderAside, Pass
from strandline.metastore.store.folder_effects import PARTITIONS_SUFFIX
from strandline.metastore.store.notifications import POSITION
from strandline.metastore.store.partition_moves import unfinished
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.table_places import all_places, place_of
from strandline.model.places import DROPPED, Place
from strandline.model.privileges import SYSTEM_NAME
from strandline.sql import Database, change, in_lists, run
from strandline.transactions import Transactions
from strandline.transactions.holds import is_backed_up

MAX_FOLDERS = 20
"""The maximum number of folders that one SQL transaction removes: all writers wait for it."""

TRUNCATED_KEPT_MS = 24 * 60 * 60 * 1000
"""How long a folder stays that a truncation moved aside: it is moved back if the truncation fails.

Other processes cannot see whether a truncation still runs: its transaction is not visible to them,
and its process may have lost the connection to the database.
"""


class DroppedTables:
    """See the module. Safe for threads, and for several processes on one store.

    The arguments are those of `Cleaner`; ``files`` deletes the folders.
    """

    def __init__(
        self,
        database: Database,
        clock: HybridClock,
        transactions: Transactions,
        catalogs: CatalogManager,
        *,
        folders: StoreFolders,
        files: CleanedFiles,
        on_rows_gone: Callable[[int], None],
        cached_tables: Callable[[], Collection[int]],
    ) -> None:
        self._database = database
        self._clock = clock
        self._transactions = transactions
        self._catalogs = catalogs
        self._folders = folders
        self._files = files
        self._on_rows_gone = on_rows_gone
        self._cached_tables = cached_tables

    def clean(self, this_pass: Pass) -> Iterator[Cleaned]:
        """Clean the tables that no kept version has, and yield what was removed of each."""
        with self._database.read() as connection:
            if is_backed_up(connection, self._clock.current()):
                return
            places = all_places(connection)
            tables = run(connection, "SELECT DISTINCT table_id FROM store_row")
            written = {t for (t,) in run(connection, "SELECT table_id FROM next_write_id")}
        # A dropped table whose files are kept, or could not be moved, keeps its place: a table that
        # got the same place would show those files.
        aside = {
            table_id: place
            for table_id, place in places.items()
            if place.is_inside and DROPPED in place.path.split("/")
        }
        with_rows = {*aside, *(table_id for (table_id,) in tables)}
        set_aside = list(self._files.set_aside())
        with_folders = {int(name["table"]) for _, name, _ in set_aside}
        cached_ids = set(self._cached_tables())  # another node may have deleted rows of some
        judged = self._catalogs.latest_catalog().version
        unneeded_ids = self._in_no_version(with_rows | with_folders | written | cached_ids)
        # No restored table needs what is left of the others, which perhaps cannot be deleted.
        if unneeded_ids & (with_rows | written) and not this_pass.dry_run:
            latest = self._catalogs.execute(ReadAgain(), author=SYSTEM_NAME).version
            try:  # some may have been restored meanwhile
                unneeded_ids.difference_update(self._changed_tables(judged + 1, latest))
            except VersionNotFound:  # trimmed meanwhile, so the next pass looks again
                return
        for table_id in sorted(unneeded_ids & with_rows):
            if this_pass.stopped():
                return
            cleaned = Cleaned("dropped table", f"table {table_id}")
            if this_pass.dry_run:
                with self._database.read() as connection:
                    count = "SELECT count(*) FROM store_row WHERE table_id = ?"
                    cleaned.rows = run(connection, count, (table_id,))[0][0]
            elif self._begin_to_forget(table_id, with_place=table_id in aside):
                cleaned.rows = self._forget_table(table_id)
            else:
                return
            if (place := aside.get(table_id)) is not None:
                for suffix in ("", PARTITIONS_SUFFIX):
                    path = self._folders.path(Place(f"{place.text}{suffix}"))
                    self._files.take_folder(cleaned, place, path, delete=not this_pass.dry_run)
            yield cleaned
        if not this_pass.dry_run:
            for table_id in unneeded_ids & cached_ids:
                self._on_rows_gone(table_id)
            for in_list, table_ids in in_lists(sorted(unneeded_ids & written)):
                self._change(f"DELETE FROM next_write_id WHERE table_id IN {in_list}", table_ids)
        yield from self._folders_without_rows(set_aside, unneeded_ids - places.keys(), this_pass)

    def _in_no_version(self, table_ids: set[int]) -> set[int]:
        """Those of ``table_ids`` that neither a kept version of the catalog nor a later one has."""
        earliest, latest = self._catalogs.earliest_catalog(), self._catalogs.latest_catalog()
        first_id = earliest.next_number(OBJECT_IDS)
        unneeded_ids = {table_id for table_id in table_ids if table_id < first_id}
        unneeded_ids -= {*earliest.table_ids(), *latest.table_ids()}
        if not unneeded_ids:
            return unneeded_ids
        # A table that was restored and dropped again is in neither, but in a version between them.
        try:
            changed_ids = self._changed_tables(earliest.version + 1, latest.version)
            unneeded_ids.difference_update(changed_ids)
        except VersionNotFound:  # trimmed meanwhile, so the next pass looks again
            return set()
        return unneeded_ids

    def _changed_tables(self, first: int, last: int) -> Iterator[int]:
        """The ids of the tables that these versions changed. Raises `VersionNotFound`."""
        for update in self._catalogs.each_update(first, last):
            yield from (change.object_id for change in update.changes() if change.kind == "table")

    def _folders_without_rows(
        self, set_aside: Iterable[FolderAside], unneeded_ids: set[int], this_pass: Pass
    ) -> Iterator[Cleaned]:
        """Clean those folders ``set_aside`` that a process left when it died."""
        oldest_kept = milliseconds(self._transactions.holds.time_before(TRUNCATED_KEPT_MS))
        for path, name, place in set_aside:
            if this_pass.stopped():
                return
            table_id = int(name["table"])
            is_old = name["truncated"] is not None and int(name["truncated"]) < oldest_kept
            is_purged = name["purged"] is not None and self._is_purge_committed(
                table_id, name["row"]
            )
            if is_purged or is_old or table_id in unneeded_ids:
                cleaned = Cleaned("dropped table", f"table {table_id}")
                self._files.take_folder(cleaned, place, path, delete=not this_pass.dry_run)
                if cleaned.names:
                    yield cleaned

    def remove_emptied_schemas(self, this_pass: Pass) -> None:
        """Remove folders of dropped schemas in which only folders of dropped tables were left.

        No folder is made or moved while the database is written. One of a version that this node
        has not applied yet may already be there: then the next pass looks again.
        """
        judged = self._catalogs.latest_catalog()
        places = self._places_of_schemas(judged)
        emptied = list(set(self._files.emptied_schemas()) - places)
        for start in range(0, len(emptied), MAX_FOLDERS):
            if this_pass.stopped():
                return
            with self._database.guarded_write() as connection:
                if is_backed_up(connection, self._clock.current()):
                    return
                ((_, version, entries),) = run(connection, POSITION)
                if version + bool(entries) > (latest := self._catalogs.latest_catalog()).version:
                    return
                if latest is not judged:  # writers wait, and there may be many schemas
                    judged, places = latest, self._places_of_schemas(latest)
                for place in emptied[start : start + MAX_FOLDERS]:
                    if place not in places:
                        self._files.remove_emptied(place)

    def _places_of_schemas(self, catalog: Catalog) -> set[Place]:
        return set(map(self._folders.place_of_schema, catalog.all_schemas()))

    def _is_purge_committed(self, table_id: int, row: str | None) -> bool:
        """Whether the purge of a table, or of its partition in that row, was committed.

        If not, another node repeats it, and has to find the folder aside: else it would purge what
        a client has written at the old place meanwhile.
        """
        with self._database.read() as connection:
            if row is None:
                return place_of(connection, table_id) is None
            return all(str(move.up_to_row) != row for move in unfinished(connection, table_id))

    def _begin_to_forget(self, table_id: int, *, with_place: bool) -> bool:
        """Delete the number of a dropped table's next write and, with ``with_place``, its place.

        From then on, readers of the past are refused (`row_queries.require_kept`). Changes nothing
        and returns False during a backup.
        """
        with self._database.guarded_write() as connection:
            if is_backed_up(connection, self._clock.current()):
                return False
            for name in ("next_write_id", *(("table_location",) if with_place else ())):
                change(connection, f"DELETE FROM {name} WHERE table_id = ?", (table_id,))
            return True

    def _forget_table(self, table_id: int) -> int:
        """Delete the rows of a table; return their number.

        Its write ids stay: they go with their transactions.
        """
        count = 0
        for name in ("store_removal", "store_row"):
            some_ids = f"SELECT row_id FROM {name} WHERE table_id = ? LIMIT {MAX_ROWS}"
            statement = f"DELETE FROM {name} WHERE table_id = ? AND row_id IN ({some_ids})"
            while deleted := self._change(statement, (table_id, table_id)):
                count += deleted if name == "store_row" else 0
        for name in ("partition_move", "unfinished_move", "cleaned_table"):
            self._change(f"DELETE FROM {name} WHERE table_id = ?", (table_id,))
        return count

    def _change(self, statement: str, parameters: tuple[int, ...]) -> int:
        """Run a statement in a write transaction of its own; return how many rows it changed."""
        with self._database.guarded_write() as connection:
            return change(connection, statement, parameters)
