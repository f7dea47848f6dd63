"""`ReaderSnapshot`: one place in history, at which a reader reads several tables."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import datetime

from strandline.clock import Timestamp, parse_timestamp
from strandline.errors import InvalidInput
from strandline.metastore.interface import AsOf, ResolvedTable, Session, Snapshot
from strandline.transactions import Hold, ValidWriteIdList

Moment = datetime | str | Timestamp
"""A time as people give it: a text or datetime without a zone is UTC, a `Timestamp` is exact."""


def as_of(*, version: int | None, time: Moment | None) -> AsOf:
    """The point that a caller names. Raises `InvalidInput` for two points, or for no time."""
    if version is not None and time is not None:
        raise InvalidInput("name a version or a time to read as of, not both")
    if time is None:
        return AsOf(version=version)
    if isinstance(time, str):
        return AsOf(time=parse_timestamp(time))
    if isinstance(time, datetime):
        return AsOf(time=parse_timestamp(time.isoformat()))
    return AsOf(time=time)


class ReaderSnapshot:
    """The tables that were asked for, as they stand at one place in history.

    Reading them gives the same rows and columns for as long as the history is kept: always, if the
    snapshot has a hold and the hold is renewed in time (each read renews it), else at least as long
    as the store keeps history anyway. `close`, or leaving a ``with`` block, lets go of the hold.
    """

    def __init__(
        self,
        session: Session,
        snapshot: Snapshot,
        *,
        hold: Hold | None = None,
        hold_ms: int | None = None,
    ) -> None:
        self._session = session
        self._hold_ms = hold_ms
        self.snapshot = snapshot
        self.hold = hold

    @property
    def catalog_version(self) -> int:
        """The catalog version that decides the columns."""
        return self.snapshot.catalog_version

    @property
    def time(self) -> Timestamp:
        """The moment that the snapshot stands for."""
        return self.snapshot.time

    @property
    def names(self) -> tuple[str, ...]:
        """The tables that can be read, as ``schema.table``."""
        return tuple(self.snapshot.tables)

    def write_ids(self, name: str) -> ValidWriteIdList:
        """The write ids of a table that the snapshot sees. Raises `InvalidInput`."""
        return self.snapshot.write_ids_of(name)

    def table(self, name: str) -> ResolvedTable:
        """The table of that name at the snapshot. Raises `InvalidInput` if it was not asked for."""
        return self.snapshot.table(name)

    def renew(self) -> None:
        """Keep the hold, if there is one, for its full time from now. Raises `HoldExpired`."""
        if self.hold is not None and self._hold_ms is not None:
            self.hold = self._session.renew_hold(self.hold.hold_id, ttl_ms=self._hold_ms)

    def close(self) -> None:
        """Let go of the hold. What was read stays readable as long as history is kept anyway."""
        if self.hold is not None:
            self._session.release_hold(self.hold.hold_id)
            self.hold = None

    def __enter__(self) -> ReaderSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def take_snapshot(
    session: Session, names: Sequence[str], *, at: AsOf, hold_ms: int | None = None
) -> ReaderSnapshot:
    """The snapshot of the tables ``names`` as of ``at``.

    Raises `ObjectNotFound`, `VersionNotFound`.
    """
    snapshot = session.open(names, at=at)
    hold = None
    if hold_ms is not None:
        owner = f"{socket.gethostname()}:{os.getpid()}"
        hold = session.hold("reader", owner, at=snapshot.time, ttl_ms=hold_ms)
    return ReaderSnapshot(session, snapshot, hold=hold, hold_ms=hold_ms)
