"""The formats of everything in a catalog: its objects, roles and privileges, and its own state.

The layout of every object that has an id begins with id, id of the parent (0 where there is none)
and name; that of every other object with its name. So these are read out of a record without
decoding the rest (`strandline.wire.stored`).

Where a version only adds to the one before, its layout is that one and more: what it adds has the
defaults of the class when an older record is read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
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
    SchemaVersion,
    Setting,
    StorageFormat,
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
    SINT,
    TEXT,
    UINT,
    Codec,
    Reader,
    enum,
    flags,
    optional,
    pair,
    sequence,
    triple,
    write_text,
    write_uint,
)
from strandline.wire.registry import Fields, nested, nested_list, register, register_codec
from strandline.wire.types import DATA_TYPE, common_type

_new_in_0_1_0 = partial(register, version=1, since="0.1.0")
_new_in_0_2_0 = partial(register, version=1, since="0.2.0")
_second_in_0_2_0 = partial(register, version=2, since="0.2.0")

# -- grants, which stand in the objects that they apply to -----------------------------------------

OBJECT_KIND = enum(ObjectKind)
_PRIVILEGES = flags(Privilege)

_new_in_0_2_0(
    Grant,
    type_id=65,
    fields=[("grantee", UINT), ("grantor", UINT), ("privileges", _PRIVILEGES)],
)

GRANTS = nested_list(Grant)
"""The grants that stand in an object."""

# -- what tables and views consist of --------------------------------------------------------------


def _write_column(out: bytearray, value: ColumnDescriptor) -> None:
    write_uint(out, value.id)
    write_text(out, value.name)
    _write_type(out, value.type)
    if value.comment is None and value.default is None and not value.metadata:
        out += _END_OF[value.nullable]
        return
    BOOL.write(out, value.nullable)
    OPTIONAL_TEXT.write(out, value.comment)
    OPTIONAL_TEXT.write(out, value.default)
    write_text(out, value.metadata)


def _read_column(reader: Reader) -> ColumnDescriptor:
    column = _read_common_column(reader)
    if column is not None:
        return column
    return ColumnDescriptor(
        reader.uint(),
        TEXT.read(reader),
        DATA_TYPE.read(reader),
        BOOL.read(reader),
        OPTIONAL_TEXT.read(reader),
        OPTIONAL_TEXT.read(reader),
        TEXT.read(reader),
    )


def _read_common_column(reader: Reader) -> ColumnDescriptor | None:
    """A column as nearly all are: of a common type, its texts short, no default and metadata.

    None, and the reader stays where it is, for every other one, and for bytes that are no column.
    """
    data, start = reader.data, reader.position
    try:
        column_id, length = data[start], data[start + 1]
        position = start + 2 + length
        if column_id > _LONGEST_BYTE or length > _LONGEST_BYTE:
            return None
        name = data[start + 2 : position].decode()
        data_type, position = common_type(data, position)
        if data_type is None:
            return None
        nullable = _ENDS.get(data[position : position + _END_BYTES])
        if nullable is not None:
            reader.position = position + _END_BYTES
            return ColumnDescriptor(column_id, name, data_type, nullable)
        is_nullable, has_comment, length = data[position : position + 3]
        end = position + 3 + length
        rest = data[end : end + len(_NO_DEFAULT)]
        if length > _LONGEST_BYTE or has_comment != 1 or is_nullable > 1 or rest != _NO_DEFAULT:
            return None
        comment = data[position + 3 : end].decode()
    except (IndexError, ValueError):
        return None
    reader.position = end + len(_NO_DEFAULT)
    return ColumnDescriptor(column_id, name, data_type, is_nullable == 1, comment)


_write_type = DATA_TYPE.write
_END_BYTES = 4
_ENDS = {bytes([nullable, 0, 0, 0]): bool(nullable) for nullable in (0, 1)}
"""How most columns end: whether they are nullable, and no comment, default and metadata."""
_END_OF = {nullable: end for end, nullable in _ENDS.items()}
_NO_DEFAULT = bytes([0, 0])
"""No default, and no metadata."""
_LONGEST_BYTE = 0x7F
"""The largest number that is one byte."""

# Most of what is read and written is columns, so these two go without the loop over fields.
register_codec(
    ColumnDescriptor,
    type_id=15,
    version=1,
    since="0.1.0",
    codec=Codec(_write_column, _read_column),
)
_new_in_0_1_0(
    SchemaVersion,
    type_id=16,
    fields=[("number", UINT), ("columns", nested_list(ColumnDescriptor))],
)
_new_in_0_1_0(
    StorageFormat,
    type_id=17,
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

_NESTED_STORAGE = nested(StorageFormat)


@lru_cache(maxsize=32)
def _storage_bytes(value: StorageFormat) -> bytes:
    """Few forms of storage stand in most tables, and each is put together of many parts."""
    out = bytearray()
    _NESTED_STORAGE.write(out, value)
    return bytes(out)


def _write_storage(out: bytearray, value: StorageFormat) -> None:
    if value.hive_columns or value.properties or value.serde_properties:  # of this table, and long
        _NESTED_STORAGE.write(out, value)
    else:
        out += _storage_bytes(value)


STORAGE = Codec(_write_storage, _NESTED_STORAGE.read)
"""How files are read, as a nested object."""

# -- databases, schemas and what is in them; zones -------------------------------------------------

_DATABASE_1: Fields = (("id", UINT), ("__class__", NO_PARENT), ("name", TEXT), ("owner", TEXT))

_new_in_0_1_0(
    DatabaseDescriptor,
    type_id=10,
    fields=_DATABASE_1,
)
_second_in_0_2_0(
    DatabaseDescriptor,
    type_id=10,
    fields=[*_DATABASE_1, ("privileges", GRANTS)],
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

_new_in_0_1_0(SchemaDescriptor, type_id=11, fields=_SCHEMA_1)
_second_in_0_2_0(
    SchemaDescriptor,
    type_id=11,
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


register(
    PartitionField,
    type_id=67,
    version=1,
    since="0.4.0",
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
register(
    TableDescriptor,
    type_id=12,
    version=3,
    since="0.4.0",
    fields=[*_TABLE_2, ("partitioning", nested_list(PartitionField))],
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
_second_in_0_2_0(
    ViewDescriptor,
    type_id=13,
    fields=[*_VIEW_1, ("privileges", GRANTS)],
)
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
    """Before there were quorums, every zone had the default one for its replicas."""
    zone = ZoneDescriptor(*values)
    return replace(zone, quorum_size=default_quorum(zone.replicas))


_new_in_0_1_0(ZoneDescriptor, type_id=14, fields=_ZONE_1, build=_zone_of_version_1)
_second_in_0_2_0(
    ZoneDescriptor,
    type_id=14,
    fields=[*_ZONE_1, ("quorum_size", UINT), ("privileges", GRANTS)],
)

# -- indexes: the id of the table follows the name, because they are looked up by it ---------------

_new_in_0_2_0(
    IndexColumn,
    type_id=66,
    fields=[("column_id", UINT), ("collation", optional(enum(Collation)))],
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

# -- clusters, their replicas and the ways to look into them ---------------------------------------

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
    fields=[
        ("id", UINT),
        ("replica_id", UINT),
        ("name", TEXT),
        ("owner", TEXT),
        ("address", TEXT),
    ],
)

# -- roles and privileges --------------------------------------------------------------------------

_new_in_0_2_0(
    RoleDescriptor,
    type_id=53,
    fields=[
        ("id", UINT),
        ("__class__", NO_PARENT),
        ("name", TEXT),
        ("owner", TEXT),
        ("superuser", BOOL),
        ("inherit", BOOL),
        ("member_of", sequence(pair(UINT, UINT))),
    ],
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
    fields=[
        ("name", TEXT),
        ("grantee", UINT),
        ("grantor", UINT),
        ("privileges", _PRIVILEGES),
    ],
)

# -- the catalog's own state: objects that are keyed by name begin with it -------------------------

_new_in_0_1_0(
    FenceToken,
    type_id=5,
    fields=[("deploy_generation", UINT), ("epoch", UINT)],
)
_new_in_0_1_0(
    IdAllocator,
    type_id=20,
    fields=[("name", TEXT), ("next_id", UINT)],
)
_new_in_0_1_0(
    ConfigEntry,
    type_id=21,
    fields=[("name", TEXT), ("value", TEXT)],
)
_new_in_0_1_0(
    FenceEntry,
    type_id=22,
    fields=[("name", TEXT), ("deploy_generation", UINT), ("epoch", UINT)],
)
_new_in_0_2_0(
    Comment,
    type_id=56,
    fields=[
        ("name", TEXT),
        ("object_kind", OBJECT_KIND),
        ("object_id", UINT),
        ("text", TEXT),
    ],
)
_new_in_0_2_0(
    SystemConfiguration,
    type_id=60,
    fields=[("name", TEXT), ("value", TEXT)],
)
_new_in_0_2_0(
    Setting,
    type_id=61,
    fields=[("name", TEXT), ("value", TEXT)],
)
_new_in_0_2_0(
    TimestampEntry,
    type_id=62,
    fields=[("name", TEXT), ("time", UINT)],
)
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
_new_in_0_2_0(
    StorageUsageEvent,
    type_id=64,
    fields=[("table_id", UINT), ("size_bytes", UINT), ("collected", UINT)],
)
