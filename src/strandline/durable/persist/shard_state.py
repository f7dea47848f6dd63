"""The state of a shard, and the pure functions that lead from one state to the next.

A shard is a durable collection of rows, each with a version. Versions below ``upper`` are complete
and never change. Of versions up to ``since``, only the sum of the object rows is left. Rows are
kept in **batches**, which cover the versions from 0 to ``upper`` without a gap. A batch either
contains a few rows in the state itself (``inline``), or names the parts that contain its rows. Rows
of lasting kinds (audit events) are kept in separate batches once they are in parts (``appended``),
so compaction does not touch them. Rows of other append-only kinds no longer count if their version
is at or below the one in ``pruned``; the next process that rewrites their batches drops them.

A **command** is a function of a state. It either raises the reason for refusing, or returns the
`ShardDiff` to the next state. Consensus keeps the diffs, one for each sequence number. A writer
that loses the race for a number runs its command again on the newer state. A diff contains what is
new: the value of every number after it, and the batches that replace those of a range of versions.

**Idempotency.** A writer gives each append a token. The state has the last token of each writer, so
an append whose outcome was lost is recognized when it is tried again, however many other appends
came in between. The state remembers the last `WRITERS` writers.

**Uploads.** A part is in the blobs before the diff that names it. ``floor`` separates abandoned
uploads from those that a diff is about to name. The key of a blob begins with the sequence number
of the state that its writer knew. A diff that names a blob below the floor is refused
(`UploadExpired`, and the writer uploads it again). The sweep removes only blobs below the floor
that are not named. So no clock and no lease is needed, and a writer that was paused for a day does
no harm. Rejected: leases of readers and writers (a reader would have to write), and removal by
age.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.durable.log import refuse_other_token
from strandline.durable.rows import REMEDY
from strandline.errors import Conflict, CorruptData, InvalidInput, OutOfSync
from strandline.fencing import FenceToken
from strandline.wire.codecs import BYTES, TEXT, TIME, UINT, optional, pair, sequence
from strandline.wire.registry import nested, nested_list, register

WRITERS = 64
_SEQNO_DIGITS = 20


class UploadExpired(Conflict):
    """The blobs uploaded for this command may be swept; upload them again under new keys."""


class AlreadyMaintained(Conflict):
    """Another process maintained the same batches first; read the state again."""


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A blob: its key, its size in bytes, and their CRC-32."""

    key: str
    size: int
    checksum: int

    @property
    def seqno(self) -> int:
        """The sequence number of the state that its writer knew."""
        return seqno_of(self.key)


def seqno_of(key: str) -> int:
    """The number in a blob's key, after the name of the shard. Raises `CorruptData`."""
    digits = key.rpartition("/")[2].partition("-")[0]
    if len(digits) != _SEQNO_DIGITS or not digits.isdecimal():
        raise CorruptData(f"{key!r} is not the key of a blob of a shard; {REMEDY}")
    return int(digits)


def new_blob_key(shard: str, seqno: int, what: str) -> str:
    """A unique key for a blob of a writer that knows state ``seqno``."""
    return f"{shard}/{seqno:0{_SEQNO_DIGITS}d}-{what}-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of versions ``lower`` to ``upper`` − 1; ``rows`` is their number.

    ``time`` is the time of the diff that added them. It applies to rows without a time of their
    own.
    """

    lower: int
    upper: int
    rows: int
    time: Timestamp = MIN_TIMESTAMP
    inline: bytes = b""
    parts: tuple[BlobRef, ...] = ()


Batches = tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Replacement:
    """``batches`` replace all batches within versions ``lower`` to ``upper`` − 1."""

    lower: int
    upper: int
    batches: Batches


NO_REPLACEMENT = Replacement(0, 0, ())


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer's last append: its token, and when it was ordered."""

    id: bytes
    token: bytes
    time: Timestamp


