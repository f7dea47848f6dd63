"""Commands on tables as a whole."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.catalog.commands.columns import check_redefinition
from strandline.catalog.commands.definition import (
    TableDefinition,
    check_columns,
    column_ids,
    describe,
    redefine_columns,
    with_columns,
)
from strandline.catalog.commands.schemas import drop_relation
from strandline.catalog.planning import Planning
from strandline.durable.contents import Namespace
from strandline.durable.update import Argument
from strandline.errors import IllegalChange, ObjectNotFound
from strandline.model.descriptors import Properties, TableDescriptor, properties
from strandline.model.identifiers import check_name
from strandline.model.type_text import simple_string

DEFAULT_ZONE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """CREATE TABLE."""

    schema: str
    definition: TableDefinition
    managed_location: str | None = None
    """URI of the folder of a managed table; an external one names it in its definition."""
    if_not_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidInput`."""
        schema = planning.schema(self.schema)
        if self.if_not_exists and planning.catalog.table(self.schema, self.definition.name):
            return
        planning.ensure_free(schema, self.definition.name)
        zone = planning.catalog.contents.find(Namespace("zone", 0), DEFAULT_ZONE)
        if zone is None:
            raise ObjectNotFound(f"zone {DEFAULT_ZONE!r} does not exist")
        qualified = f"{schema.name}.{self.definition.name}"
        columns = [f"{c.name} {simple_string(c.type)}" for c in self.definition.columns]
        table_id = planning.next_id
        with planning.entry(
            "create_table",
            table=qualified,
            id=table_id,
            columns=columns,
            location=self.managed_location,
        ) as transaction:
            transaction.put(
                describe(
                    self.definition,
                    table_id=planning.new_id(),
                    schema_id=schema.id,
                    zone_id=int.from_bytes(zone.key, "big"),
                    created=planning.now_seconds,
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """DROP TABLE, and DROP VIEW for clients that know one call for both."""

    schema: str
    table: str
    keep_data: bool = False
    """The files of a managed table stay where they are."""
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        if self.if_exists and planning.catalog.relation(self.schema, self.table) is None:
            return
        drop_relation(planning, self.schema, self.table, keep_data=self.keep_data)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTable:
    """ALTER TABLE … RENAME TO, also into another schema. Tables and views."""

    schema: str
    table: str
    new_name: str
    new_schema: str | None = None
    new_location: str | None = None
    """URI that the folder of a managed table moves to; None leaves it where it is."""

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidName`."""
        relation = planning.relation(self.schema, self.table)
        check_name(self.new_name, "table")
        target = planning.schema(self.new_schema or self.schema)
        holder = planning.catalog.relation(target.name, self.new_name)
        if holder is not None and holder.id != relation.id:
            planning.ensure_free(target, self.new_name)
        old, new = planning.catalog.qualified_name(relation), f"{target.name}.{self.new_name}"
        kind = "table" if isinstance(relation, TableDescriptor) else "view"
        arguments: dict[str, Argument] = {kind: old, "to": new, "id": relation.id}
        arguments["location"] = self.new_location
        with planning.entry(f"rename_{kind}", **arguments) as transaction:
            transaction.put(replace(relation, name=self.new_name, schema_id=target.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTableProperties:
    """ALTER TABLE … SET and UNSET TBLPROPERTIES."""

    schema: str
    table: str
    set: Properties = ()
    unset: tuple[str, ...] = ()
    comment: str | None = None

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        table = planning.table(self.schema, self.table)
        kept = {key: value for key, value in table.properties if key not in self.unset}
        new = replace(
            table,
            properties=properties(kept | dict(self.set)),
            comment=table.comment if self.comment is None else self.comment,
        )
        changed = sorted({key for key, _ in self.set} | set(self.unset))
        with planning.entry(
            "set_table_properties",
            table=planning.catalog.qualified_name(table),
            properties=changed,
        ) as transaction:
            transaction.put(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable:
    """ALTER TABLE of a client that sends the whole new definition, as Hive's do.

    What differs decides the verbs: columns added, dropped or altered, and the rest. A column keeps
    its id by its name. Partition columns cannot change.
    """

    schema: str
    table: str
    definition: TableDefinition

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`, `InvalidInput`."""
        old = planning.table(self.schema, self.table)
        wanted = self.definition
        check_columns(wanted.columns, table=wanted.name)
        columns, next_id = redefine_columns(old.columns, wanted.columns, old.next_column_id)
        if column_ids(columns, wanted.partition_columns) != old.partition_columns:
            raise IllegalChange("partition keys can not be changed.")
        check_redefinition(old, columns)
        self._columns(planning, old, with_columns(old, columns, next_id))
        self._rest(planning)

    def _columns(self, planning: Planning, old: TableDescriptor, new: TableDescriptor) -> None:
        if new == old:
            return
        before = {column.id: column for column in old.columns}
        after = {column.id: column for column in new.columns}
        added = [c.name for i, c in after.items() if i not in before]
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

    def _rest(self, planning: Planning) -> None:
        old = planning.table(self.schema, self.table)
        wanted = self.definition
        new = replace(
            old,
            owner=wanted.owner,
            kind=wanted.kind,
            provider=wanted.provider,
            storage=wanted.storage,
            location=wanted.location,
            properties=wanted.properties,
            comment=wanted.comment,
        )
        changed = [
            name
            for name in ("owner", "kind", "provider", "storage", "location", "comment")
            if getattr(old, name) != getattr(new, name)
        ]
        if old.properties != new.properties:
            differing = dict(set(old.properties) ^ set(new.properties))
            changed += [f"property {name}" for name in sorted(differing)]
        with planning.entry(
            "alter_table", table=planning.catalog.qualified_name(old), changed=changed
        ) as transaction:
            transaction.put(new)
