"""Names of schemas, and locations, as Hive clients write them."""

from __future__ import annotations

import pytest

from strandline.clock import parse_timestamp
from strandline.errors import InvalidInput, ObjectNotFound, UnsupportedOperation
from strandline.metastore.hive.names import (
    hadoop_location,
    is_hive_name,
    present_schema,
    same_location,
    shown_schema,
    split_schema,
    without_catalog,
)
from strandline.metastore.interface import PRESENT, AsOf

TIME = parse_timestamp("2026-11-20T10:00:00Z")


@pytest.mark.parametrize(
    ("name", "schema", "at"),
    [
        ("NYC", "nyc", PRESENT),
        ("nyc@12", "nyc", AsOf(version=12)),
        ("nyc@2026-11-20t10:00:00z", "nyc", AsOf(time=TIME)),
        ("@hive#nyc", "nyc", PRESENT),
        ("@HIVE#NYC@12", "nyc", AsOf(version=12)),
    ],
)
def test_a_schema_s_name_is_split_from_its_version(name: str, schema: str, at: AsOf) -> None:
    assert split_schema(name) == (schema, at)


@pytest.mark.parametrize("name", ["nyc@", "nyc@head", "`nyc@12`", "@12", "@spark#nyc"])
def test_a_name_that_names_no_version_is_that_of_no_schema(name: str) -> None:
    with pytest.raises(ObjectNotFound):
        split_schema(name)


def test_answers_carry_the_name_that_was_asked_for() -> None:
    assert shown_schema("@hive#NYC@12") == "nyc@12"


def test_a_name_with_a_version_cannot_be_changed() -> None:
    assert present_schema("NYC") == "nyc"
    with pytest.raises(UnsupportedOperation, match="can be read and not changed"):
        present_schema("nyc@12")


@pytest.mark.parametrize(
    ("name", "expected"), [("@hive#a*", "a*"), ("@hive#", None), ("@hive#!", ""), ("a*", "a*")]
)
def test_the_catalog_before_a_name_is_taken_off(name: str, expected: str | None) -> None:
    assert without_catalog(name) == expected


def test_hive_takes_letters_digits_and_underscores() -> None:
    assert is_hive_name("a_1")
    assert not any(map(is_hive_name, ["", "a-b", "a b", "ä", "a\n"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file:///a/b", "file:/a/b"),
        ("file:/a//b/", "file:/a/b"),
        ("FILE:/a", "file:/a"),
        ("/a/b/", "file:/a/b"),
        ("/", "file:/"),
        ("file:/a b/%20/ü", "file:/a b/%20/ü"),
        ("s3a://bucket/a//b/", "s3a://bucket/a/b"),
        ("s3a://bucket", "s3a://bucket"),
        ("hdfs://host:8020/x", "hdfs://host:8020/x"),
    ],
)
def test_a_location_is_written_as_hadoop_prints_it(text: str, expected: str) -> None:
    assert hadoop_location(text) == expected
    assert hadoop_location(expected) == expected


@pytest.mark.parametrize("text", ["", "a/b", "file:a", "s3a:bucket"])
def test_what_is_no_absolute_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        hadoop_location(text)


def test_two_texts_of_one_place_are_the_same_and_a_text_of_none_is_never() -> None:
    assert same_location("file:///a/", "/a")
    assert not same_location("/a", "/b")
    assert not same_location("a", "a")
