"""Where the commands write."""

from __future__ import annotations

from rich.console import Console

PIPE_WIDTH = 400
"""Columns where there is no terminal: a line of a pipe or a file is not broken for a screen."""


def new_console() -> Console:
    """Standard output: as wide as the terminal, or wide where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)
