"""The update log as two logs, which must say the same.

The **first** decides: its append orders an update and gives it its time, and its refusal is the
answer. The **second** follows. Before each call it is brought to the first's upper, with the
first's own updates and their times, and to the first's since, by the caller that finds it behind.
Then the call is made on both, and the answers are compared. A difference is a `CorruptData` that
shows both answers.

So a process that dies between the two leaves the second behind, and the next call of any process
makes it level. Several processes need nothing more: two that bring the second level append the same
updates, of which each lands once.

What must stay true: nothing is in the second that was not in the first before. A second that has
more than the first is a difference, as is an append that either of them acknowledges and does not
have, has twice, or has with other bytes; so each append is read back from both.

These differ by nature, and are not compared:

* the time that a log gives by itself (`check`): the first's is the answer;
* how a refused append is worded, and what the second would have said: it is not asked, because an
  append that it took would put it ahead;
* what a companion writes: it takes part in the first's append alone;
* the number of an append-only object in its version, which no log shows;
* what happened between a look at the one and a look at the other, by another process. Where the
  first has moved meanwhile, both are looked at again.

A process that may only read cannot bring the second level. Where it is behind, such a process gets
the first's answer. An append that the first has taken is acknowledged although the second could not
be reached: this is logged, and the next call makes the second level or fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

from strandline.clock import Timestamp
from strandline.durable.collections import APPEND_ONLY
from strandline.durable.log import Checked, Companion, Frontier, Scanned, UpdateLog
from strandline.durable.update import Appended, Snapshot, Update
from strandline.errors import (
    CorruptData,
    Fenced,
    OutOfSync,
    StrandlineError,
    Unavailable,
    UnsupportedOperation,
    VersionNotFound,
)
from strandline.fencing import FenceToken

logger = logging.getLogger(__name__)

T = TypeVar("T")

COPIED_AT_ONCE = 200
_LOOKS = 20
"""How often two answers are compared that differ while the first moves."""
_SHOWN = 1200


class ShadowLog(UpdateLog):
    """See the module. ``names`` are those of the two logs in messages."""

    def __init__(self, first: UpdateLog, second: UpdateLog, *, names: tuple[str, str]) -> None:
        self._first, self._second = first, second
        self._names = names

    @property
    def max_updates(self) -> int:
        return min(self._first.max_updates, self._second.max_updates)

    @property
    def frontier_is_cheap(self) -> bool:
        return self._first.frontier_is_cheap and self._second.frontier_is_cheap

    def frontier(self) -> Frontier:
        return self._level()[0]

    def check(self) -> Checked:
        checked = self._first.check()
        self._level()
        return checked

    def token(self) -> FenceToken | None:
        return self._same("the fence token", lambda log: log.token())

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
        self._level()
        appended = self._first.append(
            expected_upper,
            token,
            updates,
            times=times,
            new_token=new_token,
            companion=companion,
        )
        try:
            self._second.append(
                expected_upper,
                token,
                updates,
                times=[update.time for update in appended],
                new_token=new_token,
            )
        except (OutOfSync, Fenced):
            pass  # another process has brought it level; if not, that is done now
        except (Unavailable, OSError) as error:
            logger.warning(
                "version %d is in the log %s and could not be appended to %s, which the next call"
                " brings level: %s",
                updates[-1].version,
                *self._names,
                error,
            )
            return appended
        self._read_back(appended)
        return appended

    def _read_back(self, appended: Sequence[Update]) -> None:
        """Compare what was appended with what both logs have of it now."""
        start, end = appended[0].version, appended[-1].version + 1
        try:
            present = self.updates(start, end)
        except VersionNotFound:
            if self._first.frontier().since >= start:
                return  # trimmed already, by another process
            raise
        if present != tuple(appended):
            raise self._differ(f"versions {start} to {end - 1}", appended, present)
        for kind in APPEND_ONLY:
            for _ in self.scan(kind, start, end):
                pass

    def time_of(self, update: Update) -> Timestamp | None:
        what = f"the time of version {update.version}"
        return self._same(what, lambda log: log.time_of(update))

    def first_snapshot(self) -> Snapshot:
        return self._same("the first snapshot", lambda log: log.first_snapshot())

    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        what = f"versions {start} to {end - 1}"
        return self._same(what, lambda log: log.updates(start, end))

    def listen(self, after: Frontier, *, timeout: float) -> bool:
        return self._first.listen(after, timeout=timeout)

    def scan(self, kind: str, start: int, end: int) -> Iterator[Scanned]:
        frontier, is_level = self._level()
        end = min(end, frontier.upper)  # what comes behind it may be in one of them alone
        if not is_level:
            yield from self._first.scan(kind, start, end)
            return
        both = zip_longest(self._first.scan(kind, start, end), self._second.scan(kind, start, end))
        for first, second in both:
            if first is None or first != second:
                raise self._differ(f"{kind} of versions {start} to {end - 1}", first, second)
            yield first

    def compact(self, up_to: int, token: FenceToken) -> bool:
        self._level()
        is_done = self._first.compact(up_to, token)
        self._level()
        return is_done

    # -- keeping level

    def _level(self) -> tuple[Frontier, bool]:
        """Bring the second to the frontier of the first; that, and whether it is there."""
        while True:
            # The second is looked at before the first: it never has more then.
            second = self._second.frontier()
            first = self._first.frontier()
            if second == first:
                return first, True
            if second.upper > first.upper or second.since > first.since:
                raise self._differ("the frontier", first, second)
            try:
                if second.upper < first.upper:
                    self._copy(second.upper, first)
                else:
                    self._second.compact(first.since, self._token_of_second())
            except (OutOfSync, Fenced, VersionNotFound):
                # Another process was first, or trimmed what was to be read. Where nothing moved,
                # it is the second that refuses what it should take.
                if (self._second.frontier(), self._first.frontier()) == (second, first):
                    raise
            except UnsupportedOperation:
                return first, False  # it was opened for reading

    def _copy(self, start: int, first: Frontier) -> None:
        """Append to the second what the first has from version ``start`` on, as it is there."""
        if start <= first.since:
            raise CorruptData(
                f"the log {self._names[1]} ends at version {start - 1}, and {self._names[0]} begins"
                f" at version {first.since}, so it cannot be brought level; restore the store from"
                " a backup"
            )
        end = min(first.upper, start + min(COPIED_AT_ONCE, self._second.max_updates))
        updates = self._first.updates(start, end)
        self._refuse_doubles(updates)
        appended: dict[int, list[Appended]] = {}
        for kind in APPEND_ONLY:
            for scanned in self._first.scan(kind, start, end):
                appended.setdefault(scanned.version, []).append(Appended(kind, scanned.data))
        # The token is read behind the updates, so it is that of the last of them or a later one.
        token = self._first.token()
        self._first.check()  # moves the clock behind the times of all that it has
        self._second.append(
            start,
            self._second.token(),
            [replace(one, appended=tuple(appended.get(one.version, ()))) for one in updates],
            times=[update.time for update in updates],
            new_token=token,
        )
        if self._second.frontier().upper < end:
            raise self._differ(f"versions {start} to {end - 1}", updates, "not what it was given")

    def _refuse_doubles(self, updates: Sequence[Update]) -> None:
        """An update has one id and one version; one that came twice has two versions."""
        before = updates[0].version - 1
        known = {}
        if before > self._second.frontier().since:
            known = {one.id: one.version for one in self._second.updates(before, before + 1)}
        for update in updates:
            if update.id in known:
                raise self._differ(
                    f"version {update.version}", update, f"the same as version {known[update.id]}"
                )
            known[update.id] = update.version

    def _token_of_second(self) -> FenceToken:
        token = self._second.token()
        if token is None:
            raise CorruptData(
                f"the log {self._names[1]} has versions and no fence token; restore the store from"
                " a backup"
            )
        return token

    # -- comparing

    def _same(self, what: str, ask: Callable[[UpdateLog], T]) -> T:
        """What the first answers, and the second as well."""
        answers: tuple[T | StrandlineError, T | StrandlineError] | None = None
        for _ in range(_LOOKS):
            before, is_level = self._level()
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
        raise self._differ(what, *answers)

    def _compare_refusals(self, what: str, first: StrandlineError, second: object) -> None:
        if isinstance(first, VersionNotFound) and not isinstance(second, VersionNotFound):
            raise self._differ(what, first, second)

    def _differ(self, what: str, first: object, second: object) -> CorruptData:
        one, other = self._names
        return CorruptData(
            f"the two logs of the catalog differ in {what}: {one} has {_shown(first, second)};"
            f" {other} has {_shown(second, first)}. One of them was damaged, or lost or doubled an"
            " update; restore the store from a backup"
        )


def _answer(log: UpdateLog, ask: Callable[[UpdateLog], T]) -> T | StrandlineError:
    try:
        return ask(log)
    except Unavailable:
        raise
    except StrandlineError as error:
        return error


def _shown(value: object, other: object) -> str:
    """``value`` for a message; of two sequences, the first element in which they differ."""
    if isinstance(value, Sequence) and isinstance(other, Sequence) and not isinstance(value, str):
        pairs = enumerate(zip_longest(value, other, fillvalue="nothing"))
        place, pair = next(((n, pair) for n, pair in pairs if pair[0] != pair[1]), (0, ("", "")))
        return f"as element {place} {_shown(pair[0], None)}"
    text = repr(value) if not isinstance(value, StrandlineError) else f"an error ({value.message})"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
