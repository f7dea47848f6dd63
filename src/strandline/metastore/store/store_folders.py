"""The folders of one store: which places are its own, and so may be made, moved and removed.

The problem: a place is a text, and clients send texts. A table that lies where a client says would,
once dropped, move whatever is there: another table, the store itself, a user's home.

The rule: a place is the store's *own* if Strandline chooses it, and every place that it chooses has
one of these forms, below the warehouse (the folder ``warehouse`` in the folder of the store):

    <table>                       a table of the schema ``default``
    <schema>.db                   a schema
    <schema>.db/<table>           a table of that schema
    .dropped/<table id>           a dropped table, in the warehouse and in the folder of a schema

No other part begins with a dot, and no table directly below the warehouse ends in ``.db``. So two
own places of tables are equal or apart; none lies in another, and none holds anything of the store.
Only an own place is moved or removed, and it is verified in that moment: there is no symbolic link
between the warehouse and it. The warehouse itself may be a link, which its operator set.

A place of any other form was named by a user. The table there is external. What releases 0.1.0 and
0.2.0 recorded as managed tables at such places stays where it is, and its files are never touched.

Folders elsewhere are made only below the *roots* that the operator lists
(`strandline.config.Settings.location_roots`), and never moved or removed.

Rejected: asking whether a place overlaps that of another table, or a folder of the store (each new
kind of folder would have to be thought of, and links make two texts one place), and a mark in each
folder that says whose it is (a client that may write files can write marks).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from strandline.errors import InvalidInput, UnsupportedOperation
from strandline.metastore.store.warehouse import DROPPED, FolderRefused, Warehouse

WAREHOUSE_FOLDER = "warehouse"
_PLACES_REMEMBERED = 1024
SCHEMA_SUFFIX = ".db"
"""What the name of a schema's folder ends in."""


