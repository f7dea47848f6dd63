"""This service answers about tables that Spark created as Hive's own metastore does.

The tables in ``spark_tables.json`` were recorded between Spark 4.3 and Hive 2.3.10: the request
with which Spark created each table, and a later answer. Values that Hive's server sets by itself
are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog.commands import TableDefinition
from strandline.catalog.commands.table_definition import describe, first_columns
from strandline.errors import InvalidInput, UnsupportedOperation
from strandline.metastore.hive.table_structs import read_table, table_struct, table_type_of
from strandline.metastore.table_parameters import is_counted
from strandline.metastore.thrift import HIVE_CODEC
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.type_json import schema_json
from strandline.model.type_parser import parse_fields
from strandline.model.type_text import simple_string
from strandline.model.types import StructType
from tests.metastore.hive.hive_node import HiveNode

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "spark_tables.json").read_text()
)
SET_BY_SERVER = {"createTime", "catName"}
PROVIDED = {"spark.sql.sources.provider": "parquet"}


def described(table: dict[str, Any], *, location: str = "file:/w/d1.db/t") -> TableDescriptor:
    definition = read_table(table, default_location=location).definition
    assert isinstance(definition, TableDefinition)
    first = first_columns(definition)
    return describe(definition, first, owner="ann", table_id=7, schema_id=1, zone_id=2, created=99)


def answered(table: dict[str, Any], *, location: str = "file:/w/d1.db/t") -> dict[str, Any]:
    """The table as a client gets it again, without the counted parameters."""
    made = table_struct(
        described(table, location=location), schema="d1", location=location, counted=()
    )
    struct = HIVE_CODEC.decode_struct("Table", HIVE_CODEC.encode_struct("Table", made))
    struct["parameters"] = {k: v for k, v in struct["parameters"].items() if not is_counted(k)}
    return struct


def hive_table(**fields: Any) -> dict[str, Any]:
    sd = {
        "cols": [{"name": "a", "type": "int"}],
        "serdeInfo": {"parameters": {}},
        "numBuckets": -1,
    }
    return {"tableName": "t", "dbName": "d1", "sd": sd, **fields}


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda pair: str(pair["sent"]["tableName"]))
def test_a_table_of_spark_is_returned_as_by_hive(hive: HiveNode, recorded: dict[str, Any]) -> None:
    moved = json.loads(json.dumps(recorded).replace("file:/warehouse", hive.warehouse))
    sent, expected = moved["sent"], moved["answered"]
    database = {"name": "nyc", "locationUri": f"{hive.warehouse}/nyc.db"}
    with hive.client() as client:
        client.call("create_database", database=database)
        client.call("create_table_with_environment_context", tbl=sent)
        answer = client.call("get_table", dbname="nyc", tbl_name=sent["tableName"])
    answer["sd"].pop("skewedInfo")
    answer["parameters"].pop("transient_lastDdlTime")
    assert {k: v for k, v in answer.items() if k not in SET_BY_SERVER} == expected


def test_a_table_of_hive_is_returned_in_lower_case_and_with_hives_defaults() -> None:
    sent = hive_table(
        tableName="T1",
        partitionKeys=[{"name": "P", "type": "int"}],
        parameters={"x": "y"},
    )
    sent["sd"]["cols"] = [{"name": "A", "type": "struct<B:decimal>", "comment": "c"}]
    answer = answered(sent)
    assert (answer["tableName"], answer["tableType"], answer["retention"]) == (
        "t1",
        "MANAGED_TABLE",
        0,
    )
    assert answer["sd"]["cols"] == [{"name": "a", "type": "struct<B:decimal>", "comment": "c"}]
    assert answer["partitionKeys"] == [{"name": "p", "type": "int"}]
    assert answer["parameters"] == {"x": "y"}
    assert (answer["sd"]["bucketCols"], answer["sd"]["compressed"]) == ([], False)


@pytest.mark.parametrize("buckets", [-1, 0, 4])
def test_the_number_of_buckets_is_returned_as_it_was_sent(buckets: int) -> None:
    sent = hive_table()
    sent["sd"]["numBuckets"] = buckets
    answer = answered(sent)["sd"]
    assert (answer["numBuckets"], answer["parameters"]) == (buckets, {})


@pytest.mark.parametrize(
    ("named", "external", "expected"),
    [
        ("MANAGED_TABLE", None, "MANAGED_TABLE"),
        ("MANAGED_TABLE", "TRUE", "EXTERNAL_TABLE"),
        ("MANAGED_TABLE", "true", "MANAGED_TABLE"),
        ("EXTERNAL_TABLE", None, "MANAGED_TABLE"),
        ("EXTERNAL_TABLE", "TRUE", "EXTERNAL_TABLE"),
        (None, "TRUE", "EXTERNAL_TABLE"),
        (None, None, "MANAGED_TABLE"),
        ("VIRTUAL_VIEW", None, "VIRTUAL_VIEW"),
    ],
)
def test_the_parameter_external_decides_the_type_of_the_table(
    named: str | None, external: str | None, expected: str
) -> None:
    parameters = {} if external is None else {"EXTERNAL": external}
    assert table_type_of({"tableType": named, "parameters": parameters}) == expected


def test_a_table_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(UnsupportedOperation):
        table_type_of({"tableType": "MATERIALIZED_VIEW"})


def test_counted_parameters_are_separated_from_those_of_the_definition() -> None:
    counted = {
        "numRows": "1",
        "totalSize": "2",
        "spark.sql.statistics.colStats.a.min": "0",
        "COLUMN_STATS_ACCURATE": "{}",
    }
    sent = hive_table(parameters=counted | {"metadata_location": "m0", "comment": "flights"})
    split = read_table(sent, default_location="file:/w/t")
    assert dict(split.counted) == counted
    assert dict(split.definition.properties) == {"metadata_location": "m0"}
    assert split.definition.comment == "flights"


def test_the_schema_of_spark_defines_the_columns_and_is_not_kept_as_text() -> None:
    schema = (
        '{"type":"struct","fields":[{"name":"Id","type":"long","nullable":false,'
        '"metadata":{"k":1}},{"name":"D","type":"date","nullable":true,"metadata":{}}]}'
    )
    sent = hive_table(
        partitionKeys=[{"name": "d", "type": "date"}],
        parameters={
            "spark.sql.sources.provider": "parquet",
            "spark.sql.sources.schema": schema,
            "spark.sql.sources.schema.numPartCols": "1",
            "spark.sql.sources.schema.partCol.0": "D",
        },
    )
    sent["sd"]["cols"] = [{"name": "id", "type": "bigint"}]
    table = described(sent)
    assert [(c.name, c.nullable, c.metadata) for c in table.columns] == [
        ("Id", False, '{"k":1}'),
        ("D", True, ""),
    ]
    assert (table.provider, table.storage.hive_columns) == ("parquet", None)
    assert schema not in str(table)
    assert answered(sent)["parameters"] == sent["parameters"]


def test_a_placeholder_for_columns_that_hive_cannot_express_is_not_kept() -> None:
    recorded = next(p["sent"] for p in RECORDED if p["sent"]["tableName"] == "char_t")
    assert described(recorded).storage.hive_columns is None


def test_columns_changed_by_a_hive_client_win_over_an_unchanged_schema_of_spark() -> None:
    recorded = next(p["sent"] for p in RECORDED if p["sent"]["tableName"] == "airlines")
    shown = answered(recorded)
    changed = json.loads(json.dumps(shown))
    changed["sd"]["cols"].append({"name": "x", "type": "int", "comment": "new"})
    split = read_table(changed, default_location="file:/w/d1.db/t", shown=shown)
    assert [(c.name, c.comment) for c in split.definition.columns] == [
        ("Carrier", "code"),
        ("name", None),
        ("x", "new"),
    ]


@pytest.mark.parametrize(
    ("declared", "columns"),
    [
        ("id int, s struct<x:int>", "Id int, S struct<X:int>, P date"),
        ("", "Id int, S struct<X:int>, P date"),
        ("id int", "Id int, P date"),
        ("s struct<X:int>, id int, b date", "S struct<X:int>, Id int, b date, P date"),
        ("id bigint, s struct<X:int>", "Id bigint, S struct<X:int>, P date"),
    ],
)
def test_a_new_table_has_the_columns_that_another_client_gave_it_after_spark(
    declared: str, columns: str
) -> None:
    schema = schema_json(StructType(parse_fields("Id int, S struct<X: int>, P date")))
    sent = hive_table(
        partitionKeys=[{"name": "p", "type": "date"}],
        parameters={
            "spark.sql.sources.schema": schema,
            "spark.sql.sources.schema.numPartCols": "1",
            "spark.sql.sources.schema.partCol.0": "P",
        },
    )
    fields = [field.split() for field in declared.split(", ") if field]
    sent["sd"]["cols"] = [{"name": name, "type": text} for name, text in fields]
    shown = ", ".join(f"{c.name} {simple_string(c.type)}" for c in described(sent).columns)
    assert shown == columns


def test_an_empty_comment_of_a_column_that_has_none_is_not_a_change() -> None:
    schema = schema_json(StructType(parse_fields("a int, b int comment 'of b'")))
    shown = answered(hive_table(parameters={**PROVIDED, "spark.sql.sources.schema": schema}))
    sent = json.loads(json.dumps(shown))
    for column in sent["sd"]["cols"]:
        column["comment"] = ""
    changed = read_table(sent, default_location="file:/w/d1.db/t", shown=shown).definition
    assert [column.comment for column in changed.columns] == [None, ""]


def altered(fields: str, **hive_types: str) -> dict[str, str]:
    """The types after an alter that sends these columns for Hive, and Spark's schema as it was."""
    schema = schema_json(StructType(parse_fields(fields)))
    shown = answered(hive_table(parameters={**PROVIDED, "spark.sql.sources.schema": schema}))
    sent = json.loads(json.dumps(shown))
    sent["sd"]["cols"] = [{"name": name, "type": text} for name, text in hive_types.items()]
    changed = read_table(sent, default_location="file:/w/d1.db/t", shown=shown).definition
    return {column.name: simple_string(column.type) for column in changed.columns}


