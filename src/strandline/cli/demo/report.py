"""The checks of the demo, each number with the expected one, and its output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

FLOAT_TOLERANCE = 1e-9
"""Relative; the last bits of a sum of floats depend on the order of addition."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of one step."""

    step: str
    what: str
    expected: object
    actual: object

    @property
    def holds(self) -> bool:
        return same(self.expected, self.actual)


def same(expected: object, actual: object) -> bool:
    """Whether two answers are equal, except for the last bits of floats."""
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, float) or isinstance(actual, float):
        if not isinstance(expected, int | float) or not isinstance(actual, int | float):
            return False
        both_nan = math.isnan(expected) and math.isnan(actual)
        return both_nan or math.isclose(expected, actual, rel_tol=FLOAT_TOLERANCE, abs_tol=1e-12)
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    return type(expected) is type(actual) and expected == actual


class Report:
    """All checks, in the order in which they ran, and the output of the demo.

    The output is plain text if ``console`` is not a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._step = ""
        self._checks: list[Check] = []

    def heading(self, number: int, name: str, text: str) -> None:
        """Begin the step ``name``. All checks until the next heading belong to it."""
        self._step = f"{number} {name}"
        self._console.print(f"\n[bold]{number}. {text}[/bold]")

    def compare(self, what: str, *, expected: object, actual: object) -> None:
        self._checks.append(Check(self._step, what, expected, actual))

    def failures(self) -> list[Check]:
        return [check for check in self._checks if not check.holds]

    def say(self, text: str) -> None:
        self._console.print(f"   {text}", highlight=False)

    @contextmanager
    def bar(self, what: str, *, total: int) -> Iterator[Callable[[], None]]:
        """Show a progress bar, or print a line if there is no terminal.

        Yield the function that advances it by one of ``total`` steps.
        """
        if not self._console.is_terminal:
            self.say(f"{what} …")
            yield lambda: None
            return
        columns = (
            TextColumn("   {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            yield partial(progress.advance, progress.add_task(what, total=total))

    def table(self, table: Table) -> None:
        """Print a table, as wide as the terminal allows."""
        self._console.print(table)

    def summary(self, *, seconds: float) -> None:
        """Print the number of checks of each step, and each failure in full."""
        table = Table(title="Summary", title_justify="left")
        table.add_column("step")
        table.add_column("checks", justify="right")
        table.add_column("hold", justify="right")
        for step in dict.fromkeys(check.step for check in self._checks):
            of_step = [check for check in self._checks if check.step == step]
            holding = sum(check.holds for check in of_step)
            style = "green" if holding == len(of_step) else "red"
            table.add_row(step, str(len(of_step)), f"[{style}]{holding}[/{style}]")
        self._console.print()
        self._console.print(table)
        for check in self.failures():
            self._console.print(
                f"FAILED {check.step}: {check.what}: expected {check.expected!r}, "
                f"found {check.actual!r}",
                style="red",
                highlight=False,
            )
        total, failed = len(self._checks), len(self.failures())
        self._console.print(f"{total - failed} of {total} checks hold; {seconds:.0f} s")
