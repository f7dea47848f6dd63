from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import IllegalChange
from strandline.model.type_changes import assign_ids, carry_ids, check_change
from strandline.model.type_parser import parse_type
from strandline.model.type_text import simple_string
from strandline.model.types import INT, ArrayType, DataType, MapType, StructField, StructType, walk
from tests.model.type_strategies import types

SCALARS = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(5|2), decimal(9|0), "
    "decimal(10|0), decimal(11|1), decimal(19|0), decimal(20|0), decimal(22|2), decimal(22|3), "
    "decimal(38|18), char(3), char(5), varchar(3), varchar(5), string, string collate UNICODE, "
    "binary, date, timestamp, timestamp_ntz, time(3), interval, interval day, "
    "interval day to second, interval year, variant, geometry(3857), "
    "geometry(any), geography(4326), void"
)
# The types that each type may change to, besides itself. All other changes are refused.
ALLOWED = {
    "tinyint": "smallint, int, bigint, double, decimal(10|0), decimal(11|1), decimal(19|0), "
    "decimal(20|0), decimal(22|2), decimal(22|3), decimal(38|18)",
    "smallint": "int, bigint, double, decimal(10|0), decimal(11|1), decimal(19|0), "
    "decimal(20|0), decimal(22|2), decimal(22|3), decimal(38|18)",
    "int": "bigint, double, decimal(10|0), decimal(11|1), decimal(19|0), decimal(20|0), "
    "decimal(22|2), decimal(22|3), decimal(38|18)",
    "bigint": "decimal(20|0), decimal(22|2), decimal(38|18)",
    "float": "double",
    "decimal(5|2)": "decimal(22|2), decimal(22|3), decimal(38|18)",
    "decimal(9|0)": "decimal(10|0), decimal(11|1), decimal(19|0), decimal(20|0), decimal(22|2), "
    "decimal(22|3), decimal(38|18)",
    "decimal(10|0)": "decimal(11|1), decimal(19|0), decimal(20|0), decimal(22|2), decimal(22|3), "
    "decimal(38|18)",
    "decimal(11|1)": "decimal(22|2), decimal(22|3), decimal(38|18)",
    "decimal(19|0)": "decimal(20|0), decimal(22|2), decimal(22|3), decimal(38|18)",
    "decimal(20|0)": "decimal(22|2), decimal(38|18)",
    "decimal(22|2)": "decimal(38|18)",
    "decimal(22|3)": "decimal(38|18)",
    "date": "timestamp_ntz",
    "char(3)": "char(5), varchar(3), varchar(5), string",
    "char(5)": "varchar(5), string",
    "varchar(3)": "varchar(5), string",
    "varchar(5)": "string",
    "void": SCALARS,
}


def listed(text: str) -> list[str]:
    return [name.replace("|", ",") for name in text.split(", ")]


def allowed_pairs() -> set[tuple[str, str]]:
    pairs = {(name, name) for name in listed(SCALARS)}
    for old, targets in ALLOWED.items():
        pairs |= {(old.replace("|", ","), new) for new in listed(targets)}
    return pairs


def refusal(old: str, new: str) -> str | None:
    try:
        check_change(parse_type(old), parse_type(new))
    except IllegalChange as error:
        return error.message
    return None


def test_every_pair_of_scalars_is_allowed_or_refused_as_the_table_says() -> None:
    everything = listed(SCALARS)
    pairs = {pair: refusal(*pair) for pair in itertools.product(everything, repeat=2)}
    assert {pair for pair, message in pairs.items() if message is None} == allowed_pairs()
    for (old, new), message in pairs.items():
        assert message is None or f"from {old} to {new}: " in message


def test_allowed_changes_are_transitive() -> None:
    pairs = allowed_pairs()
    for (old, between), (same, new) in itertools.product(pairs, repeat=2):
        if between == same:
            assert (old, new) in pairs, (old, between, new)


@pytest.mark.parametrize("around", ["array<{}>", "map<{},int>", "map<int,{}>", "struct<a:{}>"])
def test_the_rules_hold_inside_nested_types(around: str) -> None:
    narrow, wide = parse_type(around.format("int")), parse_type(around.format("bigint"))
    check_change(narrow, wide)
    with pytest.raises(IllegalChange, match="from bigint to int"):
        check_change(wide, narrow)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("struct<a:int>", "struct<a:int,b:string>"),
        ("struct<a:int,b:int>", "struct<b:int,a:int>"),
        ("struct<a:int>", "struct<A:int>"),
        ("struct<a:int not null>", "struct<a:int>"),
        ("struct<a:int>", "struct<a:int comment 'x'>"),
        ("array<struct<a:int>>", "array<struct<b:map<int,int>,a:bigint>>"),
        ("string", "string collate UTF8_BINARY"),
        ("struct<a:int,A:string>", "struct<A:string,a:int>"),
    ],
)
def test_compatible_changes_of_nested_types_are_allowed(old: str, new: str) -> None:
    check_change(parse_type(old), parse_type(new))


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("struct<a:int,b:int>", "struct<a:int>", "the field 'b' is missing"),
        ("struct<a:int>", "struct<b:int>", "the field 'a' is missing"),
        ("struct<a:int>", "struct<a:int,b:int not null>", "the added field 'b' must be nullable"),
        ("struct<a:int>", "struct<a:int not null>", "the field 'a' must stay nullable"),
        ("array<struct<x:map<int,int>>>", "array<struct<x:map<int,date>>>", "at element.x.value"),
        ("int", "array<int>", "cannot be read as the new type"),
        ("array<int>", "map<int,int>", "cannot be read as the new type"),
        ("struct<a:int>", "string", "cannot be read as the new type"),
        ("bigint", "double", "double cannot hold every bigint"),
        ("int", "decimal(9,0)", "at least 10 digits before the point"),
        ("decimal(9,2)", "decimal(10,4)", "neither the digits before the decimal point"),
        ("varchar(5)", "varchar(4)", "the length may not become smaller"),
        ("string", "string collate UNICODE", "the collation may not change"),
    ],
)
def test_a_refused_change_names_the_rule(old: str, new: str, rule: str) -> None:
    with pytest.raises(IllegalChange) as caught:
        check_change(parse_type(old), parse_type(new))
    assert rule in caught.value.message


