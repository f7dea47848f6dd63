"""Commands on schemas, and on databases, the namespaces above them (catalogs in Hive 3 and later).

Users cannot create schemas with the names in `strandline.catalog.catalog.RESERVED_SCHEMAS`.
Renaming a schema does not move its location: existing tables stay where they are, and new tables
are created beside them.

Hive's clients see the default database and rely on its name. So it can be neither dropped nor
renamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from immutables import Map

from strandline.catalog.catalog import DEFAULT_DATABASE, is_reserved
from strandline.catalog.commands.objects import check_comment
from strandline.catalog.declared_kinds import DeclaredKind, declared_kinds
from strandline.catalog.kinds import delete_with_comment
from strandline.catalog.planning import (
    Planning,
    altered,
    changed_parts,
    must_exist,
    refuse_holder,
    refuse_reserved,
    required,
)
from strandline.catalog.privileges.access import drop_default_privileges
from strandline.durable.contents import Contents, Namespace, Objects
from strandline.errors import AlreadyExists, IllegalChange, InvalidName
from strandline.model.descriptors import (
    DatabaseDescriptor,
    PrincipalType,
    Properties,
    SchemaDescriptor,
)
from strandline.model.identifiers import check_name, check_versioned_name, normalize
from strandline.model.places import Place, places_of_schema
from strandline.wire.stored import AnyStored


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateDatabase:
    """CREATE DATABASE (a namespace above schemas)."""

    name: str
    owner: str = ""
    if_not_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `InvalidName`, `AlreadyExists`."""
        check_name(self.name, "database")
        holder = planning.catalog.database(self.name)
        if holder is not None and self.if_not_exists:
            return
        refuse_holder(holder, "database")
        with planning.entry("create_database", database=self.name) as transaction:
            transaction.put(
                DatabaseDescriptor(planning.new_id(), self.name, self.owner or planning.author)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterDatabase:
    """ALTER DATABASE … OWNER TO."""

    name: str
    owner: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        database = _find_database(planning, self.name, if_exists=self.if_exists)
        if database is None:
            return
        with planning.entry(
            "alter_database", database=database.name, owner=self.owner
        ) as transaction:
            transaction.put(replace(database, owner=self.owner))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameDatabase:
    """ALTER DATABASE … RENAME TO. Its schemas stay in it."""

    name: str
    new_name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidName`, `AlreadyExists`, `IllegalChange`."""
        database = _find_database(planning, self.name, if_exists=self.if_exists)
        if database is None:
            return
        _refuse_default(database, "renamed")
        check_name(self.new_name, "database")
        holder = planning.catalog.database(self.new_name)
        refuse_holder(holder, "database", own_id=database.id)
        with planning.entry(
            "rename_database", database=database.name, to=self.new_name
        ) as transaction:
            transaction.put(replace(database, name=self.new_name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDatabase:
    """DROP DATABASE. The database must be empty."""

    name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`."""
        database = _find_database(planning, self.name, if_exists=self.if_exists)
        if database is not None:
            drop_database(planning, database)


def drop_database(planning: Planning, database: DatabaseDescriptor) -> None:
    """Drop an empty database, its comment and its default privileges. Raises `IllegalChange`."""
    _refuse_default(database, "dropped")
    schemas = planning.catalog.schemas(database=database.name)
    if schemas:
        raise IllegalChange(
            f"database {database.name} is not empty: schema {schemas[0].name} is in it; drop its "
            "schemas first"
        )
    with planning.entry("drop_database", database=database.name) as transaction:
        delete_with_comment(transaction, "database", database.id)
        drop_default_privileges(transaction, database=database.id)


def _find_database(planning: Planning, name: str, *, if_exists: bool) -> DatabaseDescriptor | None:
    return required(planning.catalog.database(name), f"database {name!r}", if_exists=if_exists)


def _refuse_default(database: DatabaseDescriptor, what: str) -> None:
    if normalize(database.name) == DEFAULT_DATABASE:
        raise IllegalChange(
            f"database {database.name} is the default database and cannot be {what}"
        )


_PLACE_PARTS = 1 + next(places_of_schema("any")).text.count("/")

DEFAULT_SCHEMA = "default"
"""The schema that every catalog has. It cannot be dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSchema:
    """CREATE SCHEMA. Without a ``location`` it gets a new place in the warehouse."""

    name: str
    owner: str | None = None
    owner_type: PrincipalType = PrincipalType.USER
    comment: str | None = None
    location: str = ""
    properties: Properties = ()
    if_not_exists: bool = False
    database: str = DEFAULT_DATABASE

    def plan(self, planning: Planning) -> None:
        """Raises `InvalidName`, `InvalidInput`, `AlreadyExists`, `ObjectNotFound`."""
        check_versioned_name(self.name, "schema")
        check_comment(self.comment)
        if is_reserved(self.name):
            raise InvalidName(
                f"schema {self.name} cannot be created: the name is reserved for the catalog "
                "itself; choose another"
            )
        database = must_exist(
            planning.catalog.database(self.database), f"database {self.database!r}"
        )
        if planning.catalog.schema(self.name, database=self.database) is not None:
            if self.if_not_exists:
                return
            raise AlreadyExists(f"schema {self.name} already exists")
        before = planning.transaction.contents
        location = self.location or _PLACES.free(before, self.name).text
        with planning.entry(
            "create_schema",
            schema=self.name,
            location=location,
            database=_shown(self.database),
        ) as transaction:
            new = SchemaDescriptor(
                id=planning.new_id(),
                database_id=database.id,
                name=self.name,
                owner=planning.owner(self.owner),
                owner_type=self.owner_type,
                comment=self.comment,
                location=location,
                properties=self.properties,
            )
            transaction.put(new)
        _PLACES.follow(before, transaction.contents, new, by=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSchema:
    """ALTER SCHEMA. None leaves a property unchanged."""

    name: str
    owner: str | None = None
    owner_type: PrincipalType | None = None
    comment: str | None = None
    properties: Properties | None = None
    if_exists: bool = False
    database: str = DEFAULT_DATABASE

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`, `InvalidInput`."""
        old = _find(planning, self.name, self.database, if_exists=self.if_exists)
        if old is None:
            return
        refuse_reserved(self.name, "altered")
        if self.comment != old.comment:  # a client may repeat one that an earlier release allowed
            check_comment(self.comment)
        new = altered(
            old,
            owner=self.owner,
            owner_type=self.owner_type,
            comment=self.comment,
            properties=self.properties,
        )
        changed = changed_parts(old, new, "owner", "owner_type", "comment")
        with planning.entry(
            "alter_schema", schema=old.name, changed=changed, database=_shown(self.database)
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
            raise IllegalChange(f"schema {old.name} is the default schema and cannot be renamed")
        check_versioned_name(self.new_name, "schema")
        if is_reserved(self.new_name):
            raise InvalidName(
                f"schema {old.name} cannot be renamed to {self.new_name}: the name is reserved "
                "for the catalog itself; choose another"
            )
        holder = planning.catalog.schema(self.new_name, database=self.database)
        refuse_holder(holder, "schema", own_id=old.id)
        with planning.entry(
            "rename_schema", schema=old.name, to=self.new_name, database=_shown(self.database)
        ) as transaction:
            transaction.put(replace(old, name=self.new_name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSchema:
    """DROP SCHEMA. With ``cascade`` its contents are dropped too, in the same version."""

    name: str
    cascade: bool = False
    if_exists: bool = False
    database: str = DEFAULT_DATABASE

    @property
    def schema(self) -> str | None:
        """The schema that the user must reach, because a refusal tells whether it is empty."""
        return self.name if _is_default(self.database) else None

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`."""
        refuse_reserved(self.name, "dropped")
        schema = _find(planning, self.name, self.database, if_exists=self.if_exists)
        if schema is not None:
            drop_schema(planning, schema, cascade=self.cascade)


def drop_schema(planning: Planning, schema: SchemaDescriptor, *, cascade: bool = False) -> None:
    """Drop a schema, with ``cascade`` after its contents. Raises `IllegalChange`."""
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
        assert kind.drop is not None  # users cannot drop the schemas that hold other kinds
        kind.drop(planning, stored.value)
    before = planning.transaction.contents
    with planning.entry(
        "drop_schema", schema=schema.name, location=schema.location, database=_shown(database)
    ) as transaction:
        transaction.delete("schema", schema.id)
        drop_default_privileges(transaction, schema=schema.id)
    _PLACES.follow(before, transaction.contents, schema, by=-1)


def _inside(
    planning: Planning, schema: SchemaDescriptor
) -> Iterator[tuple[DeclaredKind, AnyStored]]:
    """The objects in a schema that are no part of another object, by namespace and name."""
    contents = planning.catalog.contents
    kinds = {kind.name: kind for kind in declared_kinds() if kind.in_schema and not kind.part_of}
    for scope in dict.fromkeys(kind.collection.scope or "" for kind in kinds.values()):
        names = contents.names(Namespace(scope, schema.id))
        for _, holder in sorted(names.items()):
            stored = contents.get(*holder)
            if holder.kind in kinds and stored is not None:
                yield kinds[holder.kind], stored


class _Places:
    """How many schemas hold each place in the latest contents, cached for those that follow.

    Without the cache, creating a schema would cost time in proportion to the number of schemas.
    """

    def __init__(self) -> None:
        self._latest: tuple[Objects | None, Map[str, int]] = None, Map()

    def free(self, contents: Contents, name: str) -> Place:
        """Return a free place for a new schema. A renamed schema still holds its old place."""
        holders = self._of(contents)
        return next(place for place in places_of_schema(name) if place.text not in holders)

    def follow(
        self, before: Contents, after: Contents, schema: SchemaDescriptor, *, by: int
    ) -> None:
        """Follow a change that created (1) or dropped (-1) only this schema."""
        schemas, holders = self._latest
        if schemas is before.all_of("schema"):
            place = _ending(schema.location)
            count = holders.get(place, 0) + by
            holders = holders.set(place, count) if count else holders.delete(place)
            self._latest = after.all_of("schema"), holders

    def _of(self, contents: Contents) -> Map[str, int]:
        schemas, holders = self._latest
        if schemas is not contents.all_of("schema"):
            stored_schemas = contents.objects("schema")
            holders = Map(Counter(_ending(stored.value.location) for stored in stored_schemas))
            self._latest = contents.all_of("schema"), holders
        return holders


_PLACES = _Places()


def _ending(location: str) -> str:
    """The end of a location, in the form of a place; older releases stored full URIs."""
    return "/".join(location.rstrip("/").split("/")[-_PLACE_PARTS:])


def _find(
    planning: Planning, name: str, database: str, *, if_exists: bool
) -> SchemaDescriptor | None:
    return required(
        planning.catalog.schema(name, database=database), f"schema {name!r}", if_exists=if_exists
    )


def _is_default(database: str) -> bool:
    """Whether it is the default database, the only one whose schemas can contain objects."""
    return normalize(database) == DEFAULT_DATABASE


def _shown(database: str) -> str | None:
    """The database as an argument of an entry, or None for the default database."""
    return None if _is_default(database) else database
