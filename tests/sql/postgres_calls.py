"""What other calls of a server of PostgreSQL wait for, and commits whose answers are lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.servers import postgresql
from tests.servers.loopback import Cut, Proxy


def waiting_for_locks(url: str) -> int:
    """How many sessions of the server wait for a lock."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def cut_at_commits(url: str) -> Iterator[tuple[str, list[Cut], Proxy]]:
    """The address of the server behind a proxy, and the cuts at its commits, the next one last."""
    server = postgresql.running()
    plan: list[Cut] = []

    def at_the_commit(data: bytes) -> Cut | None:
        return plan.pop() if plan and b"COMMIT\0" in data else None

    with Proxy(server.port, at_the_commit) as proxy:
        yield url.replace(f":{server.port}/", f":{proxy.port}/"), plan, proxy
