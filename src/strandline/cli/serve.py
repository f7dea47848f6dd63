"""``strandline serve``: run a node in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from strandline import logs
from strandline.cli.options import FOLDER
from strandline.cli.settings import load, node_options


@click.command()
@FOLDER
@node_options
def command(folder: Path, *, config: Path | None, **options: object) -> None:
    """Run a node on the store in FOLDER, which is created if it does not exist.

    Prints one line, "ready thrift://HOST:PORT http://HOST:PORT", once it accepts connections; its
    log goes to standard error. SIGTERM and SIGINT stop it cleanly.

    Each option can also be set by an environment variable (STRANDLINE_THRIFT_PORT=9083) or in the
    file strandline.toml in FOLDER (thrift_port = 9083); see "strandline config --help".
    """
    settings = load(folder, config=config, options=options).settings
    logs.configure(level=settings.log_level, form=settings.log_format)
    from strandline.node.server import serve

    serve(folder, settings=settings, ready=lambda line: click.echo(line))
