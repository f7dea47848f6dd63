"""The files and folders that cleaning counts and deletes; see `cleaning`."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from strandline.metastore.store.folder_effects import (
    PARTITIONS_SUFFIX,
    PURGED_SUFFIX,
    TRUNCATED_SUFFIX,
)
from strandline.metastore.store.own_files import delete_below, open_folder, size_of
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import FolderRefused, delete_folder
from strandline.model.places import DROPPED, SCHEMA_SUFFIX, Place

logger = logging.getLogger(__name__)

_ASIDE = re.compile(
    r"(?P<table>[0-9]{1,19})(\.(?P<row>[0-9]{1,19}))?"
    rf"(?P<partitions>{re.escape(PARTITIONS_SUFFIX)})?(?P<purged>{re.escape(PURGED_SUFFIX)})?"
    rf"(\.(?P<truncated>[0-9]{{1,15}}){re.escape(TRUNCATED_SUFFIX)})?"
)
"""The name of a folder in `DROPPED`: of a table, its partitions, or a table being deleted."""

FolderAside = tuple[Path, re.Match[str], Place]
"""A folder in `DROPPED`, the parts of its name, and the place of a dropped table of that id."""


@dataclass(slots=True)
class Cleaned:
    """What was removed of one table, or would be. ``bytes`` is the size of the files."""

    what: str
    table: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    names: list[str] = field(default_factory=list)
    """The paths of files, relative to their table's folder, and of folders of dropped tables."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of cleaning over the store: whether it is a dry run, and whether it must stop."""

    dry_run: bool
    stopped: Callable[[], bool]


class CleanedFiles:
    """See the module. ``failures`` counts the files and folders that could not be deleted."""

    def __init__(self, folders: StoreFolders) -> None:
        self._folders = folders
        self.failures = 0

    def set_aside(self) -> Iterator[FolderAside]:
        """The folders of dropped tables, and of the partitions dropped from a table."""
        warehouse = self._folders.warehouse
        for dropped in (*warehouse.glob(DROPPED), *warehouse.glob(f"*/{DROPPED}")):
            aside = dropped.relative_to(warehouse)
            with suppress(OSError):
                for folder in sorted(os.listdir(dropped)):
                    name = _ASIDE.fullmatch(folder)
                    if name is not None:
                        yield dropped / folder, name, Place.below(f"{aside}/{int(name['table'])}")

    def emptied_schemas(self) -> list[Place]:
        """The places of schemas whose folders have nothing in them but an empty `DROPPED`."""
        places = []
        for dropped in self._folders.warehouse.glob(f"*{SCHEMA_SUFFIX}/{DROPPED}"):
            with suppress(OSError):
                if not os.listdir(dropped) and os.listdir(dropped.parent) == [DROPPED]:
                    places.append(Place.below(dropped.parent.name))
        return places

    def remove_emptied(self, schema: Place) -> None:
        """Remove the folder of a dropped schema if it is still as in `emptied_schemas`."""
        try:
            self._folders.verify(schema)
            self._folders.remove_empty(Place.below(f"{schema.path}/{DROPPED}"))
            self._folders.remove_empty(schema)
        except FolderRefused as error:
            self.note_failure(self._folders.path(schema), error)

    @contextmanager
    def own_folder(self, place: Place | None) -> Iterator[int | None]:
        """The descriptor of a table's folder, or None if it is not an own place or is missing."""
        with ExitStack() as stack:
            root = None
            if place is not None:
                try:
                    self._folders.verify(place)
                    root = open_folder(self._folders.path(place))
                    stack.callback(os.close, root)
                except (FolderRefused, OSError) as error:
                    logger.debug("the folder %s is not cleaned: %s", place.text, error)
            yield root

    def take(self, cleaned: Cleaned, root: int, name: str, *, delete: bool) -> None:
        """Count a file or a job's folder below a table's folder; with ``delete``, delete it."""
        try:
            size = size_of(root, name)
            if delete:
                delete_below(root, name)
        except FileNotFoundError:
            return  # another node deleted it, or the table has moved
        except OSError as error:
            self.failures += 1
            logger.warning("%s of %s cannot be cleaned: %s", name, cleaned.table, error)
            return
        cleaned.files += 1
        cleaned.bytes += size
        cleaned.names.append(name)

    def take_folder(self, cleaned: Cleaned, place: Place, path: Path, *, delete: bool) -> None:
        """Count the files of a dropped table's folder at ``path``; with ``delete``, delete it."""
        try:
            self._folders.verify(place)
            if path.is_symlink() or not path.is_dir():
                return
            for folder, _, files in os.walk(path):
                cleaned.files += len(files)
                for name in files:
                    with suppress(FileNotFoundError):
                        cleaned.bytes += os.lstat(os.path.join(folder, name)).st_size
            if delete:
                delete_folder(path)
        except (FolderRefused, OSError) as error:
            self.note_failure(path, error)
            return
        cleaned.names.append(str(path))

    def note_failure(self, folder: Path, error: Exception) -> None:
        self.failures += 1
        logger.warning("the folder %s cannot be cleaned: %s", folder, error)
