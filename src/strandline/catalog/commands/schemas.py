"""Commands on schemas."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.catalog.catalog import DEFAULT_DATABASE
from strandline.catalog.planning import Planning
from strandline.errors import AlreadyExists, IllegalChange, ObjectNotFound
from strandline.model.descriptors import (
    PrincipalType,
    Properties,
    SchemaDescriptor,
    TableDescriptor,
)
from strandline.model.identifiers import check_name, normalize

DEFAULT_SCHEMA = "default"
"""The schema that every catalog has, and that cannot be dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSchema:
    """CREATE SCHEMA. ``location`` empty: the node decides where its tables lie."""

    name: str
    owner: str = ""
    owner_type: PrincipalType = PrincipalType.USER
    comment: str | None = None
    location: str = ""
    properties: Properties = ()
    if_not_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `InvalidName`, `AlreadyExists`."""
        check_name(self.name, "schema")
        if planning.catalog.schema(self.name) is not None:
            if self.if_not_exists:
                return
            raise AlreadyExists(f"Database {self.name} already exists")
        database = planning.catalog.database(DEFAULT_DATABASE)
        if database is None:
            raise ObjectNotFound(f"database {DEFAULT_DATABASE!r} does not exist")
        with planning.entry(
            "create_schema", schema=self.name, location=self.location
        ) as transaction:
            transaction.put(
                SchemaDescriptor(
                    id=planning.new_id(),
                    database_id=database.id,
                    name=self.name,
                    owner=self.owner,
                    owner_type=self.owner_type,
                    comment=self.comment,
                    location=self.location,
                    properties=self.properties,
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSchema:
    """ALTER SCHEMA. What is None stays as it is."""

    name: str
    owner: str | None = None
    owner_type: PrincipalType | None = None
    comment: str | None = None
    properties: Properties | None = None

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        old = planning.schema(self.name)
        new = replace(
            old,
            owner=old.owner if self.owner is None else self.owner,
            owner_type=self.owner_type or old.owner_type,
            comment=old.comment if self.comment is None else self.comment,
            properties=old.properties if self.properties is None else self.properties,
        )
        with planning.entry("alter_schema", schema=old.name) as transaction:
            transaction.put(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSchema:
    """DROP SCHEMA. With ``cascade`` its tables and views go with it, in the same version."""

    name: str
    cascade: bool = False
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`."""
        schema = planning.catalog.schema(self.name)
        if schema is None and self.if_exists:
            return
        schema = planning.schema(self.name)
        if normalize(schema.name) == DEFAULT_SCHEMA:
            raise IllegalChange("Can not drop default database")
        names = planning.catalog.relation_names(schema.name)
        if names and not self.cascade:
            raise IllegalChange(
                f"Database {schema.name} is not empty. One or more tables exist. "
                "Drop them first, or drop the database with CASCADE"
            )
        for name in names:
            drop_relation(planning, schema.name, name)
        with planning.entry(
            "drop_schema", schema=schema.name, location=schema.location
        ) as transaction:
            transaction.delete("schema", schema.id)


def drop_relation(planning: Planning, schema: str, name: str, *, keep_data: bool = False) -> None:
    """Remove the table or view of that name, in an entry of its own."""
    relation = planning.relation(schema, name)
    kind = "table" if isinstance(relation, TableDescriptor) else "view"
    qualified = planning.catalog.qualified_name(relation)
    arguments: dict[str, str | int] = {kind: qualified, "id": relation.id}
    if keep_data:
        arguments["data"] = "keep"
    with planning.entry(f"drop_{kind}", **arguments) as transaction:
        transaction.delete(kind, relation.id)
