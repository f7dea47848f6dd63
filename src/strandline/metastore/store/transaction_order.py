"""The order of DDL and transactions: DDL is projected before the transactions that rely on it.

A transaction begins and commits under a catalog that this node has applied and projected
(`ProjectedCatalogs`). If it wrote, its commit or abort is an event of the notification log
(`TransactionEvents`, a listener of `Transactions`). The SQL transaction of the commit or abort logs
the event, so the event exists exactly if the transaction ended that way. A commit first projects
the catalog that it was validated against: a follower of the log sees a table before its first row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from strandline.catalog import Behind, Catalog, CatalogManager
from strandline.clock import Timestamp
from strandline.errors import InvalidInput
from strandline.metastore.store.notifications import (
    ABORT,
    COMMIT,
    NUMBERS,
    EndEvent,
    NewEvent,
    NotificationLog,
)
from strandline.metastore.store.object_store import ProjectsDdl
from strandline.metastore.store.projection import Projector
from strandline.sql import Query
from strandline.transactions import Transaction
from strandline.wire import encode


@dataclass(frozen=True, slots=True)
class UpperWithin:
    """Reads the log's upper in a SQL transaction of the same database; ``query`` is its query."""

    read: Callable[[Connection], int]
    query: Query


class ProjectedCatalogs:
    """The catalogs of a manager for transactions: applied and projected.

    ``upper_within`` reads the log's upper inside a SQL transaction. It is None if log and rows are
    in two databases; then the catalog needs a delay before activation, else raises `InvalidInput`.
    """

    def __init__(
        self,
        catalogs: CatalogManager,
        projector: Projector,
        *,
        upper_within: UpperWithin | None,
    ) -> None:
        if upper_within is None and not catalogs.delay:
            raise InvalidInput(
                "the catalog and the rows of this store are in two databases, and the catalog "
                "was created with a delay of 0, so no transaction could know the catalog of its "
                "commit; create it with a delay before activation (200 ms, say)"
            )
        self._catalogs = catalogs
        self._projector = projector
        self._upper_within = upper_within
        self.first_queries = () if upper_within is None else (upper_within.query,)

    def catalog_at(self, connection: Connection, at: Timestamp, /) -> Catalog:
        """The catalog active at ``at``. Raises `Behind` if this node has not applied it."""
        within = self._upper_within
        upper = None if within is None else within.read(connection)
        return self._catalogs.catalog_at(at, upper=upper)

    def catch_up(self, *, timeout: float) -> None:
        """Apply the log up to its head, and project it."""
        deadline = time.monotonic() + timeout
        if self._upper_within is None:
            self._catalogs.look()
        else:
            self._catalogs.sync()
        latest = self._catalogs.latest_catalog().version
        self._projector.project_up_to(latest, timeout=deadline - time.monotonic())

    def catalog(self, version: int, /) -> Catalog:
        """The catalog at that version. Raises `Behind`, `VersionNotFound`."""
        latest = self._catalogs.latest_catalog().version
        if version > latest:
            raise Behind(f"version {version} is not applied here; version {latest} is the latest")
        return self._catalogs.catalog(version)


class TransactionEvents:
    """A `TransactionListener`."""

    first_queries = (NUMBERS.query,)

    def __init__(self, notifications: NotificationLog, *, projector: ProjectsDdl) -> None:
        self._notifications = notifications
        self._projector = projector

    def committing(
        self,
        connection: Connection,
        transaction: Transaction,
        *,
        time: Timestamp,
        writes: Sequence[tuple[int, int]],
        catalog: Catalog,
    ) -> None:
        """Log a commit. Raises `Behind` if DDL must first be projected in other transactions."""
        self._projector.project_on(connection, catalog.version)
        event = NewEvent(
            verb=COMMIT,
            body=encode(EndEvent(writes=tuple(writes))),
            time=time,
            catalog_version=catalog.version,
            txn_id=transaction.txn_id,
        )
        self._notifications.append(connection, [event])

    def aborting(
        self, connection: Connection, writes: Mapping[int, Sequence[tuple[int, int]]]
    ) -> None:
        self._notifications.append(
            connection,
            [
                NewEvent(verb=ABORT, body=encode(EndEvent(writes=tuple(pairs))), txn_id=txn_id)
                for txn_id, pairs in writes.items()
            ],
        )
