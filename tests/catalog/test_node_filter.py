"""Node filters: which texts are conditions, which are not, and what an error says."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.catalog.node_filter import MAX_DEPTH, MAX_FILTER_LENGTH, check_node_filter
from strandline.errors import InvalidInput


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "region = 'eu'",
        "REGION <> 'us'",
        "disk IN ('nvme', 'ssd')",
        "disk in('ssd')",
        "cores >= 8 AND cores < 9",
        "cores = '8' and memory > 63.5",
        "cores != 9",
        "gpu = TRUE",
        "gpu = 'true'",
        "load <= 0.5",
        "NOT region = 'us'",
        "not (cores < 8 or region = 'us')",
        "region = 'us' AND cores > 1 OR disk = 'ssd'",
        "cores > 99 OR region = 'eu' AND disk = 'ssd'",
        "missing IS NULL",
        "region IS NOT NULL",
        "`region` = 'eu'",
        "NOT missing = 'x'",
        "disk > 'a'",
        "region = 'us'",
        "region = 'EU'",
        "missing = 'x'",
        "missing <> 'x'",
        "missing < 1",
        "missing IN ('x')",
        "missing IS NOT NULL",
        "cores > 8",
        "memory < '9'",
        "gpu = FALSE",
        "region = 'eu' AND NOT disk = 'ssd'",
        "(cores > 99 OR region = 'eu') AND disk = 'hdd'",
    ],
)
def test_a_condition_on_attributes_is_a_filter(text: str) -> None:
    check_node_filter(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("region", "position 6: a comparison"),
        ("region =", "position 8: a text in quotes"),
        ("region = eu", "position 9: a text in quotes"),
        ("region = 'eu", "position 8: unexpected text"),
        ("= 'eu'", "position 0: the name"),
        ("and = 1", "position 0: the name"),
        ("a = 1 b = 2", "position 6: AND, OR"),
        ("a = 1 AND", "position 9: the name"),
        ("(a = 1", "position 6: ) was expected"),
        ("a = 1)", "position 5: AND, OR"),
        ("a IN ()", "position 6: a text"),
        ("a IN 1", "position 5: ( was"),
        ("a IS 1", "position 5: NULL"),
        ("a = 1x", "unexpected text"),
        ("$..*", "position 0: unexpected text"),
        ("a = NULL", "position 4: a text"),
        ("(" * 60 + "a = 1" + ")" * 60, "nested more than 50"),
        ("NOT " * 60 + "a = 1", "nested more than 50"),
        ("a = 1 " + " " * MAX_FILTER_LENGTH, "4096 characters"),
    ],
)
def test_an_invalid_filter_is_refused_with_the_position_of_the_error(text: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_node_filter(text)
    assert says in caught.value.message


def test_quotes_are_escaped_by_doubling_them() -> None:
    check_node_filter("`a``b` = 'it''s'")


def test_a_filter_may_be_nested_up_to_the_maximum_depth() -> None:
    check_node_filter("(" * MAX_DEPTH + "a = 1" + ")" * MAX_DEPTH)


WORDS = st.sampled_from(
    [
        "a",
        "b",
        "=",
        "<",
        "<>",
        ">=",
        "IN",
        "(",
        ")",
        ",",
        "'x'",
        "1",
        "AND",
        "OR",
        "NOT",
        "IS",
        "NULL",
        "TRUE",
        "-2.5",
    ]
)


@given(st.lists(WORDS, max_size=12))
def test_any_text_is_a_filter_or_is_refused(words: list[str]) -> None:
    with suppress(InvalidInput):
        check_node_filter(" ".join(words))
