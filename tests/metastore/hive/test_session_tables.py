"""Plain tables and views of a session, as Hive clients get them and send them back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    CreateView,
    TableDefinition,
    ViewDefinition,
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
    stub.alter_table("d1", "t", shown)
    assert hive.node.metastore.catalogs.present().version == made.version
    shown.parameters["k"] = "v"
    stub.alter_table("d1", "t", shown)
    altered = hive.node.metastore.catalogs.present().relation("d1", "t")
    assert altered is not None
    assert altered.properties == (("k", "v"),)
