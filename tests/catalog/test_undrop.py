"""Restoring dropped objects by name: which object it is, and what comes back with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline import work
from strandline.catalog import CatalogManager, Command
from strandline.catalog.commands import (
    AddColumns,
    AlterDefaultPrivileges,
    AlterSchema,
    ColumnDefinition,
    CommentOn,
    CreateIndex,
    CreateRole,
    CreateSchema,
    DropRole,
    DropSchema,
    DropTable,
    DropView,
    RenameSchema,
    RenameTable,
)
from strandline.catalog.undo import reading
from strandline.catalog.undo.reading import read_undo, read_undrop
from strandline.durable.update import Update
from strandline.errors import AlreadyExists, InvalidInput, ObjectNotFound
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import BIGINT
from tests.catalog.scenario import create_table, create_view, table_of
from tests.catalog.taking_back import run, undo, undrop, visible
from tests.catalog.test_undo import prepared


@pytest.fixture
def manager(manager: CatalogManager) -> CatalogManager:
    return prepared(manager)


def test_undrop_restores_the_last_dropped_table_of_that_name(manager: CatalogManager) -> None:
    ids = []
    for text in ("a int", "b int"):
        run(manager, create_table("s.t", text))
        ids.append(table_of(manager.present(), "s.t").id)
        run(manager, DropTable(schema="s", table="t"), create_view("s.v"))
        run(manager, DropView(schema="s", view="v"))
    run(manager, CreateSchema(name="other"), create_table("other.t"))
    run(manager, DropTable(schema="other", table="t"))
    assert table_of(undrop(manager, "S.T").catalog, "s.t").id == ids[1]
    with pytest.raises(AlreadyExists, match="that name is taken"):
        undrop(manager, "s.t")
    run(manager, RenameTable(schema="s", table="t", new_name="second"))
    assert table_of(undrop(manager, "s.t").catalog, "s.t").id == ids[0]
    with pytest.raises(AlreadyExists):
        undrop(manager, "s.t")
    assert undrop(manager, "s.v", kind="view").catalog.view("s", "v") is not None


def test_the_undo_of_many_objects_is_too_long_for_a_thread_of_the_node(
    manager: CatalogManager,
) -> None:
    few = run(manager, *(create_table(f"s.a{number}") for number in range(50)))
    many = run(manager, *(create_table(f"s.b{number}") for number in range(150)))
    dropped = run(manager, DropSchema(name="s", cascade=True))
    with work.budget(work.IN_THREAD):
        read_undo(manager, few)
    for version in (many, dropped):
        with work.budget(work.IN_THREAD), pytest.raises(work.TooLong):
            read_undo(manager, version)
    with work.budget(work.IN_THREAD), pytest.raises(work.TooLong):
        read_undrop(manager, "schema", "s")


def test_undrop_of_what_was_just_dropped_reads_only_the_last_versions(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(manager, create_table("s.t"))
    for number in range(20):
        run(manager, CreateSchema(name=f"other{number}"))
    dropped = run(manager, DropTable(schema="s", table="t"))
    read: list[int] = []
    updates = CatalogManager.updates

    def noted(catalogs: CatalogManager, start: int, end: int) -> tuple[Update, ...]:
        read.extend(range(start, end))
        return updates(catalogs, start, end)

    monkeypatch.setattr(CatalogManager, "updates", noted)
    read_undrop(manager, "table", "s.t")
    assert read == [dropped]


def test_undrop_finds_a_drop_in_the_first_version_that_was_not_trimmed(
    manager: CatalogManager,
) -> None:
    created = run(manager, create_table("s.t"))
    run(manager, DropTable(schema="s", table="t"))
    assert manager.compact(created)
    assert undrop(manager, "s.t").catalog.relation_names("s") == ["t"]


def test_undrop_restores_its_object_and_does_not_undo_the_rest_of_the_version(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t", "k int not null", primary_key=("k",)), create_table("s.u"))
    before = manager.present()
    run(
        manager,
        DropTable(schema="s", table="t"),
        DropTable(schema="s", table="u"),
        create_view("s.v"),
    )
    after = undrop(manager, "s.t").catalog
    assert table_of(after, "s.t") == table_of(before, "s.t")
    assert [index.name for index in after.indexes(table_of(after, "s.t").id)] == ["t_pk"]
    assert after.relation_names("s") == ["t", "v"]


def test_a_restored_table_gets_no_default_privileges_although_its_batch_creates_another(
    manager: CatalogManager,
) -> None:
    run(manager, CreateRole(name="bob"), create_table("s.t"))
    before = table_of(manager.present(), "s.t")
    run(manager, DropTable(schema="s", table="t"))
    run(
        manager,
        AlterDefaultPrivileges(
            kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="bob", schema="s"
        ),
    )
    run(manager, create_table("s.u"), read_undrop(manager, "table", "s.t"))
    assert table_of(manager.present(), "s.t") == before
    assert table_of(manager.present(), "s.u").privileges


def test_a_restored_schema_has_no_default_privileges_of_a_role_that_was_dropped_since(
    manager: CatalogManager,
) -> None:
    grants = [
        AlterDefaultPrivileges(
            kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee=grantee, schema="s"
        )
        for grantee in ("bob", "carl")
    ]
    run(manager, CreateRole(name="bob"), CreateRole(name="carl"), create_table("s.t"), *grants)
    run(manager, DropSchema(name="s", cascade=True))
    run(manager, DropRole(name="bob"))
    after = undrop(manager, "s", kind="schema").catalog
    carl, table = after.role("carl"), table_of(after, "s.t")
    assert table.name == "t"
    defaults = [stored.value for stored in after.contents.objects("default_privilege")]
    assert [default.grantee for default in defaults] == [carl and carl.id]


def test_the_refusal_to_restore_a_default_privilege_of_a_dropped_role_shows_no_key(
    manager: CatalogManager,
) -> None:
    grant = AlterDefaultPrivileges(
        kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="bob"
    )
    run(manager, CreateRole(name="bob"), grant)
    version = run(manager, replace(grant, revoke=True))
    run(manager, DropRole(name="bob"))
    with pytest.raises(ObjectNotFound, match="role bob, which a default privilege belongs to, was"):
        undo(manager, version)


def test_undrop_accepts_the_old_and_the_new_name_of_a_renamed_schema(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"), create_table("s.u"))
    run(manager, DropTable(schema="s", table="t"), DropTable(schema="s", table="u"))
    run(manager, RenameSchema(name="s", new_name="now"))
    assert undrop(manager, "s.t").catalog.table("now", "t") is not None
    assert undrop(manager, "now.u").catalog.table("now", "u") is not None


def test_undrop_refuses_names_that_were_never_dropped_and_unsupported_kinds(
    manager: CatalogManager,
) -> None:
    with pytest.raises(ObjectNotFound, match="no version from 1 on dropped a table of that name"):
        undrop(manager, "s.nothing")
    with pytest.raises(InvalidInput, match="kinds that can are schema, table, view, function"):
        read_undrop(manager, "zone", "s.t")


@pytest.mark.parametrize("one_by_one", [False, True], ids=["in one version", "as Spark does it"])
def test_a_schema_is_restored_with_everything_that_was_dropped_with_it(
    manager: CatalogManager, one_by_one: bool
) -> None:
    run(manager, create_table("s.t"), create_table("s.u"), create_view("s.v"))
    run(manager, CreateIndex(schema="s", index="i", table="t", columns=("a",)))
    for kind, name in ((ObjectKind.TABLE, "s.t"), (ObjectKind.INDEX, "s.i")):
        run(manager, CommentOn(kind=kind, name=name, text="c"))
    run(manager, CreateSchema(name="other"), create_table("other.t"))
    before = visible(manager.present())
    run(manager, DropTable(schema="other", table="t"))  # by the same author, in another schema
    if one_by_one:
        for name in "tu":
            run(manager, DropTable(schema="s", table=name))
        run(manager, DropView(schema="s", view="v"))
    run(manager, DropSchema(name="s", cascade=True))
    undrop(manager, "S", kind="schema")
    undrop(manager, "other.t")
    assert visible(manager.present()) == before


@pytest.mark.parametrize(
    "more", [create_view("other.v"), DropTable(schema="other", table="t")], ids=["make", "drop"]
)
def test_a_schema_is_restored_without_what_a_version_dropped_that_did_more(
    manager: CatalogManager, more: Command
) -> None:
    run(manager, create_table("s.t"), create_table("s.u"))
    run(manager, CreateSchema(name="other"), create_table("other.t"))
    run(manager, DropTable(schema="s", table="t"), more)
    run(manager, DropSchema(name="s", cascade=True))
    undrop(manager, "s", kind="schema")
    assert manager.present().relation_names("s") == ["u"]


@pytest.mark.parametrize(
    ("meanwhile", "restored"),
    [
        (create_table("other.t"), ["t", "u"]),
        (CreateSchema(name="third"), ["t", "u"]),
        (CreateRole(name="r2"), ["t", "u"]),
        (CommentOn(kind=ObjectKind.TABLE, name="other.a", text="c"), ["t", "u"]),
        (AddColumns(schema="s", table="u", columns=(ColumnDefinition("z", BIGINT),)), ["t", "u"]),
        (RenameTable(schema="s", table="u", new_name="x"), ["x"]),
        (create_view("s.w"), ["u", "w"]),
        (CommentOn(kind=ObjectKind.SCHEMA, name="s", text="c"), ["t", "u"]),
        (AlterSchema(name="s", properties=(("k", "v"),)), ["t", "u"]),
        (DropRole(name="r"), ["u"]),
    ],
    ids=[
        "table",
        "schema",
        "role",
        "comment",
        "altered",
        "renamed",
        "this schema",
        "comment on the schema",
        "schema altered",
        "dropped role",
    ],
)
def test_a_schema_is_restored_past_what_others_did_elsewhere(
    manager: CatalogManager, meanwhile: Command, restored: list[str]
) -> None:
    """An owner of the schema's objects may be gone, or a name in it may be taken."""
    run(manager, create_table("s.t"), create_table("s.u"))
    run(manager, CreateSchema(name="other"), create_table("other.a"), CreateRole(name="r"))
    run(manager, DropTable(schema="s", table="t"))
    run(manager, meanwhile, author="bob")
    run(manager, DropSchema(name="s", cascade=True))
    undrop(manager, "s", kind="schema")
    assert manager.present().relation_names("s") == restored
    schema = manager.present().schema("s")
    assert schema is not None
    if isinstance(meanwhile, AlterSchema):
        assert schema.properties == meanwhile.properties
    if isinstance(meanwhile, AddColumns):
        assert [column.name for column in table_of(manager.present(), "s.u").columns][-1] == "z"


