"""The formats of clusters, their replicas and the ways to look into them."""

from __future__ import annotations

from strandline.model.clusters import ClusterDescriptor, ClusterReplica, IntrospectionIndex
from strandline.wire.codecs import NO_PARENT, OPTIONAL_TEXT, TEXT, UINT
from strandline.wire.privileges import GRANTS
from strandline.wire.registry import register

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
