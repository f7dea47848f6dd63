"""Commands on tables as a whole.

A primary key has an index that exists from the table's first version to its last. Unless the client
names the index, its name is derived from the table's name and follows it when the table is renamed.
A name that the client gave stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strandline.catalog.catalog import DEFAULT_ZONE_NAME, Relation
from strandline.catalog.commands.column_definition import (
    check_columns,
    column_ids,
    redefine_columns,
    refuse_unspelled,
)
from strandline.catalog.commands.columns import check_redefinition
from strandline.catalog.commands.indexes import give_indexes, index_columns, put_index, remove_index
from strandline.catalog.commands.table_definition import (
    TableDefinition,
    check_stale_rows,
    checked,
    describe,
    first_columns,
    generated_key_name,
    partition_column_ids,
    partitioning_of,
    with_columns,
)
from strandline.catalog.configuration import MAX_TABLES
from strandline.catalog.kinds import kind_of
from strandline.catalog.planning import Planning, changed_parts, must_exist, refuse_reserved
from strandline.catalog.verbs import Action
from strandline.durable.update import Argument
from strandline.errors import IllegalChange, InvalidInput, LimitExceeded
from strandline.model.descriptors import (
    ColumnDescriptor,
    IndexDescriptor,
    IndexKind,
    IndexStatus,
    Properties,
    SchemaDescriptor,
    StorageFormat,
    TableDescriptor,
    TableKind,
    ZoneDescriptor,
    properties,
)
from strandline.model.identifiers import check_versioned_name, normalize
from strandline.model.type_text import simple_string


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """CREATE TABLE, with the index of its primary key.

    A managed table gets its location when the version is projected. An external one names it.
    """

    schema: str
    definition: TableDefinition
    if_not_exists: bool = False
    instead_of: int | None = None
    """The dropped table whose location a managed table takes over: its client has written there."""

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidInput`, `LimitExceeded`.

        IF NOT EXISTS applies only to a table of that name.
        """
        definition, known = checked(self.definition)
        refuse_reserved(self.schema, "given tables")
        schema = planning.schema(self.schema)
        if self.if_not_exists and planning.catalog.table(self.schema, definition.name):
            return
        planning.ensure_free(schema, definition.name)
        _check_limit(planning)
        zone = _zone(planning, definition)
        has_key = bool(definition.primary_key)
        key_name = definition.primary_key_name or generated_key_name(definition.name)
        if has_key:
            planning.ensure_free(schema, key_name, pending=[definition.name])
        table_id = planning.next_id
        # Only a dropped table gives up its location; it may have been restored since.
        replaced = self.instead_of
        if replaced is not None and planning.catalog.table_by_id(replaced) is not None:
            replaced = None
        first = known or first_columns(definition)
        table = describe(
            definition,
            first,
            owner=planning.owner(definition.owner),
            table_id=table_id,
            schema_id=schema.id,
            zone_id=zone.id,
            created=planning.now_seconds,
            primary_key_index=table_id + 1 if has_key else 0,
        )
        if not (table.transactional or table.storage.hive_columns):  # else a client spelled them
            keys = table.partition_columns
            refuse_unspelled((column for column in table.columns if column.id not in keys), table)
        with planning.entry(
            "create_table",
            table=f"{schema.name}.{table.name}",
            id=table_id,
            columns=list(first.texts),
            partitioned_by=list(definition.partitioned_by or definition.partition_columns) or None,
            instead_of=replaced,
        ) as transaction:
            transaction.allocate_id(amount=2 if has_key else 1)
            transaction.put(table)
        if has_key:
            key = IndexDescriptor(
                id=table.primary_key_index,
                schema_id=schema.id,
                name=key_name,
                owner=table.owner,
                table_id=table_id,
                kind=IndexKind.SORTED if definition.primary_key_collations else IndexKind.HASH,
                columns=index_columns(table.primary_key, definition.primary_key_collations),
                status=IndexStatus.AVAILABLE,
                unique=True,
                created_with_table=True,
            )
            put_index(planning, key, columns=list(definition.primary_key))


def _check_limit(planning: Planning) -> None:
    limit, count = MAX_TABLES.required(planning.catalog), planning.catalog.table_count()
    if count >= limit:
        raise LimitExceeded(
            f"there are {count} tables and {MAX_TABLES.name} allows {limit}; drop some tables, or "
            "raise the parameter"
        )


