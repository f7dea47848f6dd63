"""A log as the copy of another one: bringing it up to date, and proving that both are equal.

The **original** decides, the **copy** follows. The copy gets the original's own updates with their
times, and is compacted and pruned as far as the original. The copy never has anything that the
original did not have before. So any process may bring it up to date, and several may do so at the
same time: if two append the same updates, the ids ensure that the copy gets them once. A crash
leaves a copy that is behind.

If the original starts with a snapshot above everything in the copy, the copy gets made-up updates
that lead to the snapshot, and is then compacted to it. Append-only objects keep their versions.
Each object is written by an update with the time of its last change. The other versions are empty.
So every log can take over a trimmed history with the operations that it has anyway. Rejected: an
operation of every log to start with a snapshot (each log would need storage code that nothing else
uses, and would have to handle a crash in the middle of it).

**A move** copies the catalog to another log, and `seal` makes the first log accept no writer any
more. A seal is the last version of the log. It replaces the fence token by one that no writer ever
holds (`FenceToken.sealed`). The seal fences the previous holder, which finds itself `Superseded`.
Joining, opening or editing the catalog in a sealed log is refused in the same way. The seal is part
of the history. So the log that the catalog moves to gets the seal too, with its time, and `unseal`
opens that log after it. A log that a catalog has left remains a valid beginning of its history, and
the catalog may be moved back to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest

from strandline.clock import Timestamp
from strandline.durable.collections import APPEND_ONLY, AUDIT_EVENT, COLLECTIONS
from strandline.durable.collections import FENCE as FENCE_KIND
from strandline.durable.contents import Contents, restore
from strandline.durable.log import (
    FIRST_UPDATES,
    Companion,
    Frontier,
    Scanned,
    UpdateLog,
    refuse_sealed,
    updates_at_once,
)
from strandline.durable.opening import RaiseFence, fencing_transaction
from strandline.durable.state import ReadOnlyState
from strandline.durable.transaction import Position
from strandline.durable.update import Appended, AuditEvent, CatalogSnapshot, Change, Entry, Update
from strandline.errors import (
    CorruptData,
    Fenced,
    OutOfSync,
    StrandlineError,
    UnsupportedOperation,
    VersionNotFound,
    cut,
)
from strandline.fencing import FenceToken
from strandline.model.descriptors import FenceEntry
from strandline.model.privileges import SYSTEM_NAME
from strandline.wire.registry import decode

COPIED_AT_ONCE = 200
_SHOWN = 1200
_MADE_UP = "configure"
"""The verb of made-up entries. It is silent."""
FILLING = FenceToken(0, 0).sealed()
"""The token of a log while the history of another log is copied to it."""


class LogCopy:
    """See the module. ``names`` are the names of the two logs in messages; both logs use one clock.

    The copy gets the original's fence token with its updates. If ``token`` is given, which no
    writer holds, the copy gets that one, so that no writer can write to the copy directly.
    """

    def __init__(
        self,
        original: UpdateLog,
        copy: UpdateLog,
        *,
        names: tuple[str, str],
        token: FenceToken | None = None,
    ) -> None:
        self._original, self._copy = original, copy
        self._names = names
        self._token = token
        self._updates_at_once = FIRST_UPDATES

    def level(self, *, upper: int | None = None) -> tuple[Frontier, bool]:
        """Bring the copy to the frontier of the original. Returns that, and whether it succeeded.

        With ``upper``, the copy need only reach that upper, so that a fast-growing original is not
        followed for ever. It does not succeed if the copy was opened for reading. Raises
        `CorruptData` if the copy has more than the original, and `Superseded` if the catalog was
        moved away from the original.
        """
        while True:
            # The copy is read before the original, so it cannot have more than the original.
            copied = self._copy.frontier()
            frontier = self._original.frontier()
            if copied == frontier:
                return frontier, True
            has_more = any(to > frontier.pruned_up_to(kind) for kind, to in copied.pruned)
            if copied.upper > frontier.upper or copied.since > frontier.since or has_more:
                refuse_sealed(self._original.token())
                raise self.differ("the frontier", frontier, copied)
            if upper is not None and copied == replace(frontier, upper=max(upper, copied.upper)):
                return copied, True
            try:
                if copied.upper < frontier.upper:
                    self._append_next(copied.upper, frontier)
                elif copied.since < frontier.since:
                    self._copy.compact(frontier.since, self._token_of_copy())
                else:
                    for kind, up_to in frontier.pruned:
                        self._copy.prune(kind, up_to, self._token_of_copy())
            except (OutOfSync, Fenced, VersionNotFound) as refused:
                # Another process was first, or trimmed the versions to be read. If no frontier
                # moved, the copy refuses what it should accept. That is damage: no caller of the
                # original is fenced or out of sync because of it.
                if (self._copy.frontier(), self._original.frontier()) == (copied, frontier):
                    raise self.differ(
                        "the versions that can be appended next", frontier, refused
                    ) from refused
            except UnsupportedOperation:
                return frontier, False  # it was opened for reading

    def _append_next(self, start: int, frontier: Frontier) -> None:
        """Append to the copy the original's updates from version ``start`` on, or some of them."""
        at_once = min(COPIED_AT_ONCE, self._copy.max_updates)
        if start <= frontier.since:
            snapshot = self._original.first_snapshot()
            made_up = list(self._made_up(start, snapshot))
            for first in range(0, len(made_up), at_once):
                self._append(made_up[first : first + at_once])
            return
        end = min(frontier.upper, start + min(at_once, self._updates_at_once))
        updates = self._original.updates(start, end)
        self._updates_at_once = updates_at_once(updates)
        self._refuse_doubles(updates)
        appended = _appended(self._original, start, end)
        self._append([replace(u, appended=_objects(appended.get(u.version, ()))) for u in updates])
        if self._copy.frontier().upper < end:
            raise self.differ(
                f"versions {start} to {end - 1}", updates, "other updates than it was given"
            )

    def _append(self, updates: Sequence[Update]) -> None:
        # The token is read after the updates, so it is the token of the last one or a later one.
        token = self._token or self._original.token()
        self._original.check()  # moves the clock past the times of all its updates
        self._copy.append(
            updates[0].version,
            self._copy.token(),
            updates,
            times=[update.time for update in updates],
            new_token=token,
        )

    def _refuse_doubles(self, updates: Sequence[Update]) -> None:
        """Raise `CorruptData` if an update occurs twice: two versions with one id."""
        before = updates[0].version - 1
        seen = {}
        if before > self._copy.frontier().since:
            seen = {u.id: u.version for u in self._copy.updates(before, before + 1)}
        for update in updates:
            if update.id in seen:
                raise self.differ(
                    f"version {update.version}", update, f"the same as version {seen[update.id]}"
                )
            seen[update.id] = update.version

    def _token_of_copy(self) -> FenceToken:
        token = self._copy.token()
        if token is None:
            raise CorruptData(
                f"the log {self._names[1]} has versions but no fence token; restore the store "
                "from a backup"
            )
        return token

    # -- the made-up updates that lead to a snapshot

    def _made_up(self, start: int, snapshot: CatalogSnapshot) -> Iterator[Update]:
        """Updates from version ``start`` on that lead from the copy's contents to ``snapshot``."""
        copied = self._copy.snapshot(start - 1)
        before = restore(copied)
        after = restore(snapshot)
        cleared, changes = _changes_by_time(before, after)
        if min(changes, default=copied.time) < copied.time:
            raise self.differ(f"the objects of version {start - 1}", after.dump(), before.dump())
        appended = _appended(self._original, start, snapshot.version + 1)
        events = {
            version: decode(scanned.data, AuditEvent)
            for version, objects in appended.items()
            for kind, scanned in objects
            if kind == AUDIT_EVENT
        }
        known_times = {version: objects[0][1].time for version, objects in appended.items()}
        times = self._made_up_times(start, snapshot, known_times, changes)
        for version, time in enumerate(times, start):
            written = [*(cleared if version == start else ()), *changes.pop(time, ())]
            event = events.get(version)
            yield Update(
                version,
                event.id if event else hashlib.sha256(b"%d" % version).digest()[:16],
                event.author if event else "",
                event.member if event else "",
                (Entry(_MADE_UP, {}, tuple(written)),) if written else (),
                time,
                _objects(appended.get(version, ())),
            )

    def _made_up_times(
        self,
        start: int,
        snapshot: CatalogSnapshot,
        appended: Mapping[int, Timestamp],
        needed: Iterable[Timestamp],
    ) -> list[Timestamp]:
        """A time for each version from ``start`` to that of ``snapshot``, including all ``needed``.

        They never decrease. A version with ``appended`` objects has the time of those.
        """
        known_times = {**appended, snapshot.version: snapshot.time}
        missing = sorted({*needed}.difference(known_times.values()), reverse=True)
        times: list[Timestamp] = []
        for version in sorted(known_times):
            while len(times) < version - start:
                is_needed = missing and missing[-1] < known_times[version]
                times.append(missing.pop() if is_needed else known_times[version])
            times.append(known_times[version])
        if missing:
            raise CorruptData(
                f"the snapshot of version {snapshot.version} in the log {self._names[0]} has more"
                " times than versions; restore the store from a backup"
            )
        return times

    # -- the proof

    def prove(self, frontier: Frontier, *, above: int = 0) -> None:
        """Return if both logs have the same versions above ``above`` and below the upper.

        If ``above`` is 0, the snapshot and all append-only objects are compared too. Raises
        `CorruptData` with both answers, and `VersionNotFound` if a log was trimmed during the
        comparison.
        """
        logs = self._original, self._copy
        if not above:
            first, second = (_objects_of(log.first_snapshot()) for log in logs)
            if first != second:
                raise self.differ("the first snapshot", first, second)
        start, count = max(above, frontier.since) + 1, FIRST_UPDATES
        while start < frontier.upper:
            end = min(start + count, frontier.upper)
            updates, copied = (log.updates(start, end) for log in logs)
            if updates != copied:
                raise self.differ(f"versions {start} to {end - 1}", updates, copied)
            start, count = end, updates_at_once(updates)
        for kind in APPEND_ONLY:
            for _ in self.scan(kind, above + 1, frontier.upper):
                pass

    def scan(self, kind: str, start: int, end: int) -> Iterator[Scanned]:
        """The result of `UpdateLog.scan`, compared between the two logs.

        Objects that the original pruned during the scan are skipped. Raises `CorruptData` if the
        logs differ.
        """
        yielded = 0  # objects of version ``start``
        pruned = 0
        while True:
            scans = (log.scan(kind, start, end) for log in (self._original, self._copy))
            for first, second in islice(zip_longest(*scans), yielded, None):
                if first is None or first != second:
                    break
                yield first
                start, yielded = first.version, yielded + 1 if first.version == start else 1
            else:
                return
            previous, pruned = pruned, self._original.frontier().pruned_up_to(kind)
            if pruned == previous:
                raise self.differ(f"{kind} of versions {start} to {end - 1}", first, second)
            if start <= pruned:
                start, yielded = pruned + 1, 0

    def differ(self, what: str, first: object, second: object) -> CorruptData:
        """The error that shows what each log has for ``what``."""
        original, copy = self._names
        return CorruptData(
            f"the two logs of the catalog differ in {what}: {original} has "
            f"{_shown(first, second)}; {copy} has {_shown(second, first)}. One of them was "
            "damaged, or lost or duplicated an update; restore the store from a backup"
        )


