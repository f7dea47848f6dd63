"""Roles and privileges over the Hive protocol: GRANT, REVOKE and SHOW of Hive, Trino and Presto."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import time
from typing import Any

import pytest
from hive_metastore.ttypes import (
    Database,
    GetPrincipalsInRoleRequest,
    GetRoleGrantsForPrincipalRequest,
    GrantRevokePrivilegeRequest,
    GrantRevokeRoleRequest,
    GrantRevokeType,
    HiveObjectPrivilege,
    HiveObjectRef,
    HiveObjectType,
    PrincipalType,
    PrivilegeBag,
    PrivilegeGrantInfo,
    Role,
)

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateRole,
    CreateTable,
    SetConfiguration,
    TableDefinition,
)
from strandline.model.types import INT
from strandline.wire.stored import Stored
from tests.metastore.hive.contract import Step, Throws, check
from tests.metastore.hive.hive_node import HiveNode, refusal, table

STORES = ("folder", "postgresql")
USER, ROLE, GROUP = PrincipalType.USER, PrincipalType.ROLE, PrincipalType.GROUP
SCHEMA = HiveObjectRef(objectType=HiveObjectType.DATABASE, dbName="d1")
TABLE = HiveObjectRef(objectType=HiveObjectType.TABLE, dbName="D1", objectName="T")
BEGUN = int(time())
FOR_ALL: dict[str, Any] = {"userPrivileges": {"zoe": []}, "rolePrivileges": {"public": []}}


class SinceTheBeginning:
    """Equal to each time, in seconds, between the beginning of the tests and now."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and BEGUN <= other <= time()

    def __hash__(self) -> int:
        return 0


def grants(
    *texts: str, to: str = "staff", kind: int = ROLE, on: Any = TABLE, option: bool = False
) -> Any:
    return PrivilegeBag(
        [
            HiveObjectPrivilege(
                on, to, kind, PrivilegeGrantInfo(text, 0, "root", USER, grantOption=option)
            )
            for text in texts
        ]
    )


def create(*names: str) -> list[Step]:
    return [(partial(_create, name=name), True) for name in names]


def _create(client: Any, *, name: str) -> Any:
    return client.create_role(Role(name, 0, "ann"))


def of(client: Any, name: str, kind: int = ROLE) -> Any:
    request = GetRoleGrantsForPrincipalRequest(name, kind)
    return client.get_role_grants_for_principal(request).principalGrants


def versions(node: HiveNode, call: Callable[[], object]) -> int:
    """How many versions of the catalog a call makes."""
    before = node.node.catalogs.present().version
    call()
    return node.node.catalogs.present().version - before


@pytest.fixture
def roles(hive: HiveNode, stub: Any) -> Any:
    """A client ``root`` of a schema d1 with a table t; the roles are dropped afterwards."""
    stub.set_ugi("root", [])
    stub.create_table(table("t", owner="ann"))
    yield stub
    stub.drop_database("d1", True, True)  # a role that owns something is not dropped
    for name in {*stub.get_role_names()} - {"admin", "public"}:
        stub.drop_role(name)


def test_roles_are_created_listed_and_dropped(roles: Any) -> None:
    check(
        roles,
        [
            (lambda c: c.get_role_names(), ["admin", "public"]),
            *create("Staff"),
            (lambda c: c.get_role_names(), ["Staff", "admin", "public"]),
            (
                lambda c: c.create_role(Role("staff", 0, "ann")),
                Throws("MetaException", "role Staff already exists"),
            ),
            (lambda c: c.create_role(Role("public")), Throws("MetaException", "a role", True)),
            (lambda c: c.create_role(Role("ADMIN")), Throws("MetaException", "role admin", True)),
            (lambda c: c.create_role(Role()), Throws("MetaException", "", True)),
            (lambda c: c.drop_role("STAFF"), True),
            (lambda c: c.drop_role("staff"), True),  # as in Hive
            (
                lambda c: c.drop_role("admin"),
                Throws("MetaException", "public,admin roles can't be dropped."),
            ),
            (
                lambda c: c.drop_role("Public"),
                Throws("MetaException", "public,admin roles can't be dropped."),
            ),
            (lambda c: c.get_role_names(), ["admin", "public"]),
        ],
    )


