"""Filters of partitions."""

from __future__ import annotations

from tests.metastore.hive.differential.scenario import Scenario, partition, table

_DEFAULT = "__HIVE_DEFAULT_PARTITION__"


def _filtered(schema: str, name: str, *filters: str | None) -> tuple[tuple[object, ...], ...]:
    return tuple(("values", "get_partitions_by_filter", schema, name, text, -1) for text in filters)


FIRST_SCENARIOS = (
    Scenario(
        "filters on numbers",
        (
            ("create_database", {"name": "fn"}),
            ("create_table", table("fn", "t", keys="i int")),
            ("create_table", table("fn", "big", keys="l bigint")),
            (
                "add_partitions",
                [partition("fn", "t", i) for i in ("1", "2", "10", "-3", "007", _DEFAULT)],
            ),
            (
                "add_partitions",
                [partition("fn", "big", n) for n in ("1", "10000000000", "-5", "0", _DEFAULT)],
            ),
            *_filtered(
                "fn",
                "t",
                "i = 1",
                "1 = i",
                "i = 7",
                "i != 1",
                "i <> 1",
                "i > 1",
                "i >= 2 and i < 10",
                "i < 0 or i > 2",
                "i = -3",
                "(i) in (1, 10)",
                "(i) not in (1, 10)",
                "i between 1 and 7",
                "i not between 1 and 7",
                "i = 01",
                "i = 99999999999",
                "2 < i",
                "",
            ),
            *_filtered(
                "fn", "big", "l = 10000000000", "l > 0", "l <= 0", "l != 0", "(l) in (0, 1)"
            ),
            ("drop_table", "fn", "t", True),
            ("drop_table", "fn", "big", True),
        ),
    ),
    Scenario(
        "filters on dates",
        (
            ("create_database", {"name": "fd"}),
            ("create_table", table("fd", "t", keys="d date")),
            (
                "add_partitions",
                [
                    partition("fd", "t", d)
                    for d in ("2020-01-01", "2020-06-30", "2021-01-01", "2019-12-31", _DEFAULT)
                ],
            ),
            *_filtered(
                "fd",
                "t",
                'd = "2020-01-01"',
                "d = 2020-01-01",
                'd > "2020-01-01"',
                'd >= "2020-01-01" and d <= "2020-12-31"',
                'd between "2020-01-01" and "2020-12-31"',
                'd not between "2020-01-01" and "2020-12-31"',
                '(d) in ("2020-01-01")',
                "(d) in (2020-01-01, 2021-01-01)",
                "(d) not in (2020-01-01, 2021-01-01)",
                'd != "2020-01-01"',
            ),
            ("drop_table", "fd", "t", True),
        ),
    ),
)
"""These run first, on an empty metastore: on PostgreSQL, Hive also casts the values of other tables
and keys, and refuses a filter if one of them does not cast. Whether it does so depends on the query
plan of the database.
"""

