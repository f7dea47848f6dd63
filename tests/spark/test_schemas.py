"""Columns of a table as Spark's schemas. No Spark session is needed."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as spark_types

from strandline.catalog.commands import ColumnDefinition
from strandline.catalog.commands.column_definition import new_columns
from strandline.errors import InvalidType, StrandlineError, UnsupportedOperation
from strandline.model.descriptors import ColumnDescriptor, SchemaVersion, TableDescriptor, TableKind
from strandline.model.type_parser import parse_fields, parse_type
from strandline.model.types import ArrayType, DataType, MapType, StructField, StructType
from strandline.spark.schemas import (
    check_levels,
    column_definitions,
    column_type,
    declared_schema,
    field_ids,
    file_schema,
    metadata_for_files,
    metadata_for_users,
    scan_columns,
)
from strandline.spark.writing import _check_ids, _Written

ID = "parquet.field.id"


def columns(ddl: str) -> tuple[ColumnDescriptor, ...]:
    described, _ = new_columns(column_definitions(ddl), 1)
    return described


def test_every_level_of_the_file_schema_carries_its_id() -> None:
    schema = file_schema(
        columns("a INT, s STRUCT<x: INT, l: ARRAY<STRUCT<y: INT>>>, m MAP<INT, INT>")
    )
    assert [field.metadata[ID] for field in schema] == [1, 2, 6]
    inner = schema["s"].dataType
    assert isinstance(inner, spark_types.StructType)
    assert [field.metadata[ID] for field in inner] == [3, 4]
    assert inner["l"].dataType.elementType["y"].metadata[ID] == 5  # type: ignore[attr-defined]  # pyspark types a field as DataType


def test_field_ids_include_the_ids_of_all_levels() -> None:
    assert field_ids(columns("a INT, s STRUCT<x: INT, l: ARRAY<STRUCT<y: INT>>>")) == {
        1,
        2,
        3,
        4,
        5,
    }


def readable(data_type: pa.DataType) -> bool:
    """Whether the driver can read the footer of a file with a column of that type."""
    file = io.BytesIO()
    pq.write_table(pa.schema([("deep", data_type)]).empty_table(), file, store_schema=False)
    file.seek(0)
    try:
        pq.read_metadata(file)
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("wrap", "wrap_in_arrow", "most"),
    [
        (lambda t: StructType((StructField("f", t),)), lambda t: pa.struct([("f", t)]), 98),
        (ArrayType, pa.list_, 49),
        (partial(MapType, parse_type("INT")), partial(pa.map_, pa.int32()), 49),
    ],
)
def test_a_column_that_nests_deeper_than_the_driver_reads_a_file_is_refused(
    wrap: Callable[[DataType], DataType],
    wrap_in_arrow: Callable[[pa.DataType], pa.DataType],
    most: int,
) -> None:
    data_type, in_arrow = parse_type("BIGINT"), pa.int64()
    for _ in range(most):
        data_type, in_arrow = wrap(data_type), wrap_in_arrow(in_arrow)
    check_levels([ColumnDescriptor(1, "deep", data_type)])
    assert readable(in_arrow)
    assert not readable(wrap_in_arrow(in_arrow))
    with pytest.raises(UnsupportedOperation, match=r"column 'deep' nests (99|100) levels deep"):
        check_levels([ColumnDescriptor(1, "deep", wrap(data_type))])


def test_a_variant_has_a_level_of_its_own_in_a_file() -> None:
    data_type, in_arrow = parse_type("VARIANT"), pa.struct([("metadata", pa.binary())])
    for _ in range(97):
        data_type = StructType((StructField("f", data_type),))
        in_arrow = pa.struct([("f", in_arrow)])
    check_levels([ColumnDescriptor(1, "deep", data_type)])
    assert readable(in_arrow)
    assert not readable(pa.struct([("f", in_arrow)]))
    with pytest.raises(UnsupportedOperation, match="nests 99 levels deep"):
        check_levels([ColumnDescriptor(1, "deep", StructType((StructField("f", data_type),)))])


def test_in_the_file_schema_every_field_is_nullable_and_char_types_are_strings() -> None:
    schema = file_schema(
        columns("a CHAR(3) NOT NULL, s STRUCT<x: VARCHAR(2) NOT NULL>, l ARRAY<CHAR(1)>")
    )
    assert schema.simpleString() == "struct<a:string,s:struct<x:string>,l:array<string>>"
    assert all(field.nullable for field in schema)
    assert schema["s"].dataType["x"].nullable  # type: ignore[index]  # pyspark types a field as DataType
    assert "__CHAR_VARCHAR_TYPE_STRING" not in schema.json()


def test_the_declared_schema_keeps_not_null() -> None:
    schema = declared_schema(columns("a INT NOT NULL, b INT"))
    assert [field.nullable for field in schema] == [False, True]


def test_metadata_for_users_has_the_comment_and_metadata_for_files_has_the_id() -> None:
    (field,) = file_schema(columns("a INT COMMENT 'price'"))
    assert metadata_for_users(field) == {"comment": "price"}
    assert metadata_for_files(field)[ID] == 1


def described(*versions: str) -> TableDescriptor:
    """Return a table with these schema versions; ``x#3`` is the nested field x with id 3."""
    listed: list[SchemaVersion] = []
    for ddl in versions:
        listed.append(SchemaVersion(len(listed) + 1, tuple(map(numbered, columns(ddl)))))
    return TableDescriptor(
        id=1,
        schema_id=1,
        name="t",
        owner="",
        kind=TableKind.MANAGED,
        transactional=True,
        provider="strandline",
        schema_versions=tuple(listed),
        next_column_id=100,
        zone_id=1,
    )


