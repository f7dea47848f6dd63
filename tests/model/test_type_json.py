from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from pyspark.sql.types import StructType as SparkStruct

from strandline.errors import InvalidType
from strandline.model.type_changes import assign_ids
from strandline.model.type_json import parse_schema_json, parse_type_json, schema_json, type_value
from strandline.model.type_parser import parse_fields, parse_type
from strandline.model.types import (
    INT,
    CharType,
    DataType,
    StringType,
    StructField,
    StructType,
    all_nullable,
    depth_of,
)
from tests.model.type_strategies import plain_names, structs, types


def struct(text: str) -> StructType:
    return StructType(parse_fields(text))


# DDL texts, each with the DataType.json that Spark 4.3 gives for it.
SPARK_JSON = [
    ("byte", '"byte"'),
    ("smallint", '"short"'),
    ("int", '"integer"'),
    ("bigint", '"long"'),
    ("real", '"float"'),
    ("dec", '"decimal(10,0)"'),
    ("string collate UNICODE_CI", '"string collate UNICODE_CI"'),
    ("char(3)", '"char(3)"'),
    ("timestamp_ntz", '"timestamp_ntz"'),
    ("time", '"time(6)"'),
    ("interval", '"interval"'),
    ("interval day to second", '"interval day to second"'),
    ("variant", '"variant"'),
    ("geometry(4326)", '"geometry(OGC:CRS84)"'),
    ("geometry(0)", '"geometry(SRID:0)"'),
    ("geometry(any)", '"geometry(SRID:ANY)"'),
    ("geometry(3857)", '"geometry(EPSG:3857)"'),
    ("geometry(2181)", '"geometry(ESRI:2181)"'),
    ("geometry(2188)", '"geometry(EPSG:2188)"'),
    ("geometry(102100)", '"geometry(ESRI:102100)"'),
    ("geography(4326)", '"geography(OGC:CRS84, SPHERICAL)"'),
    ("geography(4267)", '"geography(OGC:CRS27, SPHERICAL)"'),
    ("geography(any)", '"geography(SRID:ANY, SPHERICAL)"'),
    ("void", '"void"'),
    ("array<int>", '{"type":"array","elementType":"integer","containsNull":true}'),
    (
        "map<string,array<int>>",
        '{"type":"map","keyType":"string","valueType":{"type":"array","elementType":"integer",'
        '"containsNull":true},"valueContainsNull":true}',
    ),
    ("struct<>", '{"type":"struct","fields":[]}'),
    (
        r"struct<a: int not null comment 'x\'y', `b c`: string>",
        '{"type":"struct","fields":[{"name":"a","type":"integer","nullable":false,"metadata":'
        '{"comment":"x\'y"}},{"name":"b c","type":"string","nullable":true,"metadata":{}}]}',
    ),
    (
        "struct<a:char(3)>",
        '{"type":"struct","fields":[{"name":"a","type":"char(3)","nullable":true,"metadata":{}}]}',
    ),
    (
        "struct<a:string collate UTF8_BINARY>",
        '{"type":"struct","fields":[{"name":"a","type":"string collate UTF8_BINARY",'
        '"nullable":true,"metadata":{}}]}',
    ),
    (
        "struct<a:struct<b:string collate UNICODE>>",
        '{"type":"struct","fields":[{"name":"a","type":{"type":"struct","fields":[{"name":"b",'
        '"type":"string","nullable":true,"metadata":{"__COLLATIONS":{"b":"icu.UNICODE"}}}]},'
        '"nullable":true,"metadata":{}}]}',
    ),
    (
        "struct<a:int comment 'é \" / <'>",
        '{"type":"struct","fields":[{"name":"a","type":"integer","nullable":true,"metadata":'
        '{"comment":"é \\" / <"}}]}',
    ),
]

# What Spark 4.3 stores in spark.sql.sources.schema for a table with char and varchar columns.
STORED_DDL = "a char(3) comment 'q', b array<varchar(4)>, c struct<D:char(2),e:int>, f int"
STORED = (
    '{"type":"struct","fields":[{"name":"a","type":"string","nullable":true,"metadata":'
    '{"comment":"q","__CHAR_VARCHAR_TYPE_STRING":"char(3)"}},{"name":"b","type":{"type":"array",'
    '"elementType":"string","containsNull":true},"nullable":true,"metadata":'
    '{"__CHAR_VARCHAR_TYPE_STRING":"array<varchar(4)>"}},{"name":"c","type":{"type":"struct",'
    '"fields":[{"name":"D","type":"string","nullable":true,"metadata":{}},{"name":"e","type":'
    '"integer","nullable":true,"metadata":{}}]},"nullable":true,"metadata":'
    '{"__CHAR_VARCHAR_TYPE_STRING":"struct<D:char(2),e:int>"}},{"name":"f","type":"integer",'
    '"nullable":true,"metadata":{}}]}'
)


