"""``strandline upgrade-check``: check whether this release could open a catalog."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from strandline import __version__
from strandline.catalog import Catalog
from strandline.catalog.system_views.synchronization import declared_views, differing_views
from strandline.cli.options import STORE, Store
from strandline.cli.stores import database_of, log_of
from strandline.durable import ReadOnlyState, durable_state
from strandline.durable.collections import COLLECTIONS
from strandline.durable.contents import Contents
from strandline.durable.migrations import MIGRATIONS, format_of
from strandline.errors import InvalidInput
from strandline.node.membership import new_member_id, refuse_other_half


@click.command()
@STORE
@click.option(
    "--cluster-replica-sizes",
    "sizes",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A JSON object; each cluster and replica must have a size that is a member of it.",
)
def upgrade_check(store: Store, *, sizes: Path | None) -> None:
    """Check whether this release could open the catalog of STORE, and change nothing.

    It opens the catalog on trial: migrations are made in memory, and every object is read. Running
    nodes are not affected. The exit status is 0 if the catalog could be opened.
    """
    known = None if sizes is None else _known_sizes(sizes)
    with database_of(store) as database, log_of(store, database) as log:
        state = ReadOnlyState(log)
        refuse_other_half(database, state)
        had = format_of(state.recovered[-1].contents)
        began = time.monotonic()
        latest = durable_state(log).check_open(member=new_member_id()).recovered[-1]
        objects = sum(_read(latest.contents, kind) for kind in COLLECTIONS)
        seconds = time.monotonic() - began
    catalog = Catalog(latest.version, latest.time, latest.contents)
    if known is not None:
        _compare_sizes(catalog, known)
    views = differing_views(catalog, declared_views())
    click.echo(
        f"release {__version__} can open this catalog: {objects:,} objects were read in"
        f" {seconds:.1f} s"
    )
    for migration in MIGRATIONS[had:]:
        click.echo(f"a node would migrate it: {migration.name}")
    if views:
        click.echo(f"a node would add {len(views)} system views")


def _read(contents: Contents, kind: str) -> int:
    """Decode every object of ``kind`` and return their number. Raises `CorruptData`."""
    return sum(1 for stored in contents.objects(kind) if stored.value is not None)


def _known_sizes(file: Path) -> set[str]:
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidInput(f"{file} does not contain a JSON object whose members are sizes")
    return set(parsed)


def _compare_sizes(catalog: Catalog, known: set[str]) -> None:
    """Raise `InvalidInput` if the size of a cluster or replica is not in ``known``."""
    unknown = [
        f"{kind.replace('_', ' ')} {stored.value.name}: {stored.value.size}"
        for kind in ("cluster", "cluster_replica")
        for stored in catalog.contents.objects(kind)
        if stored.value.size is not None and stored.value.size not in known
    ]
    if unknown:
        raise InvalidInput(f"the sizes of these are not listed: {'; '.join(sorted(unknown))}")
