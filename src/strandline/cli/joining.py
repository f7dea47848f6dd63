"""How a command changes a store: as a node beside those that run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strandline.cli.options import Store
from strandline.cli.settings import load
from strandline.cli.stores import address_of, database_of, log_of
from strandline.node.node import Node


@contextmanager
def joining(store: Store) -> Iterator[Node]:
    """A node of this process on a store that is there, beside those that run. `NotFound`."""
    with database_of(store) as database, log_of(store, database):
        pass
    with Node.open(address_of(store), settings=load(store).settings) as node:
        yield node