def test_collations_stay_if_a_client_declares_columns_for_hive_which_has_none() -> None:
    fields = "a string collate UTF8_LCASE, b array<struct<x: string collate UNICODE>>, c int"
    kept = {
        "a": "string collate UTF8_LCASE",
        "b": "array<struct<x:string collate UNICODE>>",
        "c": "int",
    }
    assert altered(fields, a="string", b="array<struct<x:string>>", c="int") == kept
    changed = altered(fields, a="string", b="array<struct<x:int>>", c="int")
    assert changed == kept | {"b": "array<struct<x:int>>"}


def test_the_path_parameter_of_a_managed_table_follows_its_location() -> None:
    sent = hive_table()
    sent["sd"]["serdeInfo"]["parameters"] = {"path": "file:///w/d1.db/t"}
    table = described(sent)
    struct = table_struct(table, schema="d1", location="file:/w/d1.db/renamed", counted=())
    assert struct["sd"]["serdeInfo"]["parameters"] == {"path": "file:/w/d1.db/renamed"}


def test_the_definition_of_an_external_table_contains_its_location() -> None:
    sent = hive_table(tableType="EXTERNAL_TABLE", parameters={"EXTERNAL": "TRUE"})
    sent["sd"]["location"] = "/data//x/"
    table = described(sent)
    assert (table.kind, table.location) == (TableKind.EXTERNAL, "file:/data/x")


