"""Filters on partitions: parsing and evaluation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidInput, LimitExceeded
from strandline.metastore.hive.partition_filter import (
    MAX_CONDITIONS,
    MAX_FILTER_LENGTH,
    And,
    Chooser,
    Comparison,
    Expression,
    In,
    Like,
    Literal,
    Or,
    bind_filter,
    parse_filter,
)
from strandline.metastore.hive.partition_values import DEFAULT_PARTITION
from strandline.model.type_parser import parse_type
from strandline.model.types import DataType


def partition_chooser(filter_text: str, keys: Sequence[tuple[str, DataType]]) -> Chooser:
    """Whether the filter chooses a partition with these values of the keys."""
    return bind_filter(parse_filter(filter_text), keys)


def text(value: str) -> Literal:
    return Literal(value)


def number(value: str) -> Literal:
    return Literal(value, is_number=True)


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
def test_a_filter_is_parsed_into_an_expression_tree(filter_text: str, tree: Expression) -> None:
    assert parse_filter(filter_text) == tree


@pytest.mark.parametrize(
    ("filter_text", "position", "expected"),
    [
        ("p", 1, "one of = !="),
        ("p =", 3, "a string in quotes, a number or a date"),
        ("p = q", 4, "a string in quotes, a number or a date"),
        ("1 = 1", 4, "a partition key"),
        ("= 1", 0, "a partition key"),
        ("p == 1", 3, "a string in quotes, a number or a date"),
        ("p = 1 q = 2", 6, "'and', 'or' or the end"),
        ("p = 1 and", 9, "a partition key"),
        ("(p = 1", 6, "')'"),
        ("p = 1)", 5, "'and', 'or' or the end"),
        ("()", 1, "a partition key"),
        ('p = "x', 4, "a string in quotes, a number or a date"),
        ("p = 1; drop", 5, "'and', 'or' or the end"),
        ("not p = 1", 0, "a partition key"),
        ("not (p = 1)", 0, "a partition key"),
        ("p is null", 2, "one of = !="),
        ("p in (1)", 2, "an operator; for 'in', write the key in parentheses"),
        ("p not in (1)", 2, "an operator; for 'in', write the key in parentheses"),
        ("(p, q) in ((1, 2))", 2, "one of = !="),
        ("(p) in ()", 8, "a string in quotes, a number or a date"),
        ("(p) in (1,)", 10, "a string in quotes, a number or a date"),
        ("(p) not (1)", 8, "'in'"),
        ("p like 1", 7, "a pattern in quotes"),
        ("p between 1 or 2", 12, "'and' between the two ends"),
        ("p = -", 4, "a string in quotes, a number or a date"),
        ("(" * 101 + "p = 1" + ")" * 101, 101, "at most 100 nested parentheses"),
        ("(" * 10_000, 101, "at most 100 nested parentheses"),
    ],
)
def test_the_error_for_an_invalid_filter_names_the_position_and_what_was_expected(
    filter_text: str, position: int, expected: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_filter(filter_text)
    assert f"at position {position}," in caught.value.message
    assert f"expected {expected}" in caught.value.message
    assert len(caught.value.message) < 400


def test_a_filter_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at most 262144 characters"):
        parse_filter(" " * (MAX_FILTER_LENGTH + 1))


@pytest.mark.slow
def test_ten_thousand_conditions_in_a_row_are_parsed() -> None:
    tree = parse_filter(" or ".join(f"p = {i}" for i in range(10_000)))
    assert isinstance(tree, Or)
    assert len(tree.parts) == 10_000


@pytest.mark.slow
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
    return literal.text if literal.is_number else f'"{literal.text}"'


trees = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Or(tuple(parts))),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(trees)
def test_a_printed_expression_tree_is_parsed_back_to_the_same_tree(tree: Expression) -> None:
    assert parse_filter(printed(tree)) == tree


@given(st.text("p q=<>!()'\"123.-andorlikeinbetween\\,", max_size=40))
def test_any_text_is_either_parsed_or_raises_invalid_input(filter_text: str) -> None:
    with contextlib.suppress(InvalidInput):
        parse_filter(filter_text)


D = DEFAULT_PARTITION
INTS = ["1", "01", "+1", " 1 ", "2", "10", "-3", "abc", "1.5", "99999999999", "", D]
TEXTS = ["a", "b", "B", "ab", "01", "1", "10", "", D]
DATES = ["2013-01-31", "2013-2-1", "2013-02-30", "2014-01-01", "soon", D]
OTHER_DATES = ["2020", "2020-2", "2020-2-1T00:00", "+12000-01-01", "-0001-12-31", "0000-02-29"]
TIMES = ["2013-01-31 10:00:00", "2013-01-31T10:00:00.5", "2013-01-31", "x", D]
DECIMALS = ["1.50", "1.5", "2", "-0.1", "1e1", "x", D]
BOOLEANS = ["true", "FALSE", "1", "0", "maybe", D]
FLOATS = ["1.5", "1.50", "NaN", "-Infinity", "1_0", "x", D]

# type of the key p, its values, a filter, the values that it chooses
SCENARIOS = [
    ("int", INTS, "", INTS),
    ("int", INTS, "p = 1", ["1", "01", "+1", " 1 "]),
    ("int", INTS, "P = 1", ["1", "01", "+1", " 1 "]),
    ("int", INTS, 'p = "1"', ["1", "01", "+1", " 1 "]),
    ("int", INTS, "p = 1.0", ["1", "01", "+1", " 1 "]),
    ("int", INTS, "p > 1", ["2", "10"]),
    ("int", INTS, "1 < p", ["2", "10"]),
    ("int", INTS, "p > 1.5", ["2", "10"]),
    ("int", INTS, "p <= 1", ["1", "01", "+1", " 1 ", "-3"]),
    ("int", INTS, "p < 99999999999", ["1", "01", "+1", " 1 ", "2", "10", "-3"]),
    ("bigint", INTS, "p >= 99999999999", ["99999999999"]),
    ("int", ["1.0", "1.", "-1.00", ".0", "1.05"], "p <= 1", ["1.0", "1.", "-1.00"]),
    ("tinyint", ["127", "128", "-128", "-129"], "p > -200", ["127", "-128"]),
    ("int", INTS, "p != 1", ["2", "10", "-3"]),
    ("int", INTS, "p <> 1", ["2", "10", "-3"]),
    ("int", INTS, "p between 1 and 2", ["1", "01", "+1", " 1 ", "2"]),
    ("int", INTS, "(p) in (2, 10, 7)", ["2", "10"]),
    ("int", INTS, "(p) in (2, 'x')", ["2"]),
    ("int", INTS, "p not between -3 and 2", ["10"]),
    ("int", INTS, "(p) not in (1, 2)", ["10", "-3"]),
    ("int", INTS, "(p) not in (1, 'x')", []),
    ("int", INTS, "p = 'x'", []),
    ("int", INTS, "p != 'x'", []),
    ("int", INTS, f"p = '{D}'", ["", D]),
    ("int", INTS, f"(p) in (2, '{D}')", ["2", "", D]),
    ("int", INTS, f"p > '{D}'", []),
    ("int", INTS, 'p like "1.*"', ["1", "10", "1.5"]),
    ("string", TEXTS, 'p = "b"', ["b"]),
    ("string", TEXTS, "p = '1'", ["1"]),
    ("string", TEXTS, "p = 1", ["01", "1"]),
    ("string", TEXTS, "p > 1", ["10"]),
    ("string", TEXTS, "p > 'a'", ["b", "ab"]),
    ("string", TEXTS, "p != 'b'", ["a", "B", "ab", "01", "1", "10", "", D]),
    ("string", TEXTS, f"p != '{D}'", ["a", "b", "B", "ab", "01", "1", "10", ""]),
    ("string", TEXTS, "p = ''", [""]),
    ("string", TEXTS, f"(p) in ('a', '{D}')", ["a", D]),
    ("string", TEXTS, "p < 'a'", ["B", "01", "1", "10", "", D]),
    ("string", TEXTS, "p not between 'a' and 'b'", ["B", "01", "1", "10", "", D]),
    ("string", TEXTS, "(p) in ('a', 10)", ["a", "10"]),
    ("string", TEXTS, "p like 'a.*'", ["a", "ab"]),
    ("string", TEXTS, "p like 'a%'", []),
    ("string", TEXTS, "p like '.*'", TEXTS),
    ("string", TEXTS, "p like '(?i)b'", []),
    ("string", ["2020-01-01", "2019-12-31"], 'p >= "2020-01-01"', ["2020-01-01"]),
    ("char(3)", ["a", "a  ", "b"], "p = 'a '", ["a", "a  "]),
    ("varchar(3)", ["a", "a  ", "b"], "p = 'a'", ["a"]),
    ("date", DATES, "p = 2013-02-01", ["2013-2-1"]),
    ("date", DATES, "p = '2013-02-01'", ["2013-2-1"]),
    ("date", DATES, "p > date '2013-01-31'", ["2013-2-1", "2014-01-01"]),
    ("date", DATES, "p != 2013-02-01", ["2013-01-31", "2014-01-01"]),
    ("date", DATES, "p < 'soon'", []),
    ("date", DATES, "p = 2013-02-30", []),
    ("date", OTHER_DATES, "p = 2020-01-01", ["2020"]),
    ("date", OTHER_DATES, "p != 2020-02-01", ["2020", *OTHER_DATES[3:]]),
    ("date", OTHER_DATES, "p > '2020-01-01'", OTHER_DATES[1:4]),
    ("date", OTHER_DATES, "p < '0000-03-01'", OTHER_DATES[4:]),
    ("date", OTHER_DATES, "p = '+12000-01-01'", ["+12000-01-01"]),
    ("timestamp", TIMES, "p = '2013-01-31'", ["2013-01-31"]),
    ("timestamp", TIMES, "p > '2013-01-31 10:00:00'", ["2013-01-31T10:00:00.5"]),
    ("timestamp_ntz", TIMES, "p = '2013-01-31 10:00:00.500'", ["2013-01-31T10:00:00.5"]),
    ("timestamp", TIMES, "p = '2013-01-31T10:00:00Z'", []),
    ("decimal(5,2)", DECIMALS, "p = 1.5", ["1.50", "1.5"]),
    ("decimal(5,2)", DECIMALS, "p > '1.5'", ["2", "1e1"]),
    ("decimal(5,2)", DECIMALS, "p < 0", ["-0.1"]),
    ("boolean", BOOLEANS, "p = true", ["true", "1"]),
    ("boolean", BOOLEANS, "p = 'False'", ["FALSE", "0"]),
    ("boolean", BOOLEANS, "p != true", ["FALSE", "0"]),
    ("double", FLOATS, "p = 1.5", ["1.5", "1.50"]),
    ("double", FLOATS, "p > 1.5", ["NaN"]),
    ("float", FLOATS, "p = 'nan'", ["NaN"]),
    ("float", FLOATS, "p < 0", ["-Infinity"]),
    ("binary", TEXTS, "p = 'ab'", ["ab"]),
    ("binary", TEXTS, "p < 'a'", ["B", "01", "1", "10"]),
    ("int", INTS, "p like '.*'", [value for value in INTS if value not in ("", D)]),
]


@pytest.mark.parametrize(("key_type", "values", "text", "chosen"), SCENARIOS)
def test_a_filter_compares_values_by_the_type_of_the_key(
    key_type: str, values: list[str], text: str, chosen: list[str]
) -> None:
    chooses = partition_chooser(text, [("p", parse_type(key_type))])
    assert [value for value in values if chooses([value])] == chosen


KEYS = [("p", parse_type("int")), ("q", parse_type("string"))]
ROWS = [("1", "x"), ("1", "y"), ("2", "xa"), ("3", "z"), ("abc", "x"), (D, "x"), ("2", D)]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ('p = 1 and q = "x"', [0]),
        ('p = 1 or q = "x"', [0, 1, 4, 5]),
        ('(p) in (1, 2) and q like "x.*"', [0, 2]),
        ('p = 3 or (p = 1 and (q = "y" or q = "no"))', [1, 3]),
        ('p = 3 or p = 1 and q = "y"', [1, 3]),
        ('(p) not in (1, 2) and q = "x"', []),
        ('(p) not in (1, 2) or q not between "x" and "y"', [3, 6]),
        ('p != 1 and q != "x"', [2, 3, 6]),
        ("p = 1 and p = 2", []),
    ],
)
def test_conditions_on_several_keys_are_combined(text: str, chosen: list[int]) -> None:
    chooses = partition_chooser(text, KEYS)
    assert [index for index, row in enumerate(ROWS) if chooses(row)] == chosen


@pytest.mark.parametrize(
    "text",
    ["a = 1", "p = 1 or A = 'x'", "(a) in (1)", "a like 'x'", "(p = 1) and a between 1 and 2"],
)
def test_an_unknown_key_is_refused_with_hives_message(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"Specified key <[aA]> is not a partitioning key"):
        partition_chooser(text, KEYS)


@pytest.mark.slow
def test_alternatives_for_one_key_count_as_one_condition() -> None:
    text = " or ".join(f"p = {number}" for number in range(5_000))
    chooses = partition_chooser(text, KEYS)
    assert [index for index, row in enumerate(ROWS) if chooses(row)] == [0, 1, 2, 3, 6]


def test_merged_alternatives_choose_the_same_partitions_as_separate_ones() -> None:
    parts = ["p = 1", f"p = '{D}'", "(p) in ('2', 'abc')", "q = 'z'", "(q) in ('y')", "q != 'x'"]
    one_by_one = [partition_chooser(part, KEYS) for part in parts]
    together = partition_chooser(" or ".join(parts), KEYS)
    for row in ROWS:
        assert together(row) == any(chooses(row) for chooses in one_by_one)


@pytest.mark.parametrize(
    "text",
    [
        " or ".join(f"p > {number}" for number in range(MAX_CONDITIONS + 1)),
        " or ".join(f"(p = {number} and q = 'a')" for number in range(MAX_CONDITIONS)),
        " and ".join(f'q like "a.*{number}"' for number in range(MAX_CONDITIONS + 1)),
    ],
)
def test_a_filter_of_too_many_conditions_is_refused(text: str) -> None:
    with pytest.raises(LimitExceeded, match="1000 conditions"):
        partition_chooser(text, KEYS)


@pytest.mark.slow
def test_checking_a_partition_against_a_thousand_values_costs_as_much_as_against_ten() -> None:
    def cost(values: int) -> float:
        chooses = partition_chooser(f"(p) in ({', '.join(map(str, range(values)))})", KEYS)
        start = time.process_time()
        assert sum(chooses((str(i % (2 * values)), "x")) for i in range(20_000)) == 10_000
        return time.process_time() - start

    few, many = (min(cost(values) for _ in range(3)) for values in (10, 1_000))
    assert many < 4 * few  # a search through a list of a thousand takes nine times as long
