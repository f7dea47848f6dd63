"""The formats of the model's objects, and of the fence token.

The layout of every object that has an id begins with id, id of the parent (0 where there is none)
and name; that of every other object with its name. So these are read out of a record without
decoding the rest (`strandline.wire.stored`).
"""

from __future__ import annotations

from strandline.fencing import FenceToken
from strandline.model.bookkeeping import ConfigEntry, FenceEntry, IdAllocator
from strandline.model.descriptors import (
    ColumnDescriptor,
    ConsistencyMode,
    DatabaseDescriptor,
    PrincipalType,
    SchemaDescriptor,
    SchemaVersion,
    StorageFormat,
    TableDescriptor,
    TableKind,
    ViewDescriptor,
    ZoneDescriptor,
)
from strandline.wire.codecs import (
    BOOL,
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
from strandline.wire.registry import nested, nested_list, register
from strandline.wire.types import DATA_TYPE

_OPTIONAL_TEXT = optional(TEXT)
_IDS = sequence(UINT)


def _no_parent(out: bytearray, value: object) -> None:
    write_uint(out, 0)


def _read_no_parent(reader: Reader) -> None:
    if reader.uint() != 0:
        raise reader.corrupt("a parent where there is none")


_NO_PARENT: Codec[None] = Codec(_no_parent, _read_no_parent)

register(
    DatabaseDescriptor,
    type_id=10,
    version=1,
    since="0.1.0",
    fields=[("id", UINT), ("__class__", _NO_PARENT), ("name", TEXT), ("owner", TEXT)],
    build=lambda id_, _, name, owner: DatabaseDescriptor(id_, name, owner),
)
register(
    SchemaDescriptor,
    type_id=11,
    version=1,
    since="0.1.0",
    fields=[
        ("id", UINT),
        ("database_id", UINT),
        ("name", TEXT),
        ("owner", TEXT),
        ("owner_type", enum(PrincipalType)),
        ("comment", _OPTIONAL_TEXT),
        ("location", TEXT),
        ("properties", PROPERTIES),
    ],
)
register(
    ColumnDescriptor,
    type_id=15,
    version=1,
    since="0.1.0",
    fields=[
        ("id", UINT),
        ("name", TEXT),
        ("type", DATA_TYPE),
        ("nullable", BOOL),
        ("comment", _OPTIONAL_TEXT),
        ("default", _OPTIONAL_TEXT),
        ("metadata", TEXT),
    ],
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
        ("input_format", _OPTIONAL_TEXT),
        ("output_format", _OPTIONAL_TEXT),
        ("serde", _OPTIONAL_TEXT),
        ("serde_name", _OPTIONAL_TEXT),
        ("serde_properties", PROPERTIES),
        ("compressed", BOOL),
        ("buckets", SINT),
        ("bucket_columns", sequence(TEXT)),
        ("sort_columns", sequence(pair(TEXT, UINT))),
        ("properties", PROPERTIES),
        ("hive_columns", optional(sequence(triple(TEXT, TEXT, _OPTIONAL_TEXT)))),
    ],
)
register(
    TableDescriptor,
    type_id=12,
    version=1,
    since="0.1.0",
    fields=[
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
        ("partition_columns", _IDS),
        ("primary_key", _IDS),
        ("colocation", _IDS),
        ("storage", nested(StorageFormat)),
        ("location", _OPTIONAL_TEXT),
        ("properties", PROPERTIES),
        ("comment", _OPTIONAL_TEXT),
        ("created", UINT),
    ],
)
register(
    ViewDescriptor,
    type_id=13,
    version=1,
    since="0.1.0",
    fields=[
        ("id", UINT),
        ("schema_id", UINT),
        ("name", TEXT),
        ("owner", TEXT),
        ("columns", nested_list(ColumnDescriptor)),
        ("original_text", TEXT),
        ("expanded_text", TEXT),
        ("storage", nested(StorageFormat)),
        ("properties", PROPERTIES),
        ("comment", _OPTIONAL_TEXT),
        ("created", UINT),
    ],
)
register(
    ZoneDescriptor,
    type_id=14,
    version=1,
    since="0.1.0",
    fields=[
        ("id", UINT),
        ("__class__", _NO_PARENT),
        ("name", TEXT),
        ("owner", TEXT),
        ("partitions", UINT),
        ("replicas", optional(UINT)),
        ("node_filter", TEXT),
        ("storage_profiles", sequence(TEXT)),
        ("storage_location", _OPTIONAL_TEXT),
        ("auto_adjust_scale_up", optional(UINT)),
        ("auto_adjust_scale_down", optional(UINT)),
        ("consistency_mode", enum(ConsistencyMode)),
    ],
    build=lambda id_, _, *rest: ZoneDescriptor(id_, *rest),
)
register(
    IdAllocator,
    type_id=20,
    version=1,
    since="0.1.0",
    fields=[("name", TEXT), ("next_id", UINT)],
)
register(
    ConfigEntry,
    type_id=21,
    version=1,
    since="0.1.0",
    fields=[("name", TEXT), ("value", TEXT)],
)
register(
    FenceEntry,
    type_id=22,
    version=1,
    since="0.1.0",
    fields=[("name", TEXT), ("deploy_generation", UINT), ("epoch", UINT)],
)
register(
    FenceToken,
    type_id=5,
    version=1,
    since="0.1.0",
    fields=[("deploy_generation", UINT), ("epoch", UINT)],
)
