"""The places that commands request, resolved before the commands are executed.

A command may name a place. If it does not, the store chooses one: for a schema when the command is
planned, for a managed table when its version is projected. A place named by a client makes an
external table, unless it is the place that a managed table would get anyway; files at a place named
by a client belong to the client. A managed table that is given another place becomes external. An
external table never becomes managed.

Bad places are refused here, before anything is appended: a place that belongs to another schema, a
place where no folder can be made, a place with the files of an external table, a place in the
folder of a copy's original, and a place in the folder of a schema where the user may not create
tables. A table whose files were deleted cannot be restored, since it would read as empty.

It does no harm if the catalog changes before the command is executed: places are not part of the
catalog, and if another table has the place by then, the projection puts the new table beside it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from strandline.catalog import Catalog, CatalogManager, Command
from strandline.catalog.commands import AlterTable, CreateSchema, CreateTable
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.access import Access
from strandline.catalog.undo.command import Undo
from strandline.catalog.undo.net import value_of
from strandline.errors import (
    DeadlineExceeded,
    IllegalChange,
    InvalidInput,
    ObjectNotFound,
    PermissionDenied,
    StrandlineError,
    UnsupportedOperation,
)
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.rows import PartitionRow, RowKind
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import relative_location, resolve_location
from strandline.model.descriptors import SchemaDescriptor, TableKind
from strandline.model.places import Place, places_of_schema
from strandline.model.privileges import Privilege

WHY_FILES_ARE_GONE = (
    "PURGE, cleaning or another program deleted them, or a new table took over their folder"
)


def require_places(access: Access, folders: StoreFolders, locations: Iterable[str]) -> None:
    """Raise `PermissionDenied` for a place in the folder of a schema where the user may not create.

    A table or partition there would show the files of that schema, and take the place of a table of
    its own. A symbolic link, such as ``/proc/self/root``, counts as the folder it leads to now.
    """
    if access.free:
        return
    named = set(map(folders.place, locations))
    reached = named | set(map(folders.real_place, named))
    inside = {place.path for place in reached if place.is_inside}
    if not inside:
        return
    schemas: defaultdict[str, list[SchemaDescriptor]] = defaultdict(list)
    for schema in access.catalog.all_schemas():
        home, _, _ = folders.place_of_new(schema, "t").path.rpartition("/")
        schemas[home].append(schema)
    for folder in sorted({path.partition("/")[0] for path in inside}):
        # The folder of the schema "default" has those of all others.
        for schema in schemas.get(folder) or schemas[""]:
            access.require(Privilege.USAGE | Privilege.CREATE, schema)


@dataclass(frozen=True, slots=True)
class _BadPlace:
    """Refuses its batch for ``reason``, which may tell about the files and tables of others."""

    reason: StrandlineError

    def plan(self, planning: Planning) -> None:
        raise self.reason


class RequestedPlaces:
    """Resolves the places that one batch of commands of ``user`` names; see the module.

    ``deadline`` is an instant of `time.monotonic`.
    """

    def __init__(
        self,
        catalogs: CatalogManager,
        store: SqlObjectStore,
        projector: Projector,
        folders: StoreFolders,
        *,
        user: str,
        deadline: float,
    ) -> None:
        self._user = user
        self._catalogs = catalogs
        self._store = store
        self._projector = projector
        self._folders = folders
        self._deadline = deadline
        self._makeable_in: set[str] = set()

    def resolve(self, commands: Sequence[Command]) -> list[Command]:
        """Return the commands, each with a place of the store's own or an external location.

        If a place is bad, the privileges for the commands are checked before the user learns that:
        then the last command returned raises the reason. Raises `InvalidInput`, `IllegalChange`,
        `ObjectNotFound`, `UnsupportedOperation`, `DeadlineExceeded`, and `Unavailable` if the
        warehouse is not mounted.
        """
        self._folders.require_in_place()
        try:
            return [self._resolved(command) for command in commands]
        except (
            IllegalChange,
            InvalidInput,
            ObjectNotFound,
            PermissionDenied,
            UnsupportedOperation,
        ) as reason:
            if Access(self._catalog, self._user).free:
                raise
            return [*commands, _BadPlace(reason)]

    def _resolved(self, command: Command) -> Command:
        match command:
            case CreateSchema():
                return self._create_schema(command)
            case CreateTable():
                return self._create_table(command)
            case AlterTable():
                return self._alter_table(command)
            case Undo():
                self._refuse_lost_files(command)
                self._refuse_stranded_partitions(command)
        return command

    @cached_property
    def _catalog(self) -> Catalog:
        return self._catalogs.present()

    @cached_property
    def _access(self) -> Access:
        latest = Access(self._catalogs.latest_catalog(), self._user)
        # The present catalog may have to be read from the store.
        return latest if latest.free else Access(self._catalog, self._user)

    def _create_schema(self, command: CreateSchema) -> CreateSchema:
        location = command.location
        if self._catalog.schema(command.name, database=command.database) is not None:
            return replace(command, location="")  # the command fails, or does nothing
        default = next(places_of_schema(command.name))
        if location:
            self._refuse_unreachable(location)
        place = self._folders.place(location) if location else default
        self._refuse_unmakeable(place)
        if place == default:
            return replace(command, location="")
        if place.is_of_schema:
            for other in self._catalog.all_schemas():
                if self._folders.place_of_schema(other) == place:
                    is_reached = self._access.reaches(other)
                    holder = f"schema {other.name}" if is_reached else "another schema"
                    raise InvalidInput(
                        f"schema {command.name} cannot be located at {location}: that is the "
                        f"folder of {holder}; name another location, or leave it out"
                    )
        return replace(command, location=place.text) if place.is_inside else command

    def _create_table(self, command: CreateTable) -> CreateTable:
        definition = original = command.definition
        if definition.kind is TableKind.MANAGED:
            requested_location = definition.location
            # An older catalog is enough, unless a named place must be compared with the default.
            catalog = self._catalog if requested_location else self._catalogs.latest_catalog()
            schema = catalog.schema(command.schema)
            default = schema and self._folders.place_of_new(schema, definition.name)
            if requested_location and self._folders.place(requested_location) != default:
                definition = replace(definition, kind=TableKind.EXTERNAL)
            else:
                if requested_location:
                    definition = replace(definition, location=None)
                if schema and default and not catalog.relation_in(schema.id, definition.name):
                    self._refuse_unmakeable(default)
                    self._refuse_external(command, default, catalog)
        if definition.kind is TableKind.EXTERNAL:
            self._refuse_unreachable(definition.location, table=definition.name)
            require_places(self._access, self._folders, [definition.location or ""])
        return command if definition is original else replace(command, definition=definition)

    def _alter_table(self, command: AlterTable) -> AlterTable:
        definition = command.definition
        old = self._catalog.table(command.schema, command.table)
        if old is None or (old.kind, definition.kind) == (TableKind.EXTERNAL, TableKind.MANAGED):
            return command  # which fails
        place = None
        if old.kind is TableKind.MANAGED:
            self._project_up_to(self._catalog)
            place = self._store.location(old.id)
        requested_location = definition.location
        if definition.kind is TableKind.EXTERNAL:
            definition = replace(definition, location=requested_location or place)
        elif requested_location and (
            place is None or not self._folders.same(requested_location, place)
        ):
            definition = replace(definition, kind=TableKind.EXTERNAL)
        else:
            definition = replace(definition, location=None)
        if definition.kind is TableKind.EXTERNAL:
            self._refuse_unreachable(definition.location, table=definition.name)
        named, present = definition.location, place or old.location
        is_moved = named and present and not self._folders.same(named, present)
        if named and is_moved:
            require_places(self._access, self._folders, [named])
        if old.partition_columns and is_moved:
            raise UnsupportedOperation(
                f"{command.schema}.{command.table} has partitions, whose places this command does "
                "not keep; use ALTER TABLE … SET LOCATION of Spark"
            )
        if old.transactional and old.location and named and self._folders.same(named, old.location):
            definition = replace(definition, location=old.location)  # the same in other words
        return replace(command, definition=definition)

    def _project_up_to(self, catalog: Catalog) -> None:
        """Wait until the places of the tables in ``catalog`` are known."""
        seconds_left = self._deadline - time.monotonic()
        try:
            self._projector.project_up_to(catalog.version, timeout=seconds_left)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                "the folders of earlier changes were not made within the time allowed; nothing was "
                "changed by this one, try again"
            ) from error

    def _refuse_unreachable(self, location: str | None, *, table: str | None = None) -> None:
        """Raise `InvalidInput` unless it is a path, outside of former and dropped folders."""
        if not location:
            raise InvalidInput(f"the external table {table} needs a location")
        with suppress(UnsupportedOperation):
            self._folders.path(location)
        self._folders.refuse_former(location)
        self._folders.refuse_dropped(location)

    def _refuse_unmakeable(self, place: Place) -> None:
        path = self._folders.path_if_local(place)
        if path is None:
            return
        parent = path.rpartition("/")[0]
        # Thousands of tables may be made in one folder, which is checked once.
        if parent not in self._makeable_in and os.access(f"{parent}/", os.W_OK | os.X_OK):
            self._makeable_in.add(parent)
        if parent in self._makeable_in and not os.path.lexists(path):
            return
        if self._folders.may_make(place):
            self._folders.refuse_unmakeable(place)

    def _refuse_external(self, command: CreateTable, place: Place, catalog: Catalog) -> None:
        """Raise `InvalidInput` if an external table has its files at ``place`` or below.

        A managed table there would show these files, and take them along when it is dropped.
        """
        if not self._folders.exists(place):
            return
        folder = place.path.rpartition("/")[2].encode()
        for stored in catalog.contents.objects("table"):
            if folder not in stored.data:  # this costs little, and few have to be decoded
                continue
            location = self._folders.named_location(stored.value)
            at = None if location is None else self._folders.place(location)
            if at is None or not (at.is_inside and f"{at.path}/".startswith(f"{place.path}/")):
                continue
            if command.instead_of is None and self._store.tables_at([place]):
                return  # the projection chooses a place beside it
            schema, holder = catalog.schema_by_id(stored.value.schema_id), "an external table"
            if schema is not None and self._access.reaches(schema):
                holder = f"the external table {catalog.qualified_name(stored.value)}"
            raise InvalidInput(
                f"{command.definition.name} cannot be created at {self._folders.location(place)}, "
                f"where {holder} has its files; give that one another location, or choose another "
                "name"
            )

    def _refuse_stranded_partitions(self, undo: Undo) -> None:
        """Raise `IllegalChange` if the undo moves a table, and a partition would lose its files.

        The place of a partition is stored relative to the folder of a managed table, which it then
        follows, or in full.
        """
        for target, net in undo.net.items():
            last_record = undo.last_records[target]
            if target.kind != "table" or net.old in (None, last_record):
                continue
            back, now = net.old_value, value_of(target.kind, last_record)
            place = self._store.location(back.id)
            is_moved = (back.kind, back.location) != (now.kind, now.location)
            if not back.partition_columns or not is_moved or place is None:
                continue
            for row in self._store.rows(back.id, RowKind.PARTITION, write_ids=None):
                location = row.as_(PartitionRow).location
                is_relative = resolve_location(place, location) != location
                is_below = relative_location(place, location) != location
                if is_below if back.kind is TableKind.MANAGED else is_relative:
                    first = "undo only the drop, then " if net.new is None else ""
                    raise IllegalChange(
                        f"{undo.purpose} cannot be undone: partition {row.name} of {back.name}, now"
                        f" in {resolve_location(place, location)}, would lose its files; {first}"
                        "name the old location with ALTER TABLE … SET LOCATION instead"
                    )

    def _refuse_lost_files(self, undo: Undo) -> None:
        """Raise `ObjectNotFound` if the files of a table to be restored are gone."""
        latest_catalog = self._catalogs.latest_catalog()
        tables = {
            table.id: table
            for table in undo.restored_tables()
            if table.kind is TableKind.MANAGED and latest_catalog.table_by_id(table.id) is None
        }
        if not tables:
            return
        self._project_up_to(latest_catalog)
        places = self._store.places_by_id(tables)
        shared = self._store.tables_at(places.values())
        for table in tables.values():
            place = places.get(table.id)
            if place is None or self._folders.is_missing(place):
                raise ObjectNotFound(
                    f"{undo.purpose} cannot be undone: the files of table {table.name} (id "
                    f"{table.id}) are gone: {WHY_FILES_ARE_GONE}; older versions still show its "
                    "columns"
                )
            if shared[place] != {table.id}:
                raise ObjectNotFound(
                    f"{undo.purpose} cannot be undone: the folder of table {table.name} (id "
                    f"{table.id}), {self._folders.location(place)}, now belongs to another table"
                )
