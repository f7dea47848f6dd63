"""The formats of roles, privileges and grants."""

from __future__ import annotations

from strandline.model.privileges import (
    DefaultPrivilege,
    Grant,
    ObjectKind,
    Privilege,
    RoleDescriptor,
    SystemPrivilege,
)
from strandline.wire.codecs import BOOL, NO_PARENT, TEXT, UINT, enum, flags, pair, sequence
from strandline.wire.registry import nested_list, register

OBJECT_KIND = enum(ObjectKind)
_PRIVILEGES = flags(Privilege)

register(
    Grant,
    type_id=65,
    version=1,
    since="0.2.0",
    fields=[("grantee", UINT), ("grantor", UINT), ("privileges", _PRIVILEGES)],
)

GRANTS = nested_list(Grant)
"""The grants that stand in an object."""

register(
    RoleDescriptor,
    type_id=53,
    version=1,
    since="0.2.0",
    fields=[
        ("id", UINT),
        ("__class__", NO_PARENT),
        ("name", TEXT),
        ("owner", TEXT),
        ("superuser", BOOL),
        ("inherit", BOOL),
        ("member_of", sequence(pair(UINT, UINT))),
    ],
    build=lambda id_, _, *rest: RoleDescriptor(id_, *rest),
)
register(
    DefaultPrivilege,
    type_id=54,
    version=1,
    since="0.2.0",
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
register(
    SystemPrivilege,
    type_id=55,
    version=1,
    since="0.2.0",
    fields=[
        ("name", TEXT),
        ("grantee", UINT),
        ("grantor", UINT),
        ("privileges", _PRIVILEGES),
    ],
)
