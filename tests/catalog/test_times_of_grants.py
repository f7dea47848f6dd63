"""The times at which privileges were granted, and roles created and joined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.catalog import CatalogManager, Command
from strandline.catalog.commands import (
    AlterDefaultPrivileges,
    AlterRole,
    CreateRole,
    DropTable,
    GrantPrivileges,
    GrantRole,
    RenameRole,
    RevokePrivileges,
    RevokeRole,
)
from strandline.catalog.differences import differences
from strandline.catalog.planning import Planning
from strandline.catalog.system_views.synchronization import declared_views
from strandline.model.privileges import Grant, ObjectKind, Privilege
from tests.catalog.scenario import SCHEMA, create_table
from tests.catalog.taking_back import undo, undrop
from tests.conftest import ManualWall

SELECT, INSERT = Privilege.SELECT, Privilege.INSERT
TABLE = ObjectKind.TABLE


class World:
    """A catalog with the table ``s.t`` and the roles ann, bob and staff, and its wall clock."""

    def __init__(self, manager: CatalogManager, wall: ManualWall) -> None:
        self.manager = manager
        self._wall = wall
        self.at(2_000, SCHEMA, create_table("s.t", "id int"))
        self.at(2_000, *(CreateRole(name=name) for name in ("ann", "bob", "staff")))

    def at(self, seconds: int, *commands: Command) -> int:
        """Execute the commands at that time; returns the version."""
        self._wall.now = seconds * 1_000
        return self.manager.execute(list(commands), author="ann").version

    def granted(self, name: str = "t") -> list[tuple[str, int]]:
        """The privileges on a table, each with its time."""
        table = self.manager.present().table("s", name)
        assert table is not None
        return [(str(grant.privileges.name), grant.granted) for grant in table.privileges]

    def joined(self) -> list[int]:
        """The times at which bob joined roles."""
        role = self.manager.present().role("bob")
        assert role is not None
        return [membership.granted for membership in role.member_of]


@pytest.fixture
def world(manager: CatalogManager, wall: ManualWall) -> World:
    return World(manager, wall)


def grant(privileges: Privilege, kind: ObjectKind = TABLE, name: str = "s.t") -> GrantPrivileges:
    return GrantPrivileges(kind=kind, name=name, privileges=privileges, grantee="bob")


def revoke(privileges: Privilege) -> RevokePrivileges:
    return RevokePrivileges(kind=TABLE, name="s.t", privileges=privileges, grantee="bob")


def test_each_privilege_has_the_time_of_its_own_grant(world: World) -> None:
    world.at(3_000, grant(SELECT))
    world.at(4_000, grant(SELECT | INSERT))  # SELECT is granted already
    world.at(5_000, grant(SELECT))
    assert world.granted() == [("SELECT", 3_000), ("INSERT", 4_000)]
    world.at(6_000, revoke(SELECT))
    assert world.granted() == [("INSERT", 4_000)]
    world.at(7_000, grant(SELECT))
    assert world.granted() == [("INSERT", 4_000), ("SELECT", 7_000)]


def test_privileges_granted_at_one_time_are_one_grant(world: World) -> None:
    world.at(3_000, grant(SELECT), grant(INSERT))
    assert world.granted() == [("SELECT|INSERT", 3_000)]


def test_a_default_privilege_is_granted_when_the_object_is_created(world: World) -> None:
    default = AlterDefaultPrivileges(kind=TABLE, privileges=SELECT, grantee="bob")
    world.at(3_000, default)
    world.at(4_000, create_table("s.later", "id int"))
    assert world.granted("later") == [("SELECT", 4_000)]


def test_undo_brings_the_old_times_back(world: World) -> None:
    world.at(3_000, grant(SELECT), GrantRole(role="staff", member="bob"))
    version = world.at(4_000, revoke(SELECT), RevokeRole(role="staff", member="bob"))
    assert (world.granted(), world.joined()) == ([], [])
    world.at(5_000)
    undo(world.manager, version)
    assert (world.granted(), world.joined()) == ([("SELECT", 3_000)], [3_000])
    world.at(6_000, DropTable(schema="s", table="t"))
    undrop(world.manager, "s.t")
    assert world.granted() == [("SELECT", 3_000)]


def test_a_role_keeps_the_times_of_its_creation_and_memberships(world: World) -> None:
    world.at(3_000, GrantRole(role="staff", member="bob"))
    world.at(4_000, GrantRole(role="staff", member="bob"))
    world.at(5_000, AlterRole(name="bob", inherit=False), GrantRole(role="ann", member="bob"))
    world.at(6_000, RenameRole(name="bob", new_name="rob"), CreateRole(name="bob"))
    role, new = world.manager.present().role("rob"), world.manager.present().role("bob")
    assert role is not None
    assert sorted(membership.granted for membership in role.member_of) == [3_000, 5_000]
    assert role.created == 2_000
    assert new is not None
    assert new.created == 6_000


def test_a_grant_on_the_system_has_no_time_and_is_widened(world: World) -> None:
    for seconds, privilege in ((3_000, Privilege.CREATE_ROLE), (4_000, Privilege.CREATE_ZONE)):
        world.at(seconds, grant(privilege, ObjectKind.SYSTEM, ""))
    privileges = [
        stored.value for stored in world.manager.present().contents.objects("system_privilege")
    ]
    assert [given.privileges for given in privileges] == [
        Privilege.CREATE_ROLE | Privilege.CREATE_ZONE
    ]


def test_the_system_views_have_the_times(world: World) -> None:
    world.at(3_000, grant(SELECT), GrantRole(role="staff", member="bob"))
    world.at(4_000, grant(INSERT), grant(Privilege.CREATE_ROLE, ObjectKind.SYSTEM, ""))
    catalog, views = world.manager.present(), declared_views()
    rows = [
        dict(zip((name for name, _ in views["privileges"].columns), row, strict=True))
        for row in views["privileges"].rows(catalog)
    ]
    assert [(row["privileges"], row["granted"]) for row in rows] == [
        ("SELECT", 3_000),
        ("INSERT", 4_000),
        ("CREATE_ROLE", None),
    ]
    (member,) = views["role_members"].rows(catalog)
    assert member[-1] == 3_000


def test_a_widened_grant_is_one_difference(world: World) -> None:
    world.at(3_000, grant(SELECT))
    before = world.manager.present()
    world.at(4_000, grant(INSERT))
    (table,) = differences(before, world.manager.present())
    (field,) = table.fields
    assert (field.field, field.old, field.new) == (
        "privileges[bob by ann]",
        "SELECT",
        "SELECT, INSERT",
    )


def test_what_was_granted_again_differs_in_its_time_alone(world: World) -> None:
    member = {"role": "staff", "member": "bob"}
    world.at(3_000, grant(SELECT | INSERT), GrantRole(**member))
    before = world.manager.present()
    world.at(4_000, revoke(SELECT), RevokeRole(**member))
    world.at(5_000, grant(SELECT), GrantRole(**member))
    table, role = differences(before, world.manager.present())
    assert [(field.field, field.old, field.new) for field in (*table.fields, *role.fields)] == [
        (
            "privileges[bob by ann].granted",
            "SELECT, INSERT at 3000",
            "INSERT at 3000; SELECT at 5000",
        ),
        ("member_of[staff].granted", 3_000, 5_000),
    ]


class GrantAsBefore:
    """GRANT SELECT ON s.t TO bob, as a release before 0.6.0 stored it: without a time."""

    def plan(self, planning: Planning) -> None:
        table = planning.table("s", "t")
        bob, ann = planning.catalog.role("bob"), planning.catalog.role("ann")
        assert bob is not None
        assert ann is not None
        with planning.entry("grant") as transaction:
            transaction.put(replace(table, privileges=(Grant(bob.id, ann.id, SELECT),)))


def test_a_grant_of_an_older_release_keeps_its_unknown_time(world: World) -> None:
    world.at(3_000, GrantAsBefore())
    world.at(4_000, grant(SELECT | INSERT))
    assert world.granted() == [("SELECT", 0), ("INSERT", 4_000)]
    rows = [row[-1] for row in declared_views()["privileges"].rows(world.manager.present())]
    assert rows == [None, 4_000]
