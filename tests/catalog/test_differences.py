"""The differences between two versions, by object and by field."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline import work
from strandline.catalog import Catalog, CatalogManager, Command
from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    AlterDefaultPrivileges,
    AlterTable,
    AlterZone,
    ColumnDefinition,
    CommentOn,
    CreateIndex,
    CreateRole,
    CreateZone,
    DropColumns,
    DropRole,
    DropSchema,
    DropTable,
    GrantPrivileges,
    GrantRole,
    RenameColumn,
    RenameSchema,
    RenameTable,
    SetConfiguration,
    SetDefaultZone,
    SetTableProperties,
    TableDefinition,
)
from strandline.catalog.differences import Difference, DifferenceKind, FieldDifference, differences
from strandline.clock import Timestamp
from strandline.durable.collections import COLLECTIONS
from strandline.durable.contents import EMPTY, Contents
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Change
from strandline.model.descriptors import (
    ColumnDescriptor,
    IdAllocator,
    SchemaDescriptor,
    SchemaVersion,
    SystemConfiguration,
    TableDescriptor,
    TableKind,
)
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import BIGINT, INT, STRING
from strandline.wire.registry import encode
from strandline.wire.stored import Stored
from tests.catalog.scenario import SCHEMA, column, create_table
from tests.catalog.taking_back import MADE, objects
from tests.catalog.test_scenarios import commands_of
from tests.catalog.validated import after_setup, validated
from tests.positions import NOTHING, At


def prepared(manager: CatalogManager) -> CatalogManager:
    """``manager`` with a table ``s.t``, the starting point of every test."""
    manager.execute([SCHEMA, create_table("s.t", "a int", "b string")], author="ann")
    return manager


@pytest.fixture
def manager(manager: CatalogManager) -> CatalogManager:
    return prepared(manager)


def after(manager: CatalogManager, *commands: Command) -> tuple[Difference, ...]:
    """The differences that a batch makes."""
    before = manager.present()
    return differences(before, manager.execute(list(commands), author="ann").catalog)


def fields(result: tuple[Difference, ...]) -> dict[str, tuple[object, object]]:
    """The fields of the only object that differs, without counters."""
    (difference,) = result
    counted = {"schema_version", "next_column_id"}
    return {f.field: (f.old, f.new) for f in difference.fields if f.field not in counted}


def test_a_version_does_not_differ_from_itself(manager: CatalogManager) -> None:
    assert differences(manager.present(), manager.present()) == ()


def test_created_renamed_and_dropped_objects_are_listed(manager: CatalogManager) -> None:
    table = manager.present().table("s", "t")
    assert table is not None
    result = after(
        manager,
        RenameTable(schema="s", table="t", new_name="u"),
        create_table("s.new"),
        CreateZone(name="fast"),
    )
    summary = [
        (difference.kind, difference.name, difference.change, difference.old_name)
        for difference in result
    ]
    assert summary == [
        ("table", "s.new", DifferenceKind.CREATED, None),
        ("table", "s.u", DifferenceKind.RENAMED, "s.t"),
        ("zone", "fast", DifferenceKind.CREATED, None),
    ]
    assert result[1] == Difference(
        "table",
        table.id,
        "s.u",
        DifferenceKind.RENAMED,
        "s.t",
        (FieldDifference("name", "t", "u"),),
    )
    (gone,) = after(manager, DropTable(schema="s", table="new"))
    assert (gone.change, gone.name, gone.fields) == (DifferenceKind.DROPPED, "s.new", ())


def test_a_dropped_and_recreated_table_is_listed_as_two_objects(manager: CatalogManager) -> None:
    result = after(manager, DropTable(schema="s", table="t"), create_table("s.t"))
    assert {difference.change for difference in result} == {
        DifferenceKind.DROPPED,
        DifferenceKind.CREATED,
    }


def test_objects_dropped_with_their_schema_keep_their_qualified_names(
    manager: CatalogManager,
) -> None:
    gone = after(manager, DropSchema(name="s", cascade=True))
    assert [(difference.kind, difference.name) for difference in gone] == [
        ("schema", "s"),
        ("table", "s.t"),
    ]


def test_a_renamed_schema_is_one_difference(manager: CatalogManager) -> None:
    (difference,) = after(manager, RenameSchema(name="s", new_name="r"))
    assert (difference.kind, difference.old_name, difference.name) == ("schema", "s", "r")


def test_columns_are_matched_by_their_ids(manager: CatalogManager) -> None:
    result = after(
        manager,
        RenameColumn(schema="s", table="t", column="a", new_name="n"),
        AlterColumn(schema="s", table="t", column="n", type=BIGINT, comment="how many"),
        DropColumns(schema="s", table="t", names=("b",)),
        AddColumns(schema="s", table="t", columns=(column("b int default 7"),)),
    )
    assert fields(result) == {
        "columns[a].name": ("a", "n"),
        "columns[a].type": ("int", "bigint"),
        "columns[a].comment": (None, "how many"),
        "columns[b]": (None, "b int DEFAULT 7"),
    }
    assert FieldDifference("columns[b]", "b string", None) in result[0].fields
    assert FieldDifference("schema_version", 1, 5) in result[0].fields
    assert FieldDifference("next_column_id", 3, 4) in result[0].fields


def test_a_changed_column_order_is_listed(manager: CatalogManager) -> None:
    definition = TableDefinition(
        name="p", columns=(ColumnDefinition("a", INT), ColumnDefinition("b", INT))
    )
    manager.execute(create_table("s.p", "b int", "a int", transactional=False), author="ann")
    result = after(manager, AlterTable(schema="s", table="p", definition=definition))
    assert fields(result) == {"columns.order": ("b, a", "a, b")}


def test_properties_are_matched_by_their_keys(manager: CatalogManager) -> None:
    after(
        manager, SetTableProperties(schema="s", table="t", set=(("a", "1"), ("b", "2"), ("c", "3")))
    )
    result = after(
        manager,
        SetTableProperties(schema="s", table="t", set=(("b", "5"), ("d", "4")), unset=("a",)),
    )
    assert fields(result) == {
        "properties[a]": ("1", None),
        "properties[b]": ("2", "5"),
        "properties[d]": (None, "4"),
    }


def test_grants_are_listed_by_grantee_and_grantor(manager: CatalogManager) -> None:
    manager.execute([CreateRole(name="bob"), CreateRole(name="ann")], author="ann")
    grant = GrantPrivileges(
        kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="bob"
    )
    everybody = GrantPrivileges(
        kind=ObjectKind.TABLE,
        name="s.t",
        privileges=Privilege.SELECT | Privilege.INSERT,
        grantee="public",
    )
    assert fields(after(manager, grant, everybody)) == {
        "privileges[bob by ann]": (None, "SELECT"),
        "privileges[public by ann]": (None, "SELECT, INSERT"),
    }
    before = manager.present()
    manager.execute(replace(grant, privileges=Privilege.INSERT), author="bob")
    assert fields(differences(before, manager.present())) == {
        "privileges[bob by bob]": (None, "INSERT")
    }


def test_the_grants_to_a_role_that_was_dropped_since_name_it_as_dropped(
    manager: CatalogManager,
) -> None:
    grant = GrantPrivileges(
        kind=ObjectKind.TABLE, name="s.t", privileges=Privilege.SELECT, grantee="bob"
    )
    result = after(manager, CreateRole(name="bob"), grant, DropRole(name="bob"))
    (field,) = fields(result)
    assert re.fullmatch(r"privileges\[dropped role \d+\]", field)


def test_memberships_and_unnamed_grants_are_listed_by_role(manager: CatalogManager) -> None:
    manager.execute([CreateRole(name=name) for name in ("ann", "bob", "eve")], author="ann")
    system = GrantPrivileges(
        kind=ObjectKind.SYSTEM, privileges=Privilege.CREATE_ROLE, grantee="bob"
    )
    default = AlterDefaultPrivileges(
        kind=ObjectKind.TABLE, schema="s", privileges=Privilege.SELECT, grantee="eve", role="ann"
    )
    result = after(manager, GrantRole(role="eve", member="bob"), system, default)
    assert [(difference.kind, difference.name) for difference in result] == [
        ("role", "bob"),
        ("default_privilege", "of eve on tables in schema s made by ann"),
        ("system_privilege", "of bob by ann"),
    ]
    assert fields(result[:1]) == {"member_of[eve]": (None, "granted by ann")}


def test_references_are_listed_by_name(manager: CatalogManager) -> None:
    manager.execute(CreateZone(name="fast"), author="ann")
    result = after(manager, SetDefaultZone(name="fast"))
    assert [(difference.kind, difference.name) for difference in result] == [
        ("config", "default_zone")
    ]
    assert [(str(part.old)[:11], str(part.new)[:8]) for part in result[0].fields] == [
        ("default (id", "fast (id")
    ]
    other = RenameTable(schema="s", table="t", new_name="t", new_schema="default")
    (moved,) = after(manager, other)
    assert (moved.old_name, moved.name) == ("s.t", "default.t")
    assert [part.field for part in moved.fields] == ["schema"]
    assert str(moved.fields[0].new).startswith("default (id ")
    before = manager.present()
    table = RenameTable(schema="default", table="t", new_name="t", new_schema="s")
    after(manager, table, RenameSchema(name="s", new_name="r"))
    (field,) = differences(manager.present(), before)[-1].fields
    assert str(field.old).startswith("r (id ")
    assert str(field.new).startswith("default (id ")


def test_other_fields_are_listed_as_whole_values(manager: CatalogManager) -> None:
    manager.execute(CreateZone(name="fast"), author="ann")
    zone = AlterZone(name="fast", storage_profiles=("default", "ssd"), replicas=3)
    assert fields(after(manager, zone)) == {
        "replicas": (None, 3),
        "quorum_size": (3, 2),
        "storage_profiles": ("default", "default, ssd"),
    }


def test_objects_without_an_id_are_listed_by_name(manager: CatalogManager) -> None:
    manager.execute(CreateIndex(schema="s", index="i", table="t", columns=("a",)), author="ann")
    result = after(
        manager,
        SetConfiguration(name="max_tables", value="9"),
        CommentOn(kind=ObjectKind.INDEX, name="s.i", text="by a"),
    )
    assert [(difference.kind, difference.id, difference.name) for difference in result] == [
        ("comment", 0, "index s.i"),
        ("system_configuration", 0, "max_tables"),
    ]


def test_bookkeeping_objects_are_left_out(manager: CatalogManager) -> None:
    before = manager.present()
    made = manager.execute(create_table("s.new"), author="ann").catalog
    assert [difference.kind for difference in differences(before, made)] == ["table"]


# -- every command ---------------------------------------------------------------------------------


def test_exactly_the_objects_that_a_version_changed_are_listed() -> None:
    for name in MADE:
        compare_with_changes(name)


def compare_with_changes(name: str) -> None:
    """Compare the differences with what the version of a scenario changed."""
    before = after_setup(MADE[name])
    after = validated(before, commands_of(MADE[name].run, before)).catalog
    assert after is not before, name
    for old, new in ((before, after), (after, before)):
        counts = Counter(
            (difference.kind, difference.id, difference.change)
            for difference in differences(old, new)
        )
        assert counts == Counter(changes(objects(old), objects(new))), name


def changes(
    old: dict[tuple[str, bytes], Any], new: dict[tuple[str, bytes], Any]
) -> Iterator[tuple[str, int, DifferenceKind]]:
    """The kind and id of every object that differs, and how it changed."""
    for kind, key in {*old, *new}:
        before, after = old.get((kind, key)), new.get((kind, key))
        what = DifferenceKind.ALTERED
        if before is None or after is None:
            what = DifferenceKind.DROPPED if after is None else DifferenceKind.CREATED
        elif called(before) != called(after):
            what = DifferenceKind.RENAMED
        if before != after:
            yield kind, int.from_bytes(key, "big") if COLLECTIONS[kind].has_id else 0, what


def called(value: Any) -> list[object]:  # Any: a descriptor of any kind
    return [getattr(value, field, None) for field in ("name", "schema_id", "database_id")]


# -- any contents ----------------------------------------------------------------------------------


def catalog_of(values: list[object], version: int = 1) -> Catalog:
    transaction = CatalogTransaction(NOTHING, author="ann")
    with transaction.entry("x", {}):
        for value in values:
            transaction.put(value)
    return Catalog(version, Timestamp(version), transaction.contents)


def table(number: int, versions: tuple[SchemaVersion, ...], **more: object) -> TableDescriptor:
    return TableDescriptor(
        id=number,
        schema_id=1,
        name=f"t{number}",
        owner="ann",
        kind=TableKind.MANAGED,
        transactional=True,
        provider="parquet",
        schema_versions=versions,
        next_column_id=9,
        zone_id=1,
        **more,  # type: ignore[arg-type]  # fields of the table
    )


COLUMN_LISTS = st.permutations(
    [ColumnDescriptor(1, "a", INT), ColumnDescriptor(2, "b", STRING), ColumnDescriptor(3, "c", INT)]
).flatmap(lambda all_of: st.integers(1, 3).map(lambda many: tuple(all_of[:many])))
VERSIONS = st.lists(COLUMN_LISTS, min_size=1, max_size=3).map(
    lambda lists: tuple(SchemaVersion(n, columns) for n, columns in enumerate(lists, start=1))
)
PAIRS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("12")).map(
    lambda counts: tuple(sorted(counts.items()))
)
VALUES = st.lists(
    st.one_of(
        st.builds(
            lambda n, versions, pairs, key: table(n, versions, properties=pairs, primary_key=key),
            st.integers(1, 2),
            VERSIONS,
            PAIRS,
            st.sampled_from([(), (1,), (1, 2), (2, 1)]),
        ),
        st.builds(
            lambda owner: SchemaDescriptor(1, 1, "s", owner), st.sampled_from(["ann", "bob"])
        ),
        st.builds(lambda value: SystemConfiguration("max_tables", value), st.sampled_from("12")),
    ),
    max_size=4,
)


@pytest.mark.slow
@given(VALUES, VALUES)
def test_differences_are_empty_exactly_when_the_contents_are_equal(
    first: list[object], other: list[object]
) -> None:
    old, new = catalog_of(first), catalog_of(other)
    result = differences(old, new)
    assert (result == ()) == (old.contents == new.contents)
    for difference in result:
        came_or_went = difference.change in (DifferenceKind.CREATED, DifferenceKind.DROPPED)
        assert came_or_went != bool(difference.fields)
    back = {(d.kind, d.id): d for d in differences(new, old)}
    for difference in result:
        mirrored = back[difference.kind, difference.id]
        assert {(f.field, f.new, f.old) for f in mirrored.fields} == {
            (f.field, f.old, f.new) for f in difference.fields
        }


def test_older_schema_versions_are_listed_when_nothing_else_differs() -> None:
    a, b = ColumnDescriptor(1, "a", INT), ColumnDescriptor(2, "b", STRING)
    with_b, without = SchemaVersion(1, (a, b)), SchemaVersion(1, (a,))
    latest = SchemaVersion(2, (a,))
    old, new = (catalog_of([table(1, (first, latest))]) for first in (with_b, without))
    assert fields(differences(old, new)) == {
        "schema_versions": ("1: a int, b string; 2: a int", "1: a int; 2: a int")
    }


def test_another_encoding_of_the_same_object_is_not_a_difference() -> None:
    new = catalog_of([SchemaDescriptor(1, 1, "s", "ann")])
    stored = new.contents.get("schema", (1).to_bytes(8, "big"))
    assert stored is not None

    class OldForm(Stored[SchemaDescriptor]):
        """The same value in other bytes, as an older release would have written it."""

    old_form = OldForm(stored.data, SchemaDescriptor, has_id=True)
    old_form.data = stored.data + b"\x00"
    old_form._value = stored.value
    contents = Contents.replaced(
        new.contents, COLLECTIONS["schema"], (1).to_bytes(8, "big"), stored, old_form
    )
    assert list(new.contents.differing(contents))
    assert differences(new, Catalog(2, Timestamp(2), contents)) == ()


def test_equal_tables_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 5_000
    columns = (SchemaVersion(1, (ColumnDescriptor(1, "a", INT),)),)
    changes = [
        Change(
            "table",
            n.to_bytes(8, "big"),
            None,
            encode(table(n, columns)),
        )
        for n in range(1, many + 1)
    ]
    first, other = EMPTY.apply(changes), EMPTY.apply(changes)  # equal bytes, no object shared
    transaction = CatalogTransaction(At(1, other), author="ann")
    with transaction.entry("x", {}):
        transaction.put(table(7, columns, comment="other"))
        transaction.put(IdAllocator("object", 5))
    decoded: list[int] = []
    value = Stored.value.fget  # type: ignore[attr-defined]  # the getter of a property

    def counting(self: Stored[object]) -> object:
        decoded.append(self.id)
        return value(self)

    monkeypatch.setattr(Stored, "value", property(counting))
    result = differences(
        Catalog(1, Timestamp(1), first), Catalog(2, Timestamp(2), transaction.contents)
    )
    assert [(d.id, [f.field for f in d.fields]) for d in result] == [(7, ["comment"])]
    assert set(decoded) == {7}
    assert len(decoded) < 20, decoded


def test_a_comparison_costs_the_objects_that_differ_and_a_little_for_the_others() -> None:
    columns = (SchemaVersion(1, (ColumnDescriptor(1, "a", INT),)),)
    old = catalog_of([table(n, columns) for n in range(1, 501)])
    transaction = CatalogTransaction(At(1, old.contents), author="ann")
    with transaction.entry("x", {}):
        transaction.put(table(7, columns, comment="other"))
    new = Catalog(2, Timestamp(2), transaction.contents)
    with work.budget(0):
        assert differences(new, new) == ()
    with work.budget(30):  # ten for the comparison, twenty for the difference
        assert len(differences(old, new)) == 1
    for too_few in (9, 29):
        with work.budget(too_few), pytest.raises(work.TooLong):
            differences(old, new)
