"""``docs/reference/type-changes.md`` says of every pair of types what the program does with it."""

from __future__ import annotations

import re
from itertools import product

from strandline.errors import IllegalChange
from strandline.model.type_changes import check_change
from strandline.model.type_parser import parse_type
from tests.project.checkout import ROOT

PAGE = (ROOT / "docs" / "reference" / "type-changes.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    part = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def allowed(before: str, after: str) -> bool:
    try:
        check_change(parse_type(before), parse_type(after))
    except IllegalChange:
        return False
    return True


def test_every_pair_of_scalar_types_is_as_told() -> None:
    told = {first.strip("`"): cell for first, cell in rows("Scalar types")}
    assert len(told) == 31
    targets = {
        before: set(told) if cell == "every type" else {before, *re.findall(r"`([^`]+)`", cell)}
        for before, cell in told.items()
    }
    wrong = [
        (before, after)
        for before, after in product(told, told)
        if allowed(before, after) != (after in targets[before])
    ]
    assert wrong == []


def test_changes_compose() -> None:
    types = [first.strip("`") for first, _ in rows("Scalar types")]
    can = {(a, b) for a, b in product(types, types) if allowed(a, b)}
    gaps = [(a, c) for (a, b), c in product(can, types) if (b, c) in can and (a, c) not in can]
    assert gaps == []


def test_changes_of_nested_types_are_as_told() -> None:
    told = rows("Nested types")
    assert {cell for _, _, cell in told} == {"yes", "no"}
    for before, after, cell in told:
        assert allowed(before.strip("`"), after.strip("`")) == (cell == "yes"), (before, after)
