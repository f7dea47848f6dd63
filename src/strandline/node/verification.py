"""Verification: check that the records of a store are sound and match its files.

Verification checks three things and changes nothing:

* *records*: the database is sound, and every version, row and event in it decodes and matches its
  checksum if it has one. The last version satisfies the rules that hold for every catalog. Rows to
  which others refer are there (`lost_rows`), and each managed table has a place;
* *files*: every data and delete file that a committed row names exists and has the recorded size,
  and the footer of a data file has the recorded number of rows. With ``pages``, every page is read
  and compared with its checksum. Files of removed rows are checked too, because past versions need
  them;
* *both*: a file of a transactional table that no row names is a *leftover* of a writer that was
  killed or is still running. Leftovers are harmless and are not errors.

A store may be verified while nodes work on it. Verification lists folders before it reads rows, so
it finds the row of a file that a running transaction adds in between. A table that moves meanwhile
is checked again. So are tables with errors, a little later, since a node may have cleaned or
dropped a file after its row was read, or may be moving a folder: only what is found twice is
reported. The files of a plain table belong to its writers; verification only checks that the
folders of its partitions exist.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlalchemy import Connection, select

from strandline.catalog import read_history
from strandline.catalog.storage_usage import read_events
from strandline.durable import Superseded
from strandline.durable.state import ReadOnlyState
from strandline.errors import CorruptData, Stopping, StrandlineError, Unavailable
from strandline.metastore.inspection import Finding, FindingKind, Verified
from strandline.metastore.partition_places import GONE, PastPlaces
from strandline.metastore.store import partition_moves
from strandline.metastore.store import row_queries as queries
from strandline.metastore.store.notifications import ABORT, COMMIT, STAGED, NotificationLog
from strandline.metastore.store.own_files import owner_of
from strandline.metastore.store.removed_rows import without_rows
from strandline.metastore.store.rows import DataFile, DeleteFile, DeleteForm, Row, RowKind
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.table_contents import TableContents, table_contents
from strandline.metastore.store.table_places import all_places, place_of
from strandline.metastore.store.tables import STORE_REMOVAL, STORE_ROW
from strandline.metastore.store.warehouse import resolve_location
from strandline.model.descriptors import TableKind
from strandline.model.places import DROPPED
from strandline.node.lost_rows import (
    UNNUMBERED,
    UNPLACED,
    lost_additions,
    lost_of_store,
    lost_of_tables,
    lost_removals,
    unnumbered_tables,
)
from strandline.node.verified_catalog import (
    KnownTable,
    compare_history,
    findings_of_rules,
    known_tables,
    parse_arguments,
    table_ids_of,
)
from strandline.sql import Database

SETTLING_SECONDS = 1.0
"""After this time, tables with errors and unknown folders of dropped tables are checked again.

A node that moves a folder, and records that when it commits, is then done.
"""
_BATCH = 1_000
_ATTEMPTS = 3
"""How many times a table is checked, at most, if its folder keeps moving."""
_ALL = 1 << 62
_UNFINISHED = (
    "; DDL was interrupted, which may have moved it: start a node, which finishes that, and verify "
    "again"
)
_DATABASE = "database"
"""The place of damage that is not that of a single record."""
_WORD = (1 << 64) - 1
_FOLDERS_OF_FILES = ("_files", "_data", "_deletes", "_staging")
"""The subfolders of a transactional table, besides the ``_file=…`` folders of release 0.2.0.

