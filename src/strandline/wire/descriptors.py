"""The formats of databases, schemas, tables, views, functions, indexes, zones and clusters.

The layout of every object that has an id begins with id, id of the parent (0 where there is none)
and name; that of every other object with its name. So these are read out of a record without
decoding the rest (`strandline.wire.stored`).

Where a version only adds to the one before, its layout is that one and more: what it adds has the
defaults of the class when an older record is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strandline.model.clusters import ClusterDescriptor, ClusterReplica, IntrospectionIndex
from strandline.model.descriptors import (
    ColumnDescriptor,
    ConsistencyMode,
    DatabaseDescriptor,
    FunctionDescriptor,
    PrincipalType,
    SchemaDescriptor,
    SchemaVersion,
    StorageFormat,
    SystemViewDescriptor,
    SystemViewKind,
    TableDescriptor,
    TableKind,
    ViewDescriptor,
    ZoneDescriptor,
    default_quorum,
)
from strandline.model.indexes import Collation, IndexColumn, IndexDescriptor, IndexKind, IndexStatus
from strandline.wire.codecs import (
    BOOL,
    FLOAT,
    IDS,
    NO_PARENT,
    OPTIONAL_TEXT,
    PROPERTIES,
    SINT,
    TEXT,
    UINT,
    Codec,
    Reader,
    enum,
    optional,
    pair,
    sequence,
    triple,
    write_uint,
)
from strandline.wire.privileges import GRANTS
from strandline.wire.registry import Fields, nested, nested_list, register, register_codec
from strandline.wire.types import DATA_TYPE

# -- what tables and views consist of --------------------------------------------------------------


def _write_column(out: bytearray, value: ColumnDescriptor) -> None:
    write_uint(out, value.id)
    TEXT.write(out, value.name)
    DATA_TYPE.write(out, value.type)
    BOOL.write(out, value.nullable)
    OPTIONAL_TEXT.write(out, value.comment)
    OPTIONAL_TEXT.write(out, value.default)
    TEXT.write(out, value.metadata)


def _read_column(reader: Reader) -> ColumnDescriptor:
    return ColumnDescriptor(
        reader.uint(),
        TEXT.read(reader),
        DATA_TYPE.read(reader),
        BOOL.read(reader),
        OPTIONAL_TEXT.read(reader),
        OPTIONAL_TEXT.read(reader),
        TEXT.read(reader),
    )


# Most of what is read and written is columns, so these two go without the loop over fields.
register_codec(
    ColumnDescriptor,
    type_id=15,
    version=1,
    since="0.1.0",
    codec=Codec(_write_column, _read_column),
)
register(
    SchemaVersion,
    type_id=16,
    version=1,
    since="0.1.0",
    fields=[("number", UINT), ("columns", nested_list(ColumnDescriptor))],
)
register(
    StorageFormat,
    type_id=17,
    version=1,
    since="0.1.0",
    fields=[
        ("input_format", OPTIONAL_TEXT),
        ("output_format", OPTIONAL_TEXT),
        ("serde", OPTIONAL_TEXT),
        ("serde_name", OPTIONAL_TEXT),
        ("serde_properties", PROPERTIES),
        ("compressed", BOOL),
        ("buckets", SINT),
        ("bucket_columns", sequence(TEXT)),
        ("sort_columns", sequence(pair(TEXT, UINT))),
        ("properties", PROPERTIES),
        ("hive_columns", optional(sequence(triple(TEXT, TEXT, OPTIONAL_TEXT)))),
    ],
)

# -- databases, schemas and what is in them; zones -------------------------------------------------

_DATABASE_1: Fields = (("id", UINT), ("__class__", NO_PARENT), ("name", TEXT), ("owner", TEXT))

register(
    DatabaseDescriptor,
    type_id=10,
    version=1,
    since="0.1.0",
    fields=_DATABASE_1,
    build=lambda id_, _, name, owner: DatabaseDescriptor(id_, name, owner),
)
register(
    DatabaseDescriptor,
    type_id=10,
    version=2,
    since="0.2.0",
    fields=[*_DATABASE_1, ("privileges", GRANTS)],
    build=lambda id_, _, *rest: DatabaseDescriptor(id_, *rest),
)

_SCHEMA_1: Fields = (
    ("id", UINT),
    ("database_id", UINT),
    ("name", TEXT),
    ("owner", TEXT),
    ("owner_type", enum(PrincipalType)),
    ("comment", OPTIONAL_TEXT),
    ("location", TEXT),
    ("properties", PROPERTIES),
)

register(SchemaDescriptor, type_id=11, version=1, since="0.1.0", fields=_SCHEMA_1)
register(
    SchemaDescriptor,
    type_id=11,
    version=2,
    since="0.2.0",
    fields=[*_SCHEMA_1, ("privileges", GRANTS)],
)

_TABLE_1: Fields = (
    ("id", UINT),
    ("schema_id", UINT),
    ("name", TEXT),
    ("owner", TEXT),
    ("kind", enum(TableKind)),
    ("transactional", BOOL),
    ("provider", TEXT),
    ("schema_versions", nested_list(SchemaVersion)),
    ("next_column_id", UINT),
    ("zone_id", UINT),
    ("partition_columns", IDS),
    ("primary_key", IDS),
    ("colocation", IDS),
    ("storage", nested(StorageFormat)),
    ("location", OPTIONAL_TEXT),
    ("properties", PROPERTIES),
    ("comment", OPTIONAL_TEXT),
    ("created", UINT),
)

register(TableDescriptor, type_id=12, version=1, since="0.1.0", fields=_TABLE_1)
register(
    TableDescriptor,
    type_id=12,
    version=2,
    since="0.2.0",
    fields=[
        *_TABLE_1,
        ("privileges", GRANTS),
        ("primary_key_index", UINT),
        ("storage_profile", TEXT),
        ("stale_rows_fraction", FLOAT),
        ("min_stale_rows", UINT),
    ],
)

_VIEW_1: Fields = (
    ("id", UINT),
    ("schema_id", UINT),
    ("name", TEXT),
    ("owner", TEXT),
    ("columns", nested_list(ColumnDescriptor)),
    ("original_text", TEXT),
    ("expanded_text", TEXT),
    ("storage", nested(StorageFormat)),
    ("properties", PROPERTIES),
    ("comment", OPTIONAL_TEXT),
    ("created", UINT),
)

register(ViewDescriptor, type_id=13, version=1, since="0.1.0", fields=_VIEW_1)
register(
    ViewDescriptor,
    type_id=13,
    version=2,
    since="0.2.0",
    fields=[*_VIEW_1, ("privileges", GRANTS)],
)
register(
    SystemViewDescriptor,
    type_id=52,
    version=1,
    since="0.2.0",
    fields=[
        ("id", UINT),
        ("schema_id", UINT),
        ("name", TEXT),
        ("owner", TEXT),
        ("columns", nested_list(ColumnDescriptor)),
        ("kind", enum(SystemViewKind)),
        ("privileges", GRANTS),
    ],
)
register(
    FunctionDescriptor,
    type_id=51,
    version=1,
    since="0.2.0",
    fields=[
        ("id", UINT),
        ("schema_id", UINT),
        ("name", TEXT),
        ("owner", TEXT),
        ("class_name", TEXT),
        ("owner_type", enum(PrincipalType)),
        ("resources", sequence(pair(TEXT, TEXT))),
        ("created", UINT),
        ("privileges", GRANTS),
    ],
)

_ZONE_1: Fields = (
    ("id", UINT),
    ("__class__", NO_PARENT),
    ("name", TEXT),
    ("owner", TEXT),
    ("partitions", UINT),
    ("replicas", optional(UINT)),
    ("node_filter", TEXT),
    ("storage_profiles", sequence(TEXT)),
    ("storage_location", OPTIONAL_TEXT),
    ("auto_adjust_scale_up", optional(UINT)),
    ("auto_adjust_scale_down", optional(UINT)),
    ("consistency_mode", enum(ConsistencyMode)),
)


def _zone_of_version_1(id_: int, _: None, *rest: Any) -> ZoneDescriptor:  # Any: field values
    """Before there were quorums, every zone had the default one for its replicas."""
    zone = ZoneDescriptor(id_, *rest)
    return replace(zone, quorum_size=default_quorum(zone.replicas))


register(
    ZoneDescriptor, type_id=14, version=1, since="0.1.0", fields=_ZONE_1, build=_zone_of_version_1
)
register(
    ZoneDescriptor,
    type_id=14,
    version=2,
    since="0.2.0",
    fields=[*_ZONE_1, ("quorum_size", UINT), ("privileges", GRANTS)],
    build=lambda id_, _, *rest: ZoneDescriptor(id_, *rest),
)

# -- indexes: the id of the table follows the name, because they are looked up by it ---------------

register(
    IndexColumn,
    type_id=66,
    version=1,
    since="0.2.0",
    fields=[("column_id", UINT), ("collation", optional(enum(Collation)))],
)
register(
    IndexDescriptor,
    type_id=50,
    version=1,
    since="0.2.0",
    fields=[
        ("id", UINT),
        ("schema_id", UINT),
        ("name", TEXT),
        ("table_id", UINT),
        ("owner", TEXT),
        ("kind", enum(IndexKind)),
        ("columns", nested_list(IndexColumn)),
        ("status", enum(IndexStatus)),
        ("unique", BOOL),
        ("created_with_table", BOOL),
    ],
)

# -- clusters, their replicas and the ways to look into them ---------------------------------------

register(
    ClusterDescriptor,
    type_id=57,
    version=1,
    since="0.2.0",
    fields=[
        ("id", UINT),
        ("__class__", NO_PARENT),
        ("name", TEXT),
        ("owner", TEXT),
        ("size", OPTIONAL_TEXT),
        ("replication_factor", UINT),
        ("privileges", GRANTS),
    ],
    build=lambda id_, _, *rest: ClusterDescriptor(id_, *rest),
)
register(
    ClusterReplica,
    type_id=58,
    version=1,
    since="0.2.0",
    fields=[
        ("id", UINT),
        ("cluster_id", UINT),
        ("name", TEXT),
        ("owner", TEXT),
        ("size", TEXT),
        ("address", TEXT),
    ],
)
register(
    IntrospectionIndex,
    type_id=59,
    version=1,
    since="0.2.0",
    fields=[
        ("id", UINT),
        ("replica_id", UINT),
        ("name", TEXT),
        ("owner", TEXT),
        ("address", TEXT),
    ],
)
