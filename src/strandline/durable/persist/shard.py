"""A shard: versioned rows that several processes read and that one command at a time changes.

Consensus stores the state as a log of diffs (`strandline.durable.persist.shard_state`). Each
process keeps the latest state that it knows and follows the log from there. A **rollup** is a whole
state in a blob. A process that starts reads the rollup and the few diffs after it, and the diffs
before it are removed.

What must stay true:

* A diff names the rollup that leads to it. Diffs are removed only below a rollup that the last diff
  names, so the state can always be computed from the last diff's rollup and the diffs after it. If
  a reader finds the rollup or a diff missing, its last diff is outdated, and it reads the newer
  one.
* Every blob that the latest state names exists. If a reader misses a blob of an older state, it
  follows the log and tries again. If the latest state names the blob, the shard is damaged.
* A refusal counts only on a state that was read after the call began: if an older state refuses a
  command, the command runs again on the latest one. If an older state accepts a command, no read is
  needed, since consensus refuses the diff of an outdated state.

A write with an unknown outcome is left to its caller, which may try the same append again.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

from strandline.durable.persist.blob import Blob
from strandline.durable.persist.consensus import Consensus, Timed, VersionedData
from strandline.durable.persist.part import (
    at_time,
    decode_rows,
    encode_rows,
    read_part,
    rows_between,
    write_part,
)
from strandline.durable.persist.shard_state import (
    Batch,
    Batches,
    BlobRef,
    Command,
    ShardDiff,
    ShardState,
    applied,
    new_blob_key,
)
from strandline.durable.rows import REMEDY, Row, is_object
from strandline.errors import (
    Conflict,
    CorruptData,
    Fenced,
    InvalidInput,
    StrandlineError,
    Unavailable,
)
from strandline.metastorage import Operation
from strandline.wire.registry import decode, encode, timed_head

if TYPE_CHECKING:
    import pyarrow as pa

INLINE_BYTES = 64 << 10
"""Rows with more bytes are uploaded as a part before they are appended."""
PART_ROWS = 1 << 16
"""The maximum rows of one part, to limit the memory of a reader."""
REMEMBERED_PARTS = 4
REFUSED = Conflict, Fenced, InvalidInput
"""Errors of `Shard.commit` that prove that the command was not done."""

T = TypeVar("T")


class _Gone(Exception):
    """A blob of an outdated state is gone."""


class Shard:
    """See the module. Safe for threads; several processes may have the same shard open."""

    def __init__(self, consensus: Consensus, blob: Blob, name: str) -> None:
        self.consensus = consensus
        self.blob = blob
        self.name = name
        self._lock = threading.Lock()
        self.known = ShardState(name)
        """The latest state that this object knows; not linearizable."""
        self._seen: tuple[int, ShardState] | None = None
        self._parts: OrderedDict[str, pa.Table] = OrderedDict()

    # -- the state ---------------------------------------------------------------------------------

    def recent(self) -> ShardState:
        """The latest state; linearizable, and cheap while nothing was committed."""
        revision = self.consensus.revision()
        seen = self._seen
        if seen is not None and seen[0] == revision:
            return seen[1]
        state = self.refresh()
        # The state may belong to a later revision; then the next call reads it again.
        # Also if the revision is a lower one: the store may have been set back.
        self._seen = (revision, state)
        return state

    def refresh(self) -> ShardState:
        """Follow the log to its end and return the latest state. Raises `CorruptData`."""
        state = self.known
        if not state.seqno:
            return self._advance(self._reload())
        # With the last known version: it is another one, or gone, if the log was set back.
        versions = self.consensus.scan(self.name, state.seqno)
        if _missing(versions, state.seqno) is not None or versions[0].time != state.time:
            return self._advance(self._reload(), is_anew=True)
        return self._advance(self._following(state, versions[1:]))

    def _reload(self) -> ShardState:
        """The state computed from the last rollup and the diffs after it."""
        seqno = -1
        while True:
            head = self.consensus.head(self.name)
            if head is None:
                return ShardState(self.name)
            rollup = _diff_in(head).rollup
            try:
                base = ShardState(self.name) if rollup is None else self._rolled_up(rollup)
                versions = self.consensus.scan(self.name, base.seqno + 1)
                missing = _missing(versions, base.seqno + 1)
                if missing is not None:
                    raise _Gone(f"change {missing} of shard {self.name} is missing; {REMEDY}")
            except _Gone as error:
                if head.seqno == seqno:
                    raise CorruptData(str(error)) from error
                seqno = head.seqno
                continue
            return self._following(base, versions)

    def _rolled_up(self, ref: BlobRef) -> ShardState:
        state = decode(self._download(ref), ShardState)
        if (state.shard, state.seqno) != (self.name, ref.seqno):
            raise CorruptData(
                f"{ref.key} is state {state.seqno} of shard {state.shard}, where a state of shard "
                f"{self.name} was expected; {REMEDY}"
            )
        return state

    def _following(self, state: ShardState, versions: Sequence[VersionedData]) -> ShardState:
        for version in versions:
            diff = _diff_in(version)
            if (diff.seqno, diff.time) != (version.seqno, version.time):
                raise CorruptData(
                    f"change {diff.seqno} of shard {self.name} is stored at {version.seqno}, or "
                    f"with a different time; {REMEDY}"
                )
            state = applied(state, diff)
        return state

    def _advance(self, state: ShardState, *, is_anew: bool = False) -> ShardState:
        """Keep the state, which may go back if it was read anew. Return the latest one."""
        with self._lock:
            if is_anew:
                self._seen = None
            if is_anew or state.seqno > self.known.seqno:
                self.known = state
            return self.known

    def commit(self, command: Command, *, beside: Sequence[Operation] = ()) -> ShardState:
        """Commit ``command``. Returns the state that it led to.

        ``beside`` is done in the same step. Raises what the command raises on the latest state,
        `Unavailable` and `UnknownOutcome`.
        """
        state, is_latest = self.known, False
        while True:
            try:
                diff = command(state)
            except StrandlineError:
                if is_latest:
                    raise
                state, is_latest = self.refresh(), True
                continue
            timed = timed_head(encode(diff))
            assert timed is not None
            committed = self.consensus.compare_and_set(
                self.name,
                state.seqno or None,
                diff.seqno,
                Timed(*timed),
                expected_time=state.time,
                beside=beside,
            )
            if committed is not None:
                break
            lost_to, is_latest = self.refresh(), True
            if lost_to.time == state.time:
                raise CorruptData(
                    f"the changes of shard {self.name} from {diff.seqno} on are missing; {REMEDY}"
                )
            state = lost_to
        after = applied(state, replace(diff, time=committed.time))
        self._seen = (committed.revision, after)
        self._advance(after)
        return after

    def copy_blobs(self, target: Blob) -> frozenset[str]:
        """Copy the blobs that the latest state names to ``target``.

        Returns the keys of the blobs that are missing. If the rollup is missing, the state is
        unknown, and only the rollup's key is returned.
        """
        head = self.consensus.head(self.name)
        rollup = None if head is None else _diff_in(head).rollup
        if rollup is not None and self.blob.get(rollup.key) is None:
            return frozenset({rollup.key})
        missing = set()
        for key in sorted(self.refresh().blobs()):
            data = self.blob.get(key)
            if data is None:
                missing.add(key)
            else:
                target.set(key, data)
        return frozenset(missing)

    # -- rows --------------------------------------------------------------------------------------

    def batch_in_parts(
        self, lower: int, upper: int, rows: Sequence[Row], state: ShardState
    ) -> Batch:
        """The batch of ``rows``, written as parts for a command that is based on ``state``."""
        parts = tuple(
            self.put(write_part(rows[start : start + PART_ROWS]), state.seqno, "part")
            for start in range(0, len(rows), PART_ROWS)
        )
        return Batch(lower, upper, len(rows), parts=parts)

    def put(self, data: bytes, seqno: int, what: str) -> BlobRef:
        key = new_blob_key(self.name, seqno, what)
        self.blob.set(key, data)
        return BlobRef(key, len(data), crc32(data))

    def remove_unused(self, refs: Iterable[BlobRef]) -> None:
        """Remove blobs of this process that no state names or ever will."""
        for ref in refs:
            try:
                self.blob.delete(ref.key)
            except Unavailable:  # the sweep removes it
                return

    def inline_batch(self, lower: int, upper: int, rows: Sequence[Row]) -> Batch | None:
        """The inline batch of ``rows``, or None if they are too many."""
        data = encode_rows(rows)
        if len(data) > INLINE_BYTES:
            return None
        return Batch(lower, upper, len(rows), inline=data)

    def rows_of(
        self, batch: Batch, start: int = 0, end: int = (1 << 63) - 1, *, kind: str | None = None
    ) -> Iterator[Row]:
        """The rows of ``batch`` in versions ``start`` to ``end`` − 1, of ``kind`` if given.

        Raises `CorruptData`, and an error that `reading` handles if the batch was swept.
        """
        if not batch.parts:
            for row in decode_rows(batch.inline):
                if start <= row.version < end and kind in (None, row.kind):
                    yield at_time(row, batch.time)
            return
        tables = []
        for ref in batch.parts:
            tables.append(self._table(ref))
            for row in rows_between(tables[-1], start, end, kind=kind):
                yield at_time(row, batch.time)
        if sum(table.num_rows for table in tables) != batch.rows:
            raise CorruptData(
                f"the parts of versions {batch.lower} to {batch.upper - 1} do not have the "
                f"{batch.rows} rows that were written; {REMEDY}"
            )

    def reading(self, read: Callable[[ShardState], T]) -> T:
        """The result of ``read`` on the latest state, repeated on a newer one if blobs are gone."""
        while True:
            state = self.recent()
            try:
                return read(state)
            except _Gone as error:
                if self.refresh().time == state.time:
                    raise CorruptData(str(error)) from error

    def reading_of(self, state: ShardState, read: Callable[[], T]) -> T | None:
        """The result of ``read``, which reads ``state``; None if its blobs were swept since."""
        try:
            return read()
        except _Gone as error:
            if self.refresh().time == state.time:
                raise CorruptData(str(error)) from error
            return None

    def history(self, state: ShardState, start: int, end: int) -> list[Row]:
        """The rows of versions ``start`` to ``end`` − 1, except those in ``appended`` batches.

        Rows of lasting kinds in batches that were not rewritten yet are included.
        """
        return [
            row
            for batch in batches_between(state.batches, start, end)
            for row in self.rows_of(batch, start, end)
        ]

    def snapshot(self, state: ShardState) -> list[Row]:
        """The object rows that remain at ``since``, by kind and key."""
        rows = self.rows_of(state.batches[0]) if state.since else ()
        return [row for row in rows if is_object(row.kind)]

    def lasting_batches(self, state: ShardState, start: int, end: int) -> Batches:
        """The batches that may contain rows of lasting kinds of these versions, in order."""
        inline = [batch for batch in batches_between(state.batches, start, end) if not batch.parts]
        appended = [b for b in state.appended if b.lower < end and b.upper > start]
        return tuple(sorted(inline + appended, key=lambda batch: batch.lower))

    def _table(self, ref: BlobRef) -> pa.Table:
        with self._lock:
            table = self._parts.get(ref.key)
            if table is not None:
                self._parts.move_to_end(ref.key)
                return table
        table = read_part(self._download(ref))
        with self._lock:
            self._parts[ref.key] = table
            while len(self._parts) > REMEMBERED_PARTS:
                self._parts.popitem(last=False)
        return table

    def _download(self, ref: BlobRef) -> bytes:
        data = self.blob.get(ref.key)
        if data is None:
            raise _Gone(
                f"the blob {ref.key} of shard {self.name} is missing; if the folder of the blobs "
                f"is not mounted, mount it, otherwise {REMEDY}"
            )
        if len(data) != ref.size or crc32(data) != ref.checksum:
            raise CorruptData(
                f"the blob {ref.key} of shard {self.name} has {len(data)} bytes, where {ref.size} "
                f"bytes with another checksum were written; {REMEDY}"
            )
        return data


def batches_between(batches: Batches, start: int, end: int) -> Batches:
    first = bisect_right(batches, start, key=lambda batch: batch.upper)
    last = bisect_right(batches, end - 1, key=lambda batch: batch.lower)
    return batches[first:last]


def _missing(versions: Sequence[VersionedData], start: int) -> int | None:
    """The first number that ``versions``, which begin at ``start``, do not have; None if whole.

    Another process may remove versions between two pages of a scan.
    """
    numbers = enumerate(versions, start)
    return next(
        (number for number, version in numbers if version.seqno != number),
        None if versions else start,
    )


def _diff_in(version: VersionedData) -> ShardDiff:
    return decode(version.data, ShardDiff)
