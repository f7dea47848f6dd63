"""The files that Strandline writes into the folder of a table, accessed through descriptors.

A folder is opened once, and everything below it is opened relative to its descriptor, and never
through a symbolic link. So the table may be renamed meanwhile, and no link leads to other files.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from strandline.metastore.store.file_scans import (
    DATA_FOLDER,
    DELETES_FOLDER,
    FILE_COLUMN,
    STAGING_FOLDER,
)
from strandline.metastore.store.rows import FILE_NUMBER_BITS
from strandline.metastore.store.warehouse import delete_folder

_OWN_NAME = re.compile(r"([0-9]{1,19})-[0-9a-f]{32}(\.parquet)?")
_OWNERS: dict[str, Callable[[int], int]] = {
    DATA_FOLDER: lambda file_id: file_id >> FILE_NUMBER_BITS,
    DELETES_FOLDER: lambda txn_id: txn_id,
    STAGING_FOLDER: lambda txn_id: txn_id,
}
"""Functions from the number at the start of a file's name to the transaction that wrote it."""


Times = tuple[int, ...]
"""The time of the last change of each folder's entries, in nanoseconds; 0 if it is missing."""


def times_of_folders(path: str) -> Times:
    """The times of the folders that `own_files` lists, for the table's folder at ``path``."""
    return tuple(_modified(f"{path}/{folder}") for folder in _OWNERS)


def _modified(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def own_files(root: int) -> Iterator[tuple[str, int]]:
    """Yield the files whose names give the transaction that wrote them, with the transaction id.

    Other clients may number files themselves, below the numbers of any transaction. Such files are
    skipped, since their transaction is unknown.
    """
    for folder in _OWNERS:
        with suppress(OSError), _within(root, folder) as descriptor:
            for name in os.listdir(descriptor):
                path = f"{folder}/{name}"
                if owner := owner_of(path):
                    yield path, owner


def owner_of(name: str) -> int:
    """The transaction that wrote a file, as the name in the table's folder says, or 0."""
    folder, _, last = name.rpartition("/")
    match = _OWN_NAME.fullmatch(last) if folder in _OWNERS else None
    return 0 if match is None else _OWNERS[folder](int(match[1]))


def missing_file(root: int, names: Iterable[str]) -> str | None:
    """One of ``names`` that `own_files` would yield and that cannot be found, or None."""
    for name in names:
        if owner_of(name):
            try:
                os.stat(name, dir_fd=root, follow_symlinks=False)
            except OSError:  # of any kind, as when `own_files` lists a folder
                return name
    return None


def open_folder(path: str | Path, *, below: int | None = None) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=below)


@contextmanager
def _within(root: int, folder: str) -> Iterator[int]:
    """Open a folder below ``root`` without following links. Raises `OSError`."""
    with ExitStack() as stack:
        descriptor = root
        for part in filter(None, folder.split("/")):
            if part == "..":
                raise PermissionError(f"{folder!r} leads out of the folder of its table")
            descriptor = open_folder(part, below=descriptor)
            stack.callback(os.close, descriptor)
        yield descriptor


def size_of(root: int, name: str) -> int:
    """The bytes of a file, or of all files in a folder."""
    folder, _, last = name.rpartition("/")
    with _within(root, folder) as descriptor:
        status = os.stat(last, dir_fd=descriptor, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            return status.st_size
        size = 0
        for _, _, names, below in os.fwalk(last, dir_fd=descriptor):
            for inner in names:
                with suppress(FileNotFoundError):  # a job that was not stopped may move it
                    size += os.stat(inner, dir_fd=below, follow_symlinks=False).st_size
        return size


def delete_below(root: int, name: str) -> None:
    """Delete a file or a folder, and the folder ``_file=…`` of the file if it is then empty."""
    folder, _, last = name.rpartition("/")
    with _within(root, folder) as descriptor:
        if stat.S_ISDIR(os.stat(last, dir_fd=descriptor, follow_symlinks=False).st_mode):
            delete_folder(last, below=descriptor)
            return
        os.unlink(last, dir_fd=descriptor)
    around, _, folder_name = folder.rpartition("/")
    if folder_name.startswith(f"{FILE_COLUMN}="):
        with suppress(OSError), _within(root, around) as descriptor:
            os.rmdir(folder_name, dir_fd=descriptor)
