"""The form of test cases about bytes and numbers: a table of values.

A test module has such tables, and runs each by a test that is parametrized with its ``rows``.
``tests/catalog/test_cases.py`` counts which cases they claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CaseTable:
    """``cases`` and ``note`` are as in a `tests.catalog.scenario.Scenario`."""

    name: str
    rows: Sequence[Any]
    """The arguments of the test, one row each."""
    cases: Sequence[int]
    note: str = ""
