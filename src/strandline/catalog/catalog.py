"""`Catalog`: all schemas, tables, zones, roles and other objects at one version.

A catalog is immutable. A lookup never blocks and never fails: it returns None for a missing object
and an empty list for the children of a missing object. Names are not case-sensitive, as in Spark.

Every lookup uses an index that the contents maintain (by id, by name in a namespace, by table for
indexes). Its cost depends on the size of the result, not on the size of the catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from strandline.clock import Timestamp
from strandline.durable.collections import KEY_BYTES, collection_of, id_key
from strandline.durable.contents import Contents, Namespace
from strandline.model.descriptors import (
    ClusterDescriptor,
    ClusterReplica,
    Comment,
    DatabaseDescriptor,
    FunctionDescriptor,
    IdAllocator,
    IndexDescriptor,
    IntrospectionIndex,
    SchemaDescriptor,
    SystemViewDescriptor,
    TableDescriptor,
    ViewDescriptor,
    ZoneDescriptor,
    comment_name,
)
from strandline.model.identifiers import normalize
from strandline.model.privileges import PUBLIC, PUBLIC_NAME, SYSTEM_NAME, ObjectKind, RoleDescriptor
from strandline.wire.stored import AnyStored

Relation = TableDescriptor | ViewDescriptor
"""A relation that a client can read by name in a schema and change with DDL."""

Occupant = TableDescriptor | ViewDescriptor | SystemViewDescriptor | IndexDescriptor
"""An object that can occupy a name in the relation namespace of a schema."""

DEFAULT_DATABASE = "hive"
"""The database that Hive 2 clients see. Hive 3 and later use this name for it too."""

DEFAULT_ZONE_NAME = "default"
"""The default zone of a catalog whose configuration names none."""

DEFAULT_ZONE_CONFIG = "default_zone"
"""The configuration entry that holds the id of the default zone."""

SYSTEM_SCHEMA = "system"
"""The schema of the catalog's own views (`strandline.catalog.system_views`)."""

RESERVED_SCHEMAS = frozenset({SYSTEM_SCHEMA, "information_schema"})
"""Schemas of the catalog itself; ``information_schema`` is reserved for the one of SQL."""

D = TypeVar("D")

_RELATIONS = frozenset({"table", "view"})


