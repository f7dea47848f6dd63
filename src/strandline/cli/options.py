"""Arguments, options and output formats that several commands share."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strandline.config import Settings
from strandline.logs import in_one_line
from strandline.model.identifiers import MAX_USER_LENGTH

Store = Path | str
"""The folder of a store, or the address of one on servers."""


class _Store(click.Path):
    """A store. An empty text is refused, because it would mean the current folder."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Store:
        text = str(value)
        if not text.strip():
            self.fail(
                "it is empty; name the folder of a store ('.' is the current one)", param, ctx
            )
        return text if "://" in text else Path(text)


def operating_user() -> str:
    """Return the name of the system user who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the system has no name for the user id
        return "unknown"


def allow_group(settings: Settings) -> None:
    """Let the group use new files if ``file_access`` says so; the usual umask would not."""
    if settings.file_access == "group":
        os.umask(0o007)


def _user_name(_: click.Context, option: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("it is empty; name the user that the history will show")
    if not value.isprintable() or len(value) > MAX_USER_LENGTH:
        raise click.BadParameter(
            f"{value[:80]!r} is not the name of a user; give 1 to {MAX_USER_LENGTH} printable"
            " characters"
        )
    return value


STORE_TYPE = _Store()
STORE = click.argument("store", type=STORE_TYPE)


class _File(click.Path):
    """A file. An empty text is refused, because it would mean a file in the current folder."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        if not str(value).strip():
            self.fail("it is empty; name the file", param, ctx)
        return Path(str(value))


FILE_TYPE = _File()
OUTPUT = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: one object per line.",
)
USER = click.option(
    "--user",
    default=operating_user,
    callback=_user_name,
    show_default="the operating system user",
    help="The user in whose name this is done.",
)


YES = ("no", "yes")
"""The words for False and True, in this order."""
PIPE_WIDTH = 400
"""Columns if there is no terminal, so that lines in a pipe or file are not wrapped."""
WRAPPED_ROWS = 500
"""The most rows that are wrapped to the width of a terminal; this takes a millisecond a row."""

Row = Sequence[str]
"""The cells of a row of a table. A cell may have several lines."""


def new_console() -> Console:
    """Return a console on standard output, as wide as the terminal or `PIPE_WIDTH`."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def print_table(columns: Row, rows: Iterable[Row]) -> None:
    """Print a table without borders. Without names of columns, it has no header.

    A short one on a terminal is wrapped to its width. In others, each line of a cell is one line.
    """
    listed, console = list(rows), Console()
    if console.is_terminal and len(listed) <= WRAPPED_ROWS:
        console.print(wrapped(columns, listed))
    else:
        header = [columns] if columns else []
        click.echo("".join(f"{line}\n" for line in _aligned([*header, *listed])), nl=False)


def wrapped(columns: Row, rows: Iterable[Row]) -> Table:
    """Return a table that a console wraps to its width; see `print_table`."""
    table = Table(*columns, box=None, pad_edge=False, show_header=bool(columns))
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))  # no text in it is markup
    return table


def _aligned(rows: Iterable[Row]) -> Iterator[str]:
    split = ([cell.split("\n") for cell in row] for row in rows)
    lines = [line for row in split for line in zip_longest(*row, fillvalue="")]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (
            text + " " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True)
        )
        yield "  ".join(padded).rstrip()


def print_json(record: object) -> None:
    """Print one line of ``--output json``."""
    is_utf_8 = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")
    click.echo(json.dumps(record, ensure_ascii=not is_utf_8))


def counted(count: int, noun: str) -> str:
    """Return a number and its noun: ``1 file``, ``2,000 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def cells(*texts: str) -> Row:
    """Return the cells of a table row, each in one line."""
    return [*map(in_one_line, texts)]
