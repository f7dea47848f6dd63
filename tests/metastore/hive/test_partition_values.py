from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidInput
from strandline.metastore.hive.partition_values import (
    DEFAULT_PARTITION,
    escape,
    is_default,
    parse_partition_name,
    partition_name,
    partition_values,
    unescape,
)

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = texts.filter(lambda value: value not in ("", DEFAULT_PARTITION))
keys = st.lists(texts.filter(bool).map(str.lower), min_size=1, max_size=4, unique=True)


def test_exactly_the_characters_that_hive_escapes_are_escaped() -> None:
    escaped = {chr(code) for code in range(0x300) if escape(chr(code)) != chr(code)}
    controls = {chr(code) for code in range(0x20)}
    assert escaped == controls | set("\x7f\"#%'*/:=?\\{[]^")
    assert {escape(character) for character in "/=%:#\n"} == {
        "%2F",
        "%3D",
        "%25",
        "%3A",
        "%23",
        "%0A",
    }


@pytest.mark.parametrize(
    ("component", "text"),
    [
        ("a%2Fb", "a/b"),
        ("%2f", "/"),
        ("%", "%"),
        ("%4", "%4"),
        ("%zz", "%zz"),
        ("%%41", "%A"),
        ("%+1", "%+1"),
        ("%-1", "%-1"),
        ("%0g", "%0g"),
    ],
)
def test_a_text_is_unescaped_as_spark_does(component: str, text: str) -> None:
    assert unescape(component) == text


@given(texts)
def test_an_escaped_text_is_one_path_component_and_can_be_unescaped(text: str) -> None:
    assert unescape(escape(text)) == text
    assert not set(escape(text)) & set("/=\0\n")


@pytest.mark.parametrize(
    ("given_keys", "given_values", "name"),
    [
        (["year"], ["2013"], "year=2013"),
        (["Year", "carrier"], ["2013", "A/B"], "year=2013/carrier=A%2FB"),
        (["p"], [""], f"p={DEFAULT_PARTITION}"),
        (["p"], [None], f"p={DEFAULT_PARTITION}"),
        (["p"], [DEFAULT_PARTITION], f"p={DEFAULT_PARTITION}"),
        (["p", "q"], ["01", "A b=ü%"], "p=01/q=A b%3Dü%25"),
        (["a:b"], ["x"], "a%3Ab=x"),
    ],
)
def test_a_partition_name_is_written_as_hive_does(
    given_keys: list[str], given_values: list[str | None], name: str
) -> None:
    assert partition_name(given_keys, given_values) == name


@given(keys, st.data())
def test_a_partition_name_is_parsed_back_into_its_keys_and_values(
    names: list[str], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(values, min_size=len(names), max_size=len(names)))
    names = [name.lower() for name in names]
    name = partition_name(names, chosen)
    assert parse_partition_name(name) == tuple(zip(names, chosen, strict=True))


@pytest.mark.parametrize(
    ("given_keys", "given_values"), [([], []), (["a"], []), (["a"], ["1", "2"])]
)
def test_a_partition_has_one_value_for_each_key(
    given_keys: list[str], given_values: list[str]
) -> None:
    with pytest.raises(InvalidInput, match="one value for each partition key"):
        partition_name(given_keys, given_values)


@pytest.mark.parametrize("name", ["", "a", "a=", "=1", "a=1/", "/a=1", "a=1//b=2", "a=1/b"])
def test_an_invalid_partition_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not the name of a partition"):
        parse_partition_name(name)


def test_parsing_a_name_keeps_the_text_of_the_default_partition() -> None:
    assert parse_partition_name(f"p={DEFAULT_PARTITION}") == (("p", DEFAULT_PARTITION),)


def test_the_keys_of_a_name_may_be_in_any_order_and_case() -> None:
    assert partition_values("Q=x/p=1", ["p", "q"]) == ("1", "x")


@pytest.mark.parametrize("name", ["p=1/q=2/r=3", "p=1/q=2/q=2"])
def test_a_name_with_extra_or_repeated_keys_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="with the keys p, q"):
        partition_values(name, ["p", "q"])


@pytest.mark.parametrize("name", ["p=1", "p=1/p=2", "p=1/x=2", "p=1/q=2=3"])
def test_a_name_that_lacks_a_key_is_refused_with_hives_message(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^incomplete partition name - missing q$"):
        partition_values(name, ["p", "q"])


def test_the_empty_text_and_the_default_partition_mean_null() -> None:
    values = ("", DEFAULT_PARTITION, "0", " ")
    assert [value for value in values if is_default(value)] == ["", DEFAULT_PARTITION]
