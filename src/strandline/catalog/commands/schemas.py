"""Commands on schemas.

Two names are not people's, see `strandline.catalog.catalog.RESERVED_SCHEMAS`.

A schema's location does not move when it is renamed: the tables that are there stay where they
are, and new ones go beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from immutables import Map

from strandline.catalog.catalog import DEFAULT_DATABASE, is_reserved
from strandline.catalog.kinds import Kind, all_kinds
from strandline.catalog.planning import Planning, refuse_reserved
from strandline.catalog.privileges.access import drop_default_privileges
from strandline.durable.contents import Contents, Namespace, Objects
from strandline.errors import AlreadyExists, IllegalChange, InvalidName, ObjectNotFound
from strandline.model.descriptors import (
    DatabaseDescriptor,
    PrincipalType,
    Properties,
    SchemaDescriptor,
)
from strandline.model.identifiers import check_name, normalize
from strandline.model.places import Place, places_of_schema
from strandline.wire.stored import AnyStored

_PLACE_PARTS = 1 + next(places_of_schema("any")).text.count("/")

DEFAULT_SCHEMA = "default"
"""The schema that every catalog has, and that cannot be dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSchema:
    """CREATE SCHEMA. Without a ``location`` it gets a place of its own below the warehouse."""

    name: str
    owner: str | None = None
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
        before = planning.transaction.contents
        location = self.location or _PLACES.free(before, self.name).text
        with planning.entry(
            "create_schema",
            schema=self.name,
            location=location,
            database=_shown(self.database),
        ) as transaction:
            transaction.put(
                SchemaDescriptor(
                    id=planning.new_id(),
                    database_id=database.id,
                    name=self.name,
                    owner=planning.owner(self.owner),
                    owner_type=self.owner_type,
                    comment=self.comment,
                    location=location,
                    properties=self.properties,
                )
            )
        _PLACES.keep(before, transaction.contents, location)


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
        if schema is not None:
            drop_schema(planning, schema, cascade=self.cascade)


def drop_schema(planning: Planning, schema: SchemaDescriptor, *, cascade: bool = False) -> None:
    """Remove a schema, with ``cascade`` all that is in it first. `IllegalChange`."""
    database = planning.catalog.get("database", schema.database_id).name
    if _is_default(database) and normalize(schema.name) == DEFAULT_SCHEMA:
        raise IllegalChange("Can not drop default database")
    for kind, stored in _inside(planning, schema):
        if not cascade:
            what = "tables" if kind.collection.scope == "relation" else f"{kind.spoken}s"
            raise IllegalChange(
                f"Database {schema.name} is not empty. One or more {what} exist. "
                "Drop them first, or drop the database with CASCADE"
            )
        assert kind.drop is not None  # nothing else is made in a schema that people can drop
        kind.drop(planning, stored.value)
    with planning.entry(
        "drop_schema", schema=schema.name, location=schema.location, database=_shown(database)
    ) as transaction:
        transaction.delete("schema", schema.id)
        drop_default_privileges(transaction, schema=schema.id)


def _inside(planning: Planning, schema: SchemaDescriptor) -> Iterator[tuple[Kind, AnyStored]]:
    """What is in a schema and goes by itself, by namespace and name."""
    contents = planning.catalog.contents
    kinds = {kind.name: kind for kind in all_kinds() if kind.in_schema and not kind.undo.part_of}
    for scope in dict.fromkeys(kind.collection.scope or "" for kind in kinds.values()):
        names = contents.names(Namespace(scope, schema.id))
        for _, holder in sorted(names.items()):
            stored = contents.get(*holder)
            if holder.kind in kinds and stored is not None:
                yield kinds[holder.kind], stored


class _Places:
    """The places of the schemas in some contents, kept for the contents that follow.

    Without it each new schema would cost the number of schemas that there are.
    """

    def __init__(self) -> None:
        self._latest: tuple[Objects | None, Map[str, bool]] = None, Map()

    def free(self, contents: Contents, name: str) -> Place:
        """The place of a new schema: one that no other has. A renamed schema keeps its place."""
        taken = self._of(contents)
        return next(place for place in places_of_schema(name) if place.text not in taken)

    def keep(self, before: Contents, after: Contents, location: str) -> None:
        """Note that ``after`` differs from ``before`` by one schema, which is at ``location``."""
        self._latest = after.all_of("schema"), self._of(before).set(_ending(location), True)

    def _of(self, contents: Contents) -> Map[str, bool]:
        schemas, places = self._latest
        if schemas is not contents.all_of("schema"):
            stored_schemas = contents.objects("schema")
            places = Map((_ending(stored.value.location), True) for stored in stored_schemas)
        return places


_PLACES = _Places()


def _ending(location: str) -> str:
    """What a location has in common with a place: older releases wrote URIs."""
    return "/".join(location.rstrip("/").split("/")[-_PLACE_PARTS:])


def find_database(planning: Planning, name: str) -> DatabaseDescriptor:
    """The database of that name; `ObjectNotFound` if there is none."""
    database = planning.catalog.database(name)
    if database is None:
        raise ObjectNotFound(f"database {name!r} does not exist")
    return database


def _find(
    planning: Planning, name: str, database: str, *, if_exists: bool
) -> SchemaDescriptor | None:
    schema = planning.catalog.schema(name, database=database)
    if schema is None and not if_exists:
        raise ObjectNotFound(f"schema {name!r} does not exist")
    return schema


def _is_default(database: str) -> bool:
    """Whether that is the name of the database whose schemas have something in them."""
    return normalize(database) == DEFAULT_DATABASE


def _shown(database: str) -> str | None:
    """The database as an argument of an entry: nothing for the default one."""
    return None if _is_default(database) else database
