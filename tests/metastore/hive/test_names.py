from __future__ import annotations

import pytest

from strandline.clock import parse_timestamp
from strandline.errors import ObjectNotFound, UnsupportedOperation
from strandline.metastore.hive.names import (
    is_hive_name,
    present_schema,
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
