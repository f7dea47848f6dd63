"""The update log: the only interface that a durable catalog needs from its storage.

A log is a sequence of updates, one for each version, starting at 1; version 0 is the empty catalog.
``upper`` is the version that the next update will get. ``since`` is the lowest version that can
still be read. While it is 0, the log has all updates. Above 0, the log has a snapshot of version
``since`` in place of the update that made it and of all earlier updates. Only `UpdateLog.compact`
moves ``since``; an append never does.

The two are read together, as a `Frontier`. A reader that read one after the other could see a
``since`` above its ``upper``, and would need two round trips to a remote log for each read.

Every append names the fence token of its writer. The log refuses it with `Fenced` if its own token
differs. So a writer that was replaced can make nothing durable, however late its append arrives.

A version has one time, which is part of the update. The log that first orders an update assigns the
time. A second log, a copy or a restored one, is given the times and keeps them.

A log compacts itself from its own contents. It never writes what a node has in memory as a
snapshot, so a mistake in memory cannot become durable. The cost is that each compaction recovers
the catalog from the log. Rejected: the caller passes a snapshot (a log that consolidates rows of
changes has no use for it, and would have to compare it with its own rows).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from strandline.clock import Timestamp, format_timestamp
from strandline.durable.collections import APPEND_ONLY, LASTING
from strandline.durable.contents import Contents, restore
from strandline.durable.update import CatalogSnapshot, Update
from strandline.errors import (
    CorruptData,
    Fenced,
    InvalidInput,
    OutOfSync,
    Unavailable,
    UnknownOutcome,
    VersionNotFound,
)
from strandline.fencing import FenceToken
from strandline.metastorage import Beside
from strandline.sql import Query

READ_AT_ONCE = 100
"""The most updates that callers request with one call of `UpdateLog.updates`."""
CHANGES_AT_ONCE = 10_000
"""About how many changes these updates have: ten megabytes. A single update may have more."""
FIRST_UPDATES = 4
_GROWTH = 4
TRIMMED_AT_ONCE = 1000
"""The number of versions that a log in a database removes in one step, while writers wait."""


def updates_at_once(read: Sequence[Update]) -> int:
    """How many updates to read next if they are like ``read``, those that were read last.

    Otherwise a log of large updates would fill the memory.
    """
    changes = sum(len(entry.changes) for update in read for entry in update.entries)
    fitting = CHANGES_AT_ONCE * len(read) // max(changes, 1)
    return max(1, min(fitting, _GROWTH * len(read), READ_AT_ONCE))


@dataclass(frozen=True, slots=True)
class Frontier:
    """The readable range of the log: versions ``since`` to ``upper`` − 1.

    ``pruned`` lists the append-only kinds that were pruned: the name of the kind, and the version
    up to which its objects were removed.
    """

    since: int
    upper: int
    pruned: tuple[tuple[str, int], ...] = ()

    def pruned_up_to(self, kind: str) -> int:
        """The version up to which the objects of an append-only kind were removed, or 0."""
        return dict(self.pruned).get(kind, 0)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a linearizable read of the log.

    ``time`` is before the time of every later update.
    """

    frontier: Frontier
    time: Timestamp


@dataclass(frozen=True, slots=True)
class Scanned:
    """An object of an append-only kind: the version and time of its commit, and its bytes."""

    version: int
    time: Timestamp
    data: bytes


class Companion(Protocol):
    """Writes rows in the SQL transaction of an append, in the log's own database."""

    @property
    def first_queries(self) -> tuple[Query, ...]:
        """The statements that `write` begins with, in their order."""

    def write(self, connection: Any, updates: Sequence[Update]) -> None:  # Any: depends on the log
        """Write the rows that belong to ``updates``, which have their times.

        If it raises, the append is rolled back.
        """

    def committed(self) -> None:
        """Called by the committer once the updates are in the log, with what `write` wrote.

        Also called if the append got no answer and the log has found it since.
        """


