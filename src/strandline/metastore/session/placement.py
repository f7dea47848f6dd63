"""Where new schemas and tables are put.

A command carries the places that it decides, so that every node that applies its version finds the
same ones. Whoever sends it may leave them out; they are filled in here, from the catalog of the
present and from what the batch itself does before. A catalog that moves on in between does no harm:
a place is a fact of its own, and any folder that no other table uses will do. Where one does use it
(its own folder could not be moved away), the projection puts the new table beside it.

A managed table follows its name as long as it lies where its name says; what lies elsewhere stays
there when it is renamed. A table with a place that its creator names is an external one, unless
that is the very place that it would get: whatever lies there is the creator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from strandline.catalog import Catalog, Command
from strandline.catalog.commands import (
    AlterTable,
    CreateCluster,
    CreateClusterReplica,
    CreateDatabase,
    CreateFunction,
    CreateSchema,
    CreateTable,
    CreateView,
    CreateZone,
    DropTable,
    RenameSchema,
    RenameTable,
    TableDefinition,
)
from strandline.errors import IllegalChange, InvalidInput, UnsupportedOperation
from strandline.metastore.metastore import Metastore
from strandline.metastore.store.store_folders import StoreFolders
from strandline.model.descriptors import SchemaDescriptor, TableKind
from strandline.model.identifiers import normalize


def completed(metastore: Metastore, commands: Sequence[Command], *, user: str) -> list[Command]:
    """``commands`` with their places filled in; what they create without an owner is ``user``'s."""
    return _Batch(metastore, user).complete(commands)


class _Batch:
    """The places of one batch, as they stand after the commands so far."""

    def __init__(self, metastore: Metastore, user: str) -> None:
        self._metastore = metastore
        self._user = user
        self._known: Catalog | None = None
        self._schemas: dict[str, str] = {}
        self._renamed_schemas: set[str] = set()
        self._tables: dict[tuple[str, str], str | None] = {}

    def complete(self, commands: Sequence[Command]) -> list[Command]:
        return [self._one(command) for command in commands]

    def _one(self, command: Command) -> Command:
        match command:
            case CreateSchema():
                return self._create_schema(command)
            case CreateTable():
                return self._create_table(command)
            case RenameTable():
                return self._rename_table(command)
            case AlterTable():
                return self._alter_table(command)
            case RenameSchema():
                self._rename_schema(command)
            case DropTable():
                self._tables[_key(command.schema, command.table)] = None
            case CreateView(definition=definition) if not definition.owner:
                return replace(command, definition=replace(definition, owner=self._user))
            case (
                CreateCluster(owner="")
                | CreateClusterReplica(owner="")
                | CreateDatabase(owner="")
                | CreateFunction(owner="")
                | CreateZone(owner="")
            ):
                return replace(command, owner=self._user)
        return command

    def _create_schema(self, command: CreateSchema) -> CreateSchema:
        location = command.location or self._metastore.free_schema_location(
            command.name,
            database=command.database,
            moved=normalize(command.name) in self._renamed_schemas,
        )
        self._schemas.setdefault(normalize(command.name), location)
        return replace(command, location=location, owner=command.owner or self._user)

    def _rename_schema(self, command: RenameSchema) -> None:
        old, new = normalize(command.name), normalize(command.new_name)
        self._renamed_schemas.add(old)
        found = self._catalog.schema(command.name, database=command.database)
        location = self._schemas.pop(old, found.location if found else "")
        if location:
            self._schemas[new] = location

    def _create_table(self, command: CreateTable) -> CreateTable:
        definition = replace(command.definition, owner=command.definition.owner or self._user)
        place = None
        if definition.kind is TableKind.MANAGED:
            named = command.managed_location or definition.location
            default = self._default(command.schema, definition.name)
            if named and not self._folders.same(named, default):
                definition = replace(definition, kind=TableKind.EXTERNAL, location=named)
            else:
                place = default
                definition = replace(definition, location=None)
        if definition.kind is TableKind.EXTERNAL:
            self._check_external(definition)
        if self._place(command.schema, definition.name) is None:
            self._tables[_key(command.schema, definition.name)] = place
        return replace(
            command,
            definition=definition,
            managed_location=place,
        )

    def _check_external(self, definition: TableDefinition) -> None:
        if not definition.location:
            raise InvalidInput(f"the external table {definition.name} needs a location")
        with suppress(UnsupportedOperation):
            self._folders.path(definition.location)

    def _alter_table(self, command: AlterTable) -> AlterTable:
        """A managed table that gets a place by name is external from then on, never the reverse."""
        definition = command.definition
        old = self._catalog.table(command.schema, command.table)
        if old is None:
            return command
        place = self._place(command.schema, command.table)
        if definition.kind is TableKind.MANAGED:
            named = definition.location
            if old.kind is TableKind.EXTERNAL:
                raise IllegalChange(
                    f"the external table {command.schema}.{command.table} cannot become a managed"
                    " one: its files were named by a user; create a managed table and copy them"
                )
            if named and (place is None or not self._folders.same(named, place)):
                definition = replace(definition, kind=TableKind.EXTERNAL)
            else:
                definition = replace(definition, location=None)
        elif not definition.location and place is not None:
            definition = replace(definition, location=place)
        if definition.kind is TableKind.EXTERNAL:
            self._check_external(definition)
        return replace(command, definition=definition)

    def _rename_table(self, command: RenameTable) -> RenameTable:
        target = command.new_schema or command.schema
        place = self._place(command.schema, command.table)
        named, default = command.new_location, self._default(target, command.new_name)
        if named and not self._folders.same(named, default):
            raise InvalidInput(
                f"{command.schema}.{command.table} cannot be moved to {named} by renaming it: the"
                " store chooses the folders of its managed tables; leave the location out"
            )
        command = replace(command, new_location=None)
        if place is not None and self._folders.same(
            place, self._default(command.schema, command.table)
        ):
            place = default
            command = replace(command, new_location=place)
        self._tables[_key(command.schema, command.table)] = None
        self._tables[_key(target, command.new_name)] = place
        return command

    def _place(self, schema: str, table: str) -> str | None:
        """Where a managed table lies; None for anything else."""
        if _key(schema, table) in self._tables:
            return self._tables[_key(schema, table)]
        found = self._catalog.table(schema, table)
        if found is None or found.kind is not TableKind.MANAGED:
            return None
        return self._metastore.store.location(found.id)

    def _default(self, schema: str, table: str) -> str:
        """Where a managed table of that name lies unless its creator names a place."""
        location = self._schemas.get(normalize(schema))
        found = self._catalog.schema(schema)
        if found is None or location is not None:
            found = SchemaDescriptor(
                id=0, database_id=0, name=schema, owner="", location=location or ""
            )
        return self._metastore.table_location(found, table)

    @property
    def _folders(self) -> StoreFolders:
        return self._metastore.folders

    @property
    def _catalog(self) -> Catalog:
        """The catalog of the present, with its places; read at most once, and only if needed."""
        if self._known is None:
            self._known = self._metastore.catalogs.present()
            self._metastore.projector.project_up_to(self._known.version)
        return self._known


def _key(schema: str, table: str) -> tuple[str, str]:
    return normalize(schema), normalize(table)
