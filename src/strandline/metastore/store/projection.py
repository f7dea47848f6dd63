"""The projection: what DDL does outside the catalog.

A version of the catalog has effects that the catalog does not hold: an event in the notification
log, the place of a managed table, folders made and moved. They are derived from the entries of the
update log, in order, exactly once, by whoever comes: the DDL call itself before it returns, a
commit that relies on the version, a node that starts. How far it has come is a row of the store,
moved in the SQL transaction that writes the events and the places.

What must stay true: a folder cannot be moved back by a rollback, so an effect may be done and its
SQL transaction lost. Then it is met again, and must be recognized. That works for *one* effect: the
old folder is gone and the new one there. It does not for two: after "rename a to b, create a" there
are folders at a and b, as if nothing had been moved yet. So one SQL transaction carries out at most
one effect on folders, and the position counts entries within a version.

A commit needs all of it done in its own SQL transaction. Where more than one effect is left, it is
told that it is `Behind`, as with the catalog itself: `ProjectedCatalogs` then does them one by one.

Where a table lies is one fact per table id and not versioned. So a folder whose new place is taken
by something else, or lies on another file system or out of reach, stays and is still found. What
fails for reasons that a person can mend (permission, a full disk) is
an error, and nothing after it is projected until it was mended.

Rejected: effects after the commit (a crash between would lose them), a journal beside the folders
(a second truth), places named by table id (people look into these folders, and Hive names them so).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from strandline.catalog import Behind, Catalog, CatalogManager
from strandline.clock import Timestamp
from strandline.durable.update import Change, Entry, Update
from strandline.errors import StrandlineError, Unavailable
from strandline.metastore.store import row_queries as queries
from strandline.metastore.store.notifications import (
    DdlEvent,
    LogPosition,
    NewEvent,
    NotificationLog,
)
from strandline.metastore.store.warehouse import Moved, Warehouse
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.sql import Database, FenceRow
from strandline.wire import decode, encode

logger = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds that `Projector.project_up_to` waits for the database unless it is told otherwise."""
BATCH = 64
"""Versions that are read from the update log at once."""

_KINDS_IN_EVENTS = frozenset({"database", "schema", "table", "view", "function"})

Effect = Callable[["Projector", Connection, Entry], None]


@dataclass(frozen=True, slots=True)
class ProjectionStatistics:
    """Counts of what this process did; ``stayed`` are folders that could not be moved."""

    projected_version: int
    entries: int
    effects: int
    stayed: int
    failures: int


