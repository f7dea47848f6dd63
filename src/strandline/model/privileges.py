"""Who may do what: roles, privileges, and grants of one to the other.

A **role** is a user and a group at once: a person connects under the name of a role, and a role may
be a member of others, whose privileges it then has. `PUBLIC` is the role that everybody is in. A
**grant** stands in the object that it is about, so that it comes and goes with it; privileges on
the whole system, and those that objects made later begin with, are objects of their own. An owner
needs no grant on what it owns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntFlag

from strandline.errors import InvalidInput


class Privilege(IntFlag):
    """What may be allowed. The numbers are on disk, so a number never changes its meaning."""

    SELECT = 1
    INSERT = 2
    UPDATE = 4
    DELETE = 8
    CREATE = 16
    """Make objects inside this one: tables in a schema, schemas in a database, …"""
    USAGE = 32
    """Reach what lies inside this one: the tables of a schema, the machines of a cluster."""
    EXECUTE = 64
    CREATE_ROLE = 128
    CREATE_DATABASE = 256
    CREATE_ZONE = 512
    CREATE_CLUSTER = 1024
    CONFIGURE = 2048
    """Change the configuration of the whole catalog."""


class ObjectKind(Enum):
    """The kinds of objects that can have grants, owners and comments; values are on disk."""

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
"""The id of the role that everybody is in. It is in every catalog and has no descriptor."""

PUBLIC_NAME = "public"
"""The name of `PUBLIC`. Every user may use what it owns, and no user may alter it."""

SYSTEM_NAME = "system"
"""The owner of what the program makes, and the author of what it does. No user has this name."""

RESERVED_NAMES = frozenset({PUBLIC_NAME, SYSTEM_NAME})
"""No role may have these names, and a user with one of them has no privileges of its own."""


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """``grantor`` (a role id) allows ``grantee`` (a role id, or `PUBLIC`) these privileges."""

    grantee: int
    grantor: int
    privileges: Privilege


def require_kind(kind: object) -> ObjectKind:
    """``kind`` if it is an `ObjectKind`. Raises `InvalidInput` that says what to write."""
    if isinstance(kind, ObjectKind):
        return kind
    name = str(kind).strip().upper().replace(" ", "_")
    meant = name if name in ObjectKind.__members__ else "TABLE"
    raise InvalidInput(
        f"kind is {kind!r}; give an ObjectKind, like ObjectKind.{meant}, from "
        "strandline.model.privileges"
    )


def privilege_names(privileges: Privilege) -> list[str]:
    """The names of some privileges, in the order of their numbers."""
    return [str(privilege.name) for privilege in Privilege if privilege in privileges]


Grants = tuple[Grant, ...]
"""Sorted by grantee and grantor, each pair once, none of them empty."""


def grants(several: Iterable[Grant]) -> Grants:
    """The canonical form of some grants: merged, sorted, without empty ones."""
    merged: dict[tuple[int, int], Privilege] = {}
    for grant in several:
        key = grant.grantee, grant.grantor
        merged[key] = merged.get(key, Privilege(0)) | grant.privileges
    return tuple(Grant(*key, allowed) for key, allowed in sorted(merged.items()) if allowed)


@dataclass(frozen=True, slots=True)
class RoleDescriptor:
    """A role. ``member_of`` are (role id, id of the role that granted the membership), sorted.

    A superuser may do everything. A role that does not ``inherit`` has only its own privileges.
    """

    id: int
    name: str
    owner: str
    superuser: bool = False
    inherit: bool = True
    member_of: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DefaultPrivilege:
    """What ``grantee`` may do on objects of a kind that ``role`` makes from now on.

    ``role`` 0 is any role; ``database`` or ``schema`` 0 is any. ``name`` is the canonical
    text of all these (`default_privilege_name`), which is the key.
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
    """The key of a `DefaultPrivilege`."""
    return f"{role}/{database}/{schema}/{object_kind.name.lower()}/{grantee}"


@dataclass(frozen=True, slots=True)
class SystemPrivilege:
    """A grant on the whole system. ``name`` is ``grantee/grantor``, the key."""

    name: str
    grantee: int
    grantor: int
    privileges: Privilege


def system_privilege_name(grantee: int, grantor: int) -> str:
    """The key of a `SystemPrivilege`."""
    return f"{grantee}/{grantor}"