def test_members_of_roles_are_granted_shown_and_revoked(roles: Any) -> None:
    granted = {"grantOption": False, "grantTime": SinceTheBeginning()}
    member = {"roleName": "staff", "principalName": "bob", **granted}
    by_root = {"grantorName": "root", "grantorPrincipalType": USER}
    zoe = {"principalName": "zoe", "principalType": USER}
    in_public = {"roleName": "public", **zoe, "grantOption": False, "grantTime": 0}
    check(
        roles,
        [
            *create("root", "staff", "bob"),
            (lambda c: c.grant_role("staff", "bob", USER, "root", USER, False), True),
            (lambda c: [role.roleName for role in c.list_roles("bob", USER)], ["staff", "public"]),
            (lambda c: [role.roleName for role in c.list_roles("bob", ROLE)], ["staff"]),
            (
                lambda c: c.list_roles("bob", ROLE),
                [{"roleName": "staff", "createTime": SinceTheBeginning(), "ownerName": "ann"}],
            ),
            (lambda c: c.list_roles("bob", GROUP), []),
            (lambda c: of(c, "bob"), [{**member, "principalType": ROLE, **by_root}]),
            (lambda c: of(c, "zoe", USER), [in_public]),
            (
                lambda c: c.get_principals_in_role(GetPrincipalsInRoleRequest("staff")),
                {"principalGrants": [{**member, "principalType": ROLE, **by_root}]},
            ),
            (
                lambda c: c.get_principals_in_role(GetPrincipalsInRoleRequest("none")),
                {"principalGrants": []},
            ),
            (
                lambda c: c.grant_role("bob", "staff", ROLE, "root", USER, False),
                Throws("MetaException", "role bob cannot be granted to staff", True),
            ),
            (
                lambda c: c.grant_role("none", "bob", USER, "root", USER, False),
                Throws("MetaException", "role 'none' does not exist", True),
            ),
            (
                lambda c: c.grant_role("staff", "zoe", USER, "root", USER, False),
                Throws("MetaException", "role zoe does not exist; a user, too, needs", True),
            ),
            (
                lambda c: c.grant_role("staff", "ops", GROUP, "root", USER, False),
                Throws("MetaException", "a group such as ops has no privileges here", True),
            ),
            (
                lambda c: c.grant_role("staff", "bob", USER, "root", USER, True),
                Throws("MetaException", "a membership with a grant option", True),
            ),
            (
                lambda c: c.grant_role("public", "bob", USER, "root", USER, False),
                Throws("MetaException", "the members of public cannot be changed", True),
            ),
            (lambda c: c.revoke_role("staff", "bob", USER), True),
            (lambda c: of(c, "bob"), []),
            (
                lambda c: c.grant_revoke_role(
                    GrantRevokeRoleRequest(GrantRevokeType.GRANT, "staff", "bob", USER)
                ),
                {"success": True},
            ),
            (lambda c: len(of(c, "bob")), 1),
            (
                lambda c: c.grant_revoke_role(
                    GrantRevokeRoleRequest(GrantRevokeType.REVOKE, "staff", "bob", USER)
                ),
                {"success": True},
            ),
            (lambda c: of(c, "bob"), []),
            (
                lambda c: c.grant_revoke_role(GrantRevokeRoleRequest(9, "staff", "bob", USER)),
                Throws("MetaException", "the request type is 9", True),
            ),
        ],
    )


