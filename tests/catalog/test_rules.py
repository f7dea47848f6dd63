"""The rules of every catalog: commands keep them, and each broken rule is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateRole,
    CreateSchema,
    CreateTable,
    GrantRole,
    TableDefinition,
)
from strandline.catalog.rules import BrokenRule, broken_rules
from strandline.durable.transaction import CatalogTransaction
from strandline.model.descriptors import (
    ConfigEntry,
    FunctionDescriptor,
    IdAllocator,
    SystemConfiguration,
    TableDescriptor,
)
from strandline.model.partitioning import PartitionField, Transform, TransformKind
from strandline.model.privileges import Membership, RoleDescriptor
from strandline.model.types import BIGINT

# Below, Any is a descriptor of some kind.
Break = Callable[["World"], Any]
IDENTITY = Transform(TransformKind.IDENTITY)


class World:
    """A catalog that was made by commands, and its objects."""

    def __init__(self, manager: CatalogManager) -> None:
        columns = ColumnDefinition("a", BIGINT), ColumnDefinition("b", BIGINT)
        table = TableDefinition(name="t", columns=columns)
        create = CreateTable(schema="shop", definition=table)
        manager.execute([CreateSchema(name="shop"), create], author="ann")
        roles = CreateRole(name="r1"), CreateRole(name="r2"), GrantRole(role="r1", member="r2")
        manager.execute(roles, author="ann")
        self.catalog = manager.present()

    def named(self, kind: str, name: str) -> Any:
        """The object of ``kind`` with that name."""
        (value,) = (s.value for s in self.catalog.contents.objects(kind) if s.name == name)
        return value

    def role(self, name: str) -> RoleDescriptor:
        role: RoleDescriptor = self.named("role", name)
        return role

    @property
    def table(self) -> TableDescriptor:
        table: TableDescriptor = self.named("table", "t")
        return table

    @property
    def next_id(self) -> int:
        allocator: IdAllocator = self.named("id_allocator", "object")
        return allocator.next_id

    def with_versions(self, *numbers: int, **of_last_column: Any) -> TableDescriptor:
        """The table with schema versions of those numbers, and with a changed last column."""
        (version,) = self.table.schema_versions
        *others, last = version.columns
        columns = (*others, replace(last, **of_last_column))
        versions = tuple(replace(version, number=n, columns=columns) for n in numbers)
        return replace(self.table, schema_versions=versions)


@pytest.fixture
def world(manager: CatalogManager) -> World:
    return World(manager)


def function(world: World, object_id: int) -> FunctionDescriptor:
    return FunctionDescriptor(object_id, world.table.schema_id, "f", owner="ann", class_name="F")


BROKEN: dict[str, tuple[Break, str]] = {
    "an id that is yet to be given": (
        lambda world: function(world, world.next_id),
        "was never allocated",
    ),
    "an id of two objects": (
        lambda world: function(world, world.table.id),
        "already belongs to a table",
    ),
    "the next id is given": (
        lambda world: IdAllocator("other", 0),
        "next_id cannot be 0",
    ),
    "no name": (lambda world: replace(world.table, name=" "), "must not be empty"),
    "a reference to nothing": (
        lambda world: replace(world.table, schema_id=world.next_id - 1),
        "which does not exist",
    ),
    "in the schema of the catalog's own views": (
        lambda world: replace(world.table, schema_id=world.named("schema", "system").id),
        "is reserved for the catalog itself",
    ),
    "no schema version": (lambda world: world.with_versions(), "at least one version"),
    "the numbers of versions fall": (
        lambda world: world.with_versions(2, 1),
        "the numbers must increase",
    ),
    "two versions of one number": (
        lambda world: world.with_versions(1, 1),
        "the numbers must increase",
    ),
    "two columns of one id": (lambda world: world.with_versions(1, id=1), "ids must be unique"),
    "two columns of one name": (lambda world: world.with_versions(1, name="A"), "duplicate"),
    "a column id too high": (lambda world: world.with_versions(1, id=3), "below next_column_id"),
    "a key without its column": (
        lambda world: replace(world.table, primary_key=(9,)),
        "refers to column 9, which the table does not have",
    ),
    "a colocation without its column": (
        lambda world: replace(world.table, colocation=(9,)),
        "colocation of t refers to column 9, which the table does not have",
    ),
    "a partition field without its column": (
        lambda world: replace(world.table, partitioning=(PartitionField(1000, 9, IDENTITY, "x"),)),
        "partitioning of t refers to column 9, which the table does not have",
    ),
    "a zone without partitions": (
        lambda world: replace(world.named("zone", "default"), partitions=0),
        "cannot have 0 partitions",
    ),
    "a zone without storage profiles": (
        lambda world: replace(world.named("zone", "default"), storage_profiles=()),
        "needs at least one storage profile",
    ),
    "a parameter's value": (
        lambda world: SystemConfiguration("max_tables", "-1"),
        "'-1'",
    ),
    "an unknown parameter": (lambda world: SystemConfiguration("colour", "7"), "is unknown"),
    "a member of no role": (
        lambda world: replace(world.role("r1"), member_of=(Membership(world.next_id, 0),)),
        "refers to role",
    ),
    "a member of itself": (
        lambda world: replace(world.role("r1"), member_of=(Membership(world.role("r2").id, 0),)),
        "role r1 cannot be a member of itself, directly or through other roles",
    ),
    "no default zone": (
        lambda world: ConfigEntry("default_zone", "999"),
        "is not the id of a zone",
    ),
    "no default database": (
        lambda world: replace(world.named("database", "hive"), name="other"),
        "the default database does not exist",
    ),
    "no default schema": (
        lambda world: replace(world.named("schema", "default"), name="other"),
        "the default schema does not exist",
    ),
}


def broken(world: World, *values: Any) -> list[BrokenRule]:
    """The broken rules after ``values`` were put into the catalog without checking the rules."""
    transaction = CatalogTransaction(world.catalog, author="ann")
    transaction.put_all(values)
    return list(broken_rules(transaction.contents))


def test_a_catalog_made_by_commands_breaks_no_rule(world: World) -> None:
    assert broken(world) == []


@pytest.mark.parametrize(("breaks", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_each_broken_rule_is_found(world: World, breaks: Break, reason: str) -> None:
    assert any(reason in rule.message for rule in broken(world, breaks(world)))


def test_every_object_that_breaks_a_rule_is_named(world: World) -> None:
    zone = replace(world.named("zone", "default"), partitions=0)
    table = replace(world.table, primary_key=(9,))
    named = {(rule.kind, rule.key) for rule in broken(world, zone, table)}
    assert named == {("zone", zone.id), ("table", table.id)}
