"""Opening a metastorage by its URL."""

from __future__ import annotations

from strandline.clock import HybridClock
from strandline.errors import UnsupportedOperation
from strandline.metastorage.sql_store import SqlMetastorage
from strandline.metastorage.store import Metastorage
from strandline.sql import DEFAULT_TIMEOUT, DIALECTS, open_database


def open_metastorage(
    url: str, clock: HybridClock, *, timeout: float = DEFAULT_TIMEOUT, read_only: bool = False
) -> Metastorage:
    """Open the store at ``url``, on connections of its own that `Metastorage.close` closes.

    ``url`` is ``sqlite:////folder/file``, ``postgresql://user@host/database`` or
    ``etcd://host:port``. A call without an answer fails after ``timeout`` seconds. With
    ``read_only``, calls that would write raise `UnsupportedOperation`. Raises
    `InvalidInput` for a malformed URL or a library that is not installed, `UnsupportedOperation`
    for an unknown scheme, `IncompatibleFormat`, and `Unavailable` if nothing answers there.
    """
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme == "etcd":
        # Imported here, because only its users need the client library.
        from strandline.metastorage.etcd.store import EtcdMetastorage

        return EtcdMetastorage(url, clock, timeout=timeout, read_only=read_only)
    if scheme not in DIALECTS:
        raise UnsupportedOperation(
            f"{scheme!r} is not the scheme of a store; use one of {', '.join(DIALECTS)}, etcd"
        )
    database = open_database(url, timeout=timeout, read_only=read_only)
    try:
        return SqlMetastorage(database, clock, owns_database=True)
    except BaseException:
        database.close()
        raise
