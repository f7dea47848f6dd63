"""Undoing one part of an object while another part was changed since."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.catalog import CatalogManager, Command
from strandline.catalog.commands import (
    AddColumns,
    CommentOn,
    CreateIndex,
    CreateRole,
    DropColumns,
    DropTable,
    GrantPrivileges,
    MakeIndexAvailable,
    RenameRole,
    RenameSchema,
    RenameTable,
    SetOwner,
    SetTableProperties,
    StartBuildingIndex,
)
from strandline.catalog.undo.reading import read_undo
from strandline.errors import Conflict
from strandline.model.descriptors import IndexStatus, SchemaVersion, TableDescriptor
from strandline.model.privileges import ObjectKind, Privilege
from tests.catalog.scenario import SCHEMA, column, create_table, table_of
from tests.catalog.taking_back import run, uncounted, undo

TABLE = ObjectKind.TABLE


def prepared(manager: CatalogManager) -> CatalogManager:
    """``manager`` with a table ``s.t``, with the columns ``k`` and ``x``, and a role ``bob``."""
    run(manager, SCHEMA, create_table("s.t", "k int", "x int"), CreateRole(name="bob"))
    return manager


@pytest.fixture
def manager(manager: CatalogManager) -> CatalogManager:
    return prepared(manager)


def grant(privilege: Privilege) -> Command:
    return GrantPrivileges(kind=TABLE, name="s.t", privileges=privilege, grantee="bob")


def give_to(owner: str) -> Command:
    return SetOwner(kind=TABLE, schema="s", name="t", owner=owner)


def comment(text: str) -> Command:
    return CommentOn(kind=TABLE, name="s.t", text=text)


def set_property(name: str) -> Command:
    return SetTableProperties(schema="s", table="t", set=((name, "1"),))


PARTS: dict[str, tuple[Command, Command]] = {
    "columns": (
        DropColumns(schema="s", table="t", names=("x",)),
        AddColumns(schema="s", table="t", columns=(column("y int"),)),
    ),
    "owner": (give_to("carl"), give_to("dora")),
    "comment": (comment("first"), comment("second")),
    "properties": (set_property("g"), set_property("h")),
    "privileges": (grant(Privilege.SELECT), grant(Privilege.INSERT)),
}
"""For each part of a table, two commands that change it."""


def table(manager: CatalogManager) -> TableDescriptor:
    value: TableDescriptor = table_of(manager.present(), "s.t")
    return value


def part_of(value: TableDescriptor, part: str) -> object:
    apart = ("owner", "comment", "properties", "privileges")
    if part in apart:
        return getattr(value, part)
    neutral = replace(value, owner="", comment=None, properties=(), privileges=())
    columns = tuple(replace(column, nullable=True) for column in value.columns)
    return replace(neutral, schema_versions=(SchemaVersion(0, columns),), next_column_id=0)


@pytest.mark.parametrize("since", PARTS)
@pytest.mark.parametrize("undone", PARTS)
def test_a_part_is_undone_unless_the_same_part_was_changed_since(
    manager: CatalogManager, undone: str, since: str
) -> None:
    before = table(manager)
    version = run(manager, PARTS[undone][0])
    run(manager, PARTS[since][1], author="eve")
    present = table(manager)
    if undone == since:
        with pytest.raises(Conflict, match=r"table s\.t was altered again in version \d+ by eve"):
            undo(manager, version)
        assert table(manager) == present
        return
    back = undo(manager, version)
    assert part_of(table(manager), undone) == part_of(before, undone)
    for part in PARTS.keys() - {undone}:
        assert part_of(table(manager), part) == part_of(present, part)
    undo(manager, back.version)
    assert uncounted(table(manager)) == uncounted(present)


def test_a_grant_keeps_the_creation_of_its_table_from_being_undone_until_it_is_taken_back(
    manager: CatalogManager,
) -> None:
    created = run(manager, create_table("s.u", "k int"))
    to_bob = GrantPrivileges(kind=TABLE, name="s.u", privileges=Privilege.SELECT, grantee="bob")
    granted = run(manager, to_bob, author="eve")
    with pytest.raises(Conflict, match=r"by eve \(grant\); undo that first, or drop it$"):
        undo(manager, created)
    undo(manager, granted)
    undo(manager, created)
    assert manager.present().table("s", "u") is None


def test_a_later_owner_stays_although_it_has_the_former_name_of_a_role(
    manager: CatalogManager,
) -> None:
    """The name of the role that owned the table is another's since."""
    run(manager, give_to("bob"))
    version = run(manager, PARTS["columns"][0])
    run(manager, RenameRole(name="bob", new_name="rob"))
    run(manager, CreateRole(name="bob"))
    run(manager, give_to("bob"))
    undo(manager, version)
    assert table(manager).owner == "bob"


def test_a_table_and_a_schema_that_were_renamed_get_back_what_was_changed_before(
    manager: CatalogManager,
) -> None:
    versions = [run(manager, PARTS["comment"][0]), run(manager, PARTS["privileges"][0])]
    run(manager, RenameTable(schema="s", table="t", new_name="u"))
    run(manager, RenameSchema(name="s", new_name="r"))
    for version in versions:
        undo(manager, version)
    renamed = table_of(manager.present(), "r.u")
    assert (renamed.comment, renamed.privileges) == (None, ())


def test_a_later_name_stays_although_the_version_renamed_the_table_there_and_back(
    manager: CatalogManager,
) -> None:
    there = RenameTable(schema="s", table="t", new_name="u")
    back = RenameTable(schema="s", table="u", new_name="t")
    version = run(manager, there, back, give_to("carl"))
    run(manager, RenameTable(schema="s", table="t", new_name="later"))
    undo(manager, version)
    assert table_of(manager.present(), "s.later").owner == "ann"


def test_a_later_name_stays_although_the_versions_dropped_the_table_and_brought_it_back(
    manager: CatalogManager,
) -> None:
    dropped = run(manager, DropTable(schema="s", table="t"))
    undo(manager, dropped)
    given = run(manager, give_to("carl"))
    run(manager, RenameTable(schema="s", table="t", new_name="later"))
    manager.execute(read_undo(manager, dropped, through=given), author="ann")
    assert table_of(manager.present(), "s.later").owner == "ann"


def test_the_owner_of_an_index_goes_back_while_its_status_stays(manager: CatalogManager) -> None:
    run(manager, CreateIndex(schema="s", index="i", table="t", columns=("k",)))
    (created,) = manager.present().contents.objects("index")
    version = run(manager, PARTS["owner"][0])
    run(manager, StartBuildingIndex(index_id=created.id))
    run(manager, MakeIndexAvailable(index_id=created.id))
    undo(manager, version)
    (stored,) = manager.present().contents.objects("index")
    assert (stored.value.owner, stored.value.status) == ("ann", IndexStatus.AVAILABLE)
