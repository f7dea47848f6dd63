from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import LimitExceeded
from strandline.metastore.hive.like_patterns import MAX_LIKE_LENGTH, like


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
def test_a_dot_is_one_character_dot_star_any_number_and_all_else_itself(
    pattern: str, value: str, fits: bool
) -> None:
    assert like(pattern)(value) is fits


def test_a_pattern_that_is_too_long_is_refused() -> None:
    assert like("a" * MAX_LIKE_LENGTH)("a") is False
    with pytest.raises(LimitExceeded, match="4096 characters"):
        like("a" * (MAX_LIKE_LENGTH + 1))


@pytest.mark.parametrize(
    ("pattern", "value"),
    [(".*a" * 1_000 + "b", "a" * 4_000), (".*." * 1_000 + "b", "a" * 4_000), ("a.*" * 900, "b")],
)
def test_a_pattern_that_makes_others_backtrack_takes_no_time(pattern: str, value: str) -> None:
    # A backtracking matcher would not end.
    assert like(pattern)(value) is False


@given(st.text("ab.*\n", max_size=8), st.lists(st.text("ab.*\n", max_size=8), max_size=5))
def test_a_regular_expression_made_of_it_agrees(pattern: str, values: list[str]) -> None:
    translated = re.sub(
        r"\.\*|\.|[^.]",
        lambda found: {".*": ".*", ".": "."}.get(found[0], re.escape(found[0])),
        pattern,
    )
    for value in values:
        assert like(pattern)(value) is (re.fullmatch(translated, value, re.DOTALL) is not None)
