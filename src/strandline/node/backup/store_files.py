"""The files of a store, and their names in its backup.

A name is a path below the folder of the store. The files in the warehouse of a store on servers get
the names that they would have in a folder: ``warehouse/…``. The database, the blobs of the catalog,
and files that a node creates again are not included.

A backup names each file by its place in the copied database. If the folder of a table or partition
was moved since the copy (by a rename, a drop or an undone drop), the backup copies it from its
present place to the place in the copied database. `fetch_moved` repeats this until nothing has
moved meanwhile. What moved is read from the events: a folder may be back, and another table may
have been there meanwhile.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from sqlalchemy import Connection

from strandline.catalog.verbs import verbs_of_table_folders
from strandline.durable.persist.persist_log import FOLDER as CATALOG_FOLDER
from strandline.metastore.store import partition_moves
from strandline.metastore.store.folder_effects import PARTITIONS_SUFFIX
from strandline.metastore.store.partition_moves import PURGED, PartitionMove, PartitionMoves
from strandline.metastore.store.rows import RowKind
from strandline.metastore.store.store_folders import WAREHOUSE_FOLDER, StoreFolders
from strandline.metastore.store.table_places import all_places
from strandline.model.places import Place
from strandline.node.address import DATABASE_FILE
from strandline.node.backup.archive import ArchiveWriter, is_plain, walk
from strandline.node.catalog_log import BLOBS_FOLDER
from strandline.node.node import CACHE_FILE
from strandline.node.store_place import HEAD_FILE
from strandline.node.warehouse_place import MARKER
from strandline.sql import Database, marks, run, value

_IN_WAREHOUSE = f"{WAREHOUSE_FOLDER}/"
_COMMITTED_FILES = (
    "SELECT stored.name FROM store_row AS stored JOIN txn_write_id AS writer"
    " ON writer.table_id = stored.table_id AND writer.write_id = stored.write_id"
    " WHERE stored.table_id = ?"
    f" AND stored.kind IN ({RowKind.DATA_FILE.value}, {RowKind.DELETE_FILE.value})"
    " AND writer.commit_time IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """See the module. ``folder`` is None for a store on servers."""

    folders: StoreFolders
    folder: Path | None

    @property
    def root(self) -> Path:
        """The folder of the store, or its warehouse if it is on servers."""
        return self.folders.warehouse if self.folder is None else self.folder

    def name(self, place: Place) -> str | None:
        """Return the name of the folder at ``place``, or None if it is outside of the store."""
        if not self.folders.is_inside(place):
            return None
        path = self.folders.path(place)
        prefix = PurePosixPath(WAREHOUSE_FOLDER if self.folder is None else "")
        root = self.root
        if not path.is_relative_to(root):
            root = Path(os.path.realpath(root))  # once for each table, it would take seconds
            if not path.is_relative_to(root):
                return None
        return (prefix / path.relative_to(root).as_posix()).as_posix()

    def path(self, name: str) -> Path:
        """Return the path of the file or folder ``name``."""
        if self.folder is None:
            return self.root / name.removeprefix(_IN_WAREHOUSE)
        return self.folder / name

    def is_of_later_table(
        self, folder: str, places_at_copy: Container[Place], store: Database
    ) -> bool:
        """Whether the folder of that name is, or is in, that of a table that was not there before.

        Call it after the folder was listed: if the table was dropped since, no file is found there.
        """
        if not folder.startswith(_IN_WAREHOUSE):
            return False
        paths = accumulate(folder.removeprefix(_IN_WAREHOUSE).split("/"), "{}/{}".format)
        place = next((place for place in map(Place.below, paths) if place.is_of_table), None)
        if place is None or place in places_at_copy:
            return False
        return bool(store.rows("SELECT 1 FROM table_location WHERE location = ?", (place.text,)))

    def walk(self) -> Iterator[tuple[Path, str, list[str]]]:
        """Yield the path of every folder, its name, and the names of its files.

        A parent comes before its children. Empty folders are included, since a table without files
        has one. Symbolic links are left out.
        """
        for root, prefix in self._roots():
            for path, folders, files in walk(root):
                name = (PurePosixPath(prefix) / Path(path).relative_to(root).as_posix()).as_posix()
                inside = "" if name == "." else f"{name}/"
                folders[:] = sorted(f for f in folders if not self._is_left_out(f"{inside}{f}"))
                kept = (f for f in files if not self._is_left_out(f"{inside}{f}"))
                yield Path(path), name, sorted(f for f in kept if is_plain(Path(path) / f))

    def _roots(self) -> list[tuple[Path, str]]:
        """Return the folders to walk, each with its name in the backup."""
        warehouse = Path(os.path.realpath(self.folders.warehouse))
        if self.folder is None:
            return [(warehouse, WAREHOUSE_FOLDER)]
        if self.folders.warehouse.is_symlink():
            return [(self.folder, ""), (warehouse, WAREHOUSE_FOLDER)]
        return [(self.folder, "")]

    def _is_left_out(self, name: str) -> bool:
        if self.folder is None:
            inside = name.removeprefix(_IN_WAREHOUSE)
            return inside == BLOBS_FOLDER or inside.startswith(MARKER)
        database = (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm", HEAD_FILE)
        return name in (*database, CATALOG_FOLDER) or name.startswith(CACHE_FILE)


@dataclass(frozen=True, slots=True)
class _Whereabouts:
    """The place of a table, the event since the copy that moved it last, its partitions' moves."""

    place: Place
    moved: int
    moves: frozenset[PartitionMove]


