"""The table of known mistakes in ``docs/reference/ddl-rules.md``: the tests that it names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.catalog.test_scenarios import ALL
from tests.project.checkout import ROOT

PAGE = ROOT / "docs" / "reference" / "ddl-rules.md"
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \|(.*)\|$", re.M)
NAMED = re.compile(r"`([^`]+)`")
FUNCTION = re.compile(r"^def (test_\w+)", re.M)


def known_tests() -> Iterator[str]:
    for module, scenario in ALL:
        yield f"{module}: {scenario.name}"
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in FUNCTION.findall(path.read_text()):
            yield f"{path.name}::{name}"


def missing(page: str, known: set[str]) -> list[str]:
    """What is wrong with the table: numbers, rows without a test, tests that do not exist."""
    rows = ROW.findall(page)
    problems = [f"{len(rows)} rows"] if len(rows) != 23 else []
    for position, (number, _, here, shown) in enumerate(rows, start=1):
        named = NAMED.findall(shown)
        if int(number) != position:
            problems.append(f"row {position} has the number {number}")
        if not named and not here.startswith("cannot happen: "):
            problems.append(f"row {number} names no test")
        problems += [f"{name} is no test" for name in named if name not in known]
    return problems


def test_every_known_mistake_is_impossible_or_has_a_test() -> None:
    assert missing(PAGE.read_text(), set(known_tests())) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("zones: another zone becomes", "zones: another zone is"),
        ("test_formats.py::", "test_other.py::"),
        ("| 19 |", "| 29 |"),
        ("cannot happen: ", "does not happen: "),
    ],
)
def test_the_check_finds_a_wrong_table(old: str, new: str) -> None:
    page = PAGE.read_text()
    assert old in page
    assert missing(page.replace(old, new, 1), set(known_tests())) != []