def test_privileges_are_granted_shown_and_revoked(roles: Any) -> None:
    def info(text: str) -> dict[str, Any]:
        by = {"grantor": "root", "grantorType": USER}
        granted = {"createTime": SinceTheBeginning(), "grantOption": False}
        return {"privilege": text, **granted, **by}

    on = {"objectType": HiveObjectType.TABLE, "dbName": "d1", "objectName": "t"}
    granted = {"hiveObject": on, "principalName": "staff", "principalType": ROLE}
    check(
        roles,
        [
            *create("root", "staff"),
            (lambda c: c.get_privilege_set(TABLE, "zoe", []), FOR_ALL),
            (lambda c: c.grant_privileges(grants("SELECT", "insert")), True),
            (lambda c: c.grant_privileges(grants("SELECT")), True),
            (lambda c: c.grant_privileges(grants("DELETE", to="public")), True),
            (lambda c: c.grant_privileges(PrivilegeBag([])), True),
            (
                lambda c: c.list_privileges("staff", ROLE, TABLE),
                [{**granted, "grantInfo": info(text)} for text in ("SELECT", "INSERT")],
            ),
            (lambda c: len(c.list_privileges(None, None, TABLE)), 3),
            (lambda c: len(c.list_privileges("staff", ROLE, None)), 2),
            (lambda c: c.list_privileges("none", ROLE, TABLE), []),
            (
                lambda c: c.get_privilege_set(TABLE, "zoe", ["g"]),
                {**FOR_ALL, "groupPrivileges": {"g": []}}
                | {"rolePrivileges": {"public": [info("DELETE")]}},
            ),
            (
                lambda c: c.get_privilege_set(TABLE, "staff", []).userPrivileges,
                {"staff": [info("SELECT"), info("INSERT")]},
            ),
            (
                lambda c: [
                    (grant.privilege, grant.grantOption)
                    for grant in c.get_privilege_set(TABLE, "ann", []).userPrivileges["ann"]
                ],
                [[text, True] for text in ("SELECT", "INSERT", "UPDATE", "DELETE")],
            ),
            (lambda c: c.grant_privileges(grants("ALL", on=SCHEMA)), True),
            (
                lambda c: [
                    privilege.grantInfo.privilege
                    for privilege in c.list_privileges("staff", ROLE, SCHEMA)
                ],
                ["CREATE", "USAGE"],
            ),
            (lambda c: c.revoke_privileges(grants("ALL")), True),
            (lambda c: c.revoke_privileges(grants("SELECT")), True),
            (lambda c: c.list_privileges("staff", ROLE, TABLE), []),
            (
                lambda c: c.grant_revoke_privileges(
                    GrantRevokePrivilegeRequest(
                        GrantRevokeType.REVOKE, grants("ALL", on=SCHEMA), False
                    )
                ),
                {"success": True},
            ),
            (lambda c: c.list_privileges("staff", ROLE, SCHEMA), []),
        ],
    )


@pytest.mark.parametrize(
    ("bag", "text"),
    [
        (grants("SELECT", kind=GROUP), "a group such as staff"),
        (grants("SELECT", to="zoe", kind=USER), "role zoe does not exist; a user, too"),
        (grants("SELECT", option=True), "a privilege with a grant option does not exist here"),
        (grants("SELECT", on=SCHEMA), "the privilege SELECT does not exist on a schema"),
        (grants("LOCK"), "the privilege LOCK does not exist on a table"),
        (grants("x" * 4_000), "the privilege xxxx"),
        (
            grants("SELECT", on=HiveObjectRef(objectType=HiveObjectType.GLOBAL)),
            "privileges cannot be granted on the metastore here",
        ),
        (
            grants("SELECT", on=HiveObjectRef(5, "d1", "t", None, "a")),
            "privileges cannot be granted on a column here",
        ),
        (grants("SELECT", on=HiveObjectRef(77, "d1", "t")), "privileges cannot be granted on an"),
        (grants("SELECT", on=HiveObjectRef(3, "d1", "none")), "d1.none table not found"),
        (grants("SELECT", on=HiveObjectRef(3, "none", "t")), "database none does not exist"),
        (grants("SELECT", on=HiveObjectRef(3, "d1@1", "t")), "`d1@1` is a past state"),
        (PrivilegeBag([HiveObjectPrivilege(principalName="staff")]), "a privilege is incomplete"),
        (None, "the argument privileges is missing"),
    ],
)
def test_what_has_no_counterpart_is_refused_and_changes_nothing(
    hive: HiveNode, roles: Any, bag: Any, text: str
) -> None:
    roles.create_role(Role("staff"))
    both = bag and PrivilegeBag([*grants("INSERT").privileges, *bag.privileges])
    before = hive.node.catalogs.present().version
    kind, message = refusal(lambda: roles.grant_privileges(both))
    assert (kind, message[: len(text)]) == ("MetaException", text)
    assert hive.node.catalogs.present().version == before


def test_the_grants_of_one_request_are_one_version(hive: HiveNode, roles: Any) -> None:
    roles.create_role(Role("staff"))
    assert versions(hive, lambda: roles.grant_privileges(grants("SELECT", "INSERT"))) == 1
    assert versions(hive, lambda: roles.grant_privileges(grants("SELECT", "INSERT"))) == 0


