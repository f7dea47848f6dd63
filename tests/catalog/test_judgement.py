"""What each change of the catalog needs, while privileges are enforced.

One row a change: who may not make it with nothing but what it names as missing, and may with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from strandline.catalog import Catalog, CatalogManager, Command
from strandline.catalog.commands import (
    AlterDefaultPrivileges,
    AlterRole,
    AlterSchema,
    CreateRole,
    CreateSchema,
    DropRole,
    DropSchema,
    DropTable,
    GrantRole,
    RevokePrivileges,
    SetConfiguration,
    SetOwner,
)
from strandline.catalog.declared_kinds import declared_kinds
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.access import Access
from strandline.catalog.privileges.judgement import permit
from strandline.catalog.requests import Request, Stage, validate
from strandline.catalog.undo.reading import read_undo, read_undrop
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import DeadlineExceeded, PermissionDenied
from strandline.model.descriptors import Setting
from strandline.model.privileges import ObjectKind, Privilege
from tests.catalog.planted import plant
from tests.catalog.privilege_needs import (
    CHANGES,
    ENFORCE,
    INDEXES,
    PLAIN_CHANGE,
    PROPERTIES,
    SELECT_T,
    SETUP,
    USAGE_S,
    Needs,
    grant,
    on_system,
    on_system_to_all,
)
from tests.catalog.scenario import create_table


def judge(base: Catalog, wanted: Command | Sequence[Command], *, user: str | None) -> None:
    """Plan and judge, as the manager does, and change nothing."""
    transaction = CatalogTransaction(base, author="ann")
    planning = Planning(base, transaction, base.time, author=user or "system")
    for command in wanted if isinstance(wanted, Sequence) else [wanted]:
        command.plan(planning)
    permit(base, transaction, user=user)


@pytest.fixture
def enforced(manager: CatalogManager) -> CatalogManager:
    manager.execute(SETUP, author="root")
    manager.execute(INDEXES, author="root")  # in a later version: else they are built already
    manager.execute(GrantRole(role="group", member="cleo"), author="root")
    manager.execute(ENFORCE, author="root", identity="root")
    return manager


@pytest.mark.parametrize("needs", CHANGES, ids=[one.name for one in CHANGES])
def test_a_change_needs(enforced: CatalogManager, needs: Needs) -> None:
    for says, step in needs.steps:
        before = enforced.latest_catalog()
        with pytest.raises(PermissionDenied) as caught:
            enforced.execute(needs.wanted, author="bob", identity="bob")
        assert says in caught.value.message
        assert caught.value.message.startswith("user bob ")
        assert enforced.latest_catalog() is before
        enforced.execute(step, author="root", identity="root")
    assert any(enforced.execute(needs.wanted, author="bob", identity="bob").applied)


@pytest.mark.parametrize("identity", ["root", None], ids=["a superuser", "the program"])
def test_a_superuser_and_the_program_may_do_all(
    enforced: CatalogManager, identity: str | None
) -> None:
    for needs in CHANGES:
        judge(enforced.latest_catalog(), needs.wanted, user=identity)


def test_switched_off_everybody_may_do_all(enforced: CatalogManager) -> None:
    off = SetConfiguration(name="enforce_privileges", value="false")
    enforced.execute(off, author="root", identity="root")
    for needs in CHANGES:
        judge(enforced.latest_catalog(), needs.wanted, user="bob")


def test_a_batch_may_use_what_it_made_itself(enforced: CatalogManager) -> None:
    enforced.execute(
        grant(ObjectKind.DATABASE, "hive", Privilege.CREATE), author="root", identity="root"
    )
    batch: list[Command] = [
        CreateSchema(name="own", owner="bob"),
        create_table("own.t", owner="bob"),
        grant(ObjectKind.TABLE, "own.t", Privilege.SELECT, "cleo"),
        DropTable(schema="own", table="t"),
    ]
    assert all(enforced.execute(batch, author="bob", identity="bob").applied)


def test_who_owns_things_may_have_a_role_of_his_own_name(enforced: CatalogManager) -> None:
    enforced.execute(on_system_to_all(Privilege.CREATE_ROLE), author="root", identity="root")
    with pytest.raises(PermissionDenied, match="the name dora"):
        enforced.execute(CreateRole(name="dora"), author="bob", identity="bob")
    enforced.execute(CreateRole(name="dora"), author="dora", identity="dora")
    enforced.execute(DropTable(schema="s", table="d"), author="root", identity="root")


def test_a_dropped_role_comes_back_with_its_grants_by_a_superuser_alone(
    enforced: CatalogManager,
) -> None:
    steps = [
        AlterRole(name="group", owner="bob"),
        on_system(Privilege.CREATE_ROLE),
        grant(ObjectKind.TABLE, "s.t", Privilege.SELECT, "group"),
    ]
    enforced.execute(steps, author="root", identity="root")
    dropped = enforced.execute(DropRole(name="group"), author="root", identity="root")
    undo = read_undo(enforced, dropped.version)
    with pytest.raises(PermissionDenied, match="restore the dropped role group"):
        enforced.execute(undo, author="bob", identity="bob")
    enforced.execute(undo, author="root", identity="root")


def test_default_privileges_go_with_a_schema_whoever_drops_it(enforced: CatalogManager) -> None:
    anywhere = AlterDefaultPrivileges(
        kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="cleo", schema="s"
    )
    enforced.execute(anywhere, author="root", identity="root")
    with pytest.raises(PermissionDenied, match="only superusers may set default privileges"):
        enforced.execute(replace(anywhere, revoke=True), author="ann", identity="ann")
    enforced.execute(DropSchema(name="s", cascade=True), author="ann", identity="ann")
    assert not list(enforced.latest_catalog().contents.objects("default_privilege"))


def test_a_command_that_changes_nothing_needs_nothing(enforced: CatalogManager) -> None:
    nothing = RevokePrivileges(
        kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="bob"
    )
    assert not any(enforced.execute(nothing, author="bob", identity="bob").applied)


def test_who_says_that_he_is_the_program_is_judged(enforced: CatalogManager) -> None:
    with pytest.raises(PermissionDenied, match="user system lacks USAGE"):
        enforced.execute(PROPERTIES, author="system", identity="system")


@dataclass
class Leaves:
    """A command during which its caller leaves."""

    request: Request | None = None

    def plan(self, planning: Planning) -> None:
        assert self.request is not None
        self.request.stage = Stage.LEFT


def test_nothing_more_is_checked_once_the_caller_has_left(enforced: CatalogManager) -> None:
    base, leaves = enforced.latest_catalog(), Leaves()
    batches: list[tuple[list[Command], type[Exception]]] = [
        ([PROPERTIES], PermissionDenied),
        ([PROPERTIES, leaves], DeadlineExceeded),
    ]
    for commands, error in batches:
        request = Request(commands, "bob", time.monotonic() + 30, identity="bob")
        leaves.request = request
        transaction = CatalogTransaction(base, author="bob")
        assert isinstance(validate(base, transaction, request, base.time).error, error)


def test_a_kind_without_a_rule_is_for_superusers(enforced: CatalogManager) -> None:
    without = {kind.name for kind in declared_kinds() if kind.rule is None}
    assert without == {"fence", "setting", "timestamp", "system_view", "system_object_fingerprint"}
    base = enforced.latest_catalog()
    transaction = CatalogTransaction(base, author="ann")
    with transaction.entry("set", {}):
        transaction.put(Setting("a", "b"))
    with pytest.raises(PermissionDenied, match="only superusers may change a setting"):
        permit(base, transaction, user="ann")
    permit(base, transaction, user="root")


def test_what_was_revoked_cannot_be_read_in_an_older_version_after_the_drop_either(
    enforced: CatalogManager,
) -> None:
    def root(*commands: Command) -> None:
        enforced.execute(list(commands), author="root", identity="root")

    def may_read() -> bool:
        access = Access(enforced.latest_catalog(), "bob", history=enforced.catalog)
        return access.at(then).allows(Privilege.SELECT, old)

    revoke = RevokePrivileges(
        kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="bob"
    )
    root(USAGE_S, SELECT_T)
    then = enforced.latest_catalog()
    old = then.table("s", "t")
    assert old is not None
    root(DropTable(schema="s", table="t"))
    assert may_read()
    enforced.execute(read_undrop(enforced, "table", "s.t"), author="root", identity="root")
    root(revoke)
    assert not may_read()
    root(DropTable(schema="s", table="t"))
    root(PLAIN_CHANGE)
    assert not may_read()


def test_who_lost_a_schema_cannot_read_its_past_after_its_drop(enforced: CatalogManager) -> None:
    then = enforced.latest_catalog()
    old = then.table("s", "t")
    assert old is not None
    for command in (
        AlterSchema(name="s", owner="cleo"),
        SetOwner(kind=ObjectKind.TABLE, schema="s", name="t", owner="cleo"),
        DropSchema(name="s", cascade=True),
    ):
        enforced.execute(command, author="root", identity="root")
    now = enforced.latest_catalog()
    assert not Access(now, "ann", history=enforced.catalog).at(then).allows(Privilege.SELECT, old)
    assert Access(now, "cleo", history=enforced.catalog).at(then).allows(Privilege.SELECT, old)


# -- the judging itself is judged ------------------------------------------------------------------


def lenient(case: object) -> None:
    """A rule that asks for nothing."""


def find_faults(catalog: Catalog) -> list[str]:
    """The rows that are not refused, or not with the words that they should be."""
    found = []
    for needs in CHANGES:
        says, _ = needs.steps[0]
        try:
            judge(catalog, needs.wanted, user="bob")
            found.append(needs.name)
        except PermissionDenied as error:
            if says not in error.message:
                found.append(needs.name)
    return found


def test_the_rows_hold_without_a_fault(enforced: CatalogManager) -> None:
    assert find_faults(enforced.latest_catalog()) == []


@pytest.mark.parametrize(
    "kind",
    [
        "cluster",
        "comment",
        "default_privilege",
        "role",
        "schema",
        "system_configuration",
        "system_privilege",
        "table",
        "view",
        "zone",
    ],
)
def test_a_rule_that_asks_for_nothing_is_found(
    enforced: CatalogManager, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, kind, rule=lenient)
    assert find_faults(enforced.latest_catalog()) != []


@pytest.mark.parametrize(
    ("target", "planted"),
    [
        ("Access.require_owner", lambda access, owner, what: None),
        ("Access.require_ownership", lambda access, subject: None),
        ("Access.require_superuser", lambda access, what: None),
        ("Access.require", lambda access, privilege, subject: None),
    ],
    ids=["owners are not checked", "ownership", "superusers", "privileges"],
)
def test_a_demand_that_is_not_made_is_found(
    enforced: CatalogManager,
    target: str,
    planted: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"strandline.catalog.privileges.access.{target}", planted)
    assert find_faults(enforced.latest_catalog()) != []