def numbered(column: ColumnDescriptor) -> ColumnDescriptor:
    def inside(data_type: DataType) -> DataType:
        match data_type:
            case ArrayType(element):
                return ArrayType(inside(element))
            case MapType(key, value):
                return MapType(inside(key), inside(value))
            case StructType(fields):
                return StructType(tuple(map(field, fields)))
        return data_type

    def field(struct_field: StructField) -> StructField:
        name, _, number = struct_field.name.partition("#")
        return replace(
            struct_field, name=name, field_id=int(number), type=inside(struct_field.type)
        )

    return replace(column, type=inside(column.type))


def test_columns_are_read_under_names_that_no_file_contains_if_a_name_was_reused() -> None:
    table = described("price INT, box STRUCT<`x#5`: INT>", "BOX INT, price STRUCT<`x#5`: INT>")
    price, box = scan_columns(table)
    assert (price.read.name, price.shown.name) == ("_strandline_1", "BOX")
    assert (box.read.name, box.shown.name) == ("_strandline_2", "price")
    assert box.read.dataType.simpleString() == "struct<x:int>"
    assert not box.renamed_inside


def test_columns_keep_their_names_if_no_name_meant_two_of_them() -> None:
    columns = scan_columns(described("price INT, box INT", "PRICE BIGINT, note INT"))
    assert [column.read.name for column in columns] == ["PRICE", "note"]


def test_columns_are_read_under_other_names_if_a_decimal_got_more_digits() -> None:
    table = described(
        "d DECIMAL(9, 2), s STRUCT<`x#5`: DECIMAL(9, 2)>",
        "d DECIMAL(20, 2), s STRUCT<`x#5`: DECIMAL(20, 2)>",
    )
    d, s = scan_columns(table)
    assert (d.read.name, s.read.name) == ("_strandline_1", "s")
    assert s.read.dataType.simpleString() == "struct<_strandline_5:decimal(20,2)>"


