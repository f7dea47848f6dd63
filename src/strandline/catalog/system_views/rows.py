"""The system views: each is a function from a catalog to rows, and the columns of the rows.

`system_view` makes a `SystemView` of a function. The kind of object that the view lists names the
view in its declaration (`strandline.catalog.declarations`). Rows are Python values (str, int, bool,
None) in the order of the columns. Their order is not defined, and they are produced one at a time,
because a view over every column of every table must not be held in memory as a whole.

Producing a row never fails, whatever a catalog holds. For example, a column that a stopping index
still names and that the table has dropped is NULL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.configuration import PARAMETERS
from strandline.catalog.kinds import all_kinds
from strandline.model.descriptors import (
    IndexColumn,
    IndexDescriptor,
    SystemViewKind,
    TableDescriptor,
)
from strandline.model.privileges import privilege_names
from strandline.model.type_text import simple_string
from strandline.model.types import (
    BIGINT,
    BOOLEAN,
    INT,
    CharType,
    DataType,
    DecimalType,
    StringType,
    TimeType,
    VarcharType,
)

Row = tuple[str | int | bool | None, ...]
Rows = Callable[[Catalog], Iterator[Row]]

_TYPES: dict[str, DataType] = {
    "text": StringType(),
    "id": BIGINT,
    "number": INT,
    "truth": BOOLEAN,
}


@dataclass(frozen=True, slots=True)
class SystemView:
    """A view that the program provides. ``doc`` is a sentence for people, not part of the view."""

    name: str
    columns: tuple[tuple[str, DataType], ...]
    rows: Rows = field(compare=False)
    doc: str = field(compare=False)
    kind: SystemViewKind = SystemViewKind.CLUSTER


def system_view(columns: str, *, doc: str) -> Callable[[Rows], SystemView]:
    """Return a decorator that makes a function the rows of the view with the function's name.

    ``columns`` are ``name kind`` pairs; the kinds are those of `_TYPES`. All columns may be NULL.
    """
    pairs = (column.split() for column in columns.split(","))
    typed = tuple((name, _TYPES[kind]) for name, kind in pairs)
    return lambda rows: SystemView(rows.__name__, typed, rows, doc)


# -- databases, schemas, tables --------------------------------------------------------------------


@system_view("database_id id, database_name text, owner text", doc="The databases.")
def databases(catalog: Catalog) -> Iterator[Row]:
    for database in catalog.databases():
        yield database.id, database.name, database.owner


@system_view(
    "schema_id id, schema_name text, database_id id, owner text, location text",
    doc="The schemas of every database.",
)
def schemas(catalog: Catalog) -> Iterator[Row]:
    for schema in catalog.all_schemas():
        yield schema.id, schema.name, schema.database_id, schema.owner, schema.location


@system_view(
    "schema_name text, table_name text, table_id id, table_pk_index_id id, zone_name text, "
    "storage_profile text, table_colocation_columns text, schema_id id, zone_id id, owner text, "
    "table_type text, is_transactional truth, provider text",
    doc="The tables. A table without colocation columns is placed by its primary key.",
)
def tables(catalog: Catalog) -> Iterator[Row]:
    zones = {zone.id: zone for zone in catalog.zones()}
    for table in catalog.tables():
        zone = zones.get(table.zone_id)
        names = {column.id: column.name for column in table.columns}
        profile = table.storage_profile or (zone.storage_profiles[0] if zone else None)
        yield (
            _schema_name(catalog, table.schema_id),
            table.name,
            table.id,
            table.primary_key_index or None,
            zone.name if zone else None,
            profile,
            ", ".join(names.get(i, "?") for i in table.colocation or table.primary_key) or None,
            table.schema_id,
            table.zone_id,
            table.owner,
            table.kind.name,
            table.transactional,
            table.provider,
        )


@system_view(
    "schema_name text, table_name text, table_id id, column_name text, column_type text, "
    "is_nullable_column truth, column_precision number, column_scale number, column_length number, "
    "column_ordinal number, schema_id id, pk_column_ordinal number, "
    "colocation_column_ordinal number, column_id id, column_default text",
    doc="The columns of tables as they are now. Ordinals begin with 0.",
)
def table_columns(catalog: Catalog) -> Iterator[Row]:
    for table in catalog.tables():
        schema = _schema_name(catalog, table.schema_id)
        for ordinal, column in enumerate(table.columns):
            yield (
                schema,
                table.name,
                table.id,
                column.name,
                simple_string(column.type),
                column.nullable,
                *_parameters(column.type),
                ordinal,
                table.schema_id,
                _ordinal(table.primary_key, column.id),
                _ordinal(table.colocation or table.primary_key, column.id),
                column.id,
                column.default,
            )


@system_view(
    "schema_name text, view_name text, view_id id, schema_id id, owner text, view_text text",
    doc="The views that users created.",
)
def views(catalog: Catalog) -> Iterator[Row]:
    for stored in catalog.contents.objects("view"):
        view = stored.value
        schema = _schema_name(catalog, view.schema_id)
        yield schema, view.name, view.id, view.schema_id, view.owner, view.original_text


@system_view(
    "schema_name text, function_name text, function_id id, schema_id id, owner text, "
    "class_name text, resources text",
    doc="The functions; resources as JSON.",
)
def functions(catalog: Catalog) -> Iterator[Row]:
    for stored in catalog.contents.objects("function"):
        function = stored.value
        yield (
            _schema_name(catalog, function.schema_id),
            function.name,
            function.id,
            function.schema_id,
            function.owner,
            function.class_name,
            json.dumps(function.resources, ensure_ascii=False),
        )


# -- indexes ---------------------------------------------------------------------------------------


@system_view(
    "index_id id, index_name text, table_id id, table_name text, schema_id id, schema_name text, "
    "index_type text, is_unique_index truth, index_columns text, index_state text",
    doc="All indexes except those that are stopping.",
)
def indexes(catalog: Catalog) -> Iterator[Row]:
    for index, table in _indexes(catalog):
        if index.alive:
            yield (
                index.id,
                index.name,
                index.table_id,
                table.name if table else None,
                index.schema_id,
                _schema_name(catalog, index.schema_id),
                index.kind.name,
                index.unique,
                ", ".join(_sorted_by(column, table) for column in index.columns),
                index.status.name,
            )


@system_view(
    "schema_id id, schema_name text, table_id id, table_name text, index_id id, index_name text, "
    "column_name text, column_ordinal number, column_collation text",
    doc="The columns of indexes of every status. A column that was dropped while its index was "
    "stopping has no name.",
)
def index_columns(catalog: Catalog) -> Iterator[Row]:
    for index, table in _indexes(catalog):
        for ordinal, column in enumerate(index.columns):
            yield (
                index.schema_id,
                _schema_name(catalog, index.schema_id),
                index.table_id,
                table.name if table else None,
                index.id,
                index.name,
                _column_name(table, column.column_id),
                ordinal,
                column.collation.name if column.collation else None,
            )


def _indexes(catalog: Catalog) -> Iterator[tuple[IndexDescriptor, TableDescriptor | None]]:
    for stored in catalog.contents.objects("index"):
        yield stored.value, catalog.table_by_id(stored.value.table_id)


def _sorted_by(column: IndexColumn, table: TableDescriptor | None) -> str:
    name = _column_name(table, column.column_id) or "?"
    return f"{name} {column.collation.name.split('_')[0]}" if column.collation else name


# -- zones -----------------------------------------------------------------------------------------


@system_view(
    "zone_name text, zone_partitions number, zone_replicas number, zone_quorum_size number, "
    "data_nodes_auto_adjust_scale_up number, data_nodes_auto_adjust_scale_down number, "
    "data_nodes_filter text, is_default_zone truth, zone_consistency_mode text, zone_id id, "
    "owner text, storage_location text",
    doc="The zones. Replicas NULL means one on every node; auto-adjust times are in seconds, "
    "NULL means never.",
)
def zones(catalog: Catalog) -> Iterator[Row]:
    default = catalog.default_zone()
    for zone in catalog.zones():
        yield (
            zone.name,
            zone.partitions,
            zone.replicas,
            zone.quorum_size,
            zone.auto_adjust_scale_up,
            zone.auto_adjust_scale_down,
            zone.node_filter,
            default is not None and zone.id == default.id,
            zone.consistency_mode.name,
            zone.id,
            zone.owner,
            zone.storage_location,
        )


@system_view(
    "zone_name text, storage_profile text, is_default_profile truth, zone_id id",
    doc="The storage profiles of zones; the first is the default.",
)
def zone_storage_profiles(catalog: Catalog) -> Iterator[Row]:
    for zone in catalog.zones():
        for position, profile in enumerate(zone.storage_profiles):
            yield zone.name, profile, position == 0, zone.id


# -- system views ----------------------------------------------------------------------------------


@system_view("view_id id, schema_name text, view_name text, view_type text", doc="These views.")
def system_views(catalog: Catalog) -> Iterator[Row]:
    for view in catalog.system_views():
        yield view.id, _schema_name(catalog, view.schema_id), view.name, view.kind.name


@system_view(
    "view_id id, view_name text, column_name text, column_type text, is_nullable_column truth, "
    "column_precision number, column_scale number, column_length number",
    doc="The columns of these views.",
)
def system_view_columns(catalog: Catalog) -> Iterator[Row]:
    for view in catalog.system_views():
        for column in view.columns:
            yield (
                view.id,
                view.name,
                column.name,
                simple_string(column.type),
                column.nullable,
                *_parameters(column.type),
            )


# -- roles and privileges --------------------------------------------------------------------------


@system_view(
    "role_id id, role_name text, owner text, is_superuser truth, inherits truth",
    doc="The roles.",
)
def roles(catalog: Catalog) -> Iterator[Row]:
    for role in catalog.roles():
        yield role.id, role.name, role.owner, role.superuser, role.inherit


@system_view(
    "role_id id, role_name text, member_of_id id, member_of_name text, grantor_id id, granted id",
    doc="Which role is a member of which, and since when (in seconds since 1970).",
)
def role_members(catalog: Catalog) -> Iterator[Row]:
    for role in catalog.roles():
        for membership in role.member_of:
            group = membership.group, catalog.role_name(membership.group)
            yield role.id, role.name, *group, membership.grantor, membership.granted or None


@system_view(
    "object_kind text, object_id id, object_name text, grantee_id id, grantee_name text, "
    "grantor_id id, grantor_name text, privileges text, granted id",
    doc="What is granted to whom on objects, and when (in seconds since 1970); what is granted on "
    "the whole system.",
)
def privileges(catalog: Catalog) -> Iterator[Row]:
    for kind in all_kinds():
        for stored in catalog.contents.objects(kind.name) if kind.grantable else ():
            for grant in stored.value.privileges:
                granted = _granted(catalog, grant)
                yield kind.name, stored.id, stored.name, *granted, grant.granted or None
    for stored in catalog.contents.objects("system_privilege"):
        yield "system", None, None, *_granted(catalog, stored.value), None


def _granted(catalog: Catalog, grant: Any) -> Row:  # Any: a grant, or a system privilege
    return (
        grant.grantee,
        catalog.role_name(grant.grantee),
        grant.grantor or None,
        catalog.role_name(grant.grantor) if grant.grantor else None,
        ", ".join(privilege_names(grant.privileges)),
    )


@system_view(
    "object_kind text, role_id id, database_id id, schema_id id, grantee_id id, privileges text",
    doc="The default privileges of new objects; NULL means any.",
)
def default_privileges(catalog: Catalog) -> Iterator[Row]:
    for stored in catalog.contents.objects("default_privilege"):
        default = stored.value
        yield (
            default.object_kind.name.lower(),
            default.role or None,
            default.database or None,
            default.schema or None,
            default.grantee,
            ", ".join(privilege_names(default.privileges)),
        )


# -- clusters --------------------------------------------------------------------------------------


@system_view(
    "cluster_id id, cluster_name text, owner text, is_managed truth, size text, "
    "replication_factor number",
    doc="The clusters. Size and replication factor are those of managed ones.",
)
def clusters(catalog: Catalog) -> Iterator[Row]:
    for cluster in catalog.clusters():
        managed = cluster.size is not None
        factor = cluster.replication_factor if managed else None
        yield cluster.id, cluster.name, cluster.owner, managed, cluster.size, factor


@system_view(
    "cluster_id id, cluster_name text, replica_id id, replica_name text, owner text, size text, "
    "address text",
    doc="The replicas of clusters.",
)
def cluster_replicas(catalog: Catalog) -> Iterator[Row]:
    for cluster in catalog.clusters():
        for replica in catalog.replicas(cluster.id):
            yield (
                cluster.id,
                cluster.name,
                replica.id,
                replica.name,
                replica.owner,
                replica.size,
                replica.address,
            )


@system_view(
    "index_id id, replica_id id, name text, address text",
    doc="The addresses at which the state of a replica can be inspected.",
)
def introspection_indexes(catalog: Catalog) -> Iterator[Row]:
    for stored in catalog.contents.objects("introspection_index"):
        yield stored.value.id, stored.value.replica_id, stored.value.name, stored.value.address


# -- the rest --------------------------------------------------------------------------------------


@system_view(
    "object_kind text, object_id id, comment text",
    doc="The comments on objects whose own record has no comment.",
)
def comments(catalog: Catalog) -> Iterator[Row]:
    for stored in catalog.contents.objects("comment"):
        yield stored.value.object_kind.name.lower(), stored.value.object_id, stored.value.text


@system_view(
    "name text, value text, default_value text, is_default truth, type text",
    doc="The configuration parameters. Without a value and a default, each node's own setting "
    "applies.",
)
def configuration(catalog: Catalog) -> Iterator[Row]:
    for parameter in PARAMETERS.values():
        text = catalog.configuration(parameter.name)
        yield (
            parameter.name,
            parameter.default if text is None else text,
            parameter.default,
            text is None,
            parameter.type,
        )


def _schema_name(catalog: Catalog, schema_id: int) -> str | None:
    schema = catalog.schema_by_id(schema_id)
    return schema.name if schema else None


def _column_name(table: TableDescriptor | None, column_id: int) -> str | None:
    columns = table.columns if table else ()
    return next((column.name for column in columns if column.id == column_id), None)


def _ordinal(ids: tuple[int, ...], column_id: int) -> int | None:
    return ids.index(column_id) if column_id in ids else None


def _parameters(data_type: DataType) -> tuple[int | None, int | None, int | None]:
    """The precision, scale and length of a type; None for those it does not have."""
    if isinstance(data_type, DecimalType):
        return data_type.precision, data_type.scale, None
    if isinstance(data_type, TimeType):
        return data_type.precision, None, None
    if isinstance(data_type, CharType | VarcharType):
        return None, None, data_type.length
    return None, None, None
