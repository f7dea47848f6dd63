"""Files and folders: their owner, their lock, and whether they are on disk.

A command that root runs on a store must not leave anything that the nodes, which run as the owner
of the store, cannot read or change. SQLite gives its log to the owner of the database. All other
files and folders are given to the owner of the folder that they are made in.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SYNC_FILE_SYSTEM = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
"""Linux has it. Unlike `os.sync`, it reports a disk that failed."""


def give_to_owner(descriptor: int, *, of: str | Path) -> None:
    """Give a new file to the owner and group of the folder ``of``, if this process is root's."""
    if os.geteuid() == 0:
        owner = os.stat(of)
        with suppress(OSError):  # the file system or the container does not know that owner
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def give_folder_to_owner(folder: str | Path) -> None:
    """Like `give_to_owner`, for a new folder and the folder above it."""
    if os.geteuid() == 0:
        # Another user could have put a link in its place.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            give_to_owner(descriptor, of=os.path.dirname(folder))
        finally:
            os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock a file until it is closed. Returns False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        os.sync()  # a folder that cannot be opened is synced with everything else
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def synced_file_system(folder: Path) -> Iterator[None]:
    """For a block that writes many files below ``folder``: at its end, all are on disk.

    Raises OSError if the disk failed since the block began, also for a file that is closed by now.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # errors count from here on
    try:
        yield
        if _SYNC_FILE_SYSTEM is None:
            os.sync()
        elif _SYNC_FILE_SYSTEM(descriptor):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(folder))
    finally:
        os.close(descriptor)
