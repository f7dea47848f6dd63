"""The update log: the one thing that a durable catalog needs from below.

A log is a row of updates, one a version, from 1 on; version 0 is the empty catalog. ``upper`` is
the version that the next update will have. ``since`` is the lowest version that can still be read:
at 0 all updates are there; above it, the log has a snapshot in the place of the update that made
``since`` and of all before it. ``since`` moves by `UpdateLog.compact` alone, never by an append.

Both are read together, as a `Frontier`. A reader that asked for one after the other could find a
``since`` above its ``upper``, and would pay two round trips to a remote log for each look.

Every append names the fence token of its writer, and is refused with `Fenced` when the log's token
is another one; so a writer that was replaced can make nothing durable, however late it comes.

A version has one time, and it stands inside the update. The log that orders an update first gives
the time. A second log, a copy or a restore of it is given the times, and keeps them.

A log compacts itself from its own contents. What a node has in memory is never written as a
snapshot, so a mistake in memory cannot become durable. It costs a recovery of the catalog, at a
compaction alone. *Rejected*: a snapshot handed in (a log that consolidates rows of changes has no
use for it, and would have to compare it with what it has).
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
from strandline.durable.update import Snapshot, Update
from strandline.errors import (
    Fenced,
    InvalidInput,
    OutOfSync,
    Unavailable,
    UnknownOutcome,
    VersionNotFound,
)
from strandline.fencing import FenceToken
from strandline.sql import Query

READ_AT_ONCE = 1000
"""Updates that one call of `UpdateLog.updates` is asked for."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far the log reaches: versions ``since`` to ``upper`` − 1 can be read.

    ``pruned`` has the append-only kinds of which objects are gone, by name, and the version up to
    which they are.
    """

    since: int
    upper: int
    pruned: tuple[tuple[str, int], ...] = ()

    def pruned_up_to(self, kind: str) -> int:
        """The version up to which the objects of an append-only kind are gone; 0 if none are."""
        return dict(self.pruned).get(kind, 0)


@dataclass(frozen=True, slots=True)
class Checked:
    """A linearizable look at the log: its frontier, and a time that no later update is given."""

    frontier: Frontier
    time: Timestamp


@dataclass(frozen=True, slots=True)
class Scanned:
    """An object of an append-only kind: the version and time of its commit, and its bytes."""

    version: int
    time: Timestamp
    data: bytes


class Companion(Protocol):
    """What else the SQL transaction of an append writes, in the database that the log is in."""

    @property
    def asks(self) -> tuple[Query, ...]:
        """The statements that `write` begins with, in their order."""

    def write(self, connection: Any, updates: Sequence[Update]) -> None:  # Any: of the log's sort
        """Write what belongs to ``updates``, which have their times. By raising it undoes all."""

    def committed(self) -> None:
        """What `write` has written is committed. Not called where the outcome is unknown."""


class UpdateLog(ABC):
    """See the module. Safe to use from several threads; several processes may share a log."""

    @property
    def environment(self) -> str | None:
        """The environment id that a new catalog in this log has; None where any will do."""
        return None

    @property
    @abstractmethod
    def max_updates(self) -> int:
        """How many updates, each with an audit event, one append may have."""

    @abstractmethod
    def frontier(self) -> Frontier:
        """Linearizable; cheap while nothing was appended."""

    @property
    @abstractmethod
    def frontier_is_cheap(self) -> bool:
        """Whether `frontier` takes microseconds while nothing was appended, not a round trip."""

    @abstractmethod
    def check(self) -> Checked:
        """Linearizable, and ordered after every append in flight."""

    @abstractmethod
    def token(self) -> FenceToken | None:
        """The token that appends have to name; None while the log is empty."""

    @abstractmethod
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
        """Append ``updates``, of consecutive versions from ``expected_upper`` on, all or none.

        ``new_token`` becomes the log's token in the same step. ``companion`` writes in it too; that
        needs a log in a SQL database (`UnsupportedOperation`). Without ``times`` the log gives all
        of ``updates`` one time. ``times`` are those that another log gave, one for each update:
        `InvalidInput` if they go back, or lie below the time of the version before, or ahead of
        this log's own time (`check`). Returns the updates with their time. Raises `OutOfSync` when
        the upper is another one, `Fenced` when the token is, `Unavailable` when nothing was
        appended, `UnknownOutcome` when it was sent and cannot be settled now. After these two the
        same updates may be appended again: whichever try lands, they are in the log once.
        """

    @abstractmethod
    def time_of(self, update: Update) -> Timestamp | None:
        """The time that the log gave to ``update``; None unless it stands at its version.

        Reads no more of the log's record than its id.
        """

    @abstractmethod
    def first_snapshot(self) -> Snapshot:
        """The snapshot at ``since``; that of version 0 is empty."""

    def snapshot(self, as_of: int | None = None) -> Snapshot:
        """Every object at version ``as_of``; without it, at ``since``.

        Costs the size of the catalog and of the updates since ``since``. Raises `VersionNotFound`
        for a version below ``since`` or above the last.
        """
        snapshot = self.first_snapshot()
        if as_of is None or as_of == snapshot.version:
            return snapshot
        if as_of < snapshot.version:
            raise VersionNotFound(
                f"version {as_of} was asked for; the earliest in the log is {snapshot.version}"
            )
        contents = restore(snapshot.kinds, snapshot.times, at=snapshot.time)
        time = snapshot.time
        for start in range(snapshot.version + 1, as_of + 1, READ_AT_ONCE):
            for update in self.updates(start, min(start + READ_AT_ONCE, as_of + 1)):
                contents = contents.apply(update.changes(), at=update.time)
                time = update.time
        return snapshot_of(as_of, time, contents)

    @abstractmethod
    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        """The updates of versions from ``start`` to ``end`` − 1, all of them.

        Raises `VersionNotFound` for versions at or below ``since`` or above the last,
        `CorruptData` for a hole.
        """

    @abstractmethod
    def listen(self, after: Frontier, *, timeout: float) -> bool:
        """Wait until the frontier is no longer ``after``; False after ``timeout`` seconds."""

    @abstractmethod
    def scan(self, kind: str, start: int, end: int) -> Iterator[Scanned]:
        """The objects of an append-only kind from versions ``start`` to ``end`` − 1, in order.

        Trimming the history takes none of them away; those that are pruned are gone.
        """

    @abstractmethod
    def prune(self, kind: str, up_to: int, token: FenceToken) -> bool:
        """Remove the objects of an append-only kind from all versions up to ``up_to``.

        False, and nothing changed, where that was done before. Raises `Fenced`, `VersionNotFound`
        for a version that is not in the log, and `ValueError` for a kind that is lasting.
        """

    @abstractmethod
    def compact(self, up_to: int, token: FenceToken) -> bool:
        """Let go of all versions below ``up_to``, to which ``since`` moves.

        Objects of append-only kinds stay. False, and nothing changed, when ``since`` is there or
        above it already. Raises `Fenced`, and `VersionNotFound` for a version that is not in the
        log.
        """

    def copy_blobs(self, folder: Path) -> frozenset[str]:
        """Copy the blobs that the log's last state names to ``folder``.

        Returns the keys of those that are missing.
        """
        return frozenset()

    def _settle(
        self, updates: Sequence[Update], times: Sequence[Timestamp] | None, error: Exception
    ) -> tuple[Update, ...]:
        """The append got no answer: whose id stands at its last version decides.

        Of a copy, another process may have appended the first of these versions alone.
        """
        try:
            upper = self.frontier().upper
            time = self.time_of(updates[-1])
        except (Unavailable, OSError):
            raise UnknownOutcome(
                f"version {updates[0].version} was sent to the log and not answered, and the log "
                "cannot be read now; read the catalog when it answers again"
            ) from error
        if time is not None:
            return at_times(updates, times, time)
        if upper <= updates[0].version:
            if isinstance(error, Unavailable):
                raise error  # it is not there, and the caller's deadline decides what to do next
            raise UnknownOutcome(
                f"version {updates[0].version} was sent to the log, not answered ({error}) and is "
                "not there yet; read the catalog before doing it again"
            ) from error
        raise OutOfSync(f"another node appended version {updates[0].version}") from error

    def _refused(
        self,
        token: FenceToken | None,
        updates: Sequence[Update],
        times: Sequence[Timestamp] | None,
    ) -> tuple[Update, ...]:
        """The append was refused: why, unless an earlier try of it is what stands in its way."""
        time = self.time_of(updates[-1])
        if time is not None:
            return at_times(updates, times, time)
        current = self.token()
        if current != token:
            refuse_sealed(current)
        refuse_other_token(current, token)
        raise OutOfSync(
            f"version {updates[0].version} was asked for, the next version is "
            f"{self.frontier().upper}"
        )


class Replaced(Fenced):
    """A newer deploy generation holds the catalog: this process has nothing to do here any more."""


MOVED = (
    "the catalog is moved from this log to another one; start the node again. If the store cannot"
    " be opened then, run `strandline durable migrate` again"
)


def refuse_sealed(token: FenceToken | None) -> None:
    """Raise `Replaced` where ``token`` is that of a log whose catalog was moved to another one."""
    if token is not None and token.is_sealed:
        raise Replaced(MOVED)


def check_versions(expected_upper: int, updates: Sequence[Update]) -> None:
    """`ValueError` unless ``updates`` are some, of the versions from ``expected_upper`` on."""
    versions = [update.version for update in updates]
    if versions != list(range(expected_upper, expected_upper + len(updates))) or not versions:
        raise ValueError(f"versions {versions} do not follow upper {expected_upper}")


def refuse_lasting(kind: str) -> None:
    """`ValueError` unless ``kind`` is append-only, and one whose objects do not stay for good."""
    if kind in LASTING or kind not in APPEND_ONLY:
        raise ValueError(f"objects of {kind} are not removed by their age")


def refuse_other_token(current: FenceToken | None, token: FenceToken | None) -> None:
    """Raise `Fenced` where the log's token is not that of the caller."""
    if current != token:
        shown = "gone" if current is None else current.beside(token)
        raise Fenced(
            f"this node wrote with fence token {token}, and the catalog's is {shown}: another "
            "holder has opened the store; nothing was changed, try again"
        )