@dataclass(frozen=True, slots=True)
class Catalog:
    """The catalog at ``version``, which is active from ``time`` on."""

    version: int
    time: Timestamp
    contents: Contents

    # -- any kind ------------------------------------------------------------------------------

    def get(self, kind: str, key: int | str) -> Any:  # Any: the descriptor of that kind
        """The object of ``kind`` with that id (or name, if the kind is keyed by name), or None."""
        return self.contents.value(kind, _key(key))

    def updated(self, value: object) -> Timestamp | None:
        """When this object was last changed, in the log's time, or None if it does not exist.

        Creating or changing a table does not update its schema, because the schema's record does
        not contain the table.
        """
        stored = self._stored(value)
        return None if stored is None else stored.updated

    def bytes_of(self, value: object) -> int:
        """The size of the record of this object; 0 if it does not exist."""
        stored = self._stored(value)
        return 0 if stored is None else len(stored.data)

    def _stored(self, value: object) -> AnyStored | None:
        kind = collection_of(value)
        return self.contents.get(kind.kind, _key(getattr(value, "id" if kind.has_id else "name")))

    def _named(self, scope: str, parent: int, name: str) -> Any | None:
        reference = self.contents.find(Namespace(scope, parent), name)
        return None if reference is None else self.contents.value(*reference)

    def _in(self, scope: str, parent: int) -> list[Any]:  # Any: descriptors of the scope's kinds
        """Every object in a namespace, sorted by name."""
        references = self.contents.names(Namespace(scope, parent)).values()
        return sorted((self.contents.value(*each) for each in references), key=lambda d: d.name)

    def _all(self, kind: str) -> list[Any]:  # Any: the descriptors of that kind
        return sorted((s.value for s in self.contents.objects(kind)), key=lambda d: d.name)

    # -- databases and schemas -----------------------------------------------------------------

    def database(self, name: str = DEFAULT_DATABASE) -> DatabaseDescriptor | None:
        return self._named("database", 0, name)

    def databases(self) -> list[DatabaseDescriptor]:
        """Every database, sorted by name."""
        return self._all("database")

    def schema(self, name: str, *, database: str = DEFAULT_DATABASE) -> SchemaDescriptor | None:
        """The schema of that name in ``database``, or None."""
        parent = self.contents.find(Namespace("database", 0), database)
        if parent is None:
            return None
        return self._named("schema", int.from_bytes(parent.key, "big"), name)

    def schema_by_id(self, schema_id: int) -> SchemaDescriptor | None:
        return _typed(SchemaDescriptor, self.get("schema", schema_id))

    def schemas(self, *, database: str = DEFAULT_DATABASE) -> list[SchemaDescriptor]:
        """Every schema of a database, sorted by name."""
        parent = self.contents.find(Namespace("database", 0), database)
        return [] if parent is None else self._in("schema", int.from_bytes(parent.key, "big"))

    def all_schemas(self) -> list[SchemaDescriptor]:
        """Every schema of every database, sorted by name."""
        return self._all("schema")

    # -- tables and views ----------------------------------------------------------------------

    def occupant(self, schema_id: int, name: str) -> Occupant | None:
        """The table, view, system view or alive index of that name in a schema, or None."""
        return self._named("relation", schema_id, name)

    def _occupant_in(self, schema: str, name: str) -> Occupant | None:
        parent = self.schema(schema)
        return None if parent is None else self.occupant(parent.id, name)

    def relation(self, schema: str, name: str) -> Relation | None:
        """The table or view of that name, or None."""
        parent = self.schema(schema)
        return None if parent is None else self.relation_in(parent.id, name)

    def relation_in(self, schema_id: int, name: str) -> Relation | None:
        """The table or view of that name in the schema with that id, or None."""
        reference = self.contents.find(Namespace("relation", schema_id), name)
        if reference is None or reference.kind not in _RELATIONS:
            return None
        relation: Relation = self.contents.value(*reference)
        return relation

    def relation_bytes(self, schema_id: int, name: str) -> int:
        """The size of the record of that table or view, which may not be decoded yet; else 0."""
        reference = self.contents.find(Namespace("relation", schema_id), name)
        stored = None if reference is None else self.contents.get(*reference)
        return 0 if stored is None else len(stored.data)

    def table(self, schema: str, name: str) -> TableDescriptor | None:
        """The table of that name, or None (also if a view has the name)."""
        return _typed(TableDescriptor, self.relation(schema, name))

    def view(self, schema: str, name: str) -> ViewDescriptor | None:
        """The view of that name, or None (also if a table has the name)."""
        return _typed(ViewDescriptor, self.relation(schema, name))

    def table_by_id(self, table_id: int) -> TableDescriptor | None:
        return _typed(TableDescriptor, self.get("table", table_id))

    def tables(self) -> Iterator[TableDescriptor]:
        """Every table, in no particular order."""
        return (stored.value for stored in self.contents.objects("table"))

    def table_ids(self) -> Iterator[int]:
        """The id of every table, in no particular order. Does not decode the tables."""
        return (stored.id for stored in self.contents.objects("table"))

    def table_count(self) -> int:
        return self.contents.count("table")

    def relation_names(self, schema: str) -> list[str]:
        """The names of all tables and views of ``schema``, sorted; empty if it does not exist."""
        parent = self.schema(schema)
        if parent is None:
            return []
        return sorted(stored.name for stored in self._stored_relations(parent.id, _RELATIONS))

    def tables_of(self, schema: str) -> list[TableDescriptor]:
        """The tables of ``schema``, sorted by name; empty if it does not exist."""
        parent = self.schema(schema)
        tables = () if parent is None else self._stored_relations(parent.id, ("table",))
        return sorted((stored.value for stored in tables), key=lambda table: table.name)

    def relations_of(self, schema_id: int, *, granted_to: int | None) -> list[Relation]:
        """The tables and views of a schema, sorted by name.

        With ``granted_to``, those without a grant to that role may be left out: most are, without
        being decoded.
        """
        relations = (
            stored.value
            for stored in self._stored_relations(schema_id, _RELATIONS)
            if granted_to is None or stored.may_have_id(granted_to)
        )
        return sorted(relations, key=lambda relation: relation.name)

    def _stored_relations(self, schema_id: int, kinds: Collection[str]) -> Iterator[AnyStored]:
        """The relations of a schema that are of ``kinds``, in no particular order."""
        names = self.contents.names(Namespace("relation", schema_id))
        relations = (reference for reference in names.values() if reference.kind in kinds)
        objects = (self.contents.get(*reference) for reference in relations)
        return (stored for stored in objects if stored is not None)

    def system_view(self, schema: str, name: str) -> SystemViewDescriptor | None:
        return _typed(SystemViewDescriptor, self._occupant_in(schema, name))

    def system_views(self) -> list[SystemViewDescriptor]:
        """Every system view, sorted by name."""
        return self._all("system_view")

    def qualified_name(self, relation: Occupant) -> str:
        """``schema.name`` of a table, view or index of this version."""
        parent = self.schema_by_id(relation.schema_id)
        return f"{parent.name if parent else '?'}.{relation.name}"

    # -- indexes -------------------------------------------------------------------------------

    def index(self, index_id: int) -> IndexDescriptor | None:
        """The index with that id, whatever its status, or None."""
        return _typed(IndexDescriptor, self.get("index", index_id))

    def alive_index(self, schema: str, name: str) -> IndexDescriptor | None:
        """The alive index of that name, or None. A stopping index no longer holds its name."""
        return _typed(IndexDescriptor, self._occupant_in(schema, name))

    def indexes(self, table_id: int) -> list[IndexDescriptor]:
        """The indexes of a table, whatever their status, sorted by id."""
        keys = self.contents.group("index", table_id)
        return [self.contents.value("index", key) for key in keys]

    # -- functions -----------------------------------------------------------------------------

    def function(self, schema: str, name: str) -> FunctionDescriptor | None:
        parent = self.schema(schema)
        return None if parent is None else self._named("function", parent.id, name)

    def functions(self, schema: str) -> list[FunctionDescriptor]:
        """The functions of ``schema``, sorted by name; empty if it does not exist."""
        parent = self.schema(schema)
        return [] if parent is None else self._in("function", parent.id)

    # -- zones ---------------------------------------------------------------------------------

    def zone(self, zone_id: int) -> ZoneDescriptor | None:
        return _typed(ZoneDescriptor, self.get("zone", zone_id))

    def zone_named(self, name: str) -> ZoneDescriptor | None:
        return self._named("zone", 0, name)

    def zones(self) -> list[ZoneDescriptor]:
        """Every zone, sorted by name."""
        return self._all("zone")

    def default_zone(self) -> ZoneDescriptor | None:
        """The zone of tables that name no zone; None only in the empty catalog."""
        entry = self.get("config", DEFAULT_ZONE_CONFIG)
        return self.zone_named(DEFAULT_ZONE_NAME) if entry is None else self.zone(int(entry.value))

    # -- roles and clusters --------------------------------------------------------------------

    def role(self, name: str) -> RoleDescriptor | None:
        return self._named("role", 0, name)

    def role_by_id(self, role_id: int) -> RoleDescriptor | None:
        return _typed(RoleDescriptor, self.get("role", role_id))

    def role_name(self, role_id: int) -> str | None:
        """The name of the role, which may be ``public``; None if it does not exist."""
        if role_id == PUBLIC:
            return PUBLIC_NAME
        role = self.role_by_id(role_id)
        return None if role is None else role.name

    def roles(self) -> list[RoleDescriptor]:
        """Every role, sorted by name."""
        return self._all("role")

    def cluster(self, name: str) -> ClusterDescriptor | None:
        return self._named("cluster", 0, name)

    def clusters(self) -> list[ClusterDescriptor]:
        """Every cluster, sorted by name."""
        return self._all("cluster")

    def replica(self, cluster_id: int, name: str) -> ClusterReplica | None:
        return self._named("cluster_replica", cluster_id, name)

    def replicas(self, cluster_id: int) -> list[ClusterReplica]:
        """The replicas of a cluster, sorted by name."""
        return self._in("cluster_replica", cluster_id)

    def introspection_indexes(self, replica_id: int) -> list[IntrospectionIndex]:
        """The introspection indexes of a replica, sorted by name."""
        return self._in("introspection_index", replica_id)

    # -- the catalog's own state ---------------------------------------------------------------

    def next_number(self, allocator: str) -> int:
        """The number that the allocator of that name gives next."""
        entry: IdAllocator | None = self.get("id_allocator", allocator)
        return 1 if entry is None else entry.next_id

    def configuration(self, name: str) -> str | None:
        """The text that the parameter was set to, or None if it was not set."""
        entry = self.get("system_configuration", name)
        return None if entry is None else str(entry.value)

    def comment(self, kind: ObjectKind, object_id: int) -> str | None:
        """The comment on an object whose own record has no comment field, or None."""
        entry: Comment | None = self.get("comment", comment_name(kind, object_id))
        return None if entry is None else entry.text


def is_reserved(name: str) -> bool:
    """Whether a schema of that name belongs to the catalog itself."""
    return normalize(name) in RESERVED_SCHEMAS


def is_shown(schema: SchemaDescriptor) -> bool:
    """Whether clients see the schema. They do not see that of the system views.

    A user's schema of that name, created before system views existed, stays visible.
    """
    return schema.owner != SYSTEM_NAME or not is_reserved(schema.name)


def _key(key: int | str) -> bytes:
    """The stored key. Clients may send a number that cannot be an id; its key matches no object."""
    if isinstance(key, str):
        return key.encode()
    return id_key(key) if 0 <= key < 1 << (8 * KEY_BYTES) else b""


def _typed(cls: type[D], value: object) -> D | None:
    """``value`` if it is an instance of that class, else None."""
    return value if isinstance(value, cls) else None
