"""Backup of a folder while nodes run on it, and its restore.

A backup is a folder: the database as of one moment, the files below the folder of the store, and
``backup.json``, which names each file with its size and SHA-256. That file is written last: where
it is missing, the backup was not finished.

The order makes it consistent. A hold keeps the history first. SQLite copies the database inside one
read transaction. Then the files are copied: a file of a transactional table is on disk before the
database names it and stays afterwards, so each file that the copied database names is found. A
table or partition whose folder was moved meanwhile (renamed, dropped, brought back) is fetched from
where it lies now, and put where the copied database says; again, if it moves again. At the end each
file that the copied database names is looked for; what is missing was missing in the store, or
deleted meanwhile, and is reported.

The files of *plain* tables are Spark's: they are copied as they are found, not as of one moment.
Files outside of the folder (external tables) are not copied. Symbolic links are not followed, the
warehouse aside, which may be one.

Rejected: stopping the writers (a copy takes hours), and copying files first (a file that is added
between would be named and not there).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import stat
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from sqlalchemy import Connection, select

from strandline import __version__
from strandline.clock import format_timestamp
from strandline.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    IncompatibleFormat,
    InvalidInput,
    NotFound,
)
from strandline.metastore.store import partition_moves
from strandline.metastore.store.partition_moves import PURGED, PartitionMove, PartitionMoves
from strandline.metastore.store.rows import RowKind
from strandline.metastore.store.store_folders import WAREHOUSE_FOLDER, StoreFolders
from strandline.metastore.store.table_places import all_places
from strandline.metastore.store.tables import STORE_ROW
from strandline.metastore.store.warehouse import make_folders
from strandline.model.places import Place
from strandline.node.node import CACHE_FILE, Node
from strandline.node.place import DATABASE_FILE
from strandline.node.relocation import Relocated, relocate
from strandline.node.store_database import CATALOG_MARK, head_of
from strandline.sql import open_sqlite
from strandline.transactions.holds import BACKUP
from strandline.transactions.tables import TXN_WRITE_ID

MANIFEST = "backup.json"
FORMAT = 1
HOLD_MS = 3_600_000
FILES_A_RENEWAL = 1_000
"""After so many files the hold is renewed; a file that takes an hour to copy outlives it."""
_CHUNK = 1 << 20
_NOT_COPIED = frozenset(
    {DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm", "strandline.head"}
)


@dataclass(slots=True)
class Manifest:
    """What ``backup.json`` holds. ``files`` are sizes and SHA-256 by path; paths have slashes.

    ``folders`` are all that there were, each after the one that it is in: empty tables have one.
    """

    format: int
    release: str
    store: str
    environment: str
    catalog_version: int
    time: str
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        """The bytes of all files."""
        return sum(size for size, _ in self.files.values())


def back_up(node: Node, target: Path, *, user: str) -> Manifest:
    """Write a backup of the store of ``node`` to ``target``, a folder that is empty or not there.

    Raises `AlreadyExists`, `InvalidInput`, and OSError where the disk does not do it.
    """
    target = target.absolute()
    _refuse_target(target, node.folder)
    make_folders(target, mode=node.settings.folder_mode)
    session = node.session(user=user)
    hold = session.hold(BACKUP, user, at=node.catalogs.complete_now(), ttl_ms=HOLD_MS)
    try:
        manifest = _copy_database(node, target)
        _forget_hold(target, hold.hold_id)
        for source, name in _folders_below(node.folder):
            _make_like(source, target / name)
            manifest.folders.append(name)
        for number, (source, name) in enumerate(_files_below(node.folder), start=1):
            with suppress(FileNotFoundError):  # moved or removed since it was listed
                manifest.files[name] = _copy(source, target / name)
            if number % FILES_A_RENEWAL == 0:
                session.renew_hold(hold.hold_id, ttl_ms=HOLD_MS)
        _fetch_moved(node, target, manifest)
    finally:
        session.release_hold(hold.hold_id)
    manifest.files[DATABASE_FILE] = _digest(target / DATABASE_FILE)
    os.sync()
    _write_manifest(target, manifest)
    return manifest


def restore(backup: Path, folder: Path, *, copy: bool) -> tuple[Manifest, Relocated]:
    """Make the store in ``backup`` live in ``folder``, which is empty or not there.

    Each file is compared with the manifest while it is copied. ``copy`` says that the store that
    was backed up lives on; see `relocate`. Where it fails, ``folder`` is empty again. Raises
    `NotFound`, `AlreadyExists`, `CorruptData`, `IncompatibleFormat`, `Conflict`.
    """
    backup, folder = backup.absolute(), folder.absolute()
    manifest = read_manifest(backup)
    _refuse_target(folder, backup)
    make_folders(folder, mode=stat.S_IMODE(backup.stat().st_mode))
    try:
        _restore_file(backup, folder, DATABASE_FILE, manifest.files[DATABASE_FILE])
        # Before the large work: it is refused where the store still lives.
        relocated = _relocate(folder, manifest, copy=copy)
        for name in manifest.folders:
            _make_like(backup / name, folder / name)
        for name, expected in manifest.files.items():
            if name != DATABASE_FILE:
                _restore_file(backup, folder, name, expected)
        os.sync()
    except BaseException:
        _empty(folder)
        raise
    return manifest, relocated


def _relocate(folder: Path, manifest: Manifest, *, copy: bool) -> Relocated:
    try:
        return relocate(folder, copy=copy)
    except Conflict as error:
        raise Conflict(
            f"the store that was backed up is still in {manifest.store}. To restore it beside that "
            "one, as a store of its own, add --copy; else move that folder away first"
        ) from error


def read_manifest(backup: Path) -> Manifest:
    """What a backup says of itself. `NotFound`, `CorruptData`, `IncompatibleFormat`."""
    file = backup / MANIFEST
    try:
        given = json.loads(file.read_text())
        if given["format"] > FORMAT:
            raise IncompatibleFormat(
                f"{file} has the format {given['format']}, this release reads up to {FORMAT}; "
                f"restore it with release {given.get('release')} or newer"
            )
        files = {str(name): (int(size), str(digest)) for name, (size, digest) in _items(given)}
        folders = [str(name) for name in given.get("folders", [])]
        manifest = Manifest(**{**given, "files": files, "folders": folders})
    except FileNotFoundError:
        raise NotFound(
            f"{backup} is no backup, or one that was not finished: it has no {MANIFEST}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"{file} is damaged: {error}") from error
    for name in (*files, *manifest.folders):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise CorruptData(f"{file} is damaged: {name!r} is no file of a backup")
    if DATABASE_FILE not in files:
        raise CorruptData(f"{file} is damaged: it does not name {DATABASE_FILE}")
    return manifest


def _items(given: dict[str, dict[str, tuple[int, str]]]) -> Iterator[tuple[str, tuple[int, str]]]:
    return iter(given["files"].items())


def _refuse_target(target: Path, source: Path) -> None:
    if target.exists() and not target.is_dir():
        raise InvalidInput(f"{target} is not a folder; name a folder that is empty or not there")
    if target.is_dir() and any(target.iterdir()):
        raise AlreadyExists(f"{target} is not empty; name a folder that is empty or not there")
    first, second = Path(os.path.realpath(target)), Path(os.path.realpath(source))
    if first.is_relative_to(second) or second.is_relative_to(first):
        raise InvalidInput(f"{target} and {source} lie in one another; name a folder elsewhere")


def _copy_database(node: Node, target: Path) -> Manifest:
    """Copy the database inside one read transaction; the manifest of it, without files."""
    source_file = node.folder / DATABASE_FILE
    _make_file(target / DATABASE_FILE, mode=stat.S_IMODE(source_file.stat().st_mode))
    with (
        closing(sqlite3.connect(f"{source_file.as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(target / DATABASE_FILE)) as copied,
    ):
        source.backup(copied)  # all pages in one step: one read transaction
        version = head_of(target).marks_of(copied)[CATALOG_MARK]
        (time,) = copied.execute("SELECT time FROM strandline_clock WHERE id = 1").fetchone()
        (environment,) = copied.execute("SELECT environment FROM strandline_fence").fetchone()
    return Manifest(
        format=FORMAT,
        release=__version__,
        store=str(node.folder),
        environment=environment,
        catalog_version=version,
        time=format_timestamp(time),
    )


def _forget_hold(target: Path, hold_id: int) -> None:
    """The hold of this backup is in the copied database too; it would never be released there."""
    with closing(sqlite3.connect(target / DATABASE_FILE)) as copied, copied:
        copied.execute("DELETE FROM hold WHERE hold_id = ?", (hold_id,))


def _roots(folder: Path) -> list[tuple[Path, str]]:
    """What is walked for the files of a store, and the path in a backup that it stands for."""
    warehouse = folder / WAREHOUSE_FOLDER
    if warehouse.is_symlink():
        return [(folder, ""), (Path(os.path.realpath(warehouse)), WAREHOUSE_FOLDER)]
    return [(folder, "")]


def _folders_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every folder below that of a store, and its path in a backup; a parent before what is in it.

    The tables that have no file yet have a folder too.
    """
    for root, prefix in _roots(folder):
        for path, folders, _ in os.walk(root):
            folders.sort()
            name = (PurePosixPath(prefix) / Path(path).relative_to(root).as_posix()).as_posix()
            if name != ".":
                yield Path(path), name