@dataclass(frozen=True, slots=True)
class LogAppend:
    """The arguments of `UpdateLog.append`."""

    updates: Sequence[Update]
    token: FenceToken | None
    times: Sequence[Timestamp] | None
    new_token: FenceToken | None
    companion: Companion | None

    @property
    def expected_upper(self) -> int:
        return self.updates[0].version

    @property
    def next_upper(self) -> int:
        return self.updates[-1].version + 1

    def at(self, time: Timestamp) -> tuple[Update, ...]:
        """The updates with `times`, or all with ``time`` if there are none."""
        if self.times is None:
            return tuple(update.at(time) for update in self.updates)
        return tuple(u.at(own_time) for u, own_time in zip(self.updates, self.times, strict=True))

    def check_times(self, *, earliest: Timestamp, latest: Timestamp) -> None:
        """Raise `InvalidInput` for `times` that no log could have given to the updates.

        ``earliest`` is the time of the preceding version, ``latest`` the log's own time.
        """
        times = () if self.times is None else zip(self.updates, self.times, strict=True)
        for update, time in times:
            if not earliest <= time <= latest:
                raise InvalidInput(
                    f"version {update.version} cannot have the time {format_timestamp(time)} in "
                    f"this log: the previous version has {format_timestamp(earliest)}, and the "
                    f"log's own time is {format_timestamp(latest)}"
                )
            earliest = time

    def beside(self) -> list[Beside]:
        """What `companion` writes in the invoke that appends the updates."""
        companion = self.companion
        if companion is None:
            return []
        write = companion.write
        return [
            Beside(
                lambda connection, time: write(connection, self.at(time)), companion.first_queries
            )
        ]