def test_elements_and_values_may_become_nullable_but_not_non_nullable() -> None:
    loose, tight = ArrayType(INT), ArrayType(INT, contains_null=False)
    check_change(tight, loose)
    with pytest.raises(IllegalChange, match="elements may be NULL"):
        check_change(loose, tight)
    check_change(MapType(INT, INT, value_contains_null=False), MapType(INT, INT))
    with pytest.raises(IllegalChange, match="values may be NULL"):
        check_change(MapType(INT, INT), MapType(INT, INT, value_contains_null=False))


@given(types(), st.integers(0, 1000))
def test_any_type_may_stay_the_same_and_get_field_ids(data_type: DataType, next_id: int) -> None:
    numbered, free = assign_ids(data_type, next_id)
    check_change(data_type, numbered)
    check_change(numbered, data_type)
    assert sorted(ids(numbered)) == list(range(next_id, free))
    assert assign_ids(numbered, free) == (numbered, free)
    assert carry_ids(numbered, data_type, free) == (numbered, free)


def ids(data_type: DataType) -> list[int]:
    return [
        -1 if entry.field_id is None else entry.field_id
        for inner in walk(data_type)
        if isinstance(inner, StructType)
        for entry in inner.fields
    ]


def named_ids(data_type: DataType) -> dict[str, int | None]:
    return {
        entry.name: entry.field_id
        for inner in walk(data_type)
        if isinstance(inner, StructType)
        for entry in inner.fields
    }


def test_ids_are_assigned_to_fields_only_and_outer_before_inner() -> None:
    numbered, free = assign_ids(
        parse_type("struct<a:array<struct<b:int>>,c:map<struct<d:int>,struct<e:int>>>"), 5
    )
    assert named_ids(numbered) == {"a": 5, "c": 6, "b": 7, "d": 8, "e": 9}
    assert free == 10


def test_new_ids_are_higher_than_the_highest_existing_id() -> None:
    known = StructType((StructField("a", parse_type("int"), field_id=40),))
    grown = StructType((*known.fields, StructField("b", parse_type("int"))))
    numbered, free = assign_ids(grown, 7)
    assert named_ids(numbered) == {"a": 40, "b": 41}
    assert free == 42


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("struct<a:int,b:int>", "struct<B:int,c:int,a:int>", {"B": 2, "c": 9, "a": 1}),
        ("array<struct<a:int>>", "array<struct<b:int,a:int>>", {"b": 9, "a": 1}),
        ("struct<a:struct<x:int>>", "struct<a:struct<x:int,y:int>>", {"a": 1, "x": 2, "y": 9}),
        ("struct<a:struct<x:int>>", "struct<b:struct<x:int>>", {"b": 9, "x": 10}),
        ("struct<a:int,A:int>", "struct<A:int,a:int>", {"A": 2, "a": 1}),
        ("struct<a:int>", "map<int,struct<a:int>>", {"a": 9}),
        ("map<int,struct<a:int>>", "map<int,struct<a:bigint>>", {"a": 1}),
    ],
)
def test_ids_are_carried_by_name(old: str, new: str, expected: dict[str, int]) -> None:
    numbered, _ = assign_ids(parse_type(old), 1)
    carried, free = carry_ids(numbered, parse_type(new), 9)
    assert named_ids(carried) == expected
    assert free == max(9, *(value + 1 for value in expected.values()))


def test_a_rename_keeps_its_id_and_the_old_name_gets_a_new_one() -> None:
    old, _ = assign_ids(parse_type("struct<a:int>"), 1)
    renamed = StructType(
        (StructField("a", parse_type("date")), StructField("b", parse_type("int"), field_id=1))
    )
    check_change(old, renamed)
    carried, _ = carry_ids(old, renamed, 2)
    assert named_ids(carried) == {"a": 2, "b": 1}


def test_two_fields_with_one_id_do_not_share_it() -> None:
    old = StructType((StructField("a", parse_type("int"), field_id=1),))
    new = StructType(tuple(StructField(name, parse_type("int"), field_id=1) for name in ("b", "c")))
    carried, next_id = carry_ids(old, new, 5)
    assert isinstance(carried, StructType)
    assert [field.field_id for field in carried.fields] == [1, 5]
    assert next_id == 6


def test_ids_that_the_old_type_does_not_have_are_replaced() -> None:
    foreign = StructType((StructField("a", parse_type("int"), field_id=77),))
    carried, free = carry_ids(parse_type("int"), foreign, 3)
    assert named_ids(carried) == {"a": 3}
    assert free == 4


def test_a_message_about_a_huge_type_stays_short() -> None:
    huge = parse_type("struct<" + ",".join(f"c{i}:int" for i in range(10_000)) + ">")
    assert len(simple_string(huge)) > 50_000
    with pytest.raises(IllegalChange) as caught:
        check_change(huge, parse_type("int"))
    assert len(caught.value.message) < 1_000
