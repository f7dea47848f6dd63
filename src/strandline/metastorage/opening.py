"""Opening a metastorage by its URL. A kind's module is loaded when its scheme is first asked for.

So nobody needs a client library of a server that he does not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from strandline.clock import HybridClock
from strandline.errors import UnsupportedOperation
from strandline.metastorage.store import Metastorage
from strandline.sql import PATIENCE

KINDS = {
    "sqlite": "strandline.metastorage.sqlite",
    "postgresql": "strandline.metastorage.postgresql",
    "etcd": "strandline.metastorage.etcd.store",
}
"""Scheme of a URL, and the module whose ``open_store`` opens it."""


class _Kind(Protocol):
    def open_store(self, url: str, clock: HybridClock, *, patience: float) -> Metastorage: ...


def open_metastorage(url: str, clock: HybridClock, *, patience: float = PATIENCE) -> Metastorage:
    """The store at ``url``, on connections of its own that end with `Metastorage.close`.

    ``sqlite:////folder/file``, ``postgresql://user@host/database`` or ``etcd://host:port``. A call
    that gets no answer for ``patience`` seconds ends with an error. Raises `InvalidInput` for a
    URL that names no store or needs a library that is not installed, `UnsupportedOperation` for
    another kind of store, `IncompatibleFormat`, and `Unavailable` where nothing answers.
    """
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme not in KINDS:
        raise UnsupportedOperation(
            f"{scheme!r} is not the scheme of a store; use one of {', '.join(KINDS)}"
        )
    return cast(_Kind, import_module(KINDS[scheme])).open_store(url, clock, patience=patience)
