"""Plain tables and views of a session, as Hive clients get them and send them back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    CreateView,
    TableDefinition,
    ViewDefinition,
    column_definition,
)
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
