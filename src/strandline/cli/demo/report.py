"""What the demo says while it runs: bars and colours for people, plain lines for a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from strandline.cli.demo.checks import Ledger


class Bar:
    """A count of things done out of a known number."""

    def __init__(self, progress: Progress | None, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def step(self) -> None:
        """One more is done."""
        if self._progress is not None:
            self._progress.advance(self._task)


class Report:
    """Where the demo writes. Plain text when ``console`` is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def heading(self, number: int, text: str) -> None:
        """A step begins."""
        self._console.print(f"\n[bold]{number}. {text}[/bold]")

    def say(self, text: str) -> None:
        """A line of what happened."""
        self._console.print(f"   {text}", highlight=False)

    @contextmanager
    def bar(self, what: str, *, total: int) -> Iterator[Bar]:
        """A bar for what takes long; a line where there is no terminal to draw it on."""
        if not self._console.is_terminal:
            self.say(f"{what} …")
            yield Bar(None, TaskID(0))
            return
        columns = (
            TextColumn("   {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            yield Bar(progress, progress.add_task(what, total=total))

    def table(self, table: Table) -> None:
        """A table, as wide as the terminal allows."""
        self._console.print(table)

    def summary(self, ledger: Ledger, *, seconds: float) -> None:
        """Each step with its checks, each failure in full."""
        table = Table(title="Summary", title_justify="left")
        table.add_column("step")
        table.add_column("checks", justify="right")
        table.add_column("hold", justify="right")
        for step in dict.fromkeys(check.step for check in ledger.checks):
            of_step = [check for check in ledger.checks if check.step == step]
            held = sum(check.holds for check in of_step)
            style = "green" if held == len(of_step) else "red"
            table.add_row(step, str(len(of_step)), f"[{style}]{held}[/{style}]")
        self._console.print()
        self._console.print(table)
        for check in ledger.failures():
            self._console.print(
                f"FAILED {check.step}: {check.what}: expected {check.expected!r}, "
                f"found {check.found!r}",
                style="red",
                highlight=False,
            )
        total, failed = len(ledger.checks), len(ledger.failures())
        self._console.print(f"{total - failed} of {total} checks hold; {seconds:.0f} s")
