"""Write transactions that compare the fence first and wait for the catalog.

A begin or commit learns only inside its SQL transaction, under the write lock, at which time it
stands and whether this process knows the catalog of that time. If not, it must not wait there:
the SQL transaction is undone, the catalog applies its log, and everything is done anew with a later
time, until the caller's deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from sqlalchemy import Connection

from strandline.errors import DeadlineExceeded
from strandline.sql import Database
from strandline.transactions.catalog_view import Behind, CatalogView

T = TypeVar("T")


class GuardedWrites:
    """Runs functions in write transactions. ``on_behind`` is called before each new attempt."""

    def __init__(
        self,
        database: Database,
        *,
        catalogs: CatalogView,
        guard: Callable[[Connection], None],
        on_behind: Callable[[], None],
    ) -> None:
        self._database = database
        self._catalogs = catalogs
        self._guard = guard
        self._on_behind = on_behind

    def run(self, body: Callable[[Connection], T], *, timeout: float) -> T:
        """The result of ``body``, once it is durable.

        Raises what the guard or ``body`` raise, and then nothing has happened, except that
        `Behind` is tried again for ``timeout`` seconds and ends as `DeadlineExceeded`.
        """
        with ExitStack() as opened:
            return self.enter(opened, body, timeout=timeout)

    def enter(self, opened: ExitStack, body: Callable[[Connection], T], *, timeout: float) -> T:
        """Like `run`, but the write transaction stays open until ``opened`` ends it."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._attempt(opened, body, deadline=deadline)
            except Behind as behind:
                self._on_behind()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceeded(
                        f"the catalog did not catch up with its log within {timeout} s"
                        f" ({behind.message}); nothing was changed, try again"
                    ) from behind
                self._catalogs.catch_up(timeout=left)

    def _attempt(self, opened: ExitStack, body: Callable[[Connection], T], *, deadline: float) -> T:
        with ExitStack() as attempt:
            connection = attempt.enter_context(self._database.write(deadline=deadline))
            self._guard(connection)
            result = body(connection)
            opened.push(attempt.pop_all())
        return result
