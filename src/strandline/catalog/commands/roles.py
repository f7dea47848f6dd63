"""Commands on roles.

Dropping a role also drops the memberships, default privileges and system privileges that name it.
Grants stored in objects name its id, which no other role ever gets. They have no effect, and are
removed when the grants of their object next change. What the role *owns* it owns by name, and the
next role of that name would own it. So a role that owns objects is not dropped unless they are
given to another owner in the same version. For the same reason a renamed role keeps its objects:
their owner is renamed with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.kinds import delete_with_comment, described
from strandline.catalog.planning import Planning, altered, refuse_holder
from strandline.catalog.privileges.access import drop_default_privileges, owned_by, roles_above
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import IllegalChange, InvalidName, ObjectNotFound
from strandline.model.descriptors import PrincipalType
from strandline.model.identifiers import check_name, normalize
from strandline.model.privileges import (
    PUBLIC,
    PUBLIC_NAME,
    RESERVED_NAMES,
    Membership,
    RoleDescriptor,
    SystemPrivilege,
)

_SHOWN = 3


def role_named(catalog: Catalog, name: str) -> RoleDescriptor:
    """The role of that name. Raises `ObjectNotFound` if it does not exist."""
    role = catalog.role(name)
    if role is None:
        known = ", ".join(known_role.name for known_role in catalog.roles()[:20]) or "none"
        raise ObjectNotFound(f"role {name!r} does not exist; existing roles: {known}")
    return role


def grantee_id(catalog: Catalog, name: str) -> int:
    """The id of the role of that name, or `PUBLIC`. Raises `ObjectNotFound`."""
    return PUBLIC if normalize(name) == PUBLIC_NAME else role_named(catalog, name).id


def grantor_id(planning: Planning) -> int:
    """The id of the author's role; 0 for the program itself and for users without a role."""
    role = planning.catalog.role(planning.author) if planning.author else None
    return 0 if role is None else role.id


def check_role_name(name: str) -> None:
    """Raise `InvalidName` unless ``name`` may name a role."""
    check_name(name, "role")
    if normalize(name) in RESERVED_NAMES:
        raise InvalidName(
            f"a role cannot be named {name!r}: the name is reserved for all users or for the "
            "program itself"
        )


