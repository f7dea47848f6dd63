from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidInput
from strandline.metastore.hive.java_regex import MAX_PATTERN_LENGTH, JavaRegex

MATCHES = [
    ("", "", True),
    ("", "a", False),
    ("x.*", "x", True),
    ("x.*", "xyz", True),
    ("x.*", "yx", False),
    ("2020-0[1-3]-.*", "2020-02-14", True),
    ("2020-0[1-3]-.*", "2020-04-14", False),
    ("x%", "xyz", False),
    ("x%", "x%", True),
    (".", "\n", False),
    ("(?s).", "\n", True),
    (".", "\u2028", False),
    ("(?i)AbC", "aBc", True),
    ("AbC", "aBc", False),
    ("(?i)[a-c]+", "ABC", True),
    ("(?is)a.", "A\n", True),
    ("a|bc|", "bc", True),
    ("a|bc|", "", True),
    ("(a|b)*c", "ababc", True),
    ("(?:ab)+", "ababa", False),
    ("a??b*?c+?", "bbc", True),
    ("a{2}", "aa", True),
    ("a{2}", "aaa", False),
    ("a{2,3}", "aaaa", False),
    ("a{2,}", "aaaaa", True),
    ("a{0}b", "b", True),
    ("(a|b{2}){2}", "bba", True),
    ("(ab?){0,2}", "aba", True),
    ("^abc$", "abc", True),
    ("a^b", "ab", False),
    ("a^", "a", False),
    ("$a", "a", False),
    ("(^a|b)+", "ab", True),
    ("(^a|b)+", "aba", False),
    ("^$", "", True),
    (r"\d\D\s\S\w\W", "1x y_-", True),
    (r"\d", "٣", False),
    (r"[\d.-]+", "1.2-3", True),
    (r"[^\d]", "1", False),
    (r"[^a-c]", "d", True),
    (r"[a-]", "-", True),
    (r"[\]\\]+", "]\\", True),
    (r"\.\*\[\{", ".*[{", True),
    (r"\Qa.b*\E.", "a.b*c", True),
    (r"\Qa.b", "a.b", True),
    (r"\u00e9\x41\t", "éA\t", True),
    ("é+😀", "éé😀", True),
]


@pytest.mark.parametrize(("pattern", "text", "expected"), MATCHES)
def test_the_whole_text_must_match(pattern: str, text: str, expected: bool) -> None:
    assert JavaRegex(pattern).matches(text) is expected


@pytest.mark.parametrize(
    ("pattern", "found", "position"),
    [
        ("*a", "nothing to repeat", 1),
        ("a**", "a repetition of a repetition", 2),
        ("(a", "a group that is not closed", 2),
        ("a)", "an unmatched ')'", 1),
        ("[a", "a class that is empty or not closed", 2),
        ("[]", "a class that is empty or not closed", 2),
        ("[z-a]", "a range that ends before it begins", 4),
        ("[a[b]]", "a union or intersection", 2),
        ("[a&&b]", "a union or intersection", 2),
        ("a{3,2}", "a range that ends before it begins", 6),
        ("a{x}", "a '{' that is no repetition", 1),
        ("a\\", "an end in the middle", 2),
        (r"\p{Alpha}", r"the escape \p", 2),
        (r"(a)\1", r"the escape \1", 5),
        (r"\bfoo", r"the escape \b", 2),
        (r"\u12", "4 hexadecimal digits", 2),
        ("(?=a)", "look-around", 2),
        ("(?<n>a)", "look-around", 2),
        ("a(?i)b", "look-around", 3),
        ("a++", "possessive", 2),
        ("(((a{99}){99}){99})", "more than 10000 states", 4),
        ("(" * 60 + "a" + ")" * 60, "groups inside each other", 50),
    ],
)
def test_a_wrong_pattern_is_refused_with_position(pattern: str, found: str, position: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        JavaRegex(pattern)
    assert found in caught.value.message
    assert f"at position {position}" in caught.value.message


def test_a_pattern_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidInput, match="4096 characters"):
        JavaRegex("a" * (MAX_PATTERN_LENGTH + 1))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a*)*b", "a" * 2_000),
        ("(a|aa)+b", "a" * 2_000),
        (".*a" * 20 + "b", "a" * 2_000),
        ("(x+x+)+y", "x" * 2_000),
    ],
)
def test_patterns_that_make_others_backtrack_take_no_time(pattern: str, text: str) -> None:
    start = time.process_time()
    assert not JavaRegex(pattern).matches(text)
    assert time.process_time() - start < 2.0


atoms = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\.", "\\d", "^", "$"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,2}", "{1,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@given(patterns, st.lists(st.text("abc.1", max_size=6), min_size=1, max_size=5))
def test_pythons_matcher_agrees(pattern: str, texts: list[str]) -> None:
    ours, theirs = JavaRegex(pattern), re.compile(pattern)
    for text in texts:
        assert ours.matches(text) is (theirs.fullmatch(text) is not None)
