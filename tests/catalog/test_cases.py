"""Every behaviour in the catalog's specification is covered by data.

The specification numbers 88 behaviours. A `Scenario` shows what commands do, a `Timeline` what
nodes do in sequence, a `CaseTable` how values are treated. Each lists in ``cases`` the behaviours
that it covers, and states in ``note`` where this catalog differs from other catalogs.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from tests import test_clock
from tests.case_table import CaseTable
from tests.catalog import test_history, test_scenarios, test_timelines
from tests.golden import test_goldens
from tests.wire import test_registry

BEHAVIOURS = range(1, 89)

GOLDEN = CaseTable(
    "golden bytes, in both directions",
    cases=[84],
    rows=test_goldens.GOLDENS,
    note="the bytes of our own releases, written down by hand; those of other systems mean nothing",
)
TABLES = [(GOLDEN, test_goldens)] + [
    (table, module)
    for module in (test_clock, test_history, test_registry)
    for table in vars(module).values()
    if isinstance(table, CaseTable)
]


def claims() -> Iterator[tuple[int, str]]:
    """Each number that is covered, and what covers it."""
    for module, scenario in test_scenarios.ALL:
        yield from ((case, f"{module}: {scenario.name}") for case in scenario.cases)
    for module, timeline in test_timelines.ALL:
        yield from ((case, f"{module}: {timeline.name}") for case in timeline.cases)
    for table, _ in TABLES:
        yield from ((case, table.name) for case in table.cases)


def is_run(table: CaseTable, module: ModuleType) -> bool:
    """Whether a test of ``module`` is parametrized with all rows of ``table``."""
    marks = [
        mark
        for name, value in vars(module).items()
        if name.startswith("test_")
        for mark in getattr(value, "pytestmark", [])
        if mark.name == "parametrize"
    ]
    return any(mark.args[1] is table.rows for mark in marks)


def test_exactly_the_specified_behaviours_are_covered() -> None:
    assert {number for number, _ in claims()} == set(BEHAVIOURS)


def test_every_case_table_has_rows_and_is_run() -> None:
    assert [table.name for table, _ in TABLES if not table.rows] == []
    assert [table.name for table, module in TABLES if not is_run(table, module)] == []


def test_a_case_table_that_no_test_runs_is_detected() -> None:
    assert not is_run(CaseTable("alone", rows=[1], cases=[1]), test_registry)