def _objects_of(snapshot: CatalogSnapshot) -> list[tuple[object, ...]]:
    """Version and time of a snapshot, then its objects with their times, in a fixed order."""
    contents = restore(snapshot)
    objects: list[tuple[object, ...]] = [(snapshot.version, snapshot.time)]
    for (kind, records), times in zip(contents.dump(), contents.times(), strict=True):
        objects += [(kind, time, data) for data, time in zip(records, times, strict=True)]
    return objects


def _appended(log: UpdateLog, start: int, end: int) -> dict[int, list[tuple[str, Scanned]]]:
    appended: dict[int, list[tuple[str, Scanned]]] = {}
    for kind in APPEND_ONLY:
        for scanned in log.scan(kind, start, end):
            appended.setdefault(scanned.version, []).append((kind, scanned))
    return appended


def _objects(appended: Iterable[tuple[str, Scanned]]) -> tuple[Appended, ...]:
    return tuple(Appended(kind, scanned.data) for kind, scanned in appended)


def _changes_by_time(
    before: Contents, after: Contents
) -> tuple[list[Change], dict[Timestamp, list[Change]]]:
    """The changes that lead from ``before`` to ``after``: removals first, then changes by time.

    An object whose name another object could have in between is removed first and put back at its
    time.
    """
    cleared: list[Change] = []
    changes: dict[Timestamp, list[Change]] = {}
    for kind, declared in COLLECTIONS.items():
        old_objects, new_objects = before.all_of(kind), after.all_of(kind)
        for key in sorted({*old_objects, *new_objects}):
            old, new = old_objects.get(key), new_objects.get(key)
            if old is not None and old == new and old.updated == new.updated:
                continue
            data = None if old is None else old.data
            if data is not None and (new is None or declared.scope is not None):
                cleared.append(Change(kind, key, data, None))
                data = None
            if new is not None:
                changes.setdefault(new.updated, []).append(Change(kind, key, data, new.data))
    return cleared, changes