def test_looking_past_what_others_did_is_charged_to_the_budget(manager: CatalogManager) -> None:
    """Within a minute they may change many objects, and each change is decoded."""
    run(manager, create_table("s.t"), CreateSchema(name="other"))
    run(manager, DropTable(schema="s", table="t"))
    run(manager, *(create_table(f"other.t{number}") for number in range(100)), author="bob")
    run(manager, DropSchema(name="s", cascade=True))
    with work.budget(100), pytest.raises(work.TooLong):
        read_undrop(manager, "schema", "s")
    with work.budget(500):
        read_undrop(manager, "schema", "s")


def test_a_schema_is_restored_without_what_was_dropped_long_before_what_others_did(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CASCADE_PAUSE_MS", -1)
    run(manager, create_table("s.t"), create_table("s.u"), create_table("s.v"))
    run(manager, CreateSchema(name="other"))
    run(manager, DropTable(schema="s", table="t"))
    run(manager, create_table("other.t"), author="bob")
    run(manager, DropTable(schema="s", table="u"))
    run(manager, DropSchema(name="s", cascade=True))
    undrop(manager, "s", kind="schema")
    assert manager.present().relation_names("s") == ["u", "v"]


def test_a_schema_is_restored_without_what_another_user_had_dropped_before(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"), create_table("s.u"))
    run(manager, DropTable(schema="s", table="t"), author="bob")
    run(manager, DropTable(schema="s", table="u"))
    run(manager, DropSchema(name="s"))
    undrop(manager, "s", kind="schema")
    assert manager.present().relation_names("s") == ["u"]
    with pytest.raises(AlreadyExists, match="that name is taken by schema s"):
        undrop(manager, "s", kind="schema")
    with pytest.raises(ObjectNotFound, match="no version from 1 on dropped a schema"):
        undrop(manager, "never", kind="schema")
