from __future__ import annotations

import time

import pytest

from strandline.errors import InvalidInput, LimitExceeded
from strandline.metastore.hive.partition_chooser import MAX_CONDITIONS, partition_chooser
from strandline.metastore.hive.partition_names import DEFAULT_PARTITION
from strandline.model.type_parser import parse_type

D = DEFAULT_PARTITION
INTS = ["1", "01", "+1", " 1 ", "2", "10", "-3", "abc", "1.5", "99999999999", "", D]
TEXTS = ["a", "b", "B", "ab", "01", "1", "10", "", D]
DATES = ["2013-01-31", "2013-2-1", "2013-02-30", "2014-01-01", "soon", D]
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
    ("tinyint", ["127", "128", "-128", "-129"], "p > -200", ["127", "-128"]),
    ("int", INTS, "p != 1", ["2", "10", "-3", "", D]),
    ("int", INTS, "p <> 1", ["2", "10", "-3", "", D]),
    ("int", INTS, "p between 1 and 2", ["1", "01", "+1", " 1 ", "2"]),
    ("int", INTS, "(p) in (2, 10, 7)", ["2", "10"]),
    ("int", INTS, "(p) in (2, 'x')", ["2"]),
    ("int", INTS, "(p) not in (1, 2)", ["10", "-3", "", D]),
    ("int", INTS, "(p) not in (1, 'x')", ["", D]),
    ("int", INTS, "p = 'x'", []),
    ("int", INTS, "p != 'x'", ["", D]),
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
    ("string", TEXTS, f"p != '{D}'", ["a", "b", "B", "ab", "01", "1", "10"]),
    ("string", TEXTS, "(p) in ('a', 10)", ["a", "10"]),
    ("string", TEXTS, "p like 'a.*'", ["a", "ab"]),
    ("string", TEXTS, "p like 'a%'", []),
    ("string", TEXTS, "p like '.*'", ["a", "b", "B", "ab", "01", "1", "10"]),
    ("string", TEXTS, "p like '(?i)b'", []),
    ("string", ["2020-01-01", "2019-12-31"], 'p >= "2020-01-01"', ["2020-01-01"]),
    ("char(3)", ["a", "a  ", "b"], "p = 'a '", ["a", "a  "]),
    ("varchar(3)", ["a", "a  ", "b"], "p = 'a'", ["a"]),
    ("date", DATES, "p = 2013-02-01", ["2013-2-1"]),
    ("date", DATES, "p = '2013-02-01'", ["2013-2-1"]),
    ("date", DATES, "p > date '2013-01-31'", ["2013-2-1", "2014-01-01"]),
    ("date", DATES, "p != 2013-02-01", ["2013-01-31", "2014-01-01", D]),
    ("date", DATES, "p < 'soon'", []),
    ("date", DATES, "p = 2013-02-30", []),
    ("timestamp", TIMES, "p = '2013-01-31'", ["2013-01-31"]),
    ("timestamp", TIMES, "p > '2013-01-31 10:00:00'", ["2013-01-31T10:00:00.5"]),
    ("timestamp_ntz", TIMES, "p = '2013-01-31 10:00:00.500'", ["2013-01-31T10:00:00.5"]),
    ("timestamp", TIMES, "p = '2013-01-31T10:00:00Z'", []),
    ("decimal(5,2)", DECIMALS, "p = 1.5", ["1.50", "1.5"]),
    ("decimal(5,2)", DECIMALS, "p > '1.5'", ["2", "1e1"]),
    ("decimal(5,2)", DECIMALS, "p < 0", ["-0.1"]),
    ("boolean", BOOLEANS, "p = true", ["true", "1"]),
    ("boolean", BOOLEANS, "p = 'False'", ["FALSE", "0"]),
    ("boolean", BOOLEANS, "p != true", ["FALSE", "0", D]),
    ("double", FLOATS, "p = 1.5", ["1.5", "1.50"]),
    ("double", FLOATS, "p > 1.5", ["NaN"]),
    ("float", FLOATS, "p = 'nan'", ["NaN"]),
    ("float", FLOATS, "p < 0", ["-Infinity"]),
    ("binary", TEXTS, "p = 'ab'", ["ab"]),
]


@pytest.mark.parametrize(("key_type", "values", "text", "chosen"), SCENARIOS)
def test_a_filter_chooses_by_the_type_of_the_key(
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
        ('(p) not in (1, 2) and q = "x"', [5]),
        ('p != 1 and q != "x"', [2, 3, 6]),
        ("p = 1 and p = 2", []),
    ],
)
def test_conditions_on_several_keys(text: str, chosen: list[int]) -> None:
    chooses = partition_chooser(text, KEYS)
    assert [index for index, row in enumerate(ROWS) if chooses(row)] == chosen


@pytest.mark.parametrize(
    "text",
    ["a = 1", "p = 1 or A = 'x'", "(a) in (1)", "a like 'x'", "(p = 1) and a between 1 and 2"],
)
def test_an_unknown_key_is_refused_in_hives_words(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"Specified key <[aA]> is not a partitioning key"):
        partition_chooser(text, KEYS)


def test_alternatives_of_one_key_are_one_condition() -> None:
    text = " or ".join(f"p = {number}" for number in range(5_000))
    chooses = partition_chooser(text, KEYS)
    assert [index for index, row in enumerate(ROWS) if chooses(row)] == [0, 1, 2, 3, 6]


def test_folded_alternatives_choose_what_each_of_them_would() -> None:
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


def test_a_thousand_values_on_a_hundred_thousand_partitions_take_no_time() -> None:
    chooses = partition_chooser(f"(p) in ({', '.join(map(str, range(1000)))})", KEYS)
    start = time.process_time()
    assert sum(chooses((str(i % 2000), "x")) for i in range(100_000)) == 50_000
    assert time.process_time() - start < 2.0
