"""The sizes of the folders of tables, in bytes, as a node measures them.

All files count, even those that readers skip, but symbolic links are not followed. Files may be
added and deleted during the measurement: a file that is deleted before its size is read counts as
0. A place is a name that another table may get while folders are walked. So a table whose place has
changed since the measurement began is left out.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from strandline.logs import in_one_line
from strandline.metastore.store.file_counts import ENTRIES_BETWEEN_YIELDS
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.table_places import all_places
from strandline.metastore.store.warehouse import FolderRefused
from strandline.sql import Database

logger = logging.getLogger(__name__)


def measured_sizes(
    database: Database,
    folders: StoreFolders,
    tables: Collection[int],
    *,
    refuse_when_stopping: Callable[[], object],
) -> dict[int, int]:
    """The bytes in the folder of each of ``tables`` that is at an own place of the store.

    Tables without a folder, and tables whose folder cannot be read, are left out; the latter are
    logged. Calls ``refuse_when_stopping`` often and raises what it raises, and `Unavailable`.
    """
    with database.read() as connection:
        places = all_places(connection)
    sizes: dict[int, int] = {}
    unread: list[OSError] = []
    for table_id in sorted(places.keys() & set(tables)):
        place = places[table_id]
        if not folders.reaches(place):
            continue
        try:
            folders.verify(place)
            sizes[table_id] = _bytes_in(folders.path_text(place), refuse_when_stopping)
        except (FolderRefused, FileNotFoundError):
            continue
        except OSError as error:
            unread.append(error)
    if unread:
        logger.warning(
            "the sizes of %d tables were not measured, as their folders cannot be read: %s",
            len(unread),
            in_one_line(str(unread[0])),
        )
    with database.read() as connection:
        now = all_places(connection)
    return {table: size for table, size in sizes.items() if now.get(table) == places[table]}


def _bytes_in(folder: str, refuse_when_stopping: Callable[[], object]) -> int:
    """The bytes in ``folder``. Raises `OSError`; `FileNotFoundError` if it does not exist."""
    size = entries = 0
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        refuse_when_stopping()
        try:
            with os.scandir(path) as listed:
                for entry in listed:
                    entries += 1
                    if entries % ENTRIES_BETWEEN_YIELDS == 0:
                        refuse_when_stopping()
                        time.sleep(0)  # lets the thread of the event loop run
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not entry.is_symlink():
                        with suppress(FileNotFoundError):
                            size += entry.stat(follow_symlinks=False).st_size
        except (FileNotFoundError, NotADirectoryError):
            if path == folder:
                raise
    return size
