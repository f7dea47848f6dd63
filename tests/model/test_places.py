from __future__ import annotations

import re
from itertools import islice

import pytest

from strandline.model.places import Place, place_of_table, places_of_schema, table_folder


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("t", "table"),
        (".", "schema"),
        ("s.db", "schema"),
        ("s.db/t", "table"),
        ("s.db/t~7", "table"),
        (".dropped/12", "table"),
        ("s.db/.dropped/12", "table"),
        ("./a:b", "table"),
        ("./a:b.db", "schema"),
        ("", "schema"),
        (".db", "none"),
        (".dropped", "none"),
        (".dropped/x", "none"),
        (".dropped/٣", "none"),
        (".dropped/12/x", "none"),
        ("s.db/.dropped", "none"),
        ("s.db/.hidden", "none"),
        ("s.db/", "none"),
        ("s.db/..", "none"),
        ("s.db//t", "none"),
        ("s.db/t/inner", "none"),
        ("t/inner", "none"),
        ("..", "none"),
        ("../s.db", "none"),
        ("/w/s.db", "none"),
        ("/w/t", "none"),
        ("file:/w/t", "none"),
        ("s3://b/t", "none"),
    ],
)
def test_only_places_that_strandline_chooses_have_the_form_of_a_table_or_schema(
    text: str, form: str
) -> None:
    place = Place(text)
    assert (place.is_of_table, place.is_of_schema) == (form == "table", form == "schema")


@pytest.mark.parametrize("path", ["", "s.db", "s.db/t", "a:b", "a:b/c"])
def test_a_place_in_the_warehouse_keeps_its_path(path: str) -> None:
    place = Place.below(path)
    assert place.is_inside
    assert place.path == path
    assert Place(place.text) == place


@pytest.mark.parametrize(
    ("place", "aside"),
    [
        ("t", ".dropped/9"),
        ("s.db/t", "s.db/.dropped/9"),
        ("s.db/.dropped/9", "s.db/.dropped/9"),
        (".dropped/9", ".dropped/9"),
        (".dropped/8", ".dropped/.dropped/9"),
        ("/w/x.dropped/9", "/w/x.dropped/.dropped/9"),
        ("/w/t", "/w/.dropped/9"),
    ],
)
def test_a_dropped_table_is_moved_aside_and_its_restore_moves_it_back(
    place: str, aside: str
) -> None:
    assert Place(place).aside(9) == Place(aside)
    back = Place(aside).back(9, "T")
    assert back == Place(f"{aside.removesuffix('.dropped/9')}t")


def test_a_table_that_was_not_moved_aside_is_restored_where_it_is() -> None:
    for text in ("s.db/t", "t", "s.db/.dropped/8"):
        assert Place(text).back(9, "u") == Place(text)


def test_a_table_is_placed_in_the_folder_of_its_schema() -> None:
    def place(schema: str, name: str) -> str:
        return place_of_table(Place(schema), name, schema_name="S").text

    assert place("x.db", "Orders") == "x.db/orders"
    assert place(".", "t") == "t"
    assert place(".", "a.db") == "a%2Edb"
    assert place("s3://b/s", "t") == place("/home/s.db", "t") == "s.db/t"


def test_alternative_places_are_numbered() -> None:
    assert [p.text for p in islice(places_of_schema("A/b"), 3)] == [
        "a%2Fb.db",
        "a%2Fb~2.db",
        "a%2Fb~3.db",
    ]
    beside = [p.text for p in islice(Place("s.db/t").beside(7), 3)]
    assert beside == ["s.db/t~7", "s.db/t~7~2", "s.db/t~7~3"]


@pytest.mark.parametrize(
    "name", [".dropped", "..", ".", "x" * 255, "é" * 255, "aaaaa" + "é" * 250, "a/../b", "a:b"]
)
def test_every_table_name_gives_one_safe_folder_name(name: str) -> None:
    folder = table_folder(name)
    assert "/" not in folder
    assert not folder.startswith(".")
    assert len(folder) <= 255
    assert re.fullmatch("(?:[^%]|%[0-9A-F]{2})+", folder)
    assert Place.below(folder).is_of_table
