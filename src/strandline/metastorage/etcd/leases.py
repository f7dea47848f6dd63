"""Leases in etcd: rows of the store, which expire in the store's time.

etcd has leases, but they expire by etcd's wall clock, which is not ordered with the store's time.
So a lease is a row, as in the other stores. Each decision about a lease takes a time above the
stored one. The decision is written with that time, on the condition that the row has not changed
and that the stored time is still lower. A lease that was found expired at a stored time is expired
for all later readers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from strandline.clock import HybridClock, Timestamp, add_milliseconds
from strandline.errors import CorruptData, DeadlineExceeded
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.metastorage.etcd.layout import (
    EtcdKeys,
    decode_lease,
    decode_time,
    encode_lease,
    encode_time,
)
from strandline.metastorage.etcd.operations import (
    if_modified_at,
    if_value_below,
    put_operation,
    range_operation,
)
from strandline.metastorage.store import Lease, lease_lost

_NEVER = Timestamp(0)
_Row = tuple[Lease, int, Timestamp]
"""The row, etcd's revision of it, and the stored time."""


def time_above(clock: HybridClock, stored: Timestamp, *, bounded: bool = True) -> Timestamp:
    """The clock's time, moved above the stored one if it is behind.

    With ``bounded`` (writes; not reads and leases), raises `WrongClock` if that is too far ahead.
    """
    now = clock.now() if bounded else clock.current()
    if now > stored:
        return now
    if bounded and clock.is_too_far_ahead(stored):
        raise clock.too_far_ahead(stored, todo="raise clock_ahead_limit_ms on each node")
    return clock.update(stored)


def is_live(lease: Lease, now: Timestamp) -> bool:
    """Whether the lease has a holder at ``now``."""
    return bool(lease.holder) and lease.expires > now


class EtcdLeases:
    """The leases of one store. Safe for threads. ``before_write`` raises if it may not write."""

    def __init__(
        self,
        gateway: EtcdGateway,
        keys: EtcdKeys,
        clock: HybridClock,
        *,
        before_write: Callable[[], None],
    ) -> None:
        self._gateway = gateway
        self._keys = keys
        self._clock = clock
        self._before_write = before_write

    def lease(self, name: str) -> Lease | None:
        lease, _, stored = self._read(name)
        if not lease.holder:
            return None
        if is_live(lease, max(self._clock.current(), stored)):
            return lease
        row, now = self._decide(name, lambda _row, _now: None)
        return row if is_live(row, now) else None

    def acquire(self, name: str, holder: str, *, ttl_ms: int) -> Lease | None:
        present = self.lease(name)
        if present is not None and present.holder != holder:
            return None

        def grant(row: Lease, now: Timestamp) -> Lease | None:
            expires = add_milliseconds(now, ttl_ms)
            if not is_live(row, now):
                return Lease(name, holder, expires, row.token + 1)
            return Lease(name, holder, expires, row.token) if row.holder == holder else None

        row, _ = self._decide(name, grant)
        return row if row.holder == holder else None

    def renew(self, lease: Lease, *, ttl_ms: int) -> Lease:
        def extend(row: Lease, now: Timestamp) -> Lease | None:
            if not is_live(row, now) or (row.token, row.holder) != (lease.token, lease.holder):
                return None
            return Lease(row.name, row.holder, add_milliseconds(now, ttl_ms), row.token)

        row, now = self._decide(lease.name, extend)
        if (row.token, row.holder) == (lease.token, lease.holder) and is_live(row, now):
            return row
        raise lease_lost(lease, to=row if is_live(row, now) else None)

    def release(self, lease: Lease) -> None:
        def end(row: Lease, _now: Timestamp) -> Lease | None:
            is_same = (row.token, row.holder) == (lease.token, lease.holder)
            return Lease(row.name, "", row.expires, row.token) if is_same else None

        self._decide(lease.name, end)

    def _read(self, name: str) -> _Row:
        keys = (self._keys.lease(name), self._keys.time)
        answer = self._gateway.txn([], [range_operation(key) for key in keys], repeatable=True)
        row, at = answer.pages
        lease = Lease(name, "", _NEVER, 0) if row.value is None else decode_lease(name, row.value)
        return lease, row.modified, stored_time(self._gateway, at.value)

    def _decide(
        self, name: str, change: Callable[[Lease, Timestamp], Lease | None]
    ) -> tuple[Lease, Timestamp]:
        """The row after ``change`` (None: unchanged), and the time of the decision."""
        self._before_write()
        finish = time.monotonic() + self._gateway.timeout
        while True:
            row, modified, stored = self._read(name)
            now = time_above(self._clock, stored, bounded=False)
            changed = change(row, now)
            key = self._keys.lease(name)
            writes = [put_operation(self._keys.time, encode_time(now))]
            if changed is not None:
                writes.append(put_operation(key, encode_lease(changed)))
            answer = self._gateway.txn(
                [if_modified_at(key, modified), if_value_below(self._keys.time, encode_time(now))],
                writes,
                [range_operation(key), range_operation(self._keys.time)],
                repeatable=changed is None,
            )
            if answer.succeeded:
                return changed or row, now
            if changed is None:
                # Nobody can change the row below this time any more. If etcd is slow, it may be an
                # earlier try of the same request that has raised it.
                present, at = answer.pages
                if present.modified == modified and stored_time(self._gateway, at.value) >= now:
                    return row, now
            if time.monotonic() >= finish:
                raise DeadlineExceeded(
                    f"the lease {name!r} could not be written within {self._gateway.timeout} s, "
                    "because other clients changed the store at each try; nothing was changed, "
                    "try again"
                )


def stored_time(gateway: EtcdGateway, raw: bytes | None) -> Timestamp:
    """The store's time in the value of its key. Raises `CorruptData`, also if the key is gone."""
    if raw is None:
        raise CorruptData(
            f"the time of the metastorage is missing in etcd ({', '.join(gateway.endpoints)}): its"
            " keys were deleted; restore etcd from a backup"
        )
    return decode_time(raw)
