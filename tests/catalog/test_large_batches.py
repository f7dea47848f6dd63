"""Batches of the maximum size: all of it becomes one version, or nothing does."""

from __future__ import annotations

import time

import pytest

from strandline.catalog import Catalog, CatalogManager, Command
from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    AlterSchema,
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropSchema,
    TableDefinition,
    schemas,
)
from strandline.catalog.manager import MAX_COMMANDS
from strandline.catalog.planning import Planning
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import AlreadyExists
from strandline.model.types import INT


def place_of(catalog: Catalog, name: str) -> str:
    """The place of a schema."""
    schema = catalog.schema(name)
    assert schema is not None
    return schema.location


def create(number: int, *key: str) -> CreateTable:
    columns = (ColumnDefinition("a", INT, nullable=False),)
    definition = TableDefinition(name=f"t{number}", columns=columns, primary_key=key)
    return CreateTable(schema="s", definition=definition)


@pytest.mark.slow
@pytest.mark.parametrize("commands", [2_000, pytest.param(MAX_COMMANDS, marks=pytest.mark.soak)])
def test_a_large_batch_becomes_one_version_or_none(manager: CatalogManager, commands: int) -> None:
    batch: list[Command] = [CreateSchema(name="s"), *map(create, range(commands - 1))]
    before = manager.latest_catalog()
    with pytest.raises(AlreadyExists, match=r"s.t7 already exists"):
        manager.execute([*batch[:-1], create(7)], author="ann", timeout=120)
    assert manager.latest_catalog() is before
    executed = manager.execute(batch, author="ann", timeout=120)
    assert executed.version == before.version + 1
    assert len(executed.catalog.relation_names("s")) == commands - 1


@pytest.mark.slow
def test_planning_a_command_costs_the_same_however_many_commands_precede_it(
    manager: CatalogManager,
) -> None:
    manager.execute(CreateSchema(name="s"), author="ann")
    base = manager.present()
    planning = Planning(base, CatalogTransaction(base, author="ann"), base.time)
    spans = []
    for start in range(0, 4_000, 500):
        began = time.process_time()
        for number in range(start, start + 500):
            create(number, "a").plan(planning)
        spans.append(time.process_time() - began)
    # There are eight times as many objects: a proportional cost would be eight times as high.
    assert min(spans[-3:]) < 4 * min(spans[:3])


def test_a_new_schema_costs_one_look_at_the_places_of_all_others_at_most(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.execute([CreateSchema(name=f"s{number}") for number in range(20)], author="ann")
    manager.execute(AlterSchema(name="s7", comment="c"), author="ann")
    looked: list[str] = []
    ending = schemas._ending

    def noted(location: str) -> str:
        looked.append(location)
        return ending(location)

    monkeypatch.setattr(schemas, "_ending", noted)
    created = manager.execute(CreateSchema(name="s20"), author="ann").catalog
    assert len(looked) == len(created.all_schemas())
    looked.clear()
    manager.execute(DropSchema(name="s7"), author="ann")
    created = manager.execute(CreateSchema(name="s7"), author="ann").catalog
    assert len(looked) == 2
    assert place_of(created, "s7") == "s7.db"


def test_a_new_schema_gets_no_place_that_one_of_two_schemas_still_holds(
    manager: CatalogManager,
) -> None:
    manager.execute(CreateSchema(name="s"), author="ann")
    place = place_of(manager.present(), "s")
    manager.execute(CreateSchema(name="other", location=place), author="ann")
    manager.execute(DropSchema(name="s"), author="ann")
    created = manager.execute(CreateSchema(name="s"), author="ann").catalog
    assert place_of(created, "s") != place


def test_many_changes_of_one_table_in_a_batch_become_one_version(manager: CatalogManager) -> None:
    manager.execute([CreateSchema(name="s"), create(0)], author="ann")
    changes = [
        AddColumns(schema="s", table="t0", columns=(ColumnDefinition(f"c{n}", INT),))
        for n in range(50)
    ]
    executed = manager.execute(changes, author="ann")
    table = executed.catalog.table("s", "t0")
    assert table is not None
    assert (table.schema_version, len(table.columns)) == (51, 51)


def test_changing_a_column_costs_the_same_however_often_it_was_changed(
    manager: CatalogManager,
) -> None:
    manager.execute([CreateSchema(name="s"), create(0)], author="ann")
    base = manager.present()
    planning = Planning(base, CatalogTransaction(base, author="ann"), base.time)
    spans = []
    for start in range(0, 1_600, 200):
        began = time.process_time()
        for number in range(start, start + 200):
            AlterColumn(schema="s", table="t0", column="a", comment=f"{number}").plan(planning)
        spans.append(time.process_time() - began)
    assert min(spans[-3:]) < 4 * min(spans[:3])


@pytest.mark.parametrize(("transactional", "kept"), [(True, [1, 2, 3]), (False, [3])])
def test_only_a_transactional_table_keeps_the_older_versions_of_its_schema(
    manager: CatalogManager, *, transactional: bool, kept: list[int]
) -> None:
    """Its data files refer to them."""
    columns = (ColumnDefinition("a", INT),)
    definition = TableDefinition(name="t0", columns=columns, transactional=transactional)
    changes = [
        AddColumns(schema="s", table="t0", columns=(ColumnDefinition(name, INT),)) for name in "bc"
    ]
    created = CreateTable(schema="s", definition=definition)
    executed = manager.execute([CreateSchema(name="s"), created, *changes], author="ann")
    table = executed.catalog.table("s", "t0")
    assert table is not None
    assert [version.number for version in table.schema_versions] == kept
