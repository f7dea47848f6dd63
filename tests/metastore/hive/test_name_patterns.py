from __future__ import annotations

import pytest

from strandline.errors import InvalidInput, LimitExceeded
from strandline.metastore.hive.name_patterns import (
    MAX_PATTERN_LENGTH,
    MAX_WORK,
    NamePattern,
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
def test_names_are_chosen_as_in_hive(pattern: str | None, chosen: list[str]) -> None:
    assert NamePattern(pattern).choose(NAMES) == chosen


@pytest.mark.parametrize(
    "pattern",
    ["[", "a|(b", "air(lines|ports)", "+", "a)|(?:b", "a++", r"(a)\1", "(?=a)"],
)
def test_a_wrong_pattern_is_refused(pattern: str) -> None:
    # Every bar separates, also one in parentheses.
    with pytest.raises(InvalidInput, match="regular expression"):
        NamePattern(pattern).choose(NAMES)


@pytest.mark.parametrize("pattern", [r"\pL", r"[\P{Greek}]", r"\Qa.b\E", "[a-z&&[^b]]"])
def test_what_is_dear_or_means_something_else_in_java_is_refused(pattern: str) -> None:
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
def test_an_expensive_pattern_is_refused_before_it_is_compiled(pattern: str) -> None:
    with pytest.raises(LimitExceeded):
        NamePattern(pattern)


def test_weight_times_names_is_bounded() -> None:
    pattern = NamePattern("(.*a){20}b")
    names = ["a" * 255] * (MAX_WORK // (255 * pattern.weight) + 1)
    assert pattern.choose(names[:100]) == []
    with pytest.raises(LimitExceeded, match="too expensive for"):
        pattern.choose(names)


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a.a.)+b", ".*a" * 20 + "b", "(x+x+)+y", "(.*a){20}b", "(a?){9}a{9}b"]
)
def test_patterns_that_make_others_backtrack_are_answered(pattern: str) -> None:
    # A backtracking matcher would need longer than there is time.
    assert NamePattern(pattern).choose(["a" * 255] * 100) == []