@pytest.mark.parametrize("text", ["INT", "foo", "Array<int>", "struct<a>", ""])
def test_a_type_that_hive_does_not_know_is_refused_with_hives_message(text: str) -> None:
    sent = hive_table()
    sent["sd"]["cols"] = [{"name": "a", "type": text}]
    with pytest.raises(InvalidInput, match=f"^Invalid column type: {text}"):
        read_table(sent, default_location="file:/w/t")


def test_skewed_tables_are_refused() -> None:
    sent = hive_table()
    sent["sd"]["skewedInfo"] = {"skewedColNames": ["a"]}
    with pytest.raises(UnsupportedOperation):
        read_table(sent, default_location="file:/w/t")


def test_a_sort_order_that_is_neither_ascending_nor_descending_is_refused() -> None:
    sent = hive_table()
    sent["sd"]["sortCols"] = [{"col": "A", "order": -1}]
    with pytest.raises(InvalidInput, match="the sort order of column a is -1; send 1 for"):
        read_table(sent, default_location="file:/w/t")


def test_partition_keys_that_contradict_the_schema_of_spark_are_refused() -> None:
    recorded = next(p["sent"] for p in RECORDED if p["sent"]["tableName"] == "weather")
    wrong = {**recorded, "partitionKeys": [{"name": "day", "type": "int"}]}
    with pytest.raises(InvalidInput):
        read_table(wrong, default_location="file:/w/t")
