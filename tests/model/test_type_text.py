from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from pyspark.sql.types import StructType as SparkStruct

from strandline.catalog.commands.defaults import checked_default
from strandline.errors import InvalidName, InvalidType
from strandline.model.identifiers import QualifiedName
from strandline.model.type_json import type_value
from strandline.model.type_parser import parse_fields, parse_hive_type, parse_type
from strandline.model.type_text import ddl_text, fields_ddl, hive_string, quote_name, simple_string
from strandline.model.types import STRING, DataType, StructType
from tests.model.type_strategies import plain_names, scalars, structs, types

# Texts, each with the catalog string and the SQL that Spark 4.3 gives for its type.
SPARK = [
    ("byte", "tinyint", "TINYINT"),
    ("SHORT", "smallint", "SMALLINT"),
    ("Integer", "int", "INT"),
    ("long", "bigint", "BIGINT"),
    ("real", "float", "FLOAT"),
    ("dec", "decimal(10,0)", "DECIMAL(10,0)"),
    ("numeric(5)", "decimal(5,0)", "DECIMAL(5,0)"),
    ("decimal( 5 , 2 )", "decimal(5,2)", "DECIMAL(5,2)"),
    ("decimal(05,02)", "decimal(5,2)", "DECIMAL(5,2)"),
    ("string collate utf8_lcase", "string collate UTF8_LCASE", "STRING COLLATE UTF8_LCASE"),
    ("string collate system.builtin.unicode", "string collate UNICODE", "STRING COLLATE UNICODE"),
    ("string collate UTF8_BINARY", "string collate UTF8_BINARY", "STRING COLLATE UTF8_BINARY"),
    ("character(3)", "char(3)", "CHAR(3)"),
    ("varchar(0)", "varchar(0)", "VARCHAR(0)"),
    ("timestamp_ltz", "timestamp", "TIMESTAMP"),
    ("timestamp with local time zone", "timestamp", "TIMESTAMP"),
    ("timestamp without time zone", "timestamp_ntz", "TIMESTAMP_NTZ"),
    ("time", "time(6)", "TIME(6)"),
    ("time(3) without time zone", "time(3)", "TIME(3)"),
    ("interval", "interval", "INTERVAL"),
    ("interval year to month", "interval year to month", "INTERVAL YEAR TO MONTH"),
    ("interval month", "interval month", "INTERVAL MONTH"),
    ("interval hour to minute", "interval hour to minute", "INTERVAL HOUR TO MINUTE"),
    ("variant", "variant", "VARIANT"),
    ("timestamp(6)", "timestamp", "TIMESTAMP"),
    ("timestamp_ntz ( 6 )", "timestamp_ntz", "TIMESTAMP_NTZ"),
    ("timestamp_ltz(6)", "timestamp", "TIMESTAMP"),
    ("timestamp(6) without time zone", "timestamp_ntz", "TIMESTAMP_NTZ"),
    ("geometry(4326)", "geometry(4326)", "GEOMETRY(4326)"),
    ("geometry( 04326 )", "geometry(4326)", "GEOMETRY(4326)"),
    ("GEOMETRY(any)", "geometry(any)", "GEOMETRY(ANY)"),
    ("geography(4267)", "geography(4267)", "GEOGRAPHY(4267)"),
    ("array<geometry(0)>", "array<geometry(0)>", "ARRAY<GEOMETRY(0)>"),
    ("void", "void", "VOID"),
    ("struct<>", "struct<>", "STRUCT<>"),
    ("struct<a int>", "struct<a:int>", "STRUCT<a: INT>"),
    ("STRUCT<A:INT>", "struct<A:int>", "STRUCT<A: INT>"),
    ("struct<1a:int>", "struct<1a:int>", "STRUCT<`1a`: INT>"),
    ("struct<`a``b`:int>", "struct<a`b:int>", "STRUCT<`a``b`: INT>"),
    ("struct<``:int>", "struct<:int>", "STRUCT<``: INT>"),
    ("struct<select:int>", "struct<select:int>", "STRUCT<select: INT>"),
    ("struct<interval:interval>", "struct<interval:interval>", "STRUCT<interval: INTERVAL>"),
    ("struct<not:int>", "struct<not:int>", "STRUCT<not: INT>"),
    ("struct<a:int,A:int>", "struct<a:int,A:int>", "STRUCT<a: INT, A: INT>"),
    (
        "map<string,array<int>>",
        "map<string,array<int>>",
        "MAP<STRING, ARRAY<INT>>",
    ),
    (
        "struct< a : array<struct<x:int not null comment 'q'>>>",
        "struct<a:array<struct<x:int>>>",
        "STRUCT<a: ARRAY<STRUCT<x: INT NOT NULL COMMENT 'q'>>>",
    ),
    (
        r"struct<a: int not null comment 'x\'y', `b c`: string>",
        "struct<a:int,b c:string>",
        r"STRUCT<a: INT NOT NULL COMMENT 'x\'y', `b c`: STRING>",
    ),
    ("struct<a:int comment 'x' 'y'>", "struct<a:int>", "STRUCT<a: INT COMMENT 'xy'>"),
    ("struct<a:int comment 'x''y'>", "struct<a:int>", r"STRUCT<a: INT COMMENT 'x\'y'>"),
    ('struct<a:int comment "x""y">', "struct<a:int>", "STRUCT<a: INT COMMENT 'x\"y'>"),
    (r"struct<a:int comment r'x\n'>", "struct<a:int>", r"STRUCT<a: INT COMMENT 'x\\n'>"),
    (
        r"struct<a:int comment 'é\u00e9\t\0 \% \_ \101 \z \Z \b \q'>",
        "struct<a:int>",
        "STRUCT<a: INT COMMENT 'éé\t\0 \\\\% \\\\_ A z \x1a \b q'>",
    ),
    (r"struct<a:int comment '\uD83D\uDE00'>", "struct<a:int>", "STRUCT<a: INT COMMENT '😀'>"),
]