def json_text(data_type: DataType, *, field_ids: bool = False) -> str:
    """Return the JSON text of a type as Spark writes it."""
    value = type_value(data_type, field_ids=field_ids)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def field_json(type_text: str = '"integer"', metadata: str = "{}") -> str:
    return (
        '{"type":"struct","fields":[{"name":"a","type":'
        f'{type_text},"nullable":true,"metadata":{metadata}}}]}}'
    )


@pytest.mark.parametrize(("ddl", "text"), SPARK_JSON)
def test_type_json_equals_sparks_character_by_character(ddl: str, text: str) -> None:
    assert json_text(parse_type(ddl)) == text
    assert parse_type_json(text) == parse_type(ddl)


def test_a_stored_schema_equals_sparks_character_by_character() -> None:
    assert schema_json(struct(STORED_DDL)) == STORED
    assert parse_schema_json(STORED) == struct(STORED_DDL)


@given(types())
def test_json_reads_back_the_same(data_type: DataType) -> None:
    text = json_text(data_type)
    assert parse_type_json(text) == data_type
    assert json_text(parse_type_json(text)) == text


@pytest.mark.slow
@given(structs(types()))
def test_a_stored_schema_writes_back_the_same_text(schema: StructType) -> None:
    text = schema_json(schema)
    assert schema_json(parse_schema_json(text)) == text


@pytest.mark.slow
@given(structs(types(named=plain_names), named=plain_names))
def test_a_stored_schema_with_plain_names_reads_back_the_same(schema: StructType) -> None:
    assert parse_schema_json(schema_json(schema)) == schema


@pytest.mark.slow
@given(structs(types(named=plain_names), named=plain_names))
def test_pyspark_reads_our_json_and_we_read_pysparks(schema: StructType) -> None:
    theirs = SparkStruct.fromJson(type_value(schema))
    back = parse_type_json(theirs.json())
    again = SparkStruct.fromJson(type_value(back))
    assert again == theirs
    assert json.loads(again.json()) == json.loads(theirs.json())


@pytest.mark.slow
@given(structs(types()))
def test_field_ids_are_written_to_the_metadata_on_request(schema: StructType) -> None:
    numbered, _ = assign_ids(schema, 1)
    assert parse_type_json(json_text(numbered, field_ids=True), field_ids=True) == numbered
    assert parse_type_json(json_text(numbered)) == schema


def test_field_ids_of_other_programs_stay_metadata() -> None:
    text = field_json(metadata='{"parquet.field.id":7}')
    schema = parse_schema_json(text)
    assert schema.fields[0].field_id is None
    assert schema_json(schema) == text
    ours = replace(schema, fields=(replace(schema.fields[0], field_id=1),))
    assert schema_json(ours, field_ids=True) == text.replace("7", "1")
    assert schema_json(schema, field_ids=True) == field_json()  # the other program's id is dropped
    assert parse_schema_json(text, field_ids=True).fields[0].field_id == 7


def test_metadata_is_kept_unchanged() -> None:
    metadata = '{"comment":5,"k":[1,2.5,true,null,"ü"],"n":9223372036854775807,"m":{"x":{}}}'
    text = field_json(metadata=metadata)
    assert parse_schema_json(text).fields[0].metadata == metadata
    assert schema_json(parse_schema_json(text)) == text


VECTOR = (
    '{"type":"udt","class":"org.apache.spark.ml.linalg.VectorUDT","pyClass":'
    '"pyspark.ml.linalg.VectorUDT","sqlType":{"type":"struct","fields":[{"name":"type","type":'
    '"byte","nullable":false,"metadata":{}},{"name":"values","type":{"type":"array",'
    '"elementType":"double","containsNull":false},"nullable":true,"metadata":{}}]}}'
)


def test_a_column_of_a_user_defined_type_has_its_plain_type_and_is_written_back() -> None:
    text = field_json(VECTOR, '{"comment":"c","k":1}')
    schema = parse_schema_json(text)
    plain = json.dumps(json.loads(VECTOR)["sqlType"])
    assert schema.fields[0].type == parse_type_json(plain)
    stored, _ = assign_ids(schema, 1)
    for shown in (schema, stored, all_nullable(stored)):
        assert isinstance(shown, StructType)
        assert schema_json(shown) == text