def _files_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every file below the folder of a store, and its path in a backup; not the database's own."""
    for root, prefix in _roots(folder):
        for path, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files):
                file = Path(path) / name
                relative = file.relative_to(root).as_posix()
                if file.is_symlink() or not file.is_file():
                    continue
                if prefix or not (relative in _NOT_COPIED or relative.startswith(CACHE_FILE)):
                    yield file, (PurePosixPath(prefix) / relative).as_posix()


@dataclass(frozen=True, slots=True)
class _Whereabouts:
    """Where a table and its partitions lie."""

    place: Place
    moves: frozenset[PartitionMove]


def _whereabouts(connection: Connection) -> dict[int, _Whereabouts]:
    places, moves = all_places(connection), partition_moves.of_all_tables(connection)
    return {i: _Whereabouts(place, frozenset(moves.get(i, ()))) for i, place in places.items()}


def _fetch_moved(node: Node, target: Path, manifest: Manifest) -> None:
    """Put tables whose folders moved meanwhile where the copied database says; find what misses."""
    folders = StoreFolders(node.folder)
    sources: defaultdict[int, dict[str, Path | None]] = defaultdict(dict)
    with (
        closing(open_sqlite(target / DATABASE_FILE)) as database,
        database.read() as connection,
    ):
        then = seen = _whereabouts(connection)
        places_then = {where.place for where in then.values()}
        while True:
            now, occupied = _read_whereabouts(node, then)
            for place_now in occupied - places_then:
                # A table that is made there in the restored store would show these files.
                if (later := _inside(folders, place_now)) is not None:
                    _remove_folder(target, later, manifest)
            if now == seen:  # nothing was moved while the last ones were fetched
                break
            for table_id, table_then in then.items():
                place = _inside(folders, table_then.place)
                table_seen = seen.get(table_id, table_then)
                table_now = now.get(table_id, table_seen)
                if place is None or table_now == table_seen:
                    continue
                if table_now.place != table_seen.place:
                    if table_then.place != table_now.place and table_then.place in occupied:
                        _remove_folder(target, place, manifest)  # of another table
                        sources[table_id].clear()
                    _copy_folder(folders.path(table_now.place), target, place, manifest)
                moved = _MovedPartitions(
                    folders,
                    table_now=folders.path(table_now.place),
                    table_then=place,
                    moves_now=table_now.moves,
                    moves_then=table_then.moves,
                    sources=sources[table_id],
                )
                moved.fetch(target, manifest)
            seen = now
        for table_id, table_then in then.items():
            partitions = sources[table_id].items()
            manifest.missing += (place for place, source in partitions if source is None)
            place = _inside(folders, table_then.place)
            if place is not None:
                names = (f"{place}/{path}" for path in _committed_files(connection, table_id))
                manifest.missing += (name for name in names if name not in manifest.files)


