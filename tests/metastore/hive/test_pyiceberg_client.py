"""PyIceberg's Hive catalog on this metastore: namespaces, and tables that it makes and finds.

Its commits take a lock of the metastore first, and locks are not here yet; the compare-and-set that
Iceberg's own client for Java uses in their place is tested with the service.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.metastore.hive.hive_node import HiveNode

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType())
)


@pytest.fixture
def catalog(hive: HiveNode) -> Iterator[Any]:
    made = HiveCatalog("hive", uri=hive.uri, warehouse=f"{hive.warehouse}/iceberg")
    yield made
    made.close()


def test_namespaces_are_made_found_changed_and_dropped(catalog: Any) -> None:
    catalog.create_namespace("lake", {"comment": "all of it", "k": "v"})
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("lake")
    assert ("lake",) in catalog.list_namespaces()
    assert catalog.load_namespace_properties("lake")["k"] == "v"
    catalog.update_namespace_properties("lake", removals={"k"}, updates={"l": "w"})
    properties = catalog.load_namespace_properties("lake")
    assert ("k" in properties, properties["l"]) == (False, "w")
    catalog.drop_namespace("lake")
    with pytest.raises(NoSuchNamespaceError):
        catalog.load_namespace_properties("lake")
    with pytest.raises(NoSuchNamespaceError):
        catalog.drop_namespace("lake")


def test_a_table_is_made_found_renamed_and_dropped(hive: HiveNode, catalog: Any) -> None:
    made = catalog.create_table("d1.orders", SCHEMA, properties={"owner": "ann"})
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("d1.orders", SCHEMA)
    assert catalog.list_tables("d1") == [("d1", "orders")]
    found = catalog.load_table("d1.orders")
    assert found.schema().fields == SCHEMA.fields
    assert found.metadata_location == made.metadata_location
    properties = dict(hive.node.session(user="ann").table("d1.orders").descriptor.properties)
    assert properties["metadata_location"] == made.metadata_location
    catalog.rename_table("d1.orders", "d1.sales")
    assert catalog.load_table("d1.sales").metadata_location == made.metadata_location
    with pytest.raises(NoSuchTableError):
        catalog.load_table("d1.orders")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("d1")
    catalog.drop_table("d1.sales")
    assert catalog.list_tables("d1") == []


def test_a_table_as_of_a_version_has_the_snapshot_of_then(hive: HiveNode, catalog: Any) -> None:
    made = catalog.create_table("d1.orders", SCHEMA)
    version = hive.node.metastore.catalogs.present().version
    catalog.drop_table("d1.orders")
    assert catalog.load_table(f"d1@{version}.orders").metadata_location == made.metadata_location