class UpdateLog(ABC):
    """See the module. Safe for use by several threads; several processes may share a log."""

    environment: str | None = None
    """The environment id that a new catalog in this log must have, or None for any id."""
    max_updates: int
    """The maximum number of updates in one append, where each has an audit event."""
    frontier_is_cheap: bool
    """Whether `frontier` takes microseconds, not a round trip, while nothing was appended."""

    @abstractmethod
    def frontier(self) -> Frontier:
        """The frontier. Linearizable; cheap while nothing was appended."""

    @abstractmethod
    def check(self) -> Checked:
        """The frontier and a time. Linearizable, and ordered after every append in flight."""

    def look(self) -> Checked:
        """`check` in the order of appends alone: it waits for no other write of the database.

        The time is below that of every later append, but not of other writes.
        """
        return self.check()

    @abstractmethod
    def token(self) -> FenceToken | None:
        """The token that appends must name, or None while the log is empty."""

    def append(
        self,
        expected_upper: int,
        token: FenceToken | None,
        updates: Sequence[Update],
        *,
        times: Sequence[Timestamp] | None = None,
        new_token: FenceToken | None = None,
        companion: Companion | None = None,
    ) -> tuple[Update, ...]:
        """Append all of ``updates`` or none, with consecutive versions from ``expected_upper`` on.

        ``new_token`` becomes the log's token in the same step. ``companion`` writes in the same
        step too; this needs a log in a SQL database, other logs raise `UnsupportedOperation`.
        Without ``times`` the log gives all of ``updates`` one time. ``times`` are the times that
        another log gave, one for each update.

        Returns the updates with their times. After `Unavailable` or `UnknownOutcome` the caller may
        append the same updates again: whichever attempt succeeds, they are in the log once.

        Raises `OutOfSync` if the log's upper differs, `Fenced` if its token differs, `InvalidInput`
        if ``times`` decrease, start before the time of the preceding version, or are after this
        log's own time (`check`). Raises `Unavailable` if nothing was appended, and `UnknownOutcome`
        if the append was sent and its outcome cannot be determined now.
        """
        versions = [update.version for update in updates]
        if versions != list(range(expected_upper, expected_upper + len(updates))) or not versions:
            raise ValueError(f"versions {versions} do not follow upper {expected_upper}")
        return self._append(LogAppend(updates, token, times, new_token, companion))

    @abstractmethod
    def _append(self, append: LogAppend) -> tuple[Update, ...]:
        """`append`, whose updates have consecutive versions."""

    def check_sizes(self, updates: Sequence[Update]) -> None:  # noqa: B027 - no limit by default
        """Raise `InvalidInput` if this log can never append ``updates`` because of their sizes.

        `append` raises the same. It is for callers that do something else before they append.
        """

    @abstractmethod
    def time_of(self, update: Update) -> Timestamp | None:
        """The time of ``update``, or None if the log does not have it at its version.

        Decodes only the id of the record in the log.
        """

    @abstractmethod
    def first_snapshot(self) -> CatalogSnapshot:
        """The snapshot at ``since``. The snapshot of version 0 is empty."""

    def snapshot(self, as_of: int | None = None) -> CatalogSnapshot:
        """The snapshot of version ``as_of``, or of ``since`` if it is None.

        The cost is proportional to the size of the catalog and of the updates since ``since``.
        Raises `VersionNotFound` for a version below ``since`` or above the last one.
        """
        snapshot = self.first_snapshot()
        if as_of is None or as_of == snapshot.version:
            return snapshot
        if as_of < snapshot.version:
            raise trimmed_away(as_of, since=snapshot.version)
        contents = restore(snapshot)
        time = snapshot.time
        for update in self.each_update(snapshot.version + 1, as_of + 1):
            contents = contents.apply(update.changes(), at=update.time)
            time = update.time
        return snapshot_of(as_of, time, contents)

    @abstractmethod
    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        """All updates of versions ``start`` to ``end`` − 1.

        Raises `VersionNotFound` for versions at or below ``since`` or above the last one, and
        `CorruptData` if a version between is missing.
        """

    def each_update(self, start: int, end: int) -> Iterator[Update]:
        """`updates`, of which a part is in memory at a time."""
        count = FIRST_UPDATES
        while start < end:
            updates = self.updates(start, min(start + count, end))
            yield from updates
            start += len(updates)
            count = updates_at_once(updates)

    @abstractmethod
    def listen(self, after: Frontier, *, timeout: float) -> bool:
        """Wait until the frontier is not ``after``. Returns False after ``timeout`` seconds."""

    @abstractmethod
    def scan(self, kind: str, start: int, end: int) -> Iterator[Scanned]:
        """The objects of an append-only kind in versions ``start`` to ``end`` − 1, in order.

        Compaction does not remove them. Pruned objects are not returned.
        """

    @abstractmethod
    def prune(self, kind: str, up_to: int, token: FenceToken) -> bool:
        """Remove the objects of an append-only kind from all versions up to ``up_to``.

        Returns False, and changes nothing, if they were already pruned that far. Raises `Fenced`,
        `VersionNotFound` if the version is not in the log, and `ValueError` if the kind is lasting.
        """

    @abstractmethod
    def compact(self, up_to: int, token: FenceToken) -> bool:
        """Move ``since`` to ``up_to`` and remove the history of all versions below it.

        A long history is removed in several steps, between which others write. A crash between two
        steps leaves a log with all versions from its ``since`` on, which may be below ``up_to``;
        the next compaction continues. Objects of append-only kinds are kept. Returns False if
        ``since`` is at or above ``up_to`` already. Raises `Fenced`, and `VersionNotFound` if the
        version is not in the log.
        """

    def copy_blobs(self, folder: Path) -> frozenset[str]:
        """Copy to ``folder`` the blobs that the log's last state refers to.

        Returns the keys of the blobs that are missing.
        """
        return frozenset()

    def _settle(self, append: LogAppend, error: Exception) -> tuple[Update, ...]:
        """Settle an append that got no answer: the id of the update at its last version decides.

        The last version is compared because, in a copy, another process may have appended only the
        first of these versions.
        """
        try:
            upper = self.frontier().upper
            time = self.time_of(append.updates[-1])
        except (Unavailable, OSError):
            if isinstance(error, Unavailable) and not isinstance(error, UnknownOutcome):
                raise error from None  # the store did nothing, and never will
            raise UnknownOutcome(
                f"version {append.expected_upper} was sent to the log, which did not answer and "
                "cannot be read now; read the catalog when the log answers again"
            ) from error
        if time is not None:
            return append.at(time)
        if upper <= append.expected_upper:
            if isinstance(error, Unavailable):
                raise error  # not appended; the caller's deadline decides about a retry
            raise UnknownOutcome(
                f"version {append.expected_upper} was sent to the log, which did not answer "
                f"({error}) and does not contain it yet; read the catalog before you repeat the "
                "change"
            ) from error
        raise OutOfSync(f"another node appended version {append.expected_upper}") from error

    def _refused(self, append: LogAppend) -> tuple[Update, ...]:
        """Raise why the append was refused, or return its updates if an earlier try succeeded."""
        time = self.time_of(append.updates[-1])
        if time is not None:
            return append.at(time)
        current = self.token()
        if current != append.token:
            refuse_sealed(current)
        refuse_other_token(current, append.token)
        raise OutOfSync(
            f"version {append.expected_upper} cannot be appended; the next version is "
            f"{self.frontier().upper}"
        )


