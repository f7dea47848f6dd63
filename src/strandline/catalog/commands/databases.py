"""Commands on databases, the namespaces above schemas (Hive 3 and later call them catalogs).

The default database is the one that Hive's clients see, under a name that they take for granted; it
stays, and keeps its name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.catalog.catalog import DEFAULT_DATABASE
from strandline.catalog.kinds import delete_with_comment
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.access import drop_default_privileges
from strandline.errors import AlreadyExists, IllegalChange, ObjectNotFound
from strandline.model.descriptors import DatabaseDescriptor
from strandline.model.identifiers import check_name, normalize


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateDatabase:
    """CREATE DATABASE (a namespace above schemas)."""

    name: str
    owner: str = ""
    if_not_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `InvalidName`, `AlreadyExists`."""
        check_name(self.name, "database")
        existing = planning.catalog.database(self.name)
        if existing is not None:
            if self.if_not_exists:
                return
            raise AlreadyExists(f"database {existing.name} already exists")
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
        database = _find(planning, self.name, if_exists=self.if_exists)
        if database is None:
            return
        with planning.entry(
            "alter_database", database=database.name, owner=self.owner
        ) as transaction:
            transaction.put(replace(database, owner=self.owner))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameDatabase:
    """ALTER DATABASE … RENAME TO; its schemas stay in it."""

    name: str
    new_name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidName`, `AlreadyExists`, `IllegalChange`."""
        database = _find(planning, self.name, if_exists=self.if_exists)
        if database is None:
            return
        _refuse_default(database, "renamed")
        check_name(self.new_name, "database")
        holder = planning.catalog.database(self.new_name)
        if holder is not None and holder.id != database.id:
            raise AlreadyExists(f"database {holder.name} already exists")
        with planning.entry(
            "rename_database", database=database.name, to=self.new_name
        ) as transaction:
            transaction.put(replace(database, name=self.new_name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDatabase:
    """DROP DATABASE. It must be empty."""

    name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`."""
        database = _find(planning, self.name, if_exists=self.if_exists)
        if database is not None:
            drop_database(planning, database)


def drop_database(planning: Planning, database: DatabaseDescriptor) -> None:
    """Remove an empty database, the comment on it and its default privileges. `IllegalChange`."""
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


def _find(planning: Planning, name: str, *, if_exists: bool) -> DatabaseDescriptor | None:
    database = planning.catalog.database(name)
    if database is None and not if_exists:
        raise ObjectNotFound(f"database {name!r} does not exist")
    return database


def _refuse_default(database: DatabaseDescriptor, what: str) -> None:
    if normalize(database.name) == DEFAULT_DATABASE:
        raise IllegalChange(f"database {database.name} is the default one and cannot be {what}")
