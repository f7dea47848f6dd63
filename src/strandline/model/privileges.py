"""Access control: roles, privileges, and grants of privileges to roles.

A **role** is both a user and a group: a user connects under the name of a role, and a role may be a
member of other roles and then has their privileges. Every user is a member of `PUBLIC`. A **grant**
is stored in the object that it applies to, so that it is dropped with the object. System privileges
and default privileges (for objects created later) are separate objects. An owner needs no grant on
its objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, IntFlag


class Privilege(IntFlag):
    """The privileges. Their numbers are on disk, so a number never changes its meaning."""

    SELECT = 1
    INSERT = 2
    UPDATE = 4
    DELETE = 8
    CREATE = 16
    """Create objects inside this one: tables in a schema, schemas in a database, …"""
    USAGE = 32
    """Access the objects inside this one: the tables of a schema, the machines of a cluster."""
    EXECUTE = 64
    CREATE_ROLE = 128
    CREATE_DATABASE = 256
    CREATE_ZONE = 512
    CREATE_CLUSTER = 1024
    CONFIGURE = 2048
    """Change the configuration of the whole catalog."""


class ObjectKind(Enum):
    """The kinds of objects that can have grants, owners and comments. The values are on disk."""

    SYSTEM = 0
    DATABASE = 1
    SCHEMA = 2
    TABLE = 3
    VIEW = 4
    FUNCTION = 5
    SYSTEM_VIEW = 6
    INDEX = 7
    ZONE = 8
    ROLE = 9
    CLUSTER = 10
    CLUSTER_REPLICA = 11


PUBLIC = 0
"""The id of the role that every user is a member of. Every catalog has it, without a descriptor."""

PUBLIC_NAME = "public"
"""The name of `PUBLIC`. Every user may use the objects it owns, and no user may alter them."""

SYSTEM_NAME = "system"
"""The owner of objects that Strandline creates and the author of its changes. Never a user."""

RESERVED_NAMES = frozenset({PUBLIC_NAME, SYSTEM_NAME})
"""No role may have these names, and a user with one of them has no privileges of its own."""


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """``grantor`` (a role id) grants ``privileges`` to ``grantee`` (a role id, or `PUBLIC`).

    ``granted`` is the time in seconds since 1970; 0 if it is unknown. Releases before 0.6.0 did not
    store it.
    """

    grantee: int
    grantor: int
    privileges: Privilege
    granted: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Membership:
    """The membership in the role ``group``, which ``grantor`` (a role id) granted.

    ``granted`` is as in `Grant`.
    """

    group: int
    grantor: int
    granted: int = 0


def privilege_names(privileges: Privilege) -> list[str]:
    """Return the names of the privileges, in the order of their numbers."""
    return [str(privilege.name) for privilege in Privilege if privilege in privileges]


Grants = tuple[Grant, ...]
"""Grants sorted by grantee, grantor and time, each of these once, none without privileges."""


def grants(several: Iterable[Grant]) -> Grants:
    """Return the canonical form of some grants: merged, sorted, without empty ones."""
    merged: dict[tuple[int, int, int], Grant] = {}
    for grant in several:
        key = grant.grantee, grant.grantor, grant.granted
        known = merged.get(key)
        if known is not None:  # rarely, and merging takes far longer than the rest
            grant = replace(grant, privileges=known.privileges | grant.privileges)
        merged[key] = grant
    return tuple(merged[key] for key in sorted(merged) if merged[key].privileges)


@dataclass(frozen=True, slots=True)
class RoleDescriptor:
    """A role. ``member_of`` are its memberships in other roles, sorted.

    A superuser may do everything. A role without ``inherit`` has only its own privileges.
    ``created`` is in seconds since 1970; 0 if it is unknown (before release 0.6.0).
    """

    id: int
    name: str
    owner: str
    superuser: bool = False
    inherit: bool = True
    member_of: tuple[Membership, ...] = ()
    created: int = 0


@dataclass(frozen=True, slots=True)
class DefaultPrivilege:
    """The privileges of ``grantee`` on objects of one kind that ``role`` creates in the future.

    0 means any role, database or schema. ``name`` is the key, the canonical text of the other
    fields except the privileges (`default_privilege_name`).
    """

    name: str
    role: int
    database: int
    schema: int
    object_kind: ObjectKind
    grantee: int
    privileges: Privilege


def default_privilege_name(
    role: int, database: int, schema: int, object_kind: ObjectKind, grantee: int
) -> str:
    """Return the key of a `DefaultPrivilege`."""
    return f"{role}/{database}/{schema}/{object_kind.name.lower()}/{grantee}"


@dataclass(frozen=True, slots=True)
class SystemPrivilege:
    """A grant on the whole system, without its time. ``name`` is the key, ``grantee/grantor``."""

    name: str
    grantee: int
    grantor: int
    privileges: Privilege


def system_privilege_name(grantee: int, grantor: int) -> str:
    """Return the key of a `SystemPrivilege`."""
    return f"{grantee}/{grantor}"
