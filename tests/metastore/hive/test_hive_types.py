"""Types of columns that Hive's clients declare."""

from __future__ import annotations

from typing import Any

import pytest
from hive_metastore.ttypes import FieldSchema

from strandline.model.type_text import hive_string
from tests.metastore.hive.hive_node import HiveNode, refusal, storage, table

PRIMITIVES = (
    *("void", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
    *("string", "varchar(5)", "char(5)", "date", "timestamp", "binary", "decimal", "decimal(5,2)"),
    *("timestamp with local time zone", "interval_year_month", "interval_day_time"),
)
NESTED = ("array<{}>", "map<string,{}>", "struct<a:{}>")


def declared(stub: Any, text: str) -> str:
    """The type that is shown for a column that was declared with ``text``."""
    stub.create_table(table("t", sd=storage(columns=[FieldSchema("k", text, None)])))
    (column,) = stub.get_fields("d1", "t")
    shown: str = column.type
    return shown


@pytest.mark.parametrize("text", PRIMITIVES)
def test_a_column_keeps_the_type_that_was_declared(stub: Any, text: str) -> None:
    assert declared(stub, text) == text


def test_a_union_is_shown_as_declared_and_read_as_a_struct(hive: HiveNode, stub: Any) -> None:
    text = "array<uniontype<int,uniontype<string,date>>>"
    assert declared(stub, text) == text
    (column,) = hive.node.session(user="ann").table("d1.t").descriptor.columns
    inner = "struct<tag:tinyint,field0:string,field1:date>"
    assert hive_string(column.type) == f"array<struct<tag:tinyint,field0:int,field1:{inner}>>"
    changed = stub.get_table("d1", "t")
    changed.parameters["reviewed"] = "yes"
    stub.alter_table("d1", "t", changed)
    (column,) = stub.get_fields("d1", "t")
    assert column.type == text


@pytest.mark.parametrize("text", ["uniontype", "uniontype<>", "uniontype<int", "uniontype<int,>"])
def test_an_invalid_union_type_is_refused(stub: Any, text: str) -> None:
    kind, message = refusal(lambda: declared(stub, text))
    assert kind == "InvalidObjectException"
    assert message.startswith("Invalid column type: ")


def test_every_primitive_type_can_be_nested_in_arrays_maps_and_structs(
    hive: HiveNode, stub: Any
) -> None:
    texts = [around.format(text) for around in NESTED for text in PRIMITIVES]
    columns = [FieldSchema(f"c{number}", text, None) for number, text in enumerate(texts)]
    stub.create_table(table("t", sd=storage(columns=columns)))
    assert [column.type for column in stub.get_fields("d1", "t")] == texts
    kept = hive.node.session(user="ann").table("d1.t").descriptor.columns
    assert len(kept) == len(texts)


@pytest.mark.parametrize(
    "text", ["", "INT", "timestamp with time zone", "interval_year", "nothing"]
)
def test_an_invalid_type_is_refused_with_hives_message(stub: Any, text: str) -> None:
    kind, message = refusal(lambda: declared(stub, text))
    assert kind == "InvalidObjectException"
    assert message.startswith("Invalid column type: ")