@dataclass(frozen=True, slots=True)
class ShardState:
    """See the module. ``time`` is the time of the last diff.

    ``last_time`` is the time of version ``upper`` − 1, ``since_time`` that of version ``since``.
    ``rollup`` is the blob with an earlier state, from which the later diffs lead to this one.
    Without a rollup the diffs begin at the empty state.
    """

    shard: str
    seqno: int = 0
    time: Timestamp = MIN_TIMESTAMP
    since: int = 0
    since_time: Timestamp = MIN_TIMESTAMP
    upper: int = 1
    last_time: Timestamp = MIN_TIMESTAMP
    floor: int = 0
    fence: FenceToken | None = None
    writers: tuple[Writer, ...] = ()
    rollup: BlobRef | None = None
    batches: Batches = (Batch(0, 1, 0),)
    appended: Batches = ()
    pruned: tuple[tuple[str, int], ...] = ()

    def blobs(self) -> set[str]:
        named = {ref.key for ref in parts_of(self.batches + self.appended)}
        return named if self.rollup is None else named | {self.rollup.key}


@dataclass(frozen=True, slots=True)
class ShardDiff:
    """The change that leads to state ``seqno``, at ``time``. Its numbers are those of that state.

    ``last_time`` is `MIN_TIMESTAMP` if it equals ``time`` or if no version is new. ``writer`` is
    the id and the token of an append. ``rollup`` is the rollup of the new state. ``pruned`` is a
    kind and the version up to which its rows no longer count.
    """

    seqno: int
    upper: int
    since: int
    since_time: Timestamp
    last_time: Timestamp
    floor: int
    fence: FenceToken | None
    rollup: BlobRef | None
    writer: tuple[bytes, bytes] | None = None
    history: Replacement = NO_REPLACEMENT
    appended: Replacement = NO_REPLACEMENT
    pruned: tuple[str, int] | None = None
    time: Timestamp = field(default=MIN_TIMESTAMP)


_BATCHES = nested_list(Batch)
_ROLLUP = optional(nested(BlobRef))
_FENCE = optional(nested(FenceToken))
_PRUNED = pair(TEXT, UINT)
_new_in_0_4_0 = partial(register, version=1, since="0.4.0")

_new_in_0_4_0(BlobRef, type_id=70, fields=[("key", TEXT), ("size", UINT), ("checksum", UINT)])
_new_in_0_4_0(
    Batch,
    type_id=71,
    fields=[
        ("lower", UINT),
        ("upper", UINT),
        ("rows", UINT),
        ("time", TIME),
        ("inline", BYTES),
        ("parts", nested_list(BlobRef)),
    ],
)
_new_in_0_4_0(
    Replacement, type_id=72, fields=[("lower", UINT), ("upper", UINT), ("batches", _BATCHES)]
)
_new_in_0_4_0(Writer, type_id=73, fields=[("id", BYTES), ("token", BYTES), ("time", TIME)])
_new_in_0_4_0(
    ShardDiff,
    type_id=74,
    fields=[
        ("time", TIME),
        ("seqno", UINT),
        ("upper", UINT),
        ("rollup", _ROLLUP),
        ("since", UINT),
        ("since_time", TIME),
        ("last_time", TIME),
        ("floor", UINT),
        ("fence", _FENCE),
        ("writer", optional(pair(BYTES, BYTES))),
        ("history", nested(Replacement)),
        ("appended", nested(Replacement)),
        ("pruned", optional(_PRUNED)),
    ],
)
_new_in_0_4_0(
    ShardState,
    type_id=75,
    fields=[
        ("shard", TEXT),
        ("seqno", UINT),
        ("time", TIME),
        ("since", UINT),
        ("since_time", TIME),
        ("upper", UINT),
        ("last_time", TIME),
        ("floor", UINT),
        ("fence", _FENCE),
        ("writers", nested_list(Writer)),
        ("rollup", _ROLLUP),
        ("batches", _BATCHES),
        ("appended", _BATCHES),
        ("pruned", sequence(_PRUNED)),
    ],
)


# -- from one state to the next --------------------------------------------------------------------


