"""The formats of indexes. The table's id follows the name: indexes are looked up by it."""

from __future__ import annotations

from strandline.model.indexes import (
    Collation,
    IndexColumn,
    IndexDescriptor,
    IndexKind,
    IndexStatus,
)
from strandline.wire.codecs import BOOL, TEXT, UINT, enum, optional
from strandline.wire.registry import nested_list, register

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
