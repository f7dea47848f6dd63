"""Types of columns that Hive's clients declare."""

from __future__ import annotations

from typing import Any

import pytest
from hive_metastore.ttypes import FieldSchema

from strandline.model.type_text import hive_string, simple_string
from tests.metastore.hive.hive_node import HiveNode, outcome, refusal, storage, table

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


def test_a_field_of_a_struct_may_have_a_quoted_name(hive: HiveNode, stub: Any) -> None:
    text = "struct<`a-b`:int,`select`:array<struct<`x:y`:date>>>"
    assert declared(stub, text) == text
    (column,) = hive.node.session(user="ann").table("d1.t").descriptor.columns
    assert simple_string(column.type) == "struct<a-b:int,select:array<struct<x:y:date>>>"
    assert declared_again(stub) == text


def declared_again(stub: Any) -> str:
    """The type of the only column after an alter of something else."""
    changed = stub.get_table("d1", "t")
    changed.parameters["reviewed"] = "yes"
    stub.alter_table("d1", "t", changed)
    shown: str = stub.get_fields("d1", "t")[0].type
    return shown


@pytest.mark.parametrize("text", ["struct<`a:int>", "struct<``:int>", "struct<`a`b:int>"])
def test_an_invalid_quoted_name_is_refused(stub: Any, text: str) -> None:
    assert refusal(lambda: declared(stub, text))[0] in ("InvalidObjectException", "MetaException")


TEXT = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"


@pytest.mark.parametrize(
    ("provider", "serde", "before", "after", "allowed"),
    [
        ("hudi", "x.ParquetHiveSerDe", "bigint", "string", True),
        ("hudi", "x.ParquetHiveSerDe", "struct<a:int>", "int", True),
        (None, TEXT, "bigint", "string", True),
        (None, TEXT, "decimal(5,2)", "string", True),
        (None, TEXT, "binary", "string", False),
        (None, TEXT, "array<int>", "string", False),
        (None, TEXT, "string", "bigint", False),
        (None, "x.ParquetHiveSerDe", "bigint", "string", False),
        (None, "x.ParquetHiveSerDe", "int", "bigint", True),
    ],
)
def test_a_type_changes_if_the_format_of_the_table_reads_the_old_values(
    stub: Any, provider: str | None, serde: str, before: str, after: str, allowed: bool
) -> None:
    sd = storage(columns=[FieldSchema("k", before, None)])
    sd.serdeInfo.serializationLib = serde
    parameters = {} if provider is None else {"spark.sql.sources.provider": provider}
    stub.create_table(table("t", sd=sd, parameters=parameters))
    changed = stub.get_table("d1", "t")
    changed.sd.cols[0].type = after
    answer = outcome(lambda: stub.alter_table("d1", "t", changed))
    assert (answer is None) == allowed, answer
    assert stub.get_fields("d1", "t")[0].type == (after if allowed else before)


def test_a_partition_key_may_get_another_type(stub: Any) -> None:
    stub.create_table(table("t", partitionKeys=[FieldSchema("p", "bigint", None)]))
    changed = stub.get_table("d1", "t")
    changed.partitionKeys[0].type = "string"
    stub.alter_table("d1", "t", changed)
    assert stub.get_table("d1", "t").partitionKeys[0].type == "string"


def test_names_of_columns_may_be_as_long_as_in_hive(stub: Any) -> None:
    longest = "c" * 767
    stub.create_table(table("t", sd=storage(columns=[FieldSchema(longest, "int", None)])))
    assert stub.get_fields("d1", "t")[0].name == longest
    for number, fields in enumerate(
        (
            {"sd": storage(columns=[FieldSchema(f"{longest}c", "int", None)])},
            {"partitionKeys": [FieldSchema("p" * 256, "int", None)]},
        )
    ):
        wrong = table(f"t{number}", **fields)
        kind, text = refusal(lambda wrong=wrong: stub.create_table(wrong))
        assert kind == "InvalidObjectException"
        assert "characters, found" in text


def test_the_mark_of_subdirectories_is_kept(stub: Any) -> None:
    sd = storage()
    sd.storedAsSubDirectories = True
    stub.create_table(table("t", sd=sd))
    shown = stub.get_table("d1", "t").sd
    assert (shown.storedAsSubDirectories, shown.parameters) == (True, {})
    stub.create_table(table("plain"))
    assert stub.get_table("d1", "plain").sd.storedAsSubDirectories is False
