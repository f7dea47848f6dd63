"""Patterns of partition names leave out no partition that a filter chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import Database, FieldSchema, Partition
from hypothesis import given
from hypothesis import strategies as st

from strandline.config import Settings
from strandline.metastore.hive.partition_filter import (
    And,
    Comparison,
    Expression,
    In,
    Literal,
    Or,
    bind_filter,
    parse_filter,
)
from strandline.metastore.hive.partition_name_patterns import (
    MAX_LENGTH,
    pattern_of_filter,
    pattern_of_values,
)
from strandline.metastore.hive.partition_values import DEFAULT_PARTITION, partition_name
from strandline.model.type_parser import parse_type
from tests.metastore.hive.hive_node import hive_node, storage, table
from tests.metastore.hive.test_partition_filter import SCENARIOS
from tests.servers import stores

NAMES, TYPES = ("ds", "h", "day"), ("string", "int", "date")
KEYS = [(name, parse_type(text)) for name, text in zip(NAMES, TYPES, strict=True)]
VALUES = {
    "ds": [
        "a",
        "ab",
        "a!",
        "a_b",
        "a%b",
        "a/b=c",
        "b\\",
        "B",
        "",
        DEFAULT_PARTITION,
        "2026-11-26",
        "é",
    ],
    "h": ["7", "07", "+7", "-7", "17", "0", "x", DEFAULT_PARTITION],
    "day": ["2026-01-05", "2026-1-5", "2026-11-05", "soon", DEFAULT_PARTITION],
}


def matches(pattern: str | None, name: str) -> bool:
    """Whether SQL's LIKE, with ``!`` as its escape, finds that the name matches."""
    if pattern is None:
        return True
    parts = re.findall("!(.)|(%)|(.)", pattern, re.DOTALL)
    text = "".join(".*" if any_text else re.escape(kept or one) for kept, any_text, one in parts)
    return re.fullmatch(text, name, re.DOTALL) is not None


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("", None),
        ("ds = 'x'", "ds=x/%"),
        ("DS = 'x' and h = 7 and day = '2026-01-05'", "ds=x/h=%7%/day=%2026-%1-%5%"),
        ("ds = 'a_b%c/d'", "ds=a!_b!%25c!%2Fd/%"),
        ("ds = ''", "ds=!_!_HIVE!_DEFAULT!_PARTITION!_!_/%"),
        (f"h = '{DEFAULT_PARTITION}'", "%/h=!_!_HIVE!_DEFAULT!_PARTITION!_!_/%"),
        ("h = -7", "%/h=%7%"),
        ("ds >= '2026-11-01' and ds < '2026-11-30'", "ds=2026-11-%"),
        ("ds between 'aa' and 'ab'", "ds=a%"),
        ("(ds) in ('ab1', 'ab2')", "ds=ab%"),
        ("(ds = 'ab1' or ds = 'ab2') and h = 1", "ds=ab%/h=%1%"),
        ("ds > 'a'", None),
        ("ds != 'a'", None),
        ("ds = 7", None),
        ("ds = 'a' or h = 7", None),
        ("h = 7.5", None),
        ("h = '1e9999'", None),
        ("(h) in (1, 2)", None),
        (f"ds = '{'x' * MAX_LENGTH}'", None),
    ],
)
def test_a_filter_becomes_a_pattern_of_names(text: str, pattern: str | None) -> None:
    assert pattern_of_filter(parse_filter(text), KEYS) == pattern


@pytest.mark.parametrize(
    ("values", "begins", "pattern"),
    [
        (["a", "7", "x"], None, "ds=a/h=7/day=x"),
        (["a", "", "x"], None, "ds=a/%/day=x"),
        (["a", "7"], 1, "ds=a/h=7%"),
        (["", ""], 1, None),
    ],
)
def test_values_become_a_pattern_of_names(
    values: list[str], begins: int | None, pattern: str | None
) -> None:
    assert pattern_of_values(values, keys=NAMES, begins=begins) == pattern


@pytest.mark.parametrize(("key_type", "values", "text", "chosen"), SCENARIOS)
def test_a_pattern_matches_what_the_filter_chooses_for_each_type(
    key_type: str, values: list[str], text: str, chosen: list[str]
) -> None:
    pattern = pattern_of_filter(parse_filter(text), [("p", parse_type(key_type))])
    assert all(matches(pattern, partition_name(["p"], [value])) for value in chosen)


