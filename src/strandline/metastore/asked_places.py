"""What commands say about places, before they are carried out.

A command names a place or none. Without one the store chooses: for a schema when the command is
planned, for a managed table when its version is projected. A place that a client names makes an
external table, unless it is the very place that the table would get; whatever lies there is the
client's. A managed table that is given a place becomes external, never the reverse.

What can be refused is refused here, before anything is appended: a place that belongs to another
schema, one where no folder can be made, one in the folder of a copy's original. A restored table
needs its files: those that were deleted do not come back, and a table without its files would
answer with nothing.

A catalog that moves on before the command is carried out does no harm: a place is a fact of its
own, and where another table has it by then, the projection puts the new one beside it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from strandline.catalog import Catalog, CatalogManager, Command
from strandline.catalog.commands import AlterTable, CreateSchema, CreateTable
from strandline.catalog.undo.command import Undo
from strandline.errors import IllegalChange, InvalidInput, ObjectNotFound, UnsupportedOperation
from strandline.metastore.store.object_store import ObjectStore
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.store_folders import StoreFolders
from strandline.model.descriptors import TableKind
from strandline.model.places import Place, place_of_table, places_of_schema


class _Placed(Protocol):
    """What a metastore knows of places."""

    @property
    def catalogs(self) -> CatalogManager: ...
    @property
    def store(self) -> ObjectStore: ...
    @property
    def projector(self) -> Projector: ...
    @property
    def folders(self) -> StoreFolders: ...


class AskedPlaces:
    """The places that one batch of commands names; see the module."""

    def __init__(self, metastore: _Placed) -> None:
        self._metastore = metastore
        self._folders = metastore.folders
        self._makeable_in: set[str] = set()

    def settle(self, commands: Sequence[Command]) -> list[Command]:
        """The commands, with what they name made a place of their own or an external one.

        Raises `InvalidInput`, `IllegalChange`, `ObjectNotFound`.
        """
        return [self._settle(command) for command in commands]

    def _settle(self, command: Command) -> Command:
        match command:
            case CreateSchema():
                return self._create_schema(command)
            case CreateTable():
                return self._create_table(command)
            case AlterTable():
                return self._alter_table(command)
            case Undo():
                self._refuse_lost_files(command)
        return command

    @cached_property
    def _catalog(self) -> Catalog:
        return self._metastore.catalogs.present()

    def _create_schema(self, command: CreateSchema) -> CreateSchema:
        location = command.location
        if self._catalog.schema(command.name, database=command.database) is not None:
            return replace(command, location="")  # it is refused, or does nothing
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
                    raise InvalidInput(
                        f"schema {command.name} cannot lie at {location}: that is the folder of"
                        f" schema {other.name}; name another place, or none"
                    )
        return replace(command, location=place.text) if place.is_inside else command

    def _create_table(self, command: CreateTable) -> CreateTable:
        definition = asked = command.definition
        if definition.kind is TableKind.MANAGED:
            named = definition.location
            # Without a place that could be the default one, an older catalog does.
            catalog = self._catalog if named else self._metastore.catalogs.latest_catalog()
            default = self._default(catalog, command.schema, definition.name)
            if named and (default is None or self._folders.place(named) != default):
                definition = replace(definition, kind=TableKind.EXTERNAL)
            else:
                definition = replace(definition, location=None) if named else definition
                if default and not catalog.relation(command.schema, definition.name):
                    self._refuse_unmakeable(default)
        if definition.kind is TableKind.EXTERNAL:
            self._refuse_unreachable(definition.location, table=definition.name)
        return command if definition is asked else replace(command, definition=definition)

    def _alter_table(self, command: AlterTable) -> AlterTable:
        definition = command.definition
        old = self._catalog.table(command.schema, command.table)
        if old is None:
            return command
        place = None
        if old.kind is TableKind.MANAGED:
            self._metastore.projector.project_up_to(self._catalog.version)
            place = self._metastore.store.location(old.id)
        named = definition.location
        if definition.kind is TableKind.EXTERNAL:
            definition = replace(definition, location=named or place)
        elif old.kind is TableKind.EXTERNAL:
            raise IllegalChange(
                f"the external table {command.schema}.{command.table} cannot become a managed"
                " one: its files were named by a user; create a managed table and copy them"
            )
        elif named and (place is None or not self._folders.same(named, place)):
            definition = replace(definition, kind=TableKind.EXTERNAL)
        else:
            definition = replace(definition, location=None)
        if definition.kind is TableKind.EXTERNAL:
            self._refuse_unreachable(definition.location, table=definition.name)
        return replace(command, definition=definition)

    def _default(self, catalog: Catalog, schema_name: str, name: str) -> Place | None:
        """Where a managed table of that name would lie; None in a schema that is not there yet."""
        schema = catalog.schema(schema_name)
        if schema is None:
            return None
        place = self._folders.place_of_schema(schema)
        return place_of_table(place, name, schema_name=schema.name)

    def _refuse_unreachable(self, location: str | None, *, table: str | None = None) -> None:
        """Raise `InvalidInput` for no path, and for one in the folder of a copy's original."""
        if not location:
            raise InvalidInput(f"the external table {table} needs a location")
        with suppress(UnsupportedOperation):
            self._folders.path(location)
        self._folders.refuse_former(location)

    def _refuse_unmakeable(self, place: Place) -> None:
        if not self._folders.reaches(place):
            return
        path = self._folders.path_text(place)
        parent = path.rpartition("/")[0]
        # Thousands of tables are made in one folder, which is looked at once.
        if parent not in self._makeable_in and os.access(f"{parent}/", os.W_OK | os.X_OK):
            self._makeable_in.add(parent)
        if parent in self._makeable_in and not os.path.lexists(path):
            return
        if self._folders.may_make(place):
            self._folders.refuse_unmakeable(place)

    def _refuse_lost_files(self, undo: Undo) -> None:
        """Raise `ObjectNotFound` where the files of a table that would come back are gone."""
        alive = self._metastore.catalogs.latest_catalog()
        tables = {
            table.id: table
            for table in undo.restored_tables()
            if table.kind is TableKind.MANAGED and alive.table_by_id(table.id) is None
        }
        if not tables:
            return
        self._metastore.projector.project_up_to(alive.version)
        places = self._metastore.store.places_by_id(tables)
        shared = self._metastore.store.tables_at(places.values())
        for table in tables.values():
            place = places.get(table.id)
            if place is None or (self._folders.reaches(place) and not self._folders.exists(place)):
                raise ObjectNotFound(
                    f"{undo.purpose} cannot be undone: the files of table {table.name} (id"
                    f" {table.id}) were deleted, by PURGE or by cleaning; older versions still tell"
                    " its columns"
                )
            if shared[place] != {table.id}:
                raise ObjectNotFound(
                    f"{undo.purpose} cannot be undone: the folder of table {table.name} (id"
                    f" {table.id}), {self._folders.location(place)}, belongs to another table by"
                    " now"
                )
