"""The projection: what DDL does outside the catalog.

A version of the catalog has effects that the catalog does not hold: an event in the notification
log, the place of a managed table, folders made and moved. They are derived from the entries of the
update log, in order, exactly once, by whoever comes: the DDL call itself before it returns, a
commit that relies on the version, a node that starts. How far it has come is a row of the store,
moved in the SQL transaction that writes the events and the places.

What must stay true: a folder cannot be moved back by a rollback, so effects may be done and their
SQL transaction lost. Then they are met again, and each must be recognized. `folder_effects` says
which of them one SQL transaction may have for that; the position counts entries within a version.

A commit needs all of it done in its own SQL transaction. Where more effects are left, it is told
that it is `Behind`, as with the catalog itself: `ProjectedCatalogs` then does them in several.

No folder stops what comes behind it: what is refused is left as it is, and counted. What is short
(a full disk, no descriptors) is an error, and is tried again before anything else is projected.

Rejected: effects after the commit (a crash between would lose them), a journal beside the folders
(a second truth), places named by table id (people look into these folders, and Hive names them so).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from strandline.catalog import Behind, Catalog, CatalogManager
from strandline.clock import Timestamp
from strandline.durable.update import Change, Entry, Update
from strandline.errors import InvalidInput, StrandlineError, Unavailable
from strandline.metastore.store.folder_effects import VERBS, FolderEffects, Turn
from strandline.metastore.store.notifications import (
    DdlEvent,
    LogPosition,
    NewEvent,
    NotificationLog,
)
from strandline.metastore.store.store_folders import StoreFolders
from strandline.sql import Database, FenceRow
from strandline.wire import encode

PATIENCE = 30.0
"""Seconds that `Projector.project_up_to` waits for the database unless it is told otherwise."""
BATCH = 64
"""Versions that are read from the update log at once."""
_KINDS_IN_EVENTS = frozenset({"database", "schema", "table", "view", "function"})

ReadUpdates = Callable[[int, int], Sequence[Update]]
"""The updates of versions from the first number to the second − 1, all of them or the first few."""


@dataclass(frozen=True, slots=True)
class ProjectionStatistics:
    """Counts of what this process did.

    ``failures`` are effects that were short of something and tried again; ``unmade``, ``stayed``
    and ``unremoved`` those that were refused (`RefusedFolders`).
    """

    projected_version: int
    entries: int
    effects: int
    failures: int
    unmade: int
    stayed: int
    unremoved: int


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
        updates: ReadUpdates,
        guard: Callable[[Connection], None],
        folders: StoreFolders,
    ) -> None:
        self._database = database
        self._notifications = notifications
        self._updates = updates
        self._guard = guard
        self._folders = FolderEffects(folders)
        self._turns: WeakKeyDictionary[object, Turn] = WeakKeyDictionary()
        self._known = 0
        self._entries = self._effects = self._failures = 0

    def projected_version(self) -> int:
        """The highest version that is projected as a whole, as of now."""
        with self._database.read() as connection:
            return self._notifications.position_on(connection).projected_version

    def project_up_to(self, version: int, *, timeout: float = PATIENCE) -> None:
        """Return when ``version`` and all before it are projected.

        Raises `Unavailable` naming the version for whose folders something is short; it is tried
        again by the next call. `VersionNotFound` if it is no longer in the log.
        """
        if version > self._known:
            self._known = max(self._known, self.projected_version())
        if version <= self._known:
            return
        deadline = time.monotonic() + timeout
        updates = _Once(self._updates)
        while True:
            with self._database.write(deadline=deadline) as connection:
                self._guard(connection)
                reached = self._advance(connection, version, updates, self._turn(connection))
            # Only now is it durable.
            self._known = max(self._known, reached.projected_version)
            self._folders.delete_purged()
            if reached.projected_version >= version:
                return

    def project_on(self, connection: Connection, version: int) -> None:
        """Project up to ``version`` in the caller's write transaction, which checked the fence.

        Raises `Behind` where that takes more effects on folders than one SQL transaction may have:
        roll back, `project_up_to`, and try again.
        """
        if version <= self._known:
            return
        before = self._notifications.position_on(connection)
        updates, turn = _Once(self._updates), self._turn(connection)
        while before.projected_version < version:
            after = self._advance(connection, version, updates, turn)
            if after == before:
                raise Behind(
                    f"catalog version {version} is needed in the notification log, which ends at"
                    f" {before.projected_version}; project up to it, and try again"
                )
            before = after

    def statistics(self) -> ProjectionStatistics:
        """What this process did, and where the store stands."""
        refused = self._folders.refused()
        return ProjectionStatistics(
            projected_version=self.projected_version(),
            entries=self._entries,
            effects=self._effects,
            failures=self._failures,
            unmade=refused.unmade,
            stayed=refused.stayed,
            unremoved=refused.unremoved,
        )

    # -- inside one SQL transaction

    def _turn(self, connection: Connection) -> Turn:
        """The turn of the SQL transaction, which may project more than once."""
        transaction = connection.get_transaction()
        assert transaction is not None
        return self._turns.setdefault(transaction, Turn(connection))

    def _advance(
        self, connection: Connection, version: int, updates: ReadUpdates, turn: Turn
    ) -> LogPosition:
        """Project some versions, at most up to ``version``, with the effects that ``turn`` takes.

        Returns where it stands then. An effect that fails is an error only if it is the first:
        what comes before it is projected in any case.
        """
        before = self._notifications.position_on(connection)
        last, done = before.projected_version, before.projected_entries
        if last >= version:
            return before
        events: list[NewEvent] = []
        for update in updates(last + 1, min(version, last + BATCH) + 1):
            for entry in islice(update.entries, done, None):
                if entry.verb in VERBS:
                    first = turn.untouched
                    try:
                        if not self._folders.carry_out(turn, entry, version=update.version):
                            break
                    except StrandlineError as error:
                        failed = self._failed(update.version, entry.verb, error)
                        if first:
                            raise failed from error
                        break
                    self._effects += 1
                if not entry.silent:
                    events.append(_event(update, entry))
                done += 1
            if done < len(update.entries):
                break
            last, done = update.version, 0
        try:
            turn.unsynced.sync()
        except Unavailable as error:
            raise self._failed(last + 1 if done else last, "change of folders", error) from error
        self._notifications.append(connection, events)
        self._notifications.move_projection(connection, before, version=last, entries=done)
        FenceRow.note_version(connection, last)
        self._entries += len(events)
        return self._notifications.position_on(connection)

    def _failed(self, version: int, what: str, error: StrandlineError) -> Unavailable:
        self._failures += 1
        return Unavailable(
            f"version {version} is in the catalog, but its {what} is not carried out:"
            f" {error.message}. It is tried again before the next change"
        )


class _Once:
    """Reads each update from the log once, though one SQL transaction may do but a part of it.

    Without it a version of n effects on folders would be read and decoded n times.
    """

    def __init__(self, read: ReadUpdates) -> None:
        self._read = read
        self._held: Sequence[Update] = ()

    def __call__(self, start: int, end: int) -> Sequence[Update]:
        held = self._held
        if not held or not held[0].version <= start <= held[-1].version:
            held = self._held = self._read(start, end)
        return held[start - held[0].version : end - held[0].version]


class ProjectedCatalogs:
    """The catalogs of a manager, as transactions ask for them: catching up projects too.

    ``upper_within`` reads the log's upper inside a SQL transaction. It is None where log and rows
    lie in two databases; then the catalog needs a delay before activation (`InvalidInput`).
    """

    def __init__(
        self,
        catalogs: CatalogManager,
        projector: Projector,
        *,
        upper_within: Callable[[Connection], int] | None,
    ) -> None:
        if upper_within is None and not catalogs.delay:
            raise InvalidInput(
                "the catalog and the rows of this store lie in two databases, and the catalog was"
                " created with a delay of 0, so no transaction could know the catalog of its"
                " commit; create it with a delay before activation (200 ms, say)"
            )
        self._catalogs = catalogs
        self._projector = projector
        self._upper_within = upper_within

    def catalog_at(self, connection: Connection, at: Timestamp, /) -> Catalog:
        """The catalog active at ``at``. Raises `Behind`."""
        read = self._upper_within
        return self._catalogs.catalog_at(at, upper=None if read is None else read(connection))

    def catch_up(self, *, timeout: float) -> None:
        """Look at the log, apply it, and project it."""
        deadline = time.monotonic() + timeout
        if self._upper_within is None:
            self._catalogs.look()
        else:
            self._catalogs.sync()
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
