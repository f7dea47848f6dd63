"""The folders of one store: which places are its own, and may be made, moved and removed.

The problem: a place is a text, and clients send texts. If a table were at any place that a client
names, dropping the table would move whatever is there: another table, the store itself, a user's
home.

The rule: a place is the store's *own* if Strandline chose it. All such places have one of the forms
of `strandline.model.places`, below the warehouse (the folder ``warehouse`` in the folder of the
store). So two own places of tables are equal or disjoint, and none contains files of the store
itself. Only an own place is moved or removed, and it is verified just before: no folder between the
warehouse and the place is a symbolic link. The warehouse itself may be a link set by its operator.

A place of any other form was named by a user, and a table there is external. Managed tables that
releases 0.1.0 and 0.2.0 recorded at such places stay there, and their files are never touched.

Folders elsewhere are made only below the *roots* that the operator lists
(`strandline.config.Settings.location_roots`), and never moved or removed.

Rejected: checking whether a place overlaps that of another table or a folder of the store (the
check would have to know each new kind of folder, and links make two texts the same place), and a
marker file in each folder that names its owner (a client that may write files can write markers).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from strandline.errors import InvalidInput, Unavailable, UnsupportedOperation
from strandline.metastore.store.warehouse import FolderRefused, Warehouse
from strandline.model.descriptors import SchemaDescriptor, TableDescriptor, TableKind
from strandline.model.places import DROPPED, Place, place_of_table, places_of_schema

WAREHOUSE_FOLDER = "warehouse"
_PLACES_REMEMBERED = 1024


class StoreFolders(Warehouse):
    """See the module. ``folder`` is that of the store; ``roots`` are absolute paths. Immutable.

    ``warehouse`` is ``folder`` or below it; by default it is `WAREHOUSE_FOLDER` in it. ``marker``
    is the name of a file in it that exists while its file system is mounted. ``has_tables`` says
    whether there is a place in it, so that it must exist.

    ``mode`` are the permission bits of new folders. ``names`` are absolute paths that the folder
    has or had (`strandline.node.store_place`): paths recorded below one of them mean the same in
    ``folder``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        warehouse: Path | None = None,
        marker: str | None = None,
        has_tables: Callable[[], bool] = lambda: False,
        roots: Iterable[str | Path] = (),
        names: Iterable[str] = (),
        mode: int = 0o700,
    ) -> None:
        super().__init__(mode=mode)
        self.folder = folder
        self.warehouse = folder / WAREHOUSE_FOLDER if warehouse is None else warehouse
        self._warehouse_path = str(self.warehouse)
        self._marker = marker and f"{self._warehouse_path}/{marker}"
        self._has_tables = has_tables
        below = self.warehouse.relative_to(folder)
        real = os.path.realpath(folder)
        # Clients may use the real path of the folder, or the path that the node was given.
        self._names = tuple(dict.fromkeys((str(folder), real)))
        self._real_warehouse = os.path.realpath(self.warehouse)
        self._warehouses = tuple(str(Path(name) / below) for name in self._names)
        former = {str(Path(name)) for name in names if os.path.realpath(name) != real}
        # The longest first: one may be below another.
        self._former = tuple(sorted(former - set(self._names), key=len, reverse=True))
        # The same place is looked up several times in a row.
        self._known_place = lru_cache(maxsize=_PLACES_REMEMBERED)(self._find_place)
        self._roots = tuple(os.path.realpath(root) for root in roots)

    # -- texts, places and paths

    def place(self, location: str) -> Place:
        """The place of a text: a stored place, or a location from a client."""
        return self._known_place(location)

    def real_place(self, place: Place) -> Place:
        """The place to which the symbolic links in the path of ``place`` lead now."""
        path = self.path_if_local(place)
        if path is None:
            return place
        real = os.path.realpath(path)
        if _within(real, self._real_warehouse):
            return Place.below(real[len(self._real_warehouse) :].strip("/"))
        return Place(real)

    def place_of_schema(self, schema: SchemaDescriptor) -> Place:
        if not schema.location:  # of release 0.1.0
            return next(places_of_schema(schema.name))
        return self.place(schema.location)

    def place_of_new(self, schema: SchemaDescriptor, name: str) -> Place:
        return place_of_table(self.place_of_schema(schema), name, schema_name=schema.name)

    def location(self, place: Place) -> str:
        """The URI of a place, as Hadoop writes it: the scheme and a path, nothing escaped."""
        if place.is_inside:
            return f"file://{self._warehouse_path}/{place.path}".rstrip("/")
        return f"file://{place.text}" if place.text.startswith("/") else place.text

    def shown(self, location: str) -> str:
        """The URI or path of a stored text, as clients should see it.

        It differs from the text if that is relative to the warehouse, or below a former name of
        the folder.
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

    def named_location(self, table: TableDescriptor) -> str | None:
        """The location of an external table, as `shown`; None if a place is recorded for it."""
        if table.kind is not TableKind.EXTERNAL or table.location is None:
            return None
        return self.shown(table.location)

    def path_text(self, location: str | Place) -> str:
        """See `Warehouse.path_text`. A path below a former name of the folder is mapped into it."""
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
        return self.place(first) == self.place(second)

    def refuse_former(self, location: str | None) -> None:
        """Raise `InvalidInput` for a place below a former name of the folder.

        It would be mapped into this folder, although it may belong to the original of a copy.
        """
        if location and self._former and self.shown(location) != location:
            raise InvalidInput(
                f"{location} is in the former folder of this store, which was moved or copied to "
                f"{self.folder}; name another location"
            )

    def refuse_dropped(self, location: str) -> None:
        """Raise `InvalidInput` for the folder of a dropped table or partition: cleaning deletes it.

        A client may have read it as the location of one that was just dropped.
        """
        place = self.place(location)
        steps = pairwise(place.path.split("/"))
        if place.is_inside and any(
            above == DROPPED and name[:1].isdecimal() for above, name in steps
        ):
            raise InvalidInput(
                f"{location} has the files of a dropped table or partition until cleaning deletes "
                "them; undrop that one, or copy its files and name their location"
            )

    # -- what may be done there

    def is_own_table(self, location: str) -> bool:
        """Whether ``location`` has the form of a table's own place, including dropped tables."""
        return self.place(location).is_of_table

    def is_inside(self, location: str | Place) -> bool:
        """Whether ``location`` is the folder of the store or below it."""
        path = self.path_if_local(location)
        return path is not None and self._is_below_a_name(path)

    def require_in_place(self) -> None:
        """Raise `Unavailable` if the warehouse was moved, or its file system is not mounted.

        In a new folder, or an empty mount point, the folder of a table looks deleted: a rename
        would leave the files behind at the old place, where no table finds them later.
        """
        if self._marker is not None:
            is_away = not os.path.lexists(self._marker)
        else:
            path = self._warehouse_path
            is_away = not os.path.isdir(path) and (
                os.path.islink(path)
                # The first table may have been made meanwhile, and its folder before its place.
                or (self._has_tables() and not os.path.isdir(path))
            )
        if is_away:
            raise Unavailable(
                f"the warehouse {self._warehouse_path} is not in its place; mount its file system,"
                " put the folder back, or restore it from a backup; nothing was changed"
            )

    def verify(self, *places: Place, free_of_links: set[str] | None = None) -> None:
        """Raise `FolderRefused` unless ``places`` are own places without links on their paths.

        Call it just before the folders are moved, made or removed. Raises `Unavailable` as
        `require_in_place` does. ``free_of_links`` collects the folders above the places that were
        checked, so that the next call does not check them again.
        """
        self.require_in_place()
        free = set() if free_of_links is None else free_of_links
        for place in places:
            self._require_own(place)
            self._refuse_links(place, free)

    def _require_own(self, place: Place) -> None:
        if not (place.is_of_table or place.is_of_schema):
            raise FolderRefused(
                f"{self.location(place)} was chosen by a user, so the store does not change it"
            )

    def verify_below(self, location: str, *, table: str) -> None:
        """Raise `FolderRefused` unless ``location`` is below the own place ``table``, with no link.

        For folders of partitions. Raises `Unavailable` as `require_in_place` does, and
        `InvalidInput` if the path is longer than the system allows.
        """
        self.require_in_place()
        inside, base = self.place(location), self.place(table)
        self._require_own(base)
        if not inside.is_inside or not inside.path.startswith(f"{base.path}/"):
            with suppress(UnsupportedOperation):
                self.path_text(location)  # a path that is too long is in no folder
            raise FolderRefused(f"{location} is not in the folder of its table, {table}")
        self._refuse_links(inside, set())

    def may_make(self, location: str | Place) -> bool:
        """Whether a folder may be made there: it is an own place, or below one of the roots."""
        path = self.path_if_local(location)
        if path is None:
            return False
        if self._is_below_a_name(path):
            place = location if isinstance(location, Place) else self.place(location)
            try:
                self.verify(place)
            except FolderRefused:
                return False
            return True
        real = os.path.realpath(path)
        if self._is_below_a_name(real):
            return False
        return any(_within(real, root) for root in self._roots)

    def may_list(self, location: str) -> bool:
        """Whether files there may be counted.

        The store's own data may not, nor, through a symbolic link, the files of another table.
        """
        path = self.path_if_local(location)
        if path is None:
            return False
        place = self.place(location)
        is_inside = place.is_inside and bool(place.path)
        if self._is_below_a_name(path) and not is_inside:
            return False
        real = self.real_place(place)
        return (is_inside and real == place) or not (real.is_inside or self.is_inside(real))

    def _refuse_links(self, place: Place, free_of_links: set[str]) -> None:
        """Raise `FolderRefused` if the place, or a folder above it in the warehouse, is a link."""
        above, path = self._warehouse_path, f"{self._warehouse_path}/{place.path}"
        for part in place.path.split("/")[:-1]:
            above = f"{above}/{part}"
            if above not in free_of_links:
                _refuse_link(above)
                free_of_links.add(above)
        _refuse_link(path)

    def _find_place(self, location: str) -> Place:
        if Place(location).is_inside:
            return Place(location)
        path = self.path_if_local(location)
        if path is None:
            return Place(location.rstrip("/"))
        for warehouse in self._warehouses:
            if _within(path, warehouse):
                return Place.below(path[len(warehouse) :].strip("/"))
        return Place(path)


def _refuse_link(path: str) -> None:
    if os.path.islink(path):
        raise FolderRefused(f"the symbolic link {path} leads to {os.path.realpath(path)}")


def _within(path: str, root: str) -> bool:
    """Whether the path is ``root`` or below it; both are normalized."""
    return path == root or path.startswith(f"{root.rstrip('/')}/")
