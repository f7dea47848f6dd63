"""The source of catalogs for transactions, and write transactions that wait for it.

A transaction reads and writes under one catalog version, and its commit is validated against
another. So it gets catalogs by time and by version. The object that keeps the catalogs is injected.

A begin or commit learns its time, and whether this process has applied the catalog of that time,
only inside its SQL transaction, under the write lock. If the catalog is not applied, it must not
wait there. The SQL transaction is undone, the catalog applies its log, and everything is done again
with a later time, until the caller's deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from strandline.catalog import Behind, Catalog
from strandline.clock import Timestamp
from strandline.errors import DeadlineExceeded
from strandline.sql import Database, Query

__all__ = ["Behind", "CatalogView", "GuardedWrites"]

T = TypeVar("T")


class CatalogView(Protocol):
    """The source of catalogs."""

    @property
    def first_queries(self) -> Sequence[Query]:
        """The queries that `catalog_at` runs on its connection."""

    def catalog_at(self, connection: Connection, at: Timestamp, /) -> Catalog:
        """The catalog active at ``at``. Never waits.

        Raises `Behind` if it is not known yet: the head of the log (read on ``connection`` if the
        log is in that database) is not applied here, or no look at the log reaches up to ``at``.
        """

    def catch_up(self, *, timeout: float) -> None:
        """Read the log and apply it, within ``timeout`` seconds. Called after `Behind`."""

    def catalog(self, version: int, /) -> Catalog:
        """The catalog of that version. Never waits. Raises `Behind` if it is not applied here yet.

        Raises `VersionNotFound` below the readable history.
        """


class GuardedWrites:
    """Runs functions in write transactions. ``on_behind`` is called before each new attempt."""

    def __init__(
        self,
        database: Database,
        *,
        catalogs: CatalogView,
        on_behind: Callable[[], None],
    ) -> None:
        self._database = database
        self._catalogs = catalogs
        self._on_behind = on_behind

    def refuse_in_a_fork(self) -> None:
        """See `Database.refuse_in_a_fork`."""
        self._database.refuse_in_a_fork()

    def run(
        self,
        body: Callable[[Connection], T],
        *,
        timeout: float,
        first: Callable[[], Sequence[Query]] = tuple,
        notifies: bool = True,
        is_provisional: bool = False,
    ) -> T:
        """Return the result of ``body``, once it is durable.

        ``first`` gives the queries that ``body`` runs first; it is called only if they are read
        ahead. For these and the other arguments see `Database.write`.

        Raises what the guard or ``body`` raise, and then nothing has happened. After `Behind` it
        tries again for ``timeout`` seconds, then raises `DeadlineExceeded`.
        """
        with self.opened(
            body, timeout=timeout, first=first, notifies=notifies, is_provisional=is_provisional
        ) as result:
            return result

    @contextmanager
    def opened(
        self,
        body: Callable[[Connection], T],
        *,
        timeout: float,
        first: Callable[[], Sequence[Query]] = tuple,
        notifies: bool = True,
        is_provisional: bool = False,
    ) -> Iterator[T]:
        """Like `run`, but the write transaction stays open until the block ends."""
        deadline = time.monotonic() + timeout
        has_result = False
        while True:
            try:
                with self._database.write(
                    deadline=deadline,
                    first=first() if self._database.reads_ahead else (),
                    notifies=notifies,
                    is_provisional=is_provisional,
                ) as connection:
                    self._database.guard(connection)
                    result = body(connection)
                    has_result = True
                    yield result
                return
            except Behind as behind:
                if has_result:  # the block raised it, and cannot be run again
                    raise
                self._on_behind()
                seconds_left = deadline - time.monotonic()
                if seconds_left <= 0:
                    raise DeadlineExceeded(
                        f"the catalog did not catch up with its log within {timeout:.1f} s"
                        f" ({behind.message}); nothing was changed, try again"
                    ) from behind
            self._catalogs.catch_up(timeout=seconds_left)
