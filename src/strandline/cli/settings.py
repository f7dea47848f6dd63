"""The settings of a node as options, and the commands ``serve`` and ``config``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from strandline import logs
from strandline.cli.options import (
    OUTPUT,
    STORE,
    STORE_TYPE,
    Store,
    allow_group,
    cells,
    print_json,
    print_table,
)
from strandline.cli.signals import ending_at_signals
from strandline.config import Settings, SettingValue
from strandline.errors import InvalidInput
from strandline.node.settings import FILE_NAME, REGISTRY, Setting, load, shown_settings

logger = logging.getLogger(__name__)

_NO_SETTING = "is set, but it is not a setting of a node"


class _Kind(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """The value of one setting on the command line."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.name = "text"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        choices = get_args(self.setting.kind) if get_origin(self.setting.kind) is Literal else ()
        if choices:
            return f"[{'|'.join(choices)}]"
        return "N" if self.setting.kind is int else "TEXT,…" if self.setting.is_list else "TEXT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        try:
            read = self.setting.read(value)
            # `Settings` checks the value beyond its type.
            Settings(**{self.setting.name: read})  # type: ignore[arg-type]  # read by its type
        except InvalidInput as error:
            # An error about two settings is left until all settings are known.
            if isinstance(value, str) and _names_another(error, self.setting.name):
                return value
            self.fail(error.message, param, ctx)
        return value


def _names_another(error: InvalidInput, name: str) -> bool:
    return any(
        other != name and re.search(rf"\b{other}\b", error.message) is not None
        for other in REGISTRY
    )


def _help(setting: Setting) -> str:
    """The help of a setting's option: its meaning, with the options of settings that it names."""

    def shown(quoted: re.Match[str]) -> str:
        other = REGISTRY.get(quoted[1])
        return f'"{quoted[1]}"' if other is None else other.option

    meaning = re.sub("`(.+?)`", shown, setting.meaning)
    return f"{meaning[:1].upper()}{meaning[1:]}  [default: {_shown_default(setting)}]"


def _shown_default(setting: Setting) -> str:
    default = setting.default
    if default is None or default in ("", ()):
        return "not set"
    return ", ".join(default) if isinstance(default, tuple) else str(default)


C = TypeVar("C", bound=Callable[..., Any])  # Any: what click calls


def node_options(function: C) -> C:
    """Add an option for each setting of a node to a command, and ``--config``.

    The function gets ``config`` and each setting as a keyword argument of its name, or None if the
    option was not given.
    """
    for setting in reversed(list(REGISTRY.values())):
        option = click.option(
            setting.option, setting.name, type=_Kind(setting), help=_help(setting)
        )
        function = option(function)
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        help=f"A file of settings (TOML), besides {FILE_NAME} in the folder of a store.",
    )(function)


@click.command()
@STORE
@node_options
def serve(store: Store, *, config: Path | None, **options: object) -> None:
    """Run a node on the STORE, which is created if it does not exist.

    STORE is a folder, or the address of servers: postgresql://USER@HOST/DATABASE, or
    etcd://HOST:PORT/PREFIX with --objects; then --warehouse names the folder of the tables.

    Prints one line, "ready thrift://HOST:PORT http://HOST:PORT", once it accepts connections; its
    log goes to standard error. SIGTERM, SIGINT and SIGHUP stop it cleanly.

    Each option can also be set by an environment variable (STRANDLINE_THRIFT_PORT=9083) or in the
    file strandline.toml in the folder (thrift_port = 9083); see "strandline config --help".
    Times are in milliseconds, or have a unit (500ms, 30s, 10min, 12h, 7d). Sizes are in bytes, or
    have a unit (KiB, MiB, GiB).
    """
    loaded = load(store, config=config, options=options)
    settings = loaded.settings
    allow_group(settings)
    logs.configure(level=settings.log_level, form=settings.log_format)
    for variable in loaded.unknown_variables:
        logger.warning("%s %s", variable, _NO_SETTING)

    def ready(line: str) -> None:
        try:
            click.echo(line)
        except OSError as error:  # not a BrokenPipeError, which ends a command without a message
            raise OSError(
                f"the node stopped, because its line {line!r} cannot be written to standard output:"
                f" {error.strerror}"
            ) from error

    with ending_at_signals(status=0):  # until the node is ready, and has its own handlers
        from strandline.node import server

        server.serve(store, settings=settings, origins=loaded.origins, ready=ready)


def setting_as_json(setting: SettingValue) -> dict[str, object]:
    """Return one setting as ``--output json`` prints it."""
    return {"from" if name == "origin" else name: of for name, of in asdict(setting).items()}


def print_settings(settings: Iterable[SettingValue]) -> None:
    """Print the settings as a table for people."""
    rows = []
    for setting in settings:
        value = setting.value
        text = ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)
        rows.append(cells(setting.setting, text or "—", setting.origin))
    print_table(("setting", "value", "from"), rows)


@click.command()
@click.argument("store", type=STORE_TYPE, required=False)
@node_options
@OUTPUT
def config(store: Store | None, *, config: Path | None, output: str, **options: object) -> None:
    """Show each setting that a node on STORE would have, and where it comes from.

    Settings come from options, environment variables, the file that --config names, the file
    strandline.toml in the folder of the STORE, and defaults; the first that has a value wins.
    Nothing is started.
    """
    loaded = load(store, config=config, options=options)
    settings = shown_settings(loaded.settings, loaded.origins)
    if output == "json":
        for setting in settings:
            print_json(setting_as_json(setting))
        return
    print_settings(settings)
    for variable in loaded.unknown_variables:
        click.echo(f"strandline: {variable} {_NO_SETTING}", err=True)
