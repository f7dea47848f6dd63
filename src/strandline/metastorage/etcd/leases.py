"""Leases in etcd: rows of ours, judged in the store's time.

etcd has leases of its own, but they expire by its wall clock, and nothing could be ordered
against that. So a lease is a row here as in the other stores. Each decision about one takes a
time above the stored one, and is written with that time on the condition that the row is still
what was decided on and the stored time still below. What was judged expired at a stored time is
expired for everyone who comes later.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from strandline.clock import HybridClock, Timestamp, add_milliseconds
from strandline.errors import Conflict, CorruptData, DeadlineExceeded
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.metastorage.etcd.layout import (
    EtcdKeys,
    decode_lease,
    decode_time,
    encode_lease,
    encode_time,
)
from strandline.metastorage.etcd.messages import (
    if_modified_at,
    if_value_below,
    put_operation,
    range_operation,
)
from strandline.metastorage.store import Lease

_NEVER = Timestamp(0)
_Row = tuple[Lease, int, Timestamp]
"""The row as it stands, etcd's revision of it, and the stored time."""


def time_above(clock: HybridClock, stored: Timestamp, *, bounded: bool = True) -> Timestamp:
    """The clock's time, moved above the stored one where it is behind.

    Raises `WrongClock` where that is too far ahead and ``bounded``: looks and leases are not.
    """
    now = clock.now() if bounded else clock.current()
    if now > stored:
        return now
    if bounded and clock.is_too_far_ahead(stored):
        raise clock.too_far_ahead(stored, todo="allow this client's `HybridClock` more")
    return clock.update(stored)


def is_live(lease: Lease, now: Timestamp) -> bool:
    """Whether somebody holds the lease at ``now``."""
    return bool(lease.holder) and lease.expires > now


class EtcdLeases:
    """The leases of one store. Safe for threads."""

    def __init__(self, gateway: EtcdGateway, keys: EtcdKeys, clock: HybridClock) -> None:
        self._gateway = gateway
        self._keys = keys
        self._clock = clock

    def lease(self, name: str) -> Lease | None:
        """See `Metastorage.lease`."""
        found, _, stored = self._read(name)
        if not found.holder:
            return None
        if is_live(found, max(self._clock.current(), stored)):
            return found
        row, now = self._decide(name, lambda _row, _now: None)
        return row if is_live(row, now) else None

    def acquire(self, name: str, holder: str, *, ttl_ms: int) -> Lease | None:
        """See `Metastorage.acquire_lease`."""
        found = self.lease(name)
        if found is not None and found.holder != holder:
            return None

        def grant(row: Lease, now: Timestamp) -> Lease | None:
            expires = add_milliseconds(now, ttl_ms)
            if not is_live(row, now):
                return Lease(name, holder, expires, row.token + 1)
            return Lease(name, holder, expires, row.token) if row.holder == holder else None

        row, _ = self._decide(name, grant)
        return row if row.holder == holder else None

    def renew(self, lease: Lease, *, ttl_ms: int) -> Lease:
        """See `Metastorage.renew_lease`."""

        def extend(row: Lease, now: Timestamp) -> Lease | None:
            if not is_live(row, now) or (row.token, row.holder) != (lease.token, lease.holder):
                return None
            return Lease(row.name, row.holder, add_milliseconds(now, ttl_ms), row.token)

        row, now = self._decide(lease.name, extend)
        if (row.token, row.holder) == (lease.token, lease.holder) and is_live(row, now):
            return row
        found = f"{row.holder} holds token {row.token}" if is_live(row, now) else "nobody holds it"
        raise Conflict(
            f"{lease.holder} no longer holds token {lease.token} of the lease {lease.name!r}:"
            f" {found} now; acquire it anew"
        )

    def release(self, lease: Lease) -> None:
        """See `Metastorage.release_lease`."""

        def end(row: Lease, _now: Timestamp) -> Lease | None:
            held = (row.token, row.holder) == (lease.token, lease.holder)
            return Lease(row.name, "", row.expires, row.token) if held else None

        self._decide(lease.name, end)

    def _read(self, name: str) -> _Row:
        keys = (self._keys.lease(name), self._keys.time)
        answer = self._gateway.txn([], [range_operation(key) for key in keys], repeatable=True)
        row, at = (page.pairs for page in answer.pages)
        if not at:
            raise CorruptData(lost_time(self._gateway))
        stored = decode_time(at[0].value)
        if not row:
            return Lease(name, "", _NEVER, 0), 0, stored
        return decode_lease(name, row[0].value), row[0].modified, stored

    def _decide(
        self, name: str, change: Callable[[Lease, Timestamp], Lease | None]
    ) -> tuple[Lease, Timestamp]:
        """The row after ``change`` (None: as it was) and the time at which that was decided."""
        finish = time.monotonic() + self._gateway.timeout
        while time.monotonic() < finish:
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
                repeatable=changed is None,
            )
            if answer.succeeded:
                return changed or row, now
        raise DeadlineExceeded(
            f"others wrote to the store each time the lease {name!r} was to be written, for"
            f" {self._gateway.timeout} s; nothing was changed, try again"
        )


def lost_time(gateway: EtcdGateway) -> str:
    """What to say when the key of the time is gone."""
    return (
        f"the time of the metastorage is gone from etcd ({', '.join(gateway.endpoints)}): its keys"
        " were deleted; restore etcd from a backup"
    )
