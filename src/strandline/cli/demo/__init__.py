"""``strandline demo``: run the main job from end to end on real data."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from strandline.config import Settings
from strandline.errors import UnsupportedOperation


@click.command()
@click.option(
    "--client",
    type=click.Choice(["local", "http"]),
    default="local",
    show_default=True,
    help="The transactional client: in the driver's process, or over HTTP.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="An empty folder to work in. By default a temporary one.",
)
@click.option(
    "--store",
    default="",
    metavar="ADDRESS",
    help="A new store on servers: postgresql://… or etcd://…. By default, the store is in the "
    "folder.",
)
@click.option(
    "--objects",
    default="",
    envvar="STRANDLINE_OBJECTS",
    metavar="ADDRESS",
    help="See `strandline serve --objects`.",
)
@click.option(
    "--catalog-log", default="", metavar="LOG", help="See `strandline serve --catalog-log`."
)
@click.option(
    "--months",
    type=click.IntRange(1, 12),
    default=12,
    show_default=True,
    help="Use only the flights of the first months, for a shorter run.",
)
@click.option("--keep", is_flag=True, help="Keep the folder, and leave the node running.")
def demo(
    *,
    client: str,
    folder: Path | None,
    store: str,
    objects: str,
    catalog_log: str,
    months: int,
    keep: bool,
) -> None:
    """Run the main job on the flights that left New York in 2013, and check every number.

    Needs the extra "demo". Exit status 0 only if every check holds.
    """
    try:
        import pandas  # noqa: F401 - the step modules need both; say it before they fail
        import pyspark  # noqa: F401 - as above
    except ImportError as error:
        raise UnsupportedOperation(
            f"the demo needs {error.name}; install it with: pip install 'strandline[demo]'"
        ) from error
    from strandline.cli.demo.run import run

    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise UnsupportedOperation(f"{folder} is not empty; name an empty folder")
    all_hold = run(
        folder,
        store=store,
        settings=Settings(objects=objects, catalog_log=catalog_log),
        client=client,
        months=months,
        keep=keep,
    )
    sys.exit(0 if all_hold else 1)