REFUSED = [
    ("", 0, "a data type"),
    ("  ", 2, "a data type"),
    ("intx", 0, "a data type"),
    ("int(3)", 3, "the end"),
    ("`int`", 0, "a data type"),
    ("bigint not null", 7, "the end"),
    ("bigint comment 'c'", 7, "the end"),
    ("double precision", 7, "the end"),
    ("decimal()", 8, "a precision"),
    ("decimal(5,-2)", 10, "a scale"),
    ("char", 4, "the length of char"),
    ("varchar(99999999999)", 8, "the length of varchar"),
    ("array<>", 6, "a data type"),
    ("array<int", 9, "'>'"),
    ("array<int not null>", 10, "'>'"),
    ("map<int>", 7, "','"),
    ("struct<a:int,>", 13, "a field name"),
    ("struct<a-b:int>", 8, "a data type"),
    ("struct<12:int>", 7, "a field name"),
    ("struct<a::int>", 9, "a data type"),
    ("struct<a:'x'>", 9, "a data type"),
    ("struct<a:int comment>", 20, "a text in quotes"),
    ("struct<a:int not>", 16, "NULL after NOT"),
    ("struct<a:int comment 'x' not null>", 25, "'>'"),
    (r"struct<a:int comment '\uD83D'>", 29, "whole characters"),
    ("interval day to day", 19, "a smaller unit than day"),
    ("timestamp without time", 22, "ZONE after TIME"),
    ("uniontype<int,string>", 0, "a data type"),
    ("timestamp(9)", 10, "6 as the precision of a timestamp"),
    ("timestamp_ntz()", 14, "6 as the precision of a timestamp"),
    ("geometry", 8, "the spatial reference of geometry"),
    ("geometry(-1)", 9, "ANY or a spatial reference number"),
    ("geometry('EPSG:4326')", 9, "ANY or a spatial reference number"),
    ("uuid", 0, "a data type"),
]


@pytest.mark.parametrize(("text", "catalog_string", "sql"), SPARK)
def test_a_type_is_parsed_and_printed_as_in_spark(text: str, catalog_string: str, sql: str) -> None:
    data_type = parse_type(text)
    assert simple_string(data_type) == catalog_string
    assert ddl_text(data_type) == sql
    assert parse_type(sql) == data_type


@pytest.mark.parametrize(("text", "position", "expected"), REFUSED)
def test_an_invalid_type_text_is_refused_with_the_position_and_what_was_expected(
    text: str, position: int, expected: str
) -> None:
    with pytest.raises(InvalidType) as caught:
        parse_type(text)
    assert f"at position {position}," in caught.value.message
    assert f"expected {expected}" in caught.value.message


def test_an_invalid_list_of_columns_is_not_called_a_type() -> None:
    with pytest.raises(InvalidType, match=r"^the list of columns 'id' does not parse: "):
        parse_fields("id")


@pytest.mark.parametrize(
    "text",
    [
        "decimal(39,0)",
        "decimal(5,6)",
        "time(12)",
        "char(9999999999)",
        "geography(0)",
        "geometry(2147483648)",
    ],
)
def test_parameters_out_of_range_are_refused_with_the_range(text: str) -> None:
    with pytest.raises(InvalidType, match="between"):
        parse_type(text)


@pytest.mark.slow
@given(types(with_flags=False, with_metadata=False))
def test_ddl_text_reads_back_the_same(data_type: DataType) -> None:
    assert parse_type(ddl_text(data_type)) == data_type


@given(structs(scalars, with_metadata=False))
def test_a_list_of_columns_reads_back_the_same(struct: StructType) -> None:
    if struct.fields:
        assert parse_fields(fields_ddl(struct.fields)) == struct.fields


@pytest.mark.parametrize("text", ["interval month to year", "interval year to second"])
def test_an_interval_goes_from_a_larger_to_a_smaller_unit(text: str) -> None:
    with pytest.raises(InvalidType, match="from a larger to a smaller unit"):
        parse_type(text)


