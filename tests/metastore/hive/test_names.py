"""Names of schemas, and locations, as Hive clients write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.clock import format_timestamp, parse_timestamp, timestamp
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
        ("nyc@0", "nyc", AsOf(version=0)),
        ("nyc@2026-11-20t10:00:00z", "nyc", AsOf(time=TIME)),
        ("nyc@2026-11-20T10:00:00Z", "nyc", AsOf(time=TIME)),
        ("nyc@2026-11-20 11:00:00+01:00", "nyc", AsOf(time=TIME)),
        ("nyc@2026-11-20", "nyc", AsOf(time=parse_timestamp("2026-11-20T00:00:00Z"))),
        ("@hive#nyc", "nyc", PRESENT),
        ("@HIVE#NYC@12", "nyc", AsOf(version=12)),
    ],
)
def test_a_schema_name_is_split_into_the_schema_and_its_version(
    name: str, schema: str, at: AsOf
) -> None:
    assert split_schema(name) == (schema, at)


@pytest.mark.parametrize(
    "name",
    [
        "nyc@",
        "nyc@head",
        "nyc@head~1",
        "nyc@-1",
        "nyc@1@2",
        "nyc@٣",
        "nyc@" + "1" * 19,
        "`nyc@12`",
        "@12",
        "@",
    ],
)
def test_a_schema_name_with_an_invalid_version_does_not_exist(name: str) -> None:
    with pytest.raises(ObjectNotFound, match="does not name a version"):
        split_schema(name)


def test_a_schema_name_with_another_catalog_does_not_exist() -> None:
    with pytest.raises(ObjectNotFound, match="catalog spark does not exist"):
        split_schema("@spark#nyc")


@given(st.integers(1, 2**45), st.integers(0, 2**16 - 1))
def test_every_formatted_time_names_a_version_even_in_lower_case(ms: int, logical: int) -> None:
    at = timestamp(ms, logical)
    time = at if logical else timestamp(ms, 2**16 - 1)
    assert split_schema(f"nyc@{format_timestamp(at)}".lower()) == ("nyc", AsOf(time=time))


def test_the_shown_schema_name_keeps_the_version_but_not_the_catalog() -> None:
    assert shown_schema("@hive#NYC@12") == "nyc@12"


def test_a_schema_name_with_a_version_is_read_only() -> None:
    assert present_schema("NYC") == "nyc"
    with pytest.raises(UnsupportedOperation, match="can be read and not changed"):
        present_schema("nyc@12")


@pytest.mark.parametrize(
    ("name", "expected"), [("@hive#a*", "a*"), ("@hive#", None), ("@hive#!", ""), ("a*", "a*")]
)
def test_the_catalog_prefix_of_a_name_is_removed(name: str, expected: str | None) -> None:
    assert without_catalog(name) == expected


def test_hive_names_consist_of_letters_digits_and_underscores() -> None:
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
        ("/a/../b/./c", "file:/b/c"),
        ("s3a://bucket/a/..", "s3a://bucket/"),
        ("/a/.../.b/..c/d.", "file:/a/.../.b/..c/d."),
    ],
)
def test_a_location_is_written_as_hadoop_prints_it(text: str, expected: str) -> None:
    assert hadoop_location(text) == expected
    assert hadoop_location(expected) == expected


@pytest.mark.parametrize("text", ["", "a/b", "file:a", "s3a:bucket"])
def test_a_location_that_is_not_absolute_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        hadoop_location(text)


def test_two_spellings_of_a_location_are_the_same_but_invalid_locations_never_are() -> None:
    assert same_location("file:///a/", "/a")
    assert not same_location("/a", "/b")
    assert not same_location("a", "a")