def applied(state: ShardState, diff: ShardDiff) -> ShardState:
    """The state that ``diff`` leads to. Raises `CorruptData` if it does not fit."""
    if diff.seqno != state.seqno + 1 or diff.time <= state.time:
        raise CorruptData(
            f"change {diff.seqno} of shard {state.shard} does not follow state {state.seqno}; "
            f"{REMEDY}"
        )
    writers = state.writers
    if diff.writer is not None:
        others = tuple(writer for writer in writers if writer.id != diff.writer[0])
        writers = (*others[1 - WRITERS :], Writer(*diff.writer, diff.time))
    batches = _replaced(state.batches, diff.history, diff.time)
    if diff.history.batches:
        _check_contiguous(batches, diff)
    pruned = state.pruned
    if diff.pruned is not None:
        pruned = tuple(sorted({**dict(pruned), diff.pruned[0]: diff.pruned[1]}.items()))
    last_time = state.last_time
    if diff.upper != state.upper:
        last_time = diff.time if diff.last_time == MIN_TIMESTAMP else diff.last_time
    return ShardState(
        shard=state.shard,
        seqno=diff.seqno,
        time=diff.time,
        since=diff.since,
        since_time=diff.since_time,
        upper=diff.upper,
        last_time=last_time,
        floor=diff.floor,
        fence=diff.fence,
        writers=writers,
        rollup=diff.rollup,
        batches=batches,
        appended=_replaced(state.appended, diff.appended, diff.time),
        pruned=pruned,
    )


def _replaced(batches: Batches, change: Replacement, time: Timestamp) -> Batches:
    if not change.batches:
        return batches
    added = tuple(
        [
            replace(batch, time=time) if batch.time == MIN_TIMESTAMP else batch
            for batch in change.batches
        ]
    )
    if not batches or batches[-1].upper <= change.lower:
        return batches + added
    before = tuple([batch for batch in batches if batch.upper <= change.lower])
    after = tuple([batch for batch in batches if batch.lower >= change.upper])
    return before + added + after


def _check_contiguous(batches: Batches, diff: ShardDiff) -> None:
    # If the new batches only follow the others, the others are unchanged and have no gap.
    only_follow = batches[-1].upper == diff.history.upper
    new = batches[-len(diff.history.batches) - 1 :] if only_follow else batches
    lower = new[0].lower if only_follow else 0
    for batch in new:
        if batch.lower != lower or batch.upper <= lower:
            raise CorruptData(f"change {diff.seqno} of a shard has a hole at {lower}; {REMEDY}")
        lower = batch.upper
    if lower != diff.upper:
        raise CorruptData(
            f"change {diff.seqno} of a shard has rows up to version {lower - 1}, but should have "
            f"rows up to {diff.upper - 1}; {REMEDY}"
        )


Command = Callable[[ShardState], ShardDiff]


def next_diff(state: ShardState) -> ShardDiff:
    """The diff that changes nothing but the sequence number."""
    return ShardDiff(
        seqno=state.seqno + 1,
        upper=state.upper,
        since=state.since,
        since_time=state.since_time,
        last_time=MIN_TIMESTAMP,
        floor=state.floor,
        fence=state.fence,
        rollup=state.rollup,
    )


@dataclass(frozen=True, slots=True)
class Append:
    """The arguments of `compare_and_append`, for one batch."""

    batch: Batch
    appended: Batches
    writer: bytes
    token: bytes
    fence: FenceToken | None
    new_fence: FenceToken | None
    last_time: Timestamp = MIN_TIMESTAMP

    def uploads(self) -> list[BlobRef]:
        return parts_of((self.batch, *self.appended))


def compare_and_append(append: Append) -> Command:
    """Add a batch at ``upper``, for the holder of the fence.

    Checks, in this order: the bounds (`InvalidInput`), the fence (`Fenced`), the upper
    (`OutOfSync`), the uploads (`UploadExpired`).
    """
    batch = append.batch
    if batch.upper < batch.lower or (batch.upper == batch.lower and batch.rows):
        raise InvalidInput(
            f"a batch cannot have rows in versions {batch.lower} to {batch.upper - 1}"
        )

    def command(state: ShardState) -> ShardDiff:
        refuse_other_token(state.fence, append.fence)
        if state.upper != batch.lower:
            raise OutOfSync(
                f"version {batch.lower} cannot be appended; the next version is {state.upper}"
            )
        check_uploads(state, append.uploads())
        return replace(
            next_diff(state),
            upper=batch.upper,
            last_time=append.last_time,
            fence=append.new_fence or state.fence,
            writer=(append.writer, append.token),
            history=_added((batch,) if batch.upper > batch.lower else ()),
            appended=_added(append.appended),
        )

    return command


