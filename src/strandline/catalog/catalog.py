"""`Catalog`: what the world of schemas, tables and views looked like at one version.

An immutable value. Looking something up never blocks and never fails: what is not there is None.
Names are found without regard to case, as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.clock import Timestamp
from strandline.durable.collections import id_key
from strandline.durable.contents import Contents, Namespace
from strandline.model.descriptors import (
    DatabaseDescriptor,
    SchemaDescriptor,
    TableDescriptor,
    ViewDescriptor,
    ZoneDescriptor,
)

Relation = TableDescriptor | ViewDescriptor

DEFAULT_DATABASE = "hive"
"""The database that Hive 2 clients see. Hive 3 and later call its name that too."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Version ``version``, active from ``time`` on."""

    version: int
    time: Timestamp
    contents: Contents

    def database(self, name: str = DEFAULT_DATABASE) -> DatabaseDescriptor | None:
        """The database of that name."""
        found = self.contents.find(Namespace("database", 0), name)
        stored = None if found is None else self.contents.get(*found)
        return None if stored is None else stored.value

    def schema(self, name: str) -> SchemaDescriptor | None:
        """The schema of that name in the default database."""
        database = self.contents.find(Namespace("database", 0), DEFAULT_DATABASE)
        if database is None:
            return None
        parent = int.from_bytes(database.key, "big")
        found = self.contents.find(Namespace("schema", parent), name)
        stored = None if found is None else self.contents.get(*found)
        return None if stored is None else stored.value

    def schema_by_id(self, schema_id: int) -> SchemaDescriptor | None:
        """The schema with that id."""
        stored = self.contents.get("schema", id_key(schema_id))
        return None if stored is None else stored.value

    def schemas(self) -> list[SchemaDescriptor]:
        """Every schema, by name."""
        return sorted((s.value for s in self.contents.objects("schema")), key=lambda s: s.name)

    def schema_names(self) -> list[str]:
        """The names of all schemas, in order."""
        return sorted(stored.name for stored in self.contents.objects("schema"))

    def relation(self, schema: str, name: str) -> Relation | None:
        """The table or view of that name."""
        parent = self.schema(schema)
        if parent is None:
            return None
        found = self.contents.find(Namespace("relation", parent.id), name)
        stored = None if found is None else self.contents.get(*found)
        return None if stored is None else stored.value

    def table(self, schema: str, name: str) -> TableDescriptor | None:
        """The table of that name; None also where the name is a view's."""
        found = self.relation(schema, name)
        return found if isinstance(found, TableDescriptor) else None

    def view(self, schema: str, name: str) -> ViewDescriptor | None:
        """The view of that name; None also where the name is a table's."""
        found = self.relation(schema, name)
        return found if isinstance(found, ViewDescriptor) else None

    def table_by_id(self, table_id: int) -> TableDescriptor | None:
        """The table with that id, whatever its name is in this version."""
        stored = self.contents.get("table", id_key(table_id))
        return None if stored is None else stored.value

    def tables(self) -> Iterator[TableDescriptor]:
        """Every table, in no order."""
        return (stored.value for stored in self.contents.objects("table"))

    def relation_names(self, schema: str) -> list[str]:
        """The names of all tables and views of ``schema``, in order; none where it is missing."""
        parent = self.schema(schema)
        if parent is None:
            return []
        names = self.contents.names(Namespace("relation", parent.id))
        objects = (self.contents.get(*reference) for reference in names.values())
        return sorted(stored.name for stored in objects if stored is not None)

    def zone(self, zone_id: int) -> ZoneDescriptor | None:
        """The zone with that id."""
        stored = self.contents.get("zone", id_key(zone_id))
        return None if stored is None else stored.value

    def qualified_name(self, relation: Relation) -> str:
        """``schema.name`` of a table or view of this version."""
        parent = self.schema_by_id(relation.schema_id)
        return f"{parent.name if parent else '?'}.{relation.name}"