class Superseded(Fenced):
    """This process must stop: a newer deploy generation has the catalog, or another log does."""


class SetBack(CorruptData):
    """The log ends before a version that this process has applied, so its memory is wrong."""


MOVED = (
    "the catalog was moved from this log to another one; start the node again. If the store "
    "cannot be opened then, run `strandline durable migrate` again"
)


def refuse_sealed(token: FenceToken | None) -> None:
    """Raise `Superseded` if ``token`` is that of a log whose catalog was moved to another log."""
    if token is not None and token.is_sealed:
        raise Superseded(MOVED)


def refuse_lasting(kind: str) -> None:
    """Raise `ValueError` unless ``kind`` is an append-only kind that is not lasting."""
    if kind in LASTING or kind not in APPEND_ONLY:
        raise ValueError(
            f"objects of the kind {kind} are kept for ever; they cannot be removed by age"
        )


def refuse_other_token(current: FenceToken | None, token: FenceToken | None) -> None:
    """Raise `Fenced` if the log's token is not the caller's."""
    if current == token:
        return
    if current is None:
        raise Fenced(lost_token(token))
    raise Fenced(
        f"this node wrote with fence token {token}, but the catalog's token is "
        f"{current.beside(token)}: another holder has opened the store; nothing was changed, try "
        "again"
    )


def lost_token(token: FenceToken | None) -> str:
    """The message for a holder of ``token`` whose log has no token any more."""
    return (
        f"this node holds fence token {token}, but the log of the catalog has none: the log was "
        "emptied or replaced; nothing was changed. Restore it from a backup, then restart the node"
    )


def trimmed_away(version: int, *, since: int) -> VersionNotFound:
    """The error of reading a version below the earliest that the log still has."""
    return VersionNotFound(f"version {version} is no longer in the log; the earliest is {since}")


def refuse_unreadable(start: int, end: int, *, since: int, upper: int) -> None:
    """Raise `VersionNotFound` unless a log of this range has the updates before ``end``."""
    if start <= since:
        raise trimmed_away(start, since=since)
    if end > upper:
        raise VersionNotFound(
            f"version {max(start, upper)} is not in the log; the latest is {upper - 1}"
        )


def refuse_absent(version: int, frontier: Frontier) -> None:
    """Raise `VersionNotFound` if the log does not have the version that it is to be trimmed to."""
    if version >= frontier.upper:
        raise VersionNotFound(
            f"version {version} is not in the log, which has versions {frontier.since} to "
            f"{frontier.upper - 1}; trim to one of them"
        )


def snapshot_of(version: int, time: Timestamp, contents: Contents) -> CatalogSnapshot:
    """The snapshot of version ``version``, which has these contents and was made at ``time``."""
    return CatalogSnapshot(version, time, contents.dump(), contents.times())