def test_a_user_defined_type_in_a_schema_with_ids_is_refused() -> None:
    with pytest.raises(InvalidType, match="store its plain form"):
        parse_schema_json(field_json(VECTOR), field_ids=True)


def test_a_column_that_has_another_type_now_is_written_with_that() -> None:
    (field,) = parse_schema_json(field_json(VECTOR)).fields
    changed = StructType((replace(field, type=INT),))
    assert schema_json(changed) == field_json()


def test_a_user_defined_type_in_another_one_is_refused() -> None:
    inner = '{"type":"udt","class":"c","sqlType":"double"}'
    field = f'{{"name":"b","type":{inner},"nullable":true,"metadata":{{}}}}'
    struct = f'{{"type":"struct","fields":[{field}]}}'
    outer = f'{{"type":"udt","class":"c","sqlType":{struct}}}'
    with pytest.raises(InvalidType, match="user-defined type"):
        parse_schema_json(
            f'{{"type":"struct","fields":[{{"name":"a","type":{outer},"nullable":true}}]}}'
        )


def test_nested_metadata_that_looks_like_user_defined_types_does_not_double_the_work() -> None:
    """With 60 levels, the test would not end."""
    metadata = '{"__USER_DEFINED_TYPE":{"type":"udt","sqlType":"string"}}'
    struct = StructType((StructField("a", INT),))
    for _ in range(60):
        struct = StructType((StructField("a", struct, metadata=metadata),))
    assert schema_json(struct).count('"struct"') == 61


@pytest.mark.parametrize("udt", ['{"type":"udt","sqlType":{"type":"nope"}}', "{}", "5"])
def test_metadata_that_only_looks_like_a_user_defined_type_is_not_shown(udt: str) -> None:
    field = StructField("a", INT, metadata=f'{{"__USER_DEFINED_TYPE":{udt}}}')
    assert schema_json(StructType((field,))) == field_json()


def test_metadata_may_be_missing() -> None:
    text = '{"type":"struct","fields":[{"name":"a","type":"integer","nullable":true}]}'
    assert parse_schema_json(text) == struct("a int")


@pytest.mark.parametrize("named", ["nonsense", "array<char(3)>", "struct<a", "int", "varchar(3) x"])
def test_an_invalid_char_type_in_the_metadata_leaves_a_string_and_the_metadata(named: str) -> None:
    text = field_json('"string"', f'{{"__CHAR_VARCHAR_TYPE_STRING":"{named}"}}')
    schema = parse_schema_json(text)
    assert schema.fields[0].type == StringType()
    assert schema_json(schema) == text


@pytest.mark.parametrize("name", ["`b c`", "`b``c`", "`b:c<`", "`bé`", "`b.c`"])
def test_a_char_type_under_an_unusual_field_name_reads_back(name: str) -> None:
    schema = StructType((StructField("a", struct(f"{name} char(3)"), comment="x"),))
    written = schema_json(schema)
    assert f"struct<{name}:char(3)>" in written  # Spark parses it, too
    assert parse_schema_json(written) == schema


def test_a_char_type_under_a_field_name_that_spark_did_not_quote_is_read() -> None:
    text = schema_json(StructType((StructField("a", struct("`b c` char(3)")),)))
    assert parse_schema_json(text.replace("`", "")) == parse_schema_json(text)


