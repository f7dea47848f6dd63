"""What the catalog returns for lookups of each kind of object."""

from __future__ import annotations

import pytest

from strandline.catalog import Catalog, initial_catalog
from strandline.clock import Timestamp
from strandline.durable.contents import EMPTY
from strandline.durable.transaction import CatalogTransaction
from strandline.model.descriptors import (
    ClusterDescriptor,
    ClusterReplica,
    Comment,
    ConfigEntry,
    FunctionDescriptor,
    IndexColumn,
    IndexDescriptor,
    IndexKind,
    IndexStatus,
    SchemaDescriptor,
    SchemaVersion,
    SystemConfiguration,
    SystemViewDescriptor,
    SystemViewKind,
    TableDescriptor,
    TableKind,
    ViewDescriptor,
    ZoneDescriptor,
    comment_name,
)
from strandline.model.privileges import ObjectKind, RoleDescriptor
from tests.positions import NOTHING, At

BEFORE, AT = Timestamp(1 << 20), Timestamp(2 << 20)

TABLE = TableDescriptor(
    id=1001, schema_id=1000, name="T", owner="ann", kind=TableKind.MANAGED, transactional=False,
    provider="parquet", schema_versions=(SchemaVersion(1, ()),), next_column_id=1, zone_id=1,
)  # fmt: skip
VIEW = ViewDescriptor(1002, 1000, "v", "ann", (), "SELECT 1", "SELECT 1")
SYSTEM_VIEW = SystemViewDescriptor(1003, 1000, "sv", "system", (), SystemViewKind.CLUSTER)


def index(number: int, name: str, status: IndexStatus) -> IndexDescriptor:
    columns = (IndexColumn(1),)
    return IndexDescriptor(number, 1000, name, "ann", 1001, IndexKind.HASH, columns, status)


ALIVE = index(1006, "i", IndexStatus.AVAILABLE)
STOPPING = index(1005, "old", IndexStatus.STOPPING)
FUNCTION = FunctionDescriptor(1007, 1000, "F", "ann", "com.example.F")
ZONES = [ZoneDescriptor(1009, "z2", "ann"), ZoneDescriptor(1008, "Z1", "ann")]
ROLE = RoleDescriptor(1010, "Reader", "ann")
CLUSTER = ClusterDescriptor(1011, "etl", "ann")
REPLICAS = [ClusterReplica(1013, 1011, "r1", "ann", "small", "local"),
            ClusterReplica(1012, 1011, "r2", "ann", "small", "local")]  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    transaction = CatalogTransaction(NOTHING, author="ann")
    initial_catalog(delay_ms=0, skew_ms=0, default_location="file:/w")(transaction)
    contents = EMPTY
    for entry in transaction.entries:
        contents = contents.apply(entry.changes, at=BEFORE)
    database = Catalog(1, BEFORE, contents).database()
    assert database is not None
    transaction = CatalogTransaction(At(1, contents), author="ann")
    with transaction.entry("all", {}):
        transaction.put(SchemaDescriptor(1000, database.id, "Sales", "ann"))
        for descriptor in (TABLE, VIEW, SYSTEM_VIEW, ALIVE, STOPPING, FUNCTION, ROLE, CLUSTER):
            transaction.put(descriptor)
        for zone in ZONES:
            transaction.put(zone)
        for replica in REPLICAS:
            transaction.put(replica)
        name = comment_name(ObjectKind.ZONE, 1008)
        transaction.put(Comment(name, ObjectKind.ZONE, 1008, "the first"))
        transaction.put(SystemConfiguration("max_tables", "7"))
    return Catalog(2, AT, contents.apply(transaction.entries[0].changes, at=AT))


def test_tables_and_views_are_found_by_name_and_id(catalog: Catalog) -> None:
    assert catalog.table("sales", "t") == catalog.table_by_id(1001) == TABLE
    assert catalog.relation("SALES", "V") == catalog.view("sales", "v") == VIEW
    assert catalog.view("sales", "t") is None
    assert catalog.relation_names("sales") == ["T", "v"]
    assert catalog.table_count() == 1
    assert list(catalog.table_ids()) == [1001]


@pytest.mark.parametrize("name", ["sv", "i", "old", "nope"])
def test_system_views_indexes_and_missing_names_are_not_relations(
    catalog: Catalog, name: str
) -> None:
    assert catalog.relation("sales", name) is None


