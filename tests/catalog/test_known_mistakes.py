"""Mistakes of other catalogs whose absence here is not shown by the tests of a single part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.commands import (
    CreateIndex,
    CreateSchema,
    DropColumns,
    DropIndex,
    MakeIndexAvailable,
    StartBuildingIndex,
)
from strandline.catalog.requests import Validated
from strandline.clock import Timestamp
from strandline.durable.update import CatalogSnapshot, Change, Entry, Update
from strandline.model.descriptors import IndexStatus
from strandline.wire.registry import encode
from tests.catalog.scenario import SCHEMA, Refused, Scenario, create_table, index_id
from tests.catalog.test_scenarios import ALL, commands_of
from tests.catalog.validated import after_setup, new_catalog, validated

Managers = Callable[..., CatalogManager]


def entries(checked: Validated) -> list[Entry]:
    return [] if checked.transaction is None else checked.transaction.entries


# -- a command that is validated twice -------------------------------------------------------------


SAID: dict[str, list[Scenario]] = {}
for module, scenario in ALL:
    if "cannot even be said" not in scenario.name:
        SAID.setdefault(module, []).append(scenario)


@pytest.mark.parametrize("module", SAID)
def test_validating_a_command_twice_gives_the_same_result(module: str) -> None:
    for scenario in SAID[module]:
        base = after_setup(scenario)
        commands = commands_of(scenario.run, base)
        first, second = validated(base, commands), validated(base, commands)
        assert entries(first) == entries(second), scenario.name
        assert first.applied == second.applied, scenario.name
        assert type(first.error) is type(second.error), scenario.name
        assert isinstance(scenario.expect, Refused) is (first.error is not None), scenario.name
        assert first.error is None or entries(first) == [], scenario.name


# -- a log that ends in its snapshot ---------------------------------------------------------------


def test_a_version_replaced_by_a_snapshot_is_ready_after_a_restart(
    new_manager: Managers,
) -> None:
    manager = new_manager()
    executed = manager.execute(CreateSchema(name="s"), author="ann")
    assert manager.compact(executed.version)
    again = new_manager()
    assert again.catalog_ready(executed.version, timeout=60).version == executed.version
    following = again.ready(executed.version + 1)
    assert not following.done()
    again.execute(CreateSchema(name="t"), author="ann")
    assert following.result(timeout=60).version == executed.version + 1


def test_a_stopping_index_on_a_dropped_column_survives_a_snapshot(new_manager: Managers) -> None:
    manager = new_manager()
    index = CreateIndex(schema="s", index="i", table="t", columns=("b",))
    manager.execute([SCHEMA, create_table("s.t")], author="ann")
    manager.execute(index, author="ann")
    number = index_id(manager.present(), "s.i")
    for command in (
        StartBuildingIndex(index_id=number),
        MakeIndexAvailable(index_id=number),
        DropIndex(schema="s", index="i"),
        DropColumns(schema="s", table="t", names=("b",)),
    ):
        executed = manager.execute(command, author="ann")
    assert manager.compact(executed.version)
    stopping = new_manager().present().index(number)
    assert stopping is not None
    assert stopping.status is IndexStatus.STOPPING
    assert stopping == manager.present().index(number)


# -- equal values ----------------------------------------------------------------------------------


def test_a_colocation_equal_to_the_primary_key_is_encoded_alike_shared_or_copied() -> None:
    table = create_table("s.t", "a int not null", primary_key=("a",), colocation=("a",))
    made = validated(validated(new_catalog(), [SCHEMA]).catalog, [table]).catalog.table("s", "t")
    assert made is not None
    shared = replace(made, colocation=made.primary_key)
    apart = replace(made, colocation=tuple(column_id for column_id in made.primary_key))
    assert shared.colocation is not apart.colocation
    assert shared == apart
    assert encode(shared) == encode(apart)


def test_updates_and_snapshots_that_differ_in_any_stored_field_are_not_equal() -> None:
    entry = Entry("v", {}, (Change("table", b"k", None, b"x"),))
    update = Update(1, b"i", "ann", "m", (entry,), Timestamp(5))
    snapshot = CatalogSnapshot(1, Timestamp(5), (("table", (b"x",)),), ((Timestamp(4),),))
    other: dict[str, Any] = {
        "version": 2, "id": b"j", "author": "bob", "member": "n", "entries": (),
        "time": Timestamp(6), "kinds": (), "times": (),
    }  # fmt: skip
    values: list[Any] = [update, snapshot]
    for value in values:
        names = [field.name for field in fields(value) if field.compare]
        variants = [value, *(replace(value, **{name: other[name]}) for name in names)]
        assert all(first != second for first, second in combinations(variants, 2))
    assert [field.name for field in fields(Update) if not field.compare] == ["appended"]
