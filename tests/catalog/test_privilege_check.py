"""The privileges that each change of the catalog needs while privileges are enforced.

Each row is one change. It is refused until the user has everything that the refusals name as
missing, and is allowed then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from strandline import work
from strandline.catalog import Catalog, CatalogManager, Command
from strandline.catalog.commands import (
    AddColumns,
    AddConstraints,
    AlterCluster,
    AlterColumn,
    AlterDefaultPrivileges,
    AlterFunction,
    AlterRole,
    AlterSchema,
    AlterZone,
    ColumnDefinition,
    CommentOn,
    ConstraintDefinition,
    CreateCluster,
    CreateDatabase,
    CreateFunction,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateZone,
    DropColumns,
    DropConstraint,
    DropDatabase,
    DropRole,
    DropSchema,
    DropTable,
    DropZone,
    GrantRole,
    MakeIndexAvailable,
    RemoveIndex,
    RenameColumn,
    RenameFunction,
    RenameRole,
    RenameSchema,
    RenameTable,
    RenameView,
    RevokePrivileges,
    RevokeRole,
    SetConfiguration,
    SetDefaultZone,
    SetOwner,
    SetTableProperties,
    StartBuildingIndex,
)
from strandline.catalog.declared_kinds import declared_kinds
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.access import Access
from strandline.catalog.privileges.check import PrivilegeCheck
from strandline.catalog.requests import Request, Stage, validate
from strandline.catalog.undo.reading import read_undo, read_undrop
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import (
    AlreadyExists,
    DeadlineExceeded,
    IllegalChange,
    ObjectNotFound,
    PermissionDenied,
)
from strandline.model.descriptors import ConstraintKind, Setting
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import INT
from tests.catalog.planted import plant
from tests.catalog.privilege_needs import (
    CHANGES,
    CREATE_S,
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
from tests.catalog.scenario import create_table, create_view


def judge(base: Catalog, wanted: Command | Sequence[Command], *, user: str | None) -> None:
    """Plan and check privileges as the manager does, without changing anything."""
    transaction = CatalogTransaction(base, author=user or "system")
    planning = Planning(base, transaction, base.time)
    for command in wanted if isinstance(wanted, Sequence) else [wanted]:
        command.plan(planning)
    PrivilegeCheck(Access(base, user), transaction).finish()


@pytest.fixture
def enforced(manager: CatalogManager) -> CatalogManager:
    manager.execute(SETUP, author="root")
    manager.execute(INDEXES, author="root")  # in a later version, otherwise available at once
    manager.execute(GrantRole(role="group", member="cleo"), author="root")
    manager.execute(ENFORCE, author="root", identity="root")
    return manager


@pytest.mark.parametrize("needs", CHANGES, ids=[change.name for change in CHANGES])
def test_a_change_is_refused_until_every_required_privilege_is_granted(
    enforced: CatalogManager, needs: Needs
) -> None:
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
def test_superusers_and_the_program_itself_may_make_every_change(
    enforced: CatalogManager, identity: str | None
) -> None:
    for needs in CHANGES:
        judge(enforced.latest_catalog(), needs.wanted, user=identity)


def test_any_user_may_make_every_change_when_enforcement_is_off(enforced: CatalogManager) -> None:
    off = SetConfiguration(name="enforce_privileges", value="false")
    enforced.execute(off, author="root", identity="root")
    for needs in CHANGES:
        judge(enforced.latest_catalog(), needs.wanted, user="bob")


def test_a_batch_may_use_the_objects_that_it_created(enforced: CatalogManager) -> None:
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


def test_a_batch_may_use_the_access_that_it_gave(enforced: CatalogManager) -> None:
    steps = [
        AlterRole(name="group", owner="bob"),
        grant(ObjectKind.SCHEMA, "s", Privilege.USAGE | Privilege.CREATE, "group"),
    ]
    enforced.execute(steps, author="root", identity="root")
    create = create_table("s.n", owner="bob")
    with pytest.raises(PermissionDenied, match="lacks USAGE on schema s"):
        enforced.execute(create, author="bob", identity="bob")
    batch: list[Command] = [GrantRole(role="group", member="bob"), create]
    assert all(enforced.execute(batch, author="bob", identity="bob").applied)


def test_a_batch_may_create_several_roles(enforced: CatalogManager) -> None:
    enforced.execute(on_system(Privilege.CREATE_ROLE), author="root", identity="root")
    batch = [CreateRole(name="first"), CreateRole(name="second")]
    assert all(enforced.execute(batch, author="bob", identity="bob").applied)


def _foreign_key(parent: str) -> Command:
    key = ConstraintDefinition(
        kind=ConstraintKind.FOREIGN_KEY, columns=("a",), parent=parent, parent_columns=("none",)
    )
    return AddConstraints(schema="own", table="t", constraints=(key,))


@pytest.mark.parametrize(
    "probe",
    [
        lambda name: RenameTable(schema="own", table="t", new_name=name, new_schema="s"),
        lambda name: RenameView(schema="own", view="v", new_name=name, new_schema="s"),
        lambda name: RenameFunction(schema="own", function="f", new_name=name, new_schema="s"),
        lambda name: grant(ObjectKind.TABLE, f"s.{name}", Privilege.SELECT),
        lambda name: CommentOn(kind=ObjectKind.TABLE, name=f"s.{name}", text="c"),
        lambda name: SetOwner(kind=ObjectKind.TABLE, schema="s", name=name, owner="bob"),
        lambda name: _foreign_key(f"s.{name}"),
        lambda name: DropSchema(name="s" if name == "t" else "empty"),
        lambda name: [RenameSchema(name="s", new_name="q"), create_table(f"q.{name}")],
    ],
    ids=[
        "move a table",
        "move a view",
        "move a function",
        "grant",
        "comment",
        "set the owner",
        "refer to a key",
        "drop the schema",
        "rename the schema and create a table in it",
    ],
)
def test_no_refusal_tells_what_is_in_a_schema_out_of_reach(
    enforced: CatalogManager, probe: Callable[[str], Command | Sequence[Command]]
) -> None:
    setup: list[Command] = [
        CreateSchema(name="own", owner="bob"),
        CreateSchema(name="empty", owner="ann"),
        create_table("own.t", owner="bob"),
        create_view("own.v"),
        CreateFunction(schema="own", name="f", class_name="F"),
        CreateFunction(schema="s", name="t", class_name="F"),
    ]
    enforced.execute(setup, author="root", identity="root")
    for name in ("t", "none"):  # the first exists
        with pytest.raises(PermissionDenied, match=r"lacks USAGE on schema|not own schema s"):
            enforced.execute(probe(name), author="bob", identity="bob")


def test_a_foreign_key_refers_only_to_a_table_that_the_user_may_read(
    enforced: CatalogManager,
) -> None:
    own: list[Command] = [CreateSchema(name="own", owner="bob"), create_table("own.t", owner="bob")]
    enforced.execute([*own, USAGE_S], author="root", identity="root")
    with pytest.raises(PermissionDenied, match=r"bob lacks SELECT on table s\.t"):
        enforced.execute(_foreign_key("s.t"), author="bob", identity="bob")
    enforced.execute(SELECT_T, author="root", identity="root")
    with pytest.raises(ObjectNotFound, match="column none of table t does not exist"):
        enforced.execute(_foreign_key("s.t"), author="bob", identity="bob")


def test_no_refusal_tells_the_name_of_an_index_out_of_reach(enforced: CatalogManager) -> None:
    table = enforced.latest_catalog().table("s", "t")
    assert table is not None
    for index in enforced.latest_catalog().indexes(table.id):
        for step in (StartBuildingIndex, MakeIndexAvailable, RemoveIndex):
            with pytest.raises(PermissionDenied, match="lacks USAGE on schema s;"):
                enforced.execute(step(index_id=index.id), author="bob", identity="bob")


@pytest.mark.parametrize(
    "probe",
    [
        RenameColumn(schema="s", table="t", column="none", new_name="x"),
        AddColumns(schema="s", table="t", columns=(ColumnDefinition("a", INT),)),
        AddColumns(
            schema="s", table="t", columns=(ColumnDefinition("a", INT),), if_not_exists=True
        ),
        DropColumns(schema="s", table="t", names=("none",), if_exists=True),
        AlterColumn(schema="s", table="t", column="a", nullable=True),
        SetTableProperties(schema="s", table="t", unset=("none",)),
        CreateIndex(schema="s", table="t", index="i", columns=("none",)),
        CommentOn(kind=ObjectKind.VIEW, name="s.v", column="none", text="c"),
        create_view("s.v", or_replace=True),
        CreateFunction(schema="s", name="g", class_name="G", or_replace=True),
        AlterFunction(schema="s", function="g", class_name="G"),
        CommentOn(kind=ObjectKind.FUNCTION, name="s.g", text="c"),
        AlterSchema(name="far", comment="c"),
        CommentOn(kind=ObjectKind.SCHEMA, name="far", text="c"),
        DropConstraint(schema="s", table="t", constraint="none"),
    ],
    ids=lambda probe: type(probe).__name__,
)
def test_no_answer_tells_the_definition_of_an_object_to_a_user_who_may_not_read_it(
    enforced: CatalogManager, probe: Command
) -> None:
    setup: list[Command] = [
        USAGE_S,
        CreateFunction(schema="s", name="g", class_name="G"),
        CommentOn(kind=ObjectKind.FUNCTION, name="s.g", text="c"),
        CreateSchema(name="far", comment="c"),
    ]
    enforced.execute(setup, author="root", identity="root")
    owned = r"table s\.t|view s\.v|function s\.g|schema far"
    with pytest.raises(PermissionDenied, match=rf"does not own ({owned}),"):
        enforced.execute(probe, author="bob", identity="bob")
    reads = [
        SELECT_T,
        grant(ObjectKind.VIEW, "s.v", Privilege.SELECT),
        grant(ObjectKind.FUNCTION, "s.g", Privilege.EXECUTE),
        grant(ObjectKind.SCHEMA, "far", Privilege.USAGE),
    ]
    enforced.execute(reads, author="root", identity="root")
    with suppress(ObjectNotFound, AlreadyExists):  # the reason, for a user who may read the columns
        assert not any(enforced.execute(probe, author="bob", identity="bob").applied)


@pytest.mark.parametrize("cascade", [False, True])
def test_a_schema_is_planned_to_be_dropped_only_for_a_user_that_may_drop_it(
    enforced: CatalogManager, cascade: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    enforced.execute(USAGE_S, author="root", identity="root")
    monkeypatch.setattr(DropSchema, "plan", None)
    with pytest.raises(PermissionDenied, match="does not own schema s"):
        enforced.execute(DropSchema(name="s", cascade=cascade), author="bob", identity="bob")


def test_a_schema_of_another_database_can_be_dropped_by_its_owner(
    enforced: CatalogManager,
) -> None:
    schema = CreateSchema(name="s", database="other", owner="bob")
    enforced.execute([CreateDatabase(name="other"), schema], author="root", identity="root")
    drop = DropSchema(name="s", database="other")
    assert enforced.execute(drop, author="bob", identity="bob").applied == (True,)


def test_a_user_that_owns_objects_may_create_its_own_role_and_others_may_not(
    enforced: CatalogManager,
) -> None:
    enforced.execute(on_system_to_all(Privilege.CREATE_ROLE), author="root", identity="root")
    with pytest.raises(PermissionDenied, match="the name dora"):
        enforced.execute(CreateRole(name="dora"), author="bob", identity="bob")
    enforced.execute(CreateRole(name="dora"), author="dora", identity="dora")
    enforced.execute(DropTable(schema="s", table="d"), author="root", identity="root")


@pytest.mark.parametrize("owner", ["bob", "group"], ids=["bob owns it", "it owns itself"])
def test_the_owner_of_a_role_may_rename_it_with_what_it_owns(
    enforced: CatalogManager, owner: str
) -> None:
    steps: list[Command] = [
        GrantRole(role="group", member="bob"),
        AlterRole(name="group", owner=owner),
        CreateSchema(name="own", owner="group"),
        CreateZone(name="own", owner="group"),
        create_table("own.t", "a int not null", primary_key=("a",), owner="group"),
    ]
    enforced.execute(steps, author="root", identity="root")
    if owner == "bob":
        enforced.execute(RevokeRole(role="group", member="bob"), author="root", identity="root")
    rename = RenameRole(name="group", new_name="team")
    catalog = enforced.execute(rename, author="bob", identity="bob").catalog
    schema, table = catalog.schema("own"), catalog.table("own", "t")
    assert schema is not None
    assert table is not None
    owners = {schema.owner, table.owner, *(index.owner for index in catalog.indexes(table.id))}
    assert owners == {"team"}
    undone = enforced.execute(
        read_undo(enforced, catalog.version), author="bob", identity="bob"
    ).catalog
    zone = undone.zone_named("own")
    assert zone is not None
    assert zone.owner == "group"


def test_only_its_owner_may_write_the_owner_of_an_object_in_another_case(
    enforced: CatalogManager,
) -> None:
    enforced.execute(USAGE_S, author="root", identity="root")
    give = SetOwner(kind=ObjectKind.TABLE, schema="s", name="t", owner="ANN")
    with pytest.raises(PermissionDenied, match=r"bob does not own table s\.t"):
        enforced.execute(give, author="bob", identity="bob")


def test_what_a_role_owns_is_not_told_to_a_user_that_may_not_drop_it(
    enforced: CatalogManager,
) -> None:
    schema = CreateSchema(name="payroll", owner="group")
    enforced.execute(schema, author="root", identity="root")
    with pytest.raises(PermissionDenied, match="bob does not own role group"):
        enforced.execute(DropRole(name="group"), author="bob", identity="bob")
    with pytest.raises(IllegalChange, match="owns schema payroll"):
        enforced.execute(DropRole(name="group"), author="root", identity="root")


@pytest.mark.parametrize(
    ("made", "uses", "says"),
    [
        (
            CreateRole(name="payers"),
            CreateSchema(name="payroll", owner="payers"),
            "role payers owns schema payroll",
        ),
        (CreateZone(name="cold"), create_table("s.n", zone="cold"), "table s.n is in it"),
        (
            CreateDatabase(name="other"),
            CreateSchema(name="hidden", database="other"),
            "schema hidden is in it",
        ),
    ],
    ids=["a role", "a zone", "a database"],
)
def test_what_uses_an_object_is_not_told_to_a_user_that_may_not_undo_its_creation(
    enforced: CatalogManager, made: Command, uses: Command, says: str
) -> None:
    version = enforced.execute(made, author="root", identity="root").version
    enforced.execute(uses, author="root", identity="root")
    undo = read_undo(enforced, version)
    with pytest.raises(PermissionDenied, match=r"^user bob does not own"):
        enforced.execute(undo, author="bob", identity="bob")
    with pytest.raises(IllegalChange, match=says):
        enforced.execute(undo, author="root", identity="root")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (DropZone(name="fast"), "table s.n is in it"),
        (AlterZone(name="fast", storage_profiles=("slow",)), "table s.n uses it"),
        (DropDatabase(name="other"), "schema hidden is in it"),
    ],
    ids=["drop a zone", "alter a zone", "drop a database"],
)
def test_what_uses_an_object_is_not_told_to_a_user_that_may_not_drop_it(
    enforced: CatalogManager, command: Command, says: str
) -> None:
    create = create_table("s.n", zone="fast", storage_profile="default")
    schema = CreateSchema(name="hidden", database="other")
    setup: list[Command] = [create, CreateDatabase(name="other"), schema]
    enforced.execute(setup, author="root", identity="root")
    with pytest.raises(PermissionDenied, match="bob does not own"):
        enforced.execute(command, author="bob", identity="bob")
    with pytest.raises(IllegalChange, match=says):
        enforced.execute(command, author="root", identity="root")


def test_only_a_superuser_can_restore_a_dropped_role_with_its_grants(
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


def test_an_undo_brings_a_table_back_before_its_schema_with_the_privileges_on_that(
    enforced: CatalogManager,
) -> None:
    steps = [
        grant(ObjectKind.DATABASE, "hive", Privilege.CREATE),
        CreateSchema(name="from", owner="bob"),
        CreateSchema(name="to", owner="bob"),
        create_table("from.t", owner="bob"),
    ]
    enforced.execute(steps, author="root", identity="root")
    before = enforced.latest_catalog()
    batch: list[Command] = [
        RenameTable(schema="from", table="t", new_name="t", new_schema="to"),
        DropSchema(name="from"),
        DropSchema(name="to", cascade=True),
    ]
    moved = enforced.execute(batch, author="bob", identity="bob")
    undo = read_undo(enforced, moved.version)
    undone = enforced.execute(undo, author="bob", identity="bob").catalog
    assert undone.table("from", "t") == before.table("from", "t")


def test_dropping_a_schema_drops_its_default_privileges_whoever_drops_it(
    enforced: CatalogManager,
) -> None:
    anywhere = AlterDefaultPrivileges(
        kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="cleo", schema="s"
    )
    enforced.execute(anywhere, author="root", identity="root")
    with pytest.raises(PermissionDenied, match="only superusers may set default privileges"):
        enforced.execute(replace(anywhere, revoke=True), author="ann", identity="ann")
    enforced.execute(DropSchema(name="s", cascade=True), author="ann", identity="ann")
    assert not list(enforced.latest_catalog().contents.objects("default_privilege"))


def test_the_owner_of_a_schema_drops_it_with_the_indexed_tables_of_others(
    enforced: CatalogManager,
) -> None:
    index = CreateIndex(schema="s", index="i", table="c", columns=("a",), owner="cleo")
    enforced.execute(index, author="root", identity="root")
    enforced.execute(DropSchema(name="s", cascade=True), author="ann", identity="ann")
    assert enforced.latest_catalog().schema("s") is None


def test_the_default_zone_may_be_used_without_a_privilege_on_it(enforced: CatalogManager) -> None:
    steps = [SetDefaultZone(name="fast"), USAGE_S, CREATE_S]
    enforced.execute(steps, author="root", identity="root")
    enforced.execute(create_table("s.n", owner="bob"), author="bob", identity="bob")
    assert enforced.latest_catalog().table("s", "n") is not None


def test_a_command_that_changes_nothing_needs_usage_of_its_schema_alone(
    enforced: CatalogManager,
) -> None:
    nothing = RevokePrivileges(
        kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="bob"
    )
    with pytest.raises(PermissionDenied, match="lacks USAGE on schema s"):
        enforced.execute(nothing, author="bob", identity="bob")
    enforced.execute(USAGE_S, author="root", identity="root")
    assert not any(enforced.execute(nothing, author="bob", identity="bob").applied)


def test_a_user_named_system_is_checked_like_any_other_user(enforced: CatalogManager) -> None:
    with pytest.raises(PermissionDenied, match="user system lacks USAGE"):
        enforced.execute(PROPERTIES, author="system", identity="system")


@dataclass
class Leaves:
    """`PLAIN_CHANGE`, during whose planning the caller times out."""

    request: Request | None = None

    def plan(self, planning: Planning) -> None:
        assert self.request is not None
        PLAIN_CHANGE.plan(planning)
        self.request.stage = Stage.LEFT


def test_privileges_are_not_checked_after_the_caller_timed_out(enforced: CatalogManager) -> None:
    base, leaves = enforced.latest_catalog(), Leaves()
    batches: list[tuple[list[Command], type[Exception]]] = [
        ([PLAIN_CHANGE], PermissionDenied),
        ([leaves], DeadlineExceeded),
    ]
    for commands, error in batches:
        request = Request(commands, "bob", time.monotonic() + 30, identity="bob")
        leaves.request = request
        transaction = CatalogTransaction(base, author="bob")
        assert isinstance(validate(base, transaction, request, base.time).error, error)


def test_only_superusers_may_change_objects_of_a_kind_without_a_rule(
    enforced: CatalogManager,
) -> None:
    without = {kind.name for kind in declared_kinds() if kind.rule is None}
    assert without == {"fence", "setting", "timestamp", "system_view", "system_object_fingerprint"}
    base = enforced.latest_catalog()
    transaction = CatalogTransaction(base, author="ann")
    with transaction.entry("set", {}):
        transaction.put(Setting("a", "b"))
    with pytest.raises(PermissionDenied, match="only superusers may change a setting"):
        PrivilegeCheck(Access(base, "ann"), transaction).finish()
    PrivilegeCheck(Access(base, "root"), transaction).finish()


def test_a_revoked_grant_does_not_allow_reading_old_versions_of_a_dropped_table(
    enforced: CatalogManager,
) -> None:
    def root(*commands: Command) -> None:
        enforced.execute(list(commands), author="root", identity="root")

    def may_read() -> bool:
        access = Access(enforced.latest_catalog(), "bob", history=enforced.catalog)
        return access.at(past).allows(Privilege.SELECT, old)

    revoke = RevokePrivileges(
        kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="bob"
    )
    root(USAGE_S, SELECT_T)
    past = enforced.latest_catalog()
    old = past.table("s", "t")
    assert old is not None
    root(DropTable(schema="s", table="t"))
    assert may_read()
    enforced.execute(read_undrop(enforced, "table", "s.t"), author="root", identity="root")
    root(revoke)
    assert not may_read()
    root(DropTable(schema="s", table="t"))
    root(PLAIN_CHANGE)
    assert not may_read()
    enforced.execute(read_undrop(enforced, "table", "s.t"), author="root", identity="root")
    root(SELECT_T)
    past = enforced.latest_catalog()
    old = past.table("s", "t")
    assert old is not None
    root(revoke)  # in the first version after the one that is read
    root(DropTable(schema="s", table="t"))
    assert not may_read()


def test_access_to_a_dropped_object_costs_the_versions_since_its_drop(
    enforced: CatalogManager,
) -> None:
    past = enforced.latest_catalog()
    old = past.table("s", "t")
    assert old is not None

    def reads_within(units: int) -> bool:
        access = Access(enforced.latest_catalog(), "bob", history=enforced.catalog).at(past)
        with work.budget(units):
            return access.allows(Privilege.SELECT, old)

    def thirty_versions(what: str) -> None:
        for number in range(30):
            change = AlterSchema(name="s", comment=f"{what} {number}")
            enforced.execute(change, author="root", identity="root")

    thirty_versions("before")
    enforced.execute(DropTable(schema="s", table="t"), author="root", identity="root")
    reads_within(1)
    thirty_versions("after")
    with pytest.raises(work.TooLong):
        reads_within(1)


def test_each_version_is_looked_up_once_for_all_dropped_objects_of_a_request(
    enforced: CatalogManager,
) -> None:
    def root(command: Command) -> None:
        enforced.execute(command, author="root", identity="root")

    for name in ("u", "w"):
        root(create_table(f"s.{name}"))
    past = enforced.latest_catalog()
    for name in ("t", "u", "w"):
        root(DropTable(schema="s", table=name))
    looked_up: list[int] = []

    def history(version: int) -> Catalog:
        looked_up.append(version)
        return enforced.catalog(version)

    access = Access(enforced.latest_catalog(), "bob", history=history)
    for name in ("w", "u", "t", "w"):
        access.at(past).allows(Privilege.SELECT, past.table("s", name))
    assert looked_up == sorted(set(looked_up), reverse=True)


def test_a_failed_search_for_a_dropped_object_hides_no_version_from_the_next_one(
    enforced: CatalogManager,
) -> None:
    enforced.execute([USAGE_S, SELECT_T], author="root", identity="root")
    past = enforced.latest_catalog()
    old = past.table("s", "t")
    revoke = RevokePrivileges(
        kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="bob"
    )
    for command in (revoke, DropTable(schema="s", table="t")):
        enforced.execute(command, author="root", identity="root")
    failures = [OSError("the log cannot be read")]

    def history(version: int) -> Catalog:
        if failures:
            raise failures.pop()
        return enforced.catalog(version)

    access = Access(enforced.latest_catalog(), "bob", history=history).at(past)
    with pytest.raises(OSError, match="cannot be read"):
        access.allows(Privilege.SELECT, old)
    assert not access.allows(Privilege.SELECT, old)


def test_a_former_owner_of_a_dropped_schema_cannot_read_its_past(enforced: CatalogManager) -> None:
    past = enforced.latest_catalog()
    old = past.table("s", "t")
    assert old is not None
    for command in (
        AlterSchema(name="s", owner="cleo"),
        SetOwner(kind=ObjectKind.TABLE, schema="s", name="t", owner="cleo"),
        DropSchema(name="s", cascade=True),
    ):
        enforced.execute(command, author="root", identity="root")
    now = enforced.latest_catalog()
    assert not Access(now, "ann", history=enforced.catalog).at(past).allows(Privilege.SELECT, old)
    assert Access(now, "cleo", history=enforced.catalog).at(past).allows(Privilege.SELECT, old)


def test_a_role_with_the_name_of_a_former_owner_cannot_read_what_that_one_dropped(
    enforced: CatalogManager,
) -> None:
    past = enforced.latest_catalog()
    old = past.table("s", "c")
    assert old is not None
    steps: list[Command] = [
        DropTable(schema="s", table="c"),
        RenameRole(name="cleo", new_name="chloe"),
        CreateRole(name="cleo"),
        grant(ObjectKind.SCHEMA, "s", Privilege.USAGE, "public"),
    ]
    enforced.execute(steps, author="root", identity="root")

    def may_read(user: str) -> bool:
        access = Access(enforced.latest_catalog(), user, history=enforced.catalog)
        return access.at(past).allows(Privilege.SELECT, old)

    assert (may_read("chloe"), may_read("cleo")) == (True, False)
    enforced.execute(DropRole(name="chloe", reassign_to="root"), author="root", identity="root")
    assert (may_read("chloe"), may_read("cleo")) == (False, False)


def test_a_role_created_with_the_name_of_a_user_does_not_give_what_that_user_dropped(
    enforced: CatalogManager,
) -> None:
    past = enforced.latest_catalog()
    old = past.table("s", "d")
    assert old is not None
    steps = [on_system(Privilege.CREATE_ROLE), USAGE_S, DropTable(schema="s", table="d")]
    enforced.execute(steps, author="root", identity="root")
    for command in (CreateRole(name="dora"), GrantRole(role="dora", member="bob")):
        enforced.execute(command, author="bob", identity="bob")
    enforced.execute(
        grant(ObjectKind.SCHEMA, "s", Privilege.USAGE, "dora"), author="root", identity="root"
    )
    for user, expected in (("bob", False), ("dora", True)):
        access = Access(enforced.latest_catalog(), user, history=enforced.catalog)
        assert access.at(past).allows(Privilege.SELECT, old) is expected


@pytest.mark.parametrize(("user", "owner"), [("bob", ""), ("dora", "dora"), ("root", "dora")])
def test_a_role_created_with_the_name_of_a_user_does_not_own_what_others_bring_back(
    enforced: CatalogManager, user: str, owner: str
) -> None:
    may_create = Privilege.USAGE | Privilege.CREATE
    steps = [
        on_system(Privilege.CREATE_ROLE),
        grant(ObjectKind.SCHEMA, "s", may_create, "public"),
        DropTable(schema="s", table="d"),
    ]
    enforced.execute(steps, author="root", identity="root")
    for command in (CreateRole(name="dora"), GrantRole(role="dora", member="bob")):
        enforced.execute(command, author="bob", identity="bob")
    enforced.execute(read_undrop(enforced, "table", "s.d"), author=user, identity=user)
    restored = enforced.latest_catalog().table("s", "d")
    assert restored is not None
    assert restored.owner == owner


def test_the_owner_of_a_managed_cluster_alters_replicas_that_an_undo_left_to_another(
    enforced: CatalogManager,
) -> None:
    def run(command: Command, user: str = "root") -> int:
        return enforced.execute(command, author=user, identity=user).version

    run(CreateCluster(name="c", owner="ann", size="small", replication_factor=3))
    fewer = run(AlterCluster(name="c", replication_factor=2), "ann")
    run(SetOwner(kind=ObjectKind.CLUSTER, name="c", owner="bob"))
    run(read_undo(enforced, fewer), "bob")
    run(AlterCluster(name="c", size="large"), "bob")
    given = run(SetOwner(kind=ObjectKind.CLUSTER, name="c", owner="ann"))
    run(AlterCluster(name="c", replication_factor=4), "ann")
    run(read_undo(enforced, given))
    run(AlterCluster(name="c", size="small"), "bob")
    catalog = enforced.latest_catalog()
    cluster = catalog.cluster("c")
    assert cluster is not None
    replicas = catalog.replicas(cluster.id)
    assert [(replica.owner, replica.size) for replica in replicas] == [("bob", "small")] * 4
    with pytest.raises(PermissionDenied, match="ann does not own cluster c"):
        run(AlterCluster(name="c", address="local[1]"), "ann")


# -- the checks themselves are tested --------------------------------------------------------------


def lenient(case: object) -> None:
    """A rule that requires no privilege."""


def find_faults(catalog: Catalog) -> list[str]:
    """The rows that are not refused, or not with the expected message."""
    names = []
    for needs in CHANGES:
        says, _ = needs.steps[0]
        try:
            judge(catalog, needs.wanted, user="bob")
            names.append(needs.name)
        except PermissionDenied as error:
            if says not in error.message:
                names.append(needs.name)
    return names


def test_the_rows_pass_without_a_planted_fault(enforced: CatalogManager) -> None:
    assert find_faults(enforced.latest_catalog()) == []


@pytest.mark.parametrize(
    "kind",
    [
        "cluster",
        "cluster_replica",
        "comment",
        "config",
        "default_privilege",
        "introspection_index",
        "role",
        "schema",
        "system_configuration",
        "system_privilege",
        "table",
        "view",
        "zone",
    ],
)
def test_a_rule_that_requires_nothing_is_detected(
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
def test_a_missing_privilege_check_is_detected(
    enforced: CatalogManager,
    target: str,
    planted: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"strandline.catalog.privileges.access.{target}", planted)
    assert find_faults(enforced.latest_catalog()) != []
