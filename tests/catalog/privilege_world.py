"""A small world of roles, schemas and tables, and a naive model of what it should allow.

`Naive` knows only names and works out every answer from scratch: which user is in which role, what
was granted to which role. `World` does the same steps with the real commands on a real catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strandline.catalog import Catalog, Command, initial_catalog
from strandline.catalog.commands import (
    AlterDefaultPrivileges,
    AlterRole,
    ColumnDefinition,
    CreateRole,
    CreateSchema,
    CreateTable,
    DropRole,
    GrantPrivileges,
    GrantRole,
    RevokePrivileges,
    RevokeRole,
    TableDefinition,
)
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.access import Access
from strandline.clock import MIN_TIMESTAMP
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import StrandlineError
from strandline.model.descriptors import SystemConfiguration
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.type_parser import parse_type
from tests.positions import NOTHING, At

ROLES = ("ann", "bob", "group", "all")
USERS = (*ROLES, "stranger")
SCHEMAS = ("s", "z")
TABLES = ("s.t", "s.u", "z.t")
OF_TABLES = (Privilege.SELECT, Privilege.INSERT)
OF_SCHEMAS = (Privilege.USAGE, Privilege.CREATE)

Step = tuple[str, ...]
"""A verb and names; see `Naive` for what each does."""


@dataclass
class Thing:
    owner: str
    grants: set[tuple[str, str]] = field(default_factory=set)


@dataclass
class Role:
    inherit: bool
    superuser: bool
    groups: set[str] = field(default_factory=set)


class Naive:
    """The reference. Each step returns whether it is possible."""

    def __init__(self) -> None:
        self.roles: dict[str, Role] = {}
        self.things: dict[str, Thing] = {}
        self.defaults: set[tuple[str, str, str, str]] = set()

    def do(self, step: Step) -> bool:
        verb, *names = step
        result: bool = getattr(self, verb)(*names)
        return result

    def role(self, name: str, kind: str) -> bool:
        if name in self.roles:
            return False
        self.roles[name] = Role(inherit=kind != "alone", superuser=kind == "super")
        return True

    def drop(self, name: str) -> bool:
        if name not in self.roles or any(other.owner == name for other in self.things.values()):
            return False
        del self.roles[name]
        for role in self.roles.values():
            role.groups.discard(name)
        for thing in self.things.values():
            thing.grants = {grant for grant in thing.grants if grant[0] != name}
        self.defaults = {
            default for default in self.defaults if name not in (default[0], default[2])
        }
        return True

    def join(self, group: str, member: str) -> bool:
        if not {group, member} <= self.roles.keys():
            return False
        if group in self.roles[member].groups:
            return True
        if member in self.above(group):
            return False
        self.roles[member].groups.add(group)
        return True

    def leave(self, group: str, member: str) -> bool:
        if not {group, member} <= self.roles.keys():
            return False
        self.roles[member].groups.discard(group)
        return True

    def above(self, name: str) -> set[str]:
        return {name}.union(*(self.above(group) for group in self.roles[name].groups))

    def make(self, name: str, owner: str) -> bool:
        schema = name.partition(".")[0]
        if name in self.things or ("." in name and schema not in self.things):
            return False
        self.things[name] = Thing(owner)
        if "." in name:
            for role, where, grantee, privilege in self.defaults:
                if role in ("", owner) and where in ("", schema):
                    self.things[name].grants.add((grantee, privilege))
        return True

    def grant(self, name: str, privilege: str, grantee: str) -> bool:
        if name not in self.things or grantee not in {*self.roles, "public"}:
            return False
        self.things[name].grants.add((grantee, privilege))
        return True

    def revoke(self, name: str, privilege: str, grantee: str) -> bool:
        if name not in self.things or grantee not in {*self.roles, "public"}:
            return False
        self.things[name].grants.discard((grantee, privilege))
        return True

    def default(self, role: str, schema: str, grantee: str, privilege: str) -> bool:
        if grantee not in {*self.roles, "public"} or (role and role not in self.roles):
            return False
        if schema and schema not in self.things:
            return False
        self.defaults.add((role, schema, grantee, privilege))
        return True

    def has(self, user: str) -> set[str]:
        """The roles of a user, including ``public``."""
        if user not in self.roles:
            return {user, "public"}
        role = self.roles[user]
        groups = role.groups if role.inherit else set()
        return {user, "public"}.union(*(self.has(group) for group in groups))

    def allows(self, user: str, privilege: str, name: str) -> bool:
        if user in self.roles and self.roles[user].superuser:
            return True
        schema = name.partition(".")[0]
        return self._direct(user, privilege, name) and (
            name == schema or self._direct(user, "USAGE", schema)
        )

    def _direct(self, user: str, privilege: str, name: str) -> bool:
        thing, roles = self.things[name], self.has(user)
        return thing.owner in roles or any((role, privilege) in thing.grants for role in roles)


class World:
    """The real catalog, in memory, with privileges enforced."""

    def __init__(self) -> None:
        transaction = CatalogTransaction(NOTHING, author="ann")
        initial_catalog(delay_ms=0, skew_ms=0, default_location="file:/w")(transaction)
        with transaction.entry("set_configuration", {}):
            transaction.put(SystemConfiguration("enforce_privileges", "true"))
        self.contents = transaction.contents

    @property
    def catalog(self) -> Catalog:
        return Catalog(1, MIN_TIMESTAMP, self.contents)

    def run(self, command: Command, *, author: str = "system") -> CatalogTransaction:
        """Execute the command; if it raises an error, nothing is changed."""
        transaction = CatalogTransaction(At(1, self.contents), author=author)
        command.plan(Planning(self.catalog, transaction, MIN_TIMESTAMP))
        self.contents = transaction.contents
        return transaction

    def do(self, step: Step) -> bool:
        try:
            self.run(command_of(step))
        except StrandlineError:
            return False
        return True

    def allows(self, user: str, privilege: str, name: str) -> bool:
        subject = self.catalog.schema(name)
        if "." in name:
            table = self.catalog.table(*name.split("."))
            assert table is not None
            return Access(self.catalog, user).allows(Privilege[privilege], table)
        assert subject is not None
        return Access(self.catalog, user).allows(Privilege[privilege], subject)


def create_table(name: str, owner: str) -> CreateTable:
    schema, _, table = name.partition(".")
    columns = (ColumnDefinition("a", parse_type("int")),)
    definition = TableDefinition(name=table, columns=columns, owner=owner, transactional=True)
    return CreateTable(schema=schema, definition=definition)


def command_of(step: Step) -> Command:
    match step:
        case ("role", name, kind):
            return CreateRole(name=name, inherit=kind != "alone", superuser=kind == "super")
        case ("drop", name):
            return DropRole(name=name)
        case ("join", group, member):
            return GrantRole(role=group, member=member)
        case ("leave", group, member):
            return RevokeRole(role=group, member=member)
        case ("make", name, owner) if "." in name:
            return create_table(name, owner)
        case ("make", name, owner):
            return CreateSchema(name=name, owner=owner)
        case ("grant", name, privilege, grantee):
            return GrantPrivileges(
                kind=_kind(name), name=name, privileges=Privilege[privilege], grantee=grantee
            )
        case ("revoke", name, privilege, grantee):
            return RevokePrivileges(
                kind=_kind(name), name=name, privileges=Privilege[privilege], grantee=grantee
            )
        case ("default", role, schema, grantee, privilege):
            return AlterDefaultPrivileges(
                kind=ObjectKind.TABLE,
                privileges=Privilege[privilege],
                grantee=grantee,
                role=role or None,
                schema=schema or None,
            )
    raise AssertionError(step)


def _kind(name: str) -> ObjectKind:
    return ObjectKind.TABLE if "." in name else ObjectKind.SCHEMA


def superuser(name: str) -> AlterRole:
    return AlterRole(name=name, superuser=True)


def difference(steps: Sequence[Step]) -> str | None:
    """The first difference between the world and the reference after ``steps``, or None."""
    naive, world = Naive(), World()
    for step in steps:
        should, did = naive.do(step), world.do(step)
        if should != did:
            return f"{step}: {'possible' if should else 'impossible'}, and it was not so"
    for name in naive.things:
        for privilege in OF_TABLES if "." in name else OF_SCHEMAS:
            for user in USERS:
                should = naive.allows(user, privilege.name or "", name)
                if world.allows(user, privilege.name or "", name) != should:
                    return f"{user} may{'' if should else ' not'} {privilege.name} {name}"
    return None
