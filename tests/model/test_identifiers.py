from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidName
from strandline.model.identifiers import MAX_NAME_LENGTH, QualifiedName, check_name, normalize

names = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=20
).filter(lambda name: name == name.strip())


@pytest.mark.parametrize(
    ("first", "other", "same"),
    [
        ("Flights", "fLIGHTS", True),
        ("STRASSE", "straße", True),
        ("ſ", "S", True),
        ("\u212a", "k", True),
        ("Ä", "ä", True),
        ("a", "b", False),
        ("a", "ä", False),
    ],
)
def test_names_are_the_same_up_to_case(first: str, other: str, same: bool) -> None:
    assert (normalize(first) == normalize(other)) is same


@given(st.text())
def test_normalize_is_casefold_and_idempotent(name: str) -> None:
    assert normalize(normalize(name)) == normalize(name)
    assert normalize(name) == name.casefold()


@pytest.mark.parametrize("name", ["a", "a b", "Ünïcode 😀", "x" * MAX_NAME_LENGTH, "a\u200db", "."])
def test_a_valid_name_is_accepted(name: str) -> None:
    check_name(name, "column")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "empty or blank"),
        (" \t", "empty or blank"),
        ("x" * (MAX_NAME_LENGTH + 1), "may have at most 255 characters, found 256"),
        ("a\nb", r"found '\n' at position 1"),
        ("a\0", r"found '\x00' at position 1"),
        ("a\x7fb", "control characters"),
        ("a\x85b", "control characters"),
        ("a\u2028b", "control characters"),
        ("a\ud800", "control characters"),
        (" a", "begin or end with a space"),
        ("a ", "begin or end with a space"),
    ],
)
def test_an_invalid_name_is_refused_with_the_reason(name: str, message: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(name, "column")
    assert message in caught.value.message
    assert "name of a column" in caught.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b", QualifiedName("a", "b")),
        ("`a`.b", QualifiedName("a", "b")),
        ("`sales@42`.`b c`", QualifiedName("sales@42", "b c")),
        ("`a.b`.`c``d`", QualifiedName("a.b", "c`d")),
        ("b", QualifiedName("nyc", "b")),
    ],
)
def test_a_qualified_name_is_parsed(text: str, expected: QualifiedName) -> None:
    assert QualifiedName.parse(text, default_schema="nyc") == expected


@pytest.mark.parametrize(
    "text", ["", "a", "a.", ".a", "a.b.c", "a..b", "a b.c", "`a", "a.`b`c", "``.b"]
)
def test_an_invalid_qualified_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        QualifiedName.parse(text)


def test_a_value_that_is_no_text_is_not_a_name() -> None:
    values: list[Any] = [None, 1, ["a.b"]]
    for value in values:
        with pytest.raises(InvalidName, match=r"a name is a text like 'schema\.table', not "):
            QualifiedName.parse(value)


@given(names, names)
def test_a_printed_qualified_name_reads_back(schema: str, name: str) -> None:
    qualified = QualifiedName(schema, name)
    assert QualifiedName.parse(str(qualified)) == qualified
