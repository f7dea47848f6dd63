"""The formats of the catalog's own state. Objects that are keyed by name begin with it."""

from __future__ import annotations

from strandline.fencing import FenceToken
from strandline.model.bookkeeping import (
    Comment,
    ConfigEntry,
    FenceEntry,
    IdAllocator,
    Setting,
    StorageUsageEvent,
    SystemConfiguration,
    SystemObjectFingerprint,
    TimestampEntry,
)
from strandline.wire.codecs import TEXT, UINT
from strandline.wire.privileges import OBJECT_KIND
from strandline.wire.registry import register

register(
    FenceToken,
    type_id=5,
    version=1,
    since="0.1.0",
    fields=[("deploy_generation", UINT), ("epoch", UINT)],
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
    Comment,
    type_id=56,
    version=1,
    since="0.2.0",
    fields=[
        ("name", TEXT),
        ("object_kind", OBJECT_KIND),
        ("object_id", UINT),
        ("text", TEXT),
    ],
)
register(
    SystemConfiguration,
    type_id=60,
    version=1,
    since="0.2.0",
    fields=[("name", TEXT), ("value", TEXT)],
)
register(
    Setting,
    type_id=61,
    version=1,
    since="0.2.0",
    fields=[("name", TEXT), ("value", TEXT)],
)
register(
    TimestampEntry,
    type_id=62,
    version=1,
    since="0.2.0",
    fields=[("name", TEXT), ("time", UINT)],
)
register(
    SystemObjectFingerprint,
    type_id=63,
    version=1,
    since="0.2.0",
    fields=[
        ("name", TEXT),
        ("object_id", UINT),
        ("object_kind", OBJECT_KIND),
        ("fingerprint", TEXT),
    ],
)
register(
    StorageUsageEvent,
    type_id=64,
    version=1,
    since="0.2.0",
    fields=[("table_id", UINT), ("size_bytes", UINT), ("collected", UINT)],
)