def _check_free_name(planning: Planning, name: str, *, own_id: int = 0) -> None:
    check_role_name(name)
    refuse_holder(planning.catalog.role(name), "role", own_id=own_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRole:
    """CREATE ROLE. Without an ``owner`` it belongs to the user who creates it."""

    name: str
    superuser: bool = False
    inherit: bool = True
    owner: str = ""
    if_not_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `InvalidName`, `AlreadyExists`."""
        if self.if_not_exists and planning.catalog.role(self.name) is not None:
            return
        _check_free_name(planning, self.name)
        with planning.entry(
            "create_role",
            role=self.name,
            superuser=self.superuser or None,
            inherit=None if self.inherit else False,
        ) as transaction:
            transaction.put(
                RoleDescriptor(
                    planning.new_id(),
                    self.name,
                    self.owner or planning.author,
                    superuser=self.superuser,
                    inherit=self.inherit,
                    created=planning.now_seconds,
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterRole:
    """ALTER ROLE. None leaves a property unchanged."""

    name: str
    superuser: bool | None = None
    inherit: bool | None = None
    owner: str | None = None

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange` for the last superuser while one is needed."""
        old = role_named(planning.catalog, self.name)
        new = altered(old, superuser=self.superuser, inherit=self.inherit, owner=self.owner)
        with planning.entry(
            "alter_role",
            role=old.name,
            superuser=self.superuser,
            inherit=self.inherit,
            owner=self.owner,
        ) as transaction:
            transaction.put(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameRole:
    """ALTER ROLE … RENAME TO. It keeps what it owns, under its new name."""

    name: str
    new_name: str

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidName`, `AlreadyExists`."""
        old = role_named(planning.catalog, self.name)
        _check_free_name(planning, self.new_name, own_id=old.id)
        with planning.entry("rename_role", role=old.name, to=self.new_name) as transaction:
            transaction.put(replace(old, name=self.new_name))
            if normalize(old.name) != normalize(self.new_name):
                _give(planning.catalog, transaction, old.name, self.new_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRole:
    """DROP ROLE. ``reassign_to`` is the user or role that gets what the role owns."""

    name: str
    reassign_to: str | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange` while it owns something."""
        if self.if_exists and planning.catalog.role(self.name) is None:
            return
        drop_role(planning, role_named(planning.catalog, self.name), reassign_to=self.reassign_to)


def drop_role(planning: Planning, role: RoleDescriptor, *, reassign_to: str | None = None) -> None:
    """Drop a role, its memberships, privileges and comment. Raises `IllegalChange`."""
    catalog = planning.catalog
    if reassign_to is None:
        _refuse_owner(catalog, role)
    elif normalize(reassign_to) in {normalize(role.name), ""}:
        raise IllegalChange(f"the objects of role {role.name} must be given to another role")
    with planning.entry("drop_role", role=role.name, reassign_to=reassign_to) as transaction:
        if reassign_to is not None:
            _give(catalog, transaction, role.name, reassign_to)
        for other in catalog.roles():
            if any(membership.group == role.id for membership in other.member_of):
                _without_membership(transaction, other.id, role.id)
        _drop_privileges(catalog, transaction, role.id)
        delete_with_comment(transaction, "role", role.id)


def _refuse_owner(catalog: Catalog, role: RoleDescriptor) -> None:
    owned = sorted(
        described(catalog, stored.value)
        for kind, stored in owned_by(catalog.contents, role.name)
        if (kind, stored.id) != ("role", role.id)
    )
    if owned:
        more = f" and {len(owned) - _SHOWN} more" if len(owned) > _SHOWN else ""
        raise IllegalChange(
            f"role {role.name} owns {', '.join(owned[:_SHOWN])}{more}: give them to another owner "
            "first, or drop the role with reassign_to"
        )


def _give(catalog: Catalog, transaction: CatalogTransaction, owner: str, target: str) -> None:
    """Make ``target`` the owner of everything that ``owner`` owns."""
    for kind, stored in owned_by(catalog.contents, owner):
        present: Any = transaction.get(kind, stored.id)
        changed = replace(present, owner=target)
        if kind == "schema" and catalog.role(target) is None:
            changed = replace(changed, owner_type=PrincipalType.USER)
        transaction.put(changed)


def _without_membership(transaction: CatalogTransaction, member: int, group: int) -> None:
    role: RoleDescriptor = transaction.get("role", member)
    kept_memberships = tuple(
        membership for membership in role.member_of if membership.group != group
    )
    transaction.put(replace(role, member_of=kept_memberships))


def _drop_privileges(catalog: Catalog, transaction: CatalogTransaction, role_id: int) -> None:
    """Remove the default and system privileges that name the role."""
    drop_default_privileges(transaction, role=role_id)
    for stored in list(catalog.contents.objects("system_privilege")):
        system: SystemPrivilege = stored.value
        if system.grantee == role_id:
            transaction.delete("system_privilege", system.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRole:
    """GRANT role TO member: the member has the role's privileges, if it inherits."""

    role: str
    member: str

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange` if memberships would form a cycle."""
        catalog = planning.catalog
        role, member = role_named(catalog, self.role), role_named(catalog, self.member)
        if any(membership.group == role.id for membership in member.member_of):
            return
        if member.id in {role.id, *roles_above(catalog, role)}:
            raise IllegalChange(
                f"role {role.name} cannot be granted to {member.name}: it is a member of "
                f"{member.name} itself, and memberships cannot form a cycle"
            )
        added = Membership(role.id, grantor_id(planning), planning.now_seconds)
        joined = tuple(sorted((*member.member_of, added)))
        with planning.entry("grant_role", role=role.name, to=member.name) as transaction:
            transaction.put(replace(member, member_of=joined))


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeRole:
    """REVOKE role FROM member."""

    role: str
    member: str

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        role = role_named(planning.catalog, self.role)
        member = role_named(planning.catalog, self.member)
        # The argument is called `from`, which is no identifier in Python.
        arguments = {"role": role.name, "from": member.name}
        with planning.entry("revoke_role", **arguments) as transaction:
            _without_membership(transaction, member.id, role.id)
