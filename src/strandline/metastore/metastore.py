"""`Metastore`: one store's catalog, transactions and rows behind one face.

The protocols (Hive Thrift, HTTP, a session in process) differ in how they speak; what they ask for
is the same. `strandline.metastore.reader.Reader` reads it. What they change is changed here: DDL is
carried out with all its effects.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count
from urllib.parse import quote

from strandline.catalog import DEFAULT_DATABASE, Applied, Catalog, CatalogManager, Command
from strandline.catalog.commands import (
    AlterTable,
    CreateSchema,
    CreateTable,
    RenameTable,
)
from strandline.catalog.undo.command import HistoryMoved, Undo
from strandline.catalog.undo.reading import visible_undo, visible_undrop
from strandline.catalog.verbs import describe_all
from strandline.clock import Timestamp
from strandline.errors import (
    InvalidInput,
    ObjectNotFound,
    UnsupportedOperation,
)
from strandline.logs import kept
from strandline.metastore.store.object_store import ObjectStore
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.store_folders import SCHEMA_SUFFIX, StoreFolders
from strandline.metastore.undo_places import places_of_undo
from strandline.model.descriptors import SchemaDescriptor, TableDescriptor, TableKind
from strandline.transactions import Hold, Transactions

logger = logging.getLogger("strandline.ddl")

_LONGEST_FOLDER_NAME = 240
"""Characters, all ASCII; the rest of 255 is for what stands behind the name of a schema."""
_HASH_DIGITS = 16


class Metastore:
    """See the module. Safe to use from several threads."""

    def __init__(
        self,
        *,
        catalogs: CatalogManager,
        transactions: Transactions,
        store: ObjectStore,
        projector: Projector,
        warehouse: str,
        folders: StoreFolders,
    ) -> None:
        self.catalogs = catalogs
        self.transactions = transactions
        self.store = store
        self.projector = projector
        self.warehouse = warehouse.rstrip("/")
        self.folders = folders

    def execute(
        self,
        commands: Command | Sequence[Command],
        *,
        author: str,
        identity: str | None = None,
        timeout: float = 30.0,
    ) -> Applied:
        """Carry out DDL; when it returns, its folders and notification events are there too.

        ``identity`` is whose privileges it is judged by; None is the program itself.
        """
        self._refuse_places(commands)
        applied = self.catalogs.execute(commands, author=author, identity=identity, timeout=timeout)
        if applied.actions:
            logger.info(
                "version %d: %s",
                applied.version,
                describe_all(applied.actions),
                extra=kept(user=author, catalog_version=applied.version),
            )
        self.projector.project_up_to(applied.version)
        return applied

    def _refuse_places(self, commands: Command | Sequence[Command]) -> None:
        """Raise `InvalidInput` for places that no managed table can have, or no folder."""
        catalog = self.catalogs.latest_catalog()
        for command in commands if isinstance(commands, Sequence) else [commands]:
            match command:
                case CreateSchema(name=name, location=place, database=database) if place:
                    self.folders.refuse_former(place)
                    if catalog.schema(name, database=database) is None:
                        self._refuse_taken(catalog, place, schema=name)
                        self._refuse_unmakeable(place)
                case (
                    CreateTable(definition=table, managed_location=None)
                    | AlterTable(definition=table)
                ):
                    self.folders.refuse_former(table.location)
                case CreateTable(schema=schema, definition=table, managed_location=place) if place:
                    if not self.folders.is_own_table(place):
                        raise InvalidInput(_not_own(place, table=table.name))
                    if catalog.relation(schema, table.name) is None:
                        self._refuse_unmakeable(place)
                case RenameTable(new_name=name, new_location=place) if place:
                    if not self.folders.is_own_table(place):
                        raise InvalidInput(_not_own(place, table=name))
                case _:
                    pass

    def _refuse_unmakeable(self, place: str) -> None:
        with suppress(UnsupportedOperation):
            self.folders.path(place)
        if self.folders.may_make(place):
            self.folders.refuse_unmakeable(place)

    def _refuse_taken(self, catalog: Catalog, place: str, *, schema: str) -> None:
        """Raise `InvalidInput` where another schema has that folder of the store."""
        if not self.folders.is_own_schema(place):
            return
        for other in catalog.all_schemas():
            if other.location and self.folders.same(other.location, place):
                raise InvalidInput(
                    f"schema {schema} cannot lie at {place}: that is the folder of schema"
                    f" {other.name}; name another place, or none"
                )

    def undo(
        self,
        version: int,
        *,
        through: int | None = None,
        author: str,
        identity: str | None = None,
        timeout: float = 30.0,
    ) -> Applied:
        """Take back what ``version`` did, in a new version (`strandline.catalog.undo`).

        With ``through`` what all versions from ``version`` to that one did, as one change.
        Raises `VersionNotFound` where it does not exist or was trimmed, `ObjectNotFound` where the
        files of a table that it dropped are gone, and what `Undo` raises.
        """
        return self._take_back(
            lambda: visible_undo(self.catalogs, version, through=through, identity=identity),
            author=author,
            identity=identity,
            timeout=timeout,
        )

    def undrop(
        self,
        name: str,
        *,
        kind: str = "table",
        author: str,
        identity: str | None = None,
        timeout: float = 30.0,
    ) -> Applied:
        """Bring the table (or view, or function) ``schema.name`` back that was dropped last.

        For the ``kind`` schema, ``name`` is the schema's, and what was dropped from it comes too.

        With its id, its rows or files, and the indexes that were dropped with it. Raises
        `AlreadyExists`, `ObjectNotFound` where none was dropped, and what `undo` raises.
        """
        return self._take_back(
            lambda: visible_undrop(self.catalogs, kind, name, identity=identity),
            author=author,
            identity=identity,
            timeout=timeout,
        )

    def _take_back(
        self, read: Callable[[], Undo], *, author: str, identity: str | None, timeout: float
    ) -> Applied:
        deadline = time.monotonic() + timeout
        while True:
            undo = read()
            undo = replace(undo, places=places_of_undo(self, undo))
            left = max(0.0, deadline - time.monotonic())
            try:
                return self.execute(undo, author=author, identity=identity, timeout=left)
            except HistoryMoved:
                if time.monotonic() >= deadline:
                    raise

    def hold(
        self, kind: str, owner: str, *, at: Timestamp, ttl_ms: int, user: str | None = None
    ) -> Hold:
        """Keep the history from ``at`` on, of rows and of the catalog, for ``ttl_ms``.

        Raises `VersionNotFound` where one of them was trimmed already.
        """
        self.catalogs.sync()
        self.catalogs.active_catalog(at)
        return self.transactions.holds.acquire(kind, owner, at=at, ttl_ms=ttl_ms, user=user)

    def compact(self, version: int) -> bool:
        """Trim the catalog's history below ``version``; False if it was trimmed there already.

        Raises `VersionNotFound`, and `Conflict` where an open transaction or a hold still needs an
        older version, naming it; `Unavailable` while a version to be trimmed is not carried out.
        """
        catalog = self.catalogs.catalog(version)
        if version <= self.catalogs.earliest_catalog().version:
            return self.catalogs.compact(version)
        self.catalogs.check_active_everywhere(catalog)  # else the watermark would rise too far
        # What is trimmed can never be projected any more, and would stop all that comes after.
        self.projector.project_up_to(version)
        # The watermark first: a hold that is granted from here on lies above it.
        self.transactions.holds.raise_low_watermark(catalog.time)
        return self.catalogs.compact(version)

    def location(self, table: TableDescriptor) -> str:
        """The URI of the folder where the files of ``table`` lie now."""
        if table.kind is TableKind.EXTERNAL and table.location is not None:
            return self.folders.shown(table.location)
        location = self.store.location(table.id)
        if location is None:
            # Another caller's DDL is in the catalog and about to be carried out: do it here.
            self.projector.project_up_to(self.catalogs.latest_catalog().version)
            location = self.store.location(table.id)
        if location is None:
            raise ObjectNotFound(
                f"the place of table {table.name!r} (id {table.id}) is unknown; its files "
                "were cleaned up"
            )
        return location

    def free_schema_location(
        self, name: str, *, database: str = DEFAULT_DATABASE, moved: bool = False
    ) -> str:
        """The URI of the folder that a new schema gets: one that no other schema has.

        A schema that was renamed keeps its folder, which is called as the schema was. ``moved``
        says that the schema of that name has just been renamed itself.
        """
        catalog = self.catalogs.present()
        present = None if moved else catalog.schema(name, database=database)
        taken = {
            _place(self.location_of_schema(one))
            for one in catalog.all_schemas()
            if present is None or one.id != present.id
        }
        first = self.schema_location(name)
        numbered = (f"{first.removesuffix('.db')}~{number}.db" for number in count(2))
        return next(one for one in chain([first], numbered) if _place(one) not in taken)

    def schema_location(self, name: str) -> str:
        """The URI of the folder that a new schema gets unless its creator names one."""
        return f"{self.warehouse}/{_folder_name(name)}.db"

    def location_of_schema(self, schema: SchemaDescriptor) -> str:
        """The URI of the folder of ``schema``."""
        if schema.location:
            return self.folders.shown(schema.location)
        return self.schema_location(schema.name)

    def table_location(self, schema: SchemaDescriptor, name: str) -> str:
        """The URI of the folder that a managed table of that name gets.

        It is an own place of the store (`strandline.metastore.store.store_folders`): in the folder
        of its schema if that is one, else in the folder that such a schema would get.
        """
        parent = self.location_of_schema(schema)
        if not self.folders.is_own_schema(parent):
            parent = self.schema_location(schema.name)
        return self._in_schema(parent, name)

    def expected_location(self, schema: SchemaDescriptor, name: str) -> str:
        """The URI of the folder where a Hive client that names no place expects its new table.

        It may have written there already: in the folder of the schema, wherever that is.
        """
        return self._in_schema(self.location_of_schema(schema), name)

    def _in_schema(self, parent: str, name: str) -> str:
        folder = _folder_name(name)
        if folder.endswith(SCHEMA_SUFFIX):  # only folders of schemas do
            folder = f"{folder.removesuffix(SCHEMA_SUFFIX)}%2E{SCHEMA_SUFFIX[1:]}"
        return f"{parent.rstrip('/')}/{folder}"


def _place(location: str) -> str:
    """A location in one of the two ways in which the URI of a local file is written."""
    return location.rstrip("/").replace("file:///", "file:/", 1)


def _not_own(place: str, *, table: str) -> str:
    return (
        f"the managed table {table} cannot lie at {place}: the store chooses the folders of its"
        " managed tables; leave the location out, or create an external table there"
    )


def _folder_name(name: str) -> str:
    """A name as one part of a path: lower case, with nothing in it that leads elsewhere.

    A leading dot is escaped too: such folders are ours (``.dropped``) or mean another one (``..``).
    What would be too long for a file system ends in a hash of the name.
    """
    escaped = quote(name.lower(), safe="", errors="surrogatepass")
    if len(escaped) > _LONGEST_FOLDER_NAME:
        digest = hashlib.sha256(escaped.encode()).hexdigest()[:_HASH_DIGITS]
        kept = re.sub("%.?$", "", escaped[: _LONGEST_FOLDER_NAME - _HASH_DIGITS - 1])
        escaped = f"{kept}~{digest}"
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped
