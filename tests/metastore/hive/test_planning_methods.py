"""The calls that Trino, Presto and Python clients make before a query."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hive_metastore.ttypes import (
    FieldSchema,
    GetCatalogRequest,
    GetFieldsRequest,
    GetPartitionNamesPsRequest,
    GetPartitionRequest,
    GetPartitionsByNamesRequest,
    GetPartitionsPsWithAuthRequest,
    GetSchemaRequest,
    Partition,
    PartitionsRequest,
    PartitionValuesRequest,
)

from strandline import work
from strandline.catalog import Relation
from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.metastore.hive.hive_reader import HiveReader, Scope
from strandline.metastore.hive.partition_values import DEFAULT_PARTITION, partition_name
from strandline.metastore.off_loop import finish
from strandline.metastore.store.rows import RowKind
from strandline.metastore.table_parameters import is_derived
from strandline.metastore.thrift import ThriftException
from strandline.model.descriptors import TableKind
from strandline.model.types import INT
from tests.catalog.scenario import create_table, create_view
from tests.metastore.hive.hive_node import HiveNode, plain, refusal, storage, table

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


OLD = "hive_filter_field_last_access__ = 0"
NAMED = {"dbName": "d1", "tblName": "flights"}
OTHER = {"catName": "iceberg"}
OTHER_TABLE = {"tableName": "new", "dbName": "d1", **OTHER}
OTHER_PARTITION = {"values": ["2015", "a"], "dbName": "d1", "tableName": "flights", **OTHER}
OF_ANOTHER_CATALOG: dict[str, tuple[str, dict[str, Any]]] = {
    "get_table_req": ("NoSuchObjectException", {"req": {**NAMED, **OTHER}}),
    "get_table_objects_by_name_req": (
        "MetaException",
        {"req": {"dbName": "d1", "tblNames": ["flights"], **OTHER}},
    ),
    "get_fields_req": ("MetaException", {"req": {**NAMED, **OTHER}}),
    "get_database_req": (
        "NoSuchObjectException",
        {"request": {"name": "d1", "catalogName": "iceberg"}},
    ),
    "create_database": (
        "MetaException",
        {"database": {"name": "new", "catalogName": "iceberg"}},
    ),
    "drop_database_req": (
        "NoSuchObjectException",
        {
            "req": {
                "name": "d1",
                "catalogName": "iceberg",
                "ignoreUnknownDb": True,
                "deleteData": True,
                "cascade": True,
            }
        },
    ),
    "create_table": ("NoSuchObjectException", {"tbl": OTHER_TABLE}),
    "add_partitions": ("MetaException", {"new_parts": [OTHER_PARTITION]}),
    "add_partitions_req": (
        "MetaException",
        {"request": {**NAMED, "parts": [OTHER_PARTITION], "ifNotExists": True}},
    ),
    "alter_table": (
        "MetaException",
        {"dbname": "d1", "tbl_name": "flights", "new_tbl": OTHER_TABLE},
    ),
    "get_primary_keys": (
        "NoSuchObjectException",
        {"request": {"db_name": "d1", "tbl_name": "flights", **OTHER}},
    ),
}


@pytest.mark.parametrize("method", OF_ANOTHER_CATALOG)
def test_a_request_of_another_catalog_is_refused(hive: HiveNode, flights: Any, method: str) -> None:
    expected, args = OF_ANOTHER_CATALOG[method]
    before = flights.get_all_tables("d1"), flights.get_partition_names("d1", "flights", -1)
    with hive.client() as client, pytest.raises(ThriftException) as refused:
        client.call(method, **args)
    assert (refused.value.name, refused.value.value["message"]) == (
        expected,
        "catalog iceberg does not exist; the only catalog is hive",
    )
    assert before == (
        flights.get_all_tables("d1"),
        flights.get_partition_names("d1", "flights", -1),
    )
    assert "new" not in flights.get_all_databases()


def test_the_case_of_the_catalog_and_an_empty_name_do_not_matter(
    hive: HiveNode, flights: Any
) -> None:
    with hive.client() as client:
        for name in ("HIVE", "hive", ""):
            request = {**NAMED, "catName": name}
            assert client.call("get_table_req", req=request)["table"]["tableName"] == "flights"


# -- tables by a filter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('hive_filter_field_params__presto_view = "true"', ["a"]),
        ('hive_filter_field_params__presto_view LIKE "tr.e"', ["a"]),
        ('hive_filter_field_params__presto_view != "true"', []),
        ('hive_filter_field_owner__ = "ann"', ["b"]),
        ('hive_filter_field_owner__ = ""', ["a", "c"]),
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


def test_only_tables_with_the_parameters_of_a_filter_are_rendered(
    stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        stub.create_table(table(name, parameters={"kind": "x"} if name == "b" else {}))
    rendered: list[str] = []
    struct = HiveReader.struct

    async def counted(reader: HiveReader, scope: Scope, relation: Relation) -> Any:
        rendered.append(relation.name)
        return await struct(reader, scope, relation)

    monkeypatch.setattr(HiveReader, "struct", counted)
    text = 'hive_filter_field_params__kind = "x" and hive_filter_field_params__comment != "y"'
    assert stub.get_table_names_by_filter("d1", text, -1) == []  # it has no comment
    assert rendered == ["b"]
    assert stub.get_table_names_by_filter("d1", 'hive_filter_field_owner__ = ""', 2) == ["a", "b"]
    assert rendered == ["b"]  # the owner of a table is known without its parameters


def test_a_table_stores_each_parameter_that_answers_do_not_derive(hive: HiveNode) -> None:
    session = hive.node.session(user="ann")
    plain = create_table("d1.plain", transactional=False, comment="c", properties=(("k", "v"),))
    assert isinstance(plain, CreateTable)
    partitioned = replace(plain.definition, name="parts", partition_columns=("b",))
    external = replace(
        plain.definition, name="out", kind=TableKind.EXTERNAL, location=f"file:{hive.folder}/o"
    )
    definitions = [partitioned, external, replace(plain.definition, name="orc", provider="orc")]
    session.execute([plain, create_table("d1.rows"), create_view("d1.seen")])
    session.execute([replace(plain, definition=each) for each in definitions])
    with hive.stub() as stub:
        for schema in ("d1", f"d1@{session.status().version}"):
            for name in stub.get_all_tables(schema):
                shown = stub.get_table(schema, name).parameters
                assert {each for each in shown if not is_derived(each)} <= {"k"}, name


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
    answer = plain(flights.get_partition_values(request))
    assert [own["row"] for own in answer["partitionValues"]] == expected


def test_a_request_for_values_of_a_column_that_is_not_a_partition_key_is_refused(
    flights: Any,
) -> None:
    request = PartitionValuesRequest("d1", "flights", [FieldSchema("a", "int", None)])
    assert refusal(lambda: flights.get_partition_values(request))[0] == "MetaException"


# -- the cost of a filter


def test_a_filter_decodes_only_the_partitions_that_it_chooses(hive: HiveNode, stub: Any) -> None:
    stub.create_table(table("t", partitionKeys=[FieldSchema("p", "string", None)]))
    values = [*(f"{number}:%/=" for number in range(10, 40)), DEFAULT_PARTITION]
    stub.add_partitions([Partition([value], "d1", "t", sd=storage()) for value in values])
    chosen = stub.get_partitions_by_filter("d1", "t", "p >= '38:' and p <> 'x'", -1)
    expected = ["38:%/=", "39:%/=", DEFAULT_PARTITION]
    assert [partition.values for partition in chosen] == [[value] for value in expected]
    store, table_id = (
        hive.node.metastore.store,
        hive.node.session(user="ann").table("d1.t").descriptor.id,
    )
    rows = store.rows(table_id, RowKind.PARTITION, write_ids=None)
    names = [row.name for row in rows if row.is_decoded()]
    assert names == [partition_name(["p"], [value]) for value in expected]


# -- requests of Hive 4 that are the same as a call of earlier clients


def test_requests_of_hive_4_for_partitions_are_answered_as_the_older_calls_are(
    flights: Any,
) -> None:
    named = {"dbName": "d1", "tblName": "flights"}
    one = flights.get_partition_req(GetPartitionRequest(**named, partVals=["2013", "a"])).partition
    assert one == flights.get_partition("d1", "flights", ["2013", "a"])
    none = GetPartitionRequest(**named, partVals=["2013", "z"])
    assert refusal(lambda: flights.get_partition_req(none))[0] == "NoSuchObjectException"
    for most in (-1, 2):
        every = flights.get_partitions_req(PartitionsRequest(**named, maxParts=most)).partitions
        assert every == flights.get_partitions("d1", "flights", most)
        assert len(every) == (2 if most == 2 else 3)
    some = GetPartitionsPsWithAuthRequest(**named, partVals=["2013"], maxParts=-1)
    found = flights.get_partitions_ps_with_auth_req(some).partitions
    assert found == flights.get_partitions_ps("d1", "flights", ["2013"], -1)
    assert [partition.values for partition in found] == [["2013", "a"], ["2013", "b"]]
    request = GetPartitionNamesPsRequest(**named, partValues=["2013"], maxParts=1)
    assert flights.get_partition_names_ps_req(request).names == ["year=2013/day=a"]
    request = GetPartitionNamesPsRequest(**named)
    assert len(flights.get_partition_names_ps_req(request).names) == 3
    request = GetPartitionsPsWithAuthRequest(**named)
    assert len(flights.get_partitions_ps_with_auth_req(request).partitions) == 3
    names = ["year=2014/day=c", "year=2013/day=z"]
    by_name = GetPartitionsByNamesRequest(db_name="d1", tbl_name="flights", names=names)
    found = flights.get_partitions_by_names_req(by_name).partitions
    assert found == flights.get_partitions_by_names("d1", "flights", names)
    assert [partition.values for partition in found] == [["2014", "c"]]


def test_a_request_for_many_tables_exceeds_the_budget_of_a_thread(
    hive: HiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the node gives up the request before it makes the structs of the tables."""
    names = [f"t{n}" for n in range(work.IN_THREAD // 10)]
    definition = TableDefinition(
        name="t",
        columns=(ColumnDefinition("a", INT),),
        kind=TableKind.EXTERNAL,
        location="s3://bucket/t",  # no folder
    )
    hive.node.session(user="ann").execute(
        [CreateTable(schema="d1", definition=replace(definition, name=name)) for name in names]
    )
    monkeypatch.delattr(HiveReader, "struct")
    for call in (
        hive.call("get_table_names_by_filter", dbname="d1", filter=OLD),
        hive.call("get_table_objects_by_name", dbname="d1", tbl_names=names),
        hive.call("get_table_objects_by_name_req", req={"dbName": "d1"}),
    ):
        with work.budget(work.IN_THREAD), pytest.raises(work.TooLong):
            finish(call.method.handler(call))
