"""The demo's comparison finds differences: a checker that cannot fail proves nothing."""

from __future__ import annotations

import pytest
from rich.console import Console

from strandline.cli.demo.report import Report, same


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, 1),
        (0.1 + 0.2, 0.3),
        (2, 2.0),
        (float("nan"), float("nan")),
        ([(1, "a")], [(1, "a")]),
        ({1, 2}, {2, 1}),
        (True, True),
    ],
)
def test_equal_values_compare_as_the_same(expected: object, actual: object) -> None:
    assert same(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, 2),
        (1, "1"),
        (1, True),
        (1.0, 1.000001),
        (1.0, None),
        (None, 0),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ((1, 2.5), (1, 2.6)),
        ({1}, {2}),
        ([(336776, 0)], [(336776, 1)]),
    ],
)
def test_different_values_are_recorded_as_a_failure(expected: object, actual: object) -> None:
    report = Report(Console(quiet=True))
    report.compare("a number", expected=expected, actual=actual)
    assert [check.what for check in report.failures()] == ["a number"]