def _read_whereabouts(
    node: Node, table_ids: Container[int]
) -> tuple[dict[int, _Whereabouts], set[Place]]:
    """Where these tables lie now, and the places of all tables."""
    # A folder is moved before the transaction that says so is committed: the lock waits for it.
    with node.database.write() as connection:
        whereabouts = _whereabouts(connection)
    asked = {table_id: where for table_id, where in whereabouts.items() if table_id in table_ids}
    return asked, {where.place for where in whereabouts.values()}


def _committed_files(connection: Connection, table_id: int) -> Sequence[str]:
    """The files of a transactional table that its rows name, by their paths in its folder."""
    committed = (
        select(STORE_ROW.c.name)
        .join(
            TXN_WRITE_ID,
            (TXN_WRITE_ID.c.table_id == STORE_ROW.c.table_id)
            & (TXN_WRITE_ID.c.write_id == STORE_ROW.c.write_id),
        )
        .where(STORE_ROW.c.table_id == table_id)
        .where(STORE_ROW.c.kind.in_([RowKind.DATA_FILE.value, RowKind.DELETE_FILE.value]))
        .where(TXN_WRITE_ID.c.commit_time.is_not(None))
    )
    return connection.execute(committed).scalars().all()


@dataclass(frozen=True, slots=True)
class _MovedPartitions:
    """The partitions of a table that were moved between the copy of the database and now.

    ``sources`` are the folders that they were fetched from, by the places that they were put at;
    None for a partition that is nowhere.
    """

    folders: StoreFolders
    table_now: Path
    table_then: str
    moves_now: frozenset[PartitionMove]
    moves_then: frozenset[PartitionMove]
    sources: dict[str, Path | None]

    def fetch(self, target: Path, manifest: Manifest) -> None:
        """Put them where the copied database says; what else was found there goes."""
        for move in self.moves_now - self.moves_then:
            aside = self._place_aside(move)
            if aside is not None:  # it would be in the way when the partition is dropped
                _remove_folder(target, aside, manifest)
        first_moves: dict[str, PartitionMove] = {}  # by the place that the copied database says
        changed = self.moves_now ^ self.moves_then
        for move in sorted(changed, key=lambda move: move.up_to_row, reverse=True):
            was_aside = self._place_aside(move) if move in self.moves_then else None
            first_moves[was_aside or f"{self.table_then}/{move.location}"] = move
        for place, move in first_moves.items():
            source = self._folder_now(move)
            # Where it was not moved yet, it is copied from there.
            if source == self.sources.get(place, self.folders.folder / place):
                continue
            self.sources[place] = source
            _remove_folder(target, place, manifest)
            if source is not None:
                _copy_folder(source, target, place, manifest)

    def _folder_now(self, move: PartitionMove) -> Path | None:
        """Where the folder of a partition that was or had been moved so lies; None if nowhere."""
        moves = PartitionMoves(self.moves_now)
        location, last = moves.follow(move.location, move.up_to_row)
        aside = None if last is None else self._place_aside(last)
        candidates = [] if aside is None else [self.folders.folder / aside]
        if last is None or last.target != PURGED:
            candidates.append(self.table_now / location)
        return next((path for path in candidates if path.is_dir()), None)

    def _place_aside(self, move: PartitionMove) -> str | None:
        """The path below the folder of the store where a move aside leads; else None."""
        if not move.aside or move.target == PURGED:
            return None
        return _inside(self.folders, Place(move.target))