def _shown(value: object, other: object) -> str:
    """``value`` for a message; for two sequences, the first element in which they differ."""
    if isinstance(value, Sequence) and isinstance(other, Sequence) and not isinstance(value, str):
        pairs = enumerate(zip_longest(value, other, fillvalue="nothing"))
        place, pair = next(((n, pair) for n, pair in pairs if pair[0] != pair[1]), (0, ("", "")))
        return f"as element {place} {_shown(pair[0], None)}"
    text = repr(value) if not isinstance(value, StrandlineError) else f"an error ({value.message})"
    return cut(text, _SHOWN)


def seal(
    log: UpdateLog,
    position: Position,
    token: FenceToken,
    *,
    member: str,
    companion: Companion | None = None,
) -> None:
    """Seal ``log`` after ``position``, its last version, while its token is ``token``.

    Raises `OutOfSync` or `Fenced` if another process was first, and what `UpdateLog.append` raises.
    """
    sealing = fencing_transaction(position, token.sealed(), author=SYSTEM_NAME)
    log.append(
        sealing.version,
        token,
        [sealing.update(member=member)],
        new_token=token.sealed(),
        companion=companion,
    )


def unseal(log: UpdateLog, sealed_epoch: int, *, member: str, raise_fence: RaiseFence) -> None:
    """Begin a new epoch after the seal of ``sealed_epoch``.

    Does nothing if the log does not end with that seal.
    """
    sealed = log.token()
    if sealed is None or not sealed.is_sealed:
        return
    state = ReadOnlyState(log, latest_only=True)
    last = state.recovered[-1]
    token = _sealed_token(last.update, sealed_epoch)
    if token is None:
        return
    behind = token.next(token.deploy_generation)
    fencing = fencing_transaction(last, behind, author=SYSTEM_NAME)
    raise_fence(behind, state.environment)
    try:
        log.append(
            fencing.version,
            sealed,
            [fencing.update(member=member)],
            new_token=behind,
        )
    except (OutOfSync, Fenced):
        if log.token() == sealed:  # else another process has unsealed it
            raise


def _sealed_token(update: Update, sealed_epoch: int) -> FenceToken | None:
    """The token that ``update`` sealed, or None unless it is the seal of that epoch."""
    for change in update.changes():
        if change.kind == FENCE_KIND.kind and change.old is not None and change.new is not None:
            before, after = decode(change.old, FenceEntry), decode(change.new, FenceEntry)
            if FenceToken(after.deploy_generation, after.epoch).is_sealed:
                token = FenceToken(before.deploy_generation, before.epoch)
                return token if token.epoch == sealed_epoch else None
    return None
