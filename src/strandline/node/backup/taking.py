"""Taking a backup while nodes run on the store.

A backup is one tar file (`strandline.node.backup.archive`) with a snapshot of the database, the
blobs that its catalog names, and the files below the folder of the store or its warehouse. The file
gets its name when it is complete and on disk. Until then it is named ``NAME.unfinished`` and
locked. A killed backup leaves that file, and the next backup of that name overwrites it.

The order of the steps makes the backup consistent. First, a hold keeps the history. Then the
database is copied in one read transaction. Then the blobs of the catalog are copied. A sweep may
remove a blob once the database of the store no longer names it; so if a blob that the copy names is
missing, both are copied again. In the backup, the blobs are beside the database, wherever they are
in the store.

A catalog in etcd and its rows have no common snapshot. So the history of the catalog is copied to
the copied database after the rows, and proved. It then has every version that the rows know. The
first node projects the versions beyond those, as after a crash between the two stores.

Then the files are copied. A file of a transactional table is on disk before the database names it,
and stays there, so every file that the copied database names is found or was moved meanwhile
(`strandline.node.backup.store_files`). At the end, the backup checks that it has every file that
the copied database names. A missing file was missing in the store or was deleted meanwhile; it is
reported.

Spark writes the files of *plain* tables: they are copied as they are found, not as of one moment.
Files outside of the folder or warehouse (external tables) are not copied. Symbolic links are not
followed, except for the warehouse itself, which may be a link.

Rejected: stopping the writers (a copy takes hours), and copying files first (the database would
name files that were added in between and are not in the backup).
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Set
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from sqlalchemy import delete

from strandline import __version__
from strandline.clock import HybridClock, format_timestamp
from strandline.durable.persist.persist_log import FOLDER as CATALOG_FOLDER
from strandline.errors import AlreadyExists, InvalidInput
from strandline.files import sync_folder, try_lock
from strandline.metastore.store.table_places import all_places
from strandline.model.places import Place
from strandline.node.address import DATABASE_FILE
from strandline.node.backup.archive import ArchiveWriter
from strandline.node.backup.database_copy import copy_database
from strandline.node.backup.manifest import FORMAT, UNFINISHED, Manifest, refuse_inside
from strandline.node.backup.store_files import StoreFiles, fetch_moved
from strandline.node.catalog_log import LogPlace, bring_catalog, keep_blobs_at, reading_catalog_log
from strandline.node.chores import Chores
from strandline.node.node import Node
from strandline.node.store_database import CATALOG_MARK, head_of
from strandline.sql import Database, FenceRow, open_sqlite, sqlite_file, stored_time
from strandline.transactions.holds import BACKUP
from strandline.transactions.tables import HOLD

HOLD_MS = 3_600_000
RENEWAL_SECONDS = 300.0
"""How often the hold is renewed, however long a file or the database takes to copy."""


def back_up(node: Node, target: Path, *, user: str) -> Manifest:
    """Write a backup of the store of ``node`` to ``target``, a file that does not exist.

    Raises `AlreadyExists`, `InvalidInput`, `HoldExpired` if the history was not kept until the end,
    and OSError if writing fails.
    """
    target = target.absolute()
    files = StoreFiles(node.folders, node.address.folder)
    _refuse_file(target)
    refuse_inside(target, files.root)
    refuse_inside(target, files.folders.warehouse)
    mode = stat.S_IMODE(files.root.stat().st_mode)
    with (
        _unfinished(target, mode=mode & 0o666) as written,
        # For the copied database, because the archive may be on a network file system.
        TemporaryDirectory(prefix="strandline-backup-") as temporary,
        _holding(node, user) as hold_id,
    ):
        work = Path(temporary)
        archive = ArchiveWriter(written, _copy_catalog(node, work, mode=mode))
        with closing(open_sqlite(work / DATABASE_FILE)) as copied:
            with copied.write() as connection:  # no process would release it there
                connection.execute(delete(HOLD).where(HOLD.c.hold_id == hold_id))
            with copied.read() as connection:
                places = set(all_places(connection).values())
            _copy_files(files, archive, places, node.database)
            fetch_moved(node.database, files, copied, archive)
        archive.add_tree(work / CATALOG_FOLDER, CATALOG_FOLDER)
        archive.add_file(work / DATABASE_FILE, DATABASE_FILE)
        archive.finish()
    return archive.manifest


@contextmanager
def _holding(node: Node, user: str) -> Iterator[int]:
    """Hold the history, and yield the id of the hold. Raises `HoldExpired` if it did not last."""
    holds = node.transactions.holds
    hold_id = node.metastore.hold(BACKUP, user, at=None, ttl_ms=HOLD_MS, user=user).hold_id
    renew = partial(holds.renew, hold_id, ttl_ms=HOLD_MS)
    try:
        with Chores() as chores:
            chores.repeat("backup", {"renewing the hold": renew}, pauses=repeat(RENEWAL_SECONDS))
            yield hold_id
            renew()
    finally:
        holds.release(hold_id)


def _copy_files(
    files: StoreFiles, archive: ArchiveWriter, places_at_copy: Set[Place], store: Database
) -> None:
    for path, folder, names in files.walk():
        if files.is_of_later_table(folder, places_at_copy, store):
            continue  # a plain table of that name in the restored store would show the files
        inside = "" if folder == "." else f"{folder}/"
        if inside:
            archive.add_folder(path, folder)
        for name in names:
            with suppress(FileNotFoundError):  # moved or removed since it was listed
                archive.add_file(path / name, f"{inside}{name}")


def _refuse_file(target: Path) -> None:
    if os.path.lexists(target):
        raise AlreadyExists(f"{target} already exists; name a new file")


@contextmanager
def _unfinished(target: Path, *, mode: int) -> Iterator[BinaryIO]:
    """Open a file that no other backup writes, and rename it to ``target`` at the end."""
    path = target.with_name(f"{target.name}{UNFINISHED}")
    if not target.parent.is_dir():
        raise InvalidInput(
            f"the folder {target.parent} does not exist; create it, or name another file"
        )
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "wb") as written:
        status = os.fstat(written.fileno())
        if not stat.S_ISREG(status.st_mode) or (status.st_uid, status.st_nlink) != (
            os.geteuid(),
            1,
        ):
            raise InvalidInput(
                f"{path} exists, and is not a private file of this user; remove it, or name "
                "another file"
            )
        # Another backup may have finished since: then the opened file is its archive.
        descriptor = written.fileno()
        if not try_lock(descriptor) or not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise AlreadyExists(
                f"another backup to {target} is running; wait for it, or name another file"
            )
        try:
            os.fchmod(descriptor, mode)  # overrides umask and an earlier backup's mode
            os.ftruncate(descriptor, 0)
            yield written
            _refuse_file(target)
            os.rename(path, target)
            path = target  # a backup that is reported as failed must not be there either
            sync_folder(target.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _copy_catalog(node: Node, work: Path, *, mode: int) -> Manifest:
    """Copy the database and the blobs of its catalog; return the manifest to fill.

    ``mode`` is the permission bits of the store's folder or warehouse.

    Repeat until all blobs that the copy names are copied. A blob that is missing twice is missing
    in the store; the manifest reports it.
    """
    missing: frozenset[str] = frozenset()
    while True:
        file = work / DATABASE_FILE
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _mode_of(node)))
        copy_database(node.database, file)
        with closing(open_sqlite(file)) as copied:
            place = LogPlace(copied, node.address, HybridClock())
            with reading_catalog_log(place) as log:
                if node.address.is_one_database:
                    missing_before, missing = missing, log.copy_blobs(work / CATALOG_FOLDER)
                    keep_blobs_at(place, "")
                else:
                    bring_catalog(place, log)
            with copied.read() as connection:
                fence = FenceRow.read(connection)
                time = stored_time(connection)
                marks = head_of(work).read_marks(sqlite_file.driver_of(connection))
        if not missing or missing == missing_before:
            return Manifest(
                format=FORMAT,
                release=__version__,
                store=node.name,
                environment="" if fence is None else fence.environment,
                catalog_version=marks[CATALOG_MARK],
                time=format_timestamp(time),
                missing=sorted(missing),
                warehouse="" if node.address.folder else os.path.realpath(node.folders.warehouse),
                mode=mode,
            )
        # A sweep removed blobs between the two steps. The present database names others.
        for leftover in work.iterdir():
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _mode_of(node: Node) -> int:
    folder = node.address.folder
    if folder is None:
        return node.settings.folder_mode & 0o666
    return stat.S_IMODE((folder / DATABASE_FILE).stat().st_mode)
