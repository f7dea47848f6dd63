"""Commands that grant and revoke privileges.

Granting a privilege that the grantee already has by a grant changes nothing, and neither does
revoking one that was not granted. Revoking removes a privilege from the grantee, whichever role
granted it. Privileges that a user has as an owner, or through a role, remain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.commands.roles import grantee_id, grantor_id, role_named
from strandline.catalog.kinds import all_kinds, find, kind_of_object, spoken
from strandline.catalog.planning import Planning
from strandline.durable.update import Argument
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.model.privileges import (
    PUBLIC,
    DefaultPrivilege,
    Grant,
    ObjectKind,
    Privilege,
    SystemPrivilege,
    default_privilege_name,
    grants,
    privilege_names,
    system_privilege_name,
)

_NONE = Privilege(0)

SYSTEM_PRIVILEGES = (
    Privilege.CREATE_ROLE
    | Privilege.CREATE_DATABASE
    | Privilege.CREATE_ZONE
    | Privilege.CREATE_CLUSTER
    | Privilege.CONFIGURE
)
"""The privileges that can be granted on the system."""


def grantable() -> dict[ObjectKind, Privilege]:
    """The privileges that can be granted on each kind of object; other kinds have none."""
    kinds = {ObjectKind.SYSTEM: SYSTEM_PRIVILEGES}
    for kind in all_kinds():
        if kind.object_kind is not None and kind.grantable:
            kinds[kind.object_kind] = kind.grantable
    return kinds


def find_object(catalog: Catalog, kind: ObjectKind, name: str) -> Any:  # Any: a descriptor
    """The object of that kind and name (``schema.name`` in a schema). Raises `ObjectNotFound`."""
    declared = kind_of_object(kind)
    present = None if declared is None else find(catalog, declared, name)
    if present is None:
        raise ObjectNotFound(f"{spoken(kind.name)} {name!r} does not exist")
    return present


def _check_applicable(kind: ObjectKind, privileges: Privilege) -> None:
    what = spoken(kind.name)
    applicable = grantable().get(kind, _NONE)
    if not applicable:
        known = ", ".join(sorted(spoken(known_kind.name) for known_kind in grantable()))
        raise InvalidInput(
            f"privileges cannot be granted on a {what}; kinds of objects that have privileges: "
            f"{known}"
        )
    if not privileges:
        raise InvalidInput(
            f"no privilege was given; the privileges on a {what} are: "
            f"{', '.join(privilege_names(applicable))}"
        )
    wrong = privileges & ~applicable
    if wrong:
        raise InvalidInput(
            f"{', '.join(privilege_names(wrong))} cannot be granted on a {what}; its privileges "
            f"are: {', '.join(privilege_names(applicable))}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantPrivileges:
    """GRANT privileges ON kind name TO grantee, a role or ``public``.

    ``name`` is ``schema.name`` for objects in a schema, and empty for the system.
    """

    kind: ObjectKind
    privileges: Privilege
    grantee: str
    name: str = ""

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`."""
        _check_applicable(self.kind, self.privileges)
        grantee = grantee_id(planning.catalog, self.grantee)
        present = _grants_on(planning.catalog, self.kind, self.name)
        present_privileges = _NONE
        for grant in present:
            if grant.grantee == grantee:
                present_privileges |= grant.privileges
        missing = self.privileges & ~present_privileges
        if missing:
            of_system = self.kind is ObjectKind.SYSTEM
            granted = 0 if of_system else planning.now_seconds
            added = Grant(grantee, grantor_id(planning), missing, granted)
            arguments = _entry_arguments(self, missing, "to")
            _write(planning, "grant", self.kind, self.name, [*present, added], arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokePrivileges:
    """REVOKE privileges ON kind name FROM grantee; see `GrantPrivileges`."""

    kind: ObjectKind
    privileges: Privilege
    grantee: str
    name: str = ""

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`."""
        _check_applicable(self.kind, self.privileges)
        grantee = grantee_id(planning.catalog, self.grantee)
        present = _grants_on(planning.catalog, self.kind, self.name)
        new_grants = grants(
            replace(grant, privileges=grant.privileges & ~self.privileges)
            if grant.grantee == grantee
            else grant
            for grant in present
        )
        if new_grants != present:
            arguments = _entry_arguments(self, self.privileges, "from")
            _write(planning, "revoke", self.kind, self.name, new_grants, arguments)


def _entry_arguments(
    command: GrantPrivileges | RevokePrivileges, privileges: Privilege, direction: str
) -> dict[str, Argument]:
    on = f"{spoken(command.kind.name)} {command.name}".strip()
    return {"privileges": privilege_names(privileges), "on": on, direction: command.grantee}


def _grants_on(catalog: Catalog, kind: ObjectKind, name: str) -> tuple[Grant, ...]:
    """The grants on the object, or on the system. Those on the system have no time."""
    if kind is not ObjectKind.SYSTEM:
        present: tuple[Grant, ...] = find_object(catalog, kind, name).privileges
        return present
    if name:
        raise InvalidInput(f"the system has no name; found {name!r}")
    stored = (privilege.value for privilege in catalog.contents.objects("system_privilege"))
    return grants(
        Grant(privilege.grantee, privilege.grantor, privilege.privileges) for privilege in stored
    )


def _write(
    planning: Planning,
    verb: str,
    kind: ObjectKind,
    name: str,
    new_grants: Iterable[Grant],
    arguments: dict[str, Argument],
) -> None:
    """Store the grants, without those of roles that no longer exist."""
    catalog = planning.catalog
    valid_grants = grants(
        grant
        for grant in new_grants
        if grant.grantee == PUBLIC or catalog.role_by_id(grant.grantee)
    )
    if kind is not ObjectKind.SYSTEM:
        with planning.entry(verb, **arguments) as transaction:
            transaction.put(replace(find_object(catalog, kind, name), privileges=valid_grants))
        return
    remaining_grants = {
        system_privilege_name(grant.grantee, grant.grantor): grant for grant in valid_grants
    }
    with planning.entry(verb, **arguments) as transaction:
        for stored in list(catalog.contents.objects("system_privilege")):
            if stored.name not in remaining_grants:
                transaction.delete("system_privilege", stored.name)
        transaction.put_all(
            SystemPrivilege(key, grant.grantee, grant.grantor, grant.privileges)
            for key, grant in remaining_grants.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterDefaultPrivileges:
    """ALTER DEFAULT PRIVILEGES: what ``grantee`` may do on future objects of a kind.

    ``role`` is the role that creates them; None means any. ``schema`` or ``database`` limits where
    they are created; give at most one. With ``revoke``, later objects no longer get the privileges;
    objects created in between keep them.
    """

    kind: ObjectKind
    privileges: Privilege
    grantee: str
    role: str | None = None
    schema: str | None = None
    database: str | None = None
    revoke: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`."""
        catalog = planning.catalog
        self._check()
        role = 0 if self.role is None else role_named(catalog, self.role).id
        database = schema = 0
        if self.schema is not None:
            schema = find_object(catalog, ObjectKind.SCHEMA, self.schema).id
        if self.database is not None:
            database = find_object(catalog, ObjectKind.DATABASE, self.database).id
        grantee = grantee_id(catalog, self.grantee)
        name = default_privilege_name(role, database, schema, self.kind, grantee)
        old: DefaultPrivilege | None = catalog.get("default_privilege", name)
        before = _NONE if old is None else old.privileges
        after = before & ~self.privileges if self.revoke else before | self.privileges
        if after == before:
            return
        with planning.entry("alter_default_privileges", **self._entry_arguments()) as transaction:
            if after:
                transaction.put(
                    DefaultPrivilege(name, role, database, schema, self.kind, grantee, after)
                )
            else:
                transaction.delete("default_privilege", name)

    def _check(self) -> None:
        if self.kind is ObjectKind.SYSTEM:
            raise InvalidInput(
                "the system cannot have default privileges: no command creates it; give another "
                "kind of object"
            )
        _check_applicable(self.kind, self.privileges)
        if self.schema is not None and self.database is not None:
            raise InvalidInput("name a schema or a database, not both: a schema is in one database")
        kind = kind_of_object(self.kind)
        in_schema = kind is not None and kind.in_schema
        if self.schema is not None and not in_schema:
            raise InvalidInput(
                f"a {spoken(self.kind.name)} does not belong to a schema; leave the schema out"
            )
        if self.database is not None and not (in_schema or self.kind is ObjectKind.SCHEMA):
            raise InvalidInput(
                f"a {spoken(self.kind.name)} does not belong to a database; leave the database out"
            )

    def _entry_arguments(self) -> dict[str, Argument]:
        return {
            "privileges": privilege_names(self.privileges),
            "on": spoken(self.kind.name),
            "from" if self.revoke else "to": self.grantee,
            "by": self.role,
            "schema": self.schema,
            "database": self.database,
        }