def test_a_pattern_of_a_padded_text_also_matches_one_with_spaces_at_its_end() -> None:
    keys, value = [("p", parse_type("char(40)"))], f"{DEFAULT_PARTITION} "
    expression = parse_filter(f"p = '{DEFAULT_PARTITION}'")
    assert bind_filter(expression, keys)([value])
    assert matches(pattern_of_filter(expression, keys), partition_name(["p"], [value]))


texts = st.sampled_from([value for values in VALUES.values() for value in values])
numbers = st.sampled_from(["7", "-7", "0", "7.0", "17"])
literals = st.builds(Literal, texts) | st.builds(Literal, numbers, is_number=st.just(True))
names = st.sampled_from(NAMES)
symbols = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
conditions = st.builds(Comparison, names, symbols, literals) | st.builds(
    In, names, st.lists(literals, min_size=1).map(tuple), negated=st.booleans()
)
filters = st.recursive(
    conditions,
    lambda parts: (
        st.builds(And, st.lists(parts, min_size=1, max_size=4).map(tuple))
        | st.builds(Or, st.lists(parts, min_size=1, max_size=4).map(tuple))
    ),
    max_leaves=6,
)
rows = st.tuples(*(st.sampled_from(VALUES[name]) for name in NAMES))


@pytest.mark.slow
@given(filters, st.lists(rows, min_size=1, max_size=20))
def test_a_pattern_matches_all_that_any_filter_chooses(
    expression: Expression, some: list[tuple[str, ...]]
) -> None:
    chooses, pattern = bind_filter(expression, KEYS), pattern_of_filter(expression, KEYS)
    for values in some:
        assert matches(pattern, partition_name(NAMES, values)) or not chooses(values)


@pytest.fixture(params=["folder", "postgresql"])
def forgetful(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A client of a node without memory, so that each answer comes from the store."""
    settings = Settings(cache_bytes=0, delay_ms=0, clock_skew_ms=0)
    store = stores.new_store(request.param, tmp_path / "lake", settings=settings)
    with hive_node(store.address, settings=store.settings) as node, node.stub() as stub:
        yield stub


def test_the_store_finds_the_partitions_of_a_filter_by_their_names(forgetful: Any) -> None:
    keys = [FieldSchema(name, text, None) for name, text in zip(NAMES, TYPES, strict=True)]
    forgetful.create_database(Database("d1"))
    forgetful.create_table(table("t1", partitionKeys=keys))
    known = {
        partition_name(NAMES, values): values
        for ds in VALUES["ds"]
        for values in ((ds, "7", "2026-01-05"), (ds, "07", "2026-1-5"), (ds, "17", "soon"))
    }
    forgetful.add_partitions(
        [Partition([*values], "d1", "t1", sd=storage()) for values in known.values()]
    )
    for text in (
        "ds = 'a'",
        "ds = 'a_b'",
        "ds = 'a!'",
        "ds = 'a%b' and h = 7",
        "ds = 'a/b=c'",
        "ds = 'b\\'",
        "ds = 'B'",
        "h = 7 and day = '2026-01-05'",
        "ds >= 'a' and ds <= 'ab'",
        "(ds) in ('a', 'ab')",
        "ds = 'é'",
    ):
        chooses = bind_filter(parse_filter(text), KEYS)
        chosen = {name for name, values in known.items() if chooses(values)}
        listed = forgetful.get_partitions_by_filter("d1", "t1", text, -1)
        assert {partition_name(NAMES, row.values) for row in listed} == chosen
        assert forgetful.get_num_partitions_by_filter("d1", "t1", text) == len(chosen)
    for ds in VALUES["ds"]:
        chosen = {name for name, values in known.items() if ds in ("", values[0])}
        if ds == DEFAULT_PARTITION:
            chosen |= {name for name, values in known.items() if not values[0]}
        assert {*forgetful.get_partition_names_ps("d1", "t1", [ds, "", ""], -1)} == chosen
    assert len(forgetful.get_partition_names_ps("d1", "t1", ["a", "1"], -1)) == 1
