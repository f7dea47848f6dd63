"""The metastorage in a PostgreSQL database that any number of machines share.

An invoke holds the write lock of the database, the lock on its clock row, from before it reads the
first condition until its commit is on disk. So the order of commits, of revisions and of times is
one, and a read on any connection sees everything that was acknowledged before it began.

`wait_for_change` looks when the database's mark has moved; see `strandline.sql.postgres_listener`
for why nothing falls between. A server that is away makes a
waiter wait on, up to its time-out, because it may come back with the change; only then it is told
that the store did not answer.
"""

from __future__ import annotations

import time

from strandline.clock import HybridClock
from strandline.errors import Unavailable
from strandline.metastorage.sql_store import SqlMetastorage
from strandline.metastorage.store import prefix_end
from strandline.sql import Database
from strandline.sql.postgres_database import PostgresDatabase, open_url

_LOOK_AGAIN_SECONDS = 0.1
"""After how long a waiter looks again where the server did not answer."""


class PostgresMetastorage(SqlMetastorage):
    """See `Metastorage`. The database stays open after `close` unless the store owns it."""

    _database: PostgresDatabase

    def revision(self) -> int:
        """See `Metastorage.revision`."""
        self._enter("revisions")
        self._count("revision_reads")
        rows = self._database.rows("SELECT revision FROM metastorage_head WHERE id = 1")
        return rows[0][0] if rows else 0

    def wait_for_change(self, prefix: str, after_revision: int, *, timeout: float) -> bool:
        """See `Metastorage.wait_for_change`."""
        self._enter("waits")
        finish = time.monotonic() + timeout
        end, after = prefix_end(prefix), max(0, after_revision)
        while True:
            # The last look comes after the time is over: False is no answer of a lost connection.
            over = time.monotonic() >= finish
            mark, failed = self._database.mark(), None
            try:
                revision, changed = self._look(prefix, end, after)
            except Unavailable as error:
                failed = error
            else:
                if changed:
                    return True
                # What was looked through need not be looked through again.
                after = max(after, revision)
            if over and failed is not None:
                raise failed
            if over:
                self._count("waits_timed_out")
                return False
            pause = max(finish - time.monotonic(), 0.0)
            if failed is not None:
                pause = min(pause, _LOOK_AGAIN_SECONDS)
            news = self._database.wait_for_commit(mark, timeout=pause)
            self._refuse_when_closed()
            if news == mark and failed is None and time.monotonic() < finish:
                return False  # the database was woken

    def _look(self, start: str, end: str, after: int) -> tuple[int, bool]:
        """The revision, and whether a key of the range changed after a revision, or may have."""
        rows = self._database.rows(
            "SELECT revision, revision > ? AND (forgotten > ?"
            " OR EXISTS (SELECT 1 FROM metastorage WHERE revision > ? AND key >= ? AND key < ?)"
            " OR EXISTS (SELECT 1 FROM metastorage_deletion"
            " WHERE revision > ? AND key >= ? AND key < ?))"
            " FROM metastorage_head WHERE id = 1",
            (after, after, after, start, end, after, start, end),
        )
        return (rows[0][0], rows[0][1]) if rows else (0, False)


def metastorage_on(database: Database, clock: HybridClock) -> PostgresMetastorage:
    """See `strandline.metastorage.metastorage_on`."""
    assert isinstance(database, PostgresDatabase)
    return PostgresMetastorage(database, clock)


def open_store(url: str, clock: HybridClock, *, patience: float) -> PostgresMetastorage:
    """See `strandline.metastorage.open_metastorage`."""
    database = open_url(url, patience=patience)
    try:
        return PostgresMetastorage(database, clock, owns_database=True)
    except BaseException:
        database.close()
        raise
