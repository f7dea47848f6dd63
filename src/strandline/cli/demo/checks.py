"""The demo's ledger: every number that was compared, and what it was compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FLOAT_TOLERANCE = 1e-9
"""Relative: sums of floats differ in the last bits with the order of addition."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of one step."""

    step: str
    what: str
    expected: object
    found: object

    @property
    def holds(self) -> bool:
        """Whether both are the same."""
        return same(self.expected, self.found)


@dataclass(slots=True)
class Ledger:
    """All checks, in the order in which they were made."""

    checks: list[Check] = field(default_factory=list)

    def compare(self, step: str, what: str, *, expected: object, found: object) -> None:
        """Note that ``what`` was expected to be one thing and found to be another or the same."""
        self.checks.append(Check(step, what, expected, found))

    def failures(self) -> list[Check]:
        """The checks that do not hold."""
        return [check for check in self.checks if not check.holds]


def same(expected: object, found: object) -> bool:
    """Whether two answers are the same: exactly, but for the last bits of floats."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, float) or isinstance(found, float):
        if not isinstance(expected, int | float) or not isinstance(found, int | float):
            return False
        both_nan = math.isnan(expected) and math.isnan(found)
        return both_nan or math.isclose(expected, found, rel_tol=FLOAT_TOLERANCE, abs_tol=1e-12)
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(
            same(value, found[key]) for key, value in expected.items()
        )
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        return len(expected) == len(found) and all(map(same, expected, found))
    return type(expected) is type(found) and expected == found
