"""Which server a connection leads to: the same database, another one, or one that was left behind.

An address names a place, and another database may come to be there. A process that works with the
database of its first connection compares each later connection with it:

* A *clone* or a restored database has the same catalog and fence, so a change would succeed there.
  PostgreSQL gives each a number of its own, except a physical standby, which may take over.
* A *former primary* is one from which a standby has taken over, and which was started again. Both
  accept writes, and neither gets those of the other. An address of several hosts may lead to both.
  A takeover begins a new *timeline*, so this process has seen a later one. From then on, it sends
  nothing more on its connections to the former primary either, which may still be open.
* A server that was *started anew* may be a standby that has taken over, and may lack commits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from strandline.sql import postgres_connection as driver

_MAY_READ_IDENTITY = "SELECT has_function_privilege('pg_control_system()', 'execute')"
# PostgreSQL keeps both numbers when it restarts, and a standby has those of its primary.
_IDENTITY = (
    "SELECT s.system_identifier, CAST(d.oid AS bigint) FROM pg_control_system() s"
    " JOIN pg_database d ON d.datname = current_database()"
)
# `pg_control_checkpoint` shows a new timeline only after a checkpoint.
_TIMELINE = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
_START = "SELECT extract(epoch FROM pg_postmaster_start_time())"


class Server:
    """The server of the connections of one `PostgresDatabase`. See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.identity: int | None = None
        """Of the database of the first connection; 0 if its role may not read it."""
        self._may_read_identity = False
        self.timeline = 0
        """The latest one of a server to which there was a connection."""
        self._start: object = None
        """That of the server of the last connection."""

    def accept(self, connection: driver.Connection, *, at_takeover: Iterable[str]) -> None:
        """Raise `OtherDatabase` unless it leads to the database of the first connection.

        If the server was started anew, run the statements ``at_takeover`` once, before this
        connection or another one is used.
        """
        self._refuse_other_database(connection)
        self._refuse_former_primary(connection)
        (start,) = _first(connection, _START)
        with self._lock:
            if self._start not in (None, start):
                for statement in at_takeover:
                    connection.execute(statement.encode(), prepare=False)
            self._start = start

    def _refuse_other_database(self, connection: driver.Connection) -> None:
        if self.identity is None:
            self._may_read_identity = _first(connection, _MAY_READ_IDENTITY)[0]
        identity = 0
        if self._may_read_identity:
            row = _first(connection, _IDENTITY)
            digest = blake2b(repr(row).encode(), digest_size=8).digest()
            identity = int.from_bytes(digest) >> 1 or 1  # as a positive BIGINT
        with self._lock:
            if self.identity is None:
                self.identity = identity
        if identity != self.identity:
            raise driver.OtherDatabase("it is another database now")

    def _refuse_former_primary(self, connection: driver.Connection) -> None:
        try:
            timeline = int(_first(connection, _TIMELINE)[0], 16)
        except driver.DriverError as error:
            if driver.is_lost(error) or connection.closed:
                raise
            return  # a service on storage of its own may not have these functions
        with self._lock:
            self.timeline = max(self.timeline, timeline)
        connection.is_left_behind = lambda: timeline < self.timeline
        if connection.is_left_behind():
            raise driver.OtherDatabase("it is a former primary")


def _first(connection: driver.Connection, query: str) -> tuple[Any, ...]:  # Any: of each type
    row = connection.execute(query.encode(), prepare=False).fetchone()
    assert row is not None  # no query has a condition that may fail
    return row