def _added(batches: Batches) -> Replacement:
    return Replacement(batches[0].lower, batches[-1].upper, batches) if batches else NO_REPLACEMENT


def check_uploads(state: ShardState, uploads: Iterable[BlobRef]) -> None:
    """Raise `UploadExpired` if one of ``uploads``, not named by any state, may have been swept."""
    for ref in uploads:
        if ref.seqno < state.floor:
            raise UploadExpired(f"{ref.key} was uploaded before the last sweep")


def parts_of(batches: Iterable[Batch]) -> list[BlobRef]:
    return [ref for batch in batches for ref in batch.parts]


def prune(kind: str, up_to: int, fence: FenceToken) -> Command:
    """Stop counting the rows of an append-only kind in versions up to ``up_to``.

    Raises `Fenced`, and `AlreadyMaintained` if they do not count already.
    """

    def command(state: ShardState) -> ShardDiff:
        refuse_other_token(state.fence, fence)
        if up_to <= dict(state.pruned).get(kind, 0):
            raise AlreadyMaintained(f"{kind} is already pruned up to version {up_to}")
        return replace(next_diff(state), pruned=(kind, up_to))

    return command


def raise_floor(state: ShardState) -> ShardDiff:
    """From the new state on, no diff may name a blob that was uploaded before it."""
    return replace(next_diff(state), floor=state.seqno + 1)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The arguments of `rewrite`: new batches and a rollup for the state ``base``.

    Only a compaction sets ``since`` and ``fence``.
    """

    base: ShardState
    history: Batches
    appended: Batches
    rollup: BlobRef | None = None
    since: tuple[int, Timestamp] | None = None
    fence: FenceToken | None = None

    def uploads(self) -> list[BlobRef]:
        named = self.base.blobs()
        parts = [ref for ref in parts_of(self.history + self.appended) if ref.key not in named]
        return parts if self.rollup is None else [*parts, self.rollup]


def rewrite(change: Rewrite) -> Command:
    """Replace batches of a state by others with the same rows, except pruned ones.

    Batches appended since then are kept. Raises `AlreadyMaintained` if another rewrite was first,
    `Fenced` (only for a compaction), and `UploadExpired`.
    """
    base = change.base
    history = _difference(base.batches, change.history)
    appended = _difference(base.appended, change.appended)
    uploads = change.uploads()

    def command(state: ShardState) -> ShardDiff:
        if change.since is not None:
            refuse_other_token(state.fence, change.fence)
        same_rows = state.batches[: len(base.batches)] == base.batches and all(
            batch in state.appended for batch in base.appended
        )
        if not same_rows or (state.since, state.rollup) != (base.since, base.rollup):
            raise AlreadyMaintained("another process rewrote the same batches")
        check_uploads(state, uploads)
        since, since_time = change.since or (state.since, state.since_time)
        return replace(
            next_diff(state),
            since=since,
            since_time=since_time,
            rollup=change.rollup or state.rollup,
            history=history,
            appended=appended,
        )

    return command


def _difference(old: Batches, new: Batches) -> Replacement:
    """The batches in which ``old`` and ``new`` differ; both cover the same versions."""
    first, last = 0, 0
    shorter = min(len(old), len(new))
    while first < shorter and old[first] == new[first]:
        first += 1
    while last < shorter - first and old[-1 - last] == new[-1 - last]:
        last += 1
    changed = new[first : len(new) - last]
    if not changed:
        return NO_REPLACEMENT
    return Replacement(changed[0].lower, changed[-1].upper, changed)
