"""Privileges: the catalog's answers against naive ones, and planted faults that this must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from strandline.catalog import Catalog
from strandline.catalog.commands import (
    CreateRole,
    CreateSchema,
    DropTable,
    GrantPrivileges,
    GrantRole,
    SetConfiguration,
)
from strandline.catalog.privileges.access import Access, effective_roles, enforced
from strandline.errors import PermissionDenied
from strandline.model.privileges import PUBLIC, ObjectKind, Privilege
from tests.catalog.privilege_world import (
    OF_SCHEMAS,
    OF_TABLES,
    ROLES,
    SCHEMAS,
    TABLES,
    USERS,
    Step,
    World,
    create_table,
    difference,
)

ROLE = st.sampled_from(ROLES)
GRANTEE = st.sampled_from((*ROLES, "public"))
OWNER = st.sampled_from(USERS)
ON_TABLE = st.tuples(st.sampled_from(TABLES), st.sampled_from([p.name for p in OF_TABLES]))
ON_SCHEMA = st.tuples(st.sampled_from(SCHEMAS), st.sampled_from([p.name for p in OF_SCHEMAS]))
ON = ON_TABLE | ON_SCHEMA


def step(verb: str, *names: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(verb), *names)


STEP: st.SearchStrategy[Step] = st.one_of(
    step("join", ROLE, ROLE),
    step("join", ROLE, ROLE),
    step("leave", ROLE, ROLE),
    st.builds(lambda on, to: ("grant", *on, to), ON, GRANTEE),
    st.builds(lambda on, to: ("grant", *on, to), ON, GRANTEE),
    st.builds(lambda on, to: ("revoke", *on, to), ON, GRANTEE),
    step("drop", ROLE),
    step("role", ROLE, st.sampled_from(["plain", "alone", "super"])),
    step(
        "default",
        st.just("") | ROLE,
        st.just("") | st.sampled_from(SCHEMAS),
        GRANTEE,
        st.sampled_from([p.name for p in OF_TABLES]),
    ),
    step("make", st.sampled_from(TABLES), OWNER),
)


def defaulted(schema: str, to: str, privilege: str, table: str, owner: str) -> list[Step]:
    """A default privilege and a table it may apply to, which random steps seldom combine."""
    return [
        ("default", "", schema, to, privilege),
        ("make", table, owner),
        ("grant", table.partition(".")[0], "USAGE", to),
    ]


STEPS_AT_ONCE = st.one_of(
    st.lists(STEP, min_size=1, max_size=4),
    st.builds(
        defaulted,
        st.sampled_from(SCHEMAS),
        GRANTEE,
        st.sampled_from([p.name for p in OF_TABLES]),
        st.sampled_from(TABLES),
        OWNER,
    ),
)


def begin(kinds: tuple[str, ...], owners: tuple[str, ...], parts: list[list[Step]]) -> list[Step]:
    """Begin with both schemas and most roles, because otherwise few steps would have an effect."""
    roles = [("role", name, kind) for name, kind in zip(ROLES, kinds, strict=True) if kind]
    schemas = [("make", name, owner) for name, owner in zip(SCHEMAS, owners, strict=True)]
    return [*roles, *schemas, *(item for part in parts for item in part)]


KIND = st.sampled_from(["plain", "plain", "plain", "alone", "super", ""])
STEPS: st.SearchStrategy[list[Step]] = st.builds(
    begin,
    st.tuples(KIND, KIND, KIND, KIND),
    st.tuples(OWNER, OWNER),
    st.lists(STEPS_AT_ONCE, max_size=4),
)


@pytest.mark.slow
@given(STEPS)
def test_the_catalog_allows_exactly_what_a_naive_model_of_the_rules_allows(
    steps: list[Step],
) -> None:
    assert difference(steps) is None


GRANTED: list[Step] = [
    ("role", "ann", "plain"),
    ("role", "bob", "plain"),
    ("make", "s", "eve"),
    ("grant", "s", "USAGE", "public"),
    ("make", "s.t", "eve"),
    ("grant", "s.t", "SELECT", "ann"),
    ("grant", "s.t", "SELECT", "bob"),
]


@pytest.mark.parametrize(
    "steps",
    [
        [*GRANTED, ("role", "group", "alone"), ("join", "ann", "group")],
        [*GRANTED, ("role", "group", "plain"), ("join", "ann", "group"), ("leave", "bob", "group")],
        [*GRANTED, ("revoke", "s.t", "SELECT", "ann")],
        [*GRANTED, ("drop", "ann"), ("role", "ann", "plain")],
        [*GRANTED, ("default", "bob", "", "ann", "SELECT"), ("make", "s.u", "eve")],
        [*GRANTED, ("default", "", "s", "ann", "SELECT"), ("make", "s.u", "eve")],
        [*GRANTED, ("default", "", "", "ann", "SELECT"), ("drop", "ann"), ("make", "s.u", "eve")],
    ],
    ids=[
        "alone",
        "joined",
        "revoked",
        "dropped",
        "default of role",
        "in schema",
        "dropped default",
    ],
)
def test_the_catalog_allows_what_the_model_allows_after_a_few_steps(steps: list[Step]) -> None:
    assert difference(steps) is None


def direct_roles(catalog: Catalog, user: str) -> frozenset[int]:
    own = catalog.role(user)
    groups = (
        () if own is None or not own.inherit else (membership.group for membership in own.member_of)
    )
    return frozenset({PUBLIC, *groups, *(() if own is None else (own.id,))})


def inheriting_all(catalog: Catalog, user: str) -> frozenset[int]:
    roles, to_follow = {PUBLIC}, [catalog.role(user)]
    while to_follow:
        role = to_follow.pop()
        if role is not None:
            roles.add(role.id)
            to_follow += [catalog.role_by_id(membership.group) for membership in role.member_of]
    return frozenset(roles)


PRIVILEGES = "strandline.catalog.privileges.access"
COMMANDS = "strandline.catalog.commands"
FAULTS: dict[str, tuple[str, Callable[..., Any] | property]] = {
    "memberships are followed one step only": (f"{PRIVILEGES}.effective_roles", direct_roles),
    "inherit is ignored": (f"{PRIVILEGES}.effective_roles", inheriting_all),
    "public is forgotten": (
        f"{PRIVILEGES}.effective_roles",
        lambda catalog, user: effective_roles(catalog, user) - {PUBLIC},
    ),
    "usage of the schema is not asked for": (
        f"{PRIVILEGES}.Access._require_reach",
        lambda access, subject: None,
    ),
    "roles own nothing for their members": (
        f"{PRIVILEGES}.Access.names",
        property(lambda access: frozenset({access.user})),
    ),
    "a membership makes a superuser": (
        f"{PRIVILEGES}.Access._is_superuser",
        lambda access, user: any(
            role is not None and role.superuser
            for role in map(access.catalog.role_by_id, effective_roles(access.catalog, user))
        ),
    ),
    "memberships go round": (f"{COMMANDS}.roles.roles_above", lambda catalog, role: set()),
    "a role that owns something is dropped": (
        f"{COMMANDS}.roles._refuse_owner",
        lambda catalog, role: None,
    ),
    "default privileges of one schema are for all": (
        "strandline.catalog.privileges.access._place",
        lambda catalog, value: (getattr(catalog.schema("s"), "id", 0), 0),
    ),
}


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_finds_a_planted_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, planted = FAULTS[fault]
    monkeypatch.setattr(target, planted)
    find(
        STEPS,
        lambda steps: difference(steps) is not None,
        settings=settings(max_examples=2000, phases=[Phase.generate]),
    )


# -- messages and single rules ---------------------------------------------------------------------


@pytest.fixture
def world() -> World:
    world = World()
    for command in (
        CreateRole(name="bob"),
        CreateRole(name="root", superuser=True),
        CreateSchema(name="s", owner="ann"),
        create_table("s.t", "ann"),
    ):
        world.run(command)
    return world


def table(world: World) -> Any:
    return world.catalog.table("s", "t")


def refusal(world: World, user: str, privilege: Privilege = Privilege.SELECT) -> str:
    with pytest.raises(PermissionDenied) as caught:
        Access(world.catalog, user).require(privilege, table(world))
    return caught.value.message


def allow(world: World, kind: ObjectKind, name: str, privileges: Privilege, to: str) -> None:
    world.run(GrantPrivileges(kind=kind, name=name, privileges=privileges, grantee=to))


def test_a_refusal_names_the_user_the_privilege_the_object_and_who_can_grant_it(
    world: World,
) -> None:
    assert refusal(world, "bob") == (
        "user bob lacks USAGE on schema s to reach table s.t; ann or a superuser can grant it"
    )
    allow(world, ObjectKind.SCHEMA, "s", Privilege.USAGE, "bob")
    assert refusal(world, "bob", Privilege.SELECT | Privilege.INSERT) == (
        "user bob lacks SELECT and INSERT on table s.t; ann or a superuser can grant it"
    )
    with pytest.raises(PermissionDenied, match="lacks INSERT or UPDATE on table s"):
        Access(world.catalog, "bob").require_any(Privilege.INSERT | Privilege.UPDATE, table(world))
    with pytest.raises(
        PermissionDenied, match=r"does not own table s\.t, .*; ask ann or a superuser"
    ):
        Access(world.catalog, "bob").require_ownership(table(world))
    with pytest.raises(PermissionDenied, match="CREATE_ZONE on the system; a superuser can"):
        Access(world.catalog, "bob").require(Privilege.CREATE_ZONE, None)


def test_only_the_owner_has_privileges_that_cannot_be_granted_on_the_object(world: World) -> None:
    schema = world.catalog.schema("s")
    assert schema is not None
    Access(world.catalog, "ann").require_any(Privilege.INSERT | Privilege.UPDATE, schema)
    allow(world, ObjectKind.SCHEMA, "s", Privilege.USAGE, "bob")
    with pytest.raises(PermissionDenied, match="does not own schema s"):
        Access(world.catalog, "bob").require_any(Privilege.INSERT | Privilege.UPDATE, schema)


def test_user_and_role_names_are_compared_case_insensitively(world: World) -> None:
    Access(world.catalog, "ANN").require(Privilege.SELECT, table(world))
    allow(world, ObjectKind.SCHEMA, "s", Privilege.USAGE, "Public")
    allow(world, ObjectKind.TABLE, "s.t", Privilege.SELECT, "Bob")
    Access(world.catalog, "BOB").require(Privilege.SELECT, table(world))


def test_a_superuser_needs_no_grants_but_a_member_of_its_role_does(world: World) -> None:
    Access(world.catalog, "root").require(Privilege.DELETE, table(world))
    world.run(GrantRole(role="root", member="bob"))
    assert "bob lacks USAGE" in refusal(world, "bob")


@pytest.mark.parametrize("name", ["system", "public", "PUBLIC", ""])
def test_a_user_named_system_public_or_empty_has_no_special_rights(world: World, name: str) -> None:
    world.run(CreateSchema(name="x", owner=name))
    assert not Access(world.catalog, name).owns(world.catalog.schema("x"))
    assert "lacks USAGE" in refusal(world, name)


def test_any_user_may_use_the_default_schema_and_the_database(world: World) -> None:
    access = Access(world.catalog, "stranger")
    shared, database = world.catalog.schema("default"), world.catalog.database()
    assert shared is not None
    assert database is not None
    access.require(Privilege.USAGE | Privilege.CREATE, shared)
    access.require(Privilege.USAGE, database)
    assert not access.allows(Privilege.CREATE, database)
    assert not access.owns(shared)


def test_privileges_are_not_checked_without_an_identity(world: World) -> None:
    Access(world.catalog, None).require(Privilege.DELETE, table(world))


@pytest.mark.parametrize(("text", "judged"), [("true", True), ("ON", True), ("off", False)])
def test_enforce_privileges_turns_the_checks_on_and_off(
    world: World, text: str, judged: bool
) -> None:
    world.run(SetConfiguration(name="enforce_privileges", value=text))
    assert enforced(world.catalog) is judged
    assert Access(world.catalog, "bob").free is not judged


def test_reads_of_past_versions_are_checked_against_present_privileges(world: World) -> None:
    past, old = world.catalog, table(world)
    allow(world, ObjectKind.SCHEMA, "s", Privilege.USAGE, "bob")
    allow(world, ObjectKind.TABLE, "s.t", Privilege.SELECT, "bob")
    access = Access(world.catalog, "bob").at(past)
    access.require(Privilege.SELECT, old)
    granted = table(world)
    world.run(DropTable(schema="s", table="t"))
    Access(world.catalog, "bob").at(past).require(Privilege.SELECT, granted)
    assert not Access(world.catalog, "bob").at(past).allows(Privilege.SELECT, old)
