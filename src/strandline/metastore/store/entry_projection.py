"""Projecting entries of the catalog's log inside one SQL transaction.

The transaction logs an event for each entry, carries out the effects on folders, writes the places
of tables and moves the position of the projection, which counts entries within a version.
`effect_batch` decides which effects one SQL transaction may have.

Effects of two SQL transactions may touch each other's folders, so only one transaction may be lost:
each is on disk before the next one can see how far it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from strandline.catalog.kinds import kind_named
from strandline.durable.update import Entry, Update
from strandline.errors import StrandlineError, Unavailable
from strandline.metastore.store.effect_batch import EffectBatch
from strandline.metastore.store.folder_effects import FolderEffects, Task, folder_effect
from strandline.metastore.store.notifications import (
    DdlEvent,
    LogPosition,
    NewEvent,
    NotificationLog,
)
from strandline.metastore.store.warehouse_head import WarehouseHead
from strandline.sql import Database, FenceRow
from strandline.wire import encode
from strandline.work import keeping_garbage

VERSIONS_AT_ONCE = 64
"""The maximum number of versions that are read from the update log at once."""
MAX_REMEMBERED = 1024
"""How many updates applied here are remembered, so that they are not read from the log again."""

ReadUpdates = Callable[[int, int], Sequence[Update]]
"""Returns the updates of the versions from the first number to the second − 1, or a first part."""


class NotCarriedOut(Unavailable):
    """An effect on a folder of a version failed for a shortage."""


class EntryProjection:
    """See the module. ``entries``, ``effects`` and ``failures`` count what it did."""

    def __init__(
        self,
        database: Database,
        notifications: NotificationLog,
        *,
        updates: AppliedUpdates,
        folders: FolderEffects,
        head: WarehouseHead | None,
    ) -> None:
        self._database = database
        self._notifications = notifications
        self._updates = updates
        self._folders = folders
        self._head = head
        self._batches: WeakKeyDictionary[object, EffectBatch] = WeakKeyDictionary()
        self.entries = self.effects = self.failures = 0

    def advance(self, connection: Connection, version: int) -> LogPosition:
        """Project at most up to ``version``, with the effects that one batch takes.

        Return the new position. An effect that fails is an error only if it is the first of the
        batch; otherwise the entries before it are projected. A SQL transaction has one batch,
        however often this is called.
        """
        before = self._notifications.position_on(connection)
        last = before.projected_version
        if last >= version:
            return before
        updates = self._updates(last + 1, min(version, last + VERSIONS_AT_ONCE) + 1)
        transaction = connection.get_transaction() or connection.begin()
        batch = self._batches.get(transaction)
        if batch is None:
            done_up_to = self._head.done_up_to(last, self._updates) if self._head else 0
            batch = self._batches[transaction] = EffectBatch(connection, done_up_to=done_up_to)
        with keeping_garbage:
            return self.advance_by(connection, before, updates, batch)

    def advance_by(
        self,
        connection: Connection,
        before: LogPosition,
        updates: Sequence[Update],
        batch: EffectBatch,
    ) -> LogPosition:
        """`advance` by some of ``updates``, which follow ``before``."""
        last, done_entries = before.projected_version, before.projected_entries
        events: list[NewEvent] = []
        for task in self._tasks(batch, updates, done_entries):
            update, entry = task.update, task.entry
            if update.version > last + 1:  # all before it are projected
                last, done_entries = update.version - 1, 0
            if task.effect is not None:
                first = batch.untouched
                try:
                    self._database.check_write()  # else it would change the folders of others
                    if not self._folders.carry_out(task):
                        break
                except StrandlineError as error:
                    failed = self._failed(update.version, entry.verb, error)
                    if first:
                        raise failed from error
                    break
                self.effects += 1
            if not entry.silent:
                events.append(_event(update, entry))
            done_entries += 1
        else:
            last, done_entries = updates[-1].version, 0
        try:
            batch.unsynced.sync()
        except Unavailable as error:
            raise self._failed(
                last + 1 if done_entries else last, "change of folders", error
            ) from error
        also = batch.places.take_writes()
        if not batch.appends:  # else the log is in this database, and cannot be older than it
            also.append(FenceRow.note_query(last))
        after = self._notifications.move_projection(
            connection,
            before,
            version=last,
            entries=done_entries,
            events=events,
            also=also,
        )
        self.entries += len(events)
        return after

    def _tasks(
        self, batch: EffectBatch, updates: Sequence[Update], done_entries: int
    ) -> Iterator[Task]:
        """Yield the entries after the first ones; look ahead to what those of the batch will need.

        A look ends at the second effect on one table: that one mostly waits for the next batch.
        """
        entries = ((update, entry) for update in updates for entry in update.entries)
        tasks = (
            Task(batch, update, entry, folder_effect(entry))
            for update, entry in islice(entries, done_entries, None)
        )
        while upcoming := list(_with_effects(tasks, limit=batch.effects_left)):
            self._folders.prefetch(batch, upcoming)
            yield from upcoming
        yield from tasks

    def _failed(self, version: int, what: str, error: StrandlineError) -> NotCarriedOut:
        self.failures += 1
        return NotCarriedOut(
            f"version {version} is in the catalog, but its {what} failed: {error.message}. It "
            "will be tried again before the next change"
        )


def _with_effects(tasks: Iterator[Task], *, limit: int) -> Iterator[Task]:
    """Yield the next of ``tasks`` until ``limit`` have an effect.

    Also ends with the second effect on one table.
    """
    table_ids: set[int] = set()
    while limit and (task := next(tasks, None)) is not None:
        yield task
        if task.effect is not None:
            limit -= 1
            if not table_ids.isdisjoint(task.table_ids):
                return
            table_ids |= task.table_ids


class AppliedUpdates:
    """The updates to be projected: those that this node has applied, else those of the log.

    Updates read from the log are kept too: one SQL transaction carries out only a part of a version
    with many effects, and the update would be decoded again for each part.
    """

    def __init__(self, read: ReadUpdates) -> None:
        self._read = read
        self._remembered: dict[int, Update] = {}

    def remember(self, update: Update) -> None:
        if len(self._remembered) < MAX_REMEMBERED:
            self._remembered[update.version] = update

    def remembered(self, version: int) -> Update | None:
        return self._remembered.get(version)

    def forget(self, version: int) -> None:
        """Drop the updates of the versions up to this one, which are projected."""
        for old in [old for old in list(self._remembered) if old <= version]:
            self._remembered.pop(old, None)

    def __call__(self, start: int, end: int) -> Sequence[Update]:
        updates: list[Update] = []
        while start + len(updates) < end:
            update = self._remembered.get(start + len(updates))
            if update is None:
                break
            updates.append(update)
        if updates:
            return updates
        read = self._read(start, end)
        self._remembered |= {update.version: update for update in read}
        return read


def _event(update: Update, entry: Entry) -> NewEvent:
    shown = tuple(change for change in entry.changes if kind_named(change.kind).in_events)
    body = DdlEvent(author=update.author, arguments=entry.arguments, changes=shown)
    return NewEvent(
        verb=entry.verb,
        body=encode(body),
        time=update.time,
        catalog_version=update.version,
        table_id=next((change.object_id for change in shown if change.kind == "table"), None),
    )
