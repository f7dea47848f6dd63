"""``docs/reference/type-changes.md`` says correctly which type changes the program allows."""

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


def test_the_page_is_right_about_every_pair_of_scalar_types() -> None:
    cells = {first.strip("`"): cell for first, cell in rows("Scalar types")}
    assert len(cells) == 31
    targets = {
        before: set(cells) if cell == "every type" else {before, *re.findall(r"`([^`]+)`", cell)}
        for before, cell in cells.items()
    }
    wrong = [
        (before, after)
        for before, after in product(cells, cells)
        if allowed(before, after) != (after in targets[before])
    ]
    assert wrong == []


def test_allowed_type_changes_are_transitive() -> None:
    types = [first.strip("`") for first, _ in rows("Scalar types")]
    can = {(a, b) for a, b in product(types, types) if allowed(a, b)}
    gaps = [(a, c) for (a, b), c in product(can, types) if (b, c) in can and (a, c) not in can]
    assert gaps == []


def test_the_page_is_right_about_nested_types() -> None:
    cells = rows("Nested types")
    assert {cell for _, _, cell in cells} == {"yes", "no"}
    for before, after, cell in cells:
        assert allowed(before.strip("`"), after.strip("`")) == (cell == "yes"), (before, after)
