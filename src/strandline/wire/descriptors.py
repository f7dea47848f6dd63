"""The formats of databases, schemas, tables, views, functions and zones.

The layout of every object that has an id begins with id, id of the parent (0 where there is none)
and name; that of every other object with its name. So these are read out of a record without
decoding the rest (`strandline.wire.stored`).

Where a version only adds to the one before, its layout is that one and more: what it adds has the
defaults of the class when an older record is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from strandline.wire.codecs import (
    BOOL,
    FLOAT,
    IDS,
    NO_PARENT,
    OPTIONAL_TEXT,
    PROPERTIES,
    TEXT,
    UINT,
    enum,
    optional,
    pair,
    sequence,
)
from strandline.wire.privileges import GRANTS
from strandline.wire.registry import Fields, nested, nested_list, register

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
