"""A log whose appends no other holder sees, to try what would become durable.

`BufferedLog` shows another log as it was when the `BufferedLog` was created, and keeps appended
updates in memory. So the regular code opens, fills, edits or migrates a catalog, and nothing of it
reaches the store (`OpenableState.check_open`). If the log below is trimmed beyond that moment,
reading raises `NotFresh`, and the caller starts again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from strandline.clock import Timestamp
from strandline.durable.log import Checked, Frontier, LogAppend, Scanned, UpdateLog
from strandline.durable.update import CatalogSnapshot, Update
from strandline.errors import NotFresh, UnsupportedOperation, VersionNotFound
from strandline.fencing import FenceToken


class BufferedLog(UpdateLog):
    """See the module. Not safe for use by several threads."""

    def __init__(self, log: UpdateLog) -> None:
        self._log = log
        self._token = log.token()
        self._base = log.frontier().upper
        self._time = self._last_time()
        self._appended: list[Update] = []

    def _last_time(self) -> Timestamp:
        try:
            return self._log.updates(self._base - 1, self._base)[0].time
        except VersionNotFound:  # the last version is that of the snapshot
            return self._log.first_snapshot().time

    @property
    def max_updates(self) -> int:
        return self._log.max_updates

    @property
    def _upper(self) -> int:
        return self._base + len(self._appended)

    def frontier(self) -> Frontier:
        frontier = self._log.frontier()
        self._refuse_newer(frontier.since)
        return replace(frontier, upper=self._upper)

    def _refuse_newer(self, since: int) -> None:
        if since >= self._base:
            raise NotFresh(
                f"the log was trimmed to version {since} during a trial on version "
                f"{self._base - 1}; start the trial again"
            )

    @property
    def frontier_is_cheap(self) -> bool:
        return self._log.frontier_is_cheap

    def check(self) -> Checked:
        return Checked(self.frontier(), self._time)

    def token(self) -> FenceToken | None:
        return self._token

    def _append(self, append: LogAppend) -> tuple[Update, ...]:
        """See `UpdateLog.append`. The time is the last update's time plus one."""
        if append.companion is not None or append.times is not None:
            raise UnsupportedOperation(
                "a log that keeps its appends in memory cannot be a copy of another log"
            )
        if append.token != self._token or append.expected_upper != self._upper:
            return self._refused(append)
        self.check_sizes(append.updates)
        self._time = Timestamp(self._time + 1)
        appended = append.at(self._time)
        self._appended += appended
        self._token = append.new_token or self._token
        return appended

    def check_sizes(self, updates: Sequence[Update]) -> None:
        self._log.check_sizes(updates)

    def time_of(self, update: Update) -> Timestamp | None:
        if update.version < self._base:
            return self._log.time_of(update)
        place = update.version - self._base
        if place >= len(self._appended) or self._appended[place].id != update.id:
            return None
        return self._appended[place].time

    def first_snapshot(self) -> CatalogSnapshot:
        snapshot = self._log.first_snapshot()
        self._refuse_newer(snapshot.version)
        return snapshot

    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        if end > self._upper:
            raise VersionNotFound(
                f"version {end - 1} is not in the log; the latest is {self._upper - 1}"
            )
        before = self._log.updates(start, min(end, self._base)) if start < self._base else ()
        return before + tuple(self._appended[max(start - self._base, 0) : end - self._base])

    def listen(self, after: Frontier, *, timeout: float) -> bool:
        """Does not wait, because only the caller could append."""
        return self.frontier() != after

    def scan(self, kind: str, start: int, end: int) -> Iterator[Scanned]:
        yield from self._log.scan(kind, start, min(end, self._base))
        for update in self._appended:
            if start <= update.version < end:
                for appended in update.appended:
                    if appended.kind == kind:
                        yield Scanned(update.version, update.time, appended.data)

    def prune(self, kind: str, up_to: int, token: FenceToken) -> bool:
        raise UnsupportedOperation("a log that keeps its appends in memory cannot be pruned")

    def compact(self, up_to: int, token: FenceToken) -> bool:
        raise UnsupportedOperation("a log that keeps its appends in memory cannot be compacted")