def refuse_absent(version: int, frontier: Frontier) -> None:
    """Raise `VersionNotFound` for a version to trim to that is not in the log yet."""
    if version >= frontier.upper:
        raise VersionNotFound(
            f"version {version} is not in the log, which goes from version {frontier.since} to "
            f"{frontier.upper - 1}; trim to one of these"
        )


def check_times(
    updates: Sequence[Update],
    times: Sequence[Timestamp],
    *,
    earliest: Timestamp,
    latest: Timestamp,
) -> None:
    """Raise `InvalidInput` for times that no log could have given to ``updates``.

    ``earliest`` is the time of the version before, ``latest`` the log's own.
    """
    for update, time in zip(updates, times, strict=True):
        if not earliest <= time <= latest:
            raise InvalidInput(
                f"version {update.version} cannot have the time {format_timestamp(time)} in "
                f"this log: the version before has {format_timestamp(earliest)}, and the log's "
                f"own time is {format_timestamp(latest)}"
            )
        earliest = time


def at_times(
    updates: Sequence[Update], times: Sequence[Timestamp] | None, time: Timestamp
) -> tuple[Update, ...]:
    """The updates with the ``times`` that they were appended with; without these, at ``time``."""
    if times is None:
        return tuple(update.at(time) for update in updates)
    return tuple(update.at(given) for update, given in zip(updates, times, strict=True))


def snapshot_of(version: int, time: Timestamp, contents: Contents) -> Snapshot:
    """The snapshot of ``contents``, those of ``version``, which the log made at ``time``."""
    return Snapshot(version, time, contents.dump(), contents.times())
