"""Plain tables and views of a session, as Hive clients get them and send them back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hive_metastore.ttypes import FieldSchema, InvalidOperationException

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    CreateView,
    TableDefinition,
    ViewDefinition,
    column_definition,
)
from strandline.model.descriptors import StorageFormat
from strandline.model.type_parser import parse_type
from strandline.model.types import BIGINT, TIMESTAMP_NTZ
from tests.metastore.hive.hive_node import HiveNode

KEY = ColumnDefinition("Key", BIGINT)
AT = ColumnDefinition("At", TIMESTAMP_NTZ)  # Hive cannot spell its type
DAY = ColumnDefinition("Day", BIGINT, comment="of the week")
TABLE = TableDefinition(name="t", columns=(KEY, DAY), partition_columns=("Day",))
VIEW = ViewDefinition(name="t", columns=(KEY,), original_text="SELECT 1", expanded_text="SELECT 1")


@pytest.mark.parametrize(
    "command",
    [
        *(
            CreateTable(schema="d1", definition=replace(TABLE, provider=provider, columns=columns))
            for provider in ("parquet", "ORC", "csv")
            for columns in ((KEY, DAY), (KEY, AT, DAY))
        ),
        CreateView(schema="d1", definition=VIEW),
    ],
)
def test_a_client_that_sends_back_what_it_was_shown_makes_no_version(
    hive: HiveNode, stub: Any, command: CreateTable | CreateView
) -> None:
    made = hive.node.session(user="ann").execute(command)
    shown = stub.get_table("d1", "t")
    assert "spark.sql.sources.schema" in shown.parameters
    if isinstance(command, CreateTable):
        # Spark's MSCK REPAIR TABLE writes it, whatever it was shown.
        shown.sd.serdeInfo.parameters["serialization.format"] = "1"
    stub.alter_table("d1", "t", shown)
    assert hive.node.metastore.catalogs.present().version == made.version
    shown.parameters["k"] = "v"
    stub.alter_table("d1", "t", shown)
    altered = hive.node.metastore.catalogs.present().relation("d1", "t")
    assert altered is not None
    assert altered.properties == (("k", "v"),)


HIDDEN = (
    ColumnDefinition("Key", BIGINT, nullable=False, metadata='{"a":1}'),
    ColumnDefinition("Nested", parse_type("struct<A:int>"), comment="two"),
)
"""Columns of which Hive's clients are not shown all that a session defined."""


@pytest.mark.parametrize(
    "definition",
    [
        TableDefinition(name="t", columns=(*HIDDEN, *more), partition_columns=keys, **parts)
        for parts in ({"provider": "hive"}, {"storage": StorageFormat(input_format="in")})
        for keys, more in (((), ()), ((), (AT,)), (("At",), (AT,)), (("Day",), (AT, DAY)))
    ],
)
def test_an_alter_keeps_what_its_client_was_not_shown_of_the_columns(
    hive: HiveNode, stub: Any, definition: TableDefinition
) -> None:
    session = hive.node.session(user="ann")
    made = session.execute(CreateTable(schema="d1", definition=definition))
    before = session.table("d1.t").descriptor
    shown = stub.get_table("d1", "t")
    stub.alter_table("d1", "t", shown)
    assert hive.node.metastore.catalogs.present().version == made.version
    shown.parameters["k"] = "v"
    stub.alter_table("d1", "t", shown)
    altered = session.table("d1.t").descriptor
    assert altered == replace(before, properties=(("k", "v"),))


def test_a_changed_column_keeps_what_its_client_did_not_change(hive: HiveNode, stub: Any) -> None:
    definition = TableDefinition(name="t", columns=(*HIDDEN, DAY), provider="hive")
    session = hive.node.session(user="ann")
    session.execute(CreateTable(schema="d1", definition=definition))
    key, nested, _ = session.table("d1.t").descriptor.columns
    altered = stub.get_table("d1", "t")
    altered.sd.cols[0].comment = "unique"
    altered.sd.cols[1].type = "struct<a:int,b:int>"
    del altered.sd.cols[2]
    altered.sd.cols.append(FieldSchema("Added", "int", None))
    stub.alter_table("d1", "t", altered)
    columns = session.table("d1.t").descriptor.columns
    assert columns[0] == replace(key, comment="unique")
    assert (columns[1].id, columns[1].name, columns[1].comment) == (nested.id, "Nested", "two")
    assert [column.name for column in columns[2:]] == ["added"]


@pytest.mark.parametrize(
    "parts",
    [
        {"provider": "json"},
        {"provider": "parquet", "columns": (*HIDDEN, AT)},
        {"provider": "hive", "columns": (*HIDDEN, AT, DAY), "partition_columns": ("Day",)},
        {"transactional": True, "columns": (*HIDDEN, AT)},
    ],
)
def test_a_column_beside_the_placeholder_does_not_replace_the_columns_that_it_stands_for(
    hive: HiveNode, stub: Any, parts: dict[str, Any]
) -> None:
    definition = TableDefinition(**{"name": "t", "columns": HIDDEN, **parts})
    session = hive.node.session(user="ann")
    session.execute(CreateTable(schema="d1", definition=definition))
    before = session.table("d1.t").descriptor
    altered = stub.get_table("d1", "t")
    assert altered.sd.cols[0].name == "col"
    altered.sd.cols.append(FieldSchema("added", "int", None))
    with pytest.raises(InvalidOperationException, match="not shown the columns of t"):
        stub.alter_table("d1", "t", altered)
    assert session.table("d1.t").descriptor == before


def test_a_column_that_looks_like_the_placeholder_is_a_column(hive: HiveNode, stub: Any) -> None:
    column = ColumnDefinition("col", parse_type("array<string>"), comment="from deserializer")
    session = hive.node.session(user="ann")
    definition = TableDefinition(name="t", columns=(column,), provider="hive")
    session.execute(CreateTable(schema="d1", definition=definition))
    altered = stub.get_table("d1", "t")
    altered.sd.cols.append(FieldSchema("added", "int", None))
    stub.alter_table("d1", "t", altered)
    names = [column.name for column in session.table("d1.t").descriptor.columns]
    assert names == ["col", "added"]


@pytest.mark.parametrize("value", ["NaN", "1e999", r'"\ud800"'])
@pytest.mark.parametrize("transactional", [False, True])
def test_metadata_that_an_earlier_release_accepted_does_not_hide_its_table(
    hive: HiveNode, monkeypatch: pytest.MonkeyPatch, transactional: bool, value: str
) -> None:
    monkeypatch.setattr(column_definition, "check_metadata", lambda text: None)
    column = replace(KEY, default="1", metadata=f'{{"bad":{value},"good":"é"}}')
    definition = TableDefinition(
        name="t", columns=(column,), provider="parquet", transactional=transactional
    )
    before = hive.node.notifications.head()
    hive.node.session(user="ann").execute(CreateTable(schema="d1", definition=definition))
    with hive.client() as client:
        table = client.call("get_table", dbname="d1", tbl_name="t")
        schema = json.loads(table["parameters"]["spark.sql.sources.schema"])
        answer = client.call("get_next_notification", rqst={"lastEvent": before})
    metadata = schema["fields"][0]["metadata"]
    assert (metadata.get("good"), "bad" in metadata) == ("é", False)
    assert [event["tableName"] for event in answer["events"]] == ["t"]