SCENARIOS = (
    Scenario(
        "filters on texts",
        (
            ("create_database", {"name": "fs"}),
            ("create_table", table("fs", "t", keys="q string, R string")),
            (
                "add_partitions",
                [
                    partition("fs", "t", q, r)
                    for q, r in (
                        ("a", "1"),
                        ("b", "2"),
                        ("B", "10"),
                        ("ab", "x"),
                        ("a.b", "x"),
                        ("100%", "x_y"),
                        ("it's", "x"),
                        ('q"q', "x"),
                        ("Grüße", "é"),
                        (_DEFAULT, "x"),
                        ("", "y"),
                        ("null", "z"),
                    )
                ],
            ),
            *_filtered(
                "fs",
                "t",
                'q = "a"',
                "q = 'a'",
                'Q = "a"',
                '"a" = q',
                'q != "a"',
                'q <> "a"',
                'q > "a"',
                'q < "a"',
                'q > "Z"',
                'q >= "b" and q < "c"',
                'q = "a" or q = "b"',
                '(q = "a" or q = "b") and r = "1"',
                'q = "a" OR q = "b" AND r = "2"',
                'q like "a%"',
                'q like ".*"',
                'q like ""',
                'q like "a.*"',
                'q like ".*b"',
                'q like "a.b"',
                'q like "a_"',
                'q like "100%"',
                'r like "x_y"',
                '(q) in ("a", "b")',
                '(q) IN ("a")',
                '(q) not in ("a", "b")',
                'q in ("a")',
                '(q, r) in (("a", "1"))',
                'q between "a" and "b"',
                'q not between "a" and "b"',
                'r = "x" and q not between "a" and "b"',
                f'(q) not in ("{_DEFAULT}", "a")',
                '(q) in ("", "a")',
                'q <= ""',
                "q = 1",
                "r = 1",
                "r > 1",
                'r = "10"',
                "q = 'it''s'",
                'q = "it\'s"',
                "q = 'q\"q'",
                'q = "Grüße"',
                f'q = "{_DEFAULT}"',
                f'q != "{_DEFAULT}"',
                'q = ""',
                'q = "null"',
                "q is null",
                "q = null",
                "q",
                'not q = "a"',
                'no_such = "a"',
                "a = 1",
                'q = "a',
                'q == "a"',
                'q = "a" and',
                '(q = "a"',
                "1 = 1",
                "true",
                'q = "a" ; drop',
                "",
                None,
            ),
            ("get_partitions_by_filter", "fs", "t", 'q = "ab"', -1),
            ("values", "get_partitions_by_filter", "fs", "t", 'q > "a"', 2),
            ("values", "get_partitions_by_filter", "fs", "t", 'q > "a"', 0),
            ("get_partitions_by_filter", "fs", "t", 'q = "none"', -1),
            ("get_partitions_by_filter", "fs", "no_such", 'q = "a"', -1),
            ("get_partitions_by_filter", "no_such", "t", 'q = "a"', -1),
            ("get_partitions_by_filter", "fs", None, 'q = "a"', -1),
            ("get_num_partitions_by_filter", "fs", "t", 'q > "a"'),
            ("get_num_partitions_by_filter", "fs", "t", ""),
            ("get_num_partitions_by_filter", "fs", "t", "nonsense"),
            ("get_num_partitions_by_filter", "fs", "no_such", 'q = "a"'),
            ("create_table", table("fs", "plain")),
            ("get_partitions_by_filter", "fs", "plain", "a = 1", -1),
            ("get_partitions_by_filter", "fs", "plain", "", -1),
        ),
    ),
    Scenario(
        "filters that literals of another type are in",
        (
            ("create_database", {"name": "fl"}),
            ("create_table", table("fl", "i", keys="i int")),
            ("create_table", table("fl", "d", keys="d date")),
            ("add_partitions", [partition("fl", "i", i) for i in ("1", "2", "10", _DEFAULT)]),
            (
                "add_partitions",
                [partition("fl", "d", d) for d in ("2020-01-01", "2021-06-30", _DEFAULT)],
            ),
            *_filtered(
                "fl",
                "i",
                f'i = "{_DEFAULT}"',
                f'i != "{_DEFAULT}"',
                'i = "1"',
                'i > "1"',
                'i like "1.*"',
                "i = 1.0",
            ),
            *_filtered(
                "fl",
                "d",
                f'd = "{_DEFAULT}"',
                "d = date '2020-01-01'",
                'd = "no date"',
                'd like "2020.*"',
            ),
        ),
    ),
    Scenario(
        "filters on values that do not cast",
        (
            ("create_database", {"name": "fb"}),
            ("create_table", table("fb", "t", keys="i int, q string")),
            (
                "add_partitions",
                [
                    partition("fb", "t", i, q)
                    for i, q in (("1", "x"), ("01", "x"), ("abc", "x"), ("2", "y"))
                ],
            ),
            *_filtered(
                "fb",
                "t",
                "i = 1",
                "i > 0",
                'i = 1 and q = "x"',
                'q = "x"',
                "(i) in (1, 2)",
                'i = "1"',
            ),
        ),
    ),
    Scenario(
        "filters on whole numbers with a decimal point",
        (
            ("create_database", {"name": "fw"}),
            ("create_table", table("fw", "t", keys="i int")),
            ("add_partitions", [partition("fw", "t", i) for i in ("1", "1.0", "-2.00", "3")]),
            *_filtered("fw", "t", "i = 1", "i <= 1", "i != 1"),
        ),
    ),
)
