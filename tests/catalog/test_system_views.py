"""System views: they are in every catalog, and current after a start; what their rows contain."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from strandline.catalog import Catalog, CatalogManager, Command
from strandline.catalog.commands import (
    AddColumns,
    AlterZone,
    ColumnDefinition,
    CommentOn,
    CreateCluster,
    CreateFunction,
    CreateIndex,
    CreateZone,
    DropColumns,
    DropIndex,
    MakeIndexAvailable,
    SetConfiguration,
    StartBuildingIndex,
)
from strandline.catalog.planning import Planning
from strandline.catalog.system_views.rows import SystemView
from strandline.catalog.system_views.synchronization import (
    declared_views,
    fingerprint,
    synchronize_system_views,
)
from strandline.durable import migrations
from strandline.durable.contents import Contents
from strandline.model.identifiers import check_name, normalize
from strandline.model.privileges import ObjectKind
from strandline.model.types import BIGINT, BOOLEAN, INT, DecimalType, StringType
from tests.catalog.scenario import SCHEMA, create_table, create_view, index_id
from tests.catalog.scenarios.system_views import TableInSystem

PYTHON = {BIGINT: int, INT: int, BOOLEAN: bool, StringType(): str}

SYSTEM_VIEWS = declared_views()


def rows(catalog: Catalog, view: str) -> list[dict[str, object]]:
    declared = SYSTEM_VIEWS[view]
    names = [name for name, _ in declared.columns]
    return [dict(zip(names, row, strict=True)) for row in declared.rows(catalog)]


def row(catalog: Catalog, view: str, **wanted: object) -> dict[str, object]:
    matching = [entry for entry in rows(catalog, view) if entry.items() >= wanted.items()]
    assert len(matching) == 1, (view, wanted, matching)
    return matching[0]


def shown(catalog: Catalog) -> dict[str, str]:
    """The system views of a catalog, with their stored fingerprints."""
    fingerprints = {}
    for view in catalog.system_views():
        entry = catalog.get("system_object_fingerprint", f"system.{view.name}")
        assert entry.object_id == view.id
        fingerprints[view.name] = entry.fingerprint
    assert catalog.contents.count("system_object_fingerprint") == len(fingerprints)
    return fingerprints


def expected(views: dict[str, SystemView]) -> dict[str, str]:
    return {name: fingerprint(view) for name, view in views.items()}


def do(manager: CatalogManager, *commands: Command) -> None:
    for command in commands:
        manager.execute(command, author="ann")


@pytest.fixture
def world(manager: CatalogManager) -> CatalogManager:
    """A catalog with objects of most kinds."""
    do(
        manager,
        SCHEMA,
        CreateZone(name="z", replicas=3, storage_profiles=("fast", "cold")),
        create_table(
            "s.t",
            "id int not null",
            "amount decimal(10,2)",
            "code varchar(7)",
            primary_key=("id",),
            zone="z",
        ),
        create_view("s.v"),
        CreateIndex(schema="s", index="i", table="t", columns=("amount", "code")),
        CreateFunction(schema="s", name="f", class_name="a.B", resources=(("JAR", "file:/a"),)),
        CreateCluster(name="c", size="small"),
        CommentOn(kind=ObjectKind.ZONE, name="z", text="x"),
        SetConfiguration(name="max_tables", value="7"),
    )
    return manager


# -- declarations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("view", SYSTEM_VIEWS.values(), ids=list(SYSTEM_VIEWS))
def test_names_are_lower_case_and_columns_are_unique(view: SystemView) -> None:
    names = [view.name, *(name for name, _ in view.columns)]
    for name in names:
        check_name(name, "column")
        assert name == normalize(name)
    assert len(set(names[1:])) == len(names[1:])
    assert view.doc.endswith(".")


@pytest.mark.parametrize("view", SYSTEM_VIEWS.values(), ids=list(SYSTEM_VIEWS))
def test_rows_have_the_declared_types(world: CatalogManager, view: SystemView) -> None:
    for entry in view.rows(world.latest_catalog()):
        for value, (name, data_type) in zip(entry, view.columns, strict=True):
            assert value is None or type(value) is PYTHON[data_type], (name, value)


@pytest.mark.parametrize("view", SYSTEM_VIEWS.values(), ids=list(SYSTEM_VIEWS))
def test_every_view_can_be_read_in_the_empty_catalog(
    manager: CatalogManager, view: SystemView
) -> None:
    assert len(list(view.rows(manager.catalog(0)))) in (0, 5)


def test_a_fingerprint_depends_only_on_the_name_and_the_columns() -> None:
    view = SYSTEM_VIEWS["tables"]
    assert fingerprint(replace(view, doc="other", rows=lambda _: iter(()))) == fingerprint(view)
    others = [
        replace(view, name="other"),
        replace(view, columns=view.columns[::-1]),
        replace(view, columns=((view.columns[0][0], DecimalType()), *view.columns[1:])),
    ]
    assert fingerprint(view) not in {fingerprint(other) for other in others}


# -- synchronizing ---------------------------------------------------------------------------------


def test_a_new_catalog_has_every_view_in_its_first_version(manager: CatalogManager) -> None:
    assert shown(manager.latest_catalog()) == expected(SYSTEM_VIEWS)
    assert manager.latest_catalog().version == 2


def test_a_start_with_the_same_views_makes_no_version(manager: CatalogManager) -> None:
    before = manager.latest_catalog()
    assert not synchronize_system_views(manager)
    assert manager.latest_catalog() is before


def test_new_changed_and_removed_views_are_synchronized_in_one_version(
    manager: CatalogManager,
) -> None:
    new = SystemView("brand_new", (("a", INT),), lambda _: iter(()), "")
    changed = replace(SYSTEM_VIEWS["zones"], columns=(("zone_id", BIGINT),))
    views = {**SYSTEM_VIEWS, "zones": changed, "brand_new": new}
    del views["tables"]
    before = manager.latest_catalog()
    assert synchronize_system_views(manager, views=views)
    after = manager.latest_catalog()
    assert after.version == before.version + 1
    assert shown(after) == expected(views)
    actions = {verb: said["system_view"] for verb, said in manager.history(3)[0].actions}
    assert actions == {
        "replace_system_view": "system.zones",
        "create_system_view": "system.brand_new",
        "drop_system_view": "system.tables",
    }
    for name, kept in (("zones", False), ("schemas", True)):
        old, now = before.system_view("system", name), after.system_view("system", name)
        assert old is not None
        assert now is not None
        assert (old.id == now.id) is kept
    assert not synchronize_system_views(manager, views=views)


CONTENTS = {1: "14c4e3d310daa595", 2: "89a6665b18ab21f3"}
"""For each content version, a hash of the fingerprints of all views."""


def test_the_content_version_is_raised_when_the_views_change() -> None:
    """If this fails, raise `CONTENT_VERSION` and add a line; a released version never changes."""
    fingerprints = "".join(sorted(map(fingerprint, SYSTEM_VIEWS.values())))
    digest = hashlib.sha256(fingerprints.encode()).hexdigest()
    assert CONTENTS[migrations.CONTENT_VERSION] == digest[:16]


class WithoutContentVersion:
    """A catalog with the present views but without a content version, as release 0.3.0 made it."""

    def plan(self, planning: Planning) -> None:
        with planning.transaction.entry("configure", {}):
            planning.transaction.delete("setting", migrations.CONTENT)


def test_the_content_version_is_stored_once_and_not_listed_in_the_history(
    manager: CatalogManager,
) -> None:
    do(manager, WithoutContentVersion())
    before = manager.latest_catalog()
    assert migrations.content_of(before.contents) == 0
    assert synchronize_system_views(manager)
    after = manager.latest_catalog()
    assert migrations.content_of(after.contents) == migrations.CONTENT_VERSION
    assert after.version == before.version + 1
    assert not manager.history(before.version + 1)
    assert not synchronize_system_views(manager)


class WithoutViews:
    """The catalog as release 0.1.0 made it: without the schema ``system`` and the views in it."""

    def plan(self, planning: Planning) -> None:
        with planning.entry("alter_schema") as transaction:
            contents: Contents = transaction.contents
            for kind in ("system_view", "system_object_fingerprint"):
                for stored in list(contents.objects(kind)):
                    transaction.delete(kind, stored.id or stored.name)
            schema = planning.catalog.schema("system")
            assert schema is not None
            transaction.delete("schema", schema.id)


def test_a_catalog_of_0_1_0_gets_the_views_in_one_version(manager: CatalogManager) -> None:
    do(manager, WithoutViews())
    assert [schema.name for schema in manager.latest_catalog().schemas()] == ["default"]
    assert synchronize_system_views(manager)
    assert manager.latest_catalog().version == 4
    assert [schema.name for schema in manager.latest_catalog().schemas()] == ["default", "system"]
    assert shown(manager.latest_catalog()) == expected(SYSTEM_VIEWS)


def test_a_view_is_left_out_if_a_table_has_its_name(manager: CatalogManager) -> None:
    do(manager, TableInSystem())
    mine = SystemView("mine", (("a", INT),), lambda _: iter(()), "")
    other = replace(mine, name="other")
    assert synchronize_system_views(manager, views={**SYSTEM_VIEWS, "mine": mine, "other": other})
    assert shown(manager.latest_catalog()) == expected({**SYSTEM_VIEWS, "other": other})
    assert not synchronize_system_views(
        manager, views={**SYSTEM_VIEWS, "mine": mine, "other": other}
    )


def test_only_one_of_several_nodes_that_start_at_once_makes_the_version(
    new_manager: Callable[..., CatalogManager],
) -> None:
    managers = [new_manager() for _ in range(3)]
    views = {**SYSTEM_VIEWS, "n": SystemView("n", (("a", INT),), lambda _: iter(()), "")}
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(partial(synchronize_system_views, views=views), managers))
    for manager in managers:
        assert manager.present().version == 3
        assert shown(manager.present()) == expected(views)


# -- rows ------------------------------------------------------------------------------------------


def test_tables_and_their_columns_are_listed(world: CatalogManager) -> None:
    catalog = world.latest_catalog()
    table = catalog.table("s", "t")
    assert table is not None
    assert (
        row(catalog, "tables", table_name="t").items()
        >= {
            "schema_name": "s",
            "table_id": table.id,
            "table_pk_index_id": table.primary_key_index,
            "zone_name": "z",
            "storage_profile": "fast",
            "table_colocation_columns": "id",
        }.items()
    )
    assert (
        row(catalog, "table_columns", column_name="id").items()
        >= {
            "column_type": "int",
            "is_nullable_column": False,
            "column_ordinal": 0,
            "pk_column_ordinal": 0,
            "colocation_column_ordinal": 0,
        }.items()
    )
    assert (
        row(catalog, "table_columns", column_name="amount").items()
        >= {
            "column_precision": 10,
            "column_scale": 2,
            "column_length": None,
            "pk_column_ordinal": None,
        }.items()
    )
    assert row(catalog, "table_columns", column_name="code")["column_length"] == 7


def test_indexes_and_their_columns_are_listed(world: CatalogManager) -> None:
    catalog = world.latest_catalog()
    assert (
        row(catalog, "indexes", index_name="i").items()
        >= {
            "table_name": "t",
            "schema_name": "s",
            "is_unique_index": False,
            "index_columns": "amount, code",
            "index_state": "REGISTERED",
        }.items()
    )
    assert row(catalog, "indexes", index_name="t_pk")["index_state"] == "AVAILABLE"
    assert row(catalog, "index_columns", index_name="i", column_ordinal=1)["column_name"] == "code"


def test_a_dropped_column_of_a_stopping_index_has_no_name(world: CatalogManager) -> None:
    number = index_id(world.latest_catalog(), "s.i")
    do(
        world,
        StartBuildingIndex(index_id=number),
        MakeIndexAvailable(index_id=number),
        DropIndex(schema="s", index="i"),
        DropColumns(schema="s", table="t", names=("code",)),
        AddColumns(schema="s", table="t", columns=(ColumnDefinition("code", INT),)),
    )
    catalog = world.latest_catalog()
    assert [entry["index_name"] for entry in rows(catalog, "indexes")] == ["t_pk"]
    columns = [entry for entry in rows(catalog, "index_columns") if entry["index_id"] == number]
    assert [column["column_name"] for column in columns] == ["amount", None]


def test_system_views_are_listed_in_system_views(manager: CatalogManager) -> None:
    catalog = manager.latest_catalog()
    assert {entry["view_name"] for entry in rows(catalog, "system_views")} == set(SYSTEM_VIEWS)
    column = row(catalog, "system_view_columns", view_name="zones", column_name="is_default_zone")
    view = catalog.system_view("system", "zones")
    assert view is not None
    assert column.items() >= {"view_id": view.id, "column_type": "boolean"}.items()


def test_zones_and_their_storage_profiles_are_listed(world: CatalogManager) -> None:
    catalog = world.latest_catalog()
    assert row(catalog, "zones", is_default_zone=True)["zone_name"] == "default"
    assert row(catalog, "zones", zone_name="z")["zone_replicas"] == 3
    profiles = [
        entry for entry in rows(catalog, "zone_storage_profiles") if entry["zone_name"] == "z"
    ]
    assert [
        (profile["storage_profile"], profile["is_default_profile"]) for profile in profiles
    ] == [
        ("fast", True),
        ("cold", False),
    ]
    do(world, AlterZone(name="z", storage_profiles=("cold", "fast")))
    assert row(world.latest_catalog(), "tables", table_name="t")["storage_profile"] == "cold"


def test_views_functions_clusters_comments_and_other_objects_are_listed(
    world: CatalogManager,
) -> None:
    catalog = world.latest_catalog()
    assert row(catalog, "views", view_name="v")["view_text"] == "SELECT 1"
    assert row(catalog, "functions", function_name="f")["resources"] == '[["JAR", "file:/a"]]'
    assert row(catalog, "clusters", cluster_name="c")["is_managed"] is True
    assert row(catalog, "cluster_replicas", replica_name="r1")["cluster_name"] == "c"
    assert row(catalog, "comments", object_kind="zone")["comment"] == "x"
    assert row(catalog, "databases")["database_name"] == "hive"
    assert row(catalog, "schemas", schema_name="system")["owner"] == "system"
    assert (
        row(catalog, "configuration", name="max_tables").items()
        >= {
            "value": "7",
            "is_default": False,
            "default_value": "1000000",
        }.items()
    )
    assert row(catalog, "configuration", name="history_retention")["value"] is None
