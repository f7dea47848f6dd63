"""The commands, and how an error becomes one line and an exit status.

Each command is a module of its own, imported when it is called: ``strandline --help`` does not wait
for Spark.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from strandline import __version__
from strandline.errors import StrandlineError, surface_of

COMMANDS = {
    "serve": "strandline.cli.serve",
    "log": "strandline.cli.log",
    "diff": "strandline.cli.diff",
    "undo": "strandline.cli.undo",
    "undrop": "strandline.cli.undrop",
    "demo": "strandline.cli.demo",
}
"""Every command, and the module whose ``command`` it is."""


class _Commands(click.Group):
    """Loads a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name]).command
        return command

    def invoke(self, ctx: click.Context) -> Any:  # Any: what the command returns
        try:
            return super().invoke(ctx)
        except StrandlineError as error:
            click.echo(f"strandline: {error.message}", err=True)
            sys.exit(surface_of(error).exit)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="strandline")
def main() -> None:
    """Strandline: a versioned, transactional metastore for Spark."""
