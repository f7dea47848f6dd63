"""The commands, and how an error becomes one line and an exit status.

Each command is a function of the same name (with ``_`` for ``-``) and has an entry in `COMMANDS`.
Its module is imported when the command is called, so ``strandline --help`` imports none of them.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from strandline import __version__
from strandline.errors import SURFACES, StrandlineError, Unavailable, surface_of
from strandline.logs import in_one_line


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: its module in `strandline.cli`, and its line in the list of commands."""

    module: str
    summary: str


IO_ERROR = 74
"""The exit status if the system fails to read or write, as in sysexits.h."""

COMMANDS = {
    "serve": Entry("settings", "Run a node on a store."),
    "config": Entry("settings", "Show the settings of a node, and their origins."),
    "log": Entry("history", "Show who changed what and when."),
    "diff": Entry("history", "Show what differs between two versions."),
    "undo": Entry("changes", "Undo the changes of a version."),
    "undrop": Entry("changes", "Bring back a dropped object."),
    "trim": Entry("changes", "Trim old versions from the history."),
    "clean": Entry("changes", "Remove rows and files that no reader can see any more."),
    "status": Entry("status", "Show the state of a store."),
    "holders": Entry("status", "Show what keeps history, write ids or locks."),
    "storage-usage": Entry("status", "Show the sizes of the tables in bytes."),
    "backup": Entry("backup", "Back up a store while nodes run on it."),
    "restore": Entry("backup", "Restore a store from a backup."),
    "role": Entry("privileges", "Create, change, drop and list roles."),
    "grant": Entry("privileges", "Grant privileges to a role."),
    "revoke": Entry("privileges", "Revoke privileges from a role."),
    "parameter": Entry("parameters", "Show and set the parameters of a catalog."),
    "token": Entry("privileges", "Give a user a token for calls over HTTP."),
    "repair-clock": Entry("repairs", "Repair a store whose time is far ahead."),
    "relocate": Entry("repairs", "Record that a store was moved or copied."),
    "verify": Entry("checks", "Check records and files of a store."),
    "accept-loss": Entry("repairs", "Reopen a store that has lost committed changes."),
    "upgrade-check": Entry("checks", "Check whether this release could open a store."),
    "durable": Entry("durable", "Move the catalog of a store to another log."),
    "debug": Entry("debug", "Inspect and repair the stored catalog."),
    "demo": Entry("demo", "Run the main job, and check every number."),
}
"""Every command, in the order of the list."""


class _Commands(click.Group):
    """Loads the module of a command when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"strandline.cli.{COMMANDS[cmd_name].module}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
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
            suggestion = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"there is no command {args[0]!r}{suggestion}")
        return super().resolve_command(ctx, args)

    def main(self, *arguments: Any, **named: Any) -> Any:  # Any: those of click
        if sys.stdout is None:  # the caller has closed it
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open, like standard output
        if isinstance(sys.stdout, TextIOWrapper):
            # A name, also one of a file, may have characters that the terminal's encoding lacks.
            with suppress(OSError):  # if the file was replaced by a pipe
                sys.stdout.reconfigure(errors="backslashreplace")
        try:
            try:
                return super().main(*arguments, **named)
            finally:
                sys.stdout.flush()
        except OSError as error:
            with suppress(OSError):  # discard the rest of the output
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):  # the reader of the pipe has closed it
                sys.exit(1)
            what = in_one_line(str(error))
            if error.errno == errno.ENOSPC and error.filename is None:
                # An error of a write does not name the file.
                what = f"standard output, or a file, cannot be written: {error.strerror}"
            click.echo(f"strandline: {what}", err=True)
            sys.exit(IO_ERROR)

    def invoke(self, ctx: click.Context) -> Any:  # Any: what the command returns
        try:
            return super().invoke(ctx)
        except StrandlineError as error:
            click.echo(f"strandline: {in_one_line(error.message)}", err=True)
            sys.exit(surface_of(error).exit)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)  # click would exit with 1, as if the command had failed
        except (click.ClickException, click.Abort, click.exceptions.Exit, OSError):
            raise
        except Exception as error:
            if isinstance(error, MemoryError):
                lack = "gives this process no more memory"
            elif str(error) == "can't start new thread":
                lack = "lets this process start no more threads"
            else:
                traceback.print_exc()
                sys.exit(SURFACES[StrandlineError].exit)
            click.echo(
                f"strandline: the system {lack}; raise its limits of memory and of processes "
                "(MemoryMax and TasksMax in systemd, the limits of a container, `ulimit -a`)",
                err=True,
            )
            sys.exit(SURFACES[Unavailable].exit)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="strandline")
def main() -> None:
    """Strandline: a versioned, transactional metastore for Spark."""
