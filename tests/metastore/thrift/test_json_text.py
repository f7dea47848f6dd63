"""Thrift's JSON protocol, compared with texts written by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from strandline.errors import InvalidInput
from strandline.metastore.thrift import HIVE_CODEC, Codec, load_field_table
from strandline.metastore.thrift.json_text import JsonText

CODEC = Codec(
    load_field_table(
        """
struct P = 1:x i32
struct A = 1:flag bool, 2:tiny i8, 3:large i64, 4:real double, 5:text string, 6:raw binary,
    7:point P, 8:points list<P>, 9:ids set<i16>, 10:names map<string,string>,
    11:numbers map<i64,binary>, 12:places map<list<string>,string>
"""
    )
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ({"flag": True, "tiny": -1}, '{"1":{"tf":1},"2":{"i8":-1}}'),
        ({"large": 1 << 62}, '{"3":{"i64":4611686018427387904}}'),
        ({"real": 0.5}, '{"4":{"dbl":0.5}}'),
        ({"real": math.inf}, '{"4":{"dbl":"Infinity"}}'),
        ({"real": -math.inf}, '{"4":{"dbl":"-Infinity"}}'),
        ({"real": math.nan}, '{"4":{"dbl":"NaN"}}'),
        ({"text": 'a"\\\n\x01ä/'}, '{"5":{"str":"a\\"\\\\\\n\\u0001ä/"}}'),
        ({"raw": b"\0\1\2\3"}, '{"6":{"str":"AAECAw"}}'),
        ({"point": {"x": 1}}, '{"7":{"rec":{"1":{"i32":1}}}}'),
        ({"points": []}, '{"8":{"lst":["rec",0]}}'),
        ({"points": [{"x": 1}, {}]}, '{"8":{"lst":["rec",2,{"1":{"i32":1}},{}]}}'),
        ({"ids": {4}}, '{"9":{"set":["i16",1,4]}}'),
        ({"names": {}}, '{"10":{"map":["str","str",0,{}]}}'),
        ({"names": {"k": "v", "l": ""}}, '{"10":{"map":["str","str",2,{"k":"v","l":""}]}}'),
        ({"numbers": {7: b"\0"}}, '{"11":{"map":["i64","str",1,{"7":"AA"}]}}'),
        ({"places": {("a",): "b"}}, '{"12":{"map":["lst","str",1,{["str",1,"a"]:"b"}]}}'),
    ],
)
def test_every_type_is_written_as_thrifts_json_protocol_defines(
    value: dict[str, Any], text: str
) -> None:
    assert CODEC.to_json_text("A", value) == text


def test_an_encoded_struct_is_written_like_its_fields() -> None:
    column = HIVE_CODEC.encode_struct("FieldSchema", {"name": "a", "type": "int"})
    text = '{"1":{"str":"a"},"2":{"str":"int"}}'
    assert HIVE_CODEC.to_json_text("FieldSchema", column) == text
    schema = {"fieldSchemas": [column]}
    assert HIVE_CODEC.to_json_text("Schema", schema) == f'{{"1":{{"lst":["rec",1,{text}]}}}}'


def test_the_error_for_an_invalid_value_names_its_field() -> None:
    with pytest.raises(InvalidInput, match=r"A\.flag: expected bool, found str"):
        CODEC.to_json_text("A", {"flag": "yes"})


@pytest.mark.parametrize(
    "value",
    [
        {"tiny": 128},
        {"large": 1 << 63},
        {"large": 1.0},
        {"large": "1"},
        {"real": "1"},
        {"text": 1},
        {"text": "\ud800"},
        {"raw": "text"},
        {"points": "text"},
        {"points": {"x": 1}},
        {"ids": b"12"},
        {"names": ["k"]},
        {"unknown": 1},
    ],
)
def test_a_value_that_does_not_fit_its_field_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="cannot write A as JSON"):
        CODEC.to_json_text("A", value)


def test_a_struct_that_is_already_json_text_is_inserted_unchanged() -> None:
    text = '{"8":{"lst":["rec",1,{"1":{"i32":1}}]}}'
    assert CODEC.to_json_text("A", {"points": [JsonText('{"1":{"i32":1}}')]}) == text
