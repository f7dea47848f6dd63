from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidInput, LimitExceeded
from strandline.metastore.hive.partition_filter import (
    MAX_FILTER_LENGTH,
    And,
    Comparison,
    Expression,
    In,
    Like,
    Literal,
    LiteralKind,
    Or,
    parse_filter,
)


def text(value: str) -> Literal:
    return Literal(LiteralKind.TEXT, value)


def number(value: str) -> Literal:
    return Literal(LiteralKind.NUMBER, value)


P1 = Comparison("p", "=", number("1"))
Q2 = Comparison("q", "=", number("2"))
R3 = Comparison("r", "=", number("3"))


@pytest.mark.parametrize(
    ("filter_text", "tree"),
    [
        ("", And(())),
        ("  \n", And(())),
        ("p = 1", P1),
        ("p=1", P1),
        ("1 = p", P1),
        ("((p = 1))", P1),
        ("1 < p", Comparison("p", ">", number("1"))),
        ('"x" >= p', Comparison("p", "<=", text("x"))),
        ("p <> -1", Comparison("p", "!=", number("-1"))),
        ("p != 'it\"s'", Comparison("p", "!=", text('it"s'))),
        ('p = "a\\"', Comparison("p", "=", text("a\\"))),
        ("p >= 2013-01-31", Comparison("p", ">=", text("2013-01-31"))),
        ("p = DATE 2013-1-3", Comparison("p", "=", text("2013-1-3"))),
        ("p = date '2013-01-31'", Comparison("p", "=", text("2013-01-31"))),
        ("date = '2013'", Comparison("date", "=", text("2013"))),
        ("timestamp '2013' < timestamp", Comparison("timestamp", ">", text("2013"))),
        ("p = true", Comparison("p", "=", text("true"))),
        ("p = 1.50", Comparison("p", "=", number("1.50"))),
        ('q LIKE "x.*"', Like("q", "x.*")),
        (
            "p between 1 AND 'b'",
            And((Comparison("p", ">=", number("1")), Comparison("p", "<=", text("b")))),
        ),
        ("(p) in (1, 'a', 2013-01-31)", In("p", (number("1"), text("a"), text("2013-01-31")))),
        ("(p) NOT IN (1)", In("p", (number("1"),), negated=True)),
        ("p = 1 and q = 2 or r = 3", Or((And((P1, Q2)), R3))),
        ("p = 1 or q = 2 and r = 3", Or((P1, And((Q2, R3))))),
        ("p = 1 and (q = 2 or r = 3)", And((P1, Or((Q2, R3))))),
        ("p = 1 AND q = 2 And r = 3", And((P1, Q2, R3))),
        ("((p) in (1)) and ((q = 2))", And((In("p", (number("1"),)), Q2))),
        ("1p = 1", Comparison("1p", "=", number("1"))),
    ],
)
def test_a_filter_becomes_a_tree(filter_text: str, tree: Expression) -> None:
    assert parse_filter(filter_text) == tree


@pytest.mark.parametrize(
    ("filter_text", "position", "expected"),
    [
        ("p", 1, "one of = !="),
        ("p =", 3, "a text in quotes, a number or a date"),
        ("p = q", 4, "a text in quotes, a number or a date"),
        ("1 = 1", 4, "a partition key"),
        ("= 1", 0, "a partition key"),
        ("p == 1", 3, "a text in quotes, a number or a date"),
        ("p = 1 q = 2", 6, "'and', 'or' or the end"),
        ("p = 1 and", 9, "a partition key"),
        ("(p = 1", 6, "')'"),
        ("p = 1)", 5, "'and', 'or' or the end"),
        ("()", 1, "a partition key"),
        ('p = "x', 4, "a text in quotes, a number or a date"),
        ("p = 1; drop", 5, "'and', 'or' or the end"),
        ("not p = 1", 0, "a partition key"),
        ("not (p = 1)", 0, "a partition key"),
        ("p is null", 2, "one of = !="),
        ("p in (1)", 2, "an operator; for 'in', write the key in parentheses"),
        ("p not in (1)", 2, "an operator; for 'in', write the key in parentheses"),
        ("(p, q) in ((1, 2))", 2, "one of = !="),
        ("(p) in ()", 8, "a text in quotes, a number or a date"),
        ("(p) in (1,)", 10, "a text in quotes, a number or a date"),
        ("(p) not (1)", 8, "'in'"),
        ("p like 1", 7, "a pattern in quotes"),
        ("p between 1 or 2", 12, "'and' between the two ends"),
        ("p = -", 4, "a text in quotes, a number or a date"),
        ("(" * 101 + "p = 1" + ")" * 101, 101, "at most 100 parentheses"),
        ("(" * 10_000, 101, "at most 100 parentheses"),
    ],
)
def test_a_wrong_filter_is_refused_with_position_and_expectation(
    filter_text: str, position: int, expected: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_filter(filter_text)
    assert f"at position {position}," in caught.value.message
    assert f"expected {expected}" in caught.value.message
    assert len(caught.value.message) < 400


def test_a_filter_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidInput, match="may have 262144 characters"):
        parse_filter(" " * (MAX_FILTER_LENGTH + 1))


def test_ten_thousand_conditions_in_a_row_are_read() -> None:
    tree = parse_filter(" or ".join(f"p = {i}" for i in range(10_000)))
    assert isinstance(tree, Or)
    assert len(tree.parts) == 10_000


def test_a_filter_of_too_many_words_is_refused() -> None:
    parse_filter(f"(p) in ({','.join(['1'] * 20_000)})")
    with pytest.raises(LimitExceeded, match="50000 words"):
        parse_filter(f"(p) in ({','.join(['1'] * 25_000)})")


comparisons = st.builds(
    Comparison,
    st.from_regex(r"k[a-z0-9_]{0,4}", fullmatch=True),
    st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
    st.one_of(
        st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"])).map(text),
        st.integers().map(str).map(number),
    ),
)


def printed(tree: Expression) -> str:
    match tree:
        case And(parts) | Or(parts):
            word = " and " if isinstance(tree, And) else " or "
            return "(" + word.join(map(printed, parts)) + ")"
        case Comparison(key, symbol, literal):
            return f"{key} {symbol} {shown(literal)}"
        case In(key, literals, negated):
            verb = "not in" if negated else "in"
            return f"({key}) {verb} ({', '.join(map(shown, literals))})"
        case Like(key, pattern):
            return f'{key} like "{pattern}"'


def shown(literal: Literal) -> str:
    return literal.text if literal.kind is LiteralKind.NUMBER else f'"{literal.text}"'


trees = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Or(tuple(parts))),
    ),
    max_leaves=8,
)


@given(trees)
def test_a_printed_tree_reads_back_the_same(tree: Expression) -> None:
    assert parse_filter(printed(tree)) == tree


@given(st.text("p q=<>!()'\"123.-andorlikeinbetween\\,", max_size=40))
def test_any_text_is_a_filter_or_a_typed_error(filter_text: str) -> None:
    with contextlib.suppress(InvalidInput):
        parse_filter(filter_text)
