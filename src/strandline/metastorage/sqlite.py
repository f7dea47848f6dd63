"""The metastorage in a SQLite file that several processes on one machine share.

`revision` remembers the head's revision together with the mark that was taken *before* it was read.
When the same mark is seen again, no commit happened in between, so the
remembered revision is the present one. This holds for each remembered pair by itself, so threads
may overwrite each other's pairs in any order. (Observed after the read instead, a commit between
the two would be remembered as if it had been seen.)

A waiter looks when the mark has moved.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection

from strandline.clock import HybridClock
from strandline.metastorage.sql_store import DELETIONS_KEPT, SqlMetastorage
from strandline.metastorage.store import prefix_end
from strandline.sql import Database, SqliteDatabase, value
from strandline.sql.sqlite_database import open_url


class SqliteMetastorage(SqlMetastorage):
    """See `Metastorage`. The database stays open after `close` unless the store owns it."""

    revision_is_cheap = True

    def __init__(
        self,
        database: Database,
        clock: HybridClock,
        *,
        deletions_kept: int = DELETIONS_KEPT,
        owns_database: bool = False,
    ) -> None:
        super().__init__(
            database, clock, deletions_kept=deletions_kept, owns_database=owns_database
        )
        self._remembered = (-1, 0)  # mark, revision

    def revision(self) -> int:
        """See `Metastorage.revision`."""
        self._enter("revisions")
        mark = self._database.mark()
        remembered = self._remembered
        if remembered[0] == mark:
            return remembered[1]
        self._count("revision_reads")
        with self._database.read() as connection:
            revision = self.revision_on(connection)
        self._remembered = (mark, revision)
        return revision

    def wait_for_change(self, prefix: str, after_revision: int, *, timeout: float) -> bool:
        """See `Metastorage.wait_for_change`."""
        self._enter("waits")
        finish = time.monotonic() + timeout
        start, end, after = prefix, prefix_end(prefix), max(0, after_revision)
        while True:
            mark = self._database.mark()
            remembered = self._remembered
            if remembered[0] == mark and remembered[1] <= after:
                revision = remembered[1]  # nothing was committed since, so nothing is to be read
            else:
                with self._database.read() as connection:
                    revision = self.revision_on(connection)
                    if revision > after and _changed(connection, start, end, after):
                        return True
            # What was looked through need not be looked through again.
            after = max(after, revision)
            seen = self._database.wait_for_commit(mark, timeout=finish - time.monotonic())
            self._refuse_when_closed()
            if seen == mark:  # the time is over, or the database was woken
                self._count("waits_timed_out")
                return False


def _changed(connection: Connection, start: str, end: str, after: int) -> bool:
    """Whether a key of the range was written or deleted, or may have been, after a revision."""
    changed = value(
        connection,
        "SELECT EXISTS (SELECT 1 FROM metastorage INDEXED BY metastorage_by_revision"
        " WHERE revision > ? AND key >= ? AND key < ?)"
        " OR EXISTS (SELECT 1 FROM metastorage_deletion"
        " WHERE revision > ? AND key >= ? AND key < ?)"
        " OR EXISTS (SELECT 1 FROM metastorage_head WHERE forgotten > ?)",
        (after, start, end, after, start, end, after),
    )
    return bool(changed)


def metastorage_on(database: Database, clock: HybridClock) -> SqliteMetastorage:
    """See `strandline.metastorage.metastorage_on`."""
    assert isinstance(database, SqliteDatabase)
    return SqliteMetastorage(database, clock)


def open_store(url: str, clock: HybridClock, *, patience: float) -> SqliteMetastorage:
    """See `strandline.metastorage.open_metastorage`."""
    database = open_url(url, patience=patience)
    try:
        return SqliteMetastorage(database, clock, owns_database=True)
    except BaseException:
        database.close()
        raise
