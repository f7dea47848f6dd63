"""The folders of one store: which places are its own, and so may be made, moved and removed.

The problem: a place is a text, and clients send texts. A table that lies where a client says would,
once dropped, move whatever is there: another table, the store itself, a user's home.

The rule: a place is the store's *own* if Strandline chooses it, and every place that it chooses has
one of the forms of `strandline.model.places`, below the warehouse (the folder ``warehouse`` in the
folder of the store). So two own places of tables are equal or apart, and none holds anything of the
store. Only an own place is moved or removed, and it is verified in that moment: there is no
symbolic link between the warehouse and it. The warehouse itself may be a link, which its operator
set.

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
from strandline.metastore.store.warehouse import FolderRefused, Warehouse
from strandline.model.descriptors import SchemaDescriptor
from strandline.model.places import Place, places_of_schema

WAREHOUSE_FOLDER = "warehouse"
_PLACES_REMEMBERED = 1024


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
        self._warehouse_path = str(self.warehouse)
        below = self.warehouse.relative_to(folder)
        real = os.path.realpath(folder)
        # Clients may name the folder by its real path, and by the one that the node was given.
        self._names = tuple(dict.fromkeys((str(folder), real)))
        self._warehouses = tuple(str(Path(name) / below) for name in self._names)
        former = {str(Path(name)) for name in names if os.path.realpath(name) != real}
        # The longest first: one may lie in another.
        self._former = tuple(sorted(former - set(self._names), key=len, reverse=True))
        # A place is asked about several times in a row.
        self._known_place = lru_cache(maxsize=_PLACES_REMEMBERED)(self._find_place)
        self._roots = tuple(os.path.realpath(root) for root in roots)

    # -- texts, places and paths

    def place(self, location: str) -> Place:
        """The place that a text names: one that is stored, or a location of a client."""
        return self._known_place(location)

    def place_of_schema(self, schema: SchemaDescriptor) -> Place:
        if not schema.location:  # of release 0.1.0
            return next(places_of_schema(schema.name))
        return self.place(schema.location)

    def location(self, place: Place) -> str:
        """The URI of a place, as Hadoop writes it: a path behind the scheme, nothing escaped."""
        if place.is_inside:
            return f"file://{self._warehouse_path}/{place.path}".rstrip("/")
        return f"file://{place.text}" if place.text.startswith("/") else place.text

    def shown(self, location: str) -> str:
        """The URI or path of a text that is stored.

        It is another one than the text if that is relative to the warehouse, or lies below a former
        name of the folder.
        """
        if Place(location).is_inside:
            return self.location(Place(location))
        if not self._former:
            return location
        try:
            written, path = super().path_text(location), self.path_text(location)
        except (InvalidInput, UnsupportedOperation):
            return location
        return location if written == path else f"file://{path}"

    def path_text(self, location: str | Place) -> str:
        """See `Warehouse.path_text`; what lies below a former name of the folder is inside it."""
        if isinstance(location, Place) and location.is_inside:
            return f"{self._warehouse_path}/{location.path}".rstrip("/")
        path = super().path_text(location)
        if not self._former or self._is_below_a_name(path):
            return path
        for name in self._former:
            if _within(path, name):
                return str(self.folder / path[len(name) :].lstrip("/"))
        return path

    def _is_below_a_name(self, path: str) -> bool:
        return any(_within(path, name) for name in self._names)

    def same(self, first: str, second: str) -> bool:
        """Whether both texts name one place."""
        return self.place(first) == self.place(second)

    def refuse_former(self, location: str | None) -> None:
        """Raise `InvalidInput` for a place below a former name of the folder.

        It would be taken for one in this folder; and it is that of a copy's original.
        """
        if location and self._former and self.shown(location) != location:
            raise InvalidInput(
                f"{location} lies where the folder of this store was before it was moved or copied"
                f" to {self.folder}; name a place elsewhere"
            )

    def reaches(self, location: str | Place) -> bool:
        if isinstance(location, Place) and location.is_inside:
            return True
        return super().reaches(location)

    # -- what may be done there

    def is_own_table(self, location: str) -> bool:
        """Whether ``location`` has the form of a table's own place, dropped or not."""
        return self.place(location).is_of_table

    def is_inside(self, location: str | Place) -> bool:
        """Whether ``location`` is the folder of the store or lies in it."""
        try:
            return self._is_below_a_name(self.path_text(location))
        except (InvalidInput, UnsupportedOperation):
            return False

    def verify(self, place: Place) -> None:
        """Raise `FolderRefused` unless ``place`` is own now: no link leads out of the warehouse.

        To be asked just before it is moved, made or removed.
        """
        self._require_own(place)
        self._refuse_links(place)

    def _require_own(self, place: Place) -> None:
        if not (place.is_of_table or place.is_of_schema):
            raise FolderRefused(
                f"{self.location(place)} was named by a user, and is not the store's to change"
            )

    def verify_below(self, location: str, *, table: str) -> None:
        """Raise `FolderRefused` unless ``location`` lies in the own place ``table``, without links.

        For folders of partitions.
        """
        inside, base = self.place(location), self.place(table)
        self._require_own(base)
        if not inside.is_inside or not inside.path.startswith(f"{base.path}/"):
            raise FolderRefused(f"{location} does not lie in the folder of its table, {table}")
        self._refuse_links(inside)

    def may_make(self, location: str | Place) -> bool:
        """Whether a folder may be made there: in an own place, or below one of the roots."""
        if not self.reaches(location):
            return False
        if self.is_inside(location):
            place = location if isinstance(location, Place) else self.place(location)
            try:
                self.verify(place)
            except FolderRefused:
                return False
            return True
        real = os.path.realpath(self.path_text(location))
        if self._is_below_a_name(real):
            return False
        return any(_within(real, root) for root in self._roots)

    def may_list(self, location: str) -> bool:
        """Whether files there may be counted: none of what the store keeps for itself."""
        if not self.reaches(location):
            return False
        if self.is_inside(location):
            place = self.place(location)
            return place.is_inside and bool(place.path)
        return not self._is_below_a_name(os.path.realpath(self.path_text(location)))

    def _refuse_links(self, place: Place) -> None:
        """Raise `FolderRefused` where the place, or one between the warehouse and it, is a link."""
        path = self._warehouse_path
        for part in place.path.split("/"):
            path = f"{path}/{part}"
            if os.path.islink(path):
                raise FolderRefused(f"the symbolic link {path} leads to {os.path.realpath(path)}")

    def _find_place(self, location: str) -> Place:
        if Place(location).is_inside:
            return Place(location)
        try:
            path = self.path_text(location)
        except (InvalidInput, UnsupportedOperation):
            return Place(location.rstrip("/"))
        for warehouse in self._warehouses:
            if _within(path, warehouse):
                return Place.below(path[len(warehouse) :].strip("/"))
        return Place(path)


def _within(path: str, root: str) -> bool:
    """Whether the path is ``root`` or lies in it; both are normal."""
    return path == root or path.startswith(f"{root.rstrip('/')}/")