def _zone(planning: Planning, definition: TableDefinition) -> ZoneDescriptor:
    if definition.zone is None:
        present, name = planning.catalog.default_zone(), DEFAULT_ZONE_NAME
    else:
        present, name = planning.catalog.zone_named(definition.zone), definition.zone
    zone = must_exist(present, f"zone {name!r}")
    profile = definition.storage_profile
    if profile and profile not in zone.storage_profiles:
        raise InvalidInput(
            f"zone {zone.name} does not have the storage profile {profile!r} of table "
            f"{definition.name}; it has {', '.join(zone.storage_profiles)}"
        )
    return zone


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """DROP TABLE, and DROP VIEW for clients that have one call for both."""

    schema: str
    table: str
    keep_data: bool = False
    """The files of a managed table stay where they are."""
    if_exists: bool = False
    purge: bool = False
    """The files of a managed table are deleted: `undrop` and older versions cannot find them."""

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`."""
        if self.keep_data and self.purge:
            raise InvalidInput(f"{self.table}: files can be kept or purged, not both; choose one")
        if self.if_exists and planning.catalog.relation(self.schema, self.table) is None:
            return
        relation = planning.relation(self.schema, self.table)
        drop_relation(planning, relation, keep_data=self.keep_data, purge=self.purge)


def drop_relation(
    planning: Planning, relation: Relation, *, keep_data: bool = False, purge: bool = False
) -> None:
    """Drop a table or view, in a separate entry.

    The indexes of a table are removed first, whatever their status, each in a separate entry.
    """
    for index in planning.catalog.indexes(relation.id):
        remove_index(planning, index)
    kind = kind_of(relation)
    qualified = planning.catalog.qualified_name(relation)
    arguments: dict[str, str | int] = {kind.name: qualified, "id": relation.id}
    if keep_data or purge:
        arguments["data"] = "keep" if keep_data else "purge"
    with planning.entry(kind.verb(Action.DROP), **arguments) as transaction:
        transaction.delete(kind.name, relation.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTable:
    """ALTER TABLE … RENAME TO, also into another schema. For tables and views.

    The indexes of a table move with it into the other schema. Renaming to the same name changes
    nothing. The folder of a managed table is renamed when the version is projected.
    """

    schema: str
    table: str
    new_name: str
    new_schema: str | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidName`, `IllegalChange`."""
        check_versioned_name(self.new_name, "table")
        if self.if_exists and planning.catalog.relation(self.schema, self.table) is None:
            return
        relation = planning.relation(self.schema, self.table)
        refuse_reserved(self.new_schema or self.schema, "given tables or views")
        target = planning.schema(self.new_schema or self.schema)
        planning.ensure_free(target, self.new_name, own_id=relation.id)
        old, new = planning.catalog.qualified_name(relation), f"{target.name}.{self.new_name}"
        kind = kind_of(relation)
        renamed = replace(relation, name=self.new_name, schema_id=target.id)
        moved = _moved_indexes(planning, relation, renamed, target)
        arguments: dict[str, Argument] = {kind.name: old, "to": new, "id": relation.id}
        with planning.entry(kind.verb(Action.RENAME), **arguments) as transaction:
            together = (after for before, after in moved if before.name == after.name)
            transaction.put_all([renamed, *together])
        for before, after in moved:
            if before.name != after.name:
                with planning.entry(
                    "rename_index",
                    index=planning.catalog.qualified_name(before),
                    to=f"{target.name}.{after.name}",
                    id=after.id,
                ) as transaction:
                    transaction.put(after)


def _moved_indexes(
    planning: Planning, old: Relation, new: Relation, target: SchemaDescriptor
) -> list[tuple[IndexDescriptor, IndexDescriptor]]:
    """The indexes that change when their table is renamed, before and after."""
    if not isinstance(old, TableDescriptor):
        return []
    moved = []
    for before in planning.catalog.indexes(old.id):
        name = before.name
        generated = normalize(name) == normalize(generated_key_name(old.name))
        if before.id == old.primary_key_index and generated and old.name != new.name:
            name = generated_key_name(new.name)
        after = replace(before, name=name, schema_id=target.id)
        if after == before:
            continue
        if after.alive:
            planning.ensure_free(target, name, own_id=before.id, pending=[new.name])
        moved.append((before, after))
    return moved


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTableProperties:
    """ALTER TABLE … SET and UNSET TBLPROPERTIES, its comment and when its statistics are stale.

    None leaves a property unchanged. No change here creates a new schema version.
    """

    schema: str
    table: str
    set: Properties = ()
    unset: tuple[str, ...] = ()
    comment: str | None = None
    stale_rows_fraction: float | None = None
    min_stale_rows: int | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`."""
        fraction = 0.0 if self.stale_rows_fraction is None else self.stale_rows_fraction
        check_stale_rows(fraction, self.min_stale_rows or 0)
        table = planning.existing_table(self.schema, self.table, if_exists=self.if_exists)
        if table is None:
            return
        kept_properties = {key: value for key, value in table.properties if key not in self.unset}
        new_values = {
            "comment": self.comment,
            "stale_rows_fraction": self.stale_rows_fraction,
            "min_stale_rows": self.min_stale_rows,
        }
        changes = {name: value for name, value in new_values.items() if value is not None}
        new = replace(table, properties=properties(kept_properties | dict(self.set)), **changes)  # type: ignore[arg-type]  # fields of the table
        changed = sorted({key for key, _ in self.set} | {*self.unset, *changes})
        with planning.entry(
            "set_table_properties",
            table=planning.catalog.qualified_name(table),
            properties=changed,
        ) as transaction:
            transaction.put(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable:
    """ALTER TABLE of a client that sends the whole new definition, as Hive's clients do.

    The differences determine the verbs: columns added, dropped or altered, and the rest. Columns
    are matched by name and keep their ids. Partition columns cannot change, and a plain table
    cannot become transactional. A transactional table keeps its kind and its location, because its
    rows are in files there. If the definition leaves out the owner, key, colocation, zone or
    profile, the table keeps it.
    """

    schema: str
    table: str
    definition: TableDefinition

    def plan(self, planning: Planning, *, shown_storage: StorageFormat | None = None) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`, `InvalidInput`.

        ``shown_storage`` is the format in which the client was shown a table that names none: that
        of its provider. Its partitions keep this when the table gets another.
        """
        old = planning.table(self.schema, self.table)
        definition = self.definition
        _check_kind_and_location(old, definition)
        check_columns(definition.columns, table=definition.name)
        columns, next_id = redefine_columns(
            old, definition.columns, any_default=definition.any_default
        )
        if partition_column_ids(definition, columns) != old.partition_columns:
            raise IllegalChange("partition keys can not be changed.")
        _check_fixed(planning, old, definition, columns)
        check_redefinition(old, columns, planning.catalog.indexes(old.id))
        self._columns(planning, old, with_columns(old, columns, next_id))
        self._rest(planning, shown_storage)

    def _columns(self, planning: Planning, old: TableDescriptor, new: TableDescriptor) -> None:
        if new == old:
            return
        before = {column.id: column for column in old.columns}
        after = {column.id: column for column in new.columns}
        added = [f"{c.name} {simple_string(c.type)}" for i, c in after.items() if i not in before]
        dropped = [c.name for i, c in before.items() if i not in after]
        altered = [c.name for i, c in after.items() if i in before and before[i] != c]
        verb = "alter_column"
        if added and not dropped and not altered:
            verb = "add_columns"
        elif dropped and not added and not altered:
            verb = "drop_columns"
        with planning.entry(
            verb,
            table=planning.catalog.qualified_name(old),
            **{
                name: columns
                for name, columns in (("added", added), ("dropped", dropped), ("altered", altered))
                if columns
            },
        ) as transaction:
            transaction.put(new)

    def _rest(self, planning: Planning, shown_storage: StorageFormat | None) -> None:
        old = planning.table(self.schema, self.table)
        definition, written = self.definition, old
        if shown_storage is not None and definition.storage != old.storage:
            written = replace(old, storage=shown_storage)
        new = replace(
            written.with_storage(definition.storage),
            owner=definition.owner or old.owner,
            kind=definition.kind,
            provider=definition.provider,
            location=definition.location,
            properties=definition.properties,
            comment=definition.comment,
        )
        changed = changed_parts(
            old, new, "owner", "kind", "provider", "storage", "location", "comment"
        )
        with planning.entry(
            "alter_table", table=planning.catalog.qualified_name(old), changed=changed
        ) as transaction:
            transaction.put(new)
        give_indexes(planning, old, new)


def _check_kind_and_location(old: TableDescriptor, definition: TableDefinition) -> None:
    if old.kind is TableKind.EXTERNAL and definition.kind is TableKind.MANAGED:
        raise IllegalChange(
            f"the external table {old.name} cannot become a managed table: a user chose its "
            "location; create a managed table and copy the files"
        )
    if definition.transactional and not old.transactional:
        raise IllegalChange(
            f"the plain table {old.name} cannot become transactional; create a transactional table "
            "and append the rows to it"
        )
    stays = (old.kind, old.location) == (definition.kind, definition.location)
    if old.transactional and not stays:
        raise IllegalChange(
            f"the kind and the location of the transactional table {old.name} cannot be changed: "
            "its files stay where they are; give both as they are"
        )


def _check_fixed(
    planning: Planning,
    old: TableDescriptor,
    definition: TableDefinition,
    columns: Sequence[ColumnDescriptor],
) -> None:
    """Refuse another value of what no alter changes. A definition may leave these out."""
    for what, requested, present in (
        ("partitioning", partitioning_of(definition, columns), old.partitioning),
        ("primary key", column_ids(columns, definition.primary_key), old.primary_key),
        ("colocation columns", column_ids(columns, definition.colocation), old.colocation),
        ("zone", definition.zone and _zone(planning, definition).id, old.zone_id),
        ("storage profile", definition.storage_profile, old.storage_profile),
    ):
        if requested and requested != present:
            raise IllegalChange(f"the {what} of {old.name} cannot be changed")