@pytest.mark.parametrize(
    "value", ["5", '{"b":"icu.UNICODE"}', '{"a":"UNICODE"}', '{"a.key":"x.y"}']
)
def test_invalid_collations_stay_metadata(value: str) -> None:
    text = field_json('"string"', f'{{"__COLLATIONS":{value}}}')
    schema = parse_schema_json(text)
    assert schema.fields[0].type == StringType()
    assert schema_json(schema) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at position 0"),
        ('{"type":"struct","fields":[}', "at position 27"),
        ("5", "the type: expected the name of a type or an object, found 5"),
        ("[]", "the type: expected the name of a type or an object"),
        ('"intx"', "the type: expected the name of a type"),
        ('"struct<a:int>"', "the type: expected the name of a type"),
        ('"decimal(39,0)"', "the type: decimal(39,0)"),
        ('"geometry(4326)"', "the type: expected geometry or geography with a reference system"),
        (
            '"geometry(ogc:crs84)"',
            "the type: 'ogc:crs84' is not the name of a spatial reference system",
        ),
        ('"geometry(EPSG:2147483648)"', "the type: geometry(2147483648) is not a type"),
        ('"geometry(OGC:CRS84, SPHERICAL)"', "the type: expected geometry"),
        ('"geography(OGC:CRS84, VINCENTY)"', "no edges but SPHERICAL"),
        ('"geography(SRID:0)"', "the type: geography(0) is not a type"),
        ('"geometryx"', "the type: expected geometry"),
        ('{"type":"set"}', 'the type.type: expected "array", "map" or "struct", found "set"'),
        ('{"type":"udt","class":"x","sqlType":"double"}', "user-defined type"),
        ('{"type":"array","containsNull":true}', "the type has no 'elementType'"),
        ('{"type":"array","elementType":"integer"}', "the type has no 'containsNull'"),
        ('{"type":"map","keyType":"integer","valueType":"integer","valueContainsNull":1}', "true"),
        ('{"type":"struct"}', "the type has no 'fields'"),
        ('{"type":"struct","fields":{}}', "the type.fields: expected a list"),
        ('{"type":"struct","fields":[5]}', "the type.fields[0]: expected an object"),
        ('{"type":"struct","fields":[{"name":5}]}', "the type.fields[0].name: expected a text"),
        (field_json('"nope"'), "the type.fields[0].type: expected the name of a type"),
        (field_json(metadata="[1]"), "the type.fields[0].metadata: expected an object"),
        (field_json(metadata='{"k":NaN}'), "NaN is not JSON"),
        (field_json(metadata='{"k":1e999}'), "does not parse"),
        (field_json(metadata='{"k":"\\ud800"}'), "half a surrogate pair"),
        (field_json(metadata='{"k":' + "[" * 200 + "]" * 200 + "}"), "nested too deep"),
        ('{"type":"array","elementType":' * 101 + '"integer"' + "}" * 101, "nested too deep"),
        ("[" * 1_000_000, "nested too deep"),
    ],
)
def test_invalid_json_is_refused_with_its_position(text: str, message: str) -> None:
    with pytest.raises(InvalidType) as caught:
        parse_type_json(text)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "ddl"),
    [
        ("geometry", "geometry(4326)"),
        ("geometry( EPSG:4326 )", "geometry(4326)"),
        ("geometry(srid:any)", "geometry(any)"),
        ("geography", "geography(4326)"),
        ("geography(spherical)", "geography(4326)"),
        ("geography(OGC:CRS83)", "geography(4269)"),
        ("geography(EPSG:4326,spherical)", "geography(4326)"),
    ],
)
def test_other_spellings_of_geometry_and_geography_are_read_as_in_spark(
    text: str, ddl: str
) -> None:
    assert parse_type_json(f'"{text}"') == parse_type(ddl)


def test_a_schema_must_be_a_struct() -> None:
    with pytest.raises(InvalidType, match="must be a struct"):
        parse_schema_json('"integer"')


def test_a_hundred_levels_of_struct_are_read_and_written() -> None:
    deep: DataType = INT
    for _ in range(99):
        deep = StructType((StructField("a", deep),))
    schema = StructType((StructField("a", deep), StructField("b", CharType(3))))
    assert parse_schema_json(schema_json(schema)) == schema


@pytest.mark.slow
def test_the_cost_of_reading_and_writing_a_schema_is_linear_in_its_columns() -> None:
    def cost(count: int) -> float:
        schema = struct(", ".join(f"c{i} array<decimal(9,2)> comment 'x'" for i in range(count)))
        start = time.process_time()
        assert parse_schema_json(schema_json(schema)) == schema
        return time.process_time() - start

    few, many = (min(cost(count) for _ in range(2)) for count in (500, 10_000))
    assert many < 100 * few  # 20 times the columns; a quadratic cost would grow 400 times


def test_collations_at_many_levels_that_name_no_string_are_read_once() -> None:
    text = '"integer"'
    for _ in range(14):
        metadata = '{"__COLLATIONS":{"a":"icu.UNICODE_CI"}}'
        field = f'{{"name":"a","type":{text},"nullable":true,"metadata":{metadata}}}'
        text = f'{{"type":"struct","fields":[{field}]}}'
    start = time.process_time()
    assert depth_of(parse_type_json(text)) == 14
    assert time.process_time() - start < 0.5  # 0.001 s; 1.4 s if each level is read twice


def test_a_value_that_is_nested_too_deep_to_be_shown_is_refused_like_any_other() -> None:
    outer = '{"type":"struct","fields":[{"name":"a","nullable":true,"type":' * 50
    for depth in range(700, 900, 10):
        with pytest.raises(InvalidType):
            parse_type_json(outer + "[" * depth + "]" * depth + "}]}" * 50)