def _remove_folder(target: Path, place: str, manifest: Manifest) -> None:
    """Take a folder out of the backup."""
    shutil.rmtree(target / place, ignore_errors=True)
    inside = f"{place}/"
    for name in [name for name in manifest.files if name.startswith(inside)]:
        del manifest.files[name]
    manifest.folders[:] = [n for n in manifest.folders if n != place and not n.startswith(inside)]


def _copy_folder(source: Path, target: Path, place: str, manifest: Manifest) -> None:
    for path, _, files in os.walk(source):
        folder = (PurePosixPath(place) / Path(path).relative_to(source).as_posix()).as_posix()
        if folder not in manifest.folders:
            _make_like(Path(path), target / folder)
            manifest.folders.append(folder)
        for file_name in sorted(files):
            file = Path(path) / file_name
            name = f"{place}/{file.relative_to(source).as_posix()}"
            if name not in manifest.files and not file.is_symlink():
                with suppress(FileNotFoundError):
                    manifest.files[name] = _copy(file, target / name)


def _inside(folders: StoreFolders, location: Place) -> str | None:
    """The path of a place below the folder of the store; None for one elsewhere."""
    if not folders.is_inside(location):
        return None
    path = folders.path(location)
    for root in (folders.folder, Path(os.path.realpath(folders.folder))):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return None


def _make_like(source: Path, target: Path) -> None:
    """Make the folder ``target``, for those who may use ``source``."""
    target.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # moved or removed since it was listed
        target.chmod(stat.S_IMODE(source.stat().st_mode) | stat.S_IRWXU)


def _make_file(path: Path, *, mode: int) -> None:
    """Make an empty file that no other user may read, from its first moment on."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    path.chmod(mode)  # whatever the umask


def _copy(source: Path, target: Path) -> tuple[int, str]:
    """Copy one file; its size and SHA-256. Nothing is left behind where it is not there."""
    with source.open("rb") as read:
        target.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        _make_file(target, mode=stat.S_IMODE(os.fstat(read.fileno()).st_mode) | stat.S_IWUSR)
        with target.open("wb") as written:
            while chunk := read.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                written.write(chunk)
        # Not by its path: its folder may have been moved meanwhile.
        shutil.copystat(read.fileno(), target)  # type: ignore[arg-type]  # a descriptor will do
    return size, digest.hexdigest()


def _digest(file: Path) -> tuple[int, str]:
    with file.open("rb") as read:
        return file.stat().st_size, hashlib.file_digest(read, "sha256").hexdigest()


def _restore_file(backup: Path, folder: Path, name: str, expected: tuple[int, str]) -> None:
    try:
        restored = _copy(backup / name, folder / name)
    except FileNotFoundError:
        raise CorruptData(f"the backup {backup} lacks the file {name}; use another one") from None
    if restored != expected:
        raise CorruptData(
            f"the file {name} of the backup {backup} is not as it was written ({restored[0]} bytes "
            f"of {expected[0]}, or other content); use another backup"
        )


def _write_manifest(target: Path, manifest: Manifest) -> None:
    _make_file(target / MANIFEST, mode=stat.S_IMODE((target / DATABASE_FILE).stat().st_mode))
    with (target / MANIFEST).open("w") as written:
        json.dump(asdict(manifest), written, indent=1)
        written.flush()
        os.fsync(written.fileno())


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
