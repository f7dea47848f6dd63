"""``strandline serve``: run a node in the foreground."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from strandline.config import (
    DEFAULT_HOST,
    DEFAULT_HTTP_PORT,
    DEFAULT_THRIFT_PORT,
    Settings,
)

_PORT = click.IntRange(0, 65_535)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--thrift-port",
    type=_PORT,
    default=DEFAULT_THRIFT_PORT,
    show_default=True,
    help="Port of the Hive Metastore protocol; 0 takes a free one.",
)
@click.option(
    "--http-port",
    type=_PORT,
    default=DEFAULT_HTTP_PORT,
    show_default=True,
    help="Port of the HTTP interface; 0 takes a free one.",
)
@click.option(
    "--host",
    default=DEFAULT_HOST,
    show_default=True,
    help="Address to listen on. Nobody is asked who he is: leave it at loopback.",
)
def command(folder: Path, *, thrift_port: int, http_port: int, host: str) -> None:
    """Run a node on the store in FOLDER, which is created if it is not there.

    Prints one line, "ready thrift://HOST:PORT http://HOST:PORT", once it accepts. SIGTERM and
    SIGINT stop it cleanly.
    """
    from strandline.node.server import serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = Settings(host=host, thrift_port=thrift_port, http_port=http_port)
    serve(folder, settings=settings, ready=lambda line: click.echo(line))
