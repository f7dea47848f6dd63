"""The update log on a metastorage.

====================================  ==========================================================
``catalog.version``                   the last version, 20 decimal digits
``catalog.update.{version}``          the record of that update, or of the snapshot at ``since``
``catalog.snapshot.version``          ``since``; absent while it is 0
``catalog.fence``                     the record of the fence token
``catalog.append.{kind}.{version}.{n}``  the n-th object of an append-only kind in that version
``catalog.pruned.{kind}``             the version up to which the kind is pruned; absent while 0
``catalog.chunk.{random}.{n}``        a part of a large snapshot (`strandline.durable.chunks`)
====================================  ==========================================================

Versions in keys have 20 digits, so a range of keys is in the order of versions. An append is one
``invoke`` with two conditions: ``catalog.version`` is the preceding version, and ``catalog.fence``
is the writer's token. The time of an update is the store's time of that invoke, or the time that
the caller of the append passed. It is part of the bytes of the update and of its audit event.
Releases before 0.2.1 stored the time only in the metadata of the key. The time in a record is never
later than the time of its key. The record of a snapshot contains the time of its version.

The condition on the fence compares bytes, and an older release encoded the same token differently.
The condition therefore uses the bytes that were read from the store.

If an append gets no answer, the log reads the update at its version and compares the id. If the
version is absent, it depends on the error: after `Unavailable` the store has not done the append
and never will; after `UnknownOutcome` it may still do it. The caller may then append the *same*
updates, with their ids, again: whichever attempt succeeds, the updates are in the log once.

A compaction first moves ``since``, in the invoke that writes the snapshot. Then it removes the
updates below, in invokes of a bounded size, so that others write in between. If it ends too early,
updates below ``since`` remain until the next compaction. A reader refuses them once it has read
``since``; before that, it gets what it would have got before the compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.durable import chunks
from strandline.durable.collections import AUDIT_EVENT
from strandline.durable.log import (
    TRIMMED_AT_ONCE,
    Checked,
    Frontier,
    LogAppend,
    Scanned,
    UpdateLog,
    refuse_absent,
    refuse_lasting,
    refuse_other_token,
    refuse_unreadable,
    trimmed_away,
)
from strandline.durable.rows import REMEDY
from strandline.durable.update import AuditEvent, CatalogSnapshot, Update
from strandline.errors import CorruptData, Unavailable, VersionNotFound
from strandline.fencing import FenceToken
from strandline.metastorage import (
    Absent,
    DeleteRange,
    Exists,
    KeyValue,
    Metastorage,
    Operation,
    Put,
    PutTimed,
    ValueIs,
)
from strandline.metastorage.store import NUMBER_DIGITS, check_invoke, digits, number_in
from strandline.wire.registry import (
    decode,
    decode_up_to,
    encode,
    naming,
    open_record,
    time_in,
    timed_head,
)

VERSION = "catalog.version"
UPDATE = "catalog.update."
SNAPSHOT_VERSION = "catalog.snapshot.version"
FENCE = "catalog.fence"
APPEND = "catalog.append."
PRUNED = "catalog.pruned."
PREFIX = "catalog."
SCANNED_AT_ONCE = 1000

C = TypeVar("C")


def update_key(version: int) -> str:
    return f"{UPDATE}{version:0{NUMBER_DIGITS}d}"


def append_key(kind: str, version: int, number: int = 0) -> str:
    """The key of the ``number``-th object of an append-only kind in ``version``."""
    return f"{APPEND}{kind}.{version:0{NUMBER_DIGITS}d}.{number:06d}"


def _put(key: str, data: bytes, time: Timestamp | None) -> Operation:
    """The put of a record that contains ``time``, or the time of the invoke if it is None."""
    timed = timed_head(data)
    if timed is None:
        return Put(key, data)
    operation = PutTimed(key, *timed)
    return operation if time is None else operation.at(time)


def _puts(updates: Sequence[Update], times: Sequence[Timestamp] | None) -> list[Operation]:
    """The puts of an append, without its fence token."""
    operations: list[Operation] = [Put(VERSION, digits(updates[-1].version))]
    given_times: Sequence[Timestamp | None] = times or [None] * len(updates)
    for update, time in zip(updates, given_times, strict=True):
        operations.append(_put(update_key(update.version), encode(update), time))
        operations += [
            _put(append_key(appended.kind, update.version, number), appended.data, time)
            for number, appended in enumerate(update.appended)
        ]
    return operations


def time_of(pair: KeyValue) -> Timestamp:
    """The time of the version whose record is stored at a key.

    The record may contain an earlier time than the key (the log was given the time). Raises
    `CorruptData` if it contains a later one.
    """
    recorded = time_in(pair.value)
    if recorded is None:
        return pair.time
    if recorded > pair.time:
        raise CorruptData(
            f"{pair.key} of the log has time {recorded} in its record, which is later than the "
            f"time {pair.time} of its key; restore the store from a backup"
        )
    return recorded


def _update_in(pair: KeyValue) -> Update:
    with naming(pair.key):
        update, time = decode(pair.value, Update), time_of(pair)
    return update if update.time == time else update.at(time)


def upper_within(
    get: Callable[[C, str], KeyValue | None], version_key: str = VERSION
) -> Callable[[C], int]:
    """Return a function that reads the log's upper in a transaction of the caller.

    The caller opens the transaction on the log's own database. ``get`` is `Metastorage.get` inside
    such a transaction.
    """
    return lambda connection: number_in(get(connection, version_key)) + 1


class MetastorageLog(UpdateLog):
    """See the module."""

    def __init__(
        self,
        store: Metastorage,
        *,
        chunk_bytes: int = chunks.CHUNK_BYTES,
    ) -> None:
        self._store = store
        self._chunk_bytes = chunk_bytes
        self._seen: tuple[int, Frontier] | None = None  # a revision, and a frontier read after it
        self._fence: tuple[FenceToken, bytes] | None = None  # the token and its bytes, as last read
        # One operation each for the version and the fence, two for each update and its audit event.
        self.max_updates = max(1, (store.max_operations - 2) // 2)
        self.frontier_is_cheap = store.revision_is_cheap

    def frontier(self) -> Frontier:
        return self._frontier_at(self._store.revision())

    def _frontier_at(self, revision: int) -> Frontier:
        """The frontier at the store's ``revision``, which was just read, or at a later revision."""
        seen = self._seen
        if seen is not None and seen[0] == revision:
            return seen[1]
        frontier = self._read_frontier()
        # The frontier may belong to a later revision; then the next call reads it again.
        # Also if the revision is a lower one: the store may have been set back.
        self._seen = (revision, frontier)
        return frontier

    def _read_frontier(self) -> Frontier:
        # All of them only grow. Since is read first, so a compaction between the reads gives an old
        # `since` with a new `upper`, which `updates` detects; never a `since` above its `upper`.
        pairs = self._store.range(PRUNED, f"{SNAPSHOT_VERSION} ")  # no key contains a space
        lowest = {pair.key: number_in(pair) for pair in pairs}
        since = lowest.pop(SNAPSHOT_VERSION, 0)
        pruned = ((key.removeprefix(PRUNED), version) for key, version in lowest.items())
        upper = number_in(self._store.get(VERSION)) + 1
        return Frontier(since, upper, tuple(sorted(pruned)))

    def check(self) -> Checked:
        head = self._store.check()
        return Checked(self._frontier_at(head.revision), head.time)

    def look(self) -> Checked:
        head = self._store.look()
        return Checked(self._frontier_at(head.revision), head.time)

    def token(self) -> FenceToken | None:
        pair = self._store.get(FENCE)
        if pair is None:
            return None
        with naming(FENCE):
            token = decode(pair.value, FenceToken)
        self._fence = token, pair.value
        return token

    def _fence_bytes(self, token: FenceToken) -> bytes:
        """The bytes that the store has at the fence key while ``token`` is the log's token."""
        if self._fence is None or self._fence[0] != token:
            self.token()
        fence = self._fence
        return fence[1] if fence is not None and fence[0] == token else encode(token)

    def _append(self, append: LogAppend) -> tuple[Update, ...]:
        before, token, updates = append.expected_upper - 1, append.token, append.updates
        conditions = [
            ValueIs(VERSION, digits(before)) if before else Absent(VERSION),
            ValueIs(FENCE, self._fence_bytes(token)) if token else Absent(FENCE),
        ]
        if append.times is not None:
            self._check_times(append)
        operations = _puts(updates, append.times)
        if append.new_token is not None:
            operations.append(Put(FENCE, encode(append.new_token)))
        operations += append.beside()
        try:
            outcome = self._store.invoke(conditions, operations)
        except (Unavailable, OSError) as error:
            return self._settle(append, error)
        if outcome.succeeded:
            seen = self._seen
            if seen is not None and seen[0] == outcome.revision - 1:
                # Nothing was written between that read and this append, so no `since` has moved.
                self._seen = (
                    outcome.revision,
                    replace(seen[1], upper=append.next_upper),
                )
            return append.at(outcome.time)
        return self._refused(append)

    def check_sizes(self, updates: Sequence[Update]) -> None:
        check_invoke([], _puts(updates, None), (), at_most=self._store.max_operations)

    def _check_times(self, append: LogAppend) -> None:
        """Raise `InvalidInput` for times that no log could have given to ``updates``."""
        before = append.expected_upper - 1
        pair = self._store.get(update_key(before))
        earliest = MIN_TIMESTAMP if pair is None else self._time_at(before, pair)
        latest = self._store.check().time
        append.check_times(earliest=earliest, latest=latest)

    def _time_at(self, version: int, pair: KeyValue) -> Timestamp:
        if open_record(pair.value)[0].of is Update:
            return time_of(pair)
        return self.snapshot(version).time

    def time_of(self, update: Update) -> Timestamp | None:
        # If the version was trimmed since, its audit event still has the id and the time.
        pair = self._store.get(update_key(update.version))
        if pair is not None and open_record(pair.value)[0].of is Update:
            head = decode_up_to(pair.value, Update, "id")
            return time_of(pair) if head["id"] == update.id else None
        event = self._store.get(append_key(AUDIT_EVENT, update.version))
        if event is not None and decode(event.value, AuditEvent).id == update.id:
            return time_of(event)
        return None

    def first_snapshot(self) -> CatalogSnapshot:
        since = self.frontier().since
        while since:
            pair = self._store.get(update_key(since))
            with naming(update_key(since)):
                snapshot = None if pair is None else chunks.read(self._store, pair.value)
            if snapshot is not None:
                if snapshot.version != since:
                    raise CorruptData(
                        f"the log has a snapshot of version {snapshot.version} at version "
                        f"{since}; restore the store from a backup"
                    )
                return snapshot
            now = self._read_frontier().since
            if now == since:
                raise CorruptData(
                    f"the snapshot of version {since}, or a part of it, is missing in the log; "
                    "restore the store from a backup"
                )
            since = now  # another node compacted the log during the read
        return CatalogSnapshot(0, MIN_TIMESTAMP, ())

    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        if start >= end:
            return ()
        while True:
            pairs = self._store.range(update_key(start), update_key(end))
            if len(pairs) == end - start and open_record(pairs[0].value)[0].of is Update:
                break
            self._explain(start, end, pairs)
        # Not read again: what an interrupted trim has left is right, as it was before that trim.
        since = self.frontier().since if self._seen is None else self._seen[1].since
        if start <= since:
            raise trimmed_away(start, since=since)
        updates = tuple(map(_update_in, pairs))
        for expected, update in enumerate(updates, start):
            if update.version != expected:
                raise CorruptData(
                    f"the log has update {update.version} at version {expected}; restore the "
                    "store from a backup"
                )
        return updates

    def _explain(self, start: int, end: int, pairs: Sequence[KeyValue]) -> None:
        """Raise the error for missing updates from ``start`` to ``end`` − 1.

        It is `VersionNotFound` if they are outside the log, `CorruptData` if the log has a hole.
        Returns if one of them was appended or trimmed since ``pairs`` were read.
        """
        frontier = self._read_frontier()
        refuse_unreadable(start, end, since=frontier.since, upper=frontier.upper)
        present = {int(pair.key.removeprefix(UPDATE)) for pair in pairs}
        missing = sorted(set(range(start, end)) - present)
        if not missing:
            raise CorruptData(
                f"version {start} of the log is a snapshot where an update was expected; restore"
                " the store from a backup"
            )
        is_there = self._store.get(update_key(missing[0])) is not None
        if is_there or self._read_frontier().since > frontier.since:
            return
        raise CorruptData(
            f"the log has a hole: version {missing[0]} is missing between {start} and "
            f"{end - 1}; restore the store from a backup"
        )

    def listen(self, after: Frontier, *, timeout: float) -> bool:
        # The revision is read before the frontier, so the wait misses no change between the two.
        revision = self._store.revision()
        if self._frontier_at(revision) != after:
            return True
        return self._store.wait_for_change(PREFIX, revision, timeout=timeout)

    def scan(self, kind: str, start: int, end: int) -> Iterator[Scanned]:
        begin, stop = append_key(kind, start), append_key(kind, end)
        while page := self._store.range(begin, stop, limit=SCANNED_AT_ONCE):
            for pair in page:
                version = int(pair.key.removeprefix(f"{APPEND}{kind}.").partition(".")[0])
                yield Scanned(version, time_of(pair), pair.value)
            if len(page) < SCANNED_AT_ONCE:
                return
            begin = page[-1].key + " "  # the next possible key: no key contains a space

    def prune(self, kind: str, up_to: int, token: FenceToken) -> bool:
        refuse_lasting(kind)
        key = PRUNED + kind
        refused_at: Frontier | None = None
        while True:
            refuse_other_token(self.token(), token)
            frontier = self._read_frontier()
            pruned = frontier.pruned_up_to(kind)
            if up_to <= pruned:
                return False
            refuse_absent(up_to, frontier)
            if refused_at is not None and refused_at.pruned == frontier.pruned:
                raise CorruptData(
                    f"{key} of the log, or its fence, differs from what was just read; {REMEDY}"
                )
            refused_at = frontier
            outcome = self._store.invoke(
                [
                    ValueIs(key, digits(pruned)) if pruned else Absent(key),
                    ValueIs(FENCE, self._fence_bytes(token)),
                ],
                [
                    Put(key, digits(up_to)),
                    DeleteRange(append_key(kind, 0), append_key(kind, up_to + 1)),
                ],
            )
            if outcome.succeeded:
                return True

    def compact(self, up_to: int, token: FenceToken) -> bool:
        refuse_other_token(self.token(), token)
        fence = ValueIs(FENCE, self._fence_bytes(token))
        is_done = self._move_since(up_to, token, fence)
        self._remove_trimmed(fence)
        return is_done

    def _move_since(self, up_to: int, token: FenceToken, fence: ValueIs) -> bool:
        """Replace the update of ``up_to`` by a snapshot. Returns False if it was trimmed before."""
        snapshot: CatalogSnapshot | None = None
        prepared: chunks.Prepared | None = None
        while (frontier := self._read_frontier()).since < up_to:
            since = frontier.since
            if snapshot is None and (snapshot := self._snapshot_to_keep(up_to, frontier)) is None:
                continue
            if prepared is None:
                prepared = chunks.prepare(
                    self._store, snapshot, fence=fence, chunk_bytes=self._chunk_bytes
                )
            snapshot_unchanged = (
                ValueIs(SNAPSHOT_VERSION, digits(since)) if since else Absent(SNAPSHOT_VERSION)
            )
            key = update_key(up_to)
            outcome = self._store.invoke(
                [snapshot_unchanged, fence, Exists(key), *prepared.conditions],
                [
                    Put(SNAPSHOT_VERSION, digits(up_to)),
                    Put(key, prepared.value),
                    DeleteRange(update_key(max(up_to - TRIMMED_AT_ONCE, 0)), key),
                    *prepared.removals,
                ],
            )
            if outcome.succeeded:
                return True
            self._explain_refused_compaction(since, up_to, token)
            prepared = None  # the other compaction has removed the chunks of this one
        return False

    def _remove_trimmed(self, fence: ValueIs) -> None:
        """Remove what is left below ``since``, also by an earlier compaction that did not end."""
        refused_at = 0
        while since := self._read_frontier().since:
            lowest = self._store.range(update_key(0), update_key(since), limit=1)
            if not lowest or since == refused_at:  # refused: the log has another token now
                return
            end = int(lowest[0].key.removeprefix(UPDATE)) + TRIMMED_AT_ONCE
            removed = self._store.invoke(
                [ValueIs(SNAPSHOT_VERSION, digits(since)), fence],
                [DeleteRange(lowest[0].key, update_key(min(end, since)))],
            )
            refused_at = 0 if removed.succeeded else since

    def _snapshot_to_keep(self, up_to: int, frontier: Frontier) -> CatalogSnapshot | None:
        """The snapshot of ``up_to``, or None if another node trimmed the log during the read."""
        refuse_absent(up_to, frontier)
        try:
            return self.snapshot(up_to)
        except VersionNotFound:
            if self._read_frontier().since == frontier.since:
                raise
            return None

    def _explain_refused_compaction(self, since: int, up_to: int, token: FenceToken) -> None:
        """Raise the reason for the refusal, or return if another compaction was first.

        In the second case the caller tries again.
        """
        refuse_other_token(self.token(), token)
        if self._read_frontier().since == since:
            raise CorruptData(
                f"version {up_to}, or the snapshot of it that was just written, is missing in the "
                "log; nothing was trimmed: restore the store from a backup"
            )
