"""Commands on schemas.

Two names are not people's, see `strandline.catalog.reserved_schemas`.

A schema's location does not move when it is renamed: the tables that are there stay where they
are, and new ones go beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.catalog.catalog import DEFAULT_DATABASE
from strandline.catalog.commands.functions import drop_function
from strandline.catalog.kinds import delete_with_comment, kind_of
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.defaults import drop_default_privileges
from strandline.catalog.reserved_schemas import is_reserved, refuse_reserved
from strandline.catalog.verbs import Action
from strandline.errors import AlreadyExists, IllegalChange, InvalidName, ObjectNotFound
from strandline.model.descriptors import (
    DatabaseDescriptor,
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
    database: str = DEFAULT_DATABASE

    def plan(self, planning: Planning) -> None:
        """Raises `InvalidName`, `AlreadyExists`, `ObjectNotFound`."""
        check_name(self.name, "schema")
        if is_reserved(self.name):
            raise InvalidName(
                f"schema {self.name} cannot be created: the name is reserved for the catalog "
                "itself; choose another"
            )
        database = find_database(planning, self.database)
        if planning.catalog.schema(self.name, database=self.database) is not None:
            if self.if_not_exists:
                return
            raise AlreadyExists(f"Database {self.name} already exists")
        with planning.entry(
            "create_schema",
            schema=self.name,
            location=self.location,
            database=_shown(self.database),
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
    if_exists: bool = False
    database: str = DEFAULT_DATABASE

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`."""
        old = _find(planning, self.name, self.database, if_exists=self.if_exists)
        if old is None:
            return
        refuse_reserved(self.name, "altered")
        new = replace(
            old,
            owner=old.owner if self.owner is None else self.owner,
            owner_type=self.owner_type or old.owner_type,
            comment=old.comment if self.comment is None else self.comment,
            properties=old.properties if self.properties is None else self.properties,
        )
        with planning.entry(
            "alter_schema", schema=old.name, database=_shown(self.database)
        ) as transaction:
            transaction.put(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameSchema:
    """ALTER SCHEMA … RENAME TO. Tables keep their ids and places; the location does not move."""

    name: str
    new_name: str
    if_exists: bool = False
    database: str = DEFAULT_DATABASE

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidName`, `AlreadyExists`, `IllegalChange`."""
        old = _find(planning, self.name, self.database, if_exists=self.if_exists)
        if old is None:
            return
        refuse_reserved(self.name, "renamed")
        if _is_default(self.database) and normalize(old.name) == DEFAULT_SCHEMA:
            raise IllegalChange(f"schema {old.name} is the default one and cannot be renamed")
        check_name(self.new_name, "schema")
        if is_reserved(self.new_name):
            raise InvalidName(
                f"schema {old.name} cannot be renamed to {self.new_name}: the name is reserved "
                "for the catalog itself; choose another"
            )
        holder = planning.catalog.schema(self.new_name, database=self.database)
        if holder is not None and holder.id != old.id:
            raise AlreadyExists(f"schema {holder.name} already exists")
        with planning.entry(
            "rename_schema", schema=old.name, to=self.new_name, database=_shown(self.database)
        ) as transaction:
            transaction.put(replace(old, name=self.new_name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSchema:
    """DROP SCHEMA. With ``cascade`` all that is in it goes with it, in the same version."""

    name: str
    cascade: bool = False
    if_exists: bool = False
    database: str = DEFAULT_DATABASE

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`."""
        refuse_reserved(self.name, "dropped")
        schema = _find(planning, self.name, self.database, if_exists=self.if_exists)
        if schema is None:
            return
        in_default = _is_default(self.database)
        if in_default and normalize(schema.name) == DEFAULT_SCHEMA:
            raise IllegalChange("Can not drop default database")
        # Only schemas of the default database have anything in them.
        names = planning.catalog.relation_names(schema.name) if in_default else []
        functions = planning.catalog.functions(schema.name) if in_default else []
        if (names or functions) and not self.cascade:
            what = "tables" if names else "functions"
            raise IllegalChange(
                f"Database {schema.name} is not empty. One or more {what} exist. "
                "Drop them first, or drop the database with CASCADE"
            )
        for name in names:
            drop_relation(planning, schema.name, name)
        for function in functions:
            drop_function(planning, function, schema=schema.name)
        with planning.entry(
            "drop_schema",
            schema=schema.name,
            location=schema.location,
            database=_shown(self.database),
        ) as transaction:
            transaction.delete("schema", schema.id)
            drop_default_privileges(transaction, schema=schema.id)


def find_database(planning: Planning, name: str) -> DatabaseDescriptor:
    """The database of that name; `ObjectNotFound` if there is none."""
    found = planning.catalog.database(name)
    if found is None:
        raise ObjectNotFound(f"database {name!r} does not exist")
    return found


def _find(
    planning: Planning, name: str, database: str, *, if_exists: bool
) -> SchemaDescriptor | None:
    found = planning.catalog.schema(name, database=database)
    if found is None and not if_exists:
        raise ObjectNotFound(f"schema {name!r} does not exist")
    return found


def _is_default(database: str) -> bool:
    """Whether that is the name of the database whose schemas have something in them."""
    return normalize(database) == DEFAULT_DATABASE


def _shown(database: str) -> str | None:
    """The database as an argument of an entry: nothing for the default one."""
    return None if _is_default(database) else database


def drop_relation(
    planning: Planning, schema: str, name: str, *, keep_data: bool = False, purge: bool = False
) -> None:
    """Remove the table or view of that name, in an entry of its own.

    Each index of a table goes first, whatever its status, in an entry of its own too.
    """
    relation = planning.relation(schema, name)
    kind = kind_of(relation)
    qualified = planning.catalog.qualified_name(relation)
    for index in (
        planning.catalog.indexes(relation.id) if isinstance(relation, TableDescriptor) else ()
    ):
        with planning.entry(
            "index_removed",
            index=planning.catalog.qualified_name(index),
            id=index.id,
            table=qualified,
            status=index.status.name,
        ) as transaction:
            delete_with_comment(transaction, "index", index.id)
    arguments: dict[str, str | int] = {kind.name: qualified, "id": relation.id}
    if keep_data or purge:
        arguments["data"] = "keep" if keep_data else "purge"
    with planning.entry(kind.verb(Action.DROP), **arguments) as transaction:
        transaction.delete(kind.name, relation.id)