@pytest.mark.parametrize(
    ("name", "occupant"),
    [("t", TABLE), ("V", VIEW), ("SV", SYSTEM_VIEW), ("I", ALIVE), ("old", None)],
)
def test_any_alive_object_occupies_its_name_but_a_stopping_index_does_not(
    catalog: Catalog, name: str, occupant: object
) -> None:
    assert catalog.occupant(1000, name) == occupant


def test_system_views_are_found_by_name_and_listed(catalog: Catalog) -> None:
    assert catalog.system_view("sales", "SV") == SYSTEM_VIEW
    assert catalog.system_view("sales", "t") is None
    assert SYSTEM_VIEW in catalog.system_views()


def test_indexes_are_found_by_id_by_name_and_by_table(catalog: Catalog) -> None:
    assert catalog.index(1005) == STOPPING
    assert catalog.alive_index("sales", "I") == ALIVE
    assert catalog.alive_index("sales", "old") is None
    assert catalog.indexes(1001) == [STOPPING, ALIVE]
    assert catalog.indexes(7) == []


def test_functions_are_found_by_name_and_listed_by_schema(catalog: Catalog) -> None:
    assert catalog.function("sales", "f") == FUNCTION
    assert catalog.functions("sales") == [FUNCTION]
    assert catalog.functions("nope") == []
    assert catalog.function("nope", "f") is None


def test_zones_are_found_by_id_and_by_name_and_listed_in_order(catalog: Catalog) -> None:
    assert catalog.zone(1008) == catalog.zone_named("z1") == ZONES[1]
    assert [zone.name for zone in catalog.zones()] == ["Z1", "default", "z2"]


def test_the_default_zone_is_the_configured_zone(catalog: Catalog) -> None:
    def default_of(contents: object) -> str | None:
        zone = Catalog(3, AT, contents).default_zone()  # type: ignore[arg-type]  # as it came
        return None if zone is None else zone.name

    assert default_of(catalog.contents) == "default"
    transaction = CatalogTransaction(At(2, catalog.contents), author="ann")
    with transaction.entry("set_default_zone", {}):
        transaction.put(ConfigEntry("default_zone", "1009"))
    assert default_of(transaction.contents) == "z2"
    assert Catalog(0, Timestamp(1), EMPTY).default_zone() is None


def test_roles_clusters_and_replicas_are_found_and_listed(catalog: Catalog) -> None:
    assert catalog.role("READER") == catalog.role_by_id(1010) == ROLE
    assert ROLE in catalog.roles()
    assert catalog.cluster("ETL") == CLUSTER
    assert catalog.clusters() == [CLUSTER]
    assert catalog.replicas(1011) == REPLICAS
    assert catalog.replicas(7) == []


def test_comments_and_configuration_values_are_found_by_their_keys(catalog: Catalog) -> None:
    assert catalog.comment(ObjectKind.ZONE, 1008) == "the first"
    assert catalog.comment(ObjectKind.ZONE, 1009) is None
    assert catalog.configuration("max_tables") == "7"
    assert catalog.configuration("history_retention") is None


def test_an_object_of_any_kind_is_found_by_its_key(catalog: Catalog) -> None:
    assert catalog.get("table", 1001) == TABLE
    assert catalog.get("system_configuration", "max_tables").value == "7"
    assert catalog.get("table", 7) is None


def test_updated_returns_the_time_of_the_last_change_of_an_object(catalog: Catalog) -> None:
    assert catalog.updated(TABLE) == AT
    assert catalog.updated(ConfigEntry("environment", "any")) == BEFORE
    assert catalog.updated(ZoneDescriptor(7, "z", "ann")) is None
    assert catalog.updated(SystemConfiguration("max_tables", "any")) == AT


def test_lookups_in_the_empty_catalog_find_nothing() -> None:
    empty = Catalog(0, Timestamp(1), EMPTY)
    assert empty.database() is None
    lists = (empty.schemas(), empty.zones(), empty.roles(), empty.clusters())
    assert not any(lists)
    assert empty.relation("a", "b") is None
    assert empty.function("a", "b") is None
    assert empty.alive_index("a", "b") is None
    assert empty.system_view("a", "b") is None
    assert not empty.indexes(1)
    assert not empty.replicas(1)
