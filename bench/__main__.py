"""`python -m bench [--only group,group] [--output FILE]`: measure, print, and write the rows.

Exit status: 0 when every chosen benchmark gave its rows, whether or not it met its target; 1 when
one failed; 2 when a group is not known.
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
"""Columns of the table where it does not go to a terminal; a row is one line then."""


def main(
    arguments: Sequence[str],
    *,
    package: ModuleType = bench,
    registry: Registry = DECLARED,
    console: Console | None = None,
) -> int:
    """Run what the arguments choose; give the exit status."""
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
    found, failed = measure(chosen, console)
    report.write(options.output, found)
    report.show(console, found)
    console.print(f"rows: {options.output}", markup=False)
    for entry in failed:
        print(f"failed: {entry.group}/{entry.name}", file=sys.stderr)
    return 1 if failed else 0


def measure(
    chosen: Sequence[Benchmark], console: Console
) -> tuple[list[report.Row], list[Benchmark]]:
    """Run each in turn: the rows of those that succeed, and those that fail."""
    found: list[report.Row] = []
    failed: list[Benchmark] = []
    for entry in chosen:
        console.print(f"measuring {entry.group}: {entry.name}", markup=False)
        try:
            found += report.rows(entry, entry.run())
        except Exception:  # one benchmark's failure, of whatever kind, must not hide the others
            traceback.print_exc()
            failed.append(entry)
    return found, failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
