"""The update log: the one thing that a durable catalog needs from below.

A log is a row of updates, one a version, from 1 on; version 0 is the empty catalog. ``upper`` is
the version that the next update will have. ``since`` is the lowest version that can still be read:
at 0 all updates are there; above it, a snapshot stands in the place of the update that made
``since`` and of all before it. ``since`` moves by `UpdateLog.compact` alone, never by an append.

Every append names the fence token of its writer, and is refused with `Fenced` when the log's token
is another one; so a writer that was replaced can make nothing durable, however late it comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strandline.clock import Timestamp
from strandline.durable.update import Snapshot, Update
from strandline.fencing import FenceToken


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far the log reaches: versions ``since`` to ``upper`` − 1 can be read."""

    since: int
    upper: int


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


class UpdateLog(ABC):
    """See the module. Safe to use from several threads; several processes may share a log."""

    @property
    @abstractmethod
    def max_updates(self) -> int:
        """How many updates, each with an audit event, one append may have."""

    @abstractmethod
    def frontier(self) -> Frontier:
        """Linearizable; cheap while nothing was appended."""

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
        new_token: FenceToken | None = None,
    ) -> tuple[Update, ...]:
        """Append ``updates``, of consecutive versions from ``expected_upper`` on, all or none.

        ``new_token`` becomes the log's token in the same step. Returns the updates with their
        time. Raises `OutOfSync` when the upper is another one, `Fenced` when the token is,
        `Unavailable` when nothing was appended, `UnknownOutcome` when it was sent and cannot be
        settled now. After these two the same updates may be appended again: whichever try lands,
        they are in the log once.
        """

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The snapshot at ``since``; that of version 0 is empty."""

    @abstractmethod
    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        """The updates of versions from ``start`` to ``end`` − 1, all of them.

        Raises `VersionNotFound` for versions at or below ``since`` or above the last,
        `CorruptData` for a hole.
        """

    @abstractmethod
    def wait(self, seen: Frontier, *, timeout: float) -> bool:
        """Wait until the frontier is no longer ``seen``; False after ``timeout`` seconds."""

    @abstractmethod
    def scan(self, kind: str, start: int, end: int) -> Iterator[Scanned]:
        """The objects of an append-only kind from versions ``start`` to ``end`` − 1, in order."""

    @abstractmethod
    def compact(self, snapshot: Snapshot, token: FenceToken) -> bool:
        """Put ``snapshot`` in the place of the updates up to its version; ``since`` moves there.

        False, and nothing changed, when ``since`` is there or above it already. Raises `Fenced`.
        """
