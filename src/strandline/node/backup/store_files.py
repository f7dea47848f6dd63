"""The files of a store, and their names in its backup.

A name is a path below the folder of the store. The files in the warehouse of a store on servers get
the names that they would have in a folder: ``warehouse/…``. The database, the blobs of the catalog,
and files that a node creates again are not included.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from strandline.metastore.store.store_folders import WAREHOUSE_FOLDER, StoreFolders
from strandline.model.places import Place
from strandline.node.backup.archive import is_plain
from strandline.node.catalog_log import BLOBS_FOLDER
from strandline.node.node import CACHE_FILE
from strandline.node.place import DATABASE_FILE, HEAD_FILE
from strandline.node.warehouse_place import MARKER

CATALOG_FOLDER = "catalog"
"""The blobs of the catalog, in the folder of a store and in a backup."""
_IN_WAREHOUSE = f"{WAREHOUSE_FOLDER}/"


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """See the module. ``folder`` is None for a store on servers."""

    folders: StoreFolders
    folder: Path | None

    @property
    def root(self) -> Path:
        """The folder of the store, or its warehouse if it is on servers."""
        return self.folders.warehouse if self.folder is None else self.folder

    def name(self, place: Place) -> str | None:
        """Return the name of the folder at ``place``, or None if it is outside of the store."""
        if not self.folders.is_inside(place):
            return None
        path = self.folders.path(place)
        prefix = PurePosixPath(WAREHOUSE_FOLDER if self.folder is None else "")
        for root in (self.root, Path(os.path.realpath(self.root))):
            if path.is_relative_to(root):
                return (prefix / path.relative_to(root).as_posix()).as_posix()
        return None

    def path(self, name: str) -> Path:
        """Return the path of the file or folder ``name``."""
        if self.folder is None:
            return self.root / name.removeprefix(_IN_WAREHOUSE)
        return self.folder / name

    def walk(self) -> Iterator[tuple[Path, str, list[str]]]:
        """Yield the path of every folder, its name, and the names of its files.

        A parent comes before its children. Empty folders are included, since a table without files
        has one. Symbolic links are left out.
        """
        for root, prefix in self._roots():
            for path, folders, files in os.walk(root):
                name = (PurePosixPath(prefix) / Path(path).relative_to(root).as_posix()).as_posix()
                inside = "" if name == "." else f"{name}/"
                folders[:] = sorted(f for f in folders if not self._is_left_out(f"{inside}{f}"))
                kept = (f for f in files if not self._is_left_out(f"{inside}{f}"))
                yield Path(path), name, sorted(f for f in kept if is_plain(Path(path) / f))

    def _roots(self) -> list[tuple[Path, str]]:
        """Return the folders to walk, each with its name in the backup."""
        warehouse = Path(os.path.realpath(self.folders.warehouse))
        if self.folder is None:
            return [(warehouse, WAREHOUSE_FOLDER)]
        if self.folders.warehouse.is_symlink():
            return [(self.folder, ""), (warehouse, WAREHOUSE_FOLDER)]
        return [(self.folder, "")]

    def _is_left_out(self, name: str) -> bool:
        if self.folder is None:
            inside = name.removeprefix(_IN_WAREHOUSE)
            return inside == BLOBS_FOLDER or inside.startswith(MARKER)
        database = (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm", HEAD_FILE)
        return name in (*database, CATALOG_FOLDER) or name.startswith(CACHE_FILE)
