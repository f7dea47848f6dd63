"""The store of a node, as the node names it to a child process that opens it by itself."""

from __future__ import annotations

from typing import NamedTuple


class ServedStore(NamedTuple):
    """The environment id of the store, and the timeline of its database, or 0."""

    environment: str
    timeline: int