class Projector:
    """The projection of one store. Safe for threads, and for several processes on one store.

    ``updates(start, end)`` gives the catalog's updates of the versions from ``start`` to ``end``
    − 1. History must not be compacted above the projected version.
    """

    def __init__(
        self,
        database: Database,
        notifications: NotificationLog,
        *,
        updates: Callable[[int, int], Sequence[Update]],
        guard: Callable[[Connection], None],
        folders: Warehouse,
    ) -> None:
        self._database = database
        self._notifications = notifications
        self._updates = updates
        self._guard = guard
        self._folders = folders
        self._known = 0
        self._entries = self._effects = self._stayed = self._failures = 0

    def projected_version(self) -> int:
        """The highest version that is projected as a whole, as of now."""
        with self._database.read() as connection:
            return self._notifications.position_on(connection).projected_version

    def project_up_to(self, version: int, *, timeout: float = PATIENCE) -> None:
        """Return when ``version`` and all before it are projected.

        Raises `Unavailable` naming the version whose folder could not be made or moved; it is
        tried again by the next call. `VersionNotFound` if it is no longer in the log.
        """
        if version > self._known:
            self._known = max(self._known, self.projected_version())
        if version <= self._known:
            return
        deadline = time.monotonic() + timeout
        while True:
            with self._database.write(deadline=deadline) as connection:
                self._guard(connection)
                reached, _ = self._advance(connection, version, effects=1)
            # Only now is it durable.
            self._known = max(self._known, reached.projected_version)
            if reached.projected_version >= version:
                return

    def project_on(self, connection: Connection, version: int) -> None:
        """Project up to ``version`` in the caller's write transaction, which checked the fence.

        Raises `Behind` where that takes more than one effect on folders: roll back,
        `project_up_to`, and try again.
        """
        if version <= self._known:
            return
        before, effects = self._notifications.position_on(connection), 1
        while before.projected_version < version:
            after, effects = self._advance(connection, version, effects=effects)
            if after == before:
                raise Behind(
                    f"catalog version {version} is needed in the notification log, which ends at"
                    f" {before.projected_version}; project up to it, and try again"
                )
            before = after

    def statistics(self) -> ProjectionStatistics:
        """What this process did, and where the store stands."""
        return ProjectionStatistics(
            projected_version=self.projected_version(),
            entries=self._entries,
            effects=self._effects,
            stayed=self._stayed,
            failures=self._failures,
        )

    # -- inside one SQL transaction

    def _advance(
        self, connection: Connection, version: int, *, effects: int
    ) -> tuple[LogPosition, int]:
        """Project some versions, at most up to ``version``, with so many effects on folders.

        Returns where it stands then, and how many effects are left.
        """
        before = self._notifications.position_on(connection)
        last, done = before.projected_version, before.projected_entries
        if last >= version:
            return before, effects
        events: list[NewEvent] = []
        for update in self._updates(last + 1, min(version, last + BATCH) + 1):
            for entry in update.entries[done:]:
                if entry.verb in _EFFECTS:
                    if not effects:
                        break
                    self._carry_out(connection, update, entry)
                    effects -= 1
                if not entry.silent:
                    events.append(_event(update, entry))
                done += 1
            if done < len(update.entries):
                break
            last, done = update.version, 0
        self._notifications.append(connection, events)
        self._notifications.move_projection(connection, before, version=last, entries=done)
        FenceRow.note_version(connection, last)
        self._entries += len(events)
        return self._notifications.position_on(connection), effects

    def _carry_out(self, connection: Connection, update: Update, entry: Entry) -> None:
        self._effects += 1
        try:
            _EFFECTS[entry.verb](self, connection, entry)
        except StrandlineError as error:
            self._failures += 1
            raise Unavailable(
                f"version {update.version} is in the catalog, but its {entry.verb} is not carried"
                f" out: {error.message}. It is tried again before the next change"
            ) from error

    # -- effects on folders, each of which may have been done before

    def _create_schema(self, connection: Connection, entry: Entry) -> None:
        location = _text(entry, "location")
        if location and self._folders.reaches(location):
            self._folders.make(location)

    def _drop_schema(self, connection: Connection, entry: Entry) -> None:
        location = _text(entry, "location")
        if location and self._folders.reaches(location):
            self._folders.remove_empty(location)

    def _create_table(self, connection: Connection, entry: Entry) -> None:
        table, location = _table(entry), _text(entry, "location")
        if table.kind is not TableKind.MANAGED or location is None:
            return
        if self._folders.reaches(location):
            self._folders.make(location)
        queries.put_location(connection, table.id, location)

    def _place_table(self, connection: Connection, entry: Entry) -> None:
        """Move the folder of a renamed or restored table to where the entry says."""
        table, target = _table(entry), _text(entry, "location")
        if table.kind is TableKind.MANAGED and target is not None:
            self._move(connection, table.id, target)

    def _drop_table(self, connection: Connection, entry: Entry) -> None:
        table = _table(entry)
        place = queries.location_of(connection, table.id)
        if table.kind is TableKind.MANAGED and place and entry.arguments.get("data") != "keep":
            self._move(connection, table.id, self._folders.dropped_place(place, table.id))

    def _move(self, connection: Connection, table_id: int, target: str) -> None:
        """Move the folder of a managed table, and say so; or leave it where it is."""
        place = queries.location_of(connection, table_id)
        if place is None or place == target:
            return
        moved = Moved.OCCUPIED
        if self._folders.reaches(place) and self._folders.reaches(target):
            moved = self._folders.move(place, target)
        if moved is Moved.OCCUPIED:
            self._stayed += 1
            logger.warning(
                "the folder of table %d stays at %s: it could not be moved to %s, which is in use,"
                " on another file system or out of reach",
                table_id,
                place,
                target,
            )
            return
        if moved is Moved.MISSING:
            self._folders.make(target)
        queries.put_location(connection, table_id, target)


_EFFECTS: dict[str, Effect] = {
    "create_schema": Projector._create_schema,
    "drop_schema": Projector._drop_schema,
    "create_table": Projector._create_table,
    "rename_table": Projector._place_table,
    "drop_table": Projector._drop_table,
    "restore_schema": Projector._create_schema,
    "restore_table": Projector._place_table,
}
"""The verbs that change folders."""


class ProjectedCatalogs:
    """The catalogs of a manager, as transactions ask for them: catching up projects too."""

    def __init__(self, catalogs: CatalogManager, projector: Projector) -> None:
        self._catalogs = catalogs
        self._projector = projector

    def catalog_at(self, connection: Connection, at: Timestamp, /) -> Catalog:
        """The catalog active at ``at``. Raises `Behind`."""
        return self._catalogs.catalog_at(connection, at)

    def sync(self, *, timeout: float) -> None:
        """Apply the log up to its head, and project it."""
        deadline = time.monotonic() + timeout
        self._catalogs.sync(timeout=timeout)
        latest = self._catalogs.latest_catalog().version
        self._projector.project_up_to(latest, timeout=deadline - time.monotonic())

    def catalog(self, version: int, /) -> Catalog:
        """That version. Raises `VersionNotFound`."""
        return self._catalogs.catalog(version)


def _event(update: Update, entry: Entry) -> NewEvent:
    shown = tuple(change for change in entry.changes if change.kind in _KINDS_IN_EVENTS)
    body = DdlEvent(author=update.author, arguments=entry.arguments, changes=shown)
    return NewEvent(
        verb=entry.verb,
        body=encode(body),
        time=update.time,
        catalog_version=update.version,
        table_id=next((_id(change) for change in shown if change.kind == "table"), None),
    )


def _id(change: Change) -> int:
    return int.from_bytes(change.key, "big")


def _text(entry: Entry, name: str) -> str | None:
    value = entry.arguments.get(name)
    return value if isinstance(value, str) else None


def _table(entry: Entry) -> TableDescriptor:
    """The table that an entry is about, as it is after it; as it was, if it is dropped."""
    for change in entry.changes:
        record = change.new or change.old
        if change.kind == "table" and record is not None:
            return decode(record, TableDescriptor)
    raise StrandlineError(f"a {entry.verb} holds no table; its catalog version cannot be projected")
