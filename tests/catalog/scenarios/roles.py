"""Roles, memberships, grants and default privileges, while nothing is enforced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from strandline.catalog.commands import (
    AlterDefaultPrivileges,
    AlterRole,
    CreateDatabase,
    CreateRole,
    CreateSchema,
    DropRole,
    DropTable,
    GrantPrivileges,
    GrantRole,
    RenameRole,
    RevokePrivileges,
    RevokeRole,
    SetConfiguration,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
)
from strandline.model.descriptors import PrincipalType
from strandline.model.identifiers import QualifiedName
from strandline.model.privileges import ObjectKind, Privilege
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Result,
    Scenario,
    create_table,
    create_view,
    table_of,
)

BOB, ANN, GROUP = (CreateRole(name=name) for name in ("bob", "ann", "analysts"))
ROOT = CreateRole(name="root", superuser=True)
ENFORCE = SetConfiguration(name="enforce_privileges", value="true")
SELECT = GrantPrivileges(
    kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="bob"
)
CONFIGURE = GrantPrivileges(kind=ObjectKind.SYSTEM, privileges=Privilege.CONFIGURE, grantee="bob")
DEFAULT = AlterDefaultPrivileges(
    kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="bob", schema="s"
)


def role(name: str, attribute: str) -> Callable[[Result], object]:
    return lambda result: getattr(result.after.role(name), attribute)


def schema(attribute: str) -> Callable[[Result], object]:
    return lambda result: getattr(result.after.schema("s"), attribute)


def groups(name: str) -> Callable[[Result], list[str]]:
    """The roles that ``name`` is a member of, each as ``"role by grantor"``."""

    def read(result: Result) -> list[str]:
        named_role = result.after.role(name)
        assert named_role is not None
        ids = {known.id: known.name for known in result.after.roles()}
        return [
            f"{ids.get(membership.group, '?')} by {ids.get(membership.grantor, '-')}"
            for membership in named_role.member_of
        ]

    return read


def grants_on(name: str) -> Callable[[Result], list[str]]:
    """The grants of a table, view or schema, each as ``"grantee by grantor: PRIVILEGES"``."""

    def read(result: Result) -> list[str]:
        ids = {known.id: known.name for known in result.after.roles()} | {0: "-"}
        target: Any = result.after.schema(name)
        if "." in name:
            qualified = QualifiedName.parse(name)
            target = result.after.relation(qualified.schema, qualified.name)
        return [
            f"{ids[privilege.grantee]} by {ids[privilege.grantor]}: {privilege.privileges.name}"
            for privilege in target.privileges
        ]

    return read


def count(kind: str) -> Callable[[Result], int]:
    return lambda result: result.after.contents.count(kind)


SCENARIOS = [
    # -- roles
    Scenario(
        "a role inherits and is no superuser unless it says so; its maker owns it",
        run=BOB,
        expect=Made(["create_role"]),
        checks=[
            (role("bob", "superuser"), False),
            (role("bob", "inherit"), True),
            (role("bob", "owner"), "ann"),
        ],
    ),
    Scenario(
        "a role's name is taken whatever its case",
        setup=[BOB],
        run=CreateRole(name="BOB"),
        expect=Refused(AlreadyExists, "role bob"),
    ),
    Scenario(
        "create role if not exists",
        setup=[BOB],
        run=CreateRole(name="bob", superuser=True, if_not_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "nobody is called like everybody",
        run=CreateRole(name="Public"),
        expect=Refused(InvalidName, "is reserved for all users"),
    ),
    Scenario(
        "nobody is called like the program",
        setup=[BOB],
        run=RenameRole(name="bob", new_name="system"),
        expect=Refused(InvalidName, "program"),
    ),
    Scenario(
        "a role is altered in what is named",
        setup=[BOB],
        run=AlterRole(name="bob", inherit=False),
        expect=Made(["alter_role"]),
        checks=[(role("bob", "inherit"), False), (role("bob", "superuser"), False)],
    ),
    Scenario(
        "a role altered to what it is",
        setup=[BOB],
        run=AlterRole(name="bob", inherit=True, superuser=False),
        expect=Nothing(),
    ),
    Scenario(
        "a role that is not there cannot be altered",
        setup=[ANN],
        run=AlterRole(name="bob", inherit=False),
        expect=Refused(ObjectNotFound, "existing roles: ann"),
    ),
    Scenario(
        "what a role owns follows its new name",
        setup=[BOB, CreateSchema(name="s", owner="bob"), create_table("s.t", owner="Bob")],
        run=RenameRole(name="bob", new_name="bobby"),
        expect=Made(["rename_role"]),
        checks=[
            (lambda result: table_of(result.after, "s.t").owner, "bobby"),
            (schema("owner"), "bobby"),
        ],
    ),
    Scenario(
        "a role can change the case of its name",
        setup=[BOB],
        run=RenameRole(name="bob", new_name="Bob"),
        expect=Made(["rename_role"]),
        checks=[(role("bob", "name"), "Bob")],
    ),
    Scenario(
        "a role cannot take a name that is taken",
        setup=[BOB, ANN],
        run=RenameRole(name="bob", new_name="ANN"),
        expect=Refused(AlreadyExists, "role ann"),
    ),
    Scenario(
        "a role that owns something is not dropped",
        setup=[BOB, SCHEMA, create_table("s.t", owner="BOB")],
        run=DropRole(name="bob"),
        expect=Refused(IllegalChange, "role bob owns table s.t"),
        note="Owners are names: the next role of that name would own it.",
    ),
    Scenario(
        "a role that owns three things is told all of them",
        setup=[BOB, SCHEMA, *(create_table(f"s.t{n}", owner="bob") for n in range(3))],
        run=DropRole(name="bob"),
        expect=Refused(IllegalChange, "owns table s.t0, table s.t1, table s.t2: give them"),
    ),
    Scenario(
        "a role is dropped with its things given away, in one version",
        setup=[BOB, SCHEMA, create_table("s.t", owner="bob")],
        run=DropRole(name="bob", reassign_to="ann"),
        expect=Made(["drop_role"]),
        checks=[
            (lambda result: table_of(result.after, "s.t").owner, "ann"),
            (count("role"), 0),
        ],
    ),
    Scenario(
        "a schema that a role owned is a user's when it goes to one",
        setup=[BOB, CreateSchema(name="s", owner="bob", owner_type=PrincipalType.ROLE)],
        run=DropRole(name="bob", reassign_to="nobody_here"),
        expect=Made(["drop_role"]),
        checks=[(schema("owner"), "nobody_here"), (schema("owner_type"), PrincipalType.USER)],
    ),
    Scenario(
        "a schema that a role owned is a role's when it goes to one",
        setup=[BOB, ANN, CreateSchema(name="s", owner="bob", owner_type=PrincipalType.ROLE)],
        run=DropRole(name="bob", reassign_to="ann"),
        expect=Made(["drop_role"]),
        checks=[(schema("owner"), "ann"), (schema("owner_type"), PrincipalType.ROLE)],
    ),
    *(
        Scenario(
            f"a role's things cannot be given to {what}",
            setup=[BOB],
            run=DropRole(name="bob", reassign_to=target),
            expect=Refused(IllegalChange, "to another role"),
        )
        for what, target in (("itself", "BOB"), ("nobody", ""))
    ),
    Scenario(
        "memberships, system privileges and default privileges go with a role",
        setup=[
            BOB,
            GROUP,
            SCHEMA,
            GrantRole(role="bob", member="analysts"),
            CONFIGURE,
            replace(CONFIGURE, grantee="public"),
            DEFAULT,
        ],
        run=DropRole(name="bob"),
        expect=Made(["drop_role"]),
        checks=[
            (groups("analysts"), []),
            (count("system_privilege"), 1),
            (count("default_privilege"), 0),
        ],
    ),
    Scenario(
        "a role that owns only itself is dropped",
        setup=[CreateRole(name="bob", owner="bob")],
        run=DropRole(name="bob"),
        expect=Made(["drop_role"]),
        checks=[(count("role"), 0)],
    ),
    Scenario("drop role if exists", run=DropRole(name="bob", if_exists=True), expect=Nothing()),
    Scenario(
        "a dropped role that is not there",
        run=DropRole(name="bob"),
        expect=Refused(ObjectNotFound, "existing roles: none"),
    ),
    # -- memberships
    Scenario(
        "a membership keeps who granted it",
        setup=[BOB, ANN, GROUP],
        run=GrantRole(role="analysts", member="bob"),
        expect=Made(["grant_role"]),
        checks=[(groups("bob"), ["analysts by ann"])],
    ),
    Scenario(
        "a membership that is there",
        setup=[BOB, GROUP, GrantRole(role="analysts", member="bob")],
        run=GrantRole(role="Analysts", member="bob"),
        expect=Nothing(),
    ),
    Scenario(
        "a role is no member of itself",
        setup=[BOB],
        run=GrantRole(role="bob", member="bob"),
        expect=Refused(IllegalChange, "cannot form a cycle"),
    ),
    Scenario(
        "memberships do not go round, also through roles that do not inherit",
        setup=[
            BOB,
            ANN,
            CreateRole(name="c", inherit=False),
            GrantRole(role="ann", member="bob"),
            GrantRole(role="c", member="ann"),
        ],
        run=GrantRole(role="bob", member="c"),
        expect=Refused(IllegalChange, "cannot form a cycle"),
    ),
    Scenario(
        "a membership is revoked",
        setup=[BOB, GROUP, GrantRole(role="analysts", member="bob")],
        run=RevokeRole(role="analysts", member="bob"),
        expect=Made(["revoke_role"]),
        checks=[(groups("bob"), [])],
    ),
    Scenario(
        "a membership that is not there is revoked",
        setup=[BOB, GROUP],
        run=RevokeRole(role="analysts", member="bob"),
        expect=Nothing(),
    ),
    # -- grants
    Scenario(
        "a grant stands in its object, with who granted it",
        setup=[BOB, ANN, SCHEMA, create_table("s.t")],
        run=SELECT,
        expect=Made(["grant"]),
        checks=[(grants_on("s.t"), ["bob by ann: SELECT"])],
    ),
    Scenario(
        "granting what was granted",
        setup=[BOB, SCHEMA, create_table("s.t"), SELECT],
        run=SELECT,
        expect=Nothing(),
    ),
    Scenario(
        "granting more adds what is missing",
        setup=[BOB, SCHEMA, create_table("s.t"), SELECT],
        run=GrantPrivileges(
            kind=ObjectKind.TABLE,
            name="s.t",
            privileges=Privilege.SELECT | Privilege.INSERT,
            grantee="bob",
        ),
        expect=Made(["grant"]),
        checks=[(grants_on("s.t"), ["bob by -: SELECT|INSERT"])],
    ),
    Scenario(
        "a grant is revoked",
        setup=[BOB, SCHEMA, create_table("s.t"), SELECT],
        run=RevokePrivileges(
            kind=ObjectKind.TABLE,
            name="s.t",
            privileges=Privilege.SELECT | Privilege.DELETE,
            grantee="bob",
        ),
        expect=Made(["revoke"]),
        checks=[(grants_on("s.t"), [])],
    ),
    Scenario(
        "revoking what nobody granted",
        setup=[BOB, SCHEMA, create_table("s.t")],
        run=RevokePrivileges(
            kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="bob"
        ),
        expect=Nothing(),
    ),
    Scenario(
        "what is granted to a dropped role is nobody's, and goes with the next grant",
        setup=[BOB, ANN, SCHEMA, create_table("s.t"), SELECT, DropRole(name="bob")],
        run=GrantPrivileges(
            kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.INSERT, grantee="ann"
        ),
        expect=Made(["grant"]),
        checks=[(grants_on("s.t"), ["ann by ann: INSERT"])],
    ),
    Scenario(
        "not every privilege is for every kind",
        setup=[BOB, SCHEMA],
        run=GrantPrivileges(
            kind=ObjectKind.SCHEMA,
            name="s",
            privileges=Privilege.USAGE | Privilege.SELECT,
            grantee="bob",
        ),
        expect=Refused(
            InvalidInput, "SELECT cannot be granted on a schema; its privileges are: CREATE, US"
        ),
    ),
    Scenario(
        "some kinds have no privileges",
        setup=[BOB],
        run=GrantPrivileges(
            kind=ObjectKind.ROLE, name="bob", privileges=Privilege.USAGE, grantee="bob"
        ),
        expect=Refused(InvalidInput, "privileges cannot be granted on a role"),
    ),
    Scenario(
        "a grant needs a privilege",
        setup=[BOB, SCHEMA],
        run=GrantPrivileges(
            kind=ObjectKind.SCHEMA, name="s", privileges=Privilege(0), grantee="bob"
        ),
        expect=Refused(InvalidInput, "no privilege was given"),
    ),
    Scenario(
        "a grant needs a role to go to",
        setup=[SCHEMA, create_table("s.t")],
        run=SELECT,
        expect=Refused(ObjectNotFound, "role 'bob'"),
    ),
    Scenario(
        "a grant needs an object of its kind",
        setup=[BOB, SCHEMA, create_table("s.t")],
        run=GrantPrivileges(
            kind=ObjectKind.VIEW, name="s.t", privileges=Privilege.SELECT, grantee="bob"
        ),
        expect=Refused(ObjectNotFound, "view 's.t'"),
    ),
    Scenario(
        "everybody is granted something",
        setup=[SCHEMA, create_table("s.t")],
        run=GrantPrivileges(
            kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="PUBLIC"
        ),
        expect=Made(["grant"]),
        checks=[(grants_on("s.t"), ["- by -: SELECT"])],
    ),
    Scenario(
        "a privilege on the system",
        setup=[BOB],
        run=CONFIGURE,
        expect=Made(["grant"]),
        checks=[(count("system_privilege"), 1)],
    ),
    Scenario("it is granted once", setup=[BOB, CONFIGURE], run=CONFIGURE, expect=Nothing()),
    Scenario(
        "and revoked",
        setup=[BOB, CONFIGURE],
        run=RevokePrivileges(kind=ObjectKind.SYSTEM, privileges=Privilege.CONFIGURE, grantee="bob"),
        expect=Made(["revoke"]),
        checks=[(count("system_privilege"), 0)],
    ),
    Scenario(
        "the system has no name",
        setup=[BOB],
        run=GrantPrivileges(
            kind=ObjectKind.SYSTEM, name="x", privileges=Privilege.CONFIGURE, grantee="bob"
        ),
        expect=Refused(InvalidInput, "has no name"),
    ),
    Scenario(
        "grants go with their object",
        setup=[BOB, SCHEMA, create_table("s.t"), SELECT, DropTable(schema="s", table="t")],
        run=create_table("s.t"),
        expect=Made(),
        checks=[(grants_on("s.t"), [])],
    ),
    # -- default privileges
    Scenario(
        "default privileges are given to what is made later, not to what is there",
        setup=[BOB, SCHEMA, create_table("s.old"), DEFAULT],
        run=create_table("s.new"),
        expect=Made(),
        checks=[(grants_on("s.new"), ["bob by -: SELECT"]), (grants_on("s.old"), [])],
    ),
    Scenario(
        "default privileges of one schema are not for another",
        setup=[BOB, SCHEMA, CreateSchema(name="other"), DEFAULT],
        run=create_table("other.t"),
        expect=Made(),
        checks=[(grants_on("other.t"), [])],
    ),
    Scenario(
        "default privileges of tables are not for views",
        setup=[BOB, SCHEMA, DEFAULT],
        run=create_view("s.v"),
        expect=Made(),
        checks=[(grants_on("s.v"), [])],
    ),
    Scenario(
        "default privileges of a role are for what that role makes",
        setup=[
            BOB,
            ANN,
            SCHEMA,
            AlterDefaultPrivileges(
                kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="public", role="ann"
            ),
        ],
        run=[create_table("s.hers", owner="Ann"), create_table("s.his", owner="bob")],
        expect=Made(),
        checks=[(grants_on("s.hers"), ["- by ann: SELECT"]), (grants_on("s.his"), [])],
    ),
    Scenario(
        "default privileges of a database are for its schemas",
        setup=[
            BOB,
            CreateDatabase(name="lake"),
            *(
                AlterDefaultPrivileges(
                    kind=ObjectKind.SCHEMA, privileges=privilege, grantee="bob", database=database
                )
                for database, privilege in (("hive", Privilege.USAGE), ("lake", Privilege.CREATE))
            ),
        ],
        run=SCHEMA,
        expect=Made(),
        checks=[(grants_on("s"), ["bob by -: USAGE"])],
    ),
    Scenario(
        "default privileges are set once",
        setup=[BOB, SCHEMA, DEFAULT],
        run=DEFAULT,
        expect=Nothing(),
    ),
    Scenario(
        "default privileges are taken back",
        setup=[BOB, SCHEMA, DEFAULT],
        run=AlterDefaultPrivileges(
            kind=ObjectKind.TABLE,
            privileges=Privilege.SELECT,
            grantee="bob",
            schema="s",
            revoke=True,
        ),
        expect=Made(["alter_default_privileges"]),
        checks=[(count("default_privilege"), 0)],
    ),
    Scenario(
        "a default privilege that nobody has is not given by its revocation",
        setup=[BOB, SCHEMA, DEFAULT],
        run=replace(DEFAULT, privileges=Privilege.INSERT, revoke=True),
        expect=Nothing(),
    ),
    Scenario(
        "default privileges name a schema or a database",
        setup=[BOB, SCHEMA],
        run=AlterDefaultPrivileges(
            kind=ObjectKind.TABLE,
            privileges=Privilege.SELECT,
            grantee="bob",
            schema="s",
            database="hive",
        ),
        expect=Refused(InvalidInput, "not both"),
    ),
    Scenario(
        "a zone stands in no schema",
        setup=[BOB, SCHEMA],
        run=AlterDefaultPrivileges(
            kind=ObjectKind.ZONE, privileges=Privilege.USAGE, grantee="bob", schema="s"
        ),
        expect=Refused(InvalidInput, "does not belong to a schema"),
    ),
    Scenario(
        "the system cannot have default privileges",
        setup=[BOB],
        run=AlterDefaultPrivileges(
            kind=ObjectKind.SYSTEM, privileges=Privilege.CONFIGURE, grantee="bob"
        ),
        expect=Refused(InvalidInput, "the system cannot have default privileges"),
    ),
    # -- users cannot lock themselves out
    Scenario(
        "privileges are not enforced without a superuser",
        setup=[BOB],
        run=ENFORCE,
        expect=Refused(IllegalChange, "first create a superuser role"),
    ),
    Scenario(
        "a superuser and the switch in one batch",
        run=[ROOT, ENFORCE],
        expect=Made(["create_role", "set_configuration"]),
    ),
    Scenario(
        "the last superuser is not dropped while privileges are enforced",
        setup=[CreateRole(name="root", superuser=True, owner="x"), ENFORCE],
        run=DropRole(name="root"),
        expect=Refused(IllegalChange, "the last superuser"),
    ),
    Scenario(
        "the last superuser stays one while privileges are enforced",
        setup=[ROOT, ENFORCE],
        run=AlterRole(name="root", superuser=False),
        expect=Refused(IllegalChange, "the last superuser"),
    ),
    Scenario(
        "the last superuser but one is dropped",
        setup=[ROOT, CreateRole(name="other", superuser=True), ENFORCE],
        run=DropRole(name="root"),
        expect=Made(["drop_role"]),
    ),
]