class StoreFolders(Warehouse):
    """See the module. ``folder`` is that of the store; ``roots`` are absolute paths. Immutable.

    ``warehouse`` is ``folder`` or lies in it; by default it is `WAREHOUSE_FOLDER` in it.

    ``mode`` are the permission bits of new folders. ``names`` are absolute paths that the folder
    has or had (`strandline.node.place`): what was recorded below one of them is inside it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        warehouse: Path | None = None,
        roots: Iterable[str | Path] = (),
        names: Iterable[str] = (),
        mode: int = 0o700,
    ) -> None:
        super().__init__(mode=mode)
        self.folder = folder
        self.warehouse = folder / WAREHOUSE_FOLDER if warehouse is None else warehouse
        self._warehouse_parts = self.warehouse.relative_to(folder).parts
        real = os.path.realpath(folder)
        # Clients may name the folder by its real path, and by the one that the node was given.
        self._names = tuple(dict.fromkeys((folder, Path(real))))
        former = {Path(name) for name in names if os.path.realpath(name) != real}
        # The longest first: one may lie in another.
        self._former = tuple(sorted(former - set(self._names), key=lambda p: -len(str(p))))
        # A place is asked about several times in a row, and paths are slow.
        self._inside = lru_cache(maxsize=_PLACES_REMEMBERED)(self._find_inside)
        self._roots = tuple(os.path.realpath(root) for root in roots)

    def path(self, location: str) -> Path:
        """See `Warehouse.path`; what lies below a former name of the folder is inside it."""
        path = super().path(location)
        if any(path.is_relative_to(name) for name in self._names):
            return path
        for name in self._former:
            if path.is_relative_to(name):
                return self.folder / path.relative_to(name)
        return path

    def shown(self, location: str) -> str:
        """``location`` as it is now: the same unless it lies below a former name of the folder."""
        if not self._former:
            return location
        try:
            written, path = super().path(location), self.path(location)
        except (InvalidInput, UnsupportedOperation):
            return location
        return location if written == path else f"file://{path}"

    def refuse_former(self, location: str | None) -> None:
        """Raise `InvalidInput` for a place below a former name of the folder.

        It would be taken for one in this folder; and it is that of a copy's original.
        """
        if location and self.shown(location) != location:
            raise InvalidInput(
                f"{location} lies where the folder of this store was before it was moved or copied"
                f" to {self.folder}; name a place elsewhere"
            )

    def is_own_table(self, location: str) -> bool:
        """Whether ``location`` has the form of a table's own place, dropped or not."""
        parts = self._parts(location)
        if len(parts) > 1 and _is_schema(parts[0]):
            parts = parts[1:]
        elif len(parts) == 1 and parts[0].endswith(SCHEMA_SUFFIX):
            return False
        if len(parts) == 2:
            return parts[0] == DROPPED and parts[1].isascii() and parts[1].isdecimal()
        return len(parts) == 1 and not parts[0].startswith(".")

    def is_own_schema(self, location: str) -> bool:
        """Whether ``location`` has the form of a schema's own place, or is the warehouse."""
        if self._inside(location) == self._warehouse_parts:
            return True
        parts = self._parts(location)
        return len(parts) == 1 and _is_schema(parts[0])

    def is_inside(self, location: str) -> bool:
        """Whether ``location`` is the folder of the store or lies in it."""
        return self._inside(location) is not None

    def same(self, first: str, second: str) -> bool:
        """Whether both texts name one place."""
        try:
            return self._canonical(first) == self._canonical(second)
        except (InvalidInput, UnsupportedOperation):
            return first.rstrip("/") == second.rstrip("/")

    def verify(self, location: str) -> None:
        """Raise `FolderRefused` unless ``location`` is own now: no link leads out of the warehouse.

        To be asked just before it is moved, made or removed.
        """
        if not (self.is_own_table(location) or self.is_own_schema(location)):
            raise FolderRefused(f"{location} was named by a user, and is not the store's to change")
        self._refuse_links(self._parts(location))

    def verify_below(self, location: str, *, table: str) -> None:
        """Raise `FolderRefused` unless ``location`` lies in the own place ``table``, without links.

        For folders of partitions.
        """
        self.verify(table)
        inside, base = self._parts(location), self._parts(table)
        if len(inside) <= len(base) or inside[: len(base)] != base:
            raise FolderRefused(f"{location} does not lie in the folder of its table, {table}")
        self._refuse_links(inside)

    def may_make(self, location: str) -> bool:
        """Whether a folder may be made there: in an own place, or below one of the roots."""
        if not self.reaches(location):
            return False
        if self.is_inside(location):
            try:
                self.verify(location)
            except FolderRefused:
                return False
            return True
        real = os.path.realpath(self.path(location))
        if any(_within(real, str(name)) for name in self._names):
            return False
        return any(_within(real, root) for root in self._roots)

    def may_list(self, location: str) -> bool:
        """Whether files there may be counted: none of what the store keeps for itself."""
        if not self.reaches(location):
            return False
        inside = self._inside(location)
        if inside is not None:
            return bool(self._parts(location))
        real = os.path.realpath(self.path(location))
        return not any(_within(real, str(name)) for name in self._names)

    def _refuse_links(self, parts: tuple[str, ...]) -> None:
        """Raise `FolderRefused` where one of these, from the warehouse down, is a link."""
        place = str(self.warehouse)
        for part in parts:
            place = f"{place}/{part}"
            if os.path.islink(place):
                raise FolderRefused(f"the symbolic link {place} leads to {os.path.realpath(place)}")

    def _canonical(self, location: str) -> Path:
        inside = self._inside(location)
        return self.path(location) if inside is None else self.folder.joinpath(*inside)

    def _find_inside(self, location: str) -> tuple[str, ...] | None:
        """The parts of the path below the folder of the store; None where it lies elsewhere."""
        try:
            path = self.path(location)
        except (InvalidInput, UnsupportedOperation):
            return None
        for name in self._names:
            if path.is_relative_to(name):
                return path.relative_to(name).parts
        return None

    def _parts(self, location: str) -> tuple[str, ...]:
        """The parts of the path below the warehouse; none where it does not lie in it."""
        inside, warehouse = self._inside(location) or (), self._warehouse_parts
        return inside[len(warehouse) :] if inside[: len(warehouse)] == warehouse else ()


def _is_schema(name: str) -> bool:
    return name.endswith(SCHEMA_SUFFIX) and not name.startswith(".")


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")
