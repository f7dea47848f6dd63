from __future__ import annotations

import pytest

from strandline.errors import InvalidInput
from strandline.metastore.hive.name_patterns import name_pattern

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
    ],
)
def test_names_are_chosen_as_in_hive(pattern: str | None, chosen: list[str]) -> None:
    fits = name_pattern(pattern)
    assert [name for name in NAMES if fits(name)] == chosen


@pytest.mark.parametrize("pattern", ["[", "a|(b", "air(lines|ports)", "+"])
def test_a_wrong_pattern_is_refused(pattern: str) -> None:
    # Every bar separates, also one in parentheses.
    with pytest.raises(InvalidInput, match="regular expression"):
        name_pattern(pattern)
