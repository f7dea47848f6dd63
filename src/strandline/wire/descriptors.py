"""The formats of everything in a catalog: its objects, roles and privileges, and its own state.

The layout of every object with an id begins with the id, the parent's id (0 if it has no parent)
and the name. The layout of every object that is keyed by name begins with the name. So these fields
can be read from a record without decoding the rest (`strandline.wire.stored`).

If a version only adds fields, its layout is the previous layout followed by these fields. When an
older record is read, the added fields get the defaults of the class.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from strandline.errors import CorruptData, InvalidInput
from strandline.fencing import FenceToken
from strandline.model.descriptors import (
    ClusterDescriptor,
    ClusterReplica,
    Collation,
    ColumnDescriptor,
    Comment,
    ConfigEntry,
    ConsistencyMode,
    Constraint,
    ConstraintKind,
    DatabaseDescriptor,
    FenceEntry,
    FunctionDescriptor,
    IdAllocator,
    IndexColumn,
    IndexDescriptor,
    IndexKind,
    IndexStatus,
    IntrospectionIndex,
    PrincipalType,
    SchemaDescriptor,
    Setting,
    StorageUsageEvent,
    SystemConfiguration,
    SystemObjectFingerprint,
    SystemViewDescriptor,
    SystemViewKind,
    TableDescriptor,
    TableKind,
    TimestampEntry,
    ViewDescriptor,
    ZoneDescriptor,
    default_quorum,
)
from strandline.model.partitioning import PartitionField, Transform, TransformKind
from strandline.model.privileges import (
    DefaultPrivilege,
    Grant,
    Membership,
    ObjectKind,
    Privilege,
    RoleDescriptor,
    SystemPrivilege,
)
from strandline.wire.codecs import (
    BOOL,
    FLOAT,
    IDS,
    NO_PARENT,
    OPTIONAL_TEXT,
    PROPERTIES,
    TEXT,
    TIME,
    UINT,
    Codec,
    enum,
    flags,
    optional,
    pair,
    sequence,
)
from strandline.wire.columns import COLUMNS_OF_VERSIONS, SCHEMA_VERSIONS, STORAGE
from strandline.wire.registry import Fields, nested_list, register

_new_in_0_1_0 = partial(register, version=1, since="0.1.0")
_new_in_0_2_0 = partial(register, version=1, since="0.2.0")
_second_in_0_2_0 = partial(register, version=2, since="0.2.0")
_new_in_0_4_0 = partial(register, version=1, since="0.4.0")
_second_in_0_6_0 = partial(register, version=2, since="0.6.0")

# -- grants, which are stored in the objects that they apply to ------------------------------------

OBJECT_KIND = enum(ObjectKind)
_PRIVILEGES = flags(Privilege)

_GRANT_1: Fields = (("grantee", UINT), ("grantor", UINT), ("privileges", _PRIVILEGES))

_new_in_0_2_0(Grant, type_id=65, fields=_GRANT_1)
_second_in_0_6_0(Grant, type_id=65, fields=[*_GRANT_1, ("granted", UINT)])

GRANTS = nested_list(Grant)
"""The grants of an object."""

# -- databases, schemas and the objects in them; zones ---------------------------------------------

_DATABASE_1: Fields = (("id", UINT), ("__class__", NO_PARENT), ("name", TEXT), ("owner", TEXT))

_new_in_0_1_0(DatabaseDescriptor, type_id=10, fields=_DATABASE_1)
_second_in_0_2_0(DatabaseDescriptor, type_id=10, fields=[*_DATABASE_1, ("privileges", GRANTS)])

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

_new_in_0_1_0(SchemaDescriptor, type_id=11, fields=_SCHEMA_1)
_second_in_0_2_0(SchemaDescriptor, type_id=11, fields=[*_SCHEMA_1, ("privileges", GRANTS)])

_TABLE_1: Fields = (
    ("id", UINT),
    ("schema_id", UINT),
    ("name", TEXT),
    ("owner", TEXT),
    ("kind", enum(TableKind)),
    ("transactional", BOOL),
    ("provider", TEXT),
    ("schema_versions", SCHEMA_VERSIONS),
    ("next_column_id", UINT),
    ("zone_id", UINT),
    ("partition_columns", IDS),
    ("primary_key", IDS),
    ("colocation", IDS),
    ("storage", STORAGE),
    ("location", OPTIONAL_TEXT),
    ("properties", PROPERTIES),
    ("comment", OPTIONAL_TEXT),
    ("created", UINT),
)


def _partition_field(
    field_id: int, source_id: int, kind: TransformKind, width: int, name: str
) -> PartitionField:
    try:
        return PartitionField(field_id, source_id, Transform(kind, width), name)
    except InvalidInput as error:
        raise CorruptData(f"a partition field of a table: {error.message}") from None


_new_in_0_4_0(
    PartitionField,
    type_id=67,
    fields=[
        ("id", UINT),
        ("source_id", UINT),
        ("transform.kind", enum(TransformKind)),
        ("transform.width", UINT),
        ("name", TEXT),
    ],
    build=_partition_field,
)
_TABLE_2: Fields = (
    *_TABLE_1,
    ("privileges", GRANTS),
    ("primary_key_index", UINT),
    ("storage_profile", TEXT),
    ("stale_rows_fraction", FLOAT),
    ("min_stale_rows", UINT),
)

_new_in_0_1_0(TableDescriptor, type_id=12, fields=_TABLE_1)
_second_in_0_2_0(TableDescriptor, type_id=12, fields=_TABLE_2)
_new_in_0_4_0(
    Constraint,
    type_id=68,
    fields=[
        ("name", TEXT),
        ("kind", enum(ConstraintKind)),
        ("columns", IDS),
        ("text", TEXT),
        ("parent_id", UINT),
        ("parent_columns", IDS),
        ("update_rule", UINT),
        ("delete_rule", UINT),
        ("enabled", BOOL),
        ("validated", BOOL),
        ("rely", BOOL),
    ],
)
_TABLE_3: Fields = (
    *_TABLE_2,
    ("partitioning", nested_list(PartitionField)),
    ("constraints", nested_list(Constraint)),
)
register(TableDescriptor, type_id=12, version=3, since="0.4.0", fields=_TABLE_3)
_TABLE_4: Fields = tuple(
    (name, COLUMNS_OF_VERSIONS if name == "schema_versions" else codec) for name, codec in _TABLE_3
)
register(TableDescriptor, type_id=12, version=4, since="0.7.0", fields=_TABLE_4)
register(
    TableDescriptor,
    type_id=12,
    version=5,
    since="0.8.0",
    fields=[*_TABLE_4, ("partition_storage", optional(STORAGE))],
)

_VIEW_1: Fields = (
    ("id", UINT),
    ("schema_id", UINT),
    ("name", TEXT),
    ("owner", TEXT),
    ("columns", nested_list(ColumnDescriptor)),
    ("original_text", TEXT),
    ("expanded_text", TEXT),
    ("storage", STORAGE),
    ("properties", PROPERTIES),
    ("comment", OPTIONAL_TEXT),
    ("created", UINT),
)

_new_in_0_1_0(ViewDescriptor, type_id=13, fields=_VIEW_1)
_second_in_0_2_0(ViewDescriptor, type_id=13, fields=[*_VIEW_1, ("privileges", GRANTS)])
_new_in_0_2_0(
    SystemViewDescriptor,
    type_id=52,
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
_new_in_0_2_0(
    FunctionDescriptor,
    type_id=51,
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


def _zone_of_version_1(*values: Any) -> ZoneDescriptor:  # Any: field values
    """Return a zone from before quorums existed, with the default quorum for its replicas."""
    zone = ZoneDescriptor(*values)
    return replace(zone, quorum_size=default_quorum(zone.replicas))


_new_in_0_1_0(ZoneDescriptor, type_id=14, fields=_ZONE_1, build=_zone_of_version_1)
_second_in_0_2_0(
    ZoneDescriptor, type_id=14, fields=[*_ZONE_1, ("quorum_size", UINT), ("privileges", GRANTS)]
)

# -- indexes: the table's id follows the name, because indexes are looked up by it -----------------

_new_in_0_2_0(
    IndexColumn, type_id=66, fields=[("column_id", UINT), ("collation", optional(enum(Collation)))]
)
_new_in_0_2_0(
    IndexDescriptor,
    type_id=50,
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

# -- clusters, their replicas and introspection indexes --------------------------------------------

_new_in_0_2_0(
    ClusterDescriptor,
    type_id=57,
    fields=[
        ("id", UINT),
        ("__class__", NO_PARENT),
        ("name", TEXT),
        ("owner", TEXT),
        ("size", OPTIONAL_TEXT),
        ("replication_factor", UINT),
        ("privileges", GRANTS),
    ],
)
_new_in_0_2_0(
    ClusterReplica,
    type_id=58,
    fields=[
        ("id", UINT),
        ("cluster_id", UINT),
        ("name", TEXT),
        ("owner", TEXT),
        ("size", TEXT),
        ("address", TEXT),
    ],
)
_new_in_0_2_0(
    IntrospectionIndex,
    type_id=59,
    fields=[("id", UINT), ("replica_id", UINT), ("name", TEXT), ("owner", TEXT), ("address", TEXT)],
)

# -- roles and privileges --------------------------------------------------------------------------

_PAIRS = sequence(pair(UINT, UINT))
_WITHOUT_TIMES: Codec[tuple[Membership, ...]] = Codec(
    lambda out, joined: _PAIRS.write(out, tuple((each.group, each.grantor) for each in joined)),
    lambda reader: tuple(Membership(*ids) for ids in _PAIRS.read(reader)),
)
_ROLE: Fields = (
    ("id", UINT),
    ("__class__", NO_PARENT),
    ("name", TEXT),
    ("owner", TEXT),
    ("superuser", BOOL),
    ("inherit", BOOL),
)

register(
    Membership,
    type_id=69,
    version=1,
    since="0.6.0",
    fields=[("group", UINT), ("grantor", UINT), ("granted", UINT)],
)
_new_in_0_2_0(RoleDescriptor, type_id=53, fields=[*_ROLE, ("member_of", _WITHOUT_TIMES)])
_second_in_0_6_0(
    RoleDescriptor,
    type_id=53,
    fields=[*_ROLE, ("member_of", nested_list(Membership)), ("created", UINT)],
)
_new_in_0_2_0(
    DefaultPrivilege,
    type_id=54,
    fields=[
        ("name", TEXT),
        ("role", UINT),
        ("database", UINT),
        ("schema", UINT),
        ("object_kind", OBJECT_KIND),
        ("grantee", UINT),
        ("privileges", _PRIVILEGES),
    ],
)
_new_in_0_2_0(
    SystemPrivilege,
    type_id=55,
    fields=[("name", TEXT), ("grantee", UINT), ("grantor", UINT), ("privileges", _PRIVILEGES)],
)

# -- the catalog's own state: objects keyed by name begin with the name ----------------------------

_new_in_0_1_0(FenceToken, type_id=5, fields=[("deploy_generation", UINT), ("epoch", UINT)])
register(
    FenceToken,
    type_id=5,
    version=2,
    since="0.5.0",
    fields=[("deploy_generation", UINT), ("epoch", UINT), ("nonce", UINT)],
)
_new_in_0_1_0(IdAllocator, type_id=20, fields=[("name", TEXT), ("next_id", UINT)])
_new_in_0_1_0(ConfigEntry, type_id=21, fields=[("name", TEXT), ("value", TEXT)])
_new_in_0_1_0(
    FenceEntry, type_id=22, fields=[("name", TEXT), ("deploy_generation", UINT), ("epoch", UINT)]
)
_new_in_0_2_0(
    Comment,
    type_id=56,
    fields=[("name", TEXT), ("object_kind", OBJECT_KIND), ("object_id", UINT), ("text", TEXT)],
)
_new_in_0_2_0(SystemConfiguration, type_id=60, fields=[("name", TEXT), ("value", TEXT)])
_new_in_0_2_0(Setting, type_id=61, fields=[("name", TEXT), ("value", TEXT)])
_new_in_0_2_0(TimestampEntry, type_id=62, fields=[("name", TEXT), ("time", UINT)])
_new_in_0_2_0(
    SystemObjectFingerprint,
    type_id=63,
    fields=[
        ("name", TEXT),
        ("object_id", UINT),
        ("object_kind", OBJECT_KIND),
        ("fingerprint", TEXT),
    ],
)
_SIZE = pair(UINT, UINT)
_ONE_SIZE: Codec[tuple[tuple[int, int], ...]] = Codec(
    lambda out, sizes: _SIZE.write(out, sizes[0]), lambda reader: (_SIZE.read(reader),)
)

_new_in_0_2_0(StorageUsageEvent, type_id=64, fields=[("sizes", _ONE_SIZE), ("collected", UINT)])
register(
    StorageUsageEvent,
    type_id=64,
    version=2,
    since="0.4.0",
    fields=[("time", TIME), ("sizes", sequence(_SIZE)), ("collected", UINT)],
)
