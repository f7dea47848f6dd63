"""The folder of one table, while a transaction puts files into it.

::

    <location>/_files/<file id>-<uuid>.parquet     a data file
    <location>/_deletes/<txn>-<uuid>.parquet       bitmaps of deleted rows
    <location>/_staging/<txn>-<uuid>/              what a running job of Spark writes

All data files are in one folder, which Spark lists in one call. With one folder for each file,
Spark started a job to plan a scan of more than 32 files, which took fifteen times as long at 2,000
files. The file id is part of the name, which Spark knows in a scan. Readers that list the table's
folder as plain Parquet must find no file at all, because the files contain deleted and uncommitted
rows. Such readers skip folders whose names begin with ``_``.

Older files are read where they are (`strandline.metastore.store.file_scans`).

What must stay true:

* The files of a commit are durable before it: they are synced, and `sync` syncs their folder,
  before a row about them is staged.
* A table that is renamed takes its folder along. So the folder is opened once, and all later
  operations use this descriptor, wherever the folder moves. Only Spark writes by path; what it
  wrote counts only if the path still leads to the same folder after the job.

A client that aborts removes its files. A client that is killed leaves files that no row names;
cleaning removes them once the transaction has ended (`strandline.metastore.store.cleaning`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
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
    """The local folder of a location. Raises `UnsupportedOperation` if it is not a local one."""
    return Warehouse().path(location)


def spark_path(path: Path, *, pattern: bool = False) -> str:
    """``path`` as Spark reads it; ``pattern`` escapes it for calls that expect a pattern."""
    text = str(path)
    return "file:" + (_GLOB.sub(r"\\\1", text) if pattern else text)


class TableFolder:
    """See the module docstring. Closed by `close`; for one thread.

    ``is_taken`` says whether another table may have the path now.
    """

    def __init__(
        self, location: str, *, table: str, is_taken: Callable[[], bool] = lambda: False
    ) -> None:
        self.path = folder_path(location)
        self._table = table
        self._is_taken = is_taken
        try:
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise Unavailable(
                f"the folder {self.path} of {table} cannot be opened: {error.strerror}; if the "
                "table is just being renamed, try again; if the folder was never created, create "
                "it"
            ) from error

    def close(self) -> None:
        """Close the folder. Idempotent."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def new_staging(self, txn_id: int) -> str:
        """The name of a new staging folder for one Spark job; the job creates it."""
        return f"{STAGING_FOLDER}/{txn_id}-{uuid.uuid4().hex}"

    @contextlib.contextmanager
    def staged(self, staging: str) -> Iterator[int]:
        """The descriptor of the folder a job wrote, for a block that places its files.

        Raises `WriteConflict` if the table moved, and `Unavailable` if the disk fails.
        """
        with self._named_failures():
            written = -1
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.path), os.fstat(self._folder)):
                    written = os.open(staging, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._folder)
            if written < 0:
                raise WriteConflict(
                    f"{self._table} was renamed or dropped while rows for it were written; none of "
                    "them were kept; begin again"
                )
            try:
                yield written
            finally:
                os.close(written)

    def place(self, staged: int, name: str, file_id: int) -> str:
        """Move a written and synced file into place; return the path relative to the table."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(DATA_FOLDER, dir_fd=self._folder)
        relative = data_path(file_id, uuid.uuid4().hex)
        os.rename(name, relative, src_dir_fd=staged, dst_dir_fd=self._folder)
        return relative

    @contextlib.contextmanager
    def new_delete_file(self, txn_id: int) -> Iterator[tuple[str, BinaryIO]]:
        """A new delete file, synced at the end of the block; removed if the block raises.

        Raises `Unavailable` if the disk fails, as `sync` does.
        """
        relative = f"{DELETES_FOLDER}/{txn_id}-{uuid.uuid4().hex}.parquet"
        with self._named_failures():
            with contextlib.suppress(FileExistsError):
                os.mkdir(DELETES_FOLDER, dir_fd=self._folder)
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
        """Sync the folder itself: the files placed in it will exist after a power cut."""
        with self._named_failures():
            with contextlib.suppress(FileNotFoundError):  # only a delete file was placed
                self._sync(DATA_FOLDER)
            os.fsync(self._folder)

    def discard(self, relative: str) -> None:
        """Remove a file that no committed row names."""
        with contextlib.suppress(OSError):
            os.unlink(relative, dir_fd=self._folder)

    def discard_staging(self, staging: str) -> None:
        """Remove what a job left, as far as possible, wherever the table is now."""
        shutil.rmtree(self.path / staging, ignore_errors=True)
        with contextlib.suppress(OSError):
            shutil.rmtree(staging, ignore_errors=True, dir_fd=self._folder)
        with contextlib.suppress(OSError):
            if not os.path.samestat(os.stat(self.path), os.fstat(self._folder)):
                (self.path / STAGING_FOLDER).rmdir()
                # The job may have created the old folder again; an empty one would be in the way.
                if not self._is_taken():
                    self.path.rmdir()

    @contextlib.contextmanager
    def _named_failures(self) -> Iterator[None]:
        """Name the table and its folder in an error of the file system, which has neither."""
        try:
            yield
        except OSError as error:
            if error.errno is None:  # raised by a signal handler, such as a `TimeoutError`
                raise
            raise Unavailable(
                f"a file of {self._table} cannot be written into {self.path}: {error.strerror}; the"
                " statement changed nothing; check the space, the rights and the disk, and try"
                " again"
            ) from error

    def _sync(self, folder: str) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._folder)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
