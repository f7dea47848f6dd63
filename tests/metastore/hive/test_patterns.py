"""Patterns for names, and patterns of ``like`` in a filter."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidInput, LimitExceeded
from strandline.metastore.hive.patterns import (
    MAX_LIKE_LENGTH,
    MAX_PATTERN_LENGTH,
    MAX_WORK,
    NamePattern,
    like,
)

NAMES = ["airlines", "airports", "flights", "flights_2013", "planes", "Weather"]


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        (None, NAMES),
        ("*", NAMES),
        (".*", NAMES),
        ("", []),
        ("  ", []),
        ("|", []),
        ("flights", ["flights"]),
        ("FLIGHTS", ["flights"]),
        ("weather", ["Weather"]),
        ("flights*", ["flights", "flights_2013"]),
        ("*s", ["airlines", "airports", "flights", "planes"]),
        ("air*|planes", ["airlines", "airports", "planes"]),
        ("flights|", ["flights"]),
        (" planes ", ["planes"]),
        ("plane.", ["planes"]),
        ("flights_[0-9]{4}", ["flights_2013"]),
        ("f", []),
        ("f(light){1}s*", ["flights", "flights_2013"]),
        ("[a-c]ir.+|W.*", ["airlines", "airports", "Weather"]),
        (r"\w+s", ["airlines", "airports", "flights", "planes"]),
    ],
)
def test_a_pattern_chooses_the_same_names_as_in_hive(
    pattern: str | None, chosen: list[str]
) -> None:
    assert NamePattern(pattern).choose(NAMES) == chosen


@pytest.mark.parametrize(
    "pattern",
    ["[", "a|(b", "air(lines|ports)", "+", "a)|(?:b", "a++", r"(a)\1", "(?=a)"],
)
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    # Every bar separates alternatives, even inside parentheses.
    with pytest.raises(InvalidInput, match="regular expression"):
        NamePattern(pattern).choose(NAMES)


@pytest.mark.parametrize("pattern", [r"\pL", r"[\P{Greek}]", r"\Qa.b\E", "[a-z&&[^b]]"])
def test_syntax_that_is_expensive_or_has_another_meaning_in_java_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="not supported: found"):
        NamePattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * (MAX_PATTERN_LENGTH + 1),
        "((a{99}){99}){99}",
        "(.{0,30}a){30}z",
        "[^a]{1000}",
        "a?{500}a{500}",
    ],
)
def test_an_expensive_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(LimitExceeded):
        NamePattern(pattern)


def test_the_weight_of_a_pattern_times_the_length_of_the_names_is_bounded() -> None:
    pattern = NamePattern("(.*a){20}b")
    names = ["a" * 255] * (MAX_WORK // (255 * pattern.weight) + 1)
    assert pattern.choose(names[:100]) == []
    with pytest.raises(LimitExceeded, match="too expensive for"):
        pattern.choose(names)


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a.a.)+b", ".*a" * 20 + "b", "(x+x+)+y", "(.*a){20}b", "(a?){9}a{9}b"]
)
def test_patterns_that_overwhelm_backtracking_matchers_are_answered(pattern: str) -> None:
    # A backtracking matcher would not finish in a reasonable time.
    assert NamePattern(pattern).choose(["a" * 255] * 100) == []


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("x.*", "x", True),
        ("x.*", "xyz", True),
        ("x.*", "yx", False),
        ("", "", True),
        ("", "a", False),
        ("x%", "xyz", False),
        ("x_", "xy", False),
        ("a.c", "abc", True),
        ("a.c", "ac", False),
        (".", "\n", True),
        (".*", "a\nb", True),
        ("a.*b", "a\n\nb", True),
        ("price $.*", "price $5", True),
        ("a^.*", "a^b", True),
        ("a^.*", "ab", False),
        ("+49.*", "+49 30", True),
        (".*(.*", "f(x)", True),
        ("[ab]", "[ab]", True),
        ("[ab]", "a", False),
        ("(?i)B", "b", False),
        (r"a\.b", r"a\.b", True),
        (r"a\.b", "a.b", False),
        ("..*", "", False),
        ("..*", "ab", True),
        ("*", "*", True),
        ("a.**", "ab*", True),
        (".*ab.*ab", "abab", True),
        (".*ab.*ab", "aab", False),
        ("ab.*ba", "aba", False),
        (".*a.c.*d", "zabcd", True),
        (".*a.c.*d", "zabd", False),
    ],
)
def test_dot_and_dot_star_are_the_only_wildcards_of_like(
    pattern: str, value: str, fits: bool
) -> None:
    assert like(pattern)(value) is fits


def test_a_pattern_of_like_that_is_too_long_is_refused() -> None:
    assert like("a" * MAX_LIKE_LENGTH)("a") is False
    with pytest.raises(LimitExceeded, match="4096 characters"):
        like("a" * (MAX_LIKE_LENGTH + 1))


@pytest.mark.parametrize(
    ("pattern", "value"),
    [(".*a" * 1_000 + "b", "a" * 4_000), (".*." * 1_000 + "b", "a" * 4_000), ("a.*" * 900, "b")],
)
def test_patterns_of_like_that_overwhelm_backtracking_matchers_are_answered(
    pattern: str, value: str
) -> None:
    # A backtracking matcher would not finish.
    assert like(pattern)(value) is False


@given(st.text("ab.*\n", max_size=8), st.lists(st.text("ab.*\n", max_size=8), max_size=5))
def test_like_agrees_with_the_equivalent_regular_expression(
    pattern: str, values: list[str]
) -> None:
    translated = re.sub(
        r"\.\*|\.|[^.]",
        lambda match: {".*": ".*", ".": "."}.get(match[0], re.escape(match[0])),
        pattern,
    )
    for value in values:
        assert like(pattern)(value) is (re.fullmatch(translated, value, re.DOTALL) is not None)