Release 0.2.1 put data files into ``_data``.
"""


@dataclass(slots=True)
class Verification:
    """One verification of a store. With ``pages``, it reads every page of every data file.

    Use each object once. ``state`` opens the catalog. ``notifications`` is the log in ``database``.
    ``compare_head`` raises if the database is older than it once was, or is None if the store keeps
    no such mark outside of the database.
    """

    database: Database
    state: Callable[[], ReadOnlyState]
    notifications: NotificationLog
    folders: StoreFolders
    compare_head: Callable[[], None] | None = None
    pages: bool = False
    verified: Verified = field(default_factory=Verified)

    def findings(self) -> Iterator[Finding]:
        """Yield each finding as soon as it is certain."""
        damage: set[Finding] = set()  # of the database, which checks of many tables may meet
        for finding in self._all():
            if finding in damage:
                continue
            if finding.place == _DATABASE:
                damage.add(finding)
            if finding.is_error:
                self.verified.errors += 1
            else:
                self.verified.leftovers += 1
            yield finding

    def _all(self) -> Iterator[Finding]:
        yield from self._database_file()
        tables: dict[int, KnownTable] = {}
        try:
            yield from self._catalog(tables)
        except StrandlineError as error:
            yield _found("catalog", error)
        yield from _readable(self._rows())
        yield from _readable(self._events(tables))
        yield from _readable(self._lost_rows(tables))
        all_tables = [tables[table_id] for table_id in sorted(tables)]
        yield from self._naming_unfinished_ddl(self._each_table(all_tables))
        if tables:
            folders = _readable(self._dropped_folders(tables))
            yield from self._naming_unfinished_ddl(folders)

    # -- records

    def _catalog(self, tables: dict[int, KnownTable]) -> Iterator[Finding]:
        """Check the log, and add every table that it names to ``tables``.

        The versions are in memory only here: all of them take more than the rest.
        """
        state = self.state()
        history = read_history(state.log)
        parse_arguments(state, history)
        yield from compare_history(state, history)
        tables |= known_tables(state)
        yield from findings_of_rules(state)
        self.verified.records += state.recovered[-1].version
        events = read_events(state.log, 1, state.log.frontier().upper)
        self.verified.records += sum(1 for _ in events)  # each is decoded

    def _database_file(self) -> Iterator[Finding]:
        if self.compare_head is not None:
            try:
                self.compare_head()
            except StrandlineError as error:
                yield _found(_DATABASE, error)
        for damage in self.database.find_damage():
            yield Finding(FindingKind.RECORD, _DATABASE, damage)

    def _rows(self) -> Iterator[Finding]:
        """Find rows that do not decode, and removals of rows that do not exist."""
        last = -1
        while True:
            with self.database.read() as connection:
                ids = connection.execute(
                    select(STORE_ROW.c.row_id)
                    .where(STORE_ROW.c.row_id > last)
                    .order_by(STORE_ROW.c.row_id)
                    .limit(_BATCH)
                ).scalars()
                row_ids = list(ids)
                yield from self._decoded(connection, row_ids)
            if not row_ids:
                break
            last = row_ids[-1]
        removed = STORE_REMOVAL.outerjoin(STORE_ROW, STORE_ROW.c.row_id == STORE_REMOVAL.c.row_id)
        with self.database.read() as connection:
            missing = connection.execute(
                select(STORE_REMOVAL.c.row_id)
                .select_from(removed)
                .where(STORE_ROW.c.row_id.is_(None))
            ).scalars()
            for row_id in missing:
                yield Finding(
                    FindingKind.RECORD, f"row {row_id}", "it was removed, and is not there"
                )

    def _decoded(self, connection: Connection, row_ids: list[int]) -> Iterator[Finding]:
        try:
            rows = queries.rows_with_removers(connection, row_ids)
            for row_id, (row, _) in rows.items():
                self.verified.records += 1
                try:
                    _ = row.content
                except StrandlineError as error:
                    yield _found(f"row {row_id} ({row.name})", error)
        except StrandlineError as error:  # some row cannot be read at all: read them one by one
            if len(row_ids) == 1:
                yield _found(f"row {row_ids[0]}", error)
                return
            for row_id in row_ids:
                yield from self._decoded(connection, [row_id])

    def _events(self, tables: Mapping[int, KnownTable]) -> Iterator[Finding]:
        """Find events that do not decode, and those whose rows or removals of rows are missing."""
        after, missing_rows = 0, dict[int, int]()
        while True:
            try:
                events = self.notifications.read(after, limit=_BATCH)
            except StrandlineError as error:
                yield _found(f"events after {after}", error)
                return
            staging = []
            for event in events:
                self.verified.records += 1
                try:
                    event.compare()
                    if event.verb in STAGED:
                        table = tables.get(event.table_id or 0)
                        event.write()
                        if table is not None and table.present:
                            staging.append(event)
                    elif event.verb in (COMMIT, ABORT):
                        event.end()
                    elif event.has_body:
                        len(event.ddl().arguments)  # which parses them
                except StrandlineError as error:
                    yield _found(f"event {event.event_id}", error)
            with self.database.read() as connection:
                lost_ids = list(lost_removals(connection, staging))
                missing_rows.update(lost_additions(connection, staging))
            for event in staging:
                for row_id in event.write().removed:
                    missing_rows.pop(row_id, None)
            for event_id in lost_ids:
                message = "it removed rows that are there again: their removals are missing"
                yield Finding(FindingKind.RECORD, f"event {event_id}", message)
            if not events:
                break
            after = events[-1].event_id
        kept_ids = table_ids_of(self.state().recovered[-1]) if missing_rows else set()
        for table_id, count in Counter(missing_rows.values()).items():
            if table_id in kept_ids:  # else it was dropped and cleaned meanwhile
                message = f"{count} rows that were added to it, and not removed, are missing"
                yield Finding(
                    FindingKind.RECORD, f"table {table_id}", message, tables[table_id].name
                )

    def _lost_rows(self, tables: Mapping[int, KnownTable]) -> Iterator[Finding]:
        """Find rows that are missing, as others show, and what each present table must have."""
        with self.database.read() as connection:
            yield from (Finding(FindingKind.RECORD, *each) for each in lost_of_store(connection))
            lost = list(lost_of_tables(connection))
            projected_version = self.notifications.position_on(connection).projected_version
            unplaced_ids = tables.keys() - all_places(connection).keys()
            unnumbered_ids = tables.keys() & unnumbered_tables(connection)
        lost += self._lost_of_present(
            {i for i in unplaced_ids if _is_present_and_managed(tables[i])},
            {i for i in unnumbered_ids if tables[i].present},
            projected_version,
        )
        for table_id, message in lost:
            table = tables.get(table_id)
            name = None if table is None else table.name
            yield Finding(FindingKind.RECORD, f"table {table_id}", message, name)

    def _lost_of_present(
        self, unplaced_ids: set[int], unnumbered_ids: set[int], projected_version: int
    ) -> Iterator[tuple[int, str]]:
        """Yield what tables lack that were not dropped and cleaned meanwhile.

        A table has a place once the version that made it is projected.
        """
        if not (unplaced_ids or unnumbered_ids):
            return
        recovered = self.state().recovered
        kept_ids = table_ids_of(recovered[-1])
        for applied in recovered:
            if applied.version == projected_version:
                unplaced_ids &= table_ids_of(applied) & kept_ids
                yield from ((table_id, UNPLACED) for table_id in sorted(unplaced_ids))
        yield from ((table_id, UNNUMBERED) for table_id in sorted(unnumbered_ids & kept_ids))

    # -- tables and their files

    def _naming_unfinished_ddl(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        """Yield ``findings``. If DDL was interrupted, they say so: it may have moved folders."""
        addition: str | None = None
        for finding in findings:
            if addition is None:
                projected_version = self.notifications.position().projected_version
                is_behind = projected_version < self.state().recovered[-1].version
                addition = _UNFINISHED if is_behind else ""
            yield replace(finding, message=finding.message + addition)

    def _each_table(self, tables: Sequence[KnownTable]) -> Iterator[Finding]:
        suspects: list[tuple[KnownTable, list[Finding]]] = []
        for table in tables:
            self.verified.tables += 1
            findings = self._table(table)
            if any(finding.is_error for finding in findings):
                suspects.append((table, findings))
            else:
                yield from findings
        if suspects:
            time.sleep(SETTLING_SECONDS)
        again = replace(self, verified=Verified())  # what is checked twice is counted once
        for table, findings in suspects:
            found_again = set(again._table(table))
            yield from (finding for finding in findings if finding in found_again)

    def _table(self, table: KnownTable) -> list[Finding]:
        for attempt in range(_ATTEMPTS):
            location = self._location(table)
            findings = list(_readable(self._look_at(table, location)))
            if not findings or attempt + 1 == _ATTEMPTS or self._location(table) == location:
                break
        return findings

    def _location(self, table: KnownTable) -> str | None:
        if table.descriptor.kind is TableKind.EXTERNAL:
            return table.descriptor.location
        with self.database.read() as connection:
            place = place_of(connection, table.descriptor.id)
        return None if place is None else self.folders.shown(place.text)

    def _look_at(self, table: KnownTable, location: str | None) -> Iterator[Finding]:
        descriptor, folders = table.descriptor, self.folders
        if location is None or not folders.reaches(location):
            return  # purged, or not on this machine
        root = folders.path(location)
        listed = _listed(root) if descriptor.transactional else []
        with self.database.read() as connection:
            try:
                contents = table_contents(
                    connection, descriptor.id, event_id=0, max_bytes=_ALL, max_rows=_ALL
                )
            except CorruptData:
                return  # `_rows` has reported it
            moves = partition_moves.of_table(connection, descriptor.id)
            unfinished = partition_moves.unfinished(connection, descriptor.id)
        assert contents is not None
        managed = descriptor.kind is TableKind.MANAGED
        if managed and (table.present or contents.rows) and not root.is_dir():
            yield Finding(
                FindingKind.FOLDER, str(root), "the folder of the table is missing", table.name
            )
        if descriptor.transactional:
            yield from self._files(table, root, contents, listed)
            return
        places = PastPlaces(descriptor, location=location, folders=folders, moves=moves)
        renamed = {
            move.up_to_row: resolve_location(location, move.location)
            for move in unfinished
            if move.undoes_rename
        }
        yield from self._partitions(table, contents, places, renamed)

    def _files(
        self, table: KnownTable, root: Path, contents: TableContents, listed: list[str]
    ) -> Iterator[Finding]:
        row_names: set[str] = set()
        # Of copies: a row keeps its decoded content, which is four times as large.
        for row in map(Row._replace, contents.rows):
            row_names.add(row.name)
            if contents.committed.valid(row.write_id):
                yield from self._file(table, root, row)
        leftovers = [name for name in listed if name not in row_names]
        # Beside a damaged row, a leftover may be the file of the row, whose name is damaged.
        if leftovers and all(map(_decodes, map(Row._replace, contents.rows))):
            yield from self._leftovers(table, root, leftovers)

    def _leftovers(self, table: KnownTable, root: Path, names: list[str]) -> Iterator[Finding]:
        """Find what the files are that no row names: leftovers, or files whose rows are lost."""
        owners = {name: owner_of(name) for name in names}
        with self.database.read() as connection:
            lost = without_rows(connection, table.descriptor.id, owners)
        for name in names:
            path = str(root / name)
            if owners[name] in lost:
                message = "it was committed, but the rows of its transaction are missing"
                yield Finding(FindingKind.FILE, path, message, table.name)
            else:
                yield Finding(
                    FindingKind.LEFTOVER, path, "no row of the table names it", table.name
                )

    def _partitions(
        self,
        table: KnownTable,
        contents: TableContents,
        places: PastPlaces,
        renamed: Mapping[int, str],
    ) -> Iterator[Finding]:
        """``renamed`` are the places to which renames that are not committed moved folders.

        A node that runs or starts moves them back, if their processes have died.
        """
        folders = self.folders
        committed = contents.committed.valid
        removed = {row_id for row_id, write_id in contents.removals if committed(write_id)}
        for row in map(Row._replace, contents.rows):  # see `_files`
            if row.kind is not RowKind.PARTITION or not committed(row.write_id):
                continue
            if not _decodes(row):
                continue
            place = places.place(row)
            if row.row_id in removed and not (places.went_aside(row) and places.is_own(row)):
                continue
            if row.row_id in renamed and folders.exists(renamed[row.row_id]):
                continue
            if place.startswith(GONE) or folders.is_missing(place):
                yield Finding(
                    FindingKind.FOLDER,
                    place,
                    f"the folder of partition {row.name} is missing",
                    table.name,
                )

    def _file(self, table: KnownTable, root: Path, row: Row) -> Iterator[Finding]:
        if row.kind not in (RowKind.DATA_FILE, RowKind.DELETE_FILE) or not _decodes(row):
            return
        path = root / row.name
        self.verified.files += 1
        try:
            status = os.stat(path)
            size = status.st_size
            self.verified.bytes += size
            message: str | None
            if not stat.S_ISREG(status.st_mode):
                message = "it is not a file"  # to open a pipe would wait for its writer
            elif isinstance(row.content, DataFile):
                message = self._data_file(path, size, row.content)
            else:
                message = self._delete_file(path, size, row.as_(DeleteFile))
        except OSError as error:
            message = f"it cannot be read: {error.strerror or error}"
        except pa.ArrowNotImplementedError:
            return  # pyarrow lacks this type; the footer was compared
        except (pa.ArrowException, UnicodeDecodeError) as error:  # a name may be no text
            message = f"it is damaged: {error}"
        if message is not None:
            yield Finding(FindingKind.FILE, str(path), message, table.name)

    def _data_file(self, path: Path, size: int, row: DataFile) -> str | None:
        if size != row.bytes:
            return f"it has {size} bytes, but {row.bytes} were written"
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            rows = file.metadata.num_rows
            self.verified.rows += rows
            if rows != row.rows:
                return f"its footer says {rows} rows, but {row.rows} were written"
            if self.pages:
                read = sum(batch.num_rows for batch in file.iter_batches())
                if read != rows:
                    return f"its pages have {read} rows, but {rows} were written"
        return None

    def _delete_file(self, path: Path, size: int, row: DeleteFile) -> str | None:
        if row.bytes not in (0, size):
            return f"it has {size} bytes, but {row.bytes} were written"
        columns = ["file_id"] if row.form is DeleteForm.POSITIONS else ["file_id", "bitmap"]
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            deleted = file.read(columns=columns)
        if deleted.column_names != columns:
            return f"it has no column {columns[-1]}, so it is not the delete file that was written"
        if row.form is DeleteForm.POSITIONS:
            counted = pc.value_counts(deleted["file_id"])
            counts = {entry["values"]: entry["counts"] for entry in counted.to_pylist()}
        else:
            kind = deleted["bitmap"].type
            if not pa.types.is_list(kind) or kind.value_type != pa.int64():
                return f"its bitmaps are of type {kind}, not lists of numbers"
            counts = {line["file_id"]: _bits(line["bitmap"]) for line in deleted.to_pylist()}
        if counts != dict(zip(row.file_ids, row.counts, strict=True)):
            return f"its deleted rows are not the {sum(row.counts)} that were written"
        return None

    def _dropped_folders(self, tables: Mapping[int, KnownTable]) -> Iterator[Finding]:
        """Find folders of dropped tables that are not the place of any table, or of another one.

        A table that is dropped meanwhile may get its folder before its place: look twice.
        """
        findings = list(self._unknown_dropped_folders(tables))
        if findings:
            time.sleep(SETTLING_SECONDS)
            found_again = set(self._unknown_dropped_folders(tables))
            yield from (finding for finding in findings if finding in found_again)

    def _unknown_dropped_folders(self, tables: Mapping[int, KnownTable]) -> Iterator[Finding]:
        with self.database.read() as connection:
            places = all_places(connection)
        folders = self.folders
        paths = {
            str(table_id): str(folders.path(place))
            for table_id, place in places.items()
            if folders.reaches(place)
        }
        place_paths = set(paths.values())
        present = {str(table_id): table.name for table_id, table in tables.items() if table.present}
        warehouse = folders.warehouse
        for dropped in (*warehouse.glob(DROPPED), *warehouse.glob(f"*/{DROPPED}")):
            for path in sorted(dropped.iterdir()):
                partitions = path.name.endswith(".partitions")
                if partitions or str(path) in place_paths:
                    continue
                if path.name in present and path.name in paths:
                    yield Finding(
                        FindingKind.FOLDER,
                        str(path),
                        "the files of the table were moved here by a drop, but it is not dropped, "
                        f"and its folder is {paths[path.name]}: the database or the warehouse was "
                        "set back. Compare both folders before you delete one",
                        present[path.name],
                    )
                else:
                    yield Finding(
                        FindingKind.LEFTOVER, str(path), "it does not belong to any kept table"
                    )


def _readable(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield ``findings``, and the damage of the database that ends them."""
    try:
        yield from findings
    except CorruptData as error:
        yield _found(_DATABASE, error)


def _found(place: str, error: StrandlineError) -> Finding:
    """The finding for a record that cannot be read. Raises an error that says nothing about it."""
    if isinstance(error, Unavailable | Stopping | Superseded):
        raise error
    return Finding(FindingKind.RECORD, place, error.message)


def _is_present_and_managed(table: KnownTable) -> bool:
    return table.present and table.descriptor.kind is TableKind.MANAGED


def _listed(root: Path) -> list[str]:
    """Return the files in a transactional table's folder, relative to that folder."""
    try:
        names = os.listdir(root)
    except OSError:
        return []
    paths = []
    for name in sorted(names):
        if name in _FOLDERS_OF_FILES or name.startswith("_file="):
            for folder, _, files in os.walk(root / name):
                inside = Path(folder).relative_to(root)
                paths += [str(inside / file) for file in sorted(files)]
    return paths


def _bits(words: list[int | None] | None) -> int:
    return sum((word & _WORD).bit_count() for word in words or () if word)


def _decodes(row: Row) -> bool:
    try:
        _ = row.content
    except StrandlineError:
        return False
    return True
