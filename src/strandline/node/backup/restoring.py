"""Restoring a store from a backup, verified before the store becomes visible.

While each file is copied, its size and SHA-256 are compared with the manifest. The database is the
first, but gets its name only when everything else is on disk. Then its catalog is opened. A killed
restore leaves a folder without a store, or with a complete store that has not taken its new place
yet. A node refuses both.

The database of a store on servers is restored in the same way, but in a temporary folder, where it
takes its new place. Then the warehouse is marked with the environment id, and after that one
transaction loads the rows into the database of the server. So a killed restore leaves a warehouse
without a store, or the complete store. The blobs of the catalog go below the warehouse.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from strandline.clock import HybridClock
from strandline.durable import ReadOnlyState
from strandline.durable.persist.persist_log import FOLDER as CATALOG_FOLDER
from strandline.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    InvalidInput,
    Unavailable,
    UnknownOutcome,
)
from strandline.files import give_folder_to_owner, give_to_owner, sync_folder, synced_file_system
from strandline.metastore.store.store_folders import WAREHOUSE_FOLDER
from strandline.metastore.store.warehouse import make_folders
from strandline.node.address import DATABASE_FILE, StoreAddress
from strandline.node.backup.archive import Backup, open_backup
from strandline.node.backup.database_copy import clear, copy_rows, refuse_used
from strandline.node.backup.manifest import Manifest, refuse_target
from strandline.node.catalog_log import BLOBS_FOLDER, LogPlace, keep_blobs_at, reading_catalog_log
from strandline.node.relocation import refuse_unmoved_folder, relocate, take_place
from strandline.node.store_database import open_store_database
from strandline.node.store_place import UNFINISHED_FILE, RecordedPlace, united
from strandline.node.warehouse_place import WarehousePlace, marked_environment, refuse_nested
from strandline.sql import open_database


def restore(backup: Path, address: StoreAddress, *, copy: bool, warehouse: str = "") -> Manifest:
    """Restore the store in ``backup`` to ``address``, where no store may exist.

    ``copy`` means that the original store stays in use; see `relocate`. ``warehouse`` is the
    warehouse of a store on servers, by default its old one. If the restore fails, everything that
    it created is removed, except after `UnknownOutcome` and FileExistsError: another restore
    writes to the same place.

    Raises `NotFound`, `AlreadyExists`, `CorruptData`, `IncompatibleFormat`, `Conflict`, and
    `InvalidInput` if ``address`` is of another kind than the store had.
    """
    with open_backup(backup.absolute()) as opened:
        manifest = opened.manifest
        if bool(manifest.warehouse) != (address.folder is None) or not address.is_one_database:
            kind, place = ("a store in a folder", "a folder")
            if manifest.warehouse:
                kind, place = ("a store on servers", "postgresql://USER@HOST/DATABASE")
            raise InvalidInput(
                f"{backup} is the backup of {kind}, which cannot be restored to {address.name}; "
                f"restore it to {place}"
            )
        if address.folder is not None:
            _restore_folder(opened, address.folder, copy=copy)
        else:
            _restore_servers(opened, address, warehouse, copy=copy)
        return manifest


def _restore_folder(backup: Backup, folder: Path, *, copy: bool) -> None:
    manifest = backup.manifest
    refuse_target(folder)
    refuse_nested(folder)
    try:
        if not copy:
            refuse_unmoved_folder(Path(manifest.store), folder, manifest.environment)
    except Conflict as error:
        raise Conflict(
            f"the store that was backed up is still in {manifest.store}. To restore a separate "
            "store beside it, add --copy; otherwise move that folder away first"
        ) from error
    _make_folder(folder, mode=manifest.mode)
    try:
        _copy_files(backup, folder)
        relocate(folder, copy=copy)
    except FileExistsError:
        raise  # another restore writes to the folder: do not remove its files
    except BaseException:
        _empty(folder)
        raise


def _copy_files(backup: Backup, folder: Path, *, warehouse: Path | None = None) -> None:
    """Copy the whole backup to ``folder``. The database gets its name when all is on disk.

    The content of the warehouse goes to ``warehouse`` if that is given.
    """

    def path(name: str) -> Path:
        if warehouse is None or PurePosixPath(name).parts[0] != WAREHOUSE_FOLDER:
            return folder / name
        return warehouse / PurePosixPath(name).relative_to(WAREHOUSE_FOLDER)

    manifest = backup.manifest
    unfinished = folder / UNFINISHED_FILE
    with synced_file_system(warehouse or folder):
        backup.copy_file(DATABASE_FILE, unfinished)  # first: no node makes a store beside it
        for name in manifest.folders:
            _make_folder(path(name), mode=0o700)
            path(name).chmod(backup.folder_mode(name))
        for name in manifest.files:
            if name != DATABASE_FILE:
                backup.copy_file(name, path(name))
    os.rename(unfinished, folder / DATABASE_FILE)
    sync_folder(folder)  # SQLite does so too, but ignores an error


def _restore_servers(backup: Backup, address: StoreAddress, warehouse: str, *, copy: bool) -> None:
    manifest = backup.manifest
    folder = Path(warehouse or manifest.warehouse)
    if not folder.is_absolute():
        raise InvalidInput(f"warehouse is {str(folder)!r}; name an absolute path")
    with closing(open_database(address.objects, read_only=True)) as database:
        refuse_used(database)
    refuse_target(folder, named_by="--warehouse")
    refuse_nested(folder)
    old = Path(manifest.warehouse)
    # At the old place, `refuse_target` found the folder empty or missing: the old store is gone.
    is_elsewhere = os.path.realpath(folder) != manifest.warehouse
    if not copy and is_elsewhere and marked_environment(old) == manifest.environment:
        raise Conflict(
            f"the tables of the store that was backed up are still in {old}. To restore a "
            "separate store beside it, add --copy; otherwise move that folder away first"
        )
    _make_folder(folder, mode=manifest.mode)
    # When the temporary folder is removed, the store may exist: its files must not be removed then.
    with TemporaryDirectory(prefix="strandline-restore-", ignore_cleanup_errors=True) as staging:
        try:
            _load(backup, address, folder, Path(staging), copy=copy)
        except (UnknownOutcome, FileExistsError):
            raise  # the store may exist, or another restore writes it: do not remove its files
        except BaseException:
            _empty(folder)
            raise


def _load(
    backup: Backup, address: StoreAddress, warehouse: Path, staging: Path, *, copy: bool
) -> None:
    """Restore to ``staging``, give the store its new place, and load its rows into the server."""
    staging.chmod(backup.manifest.mode)
    _copy_files(backup, staging, warehouse=warehouse)
    clock = HybridClock()
    real = os.path.realpath(warehouse)
    names = united([str(warehouse), real])
    with closing(open_store_database(staging)) as restored:
        place = LogPlace(restored, StoreAddress(staging), clock)
        present = RecordedPlace(real, 0, names)
        environment = take_place(place, present, old=backup.manifest.warehouse, copy=copy)
        if (staging / CATALOG_FOLDER).is_dir():
            with synced_file_system(warehouse):
                _copy_blobs(staging / CATALOG_FOLDER, warehouse / BLOBS_FOLDER)
        keep_blobs_at(place, str(warehouse / BLOBS_FOLDER))
        with closing(open_database(address.objects)) as database:
            mode = backup.manifest.mode & 0o666
            WarehousePlace(warehouse, database).mark(environment, mode=mode)
            try:
                copy_rows(restored, database)
                written = LogPlace(database, address, clock)
                with _or_unknown(address, warehouse), reading_catalog_log(written) as log:
                    state = ReadOnlyState(log, latest_only=True)
                    _verify(state, environment, name=address.name)
            except (AlreadyExists, Unavailable):  # it was not written, or that is unknown
                raise
            except BaseException:  # a signal may have come just after the commit
                with _or_unknown(address, warehouse):
                    clear(database, environment)
                raise


@contextmanager
def _or_unknown(address: StoreAddress, warehouse: Path) -> Iterator[None]:
    """Raise `UnknownOutcome` if the server is away: its rows may stay, so the files must too."""
    try:
        yield
    except Unavailable as error:
        raise UnknownOutcome(
            f"the store was written to {address.name} and {warehouse}, but could not be read there "
            f"({error.message}); start a node on it, which reads it again"
        ) from error


def _make_folder(folder: Path, *, mode: int) -> None:
    for new in reversed(make_folders(folder, mode=mode)):
        give_folder_to_owner(new)


def _copy_blobs(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    for path, _, names in os.walk(target):
        give_folder_to_owner(path)
        for name in names:
            descriptor = os.open(Path(path) / name, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                give_to_owner(descriptor, of=path)
            finally:
                os.close(descriptor)


def _verify(state: ReadOnlyState, environment: str, *, name: str) -> None:
    if state.environment != environment:
        raise CorruptData(
            f"{name} has the catalog of {state.environment!r} after the restore of"
            f" {environment!r}; restore it to another database"
        )


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
