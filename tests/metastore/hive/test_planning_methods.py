"""The calls that Trino, Presto and Python clients make before a query."""

from __future__ import annotations

from typing import Any

import pytest
from hive_metastore.ttypes import (
    FieldSchema,
    GetCatalogRequest,
    GetFieldsRequest,
    GetSchemaRequest,
    Partition,
    PartitionValuesRequest,
)

from tests.metastore.hive.hive_node import plain, refusal, storage, table

KEYS = [FieldSchema("year", "int", None), FieldSchema("day", "string", None)]


@pytest.fixture
def flights(stub: Any) -> Any:
    stub.create_table(table("flights", partitionKeys=KEYS))
    for values in (["2013", "b"], ["2013", "a"], ["2014", "c"]):
        stub.add_partition(Partition(values, "d1", "flights", 0, 0, storage(), {}))
    return stub


# -- calls that only clients of Hive 4 make


def test_requests_of_hive_4_for_columns_and_catalogs_are_answered(flights: Any) -> None:
    named = {"catName": "hive", "dbName": "D1", "tblName": "FLIGHTS"}
    fields = flights.get_fields_req(GetFieldsRequest(**named)).fields
    assert [field.name for field in fields] == ["a", "b"]
    fields = flights.get_schema_req(GetSchemaRequest(**named)).fields
    assert [field.name for field in fields] == ["a", "b", "year", "day"]
    missing = GetFieldsRequest(dbName="d1", tblName="none")
    assert refusal(lambda: flights.get_fields_req(missing))[0] == "UnknownTableException"
    assert flights.get_catalogs().names == ["hive"]
    catalog = flights.get_catalog(GetCatalogRequest("HIVE")).catalog
    assert (catalog.name, catalog.locationUri.startswith("file:/")) == ("hive", True)
    unknown = refusal(lambda: flights.get_catalog(GetCatalogRequest("spark")))
    assert unknown == (
        "NoSuchObjectException",
        "catalog spark does not exist; the only catalog is hive",
    )


# -- tables by a filter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('hive_filter_field_params__presto_view = "true"', ["a"]),
        ('hive_filter_field_params__presto_view LIKE "tr.e"', ["a"]),
        ('hive_filter_field_params__presto_view != "true"', []),
        ('hive_filter_field_owner__ = "ann"', ["b"]),
        ('hive_filter_field_owner__ = "ann" or hive_filter_field_params__k = "1"', ["c"]),
        ("hive_filter_field_last_access__ = 7", ["c"]),
        ("hive_filter_field_last_access__ < 5", ["a", "b"]),
        ("", ["a", "b", "c"]),
    ],
)
def test_tables_are_found_by_owner_last_access_and_parameters(
    stub: Any, text: str, expected: list[str]
) -> None:
    stub.create_table(table("A", parameters={"presto_view": "true"}))
    stub.create_table(table("b", owner="ann"))
    stub.create_table(table("c", parameters={"k": "1"}, lastAccessTime=7))
    assert stub.get_table_names_by_filter("d1", text, -1) == expected
    assert stub.get_table_names_by_filter("D1", text, 1) == expected[:1]


@pytest.mark.parametrize("text", ["owner = 'ann'", "hive_filter_field_params__ = 'x'", "a ="])
def test_an_invalid_filter_on_tables_is_refused(stub: Any, text: str) -> None:
    kind, _ = refusal(lambda: stub.get_table_names_by_filter("d1", text, -1))
    assert kind == "MetaException"


def test_a_filter_on_the_tables_of_a_missing_schema_finds_none(stub: Any) -> None:
    assert stub.get_table_names_by_filter("none", "", -1) == []


# -- values of partitions


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [["2013", "a"], ["2013", "b"], ["2014", "c"]]),
        ({"keys": ["YEAR"]}, [["2013"], ["2014"]]),
        ({"keys": ["year"], "applyDistinct": False}, [["2013"], ["2013"], ["2014"]]),
        ({"keys": ["day"], "partitionOrder": [KEYS[1]], "ascending": False}, [["c"], ["b"], ["a"]]),
        ({"keys": ["day"], "filter": "year = 2014"}, [["2014", "c"]]),  # as in Hive
        ({"maxParts": 1}, [["2013", "a"]]),
    ],
)
def test_the_values_of_partition_keys_are_returned(
    flights: Any, asked: dict[str, Any], expected: list[list[str]]
) -> None:
    names = asked.pop("keys", ["year", "day"])
    keys = [FieldSchema(name, "string", None) for name in names]
    request = PartitionValuesRequest("d1", "flights", keys, **asked)
    found = plain(flights.get_partition_values(request))
    assert [own["row"] for own in found["partitionValues"]] == expected


def test_a_request_for_values_of_a_column_that_is_not_a_partition_key_is_refused(
    flights: Any,
) -> None:
    request = PartitionValuesRequest("d1", "flights", [FieldSchema("a", "int", None)])
    assert refusal(lambda: flights.get_partition_values(request))[0] == "MetaException"