def test_nested_fields_are_read_under_other_names_if_a_name_was_reused() -> None:
    table = described(
        "a STRUCT<`x#5`: INT, `s#6`: STRUCT<`x#7`: INT>>, l ARRAY<STRUCT<`x#8`: INT>>",
        "a STRUCT<`y#5`: INT, `s#6`: STRUCT<`x#7`: INT>, `X#9`: STRING>,"
        " l ARRAY<STRUCT<`x#8`: BIGINT>>",
    )
    first, second = scan_columns(table)
    assert first.read.dataType.simpleString() == (
        "struct<_strandline_5:int,_strandline_6:struct<x:int>,_strandline_9:string>"
    )
    assert first.shown.dataType.simpleString() == "struct<y:int,s:struct<x:int>,X:string>"
    assert first.renamed_inside
    assert not second.renamed_inside


@pytest.mark.parametrize(
    "around", ["ARRAY<{}>", "MAP<{}, INT>", "MAP<INT, {}>", "STRUCT<`s#7`: {}>"]
)
def test_nested_fields_at_every_level_are_read_under_other_names_if_a_name_was_reused(
    around: str,
) -> None:
    before, after = "STRUCT<`x#5`: INT>", "STRUCT<`y#5`: INT, `x#6`: INT>"
    (column,) = scan_columns(described(*(f"c {around.format(of)}" for of in (before, after))))
    assert "struct<_strandline_5:int,_strandline_6:int>" in column.read.dataType.simpleString()


def test_columns_keep_their_names_if_only_the_name_of_a_nested_field_was_reused() -> None:
    table = described("a STRUCT<`x#5`: INT>", "a STRUCT<`y#5`: INT, `x#6`: INT>")
    (column,) = scan_columns(table)
    assert (column.read.name, column.renamed_inside) == ("a", True)


@pytest.mark.parametrize("ddl", ["a INT", "a INT, b INT", "a INT, s STRUCT<x: INT>"])
def test_a_written_file_without_all_ids_of_the_table_is_refused(ddl: str) -> None:
    ids = field_ids(columns(ddl))
    fields = [pa.field("f", pa.int32(), metadata={"PARQUET:field_id": str(i)}) for i in ids]
    written = []
    for kept in (fields, fields[1:]):
        buffer = io.BytesIO()
        schema = pa.schema([field.with_name(f"f{n}") for n, field in enumerate(kept)])
        pq.write_table(schema.empty_table(), buffer)
        written.append(_Written("part-0", 1, pq.read_metadata(buffer)))
    version = SchemaVersion(1, columns(ddl))
    descriptor = replace(described("a INT"), schema_versions=(version,))
    _check_ids(written[:1], descriptor)
    with pytest.raises(StrandlineError, match="nothing was appended"):
        _check_ids(written, descriptor)


def test_field_ids_in_a_given_schema_are_ignored() -> None:
    nested = spark_types.StructType(
        [spark_types.StructField("x", spark_types.IntegerType(), True, {ID: 1})]
    )
    schema = spark_types.StructType(
        [spark_types.StructField("s", nested, True, {ID: 77, "comment": "c", "mine": 1})]
    )
    described, next_id = new_columns(column_definitions(schema), 1)
    assert field_ids(described) == {1, 2}
    assert next_id == 3
    assert (described[0].comment, described[0].metadata) == ("c", '{"mine":1}')
    assert column_type(spark_types.ArrayType(nested)) == parse_type("ARRAY<STRUCT<x: INT>>")


def test_a_spark_schema_and_its_sql_give_the_same_columns() -> None:
    ddl = "id BIGINT NOT NULL, price DECIMAL(9,2) COMMENT 'net', tags MAP<STRING, ARRAY<INT>>"
    schema = (
        spark_types.StructType()
        .add("id", spark_types.LongType(), False)
        .add("price", spark_types.DecimalType(9, 2), True, {"comment": "net"})
        .add(
            "tags",
            spark_types.MapType(
                spark_types.StringType(), spark_types.ArrayType(spark_types.IntegerType())
            ),
        )
    )
    assert column_definitions(schema) == column_definitions(ddl)
    assert column_definitions(ddl) == tuple(
        ColumnDefinition(f.name, f.type, f.nullable, f.comment) for f in parse_fields(ddl)
    )


def test_an_invalid_list_of_columns_is_refused() -> None:
    with pytest.raises(InvalidType):
        column_definitions("a INT,, b")
