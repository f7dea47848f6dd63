"""`python -m bench [--only group,group] [--output FILE]` measures, prints and writes the rows.

Exit status: 0 if every chosen benchmark returned its rows, whether or not it met its target; 1 if
one failed; 2 if a group is unknown.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console

import bench
from bench import report
from bench.registry import DECLARED, Benchmark, Registry, UnknownGroup

OUTPUT = Path("build/bench.json")
FILE_WIDTH = 160
"""The width of the table in columns if the output is not a terminal. A row is then one line."""


def main(
    arguments: Sequence[str],
    *,
    package: ModuleType = bench,
    registry: Registry = DECLARED,
    console: Console | None = None,
) -> int:
    """Run the chosen benchmarks and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Runs the benchmarks.")
    parser.add_argument("--only", default="", help="groups to run, separated by commas")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file of the rows")
    options = parser.parse_args(arguments)
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    only = {name.strip() for name in options.only.split(",") if name.strip()}
    try:
        chosen = registry.load(package, only=only)
    except UnknownGroup as error:
        print(error, file=sys.stderr)
        return 2
    rows, failed = measure(chosen, console)
    report.write(options.output, rows)
    report.show(console, rows)
    console.print(f"rows: {options.output}", markup=False)
    for entry in failed:
        print(f"failed: {entry.group}/{entry.name}", file=sys.stderr)
    return 1 if failed else 0


def measure(
    chosen: Sequence[Benchmark], console: Console
) -> tuple[list[report.Row], list[Benchmark]]:
    """Run the benchmarks one by one. Return the rows, and the benchmarks that failed."""
    rows: list[report.Row] = []
    failed: list[Benchmark] = []
    for entry in chosen:
        console.print(f"measuring {entry.group}: {entry.name}", markup=False)
        try:
            rows += report.rows(entry, entry.run())
        except Exception:  # one benchmark's failure, of whatever kind, must not hide the others
            traceback.print_exc()
            failed.append(entry)
    return rows, failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