def _whereabouts(
    connection: Connection, moved: Mapping[int, int] = MappingProxyType({})
) -> dict[int, _Whereabouts]:
    places, moves = all_places(connection), partition_moves.of_all_tables(connection)
    return {
        table_id: _Whereabouts(place, moved.get(table_id, 0), frozenset(moves.get(table_id, ())))
        for table_id, place in places.items()
    }


def fetch_moved(
    store: Database, files: StoreFiles, copied: Database, archive: ArchiveWriter
) -> None:
    """Copy moved tables to their places in the copied database; list missing files.

    The missing files and folders are added to ``missing`` of the manifest.
    """
    manifest = archive.manifest
    sources: defaultdict[int, dict[str, Path | None]] = defaultdict(dict)
    with copied.read() as connection:
        at_copy = seen = _whereabouts(connection)
        places_at_copy = {where.place for where in at_copy.values()}
        last_event = value(connection, "SELECT event_id FROM notification_sequence") or 0
        while True:
            now, occupied, moved_ids = _read_whereabouts(store, at_copy, last_event)
            for place_now in occupied - places_at_copy:
                # Otherwise a table that is created there in the restored store would show them.
                if (later := files.name(place_now)) is not None:
                    archive.remove_folder(later)
            if now == seen:  # nothing was moved since the last round
                break
            for table_id, table_at_copy in at_copy.items():
                table_seen = seen.get(table_id, table_at_copy)
                table_now = now.get(table_id, table_seen)
                if table_now == table_seen:
                    continue
                place = files.name(table_at_copy.place)
                if place is None:
                    continue
                if (table_now.place, table_now.moved) != (table_seen.place, table_seen.moved):
                    # Copied from where another table is or was: it may have files of that one. The
                    # rows of a transactional table name its files, so these do no harm there.
                    left = {table_at_copy.place, table_seen.place} - {table_now.place}
                    is_plain_table = not _committed_files(connection, table_id)
                    if occupied & left or (is_plain_table and moved_ids != {table_id}):
                        archive.remove_folder(place)
                        sources[table_id].clear()
                    archive.add_tree(files.folders.path(table_now.place), place)
                moved = _MovedPartitions(
                    files,
                    table_now=files.folders.path(table_now.place),
                    table_then=place,
                    dropped=files.name(
                        Place(f"{table_at_copy.place.aside(table_id).text}{PARTITIONS_SUFFIX}")
                    ),
                    moves_now=table_now.moves,
                    moves_seen=table_seen.moves,
                    moves_then=table_at_copy.moves,
                    sources=sources[table_id],
                )
                moved.fetch(archive)
            seen = now
        for table_id, table_at_copy in at_copy.items():
            partitions = sources[table_id].items()
            manifest.missing += (place for place, source in partitions if source is None)
            place = files.name(table_at_copy.place)
            if place is not None:
                names = (f"{place}/{path}" for path in _committed_files(connection, table_id))
                manifest.missing += (name for name in names if name not in manifest.files)


