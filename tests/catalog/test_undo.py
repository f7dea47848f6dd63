"""Undoing versions: what is restored as it was, and what prevents an undo."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from strandline.catalog import Applied, CatalogManager
from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    AlterDefaultPrivileges,
    AlterZone,
    CommentOn,
    CreateCluster,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateZone,
    DropCluster,
    DropColumns,
    DropIndex,
    DropRole,
    DropSchema,
    DropTable,
    DropZone,
    GrantPrivileges,
    GrantRole,
    MakeIndexAvailable,
    RenameRole,
    RenameSchema,
    RenameTable,
    RevokeRole,
    SetConfiguration,
    SetDefaultZone,
    SetOwner,
    SetTableProperties,
    StartBuildingIndex,
)
from strandline.catalog.undo.command import HistoryMoved
from strandline.catalog.undo.net import Target, target_of
from strandline.catalog.undo.reading import read_undo
from strandline.durable.update import Change
from strandline.errors import (
    AlreadyExists,
    Conflict,
    IllegalChange,
    InvalidInput,
    ObjectNotFound,
    StrandlineError,
    VersionNotFound,
)
from strandline.model.descriptors import IndexStatus
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import BIGINT
from tests.catalog.scenario import SCHEMA, column, create_table, create_view, table_of
from tests.catalog.taking_back import run, undo, undrop, visible

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory if possible: nothing here is about the disk."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


def prepared(manager: CatalogManager) -> CatalogManager:
    """``manager`` with a schema ``s``, the starting point of every test."""
    run(manager, SCHEMA)
    return manager


@pytest.fixture
def manager(manager: CatalogManager) -> CatalogManager:
    return prepared(manager)


def refused(manager: CatalogManager, version: int, error: type[StrandlineError]) -> str:
    """The message with which undoing ``version`` is refused; the refusal changes nothing."""
    before = manager.present()
    with pytest.raises(error) as caught:
        undo(manager, version)
    assert type(caught.value) is error
    assert manager.present() is before
    assert caught.value.message.startswith(f"version {version} cannot be undone: ")
    return caught.value.message


# -- tables ----------------------------------------------------------------------------------------


def test_a_restored_table_keeps_its_id_its_columns_and_its_indexes(manager: CatalogManager) -> None:
    run(manager, create_table("s.t", "k int not null", "v string", primary_key=("k",)))
    index = CreateIndex(schema="s", index="i", table="t", columns=("v",))
    run(manager, index)
    run(manager, CommentOn(kind=ObjectKind.INDEX, name="s.i", text="by value"))
    before = manager.present()
    version = run(manager, DropTable(schema="s", table="t"))
    restored = undo(manager, version).catalog
    assert table_of(restored, "s.t") == table_of(before, "s.t")
    assert restored.indexes(table_of(before, "s.t").id) == before.indexes(
        table_of(before, "s.t").id
    )
    assert visible(restored) == visible(before)


@pytest.mark.parametrize("again", [False, True])
def test_an_undo_does_not_drop_an_index_that_was_created_since(
    manager: CatalogManager, *, again: bool
) -> None:
    create = create_table("s.t", "a int", "b string")
    if again:
        run(manager, create)
    version = run(manager, *[DropTable(schema="s", table="t")] * again, create)
    index = run(manager, CreateIndex(schema="s", index="i", table="t", columns=("b",)))
    before = manager.present()
    with pytest.raises(Conflict, match=r"index s\.i was created since"):
        undo(manager, version)
    assert manager.present() is before
    undo(manager, index)
    undo(manager, version)


def test_an_undo_drops_a_table_whose_later_index_was_dropped_and_still_stops(
    manager: CatalogManager,
) -> None:
    version = run(manager, create_table("s.t", "a int", "b string"))
    run(manager, CreateIndex(schema="s", index="i", table="t", columns=("b",)))
    table = table_of(manager.present(), "s.t")
    (index,) = manager.present().indexes(table.id)
    run(manager, StartBuildingIndex(index_id=index.id), MakeIndexAvailable(index_id=index.id))
    run(manager, DropIndex(schema="s", index="i"))
    undo(manager, version)
    assert not manager.present().indexes(table.id)


def test_an_undo_does_not_drop_default_privileges_that_were_given_since(
    manager: CatalogManager,
) -> None:
    version = run(manager, CreateRole(name="r"))
    give = AlterDefaultPrivileges(
        kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="r", schema="s"
    )
    run(manager, give)
    with pytest.raises(Conflict, match=r"default privilege of r .*; drop or revoke that first"):
        undo(manager, version)
    run(manager, replace(give, revoke=True))
    undo(manager, version)


def test_an_undo_does_not_drop_a_role_that_has_members_since(manager: CatalogManager) -> None:
    run(manager, CreateRole(name="bob"))
    version = run(manager, CreateRole(name="group"))
    run(manager, GrantRole(role="group", member="bob"))
    reason = refused(manager, version, Conflict)
    assert "role bob has become a member of it since; revoke that first" in reason
    run(manager, RevokeRole(role="group", member="bob"))
    undo(manager, version)


def test_columns_keep_their_ids_and_no_id_is_reused(manager: CatalogManager) -> None:
    run(manager, create_table("s.t", "a int", "b string"))
    added = run(manager, AddColumns(schema="s", table="t", columns=(column("c int"),)))
    after = table_of(undo(manager, added).catalog, "s.t")
    assert [(c.id, c.name) for c in after.columns] == [(1, "a"), (2, "b")]
    assert after.next_column_id == 4
    assert [schema_version.number for schema_version in after.schema_versions] == [1, 2, 3]
    run(manager, AddColumns(schema="s", table="t", columns=(column("d int"),)))
    assert table_of(manager.present(), "s.t").column("d").id == 4


def test_a_restored_table_does_not_reuse_the_ids_of_columns(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t", "a int"))
    added = run(manager, AddColumns(schema="s", table="t", columns=(column("b int"),)))
    undo(manager, added)
    dropped = run(manager, DropTable(schema="s", table="t"))
    undo(manager, dropped)
    run(manager, AddColumns(schema="s", table="t", columns=(column("c int"),)))
    assert table_of(manager.present(), "s.t").column("c").id == 3


def test_a_restored_column_keeps_its_id_and_is_nullable(manager: CatalogManager) -> None:
    run(manager, create_table("s.t", "a int", "b string not null"))
    dropped = run(manager, DropColumns(schema="s", table="t", names=("b",)))
    back = table_of(undo(manager, dropped).catalog, "s.t").column("b")
    assert (back.id, back.nullable) == (2, True)


@pytest.mark.parametrize(
    ("transactional", "metadata", "nullable"),
    [
        (True, '{"EXISTS_DEFAULT":"5"}', True),
        (False, '{"EXISTS_DEFAULT":"5"}', False),
        (False, '{"CURRENT_DEFAULT":"5"}', True),
    ],
)
def test_a_restored_column_is_nullable_unless_spark_gives_it_a_value_in_other_rows(
    manager: CatalogManager, *, transactional: bool, metadata: str, nullable: bool
) -> None:
    columns = column("a int"), column("b int not null", metadata=metadata)
    more: dict[str, Any] = {"columns": columns, "transactional": transactional}
    run(manager, create_table("s.t", provider="parquet", **more))
    dropped = run(manager, DropColumns(schema="s", table="t", names=("b",)))
    back = table_of(undo(manager, dropped).catalog, "s.t").column("b")
    assert back.nullable is nullable


def test_column_changes_are_undone_one_by_one(manager: CatalogManager) -> None:
    run(manager, create_table("s.t", "a int"))
    before = manager.present()
    versions = [
        run(manager, AddColumns(schema="s", table="t", columns=(column(f"{name} int"),)))
        for name in "bcd"
    ]
    for version in reversed(versions):
        undo(manager, version)
    assert visible(manager.present()) == visible(before)
    assert table_of(manager.present(), "s.t").schema_version == 7


def test_a_batch_is_undone_as_a_whole_in_one_version(manager: CatalogManager) -> None:
    run(manager, create_table("s.a"), create_table("s.b"))
    before = manager.present()
    swap = [("a", "tmp"), ("b", "a"), ("tmp", "b")]
    version = run(
        manager,
        *(RenameTable(schema="s", table=old, new_name=new) for old, new in swap),
        create_view("s.v"),
        DropTable(schema="s", table="a"),
    )
    undone = undo(manager, version)
    assert undone.version == version + 1
    assert visible(undone.catalog) == visible(before)
    actions = manager.history(undone.version)[0].actions
    assert [verb for verb, _ in actions] == [
        "drop_view",
        "restore_table",
        "rename_table",
        "rename_table",
        "rename_table",
    ]
    assert all(arguments["undoes"] == version for _, arguments in actions)
    assert [(a["table"], a["to"]) for _, a in actions[2:]] == [
        ("s.b", "s.tmp"),
        ("s.a", "s.b"),
        ("s.tmp", "s.a"),
    ]


def test_a_dropped_schema_is_restored_with_all_its_objects(manager: CatalogManager) -> None:
    run(manager, create_table("s.t", "k int not null", primary_key=("k",)), create_view("s.v"))
    before = manager.present()
    version = run(manager, DropSchema(name="s", cascade=True))
    assert visible(undo(manager, version).catalog) == visible(before)


def test_an_object_created_and_dropped_in_one_version_leaves_nothing_to_undo(
    manager: CatalogManager,
) -> None:
    version = run(manager, create_table("s.t"), DropTable(schema="s", table="t"))
    undone = undo(manager, version)
    assert (undone.version, undone.applied) == (version, (False,))


# -- what prevents an undo -------------------------------------------------------------------------


def test_a_conflicting_later_change_is_named_with_its_version_and_author(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, SetTableProperties(schema="s", table="t", set=(("a", "1"),)))
    run(manager, create_table("s.other"))
    later = run(manager, SetTableProperties(schema="s", table="t", set=(("b", "1"),)), author="bob")
    message = refused(manager, version, Conflict)
    assert f"table s.t was altered again in version {later} by bob" in message
    assert "other" not in message
    undo(manager, later)
    undo(manager, version)
    assert table_of(manager.present(), "s.t").properties == ()


def test_a_later_drop_is_named_with_its_version_and_author(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, SetTableProperties(schema="s", table="t", set=(("a", "1"),)))
    dropped = run(manager, DropTable(schema="s", table="t"))
    message = refused(manager, version, Conflict)
    assert f"table s.t was dropped in version {dropped} by ann (drop table)" in message


def test_a_table_dropped_with_its_schema_is_named_by_its_old_name(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, SetTableProperties(schema="s", table="t", set=(("a", "1"),)))
    run(manager, DropSchema(name="s", cascade=True))
    assert "table s.t was dropped in version" in refused(manager, version, Conflict)


def test_a_drop_can_be_undone_only_once(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, DropTable(schema="s", table="t"))
    back = undo(manager, version)
    assert f"came back in version {back.version}" in refused(manager, version, Conflict)
    again = run(manager, DropTable(schema="s", table="t"))
    message = refused(manager, version, Conflict)
    assert f"was restored and dropped again in version {again}" in message


def test_the_object_that_took_the_old_name_is_named(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    renamed = run(manager, RenameTable(schema="s", table="t", new_name="u"))
    run(manager, create_view("s.T"))
    assert "name of table s.t is now used by view T" in refused(manager, renamed, AlreadyExists)
    dropped = run(manager, DropTable(schema="s", table="u"))
    run(manager, create_table("s.u"))
    assert "name of table s.u is now used by table u" in refused(manager, dropped, AlreadyExists)


def test_a_dropped_schema_must_be_restored_before_its_tables(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    before = manager.present()
    table = run(manager, DropTable(schema="s", table="t"))
    schema = run(manager, DropSchema(name="s"), author="bob")
    message = refused(manager, table, ObjectNotFound)
    assert f"schema s, which table t belongs to, was dropped in version {schema} by bob" in message
    undo(manager, schema)
    undo(manager, table)
    assert visible(manager.present()) == visible(before)


def test_a_table_that_was_dropped_with_its_schema_is_not_restored_alone(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, DropSchema(name="s", cascade=True))
    reason = f"schema s, which table t belongs to, was dropped in version {version} by ann"
    with pytest.raises(ObjectNotFound, match=reason):
        undrop(manager, "s.t")
    assert undrop(manager, "s", kind="schema").catalog.table("s", "t") is not None


def test_a_table_cannot_be_restored_while_its_zone_is_dropped(manager: CatalogManager) -> None:
    run(manager, CreateZone(name="fast"))
    run(manager, create_table("s.t", zone="fast"))
    table = run(manager, DropTable(schema="s", table="t"))
    run(manager, DropZone(name="fast"))
    assert "zone fast, which table t belongs to" in refused(manager, table, ObjectNotFound)


def test_undoing_a_creation_follows_the_rules_of_the_drop(manager: CatalogManager) -> None:
    schema = run(manager, CreateSchema(name="n"))
    run(manager, create_table("n.t"))
    assert "not empty" in refused(manager, schema, IllegalChange)
    zone = run(manager, CreateZone(name="fast"))
    run(manager, create_table("s.t", zone="fast"))
    assert "table s.t is in it" in refused(manager, zone, IllegalChange)
    role = run(manager, CreateRole(name="bob"))
    run(manager, create_table("s.u", owner="bob"))
    assert "role bob owns table s.u" in refused(manager, role, IllegalChange)


def test_adding_a_column_cannot_be_undone_while_an_index_uses_it(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, AddColumns(schema="s", table="t", columns=(column("c int"),)))
    run(manager, CreateIndex(schema="s", index="i", table="t", columns=("c",)))
    assert "these indexes use it: i;" in refused(manager, version, IllegalChange)


def test_an_index_on_a_dropped_column_cannot_be_restored(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    run(manager, CreateIndex(schema="s", index="i", table="t", columns=("b",)))
    version = run(manager, DropIndex(schema="s", index="i"))
    run(manager, DropColumns(schema="s", table="t", names=("b",)))
    assert "a column of t that was dropped" in refused(manager, version, IllegalChange)


def test_widening_a_column_type_cannot_be_undone(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, AlterColumn(schema="s", table="t", column="a", type=BIGINT))
    assert "column 'a' of t cannot be restored to its earlier definition" in refused(
        manager, version, IllegalChange
    )


def test_a_started_index_build_cannot_be_undone_and_a_stopped_index_begins_anew(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"))
    run(manager, CreateIndex(schema="s", index="i", table="t", columns=("b",)))
    (index,) = manager.present().indexes(table_of(manager.present(), "s.t").id)
    started = run(manager, StartBuildingIndex(index_id=index.id))
    assert "which cannot be reversed" in refused(manager, started, IllegalChange)
    run(manager, MakeIndexAvailable(index_id=index.id))
    stopped = run(manager, DropIndex(schema="s", index="i"))
    back = undo(manager, stopped).catalog.alive_index("s", "i")
    assert back is not None
    assert (back.id, back.status) == (index.id, IndexStatus.REGISTERED)


def test_a_configuration_parameter_gets_its_previous_value_back(manager: CatalogManager) -> None:
    first = run(manager, SetConfiguration(name="max_tables", value="5"))
    second = run(manager, SetConfiguration(name="max_tables", value="7"))
    assert undo(manager, second).catalog.configuration("max_tables") == "5"
    assert undo(manager, first).catalog.configuration("max_tables") is None


def test_the_default_zone_is_restored_unless_that_zone_was_dropped(manager: CatalogManager) -> None:
    run(manager, CreateZone(name="a"))
    run(manager, CreateZone(name="b"))
    run(manager, SetDefaultZone(name="a"))
    version = run(manager, SetDefaultZone(name="b"))
    dropped = run(manager, DropZone(name="a"))
    assert "that was the default zone" in refused(manager, version, ObjectNotFound)
    undo(manager, dropped)
    zone = undo(manager, version).catalog.default_zone()
    assert zone is not None
    assert zone.name == "a"


def test_a_membership_is_not_restored_if_it_would_close_a_cycle(manager: CatalogManager) -> None:
    run(manager, CreateRole(name="a"), CreateRole(name="b"))
    run(manager, GrantRole(role="a", member="b"))
    version = run(manager, RevokeRole(role="a", member="b"))
    run(manager, GrantRole(role="b", member="a"))
    assert "a member of itself" in refused(manager, version, IllegalChange)


def test_a_membership_is_not_restored_in_a_role_that_was_dropped_since(
    manager: CatalogManager,
) -> None:
    run(manager, CreateRole(name="a"), CreateRole(name="b"))
    run(manager, GrantRole(role="a", member="b"))
    version = run(manager, RevokeRole(role="a", member="b"))
    run(manager, DropRole(name="a"))
    assert "no longer exists; undo its drop first" in refused(manager, version, ObjectNotFound)


def test_a_restored_role_has_its_grants_again(manager: CatalogManager) -> None:
    run(manager, CreateRole(name="bob"), create_table("s.t"))
    grant = GrantPrivileges(
        kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="bob"
    )
    run(manager, grant)
    system = GrantPrivileges(
        kind=ObjectKind.SYSTEM, privileges=Privilege.CREATE_ROLE, grantee="bob"
    )
    run(manager, system)
    before = manager.present()
    version = run(manager, DropRole(name="bob"))
    assert visible(undo(manager, version).catalog) == visible(before)


def test_the_first_versions_cannot_be_undone(manager: CatalogManager) -> None:
    assert "contains only the catalog's internal records" in refused(manager, 1, IllegalChange)
    assert "the version that created the catalog" in refused(manager, 2, IllegalChange)


def test_the_refusal_to_undo_a_trimmed_version_says_that_it_was_trimmed(
    manager: CatalogManager,
) -> None:
    version = run(manager, create_table("s.t"))
    dropped = run(manager, DropTable(schema="s", table="t"))
    last = run(manager, create_table("s.u"))
    manager.compact(last)
    for number in (version, dropped):
        message = refused(manager, number, VersionNotFound)
        assert f"it was trimmed; the earliest version is {last}" in message
    message = refused(manager, last, VersionNotFound)
    assert (
        f"trimmed up to it, so the state before it is no longer known; versions from {last + 1} o"
        in (message)
    )
    message = refused(manager, last + 1, VersionNotFound)
    assert f"does not exist; the latest is {last}" in message
    with pytest.raises(VersionNotFound, match=f"version {dropped}, in which ann dropped it, was"):
        undrop(manager, "s.t")


def test_a_table_restored_while_the_history_was_read_is_detected(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, DropTable(schema="s", table="t"))
    read = read_undo(manager, version)
    undo(manager, version)
    run(manager, AddColumns(schema="s", table="t", columns=(column("c int"),)))
    run(manager, DropTable(schema="s", table="t"))
    with pytest.raises(HistoryMoved):
        manager.execute(read, author="ann")


def test_a_change_made_while_the_history_was_read_is_detected(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, SetTableProperties(schema="s", table="t", set=(("a", "1"),)))
    read = read_undo(manager, version)
    run(manager, SetTableProperties(schema="s", table="t", set=(("a", "2"),)))
    with pytest.raises(Conflict, match=r"table s\.t has changed since"):
        manager.execute(read, author="ann")


# -- several versions as one -----------------------------------------------------------------------


def undo_all(manager: CatalogManager, first: int, last: int) -> Applied:
    return manager.execute(read_undo(manager, first, through=last), author="ann")


def test_several_versions_are_undone_as_one_and_redone_as_one(manager: CatalogManager) -> None:
    run(manager, create_table("s.kept"), create_table("s.gone"))
    before = visible(manager.present())
    first = run(manager, AddColumns(schema="s", table="kept", columns=(column("n int"),)))
    run(manager, RenameTable(schema="s", table="kept", new_name="named"))
    run(manager, DropTable(schema="s", table="gone"), create_table("s.made"))
    last = run(manager, SetTableProperties(schema="s", table="named", set=(("k", "v"),)))
    after = visible(manager.present())
    undone = undo_all(manager, first, last)
    assert visible(manager.present()) == before
    undoes = {a.get("undoes") for _, a in manager.history(undone.version)[0].actions}
    assert undoes == {f"{first}..{last}"}
    undo(manager, undone.version)
    assert visible(manager.present()) == after


def test_versions_that_were_undone_within_the_range_are_not_undone_again(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"))
    first = run(manager, AddColumns(schema="s", table="t", columns=(column("n int"),)))
    last = undo_all(manager, first, first).version
    table = table_of(manager.present(), "s.t")
    assert undo_all(manager, first, last).version == last
    assert table_of(manager.present(), "s.t") == table


def test_an_object_created_and_dropped_within_the_range_does_not_prevent_its_undo(
    manager: CatalogManager,
) -> None:
    before = visible(manager.present())
    first = run(manager, create_table("s.t"))
    run(manager, DropTable(schema="s", table="t"))
    last = run(manager, create_table("s.u"))
    undo_all(manager, first, last)
    assert visible(manager.present()) == before


def test_a_role_that_was_created_twice_within_the_range_is_dropped_once(
    manager: CatalogManager,
) -> None:
    created = run(manager, create_table("s.t"))
    before = visible(manager.present())
    first = undo(manager, created).version
    redone = undo(manager, first).version
    owned = SetOwner(kind=ObjectKind.TABLE, schema="s", name="t", owner="q")
    undone = undo_all(manager, redone, run(manager, CreateRole(name="q"), owned))
    undo(manager, undone.version)
    last = run(manager, DropTable(schema="s", table="t"))
    undo_all(manager, first, last)
    assert visible(manager.present()) == before


def test_a_table_whose_name_another_one_got_twice_within_the_range_comes_back(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.old", "k int not null", primary_key=("k",)))
    created = run(manager, create_table("s.new"))
    before = visible(manager.present())
    first = run(
        manager,
        DropTable(schema="s", table="old"),
        RenameTable(schema="s", table="new", new_name="old"),
    )
    undone = undo_all(manager, created, first)
    last = undo(manager, undone.version).version
    after = visible(manager.present())
    back = undo_all(manager, first, last)
    assert visible(manager.present()) == before
    undo(manager, back.version)
    assert visible(manager.present()) == after


def test_undoing_several_versions_is_refused_as_a_whole(manager: CatalogManager) -> None:
    first = run(manager, create_table("s.t"))
    last = run(manager, create_table("s.u"))
    run(manager, SetTableProperties(schema="s", table="u", set=(("k", "v"),)), author="bob")
    before = manager.latest_catalog()
    with pytest.raises(Conflict, match=f"what versions {first} to {last} did cannot be undone"):
        undo_all(manager, first, last)
    with pytest.raises(InvalidInput, match="name the older one first"):
        undo_all(manager, last, first)
    with pytest.raises(VersionNotFound, match="version 99 cannot be undone: it does not exist"):
        undo_all(manager, first, 99)
    with pytest.raises(IllegalChange, match="created the catalog"):
        undo_all(manager, 2, last)
    assert manager.latest_catalog() is before


def test_a_range_that_is_too_long_is_refused_before_the_log_is_read(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(manager, create_table("s.t"))
    last = run(manager, create_table("s.u"))
    monkeypatch.setattr("strandline.catalog.undo.reading.MAX_VERSIONS", 1)
    monkeypatch.setattr(manager, "updates", lambda *_: pytest.fail("the log is read"))
    for through in (last, 10**30):
        with pytest.raises(InvalidInput, match="at once: the limit is 1 versions; undo the newest"):
            read_undo(manager, first, through=through)
    monkeypatch.undo()
    undo_all(manager, first, last)
    assert manager.present().relation_names("s") == []


def test_later_versions_are_examined_once_and_not_for_each_object(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = later = 20
    version = run(manager, *(CreateSchema(name=f"a{n}") for n in range(objects)))
    for _ in range(later // 2):
        run(manager, RenameSchema(name="a0", new_name="b"))
        run(manager, RenameSchema(name="b", new_name="a0"))
    looks = []

    def counted(change: Change) -> Target:
        looks.append(change)
        return target_of(change)

    monkeypatch.setattr("strandline.catalog.undo.command.target_of", counted)
    assert undo(manager, version).catalog.schema("a0") is None
    assert len(looks) < objects * later


def test_a_storage_profile_that_a_table_uses_stays_in_its_zone(manager: CatalogManager) -> None:
    run(manager, CreateZone(name="fast"))
    version = run(manager, AlterZone(name="fast", storage_profiles=("default", "ssd")))
    run(manager, create_table("s.t", zone="fast", storage_profile="ssd"))
    assert "storage profile 'ssd' cannot be removed" in refused(manager, version, IllegalChange)


def configured_sizes(*names: str) -> SetConfiguration:
    value = json.dumps({name: {"cores": 1, "memory": "1g"} for name in names})
    return SetConfiguration(name="cluster_sizes", value=value)


def test_a_cluster_is_not_restored_with_a_size_that_is_no_longer_configured(
    manager: CatalogManager,
) -> None:
    run(manager, configured_sizes("one", "two"))
    run(manager, CreateCluster(name="c", size="two"))
    version = run(manager, DropCluster(name="c"))
    run(manager, configured_sizes("one"))
    assert "size 'two' is not configured" in refused(manager, version, InvalidInput)


def test_a_size_that_a_cluster_uses_stays_configured(manager: CatalogManager) -> None:
    run(manager, configured_sizes("one"))
    version = run(manager, configured_sizes("one", "two"))
    run(manager, CreateCluster(name="c", size="two"))
    assert "cluster c uses it" in refused(manager, version, IllegalChange)


def test_a_role_that_a_renamed_one_has_made_since_goes_back_to_the_former_name(
    manager: CatalogManager,
) -> None:
    run(manager, CreateRole(name="ann"))
    version = run(manager, RenameRole(name="ann", new_name="bob"))
    run(manager, CreateRole(name="cleo", owner="bob"))
    cleo = undo(manager, version).catalog.role("cleo")
    assert cleo is not None
    assert cleo.owner == "ann"
