"""How many files a folder holds, and how many bytes: counted for a Hive client, within bounds.

Hive's clients take the size of a table from its parameters, so a node counts the files where Hive
does. A folder may hold millions of them, and many partitions may be counted in one request. So one
`FileCounter` counts for one request and ends at a number of entries or after a time, whichever is
first; what was not counted completely has no count, which is what clients expect of a table that
was not counted. The counting yields to other threads every few entries.

Not counted: names that begin with ``_`` or ``.``, which Hive's readers skip, and what a symbolic
link leads to.

How much a table takes on the disk is measured by the node for itself (`measured_sizes`): all that
lies in its folder, however long that takes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from strandline.errors import Stopping
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.table_places import all_places
from strandline.sql import Database

MAX_ENTRIES = 20_000
MAX_SECONDS = 1.0
_ENTRIES_IN_A_ROW = 128
_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class FileCounts:
    """What lies in a folder and the folders below."""

    files: int
    bytes: int


class _Spent(Exception):
    """The bounds of this counter are reached."""


class FileCounter:
    """Counts the files of folders for one request. Not for the event loop."""

    def __init__(
        self,
        *,
        max_entries: int = MAX_ENTRIES,
        seconds: float = MAX_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        skipped: tuple[str, ...] = _HIDDEN,
    ) -> None:
        self._left = max_entries
        self._skipped = skipped
        self._monotonic = monotonic
        self._deadline = monotonic() + seconds

    def count(self, folder: Path) -> FileCounts | None:
        """The counts of ``folder``; None if it cannot be read, or only in part."""
        files = size = 0
        waiting = [os.fspath(folder)]
        try:
            while waiting:
                inner_files, inner_size, folders = self._count_one(waiting.pop())
                files, size = files + inner_files, size + inner_size
                waiting += folders
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
                if entry.name.startswith(self._skipped) or entry.is_symlink():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    files += 1
                    size += entry.stat(follow_symlinks=False).st_size
        return files, size, folders

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _Spent
        if self._left % _ENTRIES_IN_A_ROW == 0:
            if self._monotonic() > self._deadline:
                raise _Spent
            time.sleep(0)  # lets the thread of the event loop run


def measured_sizes(
    database: Database,
    folders: StoreFolders,
    tables: Collection[int],
    *,
    stopped: Callable[[], bool],
) -> dict[int, int]:
    """How many bytes lie in the folders of those of ``tables`` that the store has made, by table.

    Those whose folder is not there, or cannot be read, are left out. Raises `Stopping` soon after
    ``stopped`` is true.
    """
    with database.read() as connection:
        places = all_places(connection)
    sizes: dict[int, int] = {}
    for table_id in sorted(places.keys() & set(tables)):
        counter = FileCounter(
            max_entries=sys.maxsize,
            seconds=0.0,
            monotonic=lambda: float(stopped()),  # past the deadline from then on
            skipped=(),
        )
        if folders.reaches(places[table_id]):
            counts = counter.count(folders.path(places[table_id]))
            if counts is not None:
                sizes[table_id] = counts.bytes
        if stopped():
            raise Stopping("the node is stopping; nothing was measured")
    return sizes