@pytest.mark.slow
@given(structs(types(named=plain_names), named=plain_names))
def test_simple_string_equals_pysparks(struct: StructType) -> None:
    theirs = SparkStruct.fromJson(type_value(struct)).simpleString()
    # PySpark, unlike Spark, does not print the default collation where it was written.
    assert simple_string(struct).replace(" collate UTF8_BINARY", "") == theirs


def test_case_and_spaces_in_a_type_text_do_not_matter() -> None:
    assert parse_type("\n STRUCT <a :\tDecimal ( 3 , 1 ) Not  Null>") == parse_type(
        "struct<a:decimal(3,1) not null>"
    )


@pytest.mark.slow
def test_the_cost_of_reading_and_printing_a_struct_is_linear_in_its_fields() -> None:
    def cost(count: int) -> float:
        text = "struct<" + ",".join(f"column_{i}:decimal(38,{i % 38})" for i in range(count)) + ">"
        start = time.process_time()
        assert simple_string(parse_type(text)) == text
        return time.process_time() - start

    few, many = (min(cost(count) for _ in range(2)) for count in (500, 10_000))
    assert many < 100 * few  # 20 times the fields; a quadratic cost would grow 400 times


@pytest.mark.parametrize("text", ["array<" * 100_000, "struct<a:" * 5_000, "map<int," * 101])
def test_deep_nesting_is_refused_without_a_recursion_error(text: str) -> None:
    with pytest.raises(InvalidType, match="at most 100 levels"):
        parse_type(text)


def test_a_type_of_100_levels_is_parsed() -> None:
    text = "array<" * 100 + "int" + ">" * 100
    assert simple_string(parse_type(text)) == text


def test_fields_side_by_side_do_not_count_towards_the_depth() -> None:
    text = "struct<" + ",".join(f"a{i}:array<int>" for i in range(200)) + ">"
    assert simple_string(parse_type(text)) == text


def test_a_text_beyond_the_size_limit_is_refused() -> None:
    with pytest.raises(InvalidType, match="too long"):
        parse_type("int" + " " * (16 * 2**20))


@pytest.mark.parametrize(
    ("text", "hive"),
    [
        ("bigint", "bigint"),
        ("decimal(5,2)", "decimal(5,2)"),
        ("char(255)", "char(255)"),
        ("char(256)", None),
        ("char(0)", None),
        ("varchar(65535)", "varchar(65535)"),
        ("varchar(65536)", None),
        ("string collate UTF8_LCASE", None),
        ("timestamp", "timestamp"),
        ("timestamp_ntz", None),
        ("time(3)", None),
        ("interval", None),
        ("interval day", None),
        ("interval year to month", None),
        ("variant", None),
        ("geometry(4326)", None),
        ("array<geography(any)>", None),
        ("void", "void"),
        ("struct<>", None),
        ("STRUCT<A: INT NOT NULL COMMENT 'x', b: ARRAY<STRING>>", "struct<a:int,b:array<string>>"),
        ("struct<`b c`:int>", "struct<b c:int>"),
        ("struct<`b:c`:int>", None),
        ("struct<` b`:int>", None),
        ("array<variant>", None),
        ("map<int,time>", None),
        ("map<int,struct<a:date>>", "map<int,struct<a:date>>"),
    ],
)
def test_a_type_has_a_hive_string_only_if_hive_can_express_it(text: str, hive: str | None) -> None:
    assert hive_string(parse_type(text)) == hive
    if hive is not None:
        assert hive_string(parse_hive_type(hive)) == hive


def test_a_field_name_in_a_hive_type_ends_at_the_colon() -> None:
    assert parse_hive_type("struct<b c:int,$x.y:string>") == parse_type(
        "struct<`b c`:int,`$x.y`:string>"
    )


@given(types())
def test_a_hive_string_reads_back_unchanged(data_type: DataType) -> None:
    hive = hive_string(data_type)
    if hive is not None:
        assert hive_string(parse_hive_type(hive)) == hive


@pytest.mark.parametrize(
    ("name", "quoted"), [("a_1", "a_1"), ("1a", "`1a`"), ("a b", "`a b`"), ("`", "````")]
)
def test_names_are_quoted_where_needed(name: str, quoted: str) -> None:
    assert quote_name(name) == quoted


@pytest.mark.parametrize(
    "parse",
    [
        lambda text: parse_fields(f"a INT COMMENT '{text}'"),
        lambda text: parse_fields(f"`{text}` INT"),
        lambda text: QualifiedName.parse(f"`{text[:200]}`.`{text}"),
        lambda text: checked_default(f"'{text}'", STRING, column="a", nullable=True),
    ],
    ids=["comment", "field", "name", "default"],
)
def test_a_quoted_text_takes_a_few_bytes_of_memory_for_each_character(
    parse: Callable[[str], object],
) -> None:
    text = "x" * 100_000
    tracemalloc.start()
    try:
        with suppress(InvalidName):
            parse(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(text)
