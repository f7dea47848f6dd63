"""The end of transactions, put into the notification log.

`TransactionEvents` is handed to `Transactions` as a listener. What it does happens in the SQL
transaction of the commit or abort, so an event is there exactly when its transaction ended so. A
commit first projects the catalog that it was judged by: who follows the log knows a table before
its first row.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from strandline.clock import Timestamp
from strandline.metastore.store.notifications import (
    ABORT,
    COMMIT,
    EndEvent,
    NewEvent,
    NotificationLog,
)
from strandline.metastore.store.object_store import ProjectsDdl
from strandline.transactions import CatalogVersion, Transaction
from strandline.wire import encode


class TransactionEvents:
    """A `TransactionListener`. ``projector`` None: DDL is not in this log."""

    def __init__(
        self, notifications: NotificationLog, *, projector: ProjectsDdl | None = None
    ) -> None:
        self._notifications = notifications
        self._projector = projector

    def committing(
        self,
        connection: Connection,
        transaction: Transaction,
        *,
        time: Timestamp,
        writes: Sequence[tuple[int, int]],
        catalog: CatalogVersion,
    ) -> None:
        """Log a commit. Raises `Behind` where DDL must be projected before, by itself."""
        if self._projector is not None:
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
        self,
        connection: Connection,
        transaction: Transaction,
        *,
        writes: Sequence[tuple[int, int]],
    ) -> None:
        """Log an abort."""
        body = encode(EndEvent(writes=tuple(writes)))
        event = NewEvent(verb=ABORT, body=body, txn_id=transaction.txn_id)
        self._notifications.append(connection, [event])
