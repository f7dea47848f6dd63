from __future__ import annotations

from typing import Any

import pytest
from hive_metastore.ttypes import FieldSchema

from strandline.catalog.commands import table_definition
from strandline.metastore.hive.parameters import take_schema
from strandline.model.identifiers import check_name
from strandline.model.type_text import ddl_text
from tests.metastore.hive.hive_node import HiveNode, refusal, storage, table

SPARK_SCHEMA = (
    '{"type":"struct","fields":[{"name":"Id","type":{"type":"struct","fields":[{"name":"x","type":'
    '{"type":"array","elementType":"integer","containsNull":false},"nullable":false,"metadata":{}}]'
    '},"nullable":false,"metadata":{}},{"name":"a`b","type":{"type":"map","keyType":"string",'
    '"valueType":"integer","valueContainsNull":false},"nullable":true,"metadata":{"k":1}}]}'
)


def past(hive: HiveNode, stub: Any, **fields: Any) -> tuple[str, Any]:
    """The name of the schema at the present version, and the answer for a table in it."""
    stub.create_table(table("t1", **fields))
    schema = f"d1@{hive.node.metastore.catalogs.present().version}"
    return schema, stub.get_table(schema, "t1")


def test_the_view_names_the_columns_in_their_original_case(hive: HiveNode, stub: Any) -> None:
    parameters = {"spark.sql.sources.schema": SPARK_SCHEMA, "spark.sql.sources.provider": "parquet"}
    schema, view = past(hive, stub, parameters=parameters, sd=storage(columns=[]))
    assert view.viewExpandedText.startswith(f"SELECT `Id`, `a``b` FROM `{schema}`.`t1@files_")
    assert view.viewOriginalText == view.viewExpandedText
    assert [view.parameters[f"view.query.out.col.{n}"] for n in range(2)] == ["Id", "a`b"]
    assert view.parameters["view.query.out.numCols"] == "2"


def test_the_view_is_in_the_schema_that_was_requested(hive: HiveNode, stub: Any) -> None:
    schema, view = past(hive, stub)
    names = [view.parameters[f"view.catalogAndNamespace.part.{n}"] for n in range(2)]
    assert names == ["spark_catalog", schema]
    assert view.parameters["view.catalogAndNamespace.numParts"] == "2"
    assert (view.dbName, view.tableName) == (schema, "t1")


def test_the_types_of_the_view_allow_null_everywhere(hive: HiveNode, stub: Any) -> None:
    parameters = {"spark.sql.sources.schema": SPARK_SCHEMA, "spark.sql.sources.provider": "parquet"}
    _, view = past(hive, stub, parameters=parameters, sd=storage(columns=[]))
    schema, _ = take_schema(view.parameters)
    assert schema is not None
    assert [column.nullable for column in schema.columns] == [True, True]
    assert "NOT NULL" not in "".join(ddl_text(column.type) for column in schema.columns)
    assert '"containsNull":false' not in view.parameters["spark.sql.sources.schema"]
    assert '"valueContainsNull":false' not in view.parameters["spark.sql.sources.schema"]
    assert schema.columns[1].metadata == '{"k":1}'


def test_a_column_of_a_user_defined_type_is_shown_as_such_now_and_in_the_past(
    hive: HiveNode, stub: Any
) -> None:
    vector = (
        '{"type":"struct","fields":[{"name":"v","type":{"type":"udt","class":"x.VectorUDT",'
        '"sqlType":{"type":"array","elementType":"double","containsNull":false}},'
        '"nullable":true,"metadata":{}}]}'
    )
    parameters = {"spark.sql.sources.schema": vector, "spark.sql.sources.provider": "parquet"}
    columns = [FieldSchema("v", "array<double>", None)]
    schema, view = past(hive, stub, parameters=parameters, sd=storage(columns=columns))
    hidden = view.viewExpandedText.rsplit("`.`", 1)[1].rstrip("`")
    for shown in (stub.get_table("d1", "t1"), view, stub.get_table(schema, hidden)):
        assert shown.parameters["spark.sql.sources.schema"] == vector
        assert [(c.name, c.type) for c in shown.sd.cols] == [("v", "array<double>")]


def test_a_table_without_a_schema_of_spark_has_a_view_without_one(
    hive: HiveNode, stub: Any
) -> None:
    columns = [FieldSchema("A", "struct<B:decimal>", None)]
    _, view = past(hive, stub, sd=storage(columns=columns))
    assert "spark.sql.sources.schema" not in view.parameters
    assert [(c.name, c.type) for c in view.sd.cols] == [("a", "struct<B:decimal>")]


def test_a_table_that_only_claims_to_be_an_iceberg_table_is_shown_as_a_view(
    hive: HiveNode, stub: Any
) -> None:
    _, view = past(hive, stub, parameters={"table_type": "ICEBERG"})
    assert view.tableType == "VIRTUAL_VIEW"


def test_no_hidden_name_leads_to_the_files_of_a_transactional_table(
    hive: HiveNode, stub: Any
) -> None:
    hive.create_transactional("d1", "own", id="bigint")
    version = hive.node.metastore.catalogs.present().version
    kind, _ = refusal(lambda: stub.get_table(f"d1@{version}", f"own@files_{version}_00000000"))
    assert kind == "NoSuchObjectException"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("k", True),
        ("view.schemaMode", False),
        ("spark.sql.partitionProvider", False),
        ("spark.sql.statistics.numRows", False),
    ],
)
def test_the_view_keeps_user_parameters_and_omits_those_that_spark_interprets(
    hive: HiveNode, stub: Any, name: str, *, kept: bool
) -> None:
    _, view = past(hive, stub, parameters={name: "v"})
    assert (name in view.parameters) == kept
    assert "spark.sql.sources.provider" not in view.parameters


def test_a_real_table_takes_precedence_over_a_hidden_table_of_the_same_name(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases before 0.6.0 let a session give a table such a name."""
    monkeypatch.setattr(table_definition, "check_versioned_name", check_name)
    stub.create_table(table("t1"))
    version = hive.node.metastore.catalogs.present().version
    real = f"t1@files_{version + 1}_00000000"
    hive.create_transactional("d1", real, id="bigint")
    view = stub.get_table(f"d1@{version + 1}", real)
    assert view.viewExpandedText.startswith("/* transactional table")
