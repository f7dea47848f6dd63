"""Converts results to rows, and rows to a table for people and a file for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.registry import Benchmark, Measured, Result


@dataclass(frozen=True, slots=True)
class Row:
    """One row of `bench.json`. The fields are its keys, in this order.

    ``ratio`` is value / reference. ``met`` is whether the value reaches the target, or null if
    the row has no target.
    """

    group: str
    name: str
    value: float
    unit: str
    reference: float | None
    ratio: float | None
    target: float | None
    met: bool | None


def rows(benchmark: Benchmark, result: Result) -> list[Row]:
    """Return the rows for the result of a benchmark.

    Raises ValueError if the result is empty or two results have the same name.
    """
    if isinstance(result, Measured):
        results: Sequence[Measured] = [result]
    elif isinstance(result, (int, float)):
        results = [Measured(float(result))]
    else:
        results = result
    made = [_row(benchmark, measured) for measured in results]
    if not made or len({row.name for row in made}) < len(made):
        names = ", ".join(row.name for row in made) or "nothing"
        raise ValueError(f"{benchmark.group}/{benchmark.name} gave {names}; names must differ")
    return made


def _row(benchmark: Benchmark, measured: Measured) -> Row:
    target = benchmark.target if measured.target is None else measured.target
    name = benchmark.name if measured.label is None else f"{benchmark.name}, {measured.label}"
    if target is None:
        met = None
    elif benchmark.better == "higher":
        met = measured.value >= target
    else:
        met = measured.value <= target
    return Row(
        group=benchmark.group,
        name=name,
        value=measured.value,
        unit=measured.unit or benchmark.unit,
        reference=measured.reference,
        ratio=measured.value / measured.reference if measured.reference else None,
        target=target,
        met=met,
    )


def write(path: Path, measured_rows: Sequence[Row]) -> None:
    """Replace the file at ``path`` with these rows, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    text = json.dumps([asdict(row) for row in measured_rows], indent=2, allow_nan=False)
    draft.write_text(f"{text}\n", encoding="utf-8")
    os.replace(draft, path)


def show(console: Console, measured_rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    table = Table("group", "benchmark", title=f"on {os.cpu_count()} cores", title_justify="left")
    for heading in ("value", "unit", "reference", "ratio", "target", "met"):
        table.add_column(heading, justify="left" if heading in ("unit", "met") else "right")
    for row in measured_rows:
        table.add_row(
            row.group,
            row.name,
            number(row.value),
            row.unit,
            number(row.reference),
            number(row.ratio),
            number(row.target),
            {True: "yes", False: "[bold red]no[/]", None: ""}[row.met],
        )
    console.print(table)


def number(value: float | None) -> str:
    """Return a number as text: from 1,000 on whole, with commas, else four digits; "" for None."""
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
