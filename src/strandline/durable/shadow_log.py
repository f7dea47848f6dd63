"""The update log as two logs that must agree.

The **first** log decides. Its append orders an update and assigns the time, and its refusal is the
answer. The **second** follows. Before each call, the caller brings it up to date with the first:
its updates with their times, its since, and what it pruned. Then the call is made on both, and the
answers are compared. A difference raises `CorruptData`, which shows both answers.

So a process that dies between the two appends leaves the second behind, and the next call of any
process brings it up to date. Several processes need no further coordination: if two bring the
second up to date, they append the same updates, and the log gets each of these once.

What must stay true: the second never has anything that the first did not have before. A second that
has more than the first is a difference. So is an append that either log acknowledged and does not
have, has twice, or has with other bytes. Therefore each append is read back from both.

These differ by design and are not compared:

* the time that a log returns by itself (`check`): the first's is the answer;
* the wording of a refused append, and the second's answer to it: the second is not called, because
  an append that it accepted would put it ahead;
* what a companion writes: it takes part only in the first's append;
* the number of an append-only object within its version, which no log exposes;
* the time of a silent version that was trimmed, which a log may have forgotten;
* changes by another process between the two calls. If the first moved, both are called again.

A process that may only read cannot bring the second up to date. If the second is behind, such a
process gets the first's answer. An append that the first accepted is acknowledged even if one of
the logs could not be reached after that. This is logged, and the next call brings the second up to
date or fails. (`Unavailable` would say that nothing was appended, and the caller would repeat the
append.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from strandline.clock import Timestamp
from strandline.durable.collections import APPEND_ONLY
from strandline.durable.log import Checked, Frontier, LogAppend, Scanned, Superseded, UpdateLog
from strandline.durable.log_copy import LogCopy
from strandline.durable.update import CatalogSnapshot, Update
from strandline.errors import (
    CorruptData,
    Fenced,
    OutOfSync,
    Stopping,
    StoreMoved,
    StrandlineError,
    Unavailable,
    VersionNotFound,
    WrongClock,
)
from strandline.fencing import FenceToken

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOKS = 20
"""How often two differing answers are compared while the first log moves."""


class ShadowLog(UpdateLog):
    """See the module. ``names`` are the names of the two logs in messages."""

    def __init__(self, first: UpdateLog, second: UpdateLog, *, names: tuple[str, str]) -> None:
        self._first, self._second = first, second
        self._copy = LogCopy(first, second, names=names)
        self._names = names
        self.environment = first.environment or second.environment
        self.max_updates = min(first.max_updates, second.max_updates)
        self.frontier_is_cheap = first.frontier_is_cheap and second.frontier_is_cheap

    def frontier(self) -> Frontier:
        return self._copy.level()[0]

    def check(self) -> Checked:
        checked = self._first.check()
        self._copy.level()
        return checked

    def look(self) -> Checked:
        checked = self._first.look()
        self._copy.level()
        return checked

    def token(self) -> FenceToken | None:
        return self._same("the fence token", lambda log: log.token())

    def _append(self, append: LogAppend) -> tuple[Update, ...]:
        updates = append.updates
        self._copy.level()
        # Otherwise the second log could never follow the first again.
        self._second.check_sizes(updates)
        appended = self._first.append(
            append.expected_upper,
            append.token,
            updates,
            times=append.times,
            new_token=append.new_token,
            companion=append.companion,
        )
        try:
            # Another process was first, and may have trimmed too; `_read_back` compares.
            with suppress(OutOfSync, Fenced, VersionNotFound):
                self._second.append(
                    append.expected_upper,
                    append.token,
                    updates,
                    times=[update.time for update in appended],
                    new_token=append.new_token,
                )
            self._read_back(appended)
        except (Unavailable, Stopping, StoreMoved, WrongClock, OSError, Superseded) as error:
            logger.warning(
                "version %d is in the log %s, but could not be appended to %s or read back; the "
                "next call copies what is missing: %s",
                updates[-1].version,
                *self._names,
                error,
            )
        return appended

    def check_sizes(self, updates: Sequence[Update]) -> None:
        self._first.check_sizes(updates)
        self._second.check_sizes(updates)

    def _read_back(self, appended: Sequence[Update]) -> None:
        """Compare the appended updates with what both logs have now."""
        start, end = appended[0].version, appended[-1].version + 1
        try:
            present = self.updates(start, end)
        except VersionNotFound:
            if self._first.frontier().since >= start:
                return  # trimmed already, by another process
            raise
        if present != tuple(appended):
            raise self._copy.differ(f"versions {start} to {end - 1}", appended, present)
        for kind in APPEND_ONLY:
            for _ in self.scan(kind, start, end):
                pass

    def time_of(self, update: Update) -> Timestamp | None:
        what = f"the time of version {update.version}"
        try:
            return self._same(what, lambda log: log.time_of(update))
        except CorruptData:
            if not update.silent or self._first.frontier().since < update.version:
                raise
            return self._first.time_of(update)

    def first_snapshot(self) -> CatalogSnapshot:
        return self._same("the first snapshot", lambda log: log.first_snapshot())

    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        what = f"versions {start} to {end - 1}"
        return self._same(what, lambda log: log.updates(start, end))

    def listen(self, after: Frontier, *, timeout: float) -> bool:
        return self._first.listen(after, timeout=timeout)

    def scan(self, kind: str, start: int, end: int) -> Iterator[Scanned]:
        frontier, is_level = self._copy.level()
        end = min(end, frontier.upper)  # later versions may be in only one of the logs
        return (self._copy if is_level else self._first).scan(kind, start, end)

    def prune(self, kind: str, up_to: int, token: FenceToken) -> bool:
        self._copy.level()
        is_done = self._first.prune(kind, up_to, token)
        self._copy.level()
        return is_done

    def compact(self, up_to: int, token: FenceToken) -> bool:
        self._copy.level()
        is_done = self._first.compact(up_to, token)
        self._copy.level()
        return is_done

    def copy_blobs(self, folder: Path) -> frozenset[str]:
        return self._first.copy_blobs(folder) | self._second.copy_blobs(folder)

    # -- comparing

    def _same(self, what: str, ask: Callable[[UpdateLog], T]) -> T:
        """The answer of the first log, if the second gives the same one. Raises `CorruptData`."""
        answers: tuple[T | StrandlineError, T | StrandlineError] | None = None
        for _ in range(_LOOKS):
            before, is_level = self._copy.level()
            if not is_level:
                return ask(self._first)
            answers = _answer(self._first, ask), _answer(self._second, ask)
            first, second = answers
            if isinstance(first, StrandlineError):
                if isinstance(second, StrandlineError) or self._first.frontier() == before:
                    self._compare_refusals(what, first, second)
                    raise first
            elif first == second:
                return first
            elif self._first.frontier() == before:
                break
        assert answers is not None
        raise self._copy.differ(what, *answers)

    def _compare_refusals(self, what: str, first: StrandlineError, second: object) -> None:
        if isinstance(first, VersionNotFound) and not isinstance(second, VersionNotFound):
            raise self._copy.differ(what, first, second)


def _answer(log: UpdateLog, ask: Callable[[UpdateLog], T]) -> T | StrandlineError:
    try:
        return ask(log)
    except Unavailable:
        raise
    except StrandlineError as error:
        return error