def test_the_grants_to_a_role_are_listed_without_decoding_the_tables_of_others(
    hive: HiveNode, roles: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = (ColumnDefinition("a", INT),)
    definitions = [TableDefinition(name=f"t{number}", columns=columns) for number in range(200)]
    hive.node.session(user="ann").execute(
        [CreateTable(schema="d1", definition=definition) for definition in definitions]
    )
    roles.create_role(Role("staff"))
    roles.grant_privileges(grants("SELECT"))
    decoded: list[str] = []
    value = Stored.value.fget  # type: ignore[attr-defined]  # the getter of a property

    def counting(self: Stored[object]) -> object:
        decoded.append(self.name)
        return value(self)

    monkeypatch.setattr(Stored, "value", property(counting))
    (granted,) = roles.list_privileges("staff", ROLE, None)
    assert granted.hiveObject.objectName == "t"
    # The time in a record may contain the bytes of the role's id by chance; then it is decoded.
    assert len({definition.name for definition in definitions} & {*decoded}) < len(definitions) / 10


def test_a_revoke_of_the_grant_option_alone_is_refused(roles: Any) -> None:
    roles.create_role(Role("staff"))
    roles.grant_privileges(grants("SELECT"))
    request = GrantRevokePrivilegeRequest(GrantRevokeType.REVOKE, grants("SELECT"), True)
    kind, message = refusal(lambda: roles.grant_revoke_privileges(request))
    assert (kind, message[:36]) == ("MetaException", "a privilege with a grant option does")
    assert len(roles.list_privileges("staff", ROLE, TABLE)) == 1


def test_superusers_are_not_shown_in_a_role_that_is_named_admin(hive: HiveNode, roles: Any) -> None:
    root = hive.node.session(user="root")
    root.execute([CreateRole(name="boss", superuser=True), CreateRole(name="admin")])
    try:
        assert [role.roleName for role in roles.list_roles("boss", ROLE)] == []
        members = roles.get_principals_in_role(GetPrincipalsInRoleRequest("admin"))
        assert members.principalGrants == []
    finally:
        roles.drop_role("admin")


def test_superusers_are_the_role_admin(hive: HiveNode, roles: Any) -> None:
    hive.node.session(user="root").execute(CreateRole(name="boss", superuser=True))
    check(
        roles,
        [
            (lambda c: [role.roleName for role in c.list_roles("boss", USER)], ["admin", "public"]),
            (
                lambda c: [
                    grant.principalName
                    for grant in c.get_principals_in_role(
                        GetPrincipalsInRoleRequest("admin")
                    ).principalGrants
                ],
                ["boss"],
            ),
        ],
    )


def test_enforced_privileges_decide_who_grants_and_who_sees(hive: HiveNode, roles: Any) -> None:
    root = hive.node.session(user="root")
    for name in ("staff", "ann", "bob"):
        roles.create_role(Role(name))
    root.execute([CreateRole(name="boss", superuser=True)])
    roles.alter_database("d1", Database("d1", ownerName="ann", ownerType=USER))
    root.execute(SetConfiguration(name="enforce_privileges", value="true"))
    try:
        with hive.stub() as ann, hive.stub() as bob:
            ann.set_ugi("ann", [])
            bob.set_ugi("bob", [])
            bag = grants("SELECT")
            assert "lacks USAGE" in refusal(lambda: bob.grant_privileges(bag))[1]
            assert "CREATE_ROLE" in refusal(lambda: bob.create_role(Role("mine")))[1]
            assert ann.grant_privileges(bag) is True
            assert bob.list_privileges("staff", ROLE, TABLE) == []  # bob does not reach d1
            assert bob.list_privileges(None, None, None) == []
            assert len(ann.list_privileges("staff", ROLE, TABLE)) == 1
            ann.grant_privileges(grants("USAGE", to="bob", on=SCHEMA))
            assert len(bob.list_privileges("staff", ROLE, TABLE)) == 1
            bag = grants("DELETE")
            assert "does not own" in refusal(lambda: bob.grant_privileges(bag))[1]
    finally:
        hive.node.session(user="boss").execute(
            SetConfiguration(name="enforce_privileges", value="false")
        )
