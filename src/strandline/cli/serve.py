"""``strandline serve``: run a node in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from strandline import logs
from strandline.cli.options import STORE, Store
from strandline.cli.settings import load, node_options


@click.command()
@STORE
@node_options
def command(store: Store, *, config: Path | None, **options: object) -> None:
    """Run a node on the STORE, which is created if it does not exist.

    STORE is a folder, or the address of servers: postgresql://USER@HOST/DATABASE, or
    etcd://HOST:PORT/PREFIX with --objects; then --warehouse names the folder of the tables.

    Prints one line, "ready thrift://HOST:PORT http://HOST:PORT", once it accepts connections; its
    log goes to standard error. SIGTERM and SIGINT stop it cleanly.

    Each option can also be set by an environment variable (STRANDLINE_THRIFT_PORT=9083) or in the
    file strandline.toml in the folder (thrift_port = 9083); see "strandline config --help".
    """
    settings = load(store, config=config, options=options).settings
    logs.configure(level=settings.log_level, form=settings.log_format)
    from strandline.node.server import serve

    serve(store, settings=settings, ready=lambda line: click.echo(line))
