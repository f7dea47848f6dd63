"""ALTER TABLE by a client that sends the whole new table, as one command of the catalog.

Hive's clients read a table, change a field and send everything back. They mean the difference to
the present table. The command therefore computes that difference on the catalog that the change is
validated against. It also checks there the one condition that such a client can set: that a
parameter still has the value that the client read. An Iceberg commit is exactly such an alter, and
is therefore one compare-and-set.

The caller passes the object store's facts about the table: its location and counted parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from strandline.catalog import Catalog, Relation
from strandline.catalog.commands import (
    AlterTable,
    AlterView,
    ColumnDefinition,
    RenameTable,
    TableDefinition,
)
from strandline.catalog.commands.columns import check_new_type, refuse_field_change
from strandline.catalog.planning import Planning
from strandline.errors import IllegalChange, WriteConflict
from strandline.metastore.hive.names import present_schema, same_location
from strandline.metastore.hive.parameters import DERIVED, TakenSchema, show_last_change, take_schema
from strandline.metastore.hive.session_tables import completed, completed_view, without_completion
from strandline.metastore.hive.snapshot_views import shown_as_view
from strandline.metastore.hive.table_structs import (
    ClientTable,
    read_table,
    table_struct,
    view_struct,
)
from strandline.metastore.hive.transactional_tables import redefined
from strandline.metastore.table_parameters import SCHEMA
from strandline.model.descriptors import (
    ColumnDescriptor,
    Properties,
    SchemaDescriptor,
    TableDescriptor,
    TableKind,
    ViewDescriptor,
)
from strandline.model.identifiers import normalize

_METADATA, _PREVIOUS_METADATA = "metadata_location", "previous_metadata_location"


@dataclass(frozen=True, kw_only=True)
class AlterRelation:
    """The command. ``request`` is the client's ``Table``; ``location`` is None for views.

    ``place`` returns the default location of a table in a schema. ``expected`` is a parameter and
    the value that it must have now.
    """

    schema: str
    name: str
    relation_id: int
    request: Mapping[str, Any]
    location: str | None
    counted: Properties
    expected: tuple[str, str | None] | None
    place: Callable[[SchemaDescriptor, str], str]

    @property
    def new_schema(self) -> str:
        """The schema that the client names; the user must reach it, as in `RenameTable`."""
        return present_schema(self.request.get("dbName") or self.schema)

    def plan(self, planning: Planning) -> None:
        """Raises `IllegalChange`, `InvalidInput`, `UnsupportedOperation`, `WriteConflict`."""
        old = planning.catalog.relation(self.schema, self.name)
        if old is None:
            raise IllegalChange(f"{self.schema}.{self.name} table not found")
        if old.id != self.relation_id:
            raise WriteConflict(
                f"{self.schema}.{self.name} was dropped and created again meanwhile; read it again"
            )
        shown = self._shown(old)
        show_last_change(shown["parameters"], planning.catalog.updated(old))
        self._check_expected(shown["parameters"])
        target = self._target(planning, old)
        next_location = self._next_location(planning.catalog, old, target)
        default_place = None
        if target is not None and isinstance(old, TableDescriptor):
            is_managed = old.kind is TableKind.MANAGED
            default_place = self.place(target, self._new_name()) if is_managed else None
        requested = self.wanted(old, shown=shown, default_place=default_place)
        if isinstance(old, ViewDescriptor):
            self._alter_view(planning, old, requested)
        else:
            self._alter_table(planning, old, requested, next_location)
        if target is not None:
            RenameTable(
                schema=self.schema,
                table=old.name,
                new_name=self._new_name(),
                new_schema=target.name,
            ).plan(planning)

    def wanted(
        self,
        old: Relation,
        *,
        shown: Mapping[str, Any] | None = None,
        default_place: str | None = None,
    ) -> ClientTable:
        return read_table(
            self.request,
            default_location=self.location or "file:/",
            old=old,
            shown=shown,
            default_place=default_place,
            taken=self._taken,
        )

    @cached_property
    def _taken(self) -> TakenSchema:
        """Decoded once: the caller reads the request before all DDL waits for the planning."""
        return take_schema(self.request.get("parameters") or {})

    def relocates(self, catalog: Catalog, old: TableDescriptor) -> bool:
        """Whether the client names another folder, and not the one of a new name."""
        requested = (self.request.get("sd") or {}).get("location")
        if requested is None or self.location is None or same_location(requested, self.location):
            return False
        following = self._next_location(catalog, old, catalog.schema(self.new_schema))
        return following is None or not same_location(requested, following)

    def _new_name(self) -> str:
        return str(self.request.get("tableName", "")).lower()

    def _check_expected(self, shown: Mapping[str, str]) -> None:
        if self.expected is None:
            self._check_iceberg_base(shown)
            return
        key, value = self.expected
        current = shown.get(key)
        if current != value:
            raise WriteConflict(
                f"The table has been modified. The parameter value for key '{key}' is "
                f"'{'null' if current is None else current}'. The expected was value was "
                f"'{'null' if value is None else value}'"
            )

    def _check_iceberg_base(self, shown: Mapping[str, str]) -> None:
        """Refuse an Iceberg commit that is based on another state of the table.

        The client takes a lock to prevent that. If the lock timed out while the client slept,
        the commit in between would be lost silently.
        """
        sent: Mapping[str, str] = self.request.get("parameters") or {}
        new, base = sent.get(_METADATA), sent.get(_PREVIOUS_METADATA)
        if new is None or base is None:
            return
        current = shown.get(_METADATA)
        if current not in (None, new, base):
            raise WriteConflict(
                f"The table has been modified. Its {_METADATA} is '{current}', and the commit was "
                f"made on '{base}'; read the table again, and commit again"
            )

    def _shown(self, old: Relation) -> Mapping[str, Any]:
        if isinstance(old, ViewDescriptor):
            return view_struct(old, schema=self.schema)
        location = self.location or "file:/"
        if old.transactional:
            return shown_as_view(old, schema=self.schema)
        return table_struct(old, schema=self.schema, location=location, counted=self.counted)

    # -- rename

    def _target(self, planning: Planning, old: Relation) -> SchemaDescriptor | None:
        """Return the schema into which the relation is renamed, or None if it keeps its name."""
        schema = self.new_schema
        if schema == self.schema and self._new_name() == old.name.lower():
            return None
        target = planning.catalog.schema(schema)
        if target is None:
            raise IllegalChange(
                f"Unable to change partition or table. Database {schema} does not exist"
            )
        holder = planning.catalog.relation(schema, self._new_name())
        if holder is not None and holder.id != old.id:
            raise IllegalChange(f"new table {schema}.{self._new_name()} already exists")
        return target

    def _next_location(
        self, catalog: Catalog, old: Relation, target: SchemaDescriptor | None
    ) -> str | None:
        """Return the new location of a managed table in its default location; None if it stays."""
        home = catalog.schema(self.schema)
        if target is None or home is None or self.location is None:
            return None
        if not isinstance(old, TableDescriptor) or old.kind is not TableKind.MANAGED:
            return None
        default = self.place(home, old.name)
        requested_location = (self.request.get("sd") or {}).get("location")
        following = self.place(target, self._new_name())
        stays = not same_location(self.location, default) or (
            requested_location is not None
            and not same_location(requested_location, self.location)
            and not same_location(requested_location, following)
        )
        return None if stays else following

    # -- the rest

    def _alter_view(self, planning: Planning, old: ViewDescriptor, requested: ClientTable) -> None:
        if isinstance(requested.definition, TableDefinition):
            raise IllegalChange(f"{self.schema}.{old.name} is a view and cannot become a table")
        shown = completed_view(old, schema=self.schema)
        definition = replace(requested.definition, name=old.name)
        definition = without_completion(definition, old=old, shown=shown)
        AlterView(schema=self.schema, view=old.name, definition=definition).plan(planning)

    def _alter_table(
        self,
        planning: Planning,
        old: TableDescriptor,
        requested: ClientTable,
        next_location: str | None,
    ) -> None:
        if old.transactional:
            name = f"{self.schema}.{old.name}"
            definition = redefined(old, self.request, requested, name=name)
        elif isinstance(requested.definition, TableDefinition):
            definition = replace(requested.definition, name=old.name)
            definition = self._placed(old, definition, requested.location, next_location)
            _refuse_incompatible(old, definition.columns)
        else:
            raise IllegalChange(f"{self.schema}.{old.name} is a table and cannot become a view")
        if _sends_defaults(old, definition):
            definition = replace(definition, any_default=True)
        else:
            columns = _with_defaults(old, definition.columns)
            definition = replace(definition, columns=columns)
        shown = completed(old)
        definition = without_completion(definition, old=old, shown=shown)
        alter = AlterTable(schema=self.schema, table=old.name, definition=definition)
        alter.plan(planning, shown_storage=shown.storage)

    def _placed(
        self,
        old: TableDescriptor,
        definition: TableDefinition,
        requested_location: str | None,
        next_location: str | None,
    ) -> TableDefinition:
        """SET LOCATION makes a managed table external, because a user named the files."""
        if TableKind.EXTERNAL in (old.kind, definition.kind) or requested_location is None:
            return definition
        places = [place for place in (self.location, next_location) if place is not None]
        if any(same_location(requested_location, place) for place in places):
            return definition
        return replace(definition, kind=TableKind.EXTERNAL, location=requested_location)


def _sends_defaults(old: TableDescriptor, new: TableDefinition) -> bool:
    """Whether the client saw and sends the defaults. Only Spark does, in its schema's text."""
    schemas = (dict(completed(old).properties).get(SCHEMA), dict(new.properties).get(SCHEMA))
    return not old.transactional and schemas == (DERIVED, DERIVED)


def _by_name(table: TableDescriptor) -> dict[str, ColumnDescriptor]:
    return {normalize(column.name): column for column in table.columns}


def _with_defaults(
    old: TableDescriptor, columns: tuple[ColumnDefinition, ...]
) -> tuple[ColumnDefinition, ...]:
    """Return the columns with their old defaults: the client was not shown the defaults."""
    defaults = {name: column.default for name, column in _by_name(old).items()}
    return tuple(
        replace(column, default=defaults.get(normalize(column.name)))
        if column.default is None
        else column
        for column in columns
    )


def _refuse_incompatible(old: TableDescriptor, columns: tuple[ColumnDefinition, ...]) -> None:
    incompatible = []
    old_columns = _by_name(old)
    for column in columns:
        old_column = old_columns.get(normalize(column.name))
        if old_column is None or old_column.id in old.partition_columns:
            continue
        try:
            check_new_type(old, old_column.type, column.type)
            refuse_field_change(old, old_column, column.type)
        except IllegalChange:
            incompatible.append(column.name.lower())
    if incompatible:
        raise IllegalChange(
            "The following columns have types incompatible with the existing columns in their "
            "respective positions :\n" + ",".join(incompatible)
        )
