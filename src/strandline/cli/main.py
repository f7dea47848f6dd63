"""The commands, and how an error becomes one line and an exit status.

Each command is a module of its own, with a line in `COMMANDS`, and is imported when it is called:
``strandline --help`` imports none of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from strandline import __version__
from strandline.errors import StrandlineError, surface_of
from strandline.logs import in_one_line


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: the module that has it, what the list of commands says of it, and its name."""

    module: str
    summary: str
    name: str = "command"


COMMANDS = {
    "serve": Entry("strandline.cli.serve", "Run a node on the store in a folder."),
    "config": Entry("strandline.cli.config", "Show the settings of a node, and their origins."),
    "log": Entry("strandline.cli.log", "Show who changed what and when."),
    "diff": Entry("strandline.cli.diff", "Show what differs between two versions."),
    "undo": Entry("strandline.cli.undo", "Take back what a version did."),
    "undrop": Entry("strandline.cli.undrop", "Bring back what was dropped."),
    "trim": Entry("strandline.cli.trim", "Let go of old versions."),
    "status": Entry("strandline.cli.status", "Show how a store stands."),
    "backup": Entry("strandline.cli.backup", "Back up a store, while nodes run on it.", "backup"),
    "restore": Entry("strandline.cli.backup", "Restore a store from a backup.", "restore"),
    "role": Entry("strandline.cli.role", "Make, change, drop and list roles."),
    "grant": Entry("strandline.cli.grants", "Grant privileges to a role.", "grant"),
    "revoke": Entry("strandline.cli.grants", "Revoke privileges from a role.", "revoke"),
    "repair-clock": Entry(
        "strandline.cli.repair_clock", "Let a store go on whose time is far ahead."
    ),
    "relocate": Entry("strandline.cli.relocate", "Say that a folder was moved or copied."),
    "verify": Entry("strandline.cli.verify", "Check records and files of a store."),
    "accept-loss": Entry(
        "strandline.cli.accept_loss", "Go on with a store that has lost what was committed."
    ),
    "demo": Entry("strandline.cli.demo", "Run the main job, and check every number of it."),
}
"""Every command, in the order in which they are listed."""


class _Commands(click.Group):
    """Loads a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        entry = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(entry.module), entry.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            meant = f"; is {near[0]} meant?" if near else ""
            ctx.fail(f"there is no command {args[0]!r}{meant}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # Any: what the command returns
        try:
            return super().invoke(ctx)
        except StrandlineError as error:
            click.echo(f"strandline: {in_one_line(error.message)}", err=True)
            sys.exit(surface_of(error).exit)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="strandline")
def main() -> None:
    """Strandline: a versioned, transactional metastore for Spark."""