def _read_whereabouts(
    store: Database, table_ids: Container[int], last_event: int
) -> tuple[dict[int, _Whereabouts], set[Place], Set[int]]:
    """Return the present whereabouts of the tables ``table_ids``, and the places of all tables.

    Also the ids of all tables that were made or moved after ``last_event``.
    """
    verbs = verbs_of_table_folders()
    last_moves = (
        "SELECT table_id, max(event_id) FROM notification_log"
        f" WHERE verb IN {marks(verbs)} AND event_id > ? GROUP BY table_id"
    )
    # A folder is moved before its transaction commits: the write lock waits for that commit.
    with store.write():
        pass
    with store.read() as connection:
        moved: dict[int, int] = dict(run(connection, last_moves, (*verbs, last_event)))
        whereabouts = _whereabouts(connection, moved)
    selected = {table_id: where for table_id, where in whereabouts.items() if table_id in table_ids}
    return selected, {where.place for where in whereabouts.values()}, moved.keys()


def _committed_files(connection: Connection, table_id: int) -> Sequence[str]:
    """Return the files that committed rows of a table name, as paths relative to its folder."""
    return [name for (name,) in run(connection, _COMMITTED_FILES, (table_id,))]


@dataclass(frozen=True, slots=True)
class _MovedPartitions:
    """The partitions of a table that were moved between the copy of the database and now.

    ``moves_seen`` are the moves at the last `fetch`. The restored store moves dropped partitions
    below ``dropped``. ``sources`` maps the place of each partition in the backup to the folder that
    it was copied from, or to None if the partition has no folder any more.
    """

    files: StoreFiles
    table_now: Path
    table_then: str
    dropped: str | None
    moves_now: frozenset[PartitionMove]
    moves_seen: frozenset[PartitionMove]
    moves_then: frozenset[PartitionMove]
    sources: dict[str, Path | None]

    def fetch(self, archive: ArchiveWriter) -> None:
        """Copy the partitions to their places in the copied database, replacing what is there."""
        asides_then = {self._place_aside(move) for move in self.moves_then}
        for move in self.moves_now - self.moves_then:
            # It would block a drop of the partition in the restored store. One that was restored
            # since may have been copied while it was aside.
            aside = self._place_aside(move) or f"{self.dropped}/{move.up_to_row}"
            if aside not in asides_then:
                archive.remove_folder(aside)
        last_rows: dict[str, int] = {}  # of partitions that had left a location before the copy
        for move in self.moves_then:
            last_rows[move.location] = max(move.up_to_row, last_rows.get(move.location, 0))
        first_moves: dict[str, PartitionMove] = {}  # by the place in the copied database
        changed = self.moves_now ^ self.moves_then
        for move in sorted(changed, key=lambda move: move.up_to_row, reverse=True):
            was_aside = self._place_aside(move) if move in self.moves_then else None
            if was_aside or move.up_to_row > last_rows.get(move.location, 0):
                first_moves[was_aside or f"{self.table_then}/{move.location}"] = move
        # A partition that has left such a folder since the last fetch may be there again.
        left_folders = {self.table_now / move.location for move in self.moves_now - self.moves_seen}
        for place, move in first_moves.items():
            source = self._folder_now(move)
            # By default, it was copied from its place in the copied database.
            is_known = source == self.sources.get(place, self.files.path(place))
            if is_known and source not in left_folders:
                continue
            self.sources[place] = source
            archive.remove_folder(place)
            if source is None:
                continue
            archive.add_tree(source, place)
            if source.is_relative_to(self.table_now):
                # It may have been copied from where it is now. There, it would block a rename in
                # the restored store, and a partition that is added would show its files.
                copied_as = f"{self.table_then}/{source.relative_to(self.table_now).as_posix()}"
                if copied_as not in first_moves:
                    archive.remove_folder(copied_as)

    def _folder_now(self, move: PartitionMove) -> Path | None:
        """Return the present folder of the partition that ``move`` is about, or None."""
        moves = PartitionMoves(self.moves_now)
        location, last = moves.follow(move.location, move.up_to_row)
        aside = None if last is None else self._place_aside(last)
        candidates = [] if aside is None else [self.files.path(aside)]
        if last is None or last.target != PURGED:
            candidates.append(self.table_now / location)
        return next((path for path in candidates if path.is_dir()), None)

    def _place_aside(self, move: PartitionMove) -> str | None:
        """Return the name of the target folder if ``move`` is a move aside, else None."""
        if not move.aside or move.target == PURGED:
            return None
        return self.files.name(Place(move.target))
