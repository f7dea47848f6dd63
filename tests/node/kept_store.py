"""A store that each test gets as it was made, at the same place.

To make it for each test costs more than most of the tests. A copy at another place would have to be
relocated: a store knows the path and the inode of its database.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from strandline.node import DATABASE_FILE


class KeptStore:
    """The store that ``make`` makes at ``folder / "s"``; ``folder`` is a new one."""

    def __init__(self, folder: Path, make: Callable[[Path], object]) -> None:
        self._folder = folder / "s"
        make(self._folder)
        self._kept = shutil.copytree(self._folder, folder / "kept")
        self._database = folder / DATABASE_FILE  # its inode, whatever a test does to the store
        os.link(self._folder / DATABASE_FILE, self._database)

    def renewed(self) -> Path:
        """The folder of the store, with its first contents again. For one test at a time."""
        shutil.rmtree(self._folder, ignore_errors=True)  # a test may have moved it
        shutil.copytree(
            self._kept, self._folder, ignore=shutil.ignore_patterns(DATABASE_FILE), symlinks=True
        )
        os.link(self._database, self._folder / DATABASE_FILE)
        shutil.copy(self._kept / DATABASE_FILE, self._database)
        return self._folder
