"""One invoke on etcd: the view that it needs, and the transaction that it decides on.

This module holds no state, and its decisions depend only on the view. The loop that uses it is in
`strandline.metastorage.etcd.store`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strandline.clock import Timestamp
from strandline.errors import UnsupportedOperation
from strandline.metastorage.etcd.gateway import CompactedRevision, EtcdGateway
from strandline.metastorage.etcd.layout import (
    EtcdKeys,
    Reference,
    Stored,
    decode_head,
    decode_lease,
    decode_stored,
    encode_change,
    encode_head,
    encode_stored,
    encode_time,
)
from strandline.metastorage.etcd.leases import is_live
from strandline.metastorage.etcd.operations import (
    Json,
    Page,
    TxnAnswer,
    delete_operation,
    if_modified_at,
    if_present,
    if_value_below,
    if_value_is,
    put_operation,
    range_operation,
)
from strandline.metastorage.store import (
    Absent,
    Beside,
    Condition,
    Delete,
    DeleteRange,
    Exists,
    Head,
    Lease,
    LeaseHeld,
    Operation,
    Outcome,
    Put,
    PutTimed,
    TimeIs,
    ValueIs,
)

MAX_OPERATIONS = 60
"""etcd allows 128 operations in a transaction.

Each of ours takes two (the entry and its chunks), and the bookkeeping takes four.
"""

AnyPut = Put | PutTimed

_INLINE_BYTES = 64 << 10
_ALL_INLINE_BYTES = 768 << 10
_KEYS_NAMED = 256
_CHANGE_BYTES = 96 << 10
_RANGES_PER_READ = 16
_REMEMBERED_BYTES = 4 << 10
_REMEMBERED_KEYS = 1024
_PRUNE_EVERY = 64


@dataclass(frozen=True, slots=True)
class View:
    """The values of keys at one moment, when the head was ``head``.

    ``entries`` has None for a key that does not exist. ``ranges`` has, for each range to be
    deleted, its keys, up to the number that a change names, and whether there are more. ``leases``
    has the rows with etcd's revision of them. ``time`` is None if the store's time is missing.
    """

    head: Head
    time: bytes | None
    entries: Mapping[str, bytes | None]
    ranges: Mapping[DeleteRange, tuple[tuple[str, ...], bool]]
    leases: Mapping[str, tuple[Lease | None, int]]


@dataclass(frozen=True, slots=True)
class Missing:
    """Puts whose values must first be written as chunks."""

    puts: list[AnyPut]


@dataclass(frozen=True, slots=True)
class Plan:
    """One transaction, and its outcome if it succeeds. Without writes there is nothing to do."""

    outcome: Outcome
    compares: Sequence[Json]
    writes: Sequence[Json]
    reads_on_failure: Sequence[Json]
    large: Sequence[AnyPut]
    view_after: View


class Invoke:
    """One call of `Metastorage.invoke`; its arguments are checked already."""

    def __init__(
        self,
        keys: EtcdKeys,
        conditions: Sequence[Condition],
        on_success: Sequence[Operation],
        on_failure: Sequence[Operation],
    ) -> None:
        self._keys = keys
        self._conditions = conditions
        self._branches = {True: on_success, False: on_failure}
        operations = [*on_success, *on_failure]
        leases = (c.name for c in conditions if isinstance(c, LeaseHeld))
        entries = [c.key for c in conditions if not isinstance(c, LeaseHeld)]
        entries += [o.key for o in operations if isinstance(o, Delete)]
        self._leases = tuple(dict.fromkeys(leases))
        self._entries = tuple(dict.fromkeys(entries))
        ranges = (o for o in operations if isinstance(o, DeleteRange) and o.start < o.end)
        self._ranges = tuple(dict.fromkeys(ranges))
        self._ranges_to_read: list[tuple[bytes, bytes | None]] = [
            (keys.head, None),
            (keys.time, None),
        ]
        self._ranges_to_read += [(keys.lease(name), None) for name in self._leases]
        self._ranges_to_read += [(keys.data(key), None) for key in self._entries]
        self._ranges_to_read += [(keys.data(o.start), keys.data(o.end)) for o in self._ranges]

    def puts(self, *, succeeded: bool) -> set[AnyPut]:
        return {o for o in self._branches[succeeded] if isinstance(o, Put | PutTimed)}

    def is_covered_by(self, view: View) -> bool:
        """Whether the view contains everything that this invoke needs."""
        return (
            view.entries.keys() >= set(self._entries)
            and view.ranges.keys() >= set(self._ranges)
            and view.leases.keys() >= set(self._leases)
        )

    def view(self, gateway: EtcdGateway) -> View:
        """Read everything that this invoke needs, as of one moment."""
        while True:
            try:
                pages: list[Page] = []
                revision = 0
                for first in range(0, len(self._ranges_to_read), _RANGES_PER_READ):
                    answer = gateway.txn([], self._reads(first, revision), repeatable=True)
                    revision = revision or answer.revision
                    pages += answer.pages
                return self._view_of(pages)
            except CompactedRevision:
                continue  # only between the reads of a view of many keys

    def _reads(self, first: int, revision: int) -> list[Json]:
        return [
            range_operation(
                start, end, limit=_KEYS_NAMED, keys_only=end is not None, revision=revision
            )
            for start, end in self._ranges_to_read[first : first + _RANGES_PER_READ]
        ]

    def _view_of(self, pages: Sequence[Page]) -> View:
        head, at, *rest = pages
        leases, rest = rest[: len(self._leases)], rest[len(self._leases) :]
        entries, ranges = rest[: len(self._entries)], rest[len(self._entries) :]
        return View(
            decode_head(head.value),
            at.value,
            {key: page.value for key, page in zip(self._entries, entries, strict=True)},
            {
                key_range: (tuple(self._keys.key_of(pair.key) for pair in page.pairs), page.more)
                for key_range, page in zip(self._ranges, ranges, strict=True)
            },
            {
                name: (
                    None if page.value is None else decode_lease(name, page.value),
                    page.modified,
                )
                for name, page in zip(self._leases, leases, strict=True)
            },
        )

    def decide(
        self,
        view: View,
        now: Timestamp,
        written: Mapping[AnyPut, Reference],
        *,
        changes_kept: int,
    ) -> Plan | Missing:
        """What to do in this view at the time ``now``; ``written`` has the large values."""
        succeeded = all(_holds(condition, view, now) for condition in self._conditions)
        operations = self._branches[succeeded]
        large = _large(operations)
        missing = [put for put in large if put not in written]
        if missing:
            return Missing(missing)
        touched, ranges = _touched(view, operations)
        moves = bool(touched or ranges)
        head = Head(view.head.revision + 1, now) if moves else view.head
        entries = dict(view.entries)
        writes: list[Json] = []
        if moves:
            writes += self._bookkeeping(head, touched, ranges, changes_kept)
            references = {put: written[put] for put in large}
            for operation in operations:
                writes += self._write(operation, head, references, entries)
        if moves or self._leases:
            # Store the time by which a lease was decided, so that later readers agree.
            writes.append(put_operation(self._keys.time, encode_time(now)))
        # etcd's revision of the head is no proof: an etcd that was restored assigns it again.
        same_head = (
            if_value_is(self._keys.head, encode_head(view.head))
            if view.head.revision
            else if_modified_at(self._keys.head, 0)
        )
        firsts = {put: self._keys.chunk(put.key, written[put].identity, 0) for put in large}
        return Plan(
            Outcome(succeeded, head.revision, head.time),
            [
                same_head,
                if_value_below(self._keys.time, encode_time(now)),
                *(
                    if_modified_at(self._keys.lease(name), view.leases[name][1])
                    for name in self._leases
                ),
                *(if_present(first) for first in firsts.values()),
            ],
            writes,
            [range_operation(first, keys_only=True) for first in firsts.values()]
            + self._reads(0, 0),
            large,
            View(
                head,
                encode_time(now),
                entries if len(entries) <= _REMEMBERED_KEYS else {},
                {},
                {},
            ),
        )

    def view_after_refusal(
        self, plan: Plan, answer: TxnAnswer, written: dict[AnyPut, Reference]
    ) -> View | None:
        """The view after another writer was first, or None if it must be read anew.

        Chunks that the other writer removed are dropped from ``written``, so they are written
        again.
        """
        for put, first in zip(plan.large, answer.pages, strict=False):
            if not first.pairs:
                del written[put]
        pages = answer.pages[len(plan.large) :]
        return self._view_of(pages) if len(pages) == len(self._ranges_to_read) else None

    def _bookkeeping(
        self,
        head: Head,
        touched: Sequence[str],
        ranges: Sequence[tuple[str, str]],
        changes_kept: int,
    ) -> list[Json]:
        keys = self._keys
        change = encode_change(touched, ranges)
        writes = [
            put_operation(keys.head, encode_head(head)),
            put_operation(keys.change(head.revision), change),
        ]
        forgotten = head.revision - changes_kept
        if forgotten > 0 and (head.revision % _PRUNE_EVERY == 0 or changes_kept < _PRUNE_EVERY):
            writes.append(delete_operation(keys.change(0), keys.change(forgotten + 1)))
        return writes

    def _write(
        self,
        operation: Operation,
        head: Head,
        references: Mapping[AnyPut, Reference],
        entries: dict[str, bytes | None],
    ) -> list[Json]:
        """The etcd operations for one operation. Updates ``entries`` to what is known then."""
        keys = self._keys
        match operation:
            case Put(key) | PutTimed(key):
                start, end = keys.chunks(key)
                reference = references.get(operation)
                if reference is None:
                    put = operation if isinstance(operation, Put) else operation.at(head.time)
                    raw = encode_stored(Stored(head.revision, head.time, put.value))
                else:
                    # Only earlier identities; later chunks are another writer's, or orphans.
                    end = keys.chunks(key, reference.identity)[0]
                    if isinstance(operation, PutTimed):
                        reference = replace(reference, head=operation.head(head.time))
                    raw = encode_stored(Stored(head.revision, head.time, reference))
                entries.pop(key, None)
                if len(raw) <= _REMEMBERED_BYTES:
                    entries[key] = raw
                return [delete_operation(start, end), put_operation(keys.data(key), raw)]
            case Delete(key):
                entries[key] = None
                return [delete_operation(*keys.chunks(key)), delete_operation(keys.data(key))]
            case DeleteRange(start_key, end_key):
                if start_key >= end_key:
                    return []
                for key in [key for key in entries if start_key <= key < end_key]:
                    entries[key] = None
                return [
                    delete_operation(keys.chunk_bound(start_key), keys.chunk_bound(end_key)),
                    delete_operation(keys.data(start_key), keys.data(end_key)),
                ]
            case Beside():
                raise UnsupportedOperation(
                    "etcd has no SQL transactions, so nothing can be written in the same one"
                )


def _holds(condition: Condition, view: View, now: Timestamp) -> bool:
    if isinstance(condition, LeaseHeld):
        row, _ = view.leases[condition.name]
        return row is not None and is_live(row, now) and row.token == condition.token
    raw = view.entries[condition.key]
    match condition:
        case Absent():
            return raw is None
        case Exists():
            return raw is not None
        case TimeIs():
            return raw is not None and decode_stored(raw).time == condition.time
        case ValueIs():
            return raw is not None and _is_value(decode_stored(raw).value, condition.value)


def _is_value(stored: bytes | Reference, value: bytes) -> bool:
    if isinstance(stored, bytes):
        return stored == value
    if not value.startswith(stored.head):
        return False
    chunked = value[len(stored.head) :]
    return stored.size == len(chunked) and stored.digest == hashlib.sha256(chunked).digest()


def _large(operations: Sequence[Operation]) -> list[AnyPut]:
    """The puts whose values must be written as chunks, so that the rest fits into one request."""
    puts = [o for o in operations if isinstance(o, Put | PutTimed)]
    puts.sort(key=_size, reverse=True)
    total = sum(map(_size, puts))
    large = []
    for put in puts:
        if _size(put) > _INLINE_BYTES or total > _ALL_INLINE_BYTES:
            large.append(put)
            total -= _size(put)
    return large


def _size(put: AnyPut) -> int:
    return len(put.value if isinstance(put, Put) else put.body)


def _touched(
    view: View, operations: Sequence[Operation]
) -> tuple[list[str], list[tuple[str, str]]]:
    """The keys that the operations touch, and the ranges with too many keys to name."""
    touched: list[str] = []
    ranges: list[tuple[str, str]] = []
    for operation in operations:
        match operation:
            case Put(key) | PutTimed(key):
                touched.append(key)
            case Delete(key):
                if view.entries[key] is not None:
                    touched.append(key)
            case DeleteRange(start, end):
                entries, more = view.ranges.get(operation, ((), False))
                if more or sum(map(len, (*touched, *entries))) > _CHANGE_BYTES:
                    ranges.append((start, end))
                else:
                    touched.extend(entries)
    return list(dict.fromkeys(touched)), ranges
