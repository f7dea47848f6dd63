"""The number and size of the files in a folder, counted for a Hive client within limits.

Hive's clients read the size of a table from its parameters, so a node counts files whenever Hive
does. A folder may contain millions of files, and one request may count many partitions. So each
request has one `FileCounter`, which stops after a number of entries or a time, whichever comes
first. A folder that was not counted completely has no count: clients expect that of a table that
was not counted. The counter yields to other threads every few entries.

Not counted: names that begin with ``_`` or ``.``, which Hive's readers skip, and symbolic links.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_ENTRIES = 20_000
MAX_SECONDS = 1.0
ENTRIES_BETWEEN_YIELDS = 128
"""How many entries of folders are read before other threads, such as the event loop's, may run."""
_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class FileCounts:
    """The number of files in a folder and the folders below, and their bytes."""

    files: int
    bytes: int


class _Spent(Exception):
    """The counter has reached its limits."""


class FileCounter:
    """Counts the files of folders for one request. Not for the event loop."""

    def __init__(
        self,
        *,
        max_entries: int = MAX_ENTRIES,
        seconds: float = MAX_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries_left = max_entries
        self._monotonic = monotonic
        self._deadline = monotonic() + seconds

    def count(self, folder: Path) -> FileCounts | None:
        """The counts of ``folder``, or None if it cannot be read completely.

        A folder that does not exist contains no files.
        """
        files = size = 0
        top = os.fspath(folder)
        waiting = [top]
        try:
            while waiting:
                inner_files, inner_size, folders = self._count_one(waiting.pop())
                files, size = files + inner_files, size + inner_size
                waiting += folders
        except FileNotFoundError as error:
            return FileCounts(0, 0) if error.filename == top else None
        except (OSError, ValueError, _Spent):
            return None
        return FileCounts(files, size)

    def _count_one(self, folder: str) -> tuple[int, int, list[str]]:
        """Files and bytes directly in ``folder``, and the folders in it."""
        files = size = 0
        folders: list[str] = []
        self._spend()
        with os.scandir(folder) as entries:
            for entry in entries:
                self._spend()
                if entry.name.startswith(_HIDDEN) or entry.is_symlink():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    files += 1
                    size += entry.stat(follow_symlinks=False).st_size
        return files, size, folders

    def _spend(self) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise _Spent
        if self._entries_left % ENTRIES_BETWEEN_YIELDS == 0:
            if self._monotonic() > self._deadline:
                raise _Spent
            time.sleep(0)  # lets the thread of the event loop run
