"""Arguments, options and output formats that several commands share."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strandline.config import Settings
from strandline.logs import in_one_line

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


def _not_blank(_: click.Context, option: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("it is empty; name the user that the history will show")
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
    callback=_not_blank,
    show_default="the user of the system",
    help="The user who does this; the history shows the name.",
)


PIPE_WIDTH = 400
"""Columns if there is no terminal, so that lines in a pipe or file are not wrapped."""


def new_console() -> Console:
    """Return a console on standard output, as wide as the terminal or `PIPE_WIDTH`."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def print_json(record: object) -> None:
    """Print one line of ``--output json``."""
    is_utf_8 = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")
    click.echo(json.dumps(record, ensure_ascii=not is_utf_8))


def new_table(*columns: str) -> Table:
    """Return a table without borders. Without columns, it has no header."""
    return Table(*columns, box=None, pad_edge=False, show_header=bool(columns))


def counted(count: int, noun: str) -> str:
    """Return a number and its noun: ``1 file``, ``2,000 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def cells(*texts: str) -> Iterator[Text]:
    """Return the cells of a table row: each is one line, and no text in it is markup."""
    return (Text(in_one_line(text)) for text in texts)
