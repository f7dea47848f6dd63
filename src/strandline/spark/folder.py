"""The folder of one table, while a transaction puts files into it.

::

    <location>/_files/<file id>-<uuid>.parquet     a data file
    <location>/_deletes/<txn>-<uuid>.parquet       bitmaps of deleted rows
    <location>/_staging/<txn>-<uuid>/              what a running job of Spark writes

All data files are in one folder, which Spark lists in one call; one folder for each file made it
start a job to plan a scan of more than 32 of them, fifteen times the time at 2,000. The file id is
part of the name, which Spark knows in a scan. Readers that list the table's folder as plain Parquet
must find no file at all, because the files hold deleted and uncommitted rows. They skip folders
whose name begins with ``_``.

Older files are read where they are (`strandline.metastore.store.file_scans`).

What must stay true:

* a commit does not outlive its files: they are synced, and `sync` puts their folder on disk,
  before a row about them is staged;
* a table that is renamed meanwhile takes its folder along. So the folder is opened once, and
  everything after goes through this descriptor, wherever it moves. Spark alone writes by path; what
  it wrote counts only if after the job the path still leads to the same folder.

A client that aborts removes its files. One that is killed leaves files that no row names; cleaning
takes them once its transaction has ended (`strandline.metastore.store.cleaning`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from strandline.errors import Unavailable, WriteConflict
from strandline.metastore.store.file_scans import (
    DATA_FOLDER,
    DELETES_FOLDER,
    STAGING_FOLDER,
    data_path,
)
from strandline.metastore.store.warehouse import Warehouse

_GLOB = re.compile(r"([\[\]{}*?\\])")


def folder_path(location: str) -> Path:
    """The folder on this machine. Raises `UnsupportedOperation` for any other place."""
    return Warehouse().path(location)


def spark_path(path: Path, *, pattern: bool = False) -> str:
    """``path`` as Spark reads it; with ``pattern`` where Spark would take it for a pattern."""
    text = str(path)
    return "file:" + (_GLOB.sub(r"\\\1", text) if pattern else text)


class TableFolder:
    """See the module. Closed by `close`; belongs to one thread."""

    def __init__(self, location: str, *, table: str) -> None:
        self.path = folder_path(location)
        self._table = table
        try:
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise Unavailable(
                f"the folder {self.path} of {table} cannot be opened: {error.strerror}; if the"
                " table is just being renamed, try again; if the folder was never made, make it"
            ) from error

    def close(self) -> None:
        """Let go of the folder. Idempotent."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def new_staging(self, txn_id: int) -> str:
        """The name of a folder for one job of Spark; the job makes it."""
        return f"{STAGING_FOLDER}/{txn_id}-{uuid.uuid4().hex}"

    @contextlib.contextmanager
    def staged(self, staging: str) -> Iterator[int]:
        """The descriptor of what a job wrote. Raises `WriteConflict` if the table moved."""
        try:
            same = os.path.samestat(os.stat(self.path), os.fstat(self._folder))
            written = os.open(staging, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._folder)
        except FileNotFoundError:
            same = False
        if not same:
            raise WriteConflict(
                f"{self._table} was renamed or dropped while rows for it were written; nothing was"
                " kept of them, begin again"
            )
        try:
            yield written
        finally:
            os.close(written)

    def place(self, staged: int, name: str, file_id: int) -> str:
        """Give a written file, already synced, its place; the path relative to the table."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(DATA_FOLDER, dir_fd=self._folder)
        relative = data_path(file_id, uuid.uuid4().hex)
        os.rename(name, relative, src_dir_fd=staged, dst_dir_fd=self._folder)
        return relative

    @contextlib.contextmanager
    def new_delete_file(self, txn_id: int) -> Iterator[tuple[str, BinaryIO]]:
        """A new delete file, synced at the end of the block; removed if the block raises."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(DELETES_FOLDER, dir_fd=self._folder)
        relative = f"{DELETES_FOLDER}/{txn_id}-{uuid.uuid4().hex}.parquet"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(relative, flags, mode=0o666, dir_fd=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield relative, file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            self.discard(relative)
            raise
        self._sync(DELETES_FOLDER)

    def sync(self) -> None:
        """Put the folder itself on disk: what was placed in it is there after a power cut."""
        with contextlib.suppress(FileNotFoundError):  # nothing was placed, only positions written
            self._sync(DATA_FOLDER)
        os.fsync(self._folder)

    def discard(self, relative: str) -> None:
        """Remove a file that no committed row names."""
        with contextlib.suppress(OSError):
            os.unlink(relative, dir_fd=self._folder)

    def discard_staging(self, staging: str) -> None:
        """Remove what a job left, as far as it can be removed, wherever the table is by now."""
        shutil.rmtree(self.path / staging, ignore_errors=True)
        with contextlib.suppress(OSError):
            shutil.rmtree(staging, ignore_errors=True, dir_fd=self._folder)
        with contextlib.suppress(OSError):
            if not os.path.samestat(os.stat(self.path), os.fstat(self._folder)):
                # The job made the table's old place anew; an empty one would be in the way.
                (self.path / STAGING_FOLDER).rmdir()
                self.path.rmdir()

    def _sync(self, folder: str) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._folder)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
